"""What bounds a kernel, by its counters: bound and runner-up, what is wasted, and what each lever may gain.

A resource bounds the kernel that needed at least BUSY of its time. If none did, it depends: SMs that stood empty for part of the time are
idle SMs; a kernel as short as an empty one is its launch; any other is latency, of the reason that warps wait for most. With a resource of
MAIN not collected the bound is
then unknown: that one may be it.

The limits below were set on kernels whose answer an experiment settled (experiments.py), and held to others that they had not seen.

A lever's gain is a range. Full overlap: the time falls to what the busiest resource then needs. Current overlap: it falls in the proportion
in which that need fell, as if the part that was not overlapped stayed so. Both stop at the next resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rooftop.lab.counters.diagnose.hierarchy import Hierarchy, hierarchy
from rooftop.lab.counters.diagnose.levers import Lever, Waste, levers, wastes
from rooftop.lab.counters.diagnose.reports import Kernel, Line, Rule
from rooftop.lab.counters.diagnose.resources import ACTIVE, ELAPSED, EMPTY_S, STALLS, Activity, Load, loads
from rooftop.lab.timing.roofline import Ceilings

BUSY = 0.7  # a resource used for less of the time does not bound the kernel
IDLE = 0.25  # SMs without a warp for more of the time after the launch than this on average: they are what bounds
HOT = 4.0  # times the mean that the busiest slice of L2 handles in atomics: the few addresses they go to are what bounds
SHORT_S = 4e-6  # a kernel this short may be its launch: under ncu an empty one shows 1 to 3 us
PIPE_OF_ISSUE = 0.8  # a pipe with this much of the issue slots is named rather than they
VERDICT = "SOLBottleneck"  # the rule of Nsight Compute that names what bounds
# of which each must have been collected before a kernel is said to be bound by none; shared memory counts as l1
MAIN = ("dram", "l2", "l1", "issue")
RESOURCES = {
    "dram": "device memory", "l2": "L2", "l1": "L1", "issue": "issue", "fma": "FMA pipe", "alu": "ALU pipe", "tensor": "tensor cores"
}
NEEDED = {  # what else the rules need -> the counters that give it
    "duration": ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpc__cycles_elapsed.max"),
    "active SMs": ("sm__cycles_active.avg",),
    "sectors of global accesses": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "derived__memory_l2_theoretical_sectors_global_excessive"
    ),
    "bank conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "derived__memory_l1_wavefronts_shared_excessive",
    ),
    "local memory": ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",),
    "stall reasons": tuple(f"{start}long_scoreboard{end}" for start, end in STALLS),
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
    sure: str  # clear (nothing is missing), close, weak
    ceiling_s: float | None  # what the busiest resource needs for what the kernel does now, at least an empty launch
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
    waves: float | None = None  # of blocks that run together, a multiprocessor
    sms: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(kernel: Kernel, ceilings: Ceilings | None = None, floor_s: float | None = None) -> Diagnosis:
    """`ceilings`: of the card, where they were measured; `floor_s`: the roof of the op's own work (rooftop.lab.timing.roofline)."""
    a = Activity(kernel, ceilings)
    resources = loads(a)
    bound, because, sure = _bound(a, resources)
    missing = tuple(_missing(a, resources))
    if missing and sure == "clear":
        sure = "close"
    others = [x for x in resources if x.key != bound and not (bound in ("fma", "alu", "tensor") and x.key == "issue")]
    waste = tuple(wastes(a, resources))
    return Diagnosis(
        kernel.name, kernel.grid, kernel.block, a.seconds, bound, because, others[0].key if others else None, sure,
        _ceiling(a, resources), floor_s, tuple(resources), waste, tuple(levers(a, resources, bound, waste)),
        missing,
        tuple(sorted((r for r in kernel.rules if r.speedup or r.name == VERDICT), key=lambda r: (r.name != VERDICT, -(r.speedup or 0)))),
        tuple(kernel.lines), kernel.case, hierarchy(a), kernel.texts.get("device__attribute_display_name", ""), a.waves, a.sms,
    )


def _missing(a: Activity, resources: list[Load]) -> Iterator[str]:
    """What was not collected, in words: the shares of resources, and the counters of wastes."""
    collected = _collected(resources)
    yield from (what for key, what in RESOURCES.items() if key not in collected)
    yield from (what for what, names in NEEDED.items() if a.kernel.get(*names) is None)


def _collected(resources: list[Load]) -> set[str]:
    return {"l1" if x.key == "shared" else x.key for x in resources}


def _ceiling(a: Activity, resources: list[Load]) -> float | None:
    if not resources or a.seconds is None:
        return None
    return max(resources[0].share * a.seconds, min(EMPTY_S, a.seconds))


def _bound(a: Activity, resources: list[Load]) -> tuple[str, str, str]:
    """Which, why, and how sure."""
    if not resources:
        return "unknown", "the report has no counter of any resource", "weak"
    top = _named(a, resources)
    collected = _collected(resources)
    absent = [key for key in MAIN if key not in collected]
    if not collected & {"fma", "alu", "sm"} and a.kernel.get("sm__throughput" + ELAPSED, "sm__instruction_throughput" + ACTIVE) is None:
        absent.append("pipes")
    if top.share >= BUSY or resources[0].share >= BUSY:
        rest = max((x.share for x in resources if x.key not in (top.key, resources[0].key, "issue")), default=0.0)
        sure = "clear" if top.share >= BUSY and top.share - rest >= 0.15 else "close"
        slots = (
            "" if top is resources[0] or resources[0].key != "issue"
            else f"; the issue slots are used for {resources[0].share:.0%}, most of them for it"
        )
        reads = "" if top is resources[0] or resources[0].key == "issue" else f"; it keeps {resources[0].title} busy for {resources[0].share:.0%}"
        because = f"{top.title} needs {top.share:.0%} of the time: {top.counted}{slots}{reads}"
        return top.key, because, sure if not absent or top.share >= 0.9 else "weak"
    if a.seconds is not None and a.seconds <= EMPTY_S:
        return "launch", f"{a.seconds * 1e6:.1f} us, no more than an empty kernel takes", "clear"
    if absent:
        return "unknown", f"{top.title} needs {top.share:.0%} of the time; not collected: {', '.join(absent)}", "weak"
    idle = _idle(a)
    if idle > IDLE and (a.seconds is None or a.seconds > SHORT_S):
        return (
            "idle",
            f"an SM has work for {1 - idle:.0%} of the time; while it has, {top.title} needs {min(1.0, top.share / (1 - idle)):.0%}",
            "clear"
        )
    if a.seconds is not None and a.seconds <= SHORT_S and top.share < BUSY / 2:
        return "launch", f"{a.seconds * 1e6:.1f} us, about what an empty kernel takes", "clear" if a.seconds <= SHORT_S / 2 else "close"
    if (a.hottest or 0.0) >= HOT and (a.atomics or 0.0) >= 0.5:
        few = f"atomics, {a.atomics:.0%} of L2's sectors, go to few addresses: its busiest slice handles {a.hottest:.0f} times the mean"
        return "l2", few, "close"
    reason = next((n for n in a.stalls if n not in ("selected", "not_selected")), None)
    said = "" if reason is None else f"; warps wait for {reason} most ({a.stalls[reason]:.0%} of their cycles)"
    return (
        "latency", f"no resource needs {BUSY:.0%} of the time (most: {top.title}, {top.share:.0%}){said}", "clear"
        if top.share < BUSY - 0.15 else "close"
    )


def _idle(a: Activity) -> float:
    """The part of the time without work, by the SMs' cycles, else by blocks fewer than SMs."""
    if a.idle is not None:
        return min(a.idle, 0.999)
    return max(0.0, 1 - a.blocks / a.sms) if a.blocks is not None and a.sms else 0.0


def _named(a: Activity, resources: list[Load]) -> Load:
    """The busiest resource; a pipe in place of the issue slots that its instructions fill, and the tensor cores in place of shared memory
    that they read."""
    top = resources[0]
    if top.key == "issue":
        return next((x for x in resources if x.key in ("fma", "alu", "xu", "tensor", "fp64") and x.share >= PIPE_OF_ISSUE * top.share), top)
    if top.key in ("l1", "shared") and a.operands:
        return next((x for x in resources if x.key == "tensor"), top)
    return top


def longest(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Kernels by their time, the longest first."""
    return sorted(diagnoses, key=lambda d: -(d.seconds or 0))
