"""What a kernel wastes, and what removing it may gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from rooftop.lab.counters.diagnose.resources import EMPTY_S, Activity, Load

SECTOR = 32  # bytes
WIDEST = 16  # sectors that hold the 512 bytes of a warp's widest access
USED = 0.3  # a waste at a resource less busy than this is no lever against latency
# of a gain's logarithm at the range's low end: so much was left of half of the levers that experiments pulled (docs/profiling.md)
KEPT = 0.65
WIDEST_RANGE = 3.0  # a prediction whose ends are this factor apart says nothing
ATOMIC = 0.2  # the part of L2's sectors from which atomics are a waste to name
REUSE = 2.0  # how often a byte must have been loaded on average before reuse on chip is a lever
WORTH = 0.05  # wastes below this part are not listed
LIMITERS = {
    "registers": "registers", "shared_mem": "shared memory", "warps": "warps a block", "blocks": "blocks an SM", "barriers": "barriers",
}
REASONS = {  # stall reason -> what the warps wait for, and what helps
    "long_scoreboard": (
        "data from L2 or the device memory", "more loads in flight: several independent loads a thread before the first use, or more warps"
    ),
    "short_scoreboard": (
        "data from shared memory or the special-function unit", "fewer and wider shared accesses, values kept in registers"
    ),
    "barrier": (
        "the other warps at __syncthreads", "fewer barriers, smaller blocks, or double buffering so that one barrier a step is left"
    ),
    "mio_throttle": ("a place in the queue of shared-memory and special instructions", "fewer and wider shared accesses"),
    "lg_throttle": ("a place in the queue of global accesses", "fewer and wider loads and stores (128 bits a thread)"),
    "math_pipe_throttle": ("a busy arithmetic pipe", "fewer instructions of that pipe"),
    "wait": ("the fixed latency of the instruction before", "more independent instructions a thread, or more warps"),
    "no_instruction": ("instructions to be fetched", "a smaller loop body, less unrolling"),
    "branch_resolving": ("a branch to be resolved", "fewer branches"),
    "gmma": ("a wgmma to end", "more wgmmas in flight"),
    "membar": ("a memory fence", "fewer fences"),
    "drain": ("stores to leave at the kernel's end", "fewer scattered stores before the exit"),
    "imc_miss": ("constants to be fetched", "parameters read before the loop"),
    "sleeping": ("a nanosleep", "shorter sleeps"),
    "dispatch_stall": ("the dispatcher", "fewer register bank conflicts"),
    "tex_throttle": ("a place in the texture queue", "fewer texture accesses"),
    "misc": ("other causes", "a look at the source lines"),
}


@dataclass(frozen=True)
class Waste:
    """`part` of what was done at `resource` need not be; None: it is a state, such as a low occupancy, that is no part of a resource."""

    key: str
    resource: str
    part: float | None
    text: str


@dataclass(frozen=True)
class Lever:
    """`low`, `high`: the time before over that after, with the overlap of now (less what is usually lost) and with full overlap; both None
    where they are WIDEST_RANGE or more apart, or the counters do not say. `then`: what bounds afterwards; `moves`: counters."""

    key: str
    text: str
    low: float | None
    high: float | None
    then: str
    moves: tuple[str, ...]


def wastes(a: Activity, resources: Sequence[Load]) -> Iterator[Waste]:
    """The ledger. What was not collected is not in it."""
    k = a.kernel
    keys = [x.key for x in resources]
    memory = next((key for key in keys if key in ("dram", "l2", "l1")), "l1")  # the busiest level that global accesses go through
    total = a.global_sectors
    for op, word in (("ld", "loads"), ("st", "stores")):
        used = k.get(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio")
        sectors = k.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum")
        if used is not None and sectors and total and 0 < used < SECTOR and (part := (1 - used / SECTOR) * sectors / total) >= WORTH:
            yield Waste(f"sectors_{op}", memory, part, f"global {word} use {used:.1f} of the {SECTOR} bytes of a sector")
        requests = k.get(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum")
        if used is None and sectors and total and requests and (part := (1 - WIDEST * requests / sectors) * sectors / total) >= WORTH:
            each = f"{sectors / requests:.1f} sectors for an access of a warp, where {WIDEST} hold 128 bits a thread"
            yield Waste(f"sectors_{op}", memory, part, f"global {word} take {each}")
    if total is None and (
        part := a.ratio("derived__memory_l2_theoretical_sectors_global_excessive", "memory_l2_theoretical_sectors_global") or 0.0
    ) >= WORTH:
        yield Waste("sectors_ld", memory, part, f"{part:.0%} of the sectors of global accesses need not be (Nsight Compute's count)")
    if (part := a.atomics or 0.0) >= ATOMIC:
        hot = (
            "" if a.hottest is None or a.hottest < 2 else f"; the busiest slice of L2 handles {a.hottest:.0f} times the mean: few addresses"
        )
        yield Waste("atomics", "l2", part, f"atomics are {part:.0%} of the sectors at L2{hot}")
    if a.conflicts is not None and a.conflicts >= WORTH:
        own = a.conflicts * (a.shared_part if a.shared_part is not None else 1.0)
        if own >= WORTH:
            level = "shared" if "shared" in keys else "l1"
            yield Waste(
                "conflicts", level, min(own, 1.0), f"bank conflicts are {min(a.conflicts, 1):.0%} of the wavefronts of shared memory"
            )
    mine = a.kernel.get("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum")
    if mine and (whole := a.shared("pipe_lsu_wavefronts")) and (part := mine / whole * (a.shared_part or 1.0)) >= ATOMIC:
        yield Waste(
            "atomics_shared", "shared" if "shared" in keys else "l1", part,
            f"atomics are {mine / whole:.0%} of the wavefronts of shared memory"
        )
    if a.local_sectors and total is not None and (part := a.local_sectors / (a.local_sectors + total)) >= WORTH:
        level = "l1" if "l1" in keys else memory
        yield Waste("spills", level, part, f"local memory (spilled registers, arrays) is {part:.0%} of the sectors at L1")
    lanes = k.get("smsp__thread_inst_executed_per_inst_executed.ratio")
    if lanes is not None and (part := 1 - lanes / 32) >= WORTH:
        yield Waste("divergence", "issue", part, f"{lanes:.1f} of 32 lanes are at work in an instruction")
    yield from _states(a)


def _states(a: Activity) -> Iterator[Waste]:
    k = a.kernel
    if a.idle is not None and a.idle >= 0.1:
        why = ""
        if a.blocks is not None and a.sms is not None and a.blocks < a.sms:
            why = f": {a.blocks:.0f} blocks on {a.sms:.0f} SMs"
        elif _tail(a) is not None:
            why = f": {a.waves:.2f} waves, the last of them not full"
        yield Waste("idle", "idle", a.idle, f"SMs stand empty for {a.idle:.0%} of the time{why}")
    elif a.idle is None and (part := _tail(a)) is not None:
        yield Waste("idle", "idle", part, f"{a.waves:.2f} waves, the last of them not full: up to {part:.0%} of the time")
    occupancy, possible = k.get("sm__warps_active.avg.pct_of_peak_sustained_active"), k.get("sm__maximum_warps_per_active_cycle_pct")
    if occupancy is not None and occupancy < 50:
        limit = limiter(a)
        by = f"; {limit} allow {possible:.0f} %" if limit and possible is not None and possible < 80 else ""
        yield Waste("occupancy", "latency", None, f"occupancy {occupancy:.0f} %{by}")
    for reason, part in list(a.stalls.items())[:3]:
        if reason in REASONS and part >= 0.2:
            yield Waste(f"stall_{reason}", "latency", None, f"{part:.0%} of a warp's cycles wait for {REASONS[reason][0]} ({reason})")


def _tail(a: Activity) -> float | None:
    """The part of the SMs' time in which the last wave leaves them empty, if all blocks take equally long; None where that is little."""
    part = 0.0 if a.waves is None or a.waves <= 1 else 1 - a.waves / ceil(a.waves)
    return part if part >= 0.1 else None


def limiter(a: Activity) -> str | None:
    """What allows the fewest blocks an SM."""
    limits = {n: v for n in LIMITERS if (v := a.kernel.get(f"launch__occupancy_limit_{n}")) is not None}
    return LIMITERS[min(limits, key=lambda n: limits[n])] if limits else None


def levers(a: Activity, resources: Sequence[Load], bound: str, waste: Sequence[Waste]) -> list[Lever]:
    """What helps, the largest gain first. A waste at a resource that does not bound is none: removing it alone changes little."""
    every = [*_of_wastes(a, resources, bound, waste), *_of_bound(a, resources, bound)]
    worth = [x for x in every if x.high is None or x.high >= 1 + WORTH / 2]
    return sorted(worth, key=lambda x: -(x.high or WIDEST_RANGE))


_HOW = {
    "sectors_ld": (
        "let neighbouring threads read neighbouring addresses",
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio up to 32",)
    ),
    "sectors_st": (
        "let neighbouring threads write neighbouring addresses (through shared memory)",
        ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum down",)
    ),
    "conflicts": ("pad or swizzle the shared tile", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum to 0",)),
    "spills": ("keep fewer values live, or allow more registers (launch bounds)", ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum to 0",)),
    "atomics": (
        "combine values before the atomic (in registers, by warp shuffles, then in shared memory), or give each block an address of its own",
                ("lts__t_sectors_op_red.sum down", "lts__t_sectors_op_atom.sum down")),
    "atomics_shared": ("combine values in registers or by warp shuffles before the atomic, or give each warp a copy in shared memory",
                       ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum down",)),
    "divergence": ("let the lanes of a warp take the same path", ("smsp__thread_inst_executed_per_inst_executed.ratio up to 32",)),
}


_TOUCHED = {  # waste -> all the resources that it burdens in the same proportion, beside the one it is listed at
    "divergence": ("issue", "fma", "alu", "xu"), "spills": ("l1", "l2", "dram"), "sectors_ld": ("l1", "l2"), "sectors_st": ("l1", "l2"),
    "atomics": ("l2", "latency"), "atomics_shared": ("shared", "l1", "latency"),
}


def _of_wastes(a: Activity, resources: Sequence[Load], bound: str, waste: Sequence[Waste]) -> Iterator[Lever]:
    shares = {x.key: x.share for x in resources}
    for w in waste:
        touched = {w.resource, *_TOUCHED.get(w.key, ())}
        waits = bound == "latency" and max((shares.get(key, 0.0) for key in touched), default=0.0) >= USED
        if w.part is None or w.key not in _HOW or not (bound in touched or waits):
            continue
        if w.key.startswith("atomics"):  # how long one waits for another at the same address, no counter shows
            yield Lever(w.key, _HOW[w.key][0], None, None, resources[0].key, _HOW[w.key][1])
            continue
        after = {x.key: x.share * (1 - w.part) if x.key in touched else x.share for x in resources}
        yield _lever(a, w.key, *_HOW[w.key], resources, after, proportional=bound in touched)


def _lever(
    a: Activity, key: str, text: str, moves: tuple[str, ...], resources: Sequence[Load], after: dict[str, float], proportional: bool
) -> Lever:
    then = max(after, key=lambda n: after[n])
    most = max(after[then], 1e-3)
    low = min(1.0, resources[0].share) / most if proportional else 1.0
    return _ranged(a, key, text, low, 1 / min(1.0, most), then, moves)


def _ranged(a: Activity, key: str, text: str, low: float, high: float, then: str, moves: tuple[str, ...]) -> Lever:
    """The lever with its range: no time after it is below that of an empty launch, and a range too wide is none."""
    fastest = float("inf") if a.seconds is None else max(1.0, a.seconds / EMPTY_S)
    if high > fastest:
        high, then = fastest, "launch"
    low, high = max(1.0, min(low, high)) ** KEPT, max(1.0, high)
    narrow = high < WIDEST_RANGE * low
    return Lever(key, text, low if narrow else None, high if narrow else None, then, moves)


def _of_bound(a: Activity, resources: Sequence[Load], bound: str) -> Iterator[Lever]:
    top = max((x.share for x in resources), default=1.0)
    second = next((x for x in resources if x.key != bound and x.key != "issue"), None)
    if bound == "idle":
        small = a.blocks is not None and a.sms is not None and a.blocks < a.sms
        text = (
            "cut the work into more blocks: the grid is smaller than the card" if small
            else "even out the blocks: smaller ones, or a persistent kernel"
        )
        active = a.active if a.active is not None else a.waves or 1.0
        by_waves = ceil(a.waves) / a.waves if a.waves and a.waves > 1 else 1.0
        by_active = 1 / max(active, top, 1e-3)
        yield _ranged(a, "grid", text, min(by_waves, by_active), by_active, resources[0].key if resources else "", ("sm__cycles_active.avg up",))
    if bound == "latency":
        reason = next((n for n in a.stalls if n in REASONS), None)
        what = f"hide the latency: {REASONS[reason][1]}" if reason else "hide the latency: more warps or more independent work a thread"
        moves = () if reason is None else (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio down",)
        yield _ranged(a, "latency", what, 1.0, 1 / max(top, 1e-3), resources[0].key if resources else "", moves)
    if bound == "launch":
        text = "join it with its neighbours, or launch through a CUDA graph"
        # what the launch costs, the kernel's own time does not show
        yield Lever("launch", text, None, None, "launch", ("gpu__time_duration.sum",))
    wide = _narrow(a)
    if bound in ("l1", "issue") and wide is not None:
        after = {x.key: x.share / wide if x.key in ("l1", "issue") else x.share for x in resources}
        yield _lever(
            a, "wider", "load and store 128 bits a thread", ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum down",), resources, after, True
        )
    if bound in ("l1", "l2") and (a.shared_part or 0) < 0.05 and second is not None and (a.reused or 0.0) >= REUSE and top >= USED:
        times = min(4.0, a.reused or 1.0)
        after = {x.key: x.share / times if x.key == bound else x.share for x in resources}
        yield _lever(a, "reuse",
                     f"keep loaded values on chip: a byte of the device memory is loaded {a.reused:.1f} times; tiles in shared memory or "
                     f"registers "
                     f"(here: 1/{times:.2g} of the accesses)",
                     ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum down",), resources, after, True)
    if bound == "shared" and not a.operands:
        after = {x.key: x.share / 2 if x.key == bound else x.share for x in resources}
        yield _lever(a, "register_tile",
                     "use each value read from shared memory more often: larger tiles in registers (here: half of the accesses)",
                     ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum down",), resources, after, True)
    if (share := next((x.share for x in resources if x.key == bound), None)) is not None and share >= USED:
        text = f"the same work with no gaps: what is left to this resource's ceiling ({share:.0%} of it is reached)"
        yield _ranged(a, "overlap", text, 1.0, 1 / min(1.0, max(share, 1e-3)), bound, ())


def _narrow(a: Activity) -> float | None:
    """By how much fewer global accesses would do if each were of 128 bits, or None."""
    requests = [a.kernel.get(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum") for op in ("ld", "st")]
    used = a.kernel.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio")
    if None in requests or a.global_sectors is None or (used is not None and used < SECTOR * 0.9):
        return None
    sectors = a.global_sectors / max(sum(r for r in requests if r is not None), 1.0)
    return 16 / sectors if 0 < sectors < 12 else None
