"""How busy a kernel kept each resource: the share of its time that the resource needed at its ceiling.

The device memory is held to the measured ceiling of the card where `rooftop calibrate` has one. Every other share is the counter's percent of the
unit's own peak, which at the clock of the run is a rate that instructions really reach (an FMA chain counts 100 %). A resource whose counters the report
lacks is not in the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rooftop.lab.counters.diagnose.reports import Kernel
from rooftop.lab.timing.roofline import Ceilings

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
PIPES: Mapping[str, tuple[str, tuple[str, ...]]] = {  # key -> title, counters of which the largest counts
    "tensor": ("tensor cores", ("sm__pipe_tensor_cycles_active", "sm__pipe_tensor_op_hmma_cycles_active", "sm__inst_executed_pipe_tensor")),
    "fma": ("FP32 FMA pipe", ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma")),
    "alu": ("integer and logic pipe (ALU)", ("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu")),
    "xu": ("special functions (XU)", ("sm__pipe_xu_cycles_active", "sm__inst_executed_pipe_xu")),
    "fp64": ("FP64 pipe", ("sm__inst_executed_pipe_fp64",)),
}
L2_PARTS = (  # of L2's own work; what fills it from the device memory counts there
    "lts__t_sectors", "lts__t_tag_requests", "lts__d_sectors", "lts__lts2xbar_cycles_active", "lts__xbar2lts_cycles_active",
    "lts__d_atomic_input_cycles_active", "l1tex__m_xbar2l1tex_read_sectors",
)  # fmt: skip
SECTOR_BYTES = 32
LONGEST_RUN = 1 << 28  # bytes at which the card's measured bandwidth is taken


@dataclass(frozen=True)
class Load:
    """One resource. `share` of the kernel's time, `seconds` = share times that; `counted`: the figure and its counter, in words."""

    key: str
    title: str
    share: float
    seconds: float
    counted: str


@dataclass(frozen=True)
class Activity:
    """A kernel's report with the quantities that several rules need; each None where it was not collected."""

    kernel: Kernel
    ceilings: Ceilings | None = None

    @cached_property
    def seconds(self) -> float | None:
        """Of the kernel, under the profiler."""
        found = self.kernel.get("gpu__time_duration.sum", "gpu__time_duration.avg")
        cycles, rate = self.kernel.get("gpc__cycles_elapsed.max"), self.kernel.get("gpc__cycles_elapsed.avg.per_second")
        return found if found is not None else cycles / rate if cycles is not None and rate else None

    @cached_property
    def active(self) -> float | None:
        """The part of the time that an SM on average had a warp."""
        mean, whole = self.kernel.get("sm__cycles_active.avg"), self.kernel.get("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
        return min(1.0, mean / whole) if mean is not None and whole else None

    def percent(self, counter: str) -> float | None:
        """The share 0..1 of a unit's peak over the whole kernel; from the share while SMs were active where that alone was collected."""
        found = self.kernel.get(counter + ELAPSED)
        if found is None and (busy := self.kernel.get(counter + ".avg.pct_of_peak_sustained_active")) is not None and self.active is not None:
            found = busy * self.active
        return None if found is None else found / 100

    @cached_property
    def bytes(self) -> float | None:
        """That passed the device memory."""
        read, written = self.kernel.get("dram__bytes_read.sum"), self.kernel.get("dram__bytes_write.sum")
        if read is not None and written is not None:
            return read + written
        rate = self.kernel.get("dram__bytes.sum.per_second")
        return rate * self.seconds if rate is not None and self.seconds is not None else self.kernel.get("dram__bytes.sum")

    def ratio(self, above: str, below: str) -> float | None:
        a, b = self.kernel.get(above), self.kernel.get(below)
        return a / b if a is not None and b else None

    @cached_property
    def conflicts(self) -> float | None:
        """The part of the wavefronts of shared memory that bank conflicts added."""
        return self.ratio("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")

    @cached_property
    def shared_part(self) -> float | None:
        """The part of L1's data wavefronts that shared memory takes."""
        return self.ratio("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "l1tex__data_pipe_lsu_wavefronts.sum")

    @cached_property
    def global_sectors(self) -> float | None:
        found = [self.kernel.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum") for op in ("ld", "st")]
        return None if None in found else sum(v for v in found if v is not None)

    @cached_property
    def local_sectors(self) -> float | None:
        """Of local memory: spilled registers, and arrays that registers cannot hold."""
        found = [self.kernel.get(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum") for op in ("ld", "st")]
        return None if None in found else sum(v for v in found if v is not None)

    @cached_property
    def stalls(self) -> dict[str, float]:
        """Stall reason -> part of the cycles between two instructions of a warp; largest first. Empty where they were not collected."""
        start, end = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
        found = {n.removeprefix(start).removesuffix(end): v for n, v in self.kernel.metrics.items() if n.startswith(start) and n.endswith(end)}
        total = sum(found.values())
        return {n: v / total for n, v in sorted(found.items(), key=lambda nv: -nv[1])} if total else {}


def loads(activity: Activity) -> list[Load]:
    """The resources whose counters were collected, the busiest first."""
    t = activity.seconds
    found = [_memory(activity), _l2(activity), _l1(activity), _issue(activity), *(_pipe(activity, key) for key in PIPES)]
    rows = [(key, title, share, counted) for one in found if one is not None for key, title, share, counted in [one]]
    return sorted((Load(key, title, share, share * (t or float("nan")), counted) for key, title, share, counted in rows), key=lambda x: -x.share)


Row = tuple[str, str, float, str]


def _memory(a: Activity) -> Row | None:
    own = a.percent("gpu__dram_throughput") or a.percent("dram__throughput")
    if a.bytes is not None and a.seconds and a.ceilings is not None:
        try:
            rate = a.ceilings.bandwidth("copy", LONGEST_RUN)
        except ValueError:
            rate = 0.0
        if rate:
            achieved = a.bytes / a.seconds
            return "dram", "device memory", achieved / rate, f"{achieved / 1e9:.0f} of {rate / 1e9:.0f} GB/s (copy, measured)"
    return None if own is None else ("dram", "device memory", own, "dram throughput, of its peak")


def _l2(a: Activity) -> Row | None:
    """L2 by its busiest part. `lts__throughput` is larger than any of them where data stream from the device memory: 91 % for a plain copy on an H200,
    whose parts are below 56 %. Where the parts towards the SMs were not collected it
    stands for them, at most at the device memory's share if that is near it."""
    parts = {n: v for n in L2_PARTS if (v := a.percent(n)) is not None}
    if all(n in parts for n in ("lts__t_sectors", "lts__lts2xbar_cycles_active", "lts__xbar2lts_cycles_active")):
        which = max(parts, key=lambda n: parts[n])
        return "l2", "L2", parts[which], f"{which}, of its peak"
    whole, memory = a.percent("lts__throughput"), a.percent("gpu__dram_throughput") or a.percent("dram__throughput")
    if whole is not None and memory is not None and memory >= 0.75 * whole:
        whole = min(whole, memory)
    if whole is None:
        return None  # one idle part does not say that the others are
    return "l2", "L2", max(whole, *parts.values(), 0.0), "L2 throughput, of its peak"


def _l1(a: Activity) -> Row | None:
    names = ("l1tex__data_pipe_lsu_wavefronts", "l1tex__lsuin_requests", "l1tex__f_wavefronts", "l1tex__lsu_writeback_active", "l1tex__throughput")
    found = {n: v for n in names if (v := a.percent(n)) is not None}
    if not found:
        return None
    which = max(found, key=lambda n: found[n])
    shared = (a.shared_part or 0) > 0.5
    title = "shared memory (L1 wavefronts)" if shared else "L1 and load/store unit"
    return "shared" if shared else "l1", title, found[which], f"{which}, of its peak"


def _issue(a: Activity) -> Row | None:
    share = a.percent("sm__inst_issued")
    if share is None and (rate := a.kernel.get("smsp__issue_active.avg.per_cycle_active")) is not None and a.active is not None:
        share = rate * a.active
    return None if share is None else ("issue", "instruction issue", share, "issue slots used")


def _pipe(a: Activity, key: str) -> Row | None:
    title, counters = PIPES[key]
    found = [v for n in counters if (v := a.percent(n)) is not None]
    return (key, title, max(found), "cycles or instructions of the pipe, of its peak") if found else None
