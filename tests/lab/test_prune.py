"""Records that a newer one stands for are taken out, and only those."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from _support import answers, command, committed

from rooftop.lab.records import form, rewriting, store
from rooftop.lab.records.record import Record
from rooftop.lab.records.store import RecordError


def row(subject: str, at: str, stale: bool = False, kind: str = "check", case: str = "big f32", card: str = "H100", **more: object) -> Record:
    return Record({
        "kind": kind, "op": "add", "subject": subject, "case": case, "at": f"2026-11-22T00:00:0{at}+00:00",
        "device": {"name": card}, "digest": "old" if stale else "new",
        "error": {"ok": True}, **more,
    })


def second(r: Record) -> str:
    return str(r["at"])[18]


def old(r: Record) -> bool:
    return r["digest"] == "old"


def put(path: Path, *found: Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r.table) + "\n" for r in found), encoding="utf-8")
    return path


def test_the_newest_that_is_not_stale_stays_and_where_all_are_the_newest() -> None:
    found = [
        row("a", "1"), row("a", "2"), row("a", "3", stale=True),  # the tree went back to what the second measured
        row("b", "1", stale=True), row("b", "2", stale=True),
        row("c", "1"), row("c", "1", case="odd f32"), row("c", "1", card="A100"), row("c", "2", kind="sanitize", cases=["big f32"]),
    ]
    gone = rewriting.superseded(found, old)
    assert [(r["subject"], second(r)) for r, out in zip(found, gone, strict=True) if out] == [("a", "1"), ("a", "3"), ("b", "1")]


def test_a_stale_check_goes_once_its_subject_has_been_checked_again() -> None:
    found = [
        row("a", "1", stale=True), row("a", "2", case="odd f32"),  # another case of the same kernel, since
        row("b", "1", stale=True), row("b", "1", stale=True, case="odd f32"),  # not checked since: all that is known of it
        row("c", "1", stale=True), row("c", "2", card="A100"), row("d", "2", stale=True), row("d", "1", case="odd f32"),
        row("e", "1", stale=True, kind="bench"), row("e", "2", kind="bench", case="odd f32"),  # a page shows a stale time
    ]
    gone = rewriting.superseded(found, old)
    assert [(r["subject"], second(r), r["case"]) for r, out in zip(found, gone, strict=True) if out] == [("a", "1", "big f32")]


def test_the_order_of_files_does_not_matter() -> None:
    found = [row("a", "3"), row("a", "1"), row("a", "2")]
    assert rewriting.superseded(found, old) == [False, True, True]


def test_trials_of_another_seed_stay() -> None:
    found = [row("trials", at, kind="clock", seed=seed) for at, seed in (("1", 5), ("2", 6), ("3", 5))]
    assert rewriting.superseded(found, old) == [True, False, False]


def test_kinds_that_are_read_otherwise_stay() -> None:
    found = [row("a", str(i), kind=kind, stale=True) for kind in ("tune", "counters", "compared", "build") for i in range(3)]
    assert not any(rewriting.superseded(found, old))


def test_of_ceilings_the_newest_of_each_part_stays() -> None:
    of = [(part, at, at == "3") for part in ("memory", "tensor") for at in "123"]
    found = [row(part, at, stale).but(kind="ceiling", op=None, case=None) for part, at, stale in of]
    assert [second(r) for r, out in zip(found, rewriting.superseded(found, old), strict=True) if not out] == ["2", "2"]


def test_records_that_stay_are_put_together_and_an_empty_file_goes(tmp_path: Path) -> None:
    first = put(tmp_path / "h100" / "1.jsonl", row("a", "1"), row("b", "1"), row("a", "1", case="odd f32"))
    put(tmp_path / "h100" / "2.jsonl", row("b", "2"))
    put(tmp_path / "h100" / "4.jsonl", row("b", "0"))
    before = {p: p.read_bytes() for p in form.below(tmp_path)}
    dry = rewriting.prune(tmp_path, lambda _: old, dry=True)
    assert {p: p.read_bytes() for p in form.below(tmp_path)} == before
    done = rewriting.prune(tmp_path, lambda _: old)
    assert done == dry and (done.records, done.dropped, done.files, done.files_dropped) == (5, 2, 3, 1)
    assert done.bytes == sum(map(len, before.values())) and done.bytes - done.bytes_dropped == sum(p.stat().st_size for p in form.below(tmp_path))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["1.jsonl.xz", "2.jsonl.xz", "h100"]
    first = form.packed_name(first)
    assert store.read_file(first)[0] == [row("a", "1"), row("a", "1", case="odd f32")]
    assert len(form.unpacked(first.read_bytes()).splitlines()) == 2, "a head, and the two records of a in one line"
    whole = first.stat().st_mtime_ns
    assert rewriting.prune(tmp_path, lambda _: old).dropped == 0 and first.stat().st_mtime_ns == whole, "what is as short as it goes is left alone"


@pytest.mark.parametrize("tail", ['{"kind": "check", "op"', "no record\n"])
def test_a_file_that_is_being_written_or_is_none_of_records_stops_it_before_anything_is_written(tmp_path: Path, tail: str) -> None:
    first = put(tmp_path / "1.jsonl", row("a", "1"), row("a", "2"))
    before = first.read_bytes()
    with (tmp_path / "2.jsonl").open("w", encoding="utf-8") as f:
        f.write(json.dumps(row("a", "3").table) + "\n" + tail)
    with pytest.raises(RecordError, match=r"2\.jsonl"):
        rewriting.prune(tmp_path, lambda _: old)
    assert first.read_bytes() == before


def test_a_file_that_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "1.jsonl", row("a", "1"), row("a", "2"))

    def judged(_: object):
        with path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(row("b", "3").table) + "\n")
        return old

    with pytest.raises(RecordError, match="changed meanwhile"):
        rewriting.prune(tmp_path, judged)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_of_the_records_that_come_with_the_tree_no_page_shows_less() -> None:
    """Every bench record that a page shows is still there after pruning."""
    from rooftop.lab.report.joined import Joined, staleness

    found = committed()
    gone = rewriting.superseded(found, staleness(found, answers()))
    left = [r for r, out in zip(found, gone, strict=True) if not out]
    whole, pruned = (Joined(list(some), digests=answers()).measured for some in (found, left))
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
            rewriting.prune(tmp_path, lambda _: old)
        assert done.read_bytes() == before
        writer.write(row("b", "1"))
    assert rewriting.prune(tmp_path, lambda _: old).dropped == 2
    assert form.packed_name(done).stat().st_mode & 0o777 == 0o664


def test_a_link_stays_one_and_a_file_is_no_folder(tmp_path: Path) -> None:
    target = put(tmp_path / "elsewhere" / "1.jsonl", row("a", "1"), row("a", "2"))
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "1.jsonl").symlink_to(target)
    (tmp_path / "r" / "2.jsonl").symlink_to(target)
    done = rewriting.prune(tmp_path / "r", lambda _: old)
    assert (done.records, done.dropped, done.files, done.files_dropped) == (2, 1, 1, 0)
    assert (tmp_path / "r" / "1.jsonl").is_symlink() and store.read_file(target)[0] == [row("a", "2")]
    with pytest.raises(NotADirectoryError, match="no folder"):
        rewriting.prune(target, lambda _: old)


def test_a_report_of_the_house_prunes_first_and_a_check_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rooftop.core import settings
    from rooftop.lab.report import documents

    here = replace(settings.load(), results=tmp_path)
    monkeypatch.setattr(settings, "load", lambda: here)
    monkeypatch.setattr(documents, "outdated", lambda *_, **__: {})
    path = put(tmp_path / "h100" / "1.jsonl", row("a", "1"), row("a", "2"))
    before = path.read_bytes()
    assert command(monkeypatch, "report", "--docs", "--check") == 0 and path.read_bytes() == before
    assert command(monkeypatch, "report", "--docs", "--records", str(tmp_path)) == 0 and path.read_bytes() == before, "another's records are left alone"
    assert command(monkeypatch, "report", "--docs") == 0
    assert [second(r) for r in store.read(tmp_path)] == ["2"] and "pruned" in capsys.readouterr().err
    with store.Writer(tmp_path, "H100") as writer:
        writer.write(row("b", "1"))
        assert command(monkeypatch, "report", "--docs") == 0, "a run that is under way is no reason to write no page"
        assert "is not pruned: a run is writing" in capsys.readouterr().err


def test_a_record_that_names_no_code_is_of_no_tree() -> None:
    from rooftop.lab.report.joined import staleness

    nameless = row("add__triton", "1").but(digest=None)
    assert staleness([])(nameless) and not staleness([])(nameless.but(kind="clock"))


def test_what_compiling_costs_does_not_stand_for_the_first_call() -> None:
    found = [row("a", "1", kind="language", first_s=1e-3), row("a", "2", kind="language", compile_s=0.3), row("a", "3", kind="language", compile_s=0.2)]
    assert rewriting.superseded(found, old) == [False, True, False]


def test_models_stand_for_themselves_alone_and_for_the_ways_in_which_they_ran() -> None:
    def timed(at: str, *ways: tuple[str, str]) -> Record:
        rows = [{"what": "train", "of": of, "variant": way, "figures": {"ms": 1.0}} for of, way in ways]
        return row("models", at, kind="clock", rows=rows)

    found = [timed("1", ("a", "eager")), timed("2", ("b", "eager")), timed("3", ("a", "compile")), timed("4", ("a", "eager"))]
    assert rewriting.superseded(found, old) == [True, False, False, False]
