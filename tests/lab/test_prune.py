"""Records that a newer one stands for are taken out, and only those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooftop.lab.records import prune
from rooftop.lab.records.store import Record, RecordError


def row(subject: str, at: str, stale: bool = False, kind: str = "check", case: str = "big f32", card: str = "H100", **more: object) -> Record:
    return {
        "kind": kind, "op": "add", "subject": subject, "case": case, "at": at, "device": {"name": card}, "digest": "old" if stale else "new",
        "error": {"ok": True}, **more,
    }  # fmt: skip


def old(r: Record) -> bool:
    return r["digest"] == "old"


def put(path: Path, *found: Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in found), encoding="utf-8")
    return path


def test_the_newest_that_is_not_stale_stays_and_where_all_are_the_newest() -> None:
    found = [
        row("a", "1"), row("a", "2"), row("a", "3", stale=True),  # the tree went back to what the second measured
        row("b", "1", stale=True), row("b", "2", stale=True),
        row("c", "1"), row("c", "1", case="odd f32"), row("c", "1", card="A100"), row("c", "2", kind="sanitize", cases=["big f32"]),
    ]  # fmt: skip
    gone = prune.superseded(found, old)
    assert [(r["subject"], r["at"]) for r, out in zip(found, gone, strict=True) if out] == [("a", "1"), ("a", "3"), ("b", "1")]


def test_the_order_of_files_does_not_matter() -> None:
    found = [row("a", "3"), row("a", "1"), row("a", "2")]
    assert prune.superseded(found, old) == [False, True, True]


def test_kinds_that_are_read_otherwise_stay() -> None:
    found = [row("a", str(i), kind=kind, stale=True) for kind in ("tune", "counters", "compared", "build", "ceiling") for i in range(3)]
    assert not any(prune.superseded(found, old))


def test_lines_that_stay_keep_their_bytes_and_an_empty_file_goes(tmp_path: Path) -> None:
    first = put(tmp_path / "h100" / "1.jsonl", row("a", "1"), row("b", "1"))
    put(tmp_path / "h100" / "2.jsonl", row("b", "2"))
    whole = put(tmp_path / "h100" / "3.jsonl", row("c", "1"))
    put(tmp_path / "h100" / "4.jsonl", row("c", "0"))
    kept, untouched = first.read_bytes().split(b"\n")[0] + b"\n", whole.stat().st_mtime_ns
    dry = prune.prune(tmp_path, lambda _: old, dry=True)
    assert sorted(p.name for p in tmp_path.rglob("*.jsonl")) == ["1.jsonl", "2.jsonl", "3.jsonl", "4.jsonl"]
    done = prune.prune(tmp_path, lambda _: old)
    assert done == dry and (done.records, done.dropped, done.files, done.files_dropped) == (5, 2, 4, 1)
    assert first.read_bytes() == kept and whole.stat().st_mtime_ns == untouched
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["1.jsonl", "2.jsonl", "3.jsonl", "h100"]
    assert prune.prune(tmp_path, lambda _: old).dropped == 0


@pytest.mark.parametrize("tail", ['{"kind": "check", "op"', "no record\n"])
def test_a_file_that_is_being_written_or_is_none_of_records_stops_it_before_anything_is_written(tmp_path: Path, tail: str) -> None:
    first = put(tmp_path / "1.jsonl", row("a", "1"), row("a", "2"))
    before = first.read_bytes()
    with (tmp_path / "2.jsonl").open("w", encoding="utf-8") as f:
        f.write(json.dumps(row("a", "3")) + "\n" + tail)
    with pytest.raises(RecordError, match=r"2\.jsonl"):
        prune.prune(tmp_path, lambda _: old)
    assert first.read_bytes() == before


def test_a_file_that_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "1.jsonl", row("a", "1"), row("a", "2"))

    def judged(_: object):
        with path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(row("b", "3")) + "\n")
        return old

    with pytest.raises(RecordError, match="changed meanwhile"):
        prune.prune(tmp_path, judged)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_of_the_records_that_come_with_the_tree_no_page_shows_less() -> None:
    """Every bench record that a page shows is still there after pruning."""
    from rooftop.core import registry, settings
    from rooftop.lab.records import store
    from rooftop.lab.report.data import Gatherer, staleness

    found = store.read(settings.CHECKOUT / "results")
    gone = prune.superseded(found, staleness(found))
    left = [r for r, out in zip(found, gone, strict=True) if not out]
    whole, pruned = (Gatherer(list(some), {}, [], registry.HOUSE).measured for some in (found, left))
    assert whole.keys() == pruned.keys() and all(whole[k].at == pruned[k].at and whole[k].stale == pruned[k].stale for k in whole)
    assert len(whole) > 500


def test_a_run_that_is_under_way_keeps_its_file(tmp_path: Path) -> None:
    from rooftop.lab.records.store import Writer

    done = put(tmp_path / "h100" / "1.jsonl", row("a", "1"), row("a", "2"))
    done.chmod(0o664)
    before = done.read_bytes()
    with Writer(tmp_path, "H100") as writer:
        writer.write(row("b", "1"))
        with pytest.raises(RecordError, match="a run is writing"):
            prune.prune(tmp_path, lambda _: old)
        assert done.read_bytes() == before
        writer.write(row("b", "1"))
    assert prune.prune(tmp_path, lambda _: old).dropped == 2
    assert done.stat().st_mode & 0o777 == 0o664


def test_a_link_stays_one_and_a_file_is_no_folder(tmp_path: Path) -> None:
    target = put(tmp_path / "elsewhere" / "1.jsonl", row("a", "1"), row("a", "2"))
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "1.jsonl").symlink_to(target)
    (tmp_path / "r" / "2.jsonl").symlink_to(target)
    done = prune.prune(tmp_path / "r", lambda _: old)
    assert (done.records, done.dropped, done.files) == (2, 1, 1)
    assert (tmp_path / "r" / "1.jsonl").is_symlink() and len(target.read_text(encoding="utf-8").splitlines()) == 1
    with pytest.raises(NotADirectoryError, match="no folder"):
        prune.prune(target, lambda _: old)


def test_a_record_that_names_no_code_is_of_no_tree() -> None:
    from rooftop.lab.report.data import staleness

    nameless = {k: v for k, v in row("add__triton", "1").items() if k != "digest"}
    assert staleness([])(nameless) and not staleness([])({**nameless, "kind": "clock"})
