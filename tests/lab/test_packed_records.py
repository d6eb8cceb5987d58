"""Files of records in xz: read like plain ones, written by merge and prune, refused by name where they are damaged; nothing is lost."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from _support import command

from rooftop.core import settings
from rooftop.lab.records import form, rewriting, store

CARD = "NVIDIA H100 80GB HBM3"


def put(folder: Path, *subjects: str, name: str = "a.jsonl") -> Path:
    """A file of records as a run writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"kind": "clock", "subject": s, "at": f"2026-11-22T00:00:0{i}+00:00", "device": {"name": CARD}} for i, s in enumerate(subjects)]
    path = folder / name
    path.write_text("".join(form.dumps(line) + "\n" for line in (form.head_of(rows), *rows)), encoding="utf-8")
    return path


def subjects(folder: Path) -> list[str]:
    return [str(r["subject"]) for r in store.read(folder)]


def fresh(_: object) -> bool:
    return False


def test_the_records_of_the_tree_are_packed() -> None:
    """Those that git holds: what a run has just written is text until the next merge or prune."""
    listed = subprocess.run(["git", "ls-files", "results"], cwd=settings.CHECKOUT, capture_output=True, text=True, check=True).stdout.split()
    plain = [p for p in listed if p.endswith(form.PLAIN) and (settings.CHECKOUT / p).is_file()]
    assert plain == [], "rooftop records prune packs them"
    files = form.below(settings.CHECKOUT / "results")
    size, text = sum(p.stat().st_size for p in files), sum(len(form.unpacked(p.read_bytes())) for p in files)
    assert files and size < 0.3 * text


def test_a_packed_file_is_read_like_a_plain_one_whatever_its_name(tmp_path: Path) -> None:
    plain = put(tmp_path, "a", "b")
    expected = store.read_file(plain)
    for name in ("x.jsonl.xz", "x.jsonl"):
        path = tmp_path / name
        path.write_bytes(form.packed(plain.read_bytes(), form.packed_name(path)))
        assert path.read_bytes().startswith(form.FIRST) and store.read_file(path) == expected and store.read(path) == expected[0]
    (tmp_path / "y.jsonl.xz").write_bytes(plain.read_bytes())
    assert store.read_file(tmp_path / "y.jsonl.xz") == expected
    assert form.packed_name(plain) == form.packed_name(form.packed_name(plain)) == tmp_path / "a.jsonl.xz"
    with pytest.raises(NotADirectoryError, match=r"a \.jsonl or \.jsonl\.xz file"):
        store.read(Path(shutil.copy(plain, tmp_path / "a.xz")))


def damaged(content: bytes = b'{"kind":"clock"}\n') -> dict[str, tuple[bytes, str]]:
    """Files with the text of a file of records, and what is said of them."""
    whole = lzma.compress(content)
    line = content.replace(b'"kind":"clock"', b'"kind":"clck"', 1)
    return {
        "cut off": (whole[:-30], "the packed file is cut off"), "begun": (whole[:8], "the packed file is cut off"),
        "a bit": (whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], "the packed file is damaged"),
        "more": (whole + b"{}", "something stands after the end of the packed file"),
        "memory": (lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}]), "the packed file is damaged: Memory usage limit"),
        "too large": (lzma.compress(content + b"\n" * 5000), "unpacked it has more than 4,096 bytes"),
        "a line": (lzma.compress(line), ":2: not a record: kind must be one of"),
    }


@pytest.mark.parametrize("what", damaged())
def test_a_damaged_one_is_named_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str) -> None:
    monkeypatch.setattr(form, "MOST", 4096)
    content, said = damaged(put(tmp_path / "away", "a", "b", name="0.jsonl").read_bytes())[what]
    (tmp_path / "away" / "z.jsonl.xz").write_bytes(content)
    before = {p: p.read_bytes() for p in form.below(tmp_path / "away")}
    for words in (("merge", str(tmp_path / "away"), "--into", str(tmp_path / "home")), ("prune", "--records", str(tmp_path / "away")), ("show", str(tmp_path))):
        assert command(monkeypatch, "records", *words) == 1
        message = capsys.readouterr().err
        assert "z.jsonl.xz:" in message and said in " ".join(message.split()) and "Traceback" not in message
    assert not (tmp_path / "home").exists() and {p: p.read_bytes() for p in form.below(tmp_path / "away")} == before


def test_merge_packs_what_it_writes_and_lets_a_plain_file_grow_into_a_packed_one(tmp_path: Path) -> None:
    home = tmp_path / "home" / "h100-80gb-hbm3"
    put(home, "a")
    put(tmp_path / "away", "a", "b")
    done = rewriting.merge(tmp_path / "away", tmp_path / "home")
    assert (done.added, done.grown) == ([], ["a.jsonl.xz"]) and [p.name for p in home.iterdir()] == ["a.jsonl.xz"] and sorted(subjects(home)) == ["a", "b"]
    content = (home / "a.jsonl.xz").read_bytes()
    assert form.packed(form.unpacked(content), home / "a.jsonl.xz") == content, "the same text gives the same bytes"
    assert rewriting.merge(tmp_path / "home", tmp_path / "again").added == ["a.jsonl.xz"], "a packed folder is merged like a plain one"
    assert store.read(tmp_path / "again") == store.read(tmp_path / "home")
    assert rewriting.merge(tmp_path / "home", tmp_path / "again").same == rewriting.merge(tmp_path / "away", tmp_path / "again").same == ["a.jsonl.xz"]


def test_prune_packs_plain_files_and_puts_the_two_of_a_run_together(tmp_path: Path) -> None:
    """As a merge of two branches leaves them, of which one packed a file and the other let it grow."""
    packed_one = form.packed_name(put(tmp_path, "a", "b"))
    packed_one.write_bytes(form.packed((tmp_path / "a.jsonl").read_bytes(), packed_one))
    put(tmp_path, "a", "b", "c")
    put(tmp_path, "d", name="d.jsonl")
    done = rewriting.prune(tmp_path, lambda _: fresh)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl.xz", "d.jsonl.xz"] and sorted(subjects(tmp_path)) == ["a", "b", "c", "d"]
    assert (done.records, done.dropped, done.files, done.files_dropped) == (4, 0, 3, 1)
    assert done.bytes - done.bytes_dropped == sum(p.stat().st_size for p in form.below(tmp_path))
    assert rewriting.prune(tmp_path, lambda _: fresh).bytes_dropped == 0


def test_show_prints_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "away", "a", "b")
    rewriting.merge(tmp_path / "away", tmp_path / "home")
    (path,) = form.below(tmp_path / "home")
    said = []
    for place in (path, tmp_path / "home", tmp_path / "away"):
        assert command(monkeypatch, "records", "show", str(place)) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2] == "".join(form.dumps(r) + "\n" for r in store.read(path)) and said[0].count(CARD) == 2
    assert command(monkeypatch, "records", "show", str(tmp_path / "absent")) == 1 and "no " in capsys.readouterr().err
