"""A diagnosis on one terminal screen, and two of them side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rooftop.lab.counters.diagnose.diagnosis import Diagnosis
from rooftop.lab.counters.diagnose.pairs import Pair

WIDTH = 110
BAR = 24
MOST = 20  # kernels that a summary lists
SAME = 0.02  # times this close show no change
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain(text: str, width: int = WIDTH) -> str:
    """One line without control characters: a kernel's name comes from outside."""
    text = CONTROL.sub("?", text)
    return text if len(text) <= width else text[: width - 3] + "..."


def time(seconds: float | None) -> str:
    if seconds is None or seconds != seconds:
        return "not collected"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def screen(d: Diagnosis) -> str:
    return "\n".join(_lines(d))


def _lines(d: Diagnosis) -> Iterator[str]:
    yield plain(d.name)
    grid, block = ("x".join(map(str, s)) or "?" for s in (d.grid, d.block))
    waves = "" if d.waves is None else f" · {d.waves:.3g} waves" + ("" if d.sms is None else f" on {d.sms:.0f} SMs")
    yield f"  grid {grid} · block {block}{waves} · {time(d.seconds)} under the profiler" + (f" · {plain(d.case, 40)}" if d.case else "")
    yield f"  bound by   {d.bound} ({d.sure}): {d.because}"
    second = next((x for x in d.loads if x.key == d.runner_up), None)
    yield "  runner-up  " + (f"{second.key}: {second.title} needs {second.share:.0%}" if second else "not collected")
    floor = f"; the op's floor is {time(d.floor_s)}" if d.floor_s is not None else ""
    yield f"  ceiling    {time(d.ceiling_s)} for what it does now{floor}"
    yield ""
    for x in d.loads:
        filled = round(min(1.0, max(0.0, x.share)) * BAR)
        yield f"  {x.key:7} {'#' * filled:{BAR}} {x.share:5.0%}  {time(x.seconds):>8}  {plain(x.counted, 60)}"
    yield ""
    yield "  waste" + ("" if d.wastes else ": none that was collected")
    for w in d.wastes:
        part = "     " if w.part is None else f"{w.part:5.0%}"
        yield f"   {part} of {w.resource:8} {plain(w.text, 84)}" if w.part is not None else f"         {'':11}{plain(w.text, 84)}"
    yield "  try" + ("" if d.levers else ": nothing that the counters name")
    for n, lever in enumerate(d.levers[:5], 1):
        yield f"   {n}. {plain(lever.text, 100)}"
        moves = f"; should move: {', '.join(lever.moves)}" if lever.moves else ""
        yield plain(f"      {gain(lever.low, lever.high)}, then {lever.then} bounds{moves}", WIDTH + 20)
    for rule in d.rules[:3]:
        said = "" if rule.speedup is None else f"est. {rule.speedup:.0f} %{f' {rule.scope}' if rule.scope else ''}: "
        yield plain(f"  ncu's rule {rule.name}: {said}{rule.text}", WIDTH)
    for line in d.lines[:3]:
        yield plain(
            f"  {line.part:4.0%} of {'the stalls' if line.unit == 'stalled' else 'the instructions'} at {line.file}:{line.line}", WIDTH
        )
    if d.missing:
        yield plain("  not collected: " + ", ".join(d.missing), 200)


def gain(low: float | None, high: float | None) -> str:
    """As `+20 % to +55 %` of speed."""
    if low is None or high is None:
        return "gain unknown"
    a, b = (f"{100 * (x - 1):+.0f} %" for x in (low, high))
    return f"expect {a}" if a == b else f"expect {a} to {b}"


def summary(diagnoses: Sequence[Diagnosis], most: int = MOST) -> str:
    """A line for each kernel of a report, the longest first, with its part of the time."""
    total = sum(d.seconds or 0 for d in diagnoses)
    lines = [f"{len(diagnoses)} kernels, {time(total)} in all"]
    for d in diagnoses[:most]:
        part = f"{(d.seconds or 0) / total:4.0%}" if total else "    "
        lines.append(f"  {part}  {time(d.seconds):>9}  {d.bound:8} {plain(d.case or d.name, 80)}")
    if len(diagnoses) > most:
        lines.append(f"  and {len(diagnoses) - most} more (--kernel NAME picks one)")
    return "\n".join(lines)


def differences(pairs: Sequence[Pair]) -> str:
    """Before and after a change: a line for each kernel if there are several, then what changed in the one whose time changed most."""
    both = [(p.before, p.after) for p in pairs if p.before is not None and p.after is not None]
    parts = []
    if len(pairs) > 1:
        totals = [sum((d.seconds or 0) * p.launches for p in pairs if (d := getattr(p, side)) is not None) for side in ("before", "after")]
        lines = [f"{len(pairs)} kernels, {time(totals[0])} -> {time(totals[1])} in all{_times(totals[0], totals[1])}"]
        for p in pairs[:MOST]:
            name = plain((p.after or p.before).case or (p.after or p.before).name, 70)  # type: ignore[union-attr]
            ends = [time(d.seconds) if d is not None else "-" for d in (p.before, p.after)]
            bounds = [d.bound if d is not None else "-" for d in (p.before, p.after)]
            ratio = (
                _times(p.before.seconds, p.after.seconds)
                if p.before is not None and p.after is not None
                else " only after"
                if p.before is None
                else " only before"
            )
            said = bounds[0] if bounds[0] == bounds[1] else f"{bounds[0]} -> {bounds[1]}"
            lines.append(f"  {ends[0]:>9} -> {ends[1]:>9}{ratio:22} {said:20} {f'{p.launches}x ' if p.launches > 1 else ''}{name}")
        if len(pairs) > MOST:
            lines.append(f"  and {len(pairs) - MOST} more (--kernel NAME picks one)")
        parts.append("\n".join(lines))
    if both:
        parts.append(difference(*max(both, key=lambda p: abs((p[0].seconds or 0) - (p[1].seconds or 0)))))
    return "\n\n".join(parts)


def _times(before: float | None, after: float | None) -> str:
    return f" ({before / after:.2f}x as fast)" if before and after else ""


def difference(before: Diagnosis, after: Diagnosis) -> str:
    """What changed: time, bound, each resource, each waste."""
    lines = [f"before  {plain(before.name, 100)}", f"after   {plain(after.name, 100)}"]
    speed = _times(before.seconds, after.seconds)
    lines.append(f"  time     {time(before.seconds):>10} -> {time(after.seconds):>10}{speed}, under the profiler")
    lines.append(f"  bound    {before.bound:>10} -> {after.bound:>10}")
    old, new = ({x.key: x for x in d.loads} for d in (before, after))
    for key in dict.fromkeys((*old, *new)):
        a, b = (time(x[key].seconds) if key in x else "not collected" for x in (old, new))
        lines.append(f"  {key:8} {a:>10} -> {b:>10}")
    texts = [{w.key: w.text for w in d.wastes} for d in (before, after)]
    lines += [f"  gone     {plain(t, 150)}" for k, t in texts[0].items() if k not in texts[1]]
    lines += [f"  new      {plain(t, 150)}" for k, t in texts[1].items() if k not in texts[0]]
    ratio = before.seconds / after.seconds if before.seconds and after.seconds else 1.0
    if abs(ratio - 1) > SAME:
        for lever in before.levers:
            if lever.low is not None and lever.high is not None and lever.low <= ratio <= lever.high:
                lines.append(f"  as predicted for: {lever.text} ({gain(lever.low, lever.high)})")
    return "\n".join(lines)
