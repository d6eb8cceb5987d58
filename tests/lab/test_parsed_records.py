"""Records that the cache keeps parsed: the same as read anew, whatever has happened to the files or to the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rooftop.core import disk_cache, settings
from rooftop.lab.check import unproven
from rooftop.lab.records import form, store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of records, last changed long ago, in a folder that is large enough for a cache."""
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "LEAST", 1)
    monkeypatch.setattr(store, "SETTLED", -1.0)
    made = tmp_path / "results" / "h200"
    made.mkdir(parents=True)
    for path in form.below(settings.CHECKOUT / "results" / "h200")[:2]:
        (made / path.name.removesuffix(".xz")).write_bytes(form.unpacked(path.read_bytes()))
    return made.parent


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are parsed from now on."""
    seen: list[str] = []
    real = store.read_file

    def noting(path: Path) -> tuple[list[store.Record], str | None]:
        seen.append(path.name)
        return real(path)

    monkeypatch.setattr(store, "read_file", noting)
    return seen


def test_files_that_have_not_changed_are_not_parsed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch)
    first = store.read(folder)
    assert first and len(seen) == 2 and [p.name for p in disk_cache.parts()] == ["records"]
    assert store.read(folder) == first and len(seen) == 2
    path = sorted(folder.rglob("*.jsonl"))[1]
    path.write_bytes(path.read_bytes() + b'{"kind": "ben')
    cut: list[str] = []
    assert store.read(folder, cut) == first and seen[2:] == [path.name] and "cut off" in cut[0]
    cut.clear()
    assert store.read(folder, cut) == first and len(seen) == 3 and "cut off" in cut[0]
    path.unlink()
    assert 0 < len(store.read(folder)) < len(first) and len(seen) == 3


def test_a_damaged_file_is_named_each_time(folder: Path) -> None:
    first = store.read(folder)
    path = sorted(folder.rglob("*.jsonl"))[0]
    whole, stat = path.read_bytes(), path.stat()
    path.write_bytes(b"{" * 9 + whole[9:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as large and as old as before
    for _ in range(2):
        with pytest.raises(store.RecordError, match=":1: not a record"):
            store.read(folder)
    path.write_bytes(whole)
    assert store.read(folder) == first


@pytest.mark.parametrize("damage", ["empty", "half", "bit", "folder", "version"])
def test_a_damaged_cache_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    first = store.read(folder)
    (path,) = (settings.load().cache / store.PART).iterdir()
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "version":
        monkeypatch.setattr(store, "_version", lambda: "another")
    else:
        path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "bit": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]}[damage])
    seen = counted(monkeypatch)
    assert store.read(folder) == first and len(seen) == 2
    if damage != "folder":
        assert store.read(folder) == first and len(seen) == 2, "it heals"


def test_a_file_that_has_just_changed_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETTLED", 3600.0)
    seen = counted(monkeypatch)
    for _ in range(2):
        store.read(folder)
    assert len(seen) == 4


def test_a_cache_that_cannot_be_written_costs_only_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", "/proc/rooftop")
    assert store.read(folder) and store.read(folder)
    monkeypatch.setenv("ROOFTOP_JOBS", "none")
    assert store.read(folder)


def test_what_only_a_gpu_runs_is_worked_out_again_when_something_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    kernel = unproven.Unproven("far__gluon_sm90", "it needs a GPU", ("odd bf16",), 5)

    def answer(records: list[store.Record]) -> list[unproven.Unproven]:
        asked.append(len(records))
        return [kernel]

    monkeypatch.setattr(unproven, "unproven", answer)
    monkeypatch.setattr(unproven, "SETTLED", -1.0)
    assert unproven.waiting(folder) == unproven.waiting(folder) == [kernel] and len(asked) == 1
    path = sorted(folder.rglob("*.jsonl"))[1]
    path.unlink()
    assert unproven.waiting(folder) == unproven.waiting(folder) == [kernel] and asked[1] < asked[0] and len(asked) == 2
    (kept,) = (settings.load().cache / "facts").iterdir()
    kept.write_text(kept.read_text(encoding="utf-8")[:-4], encoding="utf-8")
    assert unproven.waiting(folder) == [kernel] and len(asked) == 3
    monkeypatch.setattr(unproven, "SETTLED", 1e9)
    path.write_text("", encoding="utf-8")
    for _ in range(2):
        unproven.waiting(folder)
    assert len(asked) == 5
    monkeypatch.setenv("ROOFTOP_CACHE", "/proc/rooftop")
    assert unproven.waiting(folder) == [kernel]


def test_the_page_of_a_ladder_needs_no_other_op_s_timings() -> None:
    from rooftop.core import registry
    from rooftop.lab.report import data, ladder_text

    found = store.read(settings.CHECKOUT / "results")
    page = ladder_text.page_of("softmax_cuda", found)
    counts = {rung.name: rung.counts for rung in page.rungs if rung.counts is not None}
    assert data.Gatherer(found, counts=counts).ladder_page(registry.ladder("softmax_cuda")) == page
