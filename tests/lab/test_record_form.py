"""How records stand in a file: lines give back what they were made of, a head says once what holds for a run, older files come along, an op has a budget."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _support import answers, committed

from rooftop.core import registry, settings
from rooftop.lab.records import form, rewriting, store
from rooftop.lab.records.record import Record, compact, timed
from rooftop.lab.report.joined import staleness

CARD = {"name": "NVIDIA H100 80GB HBM3", "arch": 90, "sms": 132}
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
RESULTS = settings.CHECKOUT / "results"
COMMITTED: list[Record] = committed()


# -- lines and back ----------------------------------------------------------------------------------------------------


def anything(chance: random.Random, depth: int = 0) -> Any:
    """Whatever JSON holds, often alike, as records are: tables of few keys, lists of tables, numbers that differ in type alone."""
    kind = chance.randrange(9 if depth < 3 else 6)
    if kind < 6:
        return chance.choice([0, 1, 1.0, True, False, None, "", "a", "b", 0.5, 1.25e-6, -3, 10**12, [], {}, {"": None}, {"x": None}])
    if kind == 6:
        return {chance.choice("abcd"): anything(chance, depth + 1) for _ in range(chance.randrange(4))}
    if kind == 7:
        keys = chance.sample("abcd", chance.randrange(1, 3))
        return [{k: anything(chance, depth + 1) for k in keys} for _ in range(chance.randrange(4))]
    return [anything(chance, depth + 1) for _ in range(chance.randrange(4))]


@pytest.mark.parametrize("seed", range(200))
def test_lines_give_back_the_records_they_were_made_of(seed: int) -> None:
    chance = random.Random(seed)
    records = [
        {
            "kind": chance.choice(["bench", "check"]), "op": "add", "subject": chance.choice("st"), "run": "0a", "device": CARD,
            "versions": VERSIONS | ({"ncu": "2026.1"} if chance.random() < 0.2 else {}), "at": f"2026-01-01T00:00:{chance.randrange(60):02d}+00:00",
            **{k: anything(chance) for k in "pqr" if chance.random() < 0.8},
        }
        for _ in range(chance.randrange(1, 12))
    ]
    head = form.head_of(records)
    lines = list(form.lines(records, head))
    found = [r for line in lines for r in form.joined(json.loads(line), head)]
    assert Counter(map(form.dumps, found)) == Counter(map(form.dumps, records))
    assert list(form.lines(found, head)) == lines, "writing again what was read changes nothing"


def test_what_several_records_have_in_common_is_said_once() -> None:
    rows = [{"case": f"case {i}", "error": {"ok": True, "share": i / 8}, "path": ["k"]} for i in range(3)]
    assert form.fold(rows) == {
        "error": {"ok": True}, "path": ["k"], "of": 3, "each": {"case": ["case 0", "case 1", "case 2"], "error": {"share": [0.0, 0.125, 0.25]}},
    }
    assert form.fold(rows[:1]) is None and form.fold([rows[0], rows[0]]) is None


def test_numbers_have_six_digits_and_counts_have_all() -> None:
    given = {"t": 0.00035778133074442544, "share": 0.99999996, "n": 138412033, "sectors": 8858370049.0, "big": 1234567.8, "rows": [1 / 3, True]}
    found = form.rounded(given)
    assert found == {"t": 0.000357781, "share": 1.0, "n": 138412033, "sectors": 8858370049.0, "big": 1234570.0, "rows": [0.333333, True]}
    assert form.rounded(found) == found and type(found["n"]) is int and type(found["rows"][1]) is bool


GOOD = '{"kind":"run","form":2,"run":"0a","at":"2026-01-01T00:00:00+00:00","device":{"name":"H100"}}\n'
BROKEN = {
    "fewer values than of says": '{"kind":"clock","of":3,"each":{"subject":["a","b"]}}',
    "one record": '{"kind":"clock","of":1,"each":{"subject":["a"]}}',
    "of is no number": '{"kind":"clock","of":"2","each":{"subject":["a","b"]}}',
    "each is a list": '{"kind":"clock","of":2,"each":[1,2]}',
    "each is empty": '{"kind":"clock","of":2,"each":{}}',
    "a value for a list": '{"kind":"clock","of":2,"each":{"subject":"ab"}}',
    "a table beside none": '{"kind":"clock","subject":"a","of":2,"each":{"subject":{"x":[1,2]}}}',
    "within a record": '{"kind":"clock","subject":"a","rows":{"of":2,"each":{"t":[1]}}}',
    "seconds without a start": '{"kind":"run","device":{"name":"H100"},"form":2}\n{"kind":"clock","subject":"a","at":3}',
    "before the start": '{"kind":"clock","subject":"a","at":-3}',
    "a form to come": '{"kind":"run","device":{"name":"H100"},"form":3}',
    "a form that had no head": '{"kind":"run","device":{"name":"H100"},"form":1}',
    "a head without a form": '{"kind":"run","device":{"name":"H100"}}',
    "one of several is none": '{"kind":"bench","case":"c","op":"add","of":2,"each":{"subject":["a",5]}}',
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_line_that_does_not_fit_itself_is_named(tmp_path: Path, what: str) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD + BROKEN[what] + "\n" + GOOD)
    with pytest.raises(store.RecordError, match=rf"a\.jsonl:{2 + BROKEN[what].count(chr(10))}: not a record"):
        store.read(tmp_path)


# -- a run's file ------------------------------------------------------------------------------------------------------


def reading(power: float, mhz: int = 1980, reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"uuid": "GPU-1", "name": CARD["name"], "driver": "580.1", "sm_mhz": mhz, "memory_mhz": 2619, "max_sm_mhz": 1980, "power_w": power,
            "power_limit_w": 700.0, "temperature_c": 47, "reasons": list(reasons), "source": "NVML"}


def timing(median: float, **more: Any) -> dict[str, Any]:
    return {"name": "me", "calls": 3, "replays": 1, "median": median, "low": 0.99 * median, "high": 1.01 * median, "n": 22, "noise": 0.001234567891,
            "duty": "normal", "busy": 0.9, "why": "", "sets": 1, **more}


def pair(ratio: float) -> dict[str, Any]:
    return {"ratio": ratio, "low": 0.99 * ratio, "high": 1.01 * ratio, "verdict": "faster", "n": 22, "noise": 0.001}


def whole(subject: str, **more: Any) -> dict[str, Any]:
    """A bench record as it is made, and as files had it before there were heads."""
    return {
        "kind": "bench", "op": "softmax", "case": "rows 1024x1024 f32", "subject": subject, "digest": "0123456789ab", "device": CARD, "versions": VERSIONS,
        "work": {"read": 4 << 20, "write": 4 << 20, "ops": {"exp": 1048576.0}}, "clocks": {"kernel": timing(1 / 3e5), "host": timing(7e-5)},
        "versus": {s: pair(1.1) for s in ("peer:torch", "peer:liger", "ceiling:copy", "softmax__triton", "l/01_a", "l/02_b", "l/03_c") if s != subject},
        "error": {"ok": True, "max": 1 / 3, "rms": 1 / 7, "allowed_max": 0.5, "allowed_rms": 0.25, "max_share": 2 / 3, "rms_share": 4 / 7},
        "sensors": {"before": reading(150.033), "after": reading(326.438, 1755, ("power cap",))}, "rate": "2447 GB/s", "path": ["k<4>"], **more,
    }


def checked(case: str, ok: bool = True, share: float = 0.25) -> dict[str, Any]:
    error = {"ok": ok, "max": 0.1, "rms": 0.01, "allowed_max": 0.4, "allowed_rms": 0.1, "max_share": share, "rms_share": share / 2}
    return {"kind": "check", "op": "softmax", "case": case, "subject": "softmax__triton", "digest": "0123456789ab", "device": CARD, "versions": VERSIONS,
            "error": error, "path": ["k"], "backend": "gpu"}


def test_a_file_says_once_what_holds_for_its_run(tmp_path: Path) -> None:
    with store.Writer(tmp_path, CARD["name"]) as writer:
        given = [writer.write(whole("l/03_c") | {"versions": store.versions()}), writer.write(checked("odd f32") | {"versions": store.versions()})]
        lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
        assert store.read(tmp_path) == given
    assert [line["kind"] for line in lines] == ["run", "bench", "check"]
    assert lines[0]["device"] == CARD and lines[0]["host"] == store.host() and lines[0]["run"] == given[0]["run"]
    assert lines[0]["versions"] == store.versions() and {"python", "torch", "rooftop"} <= set(store.versions())
    assert all(not {"run", "device", "versions", "host"} & set(line) and type(line["at"]) is int for line in lines[1:])
    assert given[0]["device"] == CARD and given[0]["versions"] == store.versions()


def test_a_record_of_more_than_the_head_says_keeps_what_is_its_own(tmp_path: Path) -> None:
    with store.Writer(tmp_path, CARD["name"]) as writer:
        writer.write(whole("a"))
        own = writer.write(whole("b", device={**CARD, "l2_bytes": 52428800}, versions={"ncu": "2026.1"}))
    assert own["device"] == {**CARD, "l2_bytes": 52428800} and own["versions"]["ncu"] == "2026.1" and own["versions"]["python"]
    assert [r for r in store.read(tmp_path) if r["subject"] == "b"] == [own]


def test_a_run_that_is_cut_off_in_its_head_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD[:40])
    assert store.read_file(tmp_path / "a.jsonl") == ([], "a.jsonl:1: cut off, left out")


# -- what is kept of a record -----------------------------------------------------------------------------------------


def test_what_is_kept_of_a_bench_record() -> None:
    found = compact(whole("l/03_c"))
    assert set(found["versus"]) == {"peer:torch", "peer:liger", "ceiling:copy", "l/02_b"}, "peers, copies, and the rung before, which predictions speak of"
    assert set(found["versus"]["l/02_b"]) == {"ratio", "low", "high", "verdict"}
    assert set(compact(whole("l/01_a"))["versus"]) == set(compact(whole("softmax__triton"))["versus"]) == {"peer:torch", "peer:liger", "ceiling:copy"}
    assert set(compact(whole("peer:torch"))["versus"]) == {"ceiling:copy"}
    sensors = {"sm_mhz": [1980, 1755], "memory_mhz": [2619, 2619], "power_w": [150.033, 326.438], "temperature_c": [47, 47], "slowed": ["power cap"]}
    assert found["sensors"] == sensors
    assert found["error"] == {"ok": True, "share": 2 / 3, "max": 1 / 3, "rms": 1 / 7, "allowed_max": 0.5, "allowed_rms": 0.25}
    assert compact(whole("peer:torch"))["error"] == {"ok": True, "share": 2 / 3}
    assert set(found["clocks"]["kernel"]) == {"median", "low", "high", "n", "noise", "duty", "sets"}
    hot = compact(whole("a", clocks={"sustained": timing(1e-3, duty="sustained", why="no graph")}))["clocks"]["sustained"]
    assert (hot["busy"], hot["why"]) == (0.9, "no graph")
    assert "rate" not in found and found["digest"] == "0123456789ab" and found["path"] == ["k<4>"]


def test_of_a_check_the_figures_stay_where_it_is_timed_or_wrong() -> None:
    figures = {"max": 0.1, "rms": 0.01, "allowed_max": 0.4, "allowed_rms": 0.1}
    op = registry.op("softmax")
    bench, edge = next(c.id for c in op.cases if "bench" in c.tags), next(c.id for c in op.cases if "bench" not in c.tags)
    assert compact(checked(edge))["error"] == {"ok": True, "share": 0.25}
    assert compact(checked(bench))["error"] == {"ok": True, "share": 0.25, **figures}, "the allowance of what is timed stays"
    assert compact(checked(edge, ok=False, share=3.0))["error"] == {"ok": False, "share": 3.0, **figures}
    assert compact(checked("a case of another tree"))["error"]["allowed_max"] == 0.4, "what is not known is kept"
    assert timed("softmax", bench) and not timed("softmax", edge) and timed("no op", edge)


def test_what_is_compact_stays_as_it_is() -> None:
    for record in [whole("l/03_c"), checked("odd f32"), *COMMITTED]:
        once = compact(record)
        assert compact(once) == once
    assert all(compact(r) == r for r in COMMITTED), "what is committed is compact"


def test_records_of_one_subject_share_a_line(tmp_path: Path) -> None:
    op = registry.op("softmax")
    cases = [c.id for c in op.cases if "bench" not in c.tags][:20]
    with store.Writer(tmp_path, CARD["name"]) as writer:
        given = [writer.write(checked(case)) for case in cases]
    rewriting.prune(tmp_path, lambda _: lambda r: False)
    (path,) = form.below(tmp_path)
    _, line = form.unpacked(path.read_bytes()).splitlines()
    assert json.loads(line)["of"] == 20 and len(line) < 20 * 60
    assert sorted(store.read(tmp_path), key=lambda r: r["case"]) == sorted(given, key=lambda r: r["case"])


# -- files of the form before ------------------------------------------------------------------------------------------


def former(folder: Path) -> list[dict[str, Any]]:
    """A file as a run wrote it before there were heads: every line whole."""
    at = "2026-11-22T02:19:{:02d}+00:00"
    made = [whole("l/02_b", config={"rows": 4}, config_from="heuristic", predict={"speedup": 1.5}),
            whole("l/03_c"), whole("peer:torch"), *(checked(c) for c in ("odd f32", "NaN f32")),
            {"kind": "sanitize", "op": "softmax", "case": "memcheck", "cases": ["odd f32"], "subject": "softmax__triton", "digest": "0", "errors": 0,
             "first": "", "message": "", "device": CARD, "versions": VERSIONS},
            {"kind": "counters", "op": "softmax", "case": "odd f32", "subject": "l/02_b", "tier": "lines", "totals": {"lts__t_sectors.sum": 44870.0},
             "opcodes": {"FFMA": [4, 128]}, "lines": [{"line": 3, "sectors": 64}, {"line": 4, "sectors": 8}],
             "device": CARD, "versions": VERSIONS}]
    rows = [{**r, "at": at.format(i), "run": "18dae026"} for i, r in enumerate(made)]
    folder.mkdir(parents=True)
    (folder / "20261122T021904Z-18dae026.jsonl").write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows))
    return rows


def test_a_file_of_the_form_before_is_read_and_brought_along(tmp_path: Path) -> None:
    rows = former(tmp_path / "away")
    assert store.read(tmp_path / "away") == rows, "read as it is"
    rewriting.merge(tmp_path / "away", tmp_path / "home")
    found = store.read(tmp_path / "home")
    assert found == [form.rounded(compact(r)) for r in rows], "nothing lost, numbers to six digits"
    assert [r["digest"] for r in found if "digest" in r] == [r["digest"] for r in rows if "digest" in r]
    assert found[0]["clocks"]["kernel"]["median"] == 3.33333e-06
    (path,) = form.below(tmp_path / "home")
    first, *rest = map(json.loads, form.unpacked(path.read_bytes()).splitlines())
    assert first == {"kind": "run", "form": 2, "run": "18dae026", "at": rows[0]["at"], "device": CARD, "versions": VERSIONS}
    assert not any({"run", "device", "versions"} & set(line) for line in rest)
    before = path.read_bytes()
    assert rewriting.merge(tmp_path / "away", tmp_path / "home").same == [path.name] and path.read_bytes() == before
    rewriting.prune(tmp_path / "away", lambda _: lambda r: False)  # pruning brings it along as well
    assert store.read(tmp_path / "away") == found


def test_what_comes_back_from_the_form_before_is_as_fresh_or_stale_as_it_was(tmp_path: Path) -> None:
    """The committed records written out whole, with stale ones among them, and brought home again."""
    chance = random.Random(1)
    some = [r for r in COMMITTED if r["kind"] in ("bench", "check", "sanitize") and chance.random() < 0.1]
    some = [r.but(digest="000000000000") if chance.random() < 0.2 else r for r in some]
    whole_lines: dict[str, list[str]] = {}
    for r in some:
        whole_lines.setdefault(str(r["run"]), []).append(json.dumps(r.table) + "\n")
    (tmp_path / "away").mkdir()
    for run, lines in whole_lines.items():
        (tmp_path / "away" / f"{run}.jsonl").write_text("".join(lines))
    rewriting.merge(tmp_path / "away", tmp_path / "home")
    found = store.read(tmp_path / "home")
    stale = staleness(some, answers())

    def said(r: Record) -> str:
        return json.dumps([r.kind, r.op, r.subject, r.case, r.at, r.run, r.digest, stale(r)])

    assert Counter(map(said, found)) == Counter(map(said, some))
    assert 0 < sum(map(stale, found)) < len(found)


# -- how much there may be ---------------------------------------------------------------------------------------------

AN_OP = 60_000  # bytes of an op on a card
A_TIME = 450  # and of each timed case of each of its kernels and peers beyond TIMES: clocks, pairs with peers, work, error, sensors
TIMES = 40  # what the op's own bytes are for
A_HEAD = 600  # of each file: the card, the host and the versions of a run
A_SWEEP = 60_000  # and of its sweeps, forward and backward each
A_RUNG = 6_000  # and of each rung that climbs it: a subject at every case of its ladder, checked and timed
A_CASE = 12  # and of each case of each of its kernels: a check keeps a digest of 12 letters, most others are alike
COUNTERS = 400_000  # of hardware counters by line and what the simulator makes of them, all on one card: two ladders, and patterns


def test_an_op_holds_no_more_records_than_it_may() -> None:
    rungs = Counter(registry.ladder(name).op for name in registry.ladder_names() for _ in registry.ladder(name).rungs)
    size: Counter[tuple[str, str]] = Counter()

    def checked(op: str) -> int:
        return len(registry.op(op).cases) * len(registry.implementations(op)) if op in registry.op_names() else 0

    def timed(op: str) -> int:
        if op.removesuffix("_bwd") not in registry.op_names():
            return 0
        found = registry.op(op)
        return max(0, sum("bench" in c.tags for c in found.cases) * (len(registry.implementations(op)) + len(found.peers)) - TIMES)

    texts = {path: form.unpacked(path.read_bytes()) for path in form.below(RESULTS)}
    for path, text in texts.items():
        for line in text.splitlines(keepends=True):
            value = json.loads(line)
            counted = value["kind"] in ("counters", "compared")
            op = str(value.get("op") or value["subject" if value["kind"] == "clock" else "kind"])
            size[path.parent.name, "" if counted else f"sweep {op}" if value["kind"] == "sweep" else op] += len(line)
    assert sum(size.values()) == sum(map(len, texts.values()))
    heads = A_HEAD * len(texts)

    def limit(op: str) -> int:
        if not op or op == "run":
            return heads if op else COUNTERS
        return A_SWEEP if op.startswith("sweep ") else AN_OP + A_RUNG * rungs[op] + A_CASE * checked(op) + A_TIME * timed(op)

    may = {op: limit(op) for _, op in size}
    above = {f"{op} on {card}": n for (card, op), n in size.items() if n > may[op]}
    assert not above, f"{above}: rooftop records prune drops what newer records stand for; then fewer cases are timed, or this limit is talked about"
