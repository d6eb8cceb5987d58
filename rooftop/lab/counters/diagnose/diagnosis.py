"""What bounds a kernel, by its counters: bound and runner-up, what is wasted, and what each lever may gain.

A resource bounds the kernel that needed at least BUSY of its time. If none did, it depends: SMs that stood empty for part of the time are idle SMs; a kernel
as short as an empty one is its launch; any other is latency, of the reason that warps wait for most. With a resource of MAIN not collected the bound is
then unknown: that one may be it.

The limits below were set on kernels whose answer an experiment settled (experiments.py), and held to others that they had not seen.

A lever's gain is a range. Full overlap: the time falls to what the busiest resource then needs. Current overlap: it falls in the proportion in which that
need fell, as if the part that was not overlapped stayed so. Both stop at the next resource."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rooftop.lab.counters.diagnose.hierarchy import Hierarchy, hierarchy
from rooftop.lab.counters.diagnose.levers import Lever, Waste, levers, wastes
from rooftop.lab.counters.diagnose.reports import Kernel, Line, Rule
from rooftop.lab.counters.diagnose.resources import Activity, Load, loads
from rooftop.lab.timing.roofline import Ceilings

BUSY = 0.7  # a resource used for less of the time does not bound the kernel
IDLE = 0.75  # SMs active for less of the time than this on average: they are what bounds
SHORT_S = 4e-6  # a kernel this short may be its launch: under ncu an empty one shows 1 to 3 us
PIPE_OF_ISSUE = 0.8  # a pipe with this much of the issue slots is named rather than they
VERDICT = "SOLBottleneck"  # the rule of Nsight Compute that names what bounds
MAIN = ("dram", "l2", "l1", "issue")  # of which each must have been collected before a kernel is said to be bound by none; shared memory counts as l1
NEEDED = {  # what the rules need -> a counter that gives it
    "duration": ("gpu__time_duration.sum", "gpc__cycles_elapsed.max"),
    "device memory": ("dram__bytes_read.sum", "dram__bytes.sum.per_second", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    "L2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),
    "L1": ("l1tex__throughput.avg.pct_of_peak_sustained_elapsed", "l1tex__throughput.avg.pct_of_peak_sustained_active"),
    "issue": ("sm__inst_issued.avg.pct_of_peak_sustained_elapsed", "smsp__issue_active.avg.per_cycle_active"),
    "active SMs": ("sm__cycles_active.avg",),
    "sectors of global accesses": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "bank conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "local memory": ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",),
    "stall reasons": ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",),
    "FMA pipe": ("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed",),
    "tensor cores": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed"),
}


@dataclass(frozen=True)
class Diagnosis:
    """Of one kernel. `bound` is a resource's key, `idle`, `launch`, `latency`, or `unknown` where the counters do not say."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    seconds: float | None
    bound: str
    because: str
    runner_up: str | None
    sure: str  # clear, close, weak
    ceiling_s: float | None  # what the busiest resource needs for what the kernel does now
    floor_s: float | None  # what the op needs at least, where it was given
    loads: tuple[Load, ...]
    wastes: tuple[Waste, ...]
    levers: tuple[Lever, ...]
    missing: tuple[str, ...]
    rules: tuple[Rule, ...] = field(default=())  # Nsight Compute's own: its verdict first, then by its estimate
    lines: tuple[Line, ...] = field(default=())  # source lines, where the report has them
    case: str = ""
    hierarchy: Hierarchy | None = None  # the roofline of each level of the memory
    card: str = ""  # as the report names it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(kernel: Kernel, ceilings: Ceilings | None = None, floor_s: float | None = None) -> Diagnosis:
    """`ceilings`: of the card, where they were measured; `floor_s`: the roof of the op's own work (rooftop.lab.timing.roofline)."""
    a = Activity(kernel, ceilings)
    found = loads(a)
    bound, because, sure = _bound(a, found)
    others = [x for x in found if x.key != bound and not (bound in ("fma", "alu", "tensor") and x.key == "issue")]
    waste = tuple(wastes(a, found))
    return Diagnosis(
        kernel.name, kernel.grid, kernel.block, a.seconds, bound, because, others[0].key if others else None, sure,
        found[0].share * a.seconds if found and a.seconds else None, floor_s, tuple(found), waste, tuple(levers(a, found, bound, waste)),
        tuple(what for what, names in NEEDED.items() if kernel.get(*names) is None),
        tuple(sorted((r for r in kernel.rules if r.speedup or r.name == VERDICT), key=lambda r: (r.name != VERDICT, -(r.speedup or 0)))),
        tuple(kernel.lines), kernel.case, hierarchy(a), kernel.texts.get("device__attribute_display_name", ""),
    )  # fmt: skip


def _bound(a: Activity, found: list[Load]) -> tuple[str, str, str]:
    """Which, why, and how sure."""
    if not found:
        return "unknown", "the report has no counter of any resource", "weak"
    top = _named(found)
    collected = {"l1" if x.key == "shared" else x.key for x in found}
    absent = [key for key in MAIN if key not in collected]
    if found[0].share >= BUSY:
        rest = max((x.share for x in found if x.key not in (top.key, "issue")), default=0.0)
        sure = "clear" if top.share >= BUSY and top.share - rest >= 0.15 else "close"
        slots = "" if top is found[0] else f"; the issue slots are used for {found[0].share:.0%}, most of them for it"
        return top.key, f"{top.title} needs {top.share:.0%} of the time: {top.counted}{slots}", sure if not absent or top.share >= 0.9 else "weak"
    if absent:
        return "unknown", f"{top.title} needs {top.share:.0%} of the time; not collected: {', '.join(absent)}", "weak"
    if a.active is not None and a.active < IDLE and (a.seconds is None or a.seconds > SHORT_S):
        return "idle", f"an SM has work for {a.active:.0%} of the time; while it has, {top.title} needs {min(1.0, top.share / a.active):.0%}", "clear"
    if a.seconds is not None and a.seconds <= SHORT_S and top.share < BUSY / 2:
        return "launch", f"{a.seconds * 1e6:.1f} us, about what an empty kernel takes", "clear" if a.seconds <= SHORT_S / 2 else "close"
    reason = next((n for n in a.stalls if n not in ("selected", "not_selected")), None)
    said = "" if reason is None else f"; warps wait for {reason} most ({a.stalls[reason]:.0%} of their cycles)"
    return "latency", f"no resource needs {BUSY:.0%} of the time (most: {top.title}, {top.share:.0%}){said}", "clear" if top.share < BUSY - 0.15 else "close"


def _named(found: list[Load]) -> Load:
    """The busiest resource; a pipe in place of the issue slots that its instructions fill."""
    top = found[0]
    if top.key == "issue":
        return next((x for x in found if x.key in ("fma", "alu", "xu", "tensor", "fp64") and x.share >= PIPE_OF_ISSUE * top.share), top)
    return top


def longest(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Kernels by their time, the longest first."""
    return sorted(found, key=lambda d: -(d.seconds or 0))
