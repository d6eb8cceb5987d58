"""The tier below the counters: what a record's times, their growth with the size, the machine code and the simulator say of a kernel at a
case.

No GPU is needed, and no counter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rooftop.core.spec import Case
from rooftop.lab.candidates import Subject
from rooftop.lab.counters.diagnose import sizes
from rooftop.lab.counters.diagnose.show import plain, time
from rooftop.lab.records.store import Record
from rooftop.lab.timing.roofline import Ceilings, Roof

REACHED = 0.6  # of the roof: below this the op's own work does not bound the kernel
OFF = 0.25  # times that are farther from the line through the sizes follow none
LOST = 1.1  # accesses that take more than this times the fewest are named


@dataclass(frozen=True)
class Without:
    """`seconds`: the median of the kernel clock, None where no fresh record is; `bound`: memory, a unit, launch, or unknown."""

    subject: str
    case: str
    card: str
    seconds: float | None
    cold_over_kernel: float | None
    roof: Roof | None
    bound: str
    because: str
    hints: tuple[str, ...]  # of the machine code
    kernels: tuple[Mapping[str, Any], ...]
    sizes: sizes.Sizes | None = None  # the recorded times of all sizes
    simulated: Any = None  # a RungCounts (rooftop.lab.report.rung_counts): accesses that the simulator counted, of the case that it names

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(subject: Subject, case: Case, target: int | str, records: Sequence[Record], simulated: Any = None) -> Without:
    """`simulated`: what the simulator counted. Raises ValueError for a target that is none, or a case that the kernel does not take."""
    from rooftop.core.devices import lookup, slug
    from rooftop.lab.inspect import inspector

    device = inspector.device_of(target)
    facts = inspector.facts_of(subject, case, target)
    if "refused" in facts:
        raise ValueError(f"{subject.name} at {case.id}: {facts['refused']}")
    here = slug(device.name)
    measured = [r for r in records if r.kind == "bench" and (r.subject, r.case, slug(r.card)) == (subject.name, case.id, here)]
    now = subject.identity(case, device)
    fresh = [r for r in measured if now.made(r)]
    record = max(fresh, key=lambda r: r.at, default=None)
    clocks = record.clocks if record else {}
    seconds = clocks["kernel"].median if "kernel" in clocks else None
    cold = clocks["cold"].median / seconds if seconds and "cold" in clocks else None
    work = subject.op.work(subject.op.problem(case, device))
    ceilings = Ceilings.from_records(records, device.name, lookup(device.name))
    roof = ceilings.roof(work.read, work.write, work.ops)
    bound, because = _bound(seconds, roof, stale=bool(measured) and record is None)
    hints = tuple(h for k in facts["kernels"] for h in hints_of(k, device.sms))
    grown = sizes.of(subject, case, device, records, ceilings)
    return Without(
        subject.name, case.id, device.name, seconds, cold, roof, bound, because, hints, tuple(facts["kernels"]), grown, simulated
    )


def _bound(seconds: float | None, roof: Roof, stale: bool) -> tuple[str, str]:
    if seconds is None:
        why = "its records are of other code than this" if stale else "there is no record of it"
        return "unknown", f"not timed on this card: {why} (rooftop bench)"
    reached = roof.seconds / seconds
    if reached >= REACHED:
        return roof.bound, f"{reached:.0%} of the roof that {roof.bound} sets"
    return (
        "unknown",
        f"{reached:.0%} of the roof that {roof.bound} sets is reached: excess traffic, another resource, or latency; counters tell which"
    )


def hints_of(kernel: Mapping[str, Any], sms: int) -> Iterator[str]:
    """What the machine code shows that often costs time."""
    if kernel["spills"]:
        yield f"{kernel['spills']} bytes of local memory a thread (spilled registers, or arrays indexed at run time)"
    held = kernel["occupancy"]
    if held["percent"] < 50:
        yield f"occupancy {held['percent']:.0f} %, limited by {held['limiter']}"
    blocks = 1
    for n in kernel["grid"]:
        blocks *= n
    at_once = held["blocks"] * sms
    if blocks < sms:
        yield f"{blocks} blocks on {sms} SMs: {1 - blocks / sms:.0%} of the card stand empty"
    elif held["blocks"] and blocks > at_once and (lost := 1 - blocks / at_once / -(-blocks // at_once)) > 0.15:
        yield f"{blocks / at_once:.2f} waves of {at_once} blocks: {lost:.0%} of the time is the last wave's empty places"
    loop = kernel["loop"] or kernel["counts"]
    reads = {n: c for n, c in loop.items() if n.startswith(("LDG", "LDS"))}
    if reads and not any("128" in n for n in reads):
        yield f"no load of 128 bits in the hottest loop ({', '.join(f'{c} {n}' for n, c in reads.items())})"
    arithmetic = sum(c for n, c in loop.items() if n.startswith(("FFMA", "HMMA", "HGMMA", "IMMA", "QGMMA")))
    total = sum(loop.values())
    if arithmetic and total and arithmetic / total < 0.6:
        yield f"{arithmetic} of {total} instructions of the hottest loop are multiply-adds; the others take issue slots"


def screen(w: Without) -> str:
    clock = f"{time(w.seconds)} (kernel clock)" if w.seconds else "not measured"
    lines = [f"{w.subject} · {w.case} · {w.card} · without counters", f"  time       {clock}"]
    lines.append(f"  bound by   {w.bound}: {w.because}")
    if w.roof is not None:
        lines.append(
            f"  floor      {time(w.roof.seconds)} ({w.roof.bound}): " + ", ".join(f"{n} {time(s)}" for n, s in w.roof.parts.items())
        )
        lines += [f"             assumed: {plain(a)}" for a in w.roof.assumed]
    if w.cold_over_kernel is not None:
        lines.append(f"  cold call  {w.cold_over_kernel:.2f} times the kernel clock")
    lines += _grown(w)
    lines += _counted(w)
    lines.append("  machine code" + ("" if w.hints else ": nothing that stands out"))
    lines += [f"    {plain(h)}" for h in w.hints]
    for k in w.kernels:
        lines.append(
            f"    {plain(k['kernel'], 60)}: {k['registers']} registers, {k['shared']} bytes shared, occupancy "
            f"{k['occupancy']['percent']:.0f} %"
        )
    lines.append("  counters   not collected: rooftop profile --with ncu, then rooftop diagnose the report")
    return "\n".join(lines)


def _grown(w: Without) -> Iterator[str]:
    fit = w.sizes
    if fit is None:
        yield f"  sizes      not told apart: too few fresh records of this dtype (at least {sizes.FEWEST}, over a span of {sizes.SPAN:g})"
        return
    span = f"{len(fit.points)} recorded sizes, {time(fit.points[0].seconds)} to {time(fit.points[-1].seconds)}"
    if fit.off > OFF:
        yield f"  sizes      {span}: no line fits them (half are off by {fit.off:.0%} or more): the work's shape counts, not its size alone"
        return
    here = f", {fit.fixed_share(w.seconds):.0%} of the time here" if w.seconds and fit.fixed_s else ""
    fixed = time(fit.fixed_s) if fit.fixed_s else "no"
    yield f"  sizes      {span}: {fixed} fixed cost{here}, then {fit.slope:.2f} times the roof (off by {fit.off:.0%})"


def _counted(w: Without) -> Iterator[str]:
    """The simulator's counts, named as such."""
    counts = w.simulated
    if counts is None:
        yield "  simulator  does not run this kernel"
        return
    if counts.why:
        yield f"  simulator  not counted: {plain(counts.why, 120)}" + ("; diagnose --count counts it" if counts.case else "")
        return
    yield f"  from the simulator, at {counts.case}, {counts.blocks} of {counts.grid_blocks} blocks"
    for name, value in counts.values.items():
        ideal = counts.ideals.get(name)
        if ideal is None:
            yield f"    {name} {value:.3g}"
        else:
            yield f"    {name} {value:.3g}, {ideal:.3g} at the least" + (
                f": {value / ideal:.1f} times that" if ideal and value / ideal > LOST else ""
            )
    for x in counts.lines:
        yield f"    {plain(x.file, 60)}:{x.line}: {x.what} takes {x.found:.1f} {x.unit} a request, {x.ideal:.1f} at the least"
