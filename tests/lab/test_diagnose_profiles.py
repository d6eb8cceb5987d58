"""The diagnosis held to 49 kernels profiled on an H200: the answers are those of experiments (diagnose.experiments), which look at no counter."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import _diagnose_pages as _pages
import pytest

from rooftop.core import settings
from rooftop.core.devices import lookup
from rooftop.lab.counters.diagnose import experiments as settled_by
from rooftop.lab.counters.diagnose import page, reports, scores, show, timeline
from rooftop.lab.counters.diagnose.diagnosis import Diagnosis, diagnose
from rooftop.lab.counters.diagnose.experiments import CARD, FOLDER, HELD, LEVERS, SEEN, experiments, labels
from rooftop.lab.records import store
from rooftop.lab.timing.roofline import Ceilings


@cache
def ceilings() -> Ceilings:
    return Ceilings.from_records(store.read(settings.CHECKOUT / "results" / "h200"), CARD, lookup(CARD))


@cache
def diagnosed(*groups: str) -> dict[str, Diagnosis]:
    return settled_by.diagnosed(ceilings(), *groups)


def misses(*groups: str) -> dict[str, str]:
    return settled_by.misses(diagnosed(*groups), *groups)


def test_the_kernels_that_the_rules_were_set_on() -> None:
    settled = [n for n, label in labels(*SEEN).items() if label.bounds]
    assert len(settled) == 33
    assert misses(*SEEN) == {"transpose_padded": "issue", "sgemm_10": "fma"}  # 31 of 33


def test_the_kernels_profiled_after_the_rules_were_frozen() -> None:
    settled = [n for n, label in labels(*HELD).items() if label.bounds]
    assert len(settled) == 10
    assert misses(*HELD) == {}  # atomics on four addresses: their slice of L2 shows in its largest value, not in the mean. Added after the others were read


def test_what_the_details_page_and_the_console_leave_out_costs_few_answers() -> None:
    """Of the 43 settled kernels: as `ncu --set full` would show them, by the labels of its pages and the texts of its rules alone."""
    settled = {n: label for n, label in labels(*SEEN, *HELD).items() if label.bounds}
    wrong: dict[str, dict[str, str]] = {}
    for page_, pages_of in (("details", _pages.details), ("console", _pages.console)):
        kernels = [k for group in (*SEEN, *HELD) for k in reports.read(FOLDER / f"{group}.raw.csv.xz")]
        shown = reports.parse(pages_of(kernels))
        assert len(shown) == len(kernels)
        longest: dict[str, Diagnosis] = {}
        for kernel, whole in zip(shown, kernels, strict=True):
            d = diagnose(kernel, ceilings())
            assert d.sure != "clear" and d.missing
            if (d.seconds or 0) > (longest[whole.case].seconds or 0 if whole.case in longest else -1):
                longest[whole.case] = d
        wrong[page_] = {n: longest[n].bound for n, label in settled.items() if longest[n].bound not in label.bounds}
    assert wrong["details"] == wrong["console"]
    assert len(settled) == 43
    # shared_read: nothing on the page tells shared memory from hits in L1; atomics: no rule counts them. The others are misses by all counters too
    assert wrong["details"] == {"shared_read": "l1", "atomics": "latency", "transpose_padded": "issue", "sgemm_10": "fma"}


def test_one_answer_for_all_would_not_do() -> None:
    """What the hits are worth: the answer that is right most often is right for less than half of the kernels."""
    settled = [label for label in labels(*SEEN, *HELD).values() if label.bounds]
    most = max(sum(bound in label.bounds for label in settled) for bound in {b for label in settled for b in label.bounds})
    assert most < len(settled) / 2


def test_gains_come_as_the_levers_say(tmp_path: Path) -> None:
    """Each lever pulled in an experiment: kept as a prediction, joined with what came, scored."""
    log = tmp_path / "gains.jsonl"
    found = diagnosed(*SEEN, *HELD)
    us = {n: case["us"] for n, case in experiments().items()}
    unknown = []
    for lever, pulled in LEVERS.items():
        for name, variant in pulled:
            kept = scores.keep(log, [found[name]])
            (pulled_,) = (x for x in found[name].levers if x.key == lever)
            if pulled_.low is None:
                unknown.append(name)
                continue
            assert kept
            scores.came(log, found[name].name, lever, us[name]["main"] / us[name][variant], found[name].case, found[name].card)
    joined = scores.joined(log)
    assert unknown == ["spill", "idle_sms", "few_warps", "bytes"]
    assert len(joined) == sum(map(len, LEVERS.values())) - len(unknown)
    total = {s.lever: s for s in scores.scores(joined)}["all"]
    assert total.median_error < total.no_change / 3 and total.inside >= 4


def test_reports_together_are_small() -> None:
    assert sum(p.stat().st_size for p in FOLDER.iterdir()) <= 1 << 20


def test_the_details_page_and_the_raw_page_agree() -> None:
    raw = {k.case: k for k in reports.read(FOLDER / "own.raw.csv.xz")}
    details = {k.case: k for k in reports.read(FOLDER / "own.details.csv.xz")}
    assert list(raw) == list(details) and len(raw) == 18
    bounds = [(n, diagnose(raw[n], ceilings()).bound, diagnose(details[n], ceilings()).bound) for n in raw]
    assert [n for n, a, b in bounds if a != b] == []
    rules = {r.name for k in details.values() for r in k.rules}
    assert {"SOLBottleneck", "LaunchConfiguration"} <= rules
    shown = show.screen(diagnose(details["idle_sms"], ceilings()))
    assert "ncu's rule SOLBottleneck" in shown and "@" not in shown.partition("ncu's rule")[2]


def test_the_report_itself_reads_as_its_raw_page() -> None:
    pytest.importorskip("ncu_report", reason="NVIDIA's ncu_report is not installed (pip install ncu-report)")
    started = time.process_time()
    whole = reports.read(FOLDER / "own.ncu-rep.xz")
    assert time.process_time() - started < 5
    raw = reports.read(FOLDER / "own.raw.csv.xz")
    assert [k.case for k in whole] == [k.case for k in raw]
    for a, b in zip(whole, raw, strict=True):
        assert diagnose(a, ceilings()).bound == diagnose(b, ceilings()).bound
        assert a.metrics["gpu__time_duration.sum"] == pytest.approx(b.metrics["gpu__time_duration.sum"], rel=0.01)


def test_two_megabytes_a_second_are_diagnosed() -> None:
    """10 MB in 5 s; here a quarter of both: the raw page of the rungs, often enough."""
    import lzma

    text = lzma.decompress((FOLDER / "rungs.raw.csv.xz").read_bytes()).decode()
    head, units, *rows = text.splitlines(keepends=True)
    many = rows * (2_500_000 // sum(map(len, rows)) + 1)
    limits = ceilings()  # reads all records of the card
    started = time.process_time()
    kernels = reports.parse(head + units + "".join(many))
    found = [diagnose(k, limits) for k in kernels]
    assert time.process_time() - started < 1.25 and len(found) == len(many)


@pytest.mark.parametrize("drop", ["dram__", "lts__", "l1tex__", "smsp__|sm__inst", "gpu__time|gpc__cycles"])
def test_what_is_taken_from_a_real_report_is_not_collected_and_never_zero(drop: str) -> None:
    kernel = next(k for k in reports.read(FOLDER / "own.raw.csv.xz") if k.case == "few_warps")
    kept = {n: v for n, v in kernel.metrics.items() if not re.match(drop, n) and not (drop == "dram__" and "dram" in n)}
    found = diagnose(reports.Kernel(kernel.name, kernel.grid, kernel.block, metrics=kept), ceilings())
    assert found.missing
    assert "not collected" in show.screen(found)
    gone = {"dram__": "dram", "lts__": "l2", "l1tex__": "l1"}.get(drop)
    assert gone is None or gone not in {x.key for x in found.loads}
    if drop in ("dram__", "lts__", "l1tex__"):
        assert found.bound == "unknown"  # what is not known to be idle may be what bounds


@pytest.mark.parametrize(
    ("name", "bound"),
    [("launch_bound", "launch"), ("host_gaps", "host"), ("copies", "copies"), ("pageables", "copies"), ("overlapped", "gpu"), ("busy", "gpu")],
)
def test_timelines_of_torch_profiler(name: str, bound: str) -> None:
    found = timeline.read(FOLDER / f"trace_{name}.json.xz")
    assert found.bound == bound
    assert (found.pageable_s > 0) == (name == "pageables")
    assert ("not pinned" in found.because) == (name == "pageables")
    if name == "overlapped":
        assert found.copies_alone_s < 0.2 * found.copies_s


def test_a_page_with_the_roofline_of_each_level() -> None:
    found = diagnosed("own")
    chosen = [found[n] for n in ("copy_vec", "l2_read", "shared_read", "fma_chain")]
    assert all(d.hierarchy is not None for d in chosen)
    units = {d.case: d.hierarchy.unit for d in chosen if d.hierarchy}
    assert units["fma_chain"] == "FLOP" and units["copy_vec"] == "warp instructions"
    copy: Any = chosen[0].hierarchy
    levels = {x.key: x for x in copy.levels}
    assert levels["dram"].bytes / copy.seconds <= levels["dram"].bandwidth and levels["dram"].bytes / copy.seconds / levels["dram"].bandwidth > 0.9
    text = page.html(chosen, "<b>name</b>")
    assert "<b>name</b>" not in text and "&lt;b&gt;name" in text and "http" not in re.sub(r"https://docs.nvidia.com\S*", "", text)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == len(chosen)
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        for dot in root.iter("circle"):
            assert page.LEFT <= float(dot.attrib["cx"]) <= page.WIDE and page.TOP <= float(dot.attrib["cy"]) <= page.HIGH - page.BOTTOM


def test_the_table_of_traces_in_the_docs() -> None:
    rows = re.findall(r"^\| (.+) \| (\d+) % \| `(\w+)`(.*) \|$", (settings.CHECKOUT / "docs" / "profiling.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = ("launch_bound", "host_gaps", "copies", "pageables", "overlapped", "busy")
    assert len(rows) == len(names)
    for name, (_, idle, bound, more) in zip(names, rows, strict=True):
        found = timeline.read(FOLDER / f"trace_{name}.json.xz")
        assert (int(idle), bound) == (round(100 * found.idle), found.bound), name
        for share in re.findall(r"(\d+) %", more):
            of = found.copies_s if name == "overlapped" else found.span_s
            assert int(share) == round(100 * found.copies_alone_s / of), name
