"""The diagnosis: on reports made so that the answer follows from the counters' meaning, and on counters recorded on an H100."""

from __future__ import annotations

import json
from functools import cache

import pytest

from rooftop.core import settings
from rooftop.lab.counters.diagnose import show
from rooftop.lab.counters.diagnose.diagnosis import Diagnosis, diagnose
from rooftop.lab.counters.diagnose.levers import KEPT
from rooftop.lab.counters.diagnose.reports import Kernel
from rooftop.lab.records import store
from rooftop.lab.timing.roofline import Ceilings

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
QUIET = {  # percent of each unit's peak: nothing is busy
    "gpu__dram_throughput": 10, "lts__throughput": 10, "l1tex__data_pipe_lsu_wavefronts": 10, "sm__inst_issued": 20, "sm__inst_executed_pipe_fma": 5,
    "sm__inst_executed_pipe_alu": 5, "sm__inst_executed_pipe_xu": 1, "sm__pipe_tensor_cycles_active": 0,
}  # fmt: skip
WASTES = {  # counted, and none found
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 0.0, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 0.0,
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": 0.0, "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 0.0,
}  # fmt: skip


def made(seconds: float = 1e-4, active: float = 0.98, name: str = "k", stalls: dict[str, float] | None = None, more: dict[str, float] | None = None,
         **busy: float) -> Diagnosis:  # fmt: skip
    """A kernel with QUIET's percents, but those of `busy`."""
    metrics = {n + ELAPSED: float(v) for n, v in {**QUIET, **busy}.items()}
    metrics |= WASTES
    metrics |= {"gpu__time_duration.sum": seconds, "sm__cycles_active.avg": active * 1e5, "sm__cycles_elapsed.max": 1e5, **(more or {})}
    metrics |= {f"smsp__average_warps_issue_stalled_{n}_per_issue_active.ratio": v for n, v in (stalls or {}).items()}
    return diagnose(Kernel(name, (132,), (256,), metrics=metrics))


def test_the_busiest_resource_bounds_and_the_next_is_the_runner_up() -> None:
    found = made(gpu__dram_throughput=92, lts__throughput=55)
    assert (found.bound, found.runner_up, found.sure) == ("dram", "l2", "clear")
    assert found.ceiling_s == pytest.approx(0.92e-4)


@pytest.mark.parametrize(
    ("busy", "bound"),
    [
        ({"sm__inst_issued": 98, "sm__inst_executed_pipe_fma": 96}, "fma"),
        ({"sm__inst_issued": 95, "sm__inst_executed_pipe_fma": 40, "sm__inst_executed_pipe_alu": 30}, "issue"),
        ({"sm__inst_issued": 30, "sm__inst_executed_pipe_xu": 97}, "xu"),
        ({"sm__pipe_tensor_cycles_active": 88}, "tensor"),
        ({"lts__throughput": 80}, "l2"),
        ({"l1tex__data_pipe_lsu_wavefronts": 90}, "l1"),
    ],
)
def test_bounds(busy: dict[str, float], bound: str) -> None:
    assert made(**busy).bound == bound


def test_no_busy_resource_is_latency_idle_sms_or_the_launch() -> None:
    waiting = made(stalls={"long_scoreboard": 20.0, "wait": 2.0})
    assert waiting.bound == "latency" and "long_scoreboard most (91%" in waiting.because and waiting.levers[0].key == "latency"
    tail = made(active=0.5, sm__inst_issued=49, sm__inst_executed_pipe_fma=48, more={"launch__waves_per_multiprocessor": 133 / 132, "launch__grid_size": 133,
                                                                                  "launch__sm_count": 132})  # fmt: skip
    assert tail.bound == "idle" and any("1.01 waves" in w.text for w in tail.wastes)
    assert tail.levers[0].key == "grid" and 1.9 < tail.levers[0].high <= 2.01
    assert made(seconds=1.5e-6, active=0.3).bound == "launch"


def test_without_the_counters_of_a_main_resource_nothing_is_bound_by_none() -> None:
    some = diagnose(Kernel("k", metrics={"gpu__time_duration.sum": 1e-4, "gpu__dram_throughput" + ELAPSED: 5.0}))
    assert some.bound == "unknown" and "not collected: l2, l1, issue" in some.because and not some.levers


def test_conflicts_are_a_lever_where_shared_memory_bounds_and_stop_at_the_next_resource() -> None:
    shared = {
        "l1tex__data_pipe_lsu_wavefronts.sum": 100.0, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 100.0,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 75.0,
    }  # fmt: skip
    found = made(l1tex__data_pipe_lsu_wavefronts=90, gpu__dram_throughput=45, more=shared)
    lever = next(x for x in found.levers if x.key == "conflicts")
    assert found.bound == "shared" and lever.then == "dram"
    assert (lever.low, lever.high) == (pytest.approx((0.90 / 0.45) ** KEPT), pytest.approx(1 / 0.45))  # not 4: the memory is next
    elsewhere = made(l1tex__data_pipe_lsu_wavefronts=20, gpu__dram_throughput=90, more=shared)
    assert any(w.key == "conflicts" for w in elsewhere.wastes) and not any(x.key == "conflicts" for x in elsewhere.levers)


def test_a_name_with_markup_and_control_characters_is_shown_as_it_is() -> None:
    text = show.screen(made(name="k<[bold]\x1b[31m>\n" + "x" * 500, gpu__dram_throughput=90))
    assert "[bold]" in text and "\x1b" not in text and max(len(line) for line in text.splitlines()) <= 200 and len(text.splitlines()) <= 40


def test_a_difference_names_what_moved() -> None:
    before = made(l1tex__data_pipe_lsu_wavefronts=90, stalls={"short_scoreboard": 9.0, "wait": 1.0})
    text = show.difference(before, made(seconds=5e-5, gpu__dram_throughput=85))
    assert "2.00x" in text and "gone" in text and "short_scoreboard" in text
    json.dumps(before.to_json())


# -- recorded on an H100: few counters, so that much must stay unknown ----------------------------------------------------


@cache
def recorded() -> dict[tuple[str, str], Diagnosis]:
    records = list(store.read(settings.CHECKOUT / "results" / "h100-80gb-hbm3"))
    rows = [r for r in records if r["kind"] == "counters" and r["tier"] == "traffic"]
    ceilings = Ceilings.from_records(records, rows[0]["device"]["name"])
    found = {}
    for r in rows:
        metrics = {n: v * (1e-9 if n == "gpu__time_duration.sum" else 1) for n, v in r["totals"].items()}
        found[r["subject"], r["case"]] = diagnose(Kernel(r["kernel"], tuple(r["grid"]), tuple(r["block"]), metrics=metrics), ceilings)
    return found


@pytest.mark.parametrize("rung", ["05_vectorised", "06_registers", "08_cluster"])
def test_recorded_softmax_is_bound_by_the_memory(rung: str) -> None:
    """A quarter of the rows takes a quarter of the time, within the launch: 87 and 21 us, 125 and 29 us."""
    found = recorded()
    whole, quarter = (found[f"softmax_cuda/{rung}", f"rows {n}x8192 f32"] for n in (4096, 1024))
    assert whole.seconds and quarter.seconds and 3.5 < whole.seconds / quarter.seconds < 4.5
    assert whole.bound == "dram"


def test_recorded_sgemm_claims_no_bound_that_was_not_counted() -> None:
    found = recorded()
    rungs = {s: d for (s, case), d in found.items() if s.startswith("sgemm_cuda") and case == "4096 cubed f32"}
    assert len(rungs) == 12 and {d.bound for d in rungs.values()} == {"unknown"}
    conflicts = {s.split("/")[1][:2] for s, d in rungs.items() if any(w.key == "conflicts" and (w.part or 0) > 0.3 for w in d.wastes)}
    assert conflicts == {"05", "06", "07"}  # the eighth rung is the one that removes them


def test_recorded_transposes_name_the_scattered_stores() -> None:
    found = {s.rsplit("/", 1)[1]: d for (s, _), d in recorded().items() if "transpose" in s}
    assert [w.key for w in found["naive.cu"].wastes] == ["sectors_st"] and not found["padded.cu"].wastes
    assert found["padded.cu"].bound == found["swizzled.cu"].bound == "dram" and found["naive.cu"].bound == "unknown"
