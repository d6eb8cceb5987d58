"""Mutated records: refused with a reason, or every page can be built of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from _support import committed

from rooftop.core import settings
from rooftop.lab.fuzz import records as fuzz
from rooftop.lab.records import form, record, store
from rooftop.lab.report import precision
from rooftop.lab.report.data import gather
from rooftop.lab.timing import expected

RESULTS = settings.CHECKOUT / "results"
HEAD = {"kind": "run", "form": 2, "at": "2026-11-22T02:19:04+00:00", "device": {"name": "NVIDIA H200"}}


@pytest.mark.sampled("slow")
def test_changed_lines_are_refused_or_every_page_can_be_built(request: pytest.FixtureRequest) -> None:
    kinds, findings = fuzz.run(RESULTS, 10_000 if request.config.getoption("--all") else 60, seed=11)
    assert findings == [] and kinds["refused"] > kinds["accepted"] > 0


def test_the_fuzz_sees_a_reader_that_fails(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        for r in store.read(folder):
            _ = 1 / len(r.get("us", "x"))

    sweep = next(r for r in committed() if r["kind"] == "sweep")
    empty = {**sweep, **{k: [] for k in ("us", "dtype", "few", "aligned", "bytes", "copy_us", "roof_us", "noise", "by", "wrong")}}
    empty |= {"sizes": {n: [] for n in sweep["sizes"]}, "peers": {n: [] for n in sweep["peers"]}}
    lines = [(HEAD, json.dumps(r, default=dict).encode()) for r in (sweep, empty, sweep)]
    found = fuzz.blamed(lines, read, tmp_path / "some")
    assert len(found) == 1 and found[0].startswith("ZeroDivisionError")


def nested(depth: int) -> dict[str, Any]:
    value: Any = 0
    for _ in range(depth):
        value = {"of": 2, "each": {"k": [1, 2]}, "v": value}
    return {"kind": "clock", "subject": "a", "device": {"name": "NVIDIA H200"}, "z": value}


@pytest.mark.parametrize("depth", [9, 20, 28])
def test_nested_tables_stand_for_no_more_than_their_line_has_room_for(tmp_path: Path, depth: int) -> None:
    started = time.process_time()
    (tmp_path / "a.jsonl").write_text(json.dumps(HEAD) + "\n" + json.dumps(nested(depth)) + "\n\n")
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2: not a record: its tables stand for more than \d+ values, 8 for each byte of the line"):
        store.read(tmp_path)
    assert time.process_time() - started < 2


def test_a_table_of_many_beside_a_long_one_is_refused_too() -> None:
    with pytest.raises(ValueError, match="stand for more than"):
        form.joined({"kind": "clock", **dict.fromkeys(map(str, range(5000)), 0), "of": 5000, "each": {"subject": ["a"] * 5000}}, {})


def test_what_would_be_refused_is_not_written_so() -> None:
    """Many tables that differ in one short value: written one by one where a line of all could not be read again."""
    rows = [{"kind": "clock", "subject": "s", "all": [0] * 400, "n": i} for i in range(300)]
    assert form.fold(rows) is None
    lines = list(form.lines(rows, {}))
    assert [r for line in lines for r in form.joined(json.loads(line), {}, len(line))] == rows


def changed(kind: str, key: str, value: Any, **of: Any) -> bytes:
    record = json.loads(json.dumps(next(r.table for r in committed() if r["kind"] == kind and all(r.get(k) == v for k, v in of.items()))))
    *way, last = key.split(".")
    inner = record
    for name in way:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[int(last) if isinstance(inner, list) else last] = value
    return json.dumps(record).encode()


WRONG: list[tuple[str, str, Any, dict[str, Any], str]] = [
    ("sweep", "axis", "nosuch", {}, r"axis is 'nosuch'; it must be one of .*columns"), ("sweep", "by.0", 99, {}, r"by\[0\] is 99; it must be the place"),
    ("sweep", "dtype.1", 99, {}, r"dtype\[1\] is 99"), ("sweep", "us.0", 0, {}, r"us\[0\] is 0; it must be above 0"),
    ("sweep", "sizes", {}, {}, "sizes is {}; it must be a table of at least one size"), ("sweep", "named", 5, {}, "named is 5; it must be a list"),
    ("compared", "hardware", None, {"tier": "traffic"}, "hardware is None; it must be a table"),
    ("compared", "launch", "0", {"tier": "traffic"}, "launch is '0'; it must be a whole number"),
    ("bench", "at", "yesterday", {}, "at is 'yesterday'; it must be a time with its zone"), ("bench", "at", "2026-01-01", {}, "at is '2026-01-01'"),
    ("bench", "at", "2026-02-30T00:00:00+00:00", {}, "at is"), ("bench", "at", 5, {}, "at is 5, seconds after a time that the head does not give"),
    ("clock", "rows.0.seconds", "x", {"subject": "naive timing"}, r"rows\[0\]\.seconds is 'x'; it must be a number"),
    ("clock", "repeats", None, {"subject": "naive timing"}, "repeats is None"),
    ("clock", "rows.0.facts.blocks", {"7": 1}, {"subject": "sparse ways"}, r"a key of rows\[0\]\.facts\.blocks is '7'"),
    ("bench", "subject", "\x1b[31mforged", {}, r"subject holds the control character U\+001B"),
    ("bench", "subject", "\u202eabc", {}, r"subject holds the control character U\+202E"),
    ("bench", "clocks.\x9bm", 1, {}, r"a key of clocks holds the control character U\+009B"),
    ("bench", "case", "two\nlines", {}, r"case is 'two\\nlines'; it must be a text of one line"), ("bench", "device.name", "...", {}, "no device name"),
    ("bench", "device.sms", 0, {}, r"device\.sms is 0; it must be at least 1"),
    ("ceiling", "curves.copy.1.bytes", 1, {"subject": "memory"}, r"curves\.copy\[1\]\.bytes is 1; it must be above that of the point before it"),
]


@pytest.mark.parametrize(("kind", "key", "value", "of", "said"), WRONG, ids=lambda v: str(v)[:24])
def test_what_no_page_could_show_is_named(kind: str, key: str, value: Any, of: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        store.parse(changed(kind, key, value, **of))
    assert str(caught.value).isprintable()


def test_times_before_and_after_all_years_are_refused() -> None:
    for at, seconds in (("9999-12-31T23:59:59+00:00", 5), ("0001-01-01T00:00:00+14:00", 5)):
        with pytest.raises(ValueError, match="at is"):
            store.parse(b'{"kind": "clock", "subject": "a", "device": {"name": "H100"}, "at": %d}' % seconds, {"kind": "run", "form": 2, "at": at})


def test_a_run_writes_texts_as_they_may_be_shown(tmp_path: Path) -> None:
    with store.Writer(tmp_path, "NVIDIA H200") as writer:
        given = writer.write({"kind": "clock", "subject": "a\x1b[1m\x9b", "device": {"name": "NVIDIA H200"}, "text": ["\u202e", "two\nlines"], "\x07": 1})
    assert store.read(tmp_path) == [given] and given["subject"] == "a\\x1b[1m\\x9b" and given["text"] == ["\\u202e", "two\nlines"] and given["\\x07"] == 1


def test_the_subjects_that_have_rows_of_their_own_are_those_of_the_pages() -> None:
    from rooftop.lab.records import trials
    from rooftop.lab.report import codec_peers, models_page, perplexity, tables
    from rooftop.lab.timing import sparse_auto

    pages = (trials, models_page, perplexity, sparse_auto, codec_peers)
    assert set(record.ROWS) == {"naive timing", tables.LEARN, *(page.SUBJECT for page in pages)}


def test_a_sweep_of_a_dtype_that_is_none_is_refused(tmp_path: Path) -> None:
    sweep = next(r for r in committed() if r["kind"] == "sweep")
    (tmp_path / "a.jsonl").write_text(json.dumps(HEAD) + "\n" + json.dumps({**sweep, "dtypes": ["<b>", *sweep["dtypes"][1:]]}) + "\n", encoding="utf-8")
    with pytest.raises(store.RecordError, match=r"dtypes\[0\] is '<b>'; it must be one of f64, f32"):
        store.read(tmp_path)


def test_a_time_need_not_hold_operations_nor_an_error() -> None:
    timed = (r for r in committed() if r["kind"] == "bench" and r["op"] == "matmul" and "/" not in r["subject"])
    whole = next(r for r in timed if not r["subject"].startswith("peer") and "median" in r["clocks"].get("kernel", {}))
    bare = whole.but(error=None, work={k: v for k, v in whole["work"].items() if k != "ops"})
    assert precision.ways([bare], gather([bare])) == []
    assert [t.case for t in expected.timed([bare])] == [whole["case"]]
