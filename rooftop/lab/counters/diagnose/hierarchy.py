"""The hierarchical roofline of a kernel: its rate of work over its bytes at each level of the memory, under that level's bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.lab.counters.diagnose.resources import LONGEST_RUN, SECTOR_BYTES, Activity

WAVEFRONT = 128  # bytes of a wavefront of shared memory at most
L1_BYTES = 128  # a cycle and SM
SCHEDULERS = 4  # an SM
FMAS = 128  # a cycle and SM


@dataclass(frozen=True)
class Level:
    """One level. `bandwidth`: bytes a second at its ceiling, None where the report does not say; `source`: of that."""

    key: str
    title: str
    bytes: float
    bandwidth: float | None
    source: str


@dataclass(frozen=True)
class Hierarchy:
    """`unit`: FLOP, or warp instructions where no float32 arithmetic was counted. `work` of it; `peak`: a second, None where the clock is
    not known."""

    unit: str
    work: float
    seconds: float
    peak: float | None
    levels: tuple[Level, ...]

    @property
    def rate(self) -> float:
        return self.work / self.seconds


def hierarchy(a: Activity) -> Hierarchy | None:
    """None where the report holds no duration, no work or no level's bytes."""
    k = a.kernel
    each = [k.get(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum") for op in ("ffma", "fadd", "fmul")]
    counted = None if None in each else sum(n * v for n, v in zip((2, 1, 1), each, strict=True) if v is not None)
    executed = k.get("smsp__inst_executed.sum", "sm__inst_executed.sum")
    unit, work = ("FLOP", counted) if counted and executed and counted >= executed else ("warp instructions", executed)
    levels = tuple(x for x in (_memory(a), _l2(a), _l1(a)) if x is not None and x.bytes > 0)
    if not work or not a.seconds or not levels:
        return None
    cycles = _cycles(a)
    peak = None if cycles is None else cycles * (2 * FMAS if unit == "FLOP" else SCHEDULERS)
    return Hierarchy(unit, work, a.seconds, peak, levels)


def _cycles(a: Activity) -> float | None:
    """Of all SMs together, a second."""
    sms, clock = a.kernel.get(
        "launch__sm_count", "device__attribute_multiprocessor_count"
    ), a.kernel.get("sm__cycles_elapsed.avg.per_second")
    if clock is None and (found := a.kernel.get("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")) is not None and a.seconds:
        clock = found / a.seconds
    return sms * clock if sms is not None and clock is not None else None


def _by_share(a: Activity, moved: float, counter: str) -> float | None:
    """The bandwidth at which the counter would show 100 %."""
    share = a.percent(counter)
    return moved / a.seconds / share if share and a.seconds else None


def _memory(a: Activity) -> Level | None:
    if a.bytes is None:
        return None
    if a.ceilings is not None:
        try:
            return Level("dram", "device memory", a.bytes, a.ceilings.bandwidth("copy", LONGEST_RUN), "copy, measured")
        except ValueError:
            pass
    found = _by_share(a, a.bytes, "dram__throughput") or _by_share(a, a.bytes, "gpu__dram_throughput")
    return Level("dram", "device memory", a.bytes, found, "peak by its counter")


def _l2(a: Activity) -> Level | None:
    sectors = a.kernel.get("lts__t_sectors.sum")
    return None if sectors is None else Level(
        "l2", "L2", sectors * SECTOR_BYTES, _by_share(a, sectors * SECTOR_BYTES, "lts__t_sectors"), "peak by its counter"
    )


def _l1(a: Activity) -> Level | None:
    shared = a.kernel.get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
    if a.global_sectors is None or shared is None:
        return None
    moved = (a.global_sectors + (a.local_sectors or 0.0)) * SECTOR_BYTES + shared * WAVEFRONT
    cycles = _cycles(a)
    return Level("l1", "L1 and shared memory", moved, None if cycles is None else cycles * L1_BYTES, "128 bytes a cycle and SM")
