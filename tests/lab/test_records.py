"""Records: written, read and merged by many processes at once; what is none is named with its line; nothing is lost."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _support import command, flat
from _support import committed as committed_records

from rooftop.core import settings
from rooftop.lab.check import checker
from rooftop.lab.records import form, rewriting, store


def _write(folder: Path, count: int) -> None:
    with store.Writer(folder, "NVIDIA H100 80GB HBM3") as writer:
        for i in range(count):
            writer.write({"kind": "clock", "subject": str(i), "device": {"name": "NVIDIA H100 80GB HBM3"}})


def test_two_processes_writing_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(tmp_path, 40)) for _ in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(store.read(tmp_path)) == 80


def test_merging_loses_nothing_and_twice_changes_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "there", 3)
    source = next((tmp_path / "there").rglob("*.jsonl"))
    assert rewriting.merge(tmp_path / "there", tmp_path / "here").added == [form.packed_name(source).name]
    assert rewriting.merge(tmp_path / "there", tmp_path / "here").same == [form.packed_name(source).name]
    with source.open("a") as file:
        file.write('{"kind": "clock", "subject": "copy", "device": {"name": "NVIDIA H100 80GB HBM3"}}\n{"kind": "be')
    grown = rewriting.merge(tmp_path / "there", tmp_path / "here")
    assert grown.grown == [form.packed_name(source).name]
    assert "cut off" in grown.notes[0]
    assert len(store.read(tmp_path / "here")) == 4


def test_a_file_that_is_not_of_records_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jsonl").write_text('{"kind": "clock", "subject": "copy", "device": {"name": "card"}}\nnonsense\n{"kind": "bench"}\n')
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2"):
        rewriting.merge(tmp_path / "bad", tmp_path / "here")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(store.RecordError, match=r"pipe\.jsonl is neither a file nor a folder"):
        rewriting.merge(tmp_path / "pipe.jsonl", tmp_path / "here")
    assert not (tmp_path / "here").exists()
    with store.Writer(tmp_path, "card") as writer, pytest.raises(store.RecordError, match="number"):
        writer.write({"kind": "bench", "subject": "x", "t": float("nan")})


CARD = "NVIDIA H100 80GB HBM3"
RESULTS = settings.CHECKOUT / "results"
WRITE = """
import sys
from pathlib import Path
from rooftop.lab.records import store
folder, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with store.Writer(folder, "NVIDIA H100 80GB HBM3") as writer:
    for i in range(count):
        writer.write({"kind": "clock", "subject": who, "case": str(i), "text": who * 5000, "device": {"name": "NVIDIA H100 80GB HBM3"}})
"""
MERGE = """
import sys
from pathlib import Path
from rooftop.lab.records import rewriting
rewriting.merge(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def started(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)


def done(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said


def row(who: str, i: int = 0) -> dict[str, Any]:
    return {"kind": "clock", "subject": who, "case": str(i), "device": {"name": CARD}}


def put(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl", tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows) + tail)
    return folder / name


@pytest.mark.sampled("slow")
def test_many_processes_write_at_once_while_another_reads_and_merges(tmp_path: Path) -> None:
    writers = [started(WRITE, str(tmp_path / "r"), str(i), "25") for i in range(5)]
    while any(w.poll() is None for w in writers):  # what is half written is left out, nothing else
        if (tmp_path / "r").is_dir():
            assert all(len(r["text"]) == 5000 for r in store.read(tmp_path / "r"))
        time.sleep(0.02)
    for w in writers:
        done(w)
    for home in (tmp_path / "r", tmp_path / "home"):
        if home.name == "home":
            rewriting.merge(tmp_path / "r", home)
        found = store.read(home)
        assert sorted((r["subject"], int(r["case"])) for r in found) == [(str(w), i) for w in range(5) for i in range(25)]
        assert all(r["text"] == r["subject"] * 5000 for r in found)
        assert len({(r["subject"], r["run"]) for r in found}) == 5


def test_processes_that_merge_the_same_at_once_make_one_of_it(tmp_path: Path) -> None:
    put(tmp_path / "away", [row("a", i) for i in range(200)])
    for p in [started(MERGE, str(tmp_path / "away"), str(tmp_path / "home")) for _ in range(4)]:
        done(p)
    (path,) = (p for p in (tmp_path / "home").rglob("*") if p.is_file())
    assert path.name == "a.jsonl.xz" and len(store.read_file(path)[0]) == 200


def test_merges_of_one_name_at_once_keep_both(tmp_path: Path) -> None:
    """Four processes bring files of the same name home, each with records of its own and some that all have."""
    for who in "abcd":
        put(tmp_path / who, [row("all", i) for i in range(50)] + [row(who, i) for i in range(50)])
    for p in [started(MERGE, str(tmp_path / who), str(tmp_path / "home")) for who in "abcd"]:
        done(p)
    found = store.read(tmp_path / "home")
    assert sorted((r["subject"], int(r["case"])) for r in found) == sorted((who, i) for who in ("a", "all", "b", "c", "d") for i in range(50))
    assert [p.name for p in (tmp_path / "home").rglob("*") if p.is_file()] == ["a.jsonl.xz"]


def test_a_merge_is_alone_while_it_lets_a_file_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its write no other merge may let the same file grow further: the shorter one would stay."""
    put(tmp_path / "home" / "h100-80gb-hbm3", [row("a")])
    put(tmp_path / "away", [row("a"), row("b")])
    replaced, whole = [], os.replace

    def watched(source: Path, target: Path) -> None:
        handle = os.open(target.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        replaced.append(target.name)
        whole(source, target)

    monkeypatch.setattr(os, "replace", watched)
    assert rewriting.merge(tmp_path / "away", tmp_path / "home").grown == replaced == ["a.jsonl.xz"]
    assert store.read(tmp_path / "home") == [row("a"), row("b")]


def test_a_file_that_a_run_is_writing_is_left_to_it(tmp_path: Path) -> None:
    """Also where nothing stands in it yet: replaced, what the run writes next would be in no file."""
    with store.Writer(tmp_path / "home", CARD) as writer:
        put(tmp_path / "away", [row("a")], writer.path.name)
        for _ in range(2):
            with pytest.raises(store.RecordError, match="a run is writing"):
                rewriting.merge(tmp_path / "away", tmp_path / "home")
            writer.write(row("b"))
    rewriting.merge(tmp_path / "away", tmp_path / "home")
    assert sorted(r["subject"] for r in store.read(tmp_path / "home")) == ["a", "b", "b"]


def test_files_of_one_name_and_other_content_become_one(tmp_path: Path) -> None:
    for who in ("a", "b", "c"):
        put(tmp_path / who, [row(who)])
        rewriting.merge(tmp_path / who, tmp_path / "home")
    for who in ("c", "a", "b"):  # again, in another order: nothing changes
        assert rewriting.merge(tmp_path / who, tmp_path / "home").same != []
    assert sorted(r["subject"] for r in store.read(tmp_path / "home")) == ["a", "b", "c"]


def test_merging_a_folder_into_itself_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path / "h100-80gb-hbm3", [row("a")])
    before = (tmp_path / "h100-80gb-hbm3" / "a.jsonl").read_bytes()
    again = rewriting.merge(tmp_path, tmp_path)
    assert (again.added, again.grown, len(again.same)) == ([], [], 1)
    assert [p.read_bytes() for p in tmp_path.rglob("*.jsonl")] == [before]


def test_the_command_merges_twice_and_says_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "away" / "h100", [row("a"), row("b")], tail='{"kind": "ben')
    words = ("records", "merge", str(tmp_path / "away"), "--into", str(tmp_path / "home"))
    assert command(monkeypatch, *words) == 0
    first = flat(capsys.readouterr().out)
    assert "2 records: 1 files added, 0 grown, 0 already there" in first
    assert "a.jsonl:3: cut off, left out" in first
    before = {p: p.read_bytes() for p in form.below(tmp_path / "home")}
    assert command(monkeypatch, *words, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["added"], again["grown"], again["same"]) == ([], [], ["a.jsonl.xz"])
    assert before and {p: p.read_bytes() for p in form.below(tmp_path / "home")} == before


def test_a_last_line_that_is_whole_but_for_its_end_is_kept(tmp_path: Path) -> None:
    path = put(tmp_path / "away", [row("a")], tail=json.dumps(row("b")))
    assert store.read_file(path) == ([row("a"), row("b")], None)
    rewriting.merge(tmp_path / "away", tmp_path / "home")
    assert store.read_file(*form.below(tmp_path / "home")) == ([row("a"), row("b")], None)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_cut_off_file_keeps_its_other_records(tmp_path: Path, cut: int) -> None:
    path = put(tmp_path, [row("a"), row("b")])
    path.write_bytes(path.read_bytes()[:-1 - cut])
    found, note = store.read_file(path)
    assert found == [row("a")]
    assert note == "a.jsonl:2: cut off, left out"
    assert store.read(tmp_path) == [row("a")]


def test_a_report_says_that_a_record_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab import climb

    monkeypatch.setattr(climb, "report_counts", lambda run, say=None, answers=None: {})  # simulating every rung takes a minute,
    monkeypatch.setattr(climb, "report_facts", lambda compute, say, answers: ({}, 0))  # compiling all of them another
    put(tmp_path / "r", [row("a")], tail='{"kind": "ben')
    assert command(monkeypatch, "report", "--records", str(tmp_path / "r"), "--out", str(tmp_path / "pages")) == 0
    said = capfd.readouterr()
    assert "a.jsonl:2: cut off, left out" in said.out + said.err + "".join(p.read_text() for p in (tmp_path / "pages").glob("index.html"))


GOOD = b'{"kind": "clock", "subject": "a", "device": {"name": "H100"}}\n'
NO_RECORDS = {
    "a number": GOOD + b"5\n{}\n",
    "a list": GOOD + b"[1]\n{}\n",
    "no kind": GOOD + b'{"subject": "a"}\n' + GOOD,
    "another kind": GOOD + b'{"kind": "clck"}\n' + GOOD,
    "not UTF-8": GOOD + b"\xff\xfe\n" + GOOD,
    "half a character": GOOD + GOOD.replace(b'"a"', b'"\\ud800"') + GOOD,
    "a device that is null": GOOD + b'{"kind": "clock", "subject": "a", "device": null}\n',
    "a device that is a text": GOOD + b'{"kind": "clock", "subject": "a", "device": "H100"}\n',
    "nested without end": GOOD + GOOD.replace(b'"a"', b"[" * 100_000 + b"]" * 100_000),
    "nested deeply": GOOD + GOOD.replace(b'"subject"', b'"all": ' + b"[" * 200 + b"]" * 200 + b', "subject"'),
    "not a number": GOOD + GOOD.replace(b'"subject"', b'"t": NaN, "subject"'),
    "infinity": GOOD + GOOD.replace(b'"subject"', b'"t": [{"u": -Infinity}], "subject"'),
    "a number past the largest": GOOD + GOOD.replace(b'"subject"', b'"t": 1e999, "subject"'),
}


@pytest.mark.parametrize("what", NO_RECORDS)
def test_what_is_no_record_is_named_with_its_line_and_nothing_is_written(tmp_path: Path, what: str) -> None:
    put(tmp_path / "away", [row("a")], "0.jsonl")
    (tmp_path / "away" / "a.jsonl").write_bytes(NO_RECORDS[what])
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2: "):
        rewriting.merge(tmp_path / "away", tmp_path / "home")
    assert not (tmp_path / "home").exists()


def committed(kind: str) -> store.Table:
    return next(r.table for r in committed_records() if r["kind"] == kind and (kind != "bench" or ("predict" in r and r["versus"] and r["clocks"])))


WRONG_VALUES = [
    ("bench", "work", None), ("bench", "work.read", "1"), ("bench", "clocks", []), ("bench", "clocks.kernel.median", 0),
    ("bench", "clocks.kernel.low", "x"),
    ("bench", "versus", {"a": {"ratio": 0.0, "low": 1.0, "high": 1.0, "verdict": "tie"}}), ("bench", "versus", {"a": 1}),
    ("bench", "predict", {"speedup": None}),
    ("bench", "device.arch", "90"), ("bench", "device.sms", None), ("bench", "error", {"ok": "yes"}), ("bench", "case", 5), ("bench", "work.read", 10**400),
    ("check", "error", None), ("check", "error.max_share", "0"), ("ceiling", "curves.copy", []), ("ceiling", "curves.copy", [{"bytes": 1}]),
    ("ceiling", "launch.graph_node_s", None), ("ceiling", "fma_fp32", {"burst": 1}), ("sanitize", "cases", "odd f32"),
    ("sanitize", "errors", "0"),
    ("counters", "lines", {}), ("counters", "totals", []), ("tune", "config", None), ("build", "seconds", "3"),
]


@pytest.mark.parametrize(("kind", "key", "value"), WRONG_VALUES, ids=lambda v: str(v)[:30])
def test_a_record_that_the_pages_could_not_read_is_named_with_its_line(tmp_path: Path, kind: str, key: str, value: Any) -> None:
    good = committed(kind)
    bad = json.loads(json.dumps(good))
    *way, last = key.split(".")
    inner = bad
    for name in way:
        inner = inner[name]
    inner[last] = value
    put(tmp_path / "away", [good, bad])
    with pytest.raises(store.RecordError, match=rf"a\.jsonl:2: not a record: {re.escape(way[0] if way else last)}"):
        rewriting.merge(tmp_path / "away", tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("kind", ["bench", "check", "ceiling", "sanitize", "build", "clock", "tune", "counters"])
def test_what_a_record_must_have_is_named_where_it_is_missing(tmp_path: Path, kind: str) -> None:
    good = committed(kind)
    put(tmp_path / "away", [good, {k: v for k, v in good.items() if k != "device"}])
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2: not a record: device is missing"):
        rewriting.merge(tmp_path / "away", tmp_path / "home")


def test_every_committed_record_can_be_read() -> None:
    assert len(store.read(RESULTS)) > 4000
    assert set(store.SHAPES) == set(store.KINDS)


def test_a_text_that_is_cut_within_a_letter_is_cut_off(tmp_path: Path) -> None:
    path = put(tmp_path, [row("a")])
    path.write_bytes(path.read_bytes() + '{"kind": "bench", "subject": "é'.encode()[:-1])
    assert store.read_file(path) == ([row("a")], "a.jsonl:2: cut off, left out")


def test_records_of_two_cards_in_one_file_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "away", [row("a"), {**row("b"), "device": {"name": "NVIDIA H200"}}])
    with pytest.raises(store.RecordError, match=r"several devices: .*H100.*H200"):
        rewriting.merge(tmp_path / "away", tmp_path / "home")
    assert not (tmp_path / "home").exists()


# A regular file where a folder must be stands for every folder that cannot be written: it holds for the super-user too.
UNWRITABLE = {
    "check": ("check", "add", "--case", "odd f32", "--records"),
    "merge": ("records", "merge", "AWAY", "--into"),
    "report": ("report", "--records", "AWAY", "--out"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_folder_that_cannot_be_written_is_named_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(tmp_path / "away", [row("a")])
    (tmp_path / "file").write_text("kept")
    words = [str(tmp_path / "away") if w == "AWAY" else w for w in UNWRITABLE[name]]
    assert command(monkeypatch, *words, str(tmp_path / "file" / "r")) == 3
    said = capsys.readouterr().err
    assert str(tmp_path / "file") in said.replace("\n", "")
    assert "is a file; a folder is needed" in said.replace("\n", " ")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_for_records_is_tried_before_anything_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr(checker, "check", lambda *given, **named: pytest.fail("checked first"))
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--records", str(tmp_path / "file")) == 3


def test_a_folder_that_was_tried_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = store.Writer(tmp_path, CARD).ready()
    assert list(tmp_path.rglob("*")) == [where]

    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(OSError, match="No space left") as caught:
        store.Writer(tmp_path, CARD).ready()
    assert caught.value.filename == str(where)


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may write everywhere")
def test_a_read_only_folder_of_records_can_be_read_and_not_written(tmp_path: Path) -> None:
    put(tmp_path / "r" / "h100-80gb-hbm3", [row("a")])
    (tmp_path / "r" / "h100-80gb-hbm3").chmod(0o555)
    (tmp_path / "r").chmod(0o555)
    try:
        assert store.read(tmp_path / "r") == [row("a")]
        with pytest.raises(PermissionError, match="h100"), store.Writer(tmp_path / "r", CARD) as writer:
            writer.write(row("b"))
        assert store.read(tmp_path / "r") == [row("a")]
    finally:
        (tmp_path / "r").chmod(0o755)
        (tmp_path / "r" / "h100-80gb-hbm3").chmod(0o755)


def test_a_disk_that_is_full_is_an_error_and_loses_no_record_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.Writer(tmp_path, CARD) as writer:
        writer.write(row("a"))
        with monkeypatch.context() as m:

            def full(handle: int) -> None:
                raise OSError(28, "No space left on device")

            m.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                writer.write(row("b"))
    assert [r["subject"] for r in store.read(tmp_path)][:1] == ["a"]
