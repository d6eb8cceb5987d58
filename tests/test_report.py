"""The pages: every number from a record, stale and missing ones shown as such, well-formed, escaped, and closed to the network."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from rooftop.lab import registry, report, report_charts
from rooftop.lab.records import Record
from rooftop.lab.report_data import CHANGED, Gatherer, device_of, gather
from rooftop.lab.report_model import LadderPage, RungRow, target_facts

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
H100 = {"name": "NVIDIA H100 80GB HBM3", "arch": 90, "sms": 132, "l2_bytes": 50 << 20}
H200 = {**H100, "name": "NVIDIA H200"}
BANDWIDTH = 3e12  # bytes/s of the made-up ceilings, at every size
FMA = 3e13  # FMAs/s

CONTRACT = '''"""A tensor times a number & <nothing> else."""
from __future__ import annotations

from rooftop.lab.op import Op
from rooftop.lab.spec import Input, Meta, Work, case


def reference(x: Tensor, factor: float) -> Tensor:
    return x * factor


OP = Op(
    reference,
    name="scale",
    outputs=lambda x, factor: {"y": Meta(x.shape, x.dtype)},
    cases=[
        case("big", x=Input((4096, 8192)), factor=2.0, tags="bench"),
        case("big", x=Input((4096, 8192), "bf16"), factor=2.0, tags="bench"),
        case("odd", x=Input((4095, 8191)), factor=2.0, tags="bench"),
        case("tiny", x=Input((3,)), factor=2.0, tags="edge"),
    ],
    work=lambda p: Work(p["x"].nbytes, p["y"].nbytes, {"fma32": float(p["x"].numel)}),
    peers={"torch": lambda: reference, "other": lambda: reference},
)
'''
KERNEL = """/* rooftop
idea    = "{idea}"
{predict}limit   = "{limit}"
dtypes  = ["f32", "bf16"]
args    = ["n: i64 = numel(x)", "x: T[R, C]", "y: T[R, C]", "factor: f32"]
{more}
[config]
threads = {threads}

[[launch]]
kernel = "scale<{{T}}>"
grid   = ["ceil(R * C / threads)"]
block  = ["threads"]
*/
template <typename T>
__global__ void scale(long long n, const T* x, T* y, float factor) {{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    {body}
}}
"""


BODY = "if (i < n) y[i] = x[i] * factor;"


def kernel(idea: str, *, predict: str = "", limit: str = "bytes", threads: int = 128, more: str = "", body: str = BODY) -> str:
    said = f"predict = {{ {predict} }}\n" if predict else ""
    return KERNEL.format(idea=idea, predict=said, limit=limit, threads=threads, more=more, body=body)


@dataclass
class Made:
    """A house with one op and one ladder, and records for it."""

    house: registry.House
    out: Path

    def __post_init__(self) -> None:
        self.gatherer = Gatherer([], {}, [], self.house)

    def bench(self, subject: str, seconds: float, case: str = "big f32", device: dict[str, Any] = H100, stale: bool = False, **more: Any) -> Record:
        found = self.gatherer.subjects[("scale", subject)]
        c = found.op.case(case)
        work = found.op.work(found.op.problem(c))
        record: Record = {
            "kind": "bench", "op": "scale", "case": c.id, "subject": subject, "device": device, "at": "2026-01-01T10:00:00+00:00", "run": "one",
            "work": {"read": work.read, "write": work.write, "ops": dict(work.ops)},
            "clocks": {"kernel": {"median": seconds, "low": seconds * 0.99, "high": seconds * 1.02, "n": 31}},
            "versus": {}, "error": {"ok": True, "max_share": 0.4, "rms_share": 0.25},
        }  # fmt: skip
        record["digest"] = "000000000000" if stale else found.digest(c, device_of(record))
        if found.head is not None:
            record["predict"] = dict(found.head.predict)
        return {**record, **more}

    def climb(self) -> list[Record]:
        """All three rungs, the peers, and the ceilings."""
        versus = {"peer:torch": ratio(0.8, "faster"), "peer:other": ratio(0.5, "faster"), "ceiling:copy": ratio(1.1, "slower")}
        return [
            ceiling(H100),
            self.bench("steps/01_plain", 1e-3),
            self.bench("steps/02_wide", 5e-4),
            self.bench("steps/03_shipped", 1.25e-4, versus=versus),
            self.bench("peer:torch", 1.5625e-4),
            self.bench("peer:other", 2.5e-4),
        ]

    def build(self, records: list[Record], facts: Any = None, checks: Any = ()) -> tuple[str, str]:
        """The texts of the home page and of the ladder's."""
        index = report.build(self.out, records, facts, checks, house=self.house, now=NOW)
        return index.read_text(encoding="utf-8"), (self.out / "ladder-steps.html").read_text(encoding="utf-8")

    def page(self, records: list[Record], facts: Any = None, checks: Any = ()) -> LadderPage:
        return gather(records, facts, checks, house=self.house, now=NOW).ladders[0]


def ratio(value: float, verdict: str) -> dict[str, Any]:
    """As a record holds it: this subject's time over the other's."""
    return {"ratio": value, "low": value * 0.99, "high": value * 1.01, "n": 31, "noise": 0.002, "verdict": verdict}


def ceiling(device: dict[str, Any]) -> Record:
    points = [{"bytes": 2**k << 20, "seconds": (2**k << 20) / BANDWIDTH, "by": "made up"} for k in range(1, 12)]
    return {
        "kind": "ceiling", "at": "2026-01-01T09:00:00+00:00", "run": "zero", "device": device,
        "curves": {k: copy.deepcopy(points) for k in ("copy", "read", "write")},
        "fma_fp32": {duty: {"ops_per_s": FMA} for duty in ("burst", "sustained")}, "launch": {"graph_node_s": 1e-6},
    }  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    house = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    files = {
        "ops/scale.py": CONTRACT,
        "kernels/simple/scale__cuda.cu": kernel("shipped"),
        "ladders/steps/ladder.toml": 'op = "scale"\ntitle = "Steps & <b>stairs</b>"\nintro = "Up."\ndtypes = ["f32", "bf16"]\ntargets = [80, 90]\n'
        'headline = "big"\ncases = ["big", "odd"]\n',
        "ladders/steps/01_plain.cu": kernel("One thread an element.", limit="x < y && <script>alert(1)</script>"),
        "ladders/steps/02_wide.cu": kernel(
            "More threads.", predict="speedup = 2.1, registers = 16", threads=256, more='[requires]\n"C == 8192" = "rows of 8192 & no other"\n',
            body="if (i < n) y[i] = factor * x[i];",
        ),
        "ladders/steps/03_shipped.toml": 'idea = "The shipped one."\npredict = { speedup = 2.0 }\nlimit = "the copy"\nimplementation = "scale__cuda"\n',
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(report, "_plotly", lambda: Markup("/* plotly.js */"))
    return Made(house, tmp_path / "report")


class Strict(HTMLParser):
    """Checks that every element is closed in order, and collects what a page refers to."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.widths: list[list[int]] = []  # of each table, the columns of each row
        self._spanning: list[list[int]] = []  # of the present table: columns, rows still to come
        self.feed(text)
        self.close()
        assert self.stack == [], f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice: {attrs}"
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "table":
            self.widths.append([])
            self._spanning = []
        elif tag == "tr":
            self.widths[-1].append(sum(columns for columns, rows in self._spanning if rows))
            self._spanning = [[columns, rows - 1] for columns, rows in self._spanning if rows]
        elif tag in ("td", "th"):
            columns, down = int(found.get("colspan") or 1), int(found.get("rowspan") or 1)
            self.widths[-1][-1] += columns
            self._spanning.append([columns, down - 1])
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing (line {self.getpos()[0]})"
        assert self.stack[-1] == tag, f"</{tag}> closes <{self.stack[-1]}> (line {self.getpos()[0]})"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)
        elif self.stack and self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def of(self, name: str) -> Iterator[tuple[str, str]]:
        return ((tag, str(attrs[name])) for tag, attrs in self.tags if name in attrs)


FACTS = {
    "registers": 17, "spills": 8, "shared": 4096, "threads": 192, "occupancy": {"percent": 62.5, "limiter": "shared memory"},
    "counts": {"LDG.32": 3, "LDG.128": 41, "FFMA": 43, "S2R": 9}, "loop": {"LDS.128": 47}, "kernel": "scale<float>",
}  # fmt: skip


def rows(page: LadderPage) -> dict[int, RungRow]:
    return {r.number: r for r in page.rungs}


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_rung_follow_from_its_record(made: Made) -> None:
    home, ladder = (Strict(t).text for t in made.build(made.climb()))
    # 256 MiB at 3e12 bytes/s take 89.48 us; the shipped rung takes 125 us, four times less than the rung before.
    wanted = ("125.0", "123.8 to 127.5", "2 147", "71.6", "2.00× the rung before; measured 4.00× too low")
    for want in (*wanted, "torch faster", "1.250", "1.238 to 1.263", "90.9", "0.400"):
        assert want in ladder, want
    assert "2.10× the rung before; measured 2.00× hit" in ladder
    assert "03 shipped" in home
    assert "71.6" in home


CHANGES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "median": ("both", lambda r: r["clocks"]["kernel"].update(median=1.31e-4)),
    "low": ("ladder", lambda r: r["clocks"]["kernel"].update(low=1.11e-4)),
    "high": ("ladder", lambda r: r["clocks"]["kernel"].update(high=1.41e-4)),
    "cold": ("ladder", lambda r: r["clocks"].update(cold={"median": 3e-4, "low": 3e-4, "high": 3e-4})),
    "hot": ("ladder", lambda r: r["clocks"].update(hot={"median": 3e-4, "low": 3e-4, "high": 3e-4})),
    "host": ("ladder", lambda r: r["clocks"].update(host={"median": 3e-5, "low": 3e-5, "high": 3e-5})),
    "work": ("both", lambda r: r["work"].update(read=r["work"]["read"] // 2)),
    "ratio": ("ladder", lambda r: r["versus"]["peer:other"].update(ratio=1.3)),
    "interval": ("ladder", lambda r: r["versus"]["peer:torch"].update(low=0.7)),
    "verdict": ("ladder", lambda r: r["versus"]["peer:torch"].update(verdict="unresolved")),
    "copy": ("ladder", lambda r: r["versus"]["ceiling:copy"].update(ratio=1.2)),
    "error": ("ladder", lambda r: r["error"].update(max_share=0.9)),
    "wrong": ("ladder", lambda r: r["error"].update(ok=False)),
    "prediction": ("ladder", lambda r: r["predict"].update(speedup=3.3)),
    "date": ("ladder", lambda r: r.update(at="2025-12-31T10:00:00+00:00")),
    "device": ("both", lambda r: r.update(device=H200)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_record_changes_the_page(made: Made, what: str) -> None:
    where, change = CHANGES[what]
    records = made.climb()
    before = made.build(records)
    assert made.build(copy.deepcopy(records)) == before, "the same records must give the same page"
    change(records[3])
    after = made.build(records)
    assert Strict(after[1]).text != Strict(before[1]).text
    if where == "both":
        assert Strict(after[0]).text != Strict(before[0]).text


def test_the_ceilings_set_the_share_of_the_roof(made: Made) -> None:
    records = made.climb()
    assert rows(made.page(records))[3].cells[(H100["name"], "big f32")].share == pytest.approx((1 << 28) / BANDWIDTH / 1.25e-4)
    for points in records[0]["curves"].values():
        for p in points:
            p["seconds"] *= 0.5
    assert rows(made.page(records))[3].cells[(H100["name"], "big f32")].share == pytest.approx((1 << 28) / BANDWIDTH / 2.5e-4)


def test_faster_than_its_ceiling_is_a_bad_calibration(made: Made) -> None:
    assert "bad calibration" not in made.build(made.climb())[1]
    assert "bad calibration" in made.build([ceiling(H100), made.bench("steps/01_plain", 5e-5)])[1]


def test_without_a_calibration_only_the_datasheet_has_a_roof(made: Made) -> None:
    records = made.climb()[1:]
    m = rows(made.page(records))[3].cells[(H100["name"], "big f32")]
    assert m.share is None
    assert m.sheet_share is not None
    text = Strict(made.build([*records, made.bench("scale__cuda", 2e-4)])[0]).text
    assert "not calibrated" in text
    assert "no ceiling" in text


def test_an_unknown_card_has_no_roof_at_all(made: Made) -> None:
    m = rows(made.page([made.bench("steps/01_plain", 1e-3, device={**H100, "name": "Some Card"})]))[1].cells[("Some Card", "big f32")]
    assert (m.share, m.sheet_share, m.roofs.unit) == (None, None, "GB/s")
    Strict(made.build([made.bench("steps/01_plain", 1e-3, device={**H100, "name": "Some Card"})])[1])


def test_work_bound_by_a_unit_is_counted_in_its_operations(made: Made) -> None:
    work = {"read": 1 << 20, "write": 1 << 20, "ops": {"fma32": 1e10}}
    m = rows(made.page([ceiling(H100), made.bench("steps/01_plain", 1e-3, work=work)]))[1].cells[(H100["name"], "big f32")]
    assert (m.roofs.unit, m.roofs.bound) == ("TFLOP/s", "fma32")
    assert m.throughput == pytest.approx(20.0)
    assert m.share == pytest.approx(1e10 / FMA / 1e-3)


def test_slow_rungs_stand_beside_peers_of_their_run_unpaired(made: Made) -> None:
    records = made.climb()
    first = rows(made.page(records))[1].cells[(H100["name"], "big f32")]
    assert first.best_peer is not None
    assert (first.best_peer.name, first.best_peer.verdict, first.best_peer.interval) == ("peer:torch", "not paired", None)
    assert first.best_peer.speed == pytest.approx(1.5625e-4 / 1e-3)
    records[4]["run"] = records[5]["run"] = "another"
    assert rows(made.page(records))[1].cells[(H100["name"], "big f32")].best_peer is None


# -- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "hit"), (1.14, "hit"), (1.17, "too low"), (0.83, "too high"), (0.86, "hit")])
def test_a_prediction_is_judged_by_kernel_times(made: Made, factor: float, verdict: str) -> None:
    seconds = 1e-3 / 2.1 / factor
    rung = rows(made.page([made.bench("steps/01_plain", 1e-3), made.bench("steps/02_wide", seconds)]))[2]
    assert rung.speedup is not None
    assert (rung.speedup.verdict, rung.speedup.measured) == (verdict, pytest.approx(1e-3 / seconds))


def test_paired_samples_of_one_run_go_before_a_ratio_of_medians(made: Made) -> None:
    paired = made.bench("steps/02_wide", 5e-4, versus={"steps/01_plain": ratio(0.4, "faster")})
    assert rows(made.page([made.bench("steps/01_plain", 1e-3), paired]))[2].measured_speedup == pytest.approx(2.5)
    paired["run"] = "another"
    assert rows(made.page([made.bench("steps/01_plain", 1e-3), paired]))[2].measured_speedup == pytest.approx(2.0)


def test_the_prediction_of_the_record_counts_not_one_written_afterwards(made: Made) -> None:
    records = made.climb()
    records[2]["predict"] = {"speedup": 9.0}
    rung = rows(made.page(records))[2]
    assert rung.speedup is not None
    assert (rung.speedup.predicted, rung.speedup.verdict, rung.restated) == (9.0, "too high", True)
    assert "restated" in made.build(records)[1]
    assert "restated" not in made.build(made.climb())[1]


def test_a_predicted_fact_is_held_against_the_binary(made: Made) -> None:
    rung = rows(made.page([], {("steps/02_wide", 90): FACTS}))[2]
    assert [(p.name, p.measured, p.verdict) for p in rung.predictions] == [("speedup", None, "not measured"), ("registers", 17.0, "hit")]


# -- stale and missing -----------------------------------------------------------------------------------------------


def test_a_stale_record_is_shown_and_scores_nothing(made: Made) -> None:
    records = [ceiling(H100), made.bench("scale__cuda", 1.25e-4, stale=True)]
    data = gather(records, house=made.house, now=NOW)
    score = data.ops[0].scores[0]
    assert (score.summary.measured, score.summary.median, dict(score.summary.verdicts)) == (0, None, {})
    assert (data.records, data.stale) == (1, 1)
    assert data.ladders[0].top is None
    home, ladder = (Strict(t).text for t in made.build(records))
    assert "125.0" in home
    assert CHANGED in home
    assert "0 of 3 cases measured" in home
    assert CHANGED in ladder
    page = data.ladders[0]
    chart = report_charts.charts(page)[0]
    assert {s["name"]: len(s["x"]) for s in chart["data"] if s["name"] in ("measured", "stale")} == {"measured": 0, "stale": 1}


def test_a_newer_stale_record_does_not_hide_one_that_holds(made: Made) -> None:
    old = made.bench("steps/01_plain", 1e-3)
    new = made.bench("steps/01_plain", 5e-4, stale=True, at="2026-01-05T10:00:00+00:00")
    for records in ([old, new], [new, old]):
        m = rows(made.page(records))[1].cells[(H100["name"], "big f32")]
        assert (m.seconds, m.stale) == (1e-3, None)
    newer = made.bench("steps/01_plain", 2e-3, at="2026-01-06T10:00:00+00:00")
    assert rows(made.page([newer, old]))[1].cells[(H100["name"], "big f32")].seconds == 2e-3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"subject": "steps/09_gone"}, "no longer in the tree"),
        ({"case": "gone f32"}, "no longer has this case"),
        ({"case": "tiny f32"}, "no longer takes this case"),
    ],
)
def test_records_of_what_is_gone_are_stale(made: Made, change: dict[str, str], why: str) -> None:
    record = {**made.bench("steps/02_wide", 1e-3), **change}
    assert why in str(made.gatherer.stale(record))
    Strict(made.build([record])[1])


def test_a_changed_kernel_makes_its_record_stale(made: Made) -> None:
    records = made.climb()
    path = made.house.ladders / "steps" / "01_plain.cu"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("// ", "").replace("/* rooftop", "/* rooftop\n# a comment"), encoding="utf-8")
    registry.ladder.cache_clear()
    assert Gatherer(records, {}, [], made.house).stale(records[1]) is None, "a comment changes nothing"
    path.write_text(text.replace("* factor", "* factor + 1"), encoding="utf-8")
    registry.ladder.cache_clear()
    assert Gatherer(records, {}, [], made.house).stale(records[1]) == CHANGED
    registry.ladder.cache_clear()


def test_without_records_every_page_says_so(made: Made) -> None:
    home, ladder = made.build([])
    for page in (home, ladder):
        assert "Not measured on any GPU yet" in Strict(page).text
    assert "<script" not in home + ladder
    assert ladder.count('class="rung"') == 3
    assert "the first rung is the start" in Strict(ladder).text
    assert "It does not take odd f32: rows of 8192 & no other (C == 8192)" in Strict(ladder).text


def test_what_is_missing_is_not_measured(made: Made) -> None:
    text = Strict(made.build([*made.climb(), made.bench("scale__cuda", 1e-4, "odd f32")])[1]).text
    assert "does not take this case: rows of 8192 & no other" in text
    assert "not measured" in text
    home = Strict(made.build([ceiling(H100), made.bench("scale__cuda", 1e-4)])[0]).text
    assert "1 of 3 cases measured" in home
    assert "odd f32 not measured" in home


def test_the_last_rung_takes_the_record_of_the_kernel_that_it_is(made: Made) -> None:
    own, other = made.bench("steps/03_shipped", 2e-4), made.bench("scale__cuda", 1e-4)
    at = (H100["name"], "big f32")
    assert rows(made.page([other]))[3].cells[at].seconds == 1e-4
    assert rows(made.page([own, other]))[3].cells[at].seconds == 2e-4
    assert rows(made.page([{**own, "digest": "old"}, other]))[3].cells[at].seconds == 1e-4


def test_each_card_is_shown_and_the_best_known_goes_first(made: Made) -> None:
    records = [*made.climb(), ceiling(H200), made.bench("steps/01_plain", 9e-4, device=H200)]
    page = made.page(records)
    assert [d.short for d in page.devices] == ["H100 80GB HBM3", "H200"]
    assert [c["label"] for c in report_charts.charts(page)] == ["big f32 · H100 80GB HBM3", "big f32 · H200"]
    assert "900.0" in Strict(made.build(records)[1]).text


# -- facts and checks ------------------------------------------------------------------------------------------------


def test_facts_of_binaries_stand_on_the_page(made: Made) -> None:
    two = {"kernels": [FACTS, {**FACTS, "registers": 77, "unmet": ["no <LDG.E.128>"]}]}
    text = Strict(made.build([], {("steps/01_plain", 80): {"refused": "needs sm_90 & more"}, ("steps/01_plain", 90): two})[1]).text
    row = "sm_90a scale<float> 17 8 4 096 192 62.5 shared memory FFMA 43 LDG.128 41 LDG.32 3 hottest loop: LDS.128 47"
    for want in ("needs sm_90 & more", row, "77", "demand not met no <LDG.E.128>"):
        assert want in text, want
    assert "S2R" not in text
    assert "not inspected" in text


def test_facts_that_lack_one_are_refused() -> None:
    with pytest.raises(ValueError, match="facts for sm_80 lack occupancy, spills"):
        target_facts(80, {k: v for k, v in FACTS.items() if k not in ("spills", "occupancy")})


def test_checks_of_now_and_on_record(made: Made) -> None:
    subject = made.gatherer.subjects[("scale", "steps/01_plain")]
    base = {"kind": "check", "op": "scale", "subject": "steps/01_plain", "device": H100, "at": "2026-01-01T10:00:00+00:00", "run": "c", "backend": "gpu"}
    good = {**base, "case": "big f32", "digest": subject.digest(subject.op.case("big f32"), device_of(base)), "error": {"ok": True}}
    old = {**base, "case": "odd f32", "digest": "old", "error": {"ok": False}}
    now = [
        {"op": "scale", "subject": "steps/01_plain", "case": "tiny f32", "status": "wrong", "message": "<3> is not 4", "backend": "interpreter"},
        {"op": "scale", "subject": "steps/01_plain", "case": "odd f32", "status": "skipped", "message": "no GPU", "backend": ""},
    ]
    text = Strict(made.build([good, old], checks=now)[1]).text
    assert "right NVIDIA H100 80GB HBM3, 2026-01-01 (gpu): 1 cases right" in text
    assert "1 wrong just now, here (interpreter): 0 cases right, 1 could not run there (no GPU) tiny f32 : <3> is not 4" in text
    assert text.count("no check on record for this version") == 2


# -- sources ---------------------------------------------------------------------------------------------------------


def test_the_difference_shows_what_changed_and_not_the_words_about_it(made: Made) -> None:
    page = made.page([])
    found = report.change(page.rungs[0], page.rungs[1])
    kinds = {kind: [re.sub("<[^>]+>", "", str(line.html)) for line in found.lines if line.kind == kind] for kind in ("added", "removed")}
    assert "threads = 256" in kinds["added"]
    assert "threads = 128" in kinds["removed"]
    assert [x.strip() for x in kinds["added"] if "if (i" in x] == ["if (i &lt; n) y[i] = factor * x[i];"]
    assert not any(re.match(r"idea|predict|limit", x) for x in kinds["added"] + kinds["removed"])
    assert (found.added, found.removed) == (len(kinds["added"]), len(kinds["removed"]))
    numbers = [line.new for line in found.lines if line.new]
    assert numbers == sorted(numbers)
    assert all(page.rungs[1].source.splitlines()[n - 1].strip() for n in numbers[:1])
    ladder = made.build([])[1]
    assert ladder.count('<details class="diff">') == 2
    assert ladder.count('<details class="source">') == 3


def test_a_long_idea_is_left_out_of_the_difference_whole() -> None:
    text = '/* rooftop\nidea = """\nlimit = "none of this"\n"""\nargs = []\n*/\nidea = 3;\n'
    assert [text.splitlines()[i] for i in report.lesson(text)] == ["/* rooftop", "args = []", "*/", "idea = 3;"]


def test_highlighting_keeps_every_line_and_escapes() -> None:
    text = "\n\nint a = b < c && d;  // <script>\n/* two\nlines */\n"
    lines = list(report.highlight(text, "x.cu"))
    assert [Markup(line).striptags() if line.strip() else "" for line in lines] == ["", "", "int a = b < c && d; // <script>", "/* two", "lines */"]
    assert not any("<script" in line for line in lines)


# -- the pages as files ----------------------------------------------------------------------------------------------


def every_page(made: Made) -> dict[str, str]:
    shipped = made.bench("scale__cuda", 2e-4, versus={"peer:torch": ratio(0.8, "faster"), "ceiling:copy": ratio(1.1, "slower")})
    made.build([*made.climb(), shipped, made.bench("steps/02_wide", 1e-3, stale=True, device=H200)], {("steps/01_plain", 90): FACTS})
    return {p.name: p.read_text(encoding="utf-8") for p in made.out.iterdir()}


def test_pages_are_well_formed_and_their_links_lead_somewhere(made: Made) -> None:
    pages = {name: Strict(text) for name, text in every_page(made).items()}
    assert set(pages) == {"index.html", "ladder-steps.html"}
    ids = {name: [i for _, i in page.of("id")] for name, page in pages.items()}
    assert all(len(set(found)) == len(found) for found in ids.values())
    for name, page in pages.items():
        for tag, href in page.of("href"):
            if tag == "a":
                file, _, anchor = href.partition("#")
                assert (file or name) in pages, href
                assert not anchor or anchor in ids[file or name], href
        assert page.widths
        assert all(len(set(widths)) == 1 for widths in page.widths), f"{name}: rows of one table have different widths: {page.widths}"


def test_the_check_of_form_can_fail() -> None:
    for bad in ("<p><b>x</p></b>", "<p>x", "x</p>", '<p id="a" id="b">x</p>'):
        with pytest.raises(AssertionError):
            Strict(bad)


def test_pages_load_nothing(made: Made) -> None:
    for text in every_page(made).values():
        page = Strict(text)
        policy = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
        assert [p.split(";")[0] for p in policy if p] == ["default-src 'none'"]
        assert not re.search(r"(connect|font|frame|worker)-src|https?:", str(policy[0]))
        for name in ("src", "srcset", "action", "data", "poster", "background"):
            assert list(page.of(name)) == []
        for tag, href in page.of("href"):
            assert (tag, href) == ("link", "data:,") or (tag == "a" and not re.match(r"\w+:|//", href))
        assert not re.search(r"@import|url\(", text)


def test_what_others_wrote_is_escaped(made: Made) -> None:
    made.house.ladders.joinpath("steps", "04_x.cu").write_text(kernel("</script><script>alert(2)</script> & \\\"quoted\\\""), encoding="utf-8")
    registry.ladder.cache_clear()
    records = [*made.climb(), made.bench("steps/01_plain", 1e-3, device={**H100, "name": "</script><img src=x onerror=alert(3)>"})]
    pages = made.build(records)
    for text in pages:
        page = Strict(text)
        assert not any(tag == "img" for tag, _ in page.tags)
        assert not re.search(r"<script>\s*alert", text)
        assert "<b>stairs" not in text
    assert '</script><script>alert(2)</script> & "quoted"' in Strict(pages[1]).text
    assert "A tensor times a number & <nothing> else." in Strict(pages[0]).text
    assert "x < y && <script>alert(1)</script>" in Strict(pages[1]).text
    registry.ladder.cache_clear()


def test_building_again_replaces_the_pages_and_leaves_nothing_else(made: Made) -> None:
    made.build(made.climb())
    made.build([])
    assert {p.name for p in made.out.iterdir()} == {"index.html", "ladder-steps.html"}
    assert "Not measured on any GPU yet" in (made.out / "ladder-steps.html").read_text(encoding="utf-8")


def test_plotly_is_inside_the_page(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    text = made.build(made.climb())[1]
    page = Strict(text)
    assert any(len(s) > 1_000_000 and "Plotly" in s for s in page.scripts)
    assert [t for t, a in page.tags if t == "script" and "src" in a] == []


# -- the chart -------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_page_are_valid_plotly(made: Made) -> None:
    import plotly.graph_objects as go

    text = made.build(made.climb())[1]
    found = next(s for s in Strict(text).scripts if s.lstrip().startswith("["))
    figures = json.loads(found)
    for figure in figures:
        for scale in figure["scales"].values():
            go.Figure({"data": figure["data"], "layout": {**figure["layout"], **scale}})
    with pytest.raises(ValueError, match="nonsense"):
        go.Figure({"data": figures[0]["data"], "layout": {"nonsense": 1}})


def test_the_chart_holds_rungs_roofs_peers_and_predictions(made: Made) -> None:
    figure = report_charts.charts(made.page(made.climb()))[0]
    series = {s["name"]: s for s in figure["data"]}
    gigabytes = (1 << 28) / 1e9
    assert series["measured"]["y"] == pytest.approx([gigabytes / 1e-3, gigabytes / 5e-4, gigabytes / 1.25e-4])
    assert series["roof, measured"]["y"][0] == pytest.approx(3000)
    assert series["roof, datasheet"]["y"][0] == pytest.approx(3350)
    assert series["torch"]["y"][0] == pytest.approx(gigabytes / 1.5625e-4)
    assert series["predicted beforehand"]["y"] == pytest.approx([2.1 * gigabytes / 1e-3, 2.0 * gigabytes / 5e-4])
    assert series["measured"]["error_y"]["array"][0] == pytest.approx(gigabytes / 0.99e-3 - gigabytes / 1e-3)
    assert figure["start"] == "linear"
    assert report_charts.charts(made.page([*made.climb(), made.bench("steps/01_plain", 1e-2, at="2026-02-01")]))[0]["start"] == "log"


def test_labels_never_overlap_and_move_no_more_than_needed() -> None:
    rng = random.Random(7)
    for _ in range(300):
        heights = [rng.random() for _ in range(rng.randrange(1, 9))]
        placed = report_charts.spread(heights, 0.05)
        order = sorted(range(len(heights)), key=lambda i: heights[i])
        ordered = [placed[i] for i in order]
        assert all(b - a >= 0.05 - 1e-9 for a, b in pairwise(ordered))
        assert all(-1e-9 <= y <= 1 + 1e-9 for y in placed)
    assert report_charts.spread([0.2, 0.8, 0.5], 0.05) == [0.2, 0.8, 0.5]
    assert report_charts.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.0336, 4, "0.03360"), (1.0, 3, "1.00"), (184730.2, 4, "184\u202f730"), (999.96, 4, "1\u202f000"), (0.0, 4, "0"), (-12.346, 4, "-12.35")],
)
def test_numbers_are_written_to_so_many_digits(value: float, digits: int, text: str) -> None:
    assert report_charts.number(value, digits) == text


# -- the tree as it is -----------------------------------------------------------------------------------------------


def test_the_pages_of_the_tree_itself(tmp_path: Path) -> None:
    index = report.build(tmp_path, [])
    assert {p.name for p in tmp_path.iterdir()} == {"index.html", *(f"ladder-{n}.html" for n in registry.ladder_names())}
    for path in tmp_path.iterdir():
        page = Strict(path.read_text(encoding="utf-8"))
        assert [h for t, h in page.of("href") if t == "a" and re.match(r"\w+:|//", h)] == []
    text = Strict(index.read_text(encoding="utf-8")).text
    for name in (*registry.op_names(), *registry.ladder_names()):
        assert name in text
    for name in registry.ladder_names():
        ladder = Strict((tmp_path / f"ladder-{name}.html").read_text(encoding="utf-8")).text
        assert all(" ".join(r.head.idea.split()) in ladder for r in registry.ladder(name).rungs if r.head)
