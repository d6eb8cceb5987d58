"""How busy a kernel kept each resource: the share of its time that the resource needed at its ceiling.

The device memory is held to the measured ceiling of the card where `rooftop calibrate` has one. Every other share is the counter's percent
of the unit's own peak, which at the clock of the run is a rate that instructions really reach (an FMA chain counts 100 %). A resource whose
counters the report lacks is not in the result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rooftop.lab.counters.diagnose.reports import Kernel
from rooftop.lab.timing.roofline import Ceilings

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
ACTIVE = ".avg.pct_of_peak_sustained_active"
EMPTY_S = 1.5e-6  # an empty kernel under the profiler (H200); no kernel takes less
PIPES: Mapping[str, tuple[str, str]] = {  # key -> title, the counters of which the largest counts
    "tensor": ("tensor cores", r"sm__(pipe_tensor(_op_\w+|_type_\w+)?_cycles_active|pipe_tc_cycles_active|inst_executed_pipe_tensor\w*)"),
    "fma": ("FP32 FMA pipe", r"sm__(pipe_fma_cycles_active|inst_executed_pipe_fma)"),
    "alu": ("integer and logic pipe (ALU)", r"sm__(pipe_alu_cycles_active|inst_executed_pipe_alu)"),
    "xu": ("special functions (XU)", r"sm__(pipe_xu_cycles_active|inst_executed_pipe_xu)"),
    "fp64": ("FP64 pipe", r"sm__(pipe_fp64_cycles_active|inst_executed_pipe_fp64)"),
}
WGMMA = 9.0  # compute capability from which tensor cores read their operands from shared memory themselves
TENSOR_NAME = re.compile(r"[hiq]mma|gmma|tensorop|tensor16|s16816|s1688|s161616|nvjet|tcgen05|umma", re.IGNORECASE)  # of libraries' kernels
L2_PARTS = (  # of L2's own work; what fills it from the device memory counts there
    "lts__t_sectors", "lts__t_tag_requests", "lts__d_sectors", "lts__lts2xbar_cycles_active", "lts__xbar2lts_cycles_active",
    "lts__d_atomic_input_cycles_active", "l1tex__m_xbar2l1tex_read_sectors",
)
STALLS = (  # how reports name the stall reasons; all are parts of the cycles between two instructions of a warp
    ("smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"), ("smsp__average_warp_latency_issue_stalled_", ".ratio"),
)
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
        duration = self.kernel.get("gpu__time_duration.sum", "gpu__time_duration.avg")
        cycles, rate = self.kernel.get("gpc__cycles_elapsed.max"), self.kernel.get("gpc__cycles_elapsed.avg.per_second")
        return duration if duration is not None else cycles / rate if cycles is not None and rate else None

    @cached_property
    def active(self) -> float | None:
        """The part of the time that an SM on average had a warp."""
        mean, whole = self.kernel.get("sm__cycles_active.avg"), self.kernel.get("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
        return min(1.0, mean / whole) if mean is not None and whole else None

    def percent(self, counter: str) -> float | None:
        """The share 0..1 of a unit's peak over the whole kernel; from the share while SMs were active where that alone was collected."""
        value = self.kernel.get(counter + ELAPSED)
        if value is None and (busy := self.kernel.get(counter + ACTIVE)) is not None and self.active is not None:
            value = busy * self.active
        return None if value is None else value / 100

    @cached_property
    def waves(self) -> float | None:
        """Of blocks that run together, over the SMs."""
        value = self.kernel.get("launch__waves_per_multiprocessor")
        blocks, sms = self.blocks, self.sms
        limits = [v for n, v in self.kernel.metrics.items() if n.startswith("launch__occupancy_limit_") and v > 0]
        return value if value is not None or not blocks or not sms or not limits else blocks / (sms * min(limits))

    @cached_property
    def blocks(self) -> float | None:
        return self.kernel.get("launch__grid_size") or (float(math.prod(self.kernel.grid)) if self.kernel.grid else None)

    @cached_property
    def sms(self) -> float | None:
        return self.kernel.get("launch__sm_count", "device__attribute_multiprocessor_count")

    @cached_property
    def idle(self) -> float | None:
        """The part of the time after the launch in which an SM on average had no warp."""
        if self.active is None:
            return None
        running = 1.0 if self.seconds is None else max(1 - EMPTY_S / self.seconds, 1e-3) if self.seconds > EMPTY_S else 1e-3
        return max(0.0, 1 - self.active / running)

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

    def shared(self, what: str) -> float | None:
        """A counter of shared memory: over all its accesses, else the sum of loads, stores and atomics."""
        name = f"l1tex__data_{what}_mem_shared"
        whole = self.kernel.get(f"{name}.sum")
        return whole if whole is not None else self.kernel.total(*(f"{name}_op_{op}.sum" for op in ("ld", "st", "atom", "ldsm")))

    @cached_property
    def conflicts(self) -> float | None:
        """The part of the wavefronts of shared memory that bank conflicts added."""
        added, wavefronts = self.shared("bank_conflicts_pipe_lsu"), self.shared("pipe_lsu_wavefronts")
        if added is not None and wavefronts:
            return added / wavefronts
        return self.ratio("derived__memory_l1_wavefronts_shared_excessive", "memory_l1_wavefronts_shared")

    @cached_property
    def shared_part(self) -> float | None:
        """The part of L1's data wavefronts that shared memory takes."""
        own, whole = self.shared("pipe_lsu_wavefronts"), self.kernel.get("l1tex__data_pipe_lsu_wavefronts.sum")
        return own / whole if own is not None and whole else None

    @cached_property
    def operands(self) -> bool:
        """Whether most of shared memory's wavefronts are wgmma's reads of its operands: no load or store makes them. Where they are not
        counted: whether few instructions keep a pipe of the SM busy together with L1, on a card that has wgmma."""
        if not self.arch or self.arch < WGMMA:
            return False
        whole = self.kernel.get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
        own = self.kernel.total(*(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st", "atom")))
        if whole is not None and own is not None:
            return whole > 2 * own and (self.tensor or 0.0) >= 0.1
        if self.tensor is not None:
            return self.tensor >= 0.3
        issue, sm = self.issue, self.percent("sm__throughput")
        return issue is not None and sm is not None and issue < 0.25 and sm >= max(0.3, 2 * issue)

    @cached_property
    def arch(self) -> float | None:
        match = re.match(r"\d+\.\d+", self.kernel.arch)
        return float(match[0]) if match else None

    @cached_property
    def memory(self) -> float | None:
        """The share of the device memory's peak."""
        return next((v for n in ("gpu__dram_throughput", "dram__throughput") if (v := self.percent(n)) is not None), None)

    @cached_property
    def tensor(self) -> float | None:
        return self.pipe("tensor")

    def pipe(self, key: str) -> float | None:
        """The share of a pipe, by the busiest of its counters."""
        pattern = re.compile(PIPES[key][1] + r"(?=\.avg\.pct_of_peak_sustained_(elapsed|active)$)")
        names = {m[0] for n in self.kernel.metrics if n.startswith("sm__") and (m := pattern.match(n))}
        return max((v for n in names if (v := self.percent(n)) is not None), default=None)

    @cached_property
    def issue(self) -> float | None:
        """The share of the issue slots."""
        share = self.percent("sm__inst_issued")
        if share is None and (rate := self.kernel.get("smsp__issue_active.avg.per_cycle_active")) is not None and self.active is not None:
            share = rate * self.active
        return share

    @cached_property
    def atomics(self) -> float | None:
        """The part of L2's sectors, else of L1's requests of global memory, that atomics are."""
        mine, whole = self.kernel.total("lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum"), self.kernel.get("lts__t_sectors.sum")
        if whole is None:
            whole = self.kernel.total(*(f"lts__t_sectors_op_{op}.sum" for op in ("read", "write", "atom", "red")))
        if mine is not None and whole:
            return mine / whole
        name = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
        mine, others = self.kernel.total(name.format("atom"), name.format("red")), self.kernel.total(name.format("ld"), name.format("st"))
        return mine / (mine + others) if mine is not None and others is not None and mine + others else None

    @cached_property
    def hottest(self) -> float | None:
        """How many times the mean over L2's slices the busiest one handles in atomics."""
        ratios = [self.ratio(f"lts__t_sectors_op_{op}.max", f"lts__t_sectors_op_{op}.avg") for op in ("red", "atom")]
        return max((v for v in ratios if v is not None), default=None)

    @cached_property
    def reused(self) -> float | None:
        """How often a byte that came from the device memory was loaded, on average; None where the bytes that loads use were not
        counted."""
        sectors = self.kernel.get("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
        used = self.kernel.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio")
        read = self.kernel.get("dram__bytes_read.sum")
        return sectors * min(used, SECTOR_BYTES) / read if sectors and used and read else None

    @cached_property
    def global_sectors(self) -> float | None:
        counts = [self.kernel.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum") for op in ("ld", "st")]
        return None if None in counts else sum(v for v in counts if v is not None)

    @cached_property
    def local_sectors(self) -> float | None:
        """Of local memory: spilled registers, and arrays that registers cannot hold."""
        counts = [self.kernel.get(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum") for op in ("ld", "st")]
        return None if None in counts else sum(v for v in counts if v is not None)

    @cached_property
    def stalls(self) -> dict[str, float]:
        """Stall reason -> part of the cycles between two instructions of a warp; largest first. Empty where they were not collected."""
        reasons: dict[str, float] = {}
        for start, end in STALLS:
            reasons = {n[len(start) : -len(end)]: v for n, v in self.kernel.metrics.items() if n.startswith(start) and n.endswith(end)}
            if reasons:
                break
        # a rule names the largest alone
        total = max(sum(reasons.values()), self.kernel.get("smsp__average_warp_latency_per_inst_issued.ratio") or 0.0)
        return {n: v / total for n, v in sorted(reasons.items(), key=lambda nv: -nv[1])} if total else {}


def loads(activity: Activity) -> list[Load]:
    """The resources whose counters were collected, the busiest first."""
    t = activity.seconds
    every = [
        _memory(activity), _l2(activity), _l1(activity), _issue(activity), *(_pipe(activity, key) for key in PIPES), _some_pipe(activity)
    ]
    rows = [(key, title, share, counted) for one in every if one is not None for key, title, share, counted in [one]]
    return sorted(
        (Load(key, title, share, share * (t or float("nan")), counted) for key, title, share, counted in rows), key=lambda x: -x.share
    )


Row = tuple[str, str, float, str]


def _memory(a: Activity) -> Row | None:
    own = a.memory
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
    """L2 by its busiest part. `lts__throughput` is larger than any of them where data stream from the device memory: 91 % for a plain copy
    on an H200, whose parts are below 56 %. Where the parts towards the SMs were not collected it
    stands for them, at most at the device memory's share if that is near it."""
    parts = {n: v for n in L2_PARTS if (v := a.percent(n)) is not None}
    if all(n in parts for n in ("lts__t_sectors", "lts__lts2xbar_cycles_active", "lts__xbar2lts_cycles_active")):
        which = max(parts, key=lambda n: parts[n])
        return "l2", "L2", parts[which], f"{which}, of its peak"
    whole, memory = a.percent("lts__throughput"), a.memory
    if whole is not None and memory is not None and memory >= 0.75 * whole:
        whole = min(whole, memory)
    if whole is None:
        return None  # one idle part does not say that the others are
    return "l2", "L2", max(whole, *parts.values(), 0.0), "L2 throughput, of its peak"


def _l1(a: Activity) -> Row | None:
    names = (
        "l1tex__data_pipe_lsu_wavefronts", "l1tex__lsuin_requests", "l1tex__f_wavefronts", "l1tex__lsu_writeback_active",
        "l1tex__throughput"
    )
    percents = {n: v for n in names if (v := a.percent(n)) is not None}
    if not percents:
        return None
    if len(percents) == 1 and (queue := a.percent("sm__memory_throughput")) is not None:  # the pipes and queues that lead to L1
        percents["sm__memory_throughput"] = queue
    which = max(percents, key=lambda n: percents[n])
    shared, title = (a.shared_part or 0) > 0.5, "L1 and load/store unit"
    if shared:
        title = "shared memory (L1 wavefronts)"
    elif a.shared_part is None and (a.conflicts or 0) > 0.5:
        shared, title = True, "shared memory, as it seems by its conflicts"
    elif a.shared_part is None and _misses_alone(a, percents[which]):
        shared, title = True, "shared memory, as it seems: L1 has few hits and asks L2 for little"
    if a.operands:
        title += ", mostly the tensor cores' reads of their operands"
    return "shared" if shared else "l1", title, percents[which], f"{which}, of its peak"


def _misses_alone(a: Activity, share: float) -> bool:
    """Whether L1 is too busy for global memory: its accesses would hit, or be accesses of L2 too."""
    hits, l2 = a.kernel.get("l1tex__t_sector_hit_rate.pct"), a.percent("lts__throughput")
    return hits is not None and l2 is not None and hits < 50 and share >= 0.5 and l2 < share / 2


def _issue(a: Activity) -> Row | None:
    return None if a.issue is None else ("issue", "instruction issue", a.issue, "issue slots used")


def _pipe(a: Activity, key: str) -> Row | None:
    share = a.pipe(key)
    return None if share is None else (key, PIPES[key][0], share, "cycles or instructions of the pipe, of its peak")


def _some_pipe(a: Activity) -> Row | None:
    """The busiest arithmetic pipe where the pipes themselves were not collected, by the throughput of the SM: `sm`, or `tensor` where a
    name or wgmma's use of shared memory says so. That throughput is also that of the issue slots and of the load/store pipes: None where
    these explain it."""
    # barriers have a pipe too, which is not arithmetic
    if any(a.pipe(key) is not None for key in ("fma", "alu")) or next(iter(a.stalls), "") == "barrier":
        return None
    counter = "sm__instruction_throughput"
    share = a.percent(counter)
    if share is None:
        counter, share = "sm__throughput", a.percent("sm__throughput")
        others = [v for n in ("l1tex__throughput", "l1tex__lsuin_requests", "sm__memory_throughput") if (v := a.percent(n)) is not None]
        if share is not None and not a.operands and any(v >= 0.9 * share for v in others):
            return None
    if (
        share is None or (a.issue is not None and share <= a.issue + 0.02)
        or share <= max((a.pipe(key) or 0.0 for key in PIPES), default=0.0) + 0.02
    ):
        return None
    tensor = a.operands or (TENSOR_NAME.search(a.kernel.name) is not None and (a.issue or 0.0) < share / 2)
    title = "tensor cores, as it seems" if tensor else "a pipe of the SM; which one was not collected"
    return "tensor" if tensor else "sm", title, share, f"{counter}, of its peak"
