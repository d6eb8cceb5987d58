"""The diagnosis: on reports made so that the answer follows from the counters' meaning, and on counters recorded on an H100."""

from __future__ import annotations

import json
from functools import cache

import pytest

from rooftop.core import settings
from rooftop.lab.counters.diagnose import show
from rooftop.lab.counters.diagnose.diagnosis import Diagnosis, diagnose
from rooftop.lab.counters.diagnose.levers import KEPT, Lever
from rooftop.lab.counters.diagnose.reports import Kernel
from rooftop.lab.counters.diagnose.resources import EMPTY_S
from rooftop.lab.records import store
from rooftop.lab.timing.roofline import Ceilings

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
QUIET = {  # percent of each unit's peak: nothing is busy
    "gpu__dram_throughput": 10, "lts__throughput": 10, "l1tex__data_pipe_lsu_wavefronts": 10, "sm__inst_issued": 20, "sm__inst_executed_pipe_fma": 5,
    "sm__inst_executed_pipe_alu": 5, "sm__inst_executed_pipe_xu": 1, "sm__pipe_tensor_cycles_active": 0,
}
WASTES = {  # counted, and none found
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 0.0, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 0.0,
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": 0.0, "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 0.0,
}


def made(seconds: float = 1e-4, active: float = 0.98, name: str = "k", arch: str = "", stalls: dict[str, float] | None = None,
         more: dict[str, float] | None = None, **busy: float) -> Diagnosis:
    """A kernel with QUIET's percents, but those of `busy`."""
    metrics = {n + ELAPSED: float(v) for n, v in {**QUIET, **busy}.items()}
    metrics |= WASTES
    metrics |= {"gpu__time_duration.sum": seconds, "sm__cycles_active.avg": active * 1e5, "sm__cycles_elapsed.max": 1e5, **(more or {})}
    metrics |= {f"smsp__average_warps_issue_stalled_{n}_per_issue_active.ratio": v for n, v in (stalls or {}).items()}
    return diagnose(Kernel(name, (132,), (256,), arch, metrics=metrics))


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
                                                                                  "launch__sm_count": 132})
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
    }
    found = made(l1tex__data_pipe_lsu_wavefronts=90, gpu__dram_throughput=45, more=shared)
    lever = next(x for x in found.levers if x.key == "conflicts")
    assert found.bound == "shared" and lever.then == "dram"
    assert (lever.low, lever.high) == (pytest.approx((0.90 / 0.45) ** KEPT), pytest.approx(1 / 0.45))  # not 4: the memory is next
    elsewhere = made(l1tex__data_pipe_lsu_wavefronts=20, gpu__dram_throughput=90, more=shared)
    assert any(w.key == "conflicts" for w in elsewhere.wastes) and not any(x.key == "conflicts" for x in elsewhere.levers)


def lever(found: Diagnosis, key: str) -> Lever | None:
    return next((x for x in found.levers if x.key == key), None)


def test_tensor_work_on_wgmma_is_not_l1() -> None:
    """wgmma reads its operands from shared memory: wavefronts that no load or store makes."""
    name = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
    reads = {f"{name}.sum": 900.0, f"{name}_op_ld.sum": 4.0, f"{name}_op_st.sum": 6.0, "l1tex__data_pipe_lsu_wavefronts.sum": 1000.0}
    found = made(arch="9.0", l1tex__data_pipe_lsu_wavefronts=92, sm__pipe_tensor_cycles_active=78, more=reads)
    assert (found.bound, found.runner_up) == ("tensor", "shared") and "operands" in found.because and lever(found, "register_tile") is None
    loads = {**reads, f"{name}_op_ld.sum": 880.0}
    assert made(arch="9.0", l1tex__data_pipe_lsu_wavefronts=92, sm__pipe_tensor_cycles_active=78, more=loads).bound == "shared"  # ldmatrix and mma
    assert made(arch="8.0", l1tex__data_pipe_lsu_wavefronts=92, sm__pipe_tensor_cycles_active=78, more=reads).bound == "shared"


PAGE = {  # of a details page: no pipe, no sector, no stall reason
    "gpu__time_duration.sum": 1e-4, "sm__cycles_active.avg": 9.8e4, "gpc__cycles_elapsed.max": 1e5, "gpu__dram_throughput" + ELAPSED: 12.0,
    "lts__throughput" + ELAPSED: 30.0, "l1tex__throughput.avg.pct_of_peak_sustained_active": 20.0, "sm__inst_issued.avg.pct_of_peak_sustained_active": 9.0,
}
BUSY_SM = "sm__instruction_throughput.avg.pct_of_peak_sustained_active"


@pytest.mark.parametrize(
    ("name", "arch", "more", "bound"),
    [
        ("k", "8.0", {BUSY_SM: 92.0}, "sm"),  # SM Busy
        ("k", "8.0", {"sm__throughput" + ELAPSED: 92.0}, "sm"),  # Compute (SM) Throughput
        ("ampere_bf16_s16816gemm_bf16_128x128", "8.0", {"sm__throughput" + ELAPSED: 92.0}, "tensor"),
        ("k", "9.0", {BUSY_SM: 85.0, "sm__throughput" + ELAPSED: 83.0, "l1tex__throughput.avg.pct_of_peak_sustained_active": 94.0}, "tensor"),
        ("k", "8.0", {"sm__throughput" + ELAPSED: 88.0, "sm__inst_issued.avg.pct_of_peak_sustained_active": 89.0}, "issue"),
        ("k", "8.0", {"sm__throughput" + ELAPSED: 88.0, "l1tex__throughput.avg.pct_of_peak_sustained_active": 90.0}, "l1"),  # its load/store pipe
        ("k", "8.0", {BUSY_SM: 15.0, "sm__throughput" + ELAPSED: 88.0, "sm__memory_throughput" + ELAPSED: 88.0}, "l1"),
        ("k", "8.0", {BUSY_SM: 30.0, "sm__throughput" + ELAPSED: 30.0}, "latency"),
        ("k", "8.0", {}, "unknown"),  # a pipe may be busy
    ],
)
def test_where_pipes_are_missing_the_throughput_of_the_sm_stands_for_them(name: str, arch: str, more: dict[str, float], bound: str) -> None:
    found = diagnose(Kernel(name, arch=arch, metrics=PAGE | more))
    assert found.bound == bound and found.sure != "clear"


def test_clear_is_never_said_beside_not_collected() -> None:
    whole = made(gpu__dram_throughput=92)
    assert whole.sure == "clear" and "not collected" not in show.screen(whole)
    counted = Kernel("k", metrics={f"{n}{ELAPSED}": float(v) for n, v in {**QUIET, "gpu__dram_throughput": 92}.items()} | WASTES | {
        "gpu__time_duration.sum": 1e-4, "sm__cycles_active.avg": 9.8e4, "sm__cycles_elapsed.max": 1e5})
    assert diagnose(counted).sure == "clear"
    for name in counted.metrics:
        less = diagnose(Kernel("k", metrics={n: v for n, v in counted.metrics.items() if n != name}))
        assert not (less.sure == "clear" and less.missing), name
        assert ("clear" in show.screen(less)) != ("not collected" in show.screen(less)), name


def test_a_device_memory_that_is_not_used_is_counted_with_zero() -> None:
    assert made(gpu__dram_throughput=0).bound == "latency"


def test_atomics_have_a_lever_and_those_on_few_addresses_a_bound() -> None:
    counts = {"lts__t_sectors.sum": 1000.0, "lts__t_sectors_op_red.sum": 600.0, "lts__t_sectors_op_atom.sum": 0.0}
    spread = made(more=counts | {"lts__t_sectors_op_red.avg": 10.0, "lts__t_sectors_op_red.max": 13.0}, stalls={"lg_throttle": 9.0})
    few = made(more=counts | {"lts__t_sectors_op_red.avg": 10.0, "lts__t_sectors_op_red.max": 160.0}, stalls={"lg_throttle": 9.0})
    assert (spread.bound, few.bound) == ("latency", "l2") and "busiest slice handles 16 times" in few.because
    for found in (spread, few):
        combine = lever(found, "atomics")
        assert combine is not None and combine.low is None and "gain unknown" in show.screen(found)
    assert lever(made(more=counts | {"lts__t_sectors_op_red.sum": 50.0}), "atomics") is None  # one a block: nothing to gain
    by_requests = {f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum": n for op, n in (("ld", 100.0), ("st", 0.0), ("atom", 300.0))}
    assert lever(made(more=by_requests), "atomics") is not None
    shared = {f"l1tex__data_pipe_lsu_wavefronts_mem_shared{op}.sum": n for op, n in (("", 100.0), ("_op_atom", 80.0))}
    assert lever(made(l1tex__data_pipe_lsu_wavefronts=90, more=shared | {"l1tex__data_pipe_lsu_wavefronts.sum": 110.0}), "atomics_shared") is not None


def test_waves_are_shown_and_counted_where_they_are_not_collected() -> None:
    collected = made(more={"launch__waves_per_multiprocessor": 1.25, "launch__sm_count": 132, "launch__grid_size": 660})
    assert collected.waves == 1.25 and "1.25 waves on 132 SMs" in show.screen(collected)
    counted = made(more={"launch__occupancy_limit_registers": 4, "launch__occupancy_limit_warps": 8, "launch__sm_count": 132, "launch__grid_size": 660})
    assert counted.waves == pytest.approx(1.25)
    assert made().waves is None and "waves" not in show.screen(made())


def test_no_ceiling_is_below_an_empty_launch() -> None:
    quick = made(seconds=6e-6, gpu__dram_throughput=8)
    assert quick.ceiling_s == EMPTY_S and all(x.high is None or x.high <= 6e-6 / EMPTY_S for x in quick.levers)
    assert made(seconds=1.2e-6, gpu__dram_throughput=8).ceiling_s == 1.2e-6  # a card whose launches are faster
    counts = {"l1tex__data_pipe_lsu_wavefronts.sum": 100.0, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 100.0,
              "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 95.0}
    conflicts = lever(
        made(seconds=6e-6, l1tex__data_pipe_lsu_wavefronts=95, sm__inst_issued=2, gpu__dram_throughput=2, lts__throughput=2, more=counts), "conflicts"
    )
    assert conflicts is not None and conflicts.high == pytest.approx(4.0) and conflicts.then == "launch"  # not 20


def test_the_start_of_a_short_kernel_is_not_called_idle() -> None:
    assert made(seconds=6e-6, active=0.72).bound == "latency"  # 1.5 us are the launch
    assert made(seconds=6e-5, active=0.6).bound == "idle"


@pytest.mark.parametrize(("times", "said"), [(1.0, False), (1.9, False), (6.0, True)])
def test_reuse_is_a_lever_only_where_bytes_are_loaded_again(times: float, said: bool) -> None:
    counts = {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 32.0 * times, "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32.0,
        "dram__bytes_read.sum": 1024.0, "dram__bytes_write.sum": 0.0,
    }
    found = made(lts__throughput=90, more=counts)
    assert found.bound == "l2" and (lever(found, "reuse") is not None) == said
    assert lever(made(lts__throughput=90), "reuse") is None  # not counted


@pytest.mark.parametrize("share", [3, 20, 30, 34, 40, 60, 69])
def test_a_range_is_under_three_or_unknown(share: int) -> None:
    counts = {"l1tex__data_pipe_lsu_wavefronts.sum": 100.0, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 100.0,
              "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 90.0}
    busy = dict.fromkeys(("gpu__dram_throughput", "lts__throughput", "sm__inst_issued", "sm__inst_executed_pipe_fma", "sm__inst_executed_pipe_alu"), share)
    for found in (made(**busy), made(l1tex__data_pipe_lsu_wavefronts=95, more=counts, **busy), made(active=share / 100, **busy)):
        assert found.levers
        for x in found.levers:
            assert (x.low is None) == (x.high is None)
            assert x.low is None or (x.high is not None and 1 <= x.low <= x.high < 3 * x.low)


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
