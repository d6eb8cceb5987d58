"""Diagnoses as one HTML file that needs nothing else: the hierarchical roofline with the kernel on it, the resources, the ledger and the
levers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from rooftop.lab.counters.diagnose.diagnosis import Diagnosis
from rooftop.lab.counters.diagnose.hierarchy import Hierarchy
from rooftop.lab.counters.diagnose.show import CONTROL, gain, time

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 70, 20, 20, 50  # pixels
COLOURS = {"dram": "#c2410c", "l2": "#0369a1", "l1": "#15803d"}
_CSS = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1917;background:#fff}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.15rem .7rem;text-align:left;border-bottom:1px solid #e7e5e4}.n{text-align:right}
.bar{background:#e7e5e4;width:14rem}.bar i{display:block;height:.8rem;background:#0369a1}h2{overflow-wrap:anywhere;font-size:1.15rem}svg{max-width:100%}
section{border-top:2px solid #1c1917;margin-top:2rem}"""


def html(found: Sequence[Diagnosis], title: str = "rooftop diagnose") -> str:
    """A page for all of them, in the order given."""
    body = "\n".join(part for d in found for part in _section(d))
    return (
        f'<!doctype html>\n<html lang="en"><meta '
        f'charset="utf-8"><title>{_text(title)}</title><style>{_CSS}</style>\n<h1>{_text(title)}</h1>\n{body}\n</html>\n'
    )


def _text(text: str) -> str:
    """Escaped, and without control characters: names come from outside."""
    return escape(CONTROL.sub("?", text))


def _section(d: Diagnosis) -> Iterator[str]:
    yield f"<section><h2>{_text(d.name)}{f' · {_text(d.case)}' if d.case else ''}</h2>"
    yield f"<p><b>Bound by {_text(d.bound)}</b> ({_text(d.sure)}): {_text(d.because)}. Runner-up: {_text(d.runner_up or 'not collected')}. "
    floor = "" if d.floor_s is None else f" The op's floor: {time(d.floor_s)}."
    yield f"Time under the profiler: {time(d.seconds)}; ceiling for what it does now: {time(d.ceiling_s)}.{floor}</p>"
    yield svg(d.hierarchy) if d.hierarchy is not None else "<p>Roofline: not collected.</p>"
    yield "<table><tr><th>resource<th>share of the time<th><th>time needed<th>counted"
    for x in d.loads:
        wide = f"{100 * min(1.0, max(0.0, x.share)):.1f}"
        figures = f'<td class="n">{x.share:.0%}<td class="n">{time(x.seconds)}<td>{_text(x.counted)}'
        yield f'<tr><td>{_text(x.title)}<td class="bar"><i style="width:{wide}%"></i>{figures}'
    yield (
        "</table><h3>Waste</h3><ul>"
        + ("".join(f"<li>{_part(w.part, w.resource)}{_text(w.text)}" for w in d.wastes) or "<li>none that was collected") + "</ul>"
    )
    yield (
        "<h3>Try</h3><ol>"
        + "".join(f"<li>{_text(x.text)}: {gain(x.low, x.high)}, then {_text(x.then)} bounds. {_moves(x.moves)}" for x in d.levers) + "</ol>"
    )
    if d.rules:
        yield (
            "<h3>Nsight Compute's own rules</h3><ul>"
            + "".join(f"<li><b>{_text(r.name)}</b>{_estimate(r.speedup, r.scope)}: {_text(r.text)}" for r in d.rules)
            + "</ul>"
        )
    if d.lines:
        yield "<h3>Source lines</h3><ul>" + "".join(
            f"<li>{x.part:.0%} ({_text(x.unit)}) {_text(x.file)}:{x.line}" for x in d.lines
        ) + "</ul>"
    yield f"<p>Not collected: {_text(', '.join(d.missing)) or 'nothing'}.</p></section>"


def _part(part: float | None, resource: str) -> str:
    return "" if part is None else f"{part:.0%} of {_text(resource)}: "


def _moves(moves: Sequence[str]) -> str:
    return f"Should move: {_text(', '.join(moves))}." if moves else ""


def _estimate(speedup: float | None, scope: str) -> str:
    return "" if speedup is None else f" (est. {speedup:.0f} %{' ' + _text(scope) if scope else ''})"


def svg(h: Hierarchy) -> str:
    """Both axes logarithmic. A line and a dot for each level: the dot lies at the kernel's rate, over its work for each byte of that
    level."""
    xs = [h.work / level.bytes for level in h.levels]
    ridges = [h.peak / level.bandwidth for level in h.levels if h.peak and level.bandwidth]
    low, high = math.floor(math.log10(min(xs + ridges)) - 0.3), math.ceil(math.log10(max(xs + ridges)) + 0.3)
    top = math.ceil(math.log10(max(h.rate, h.peak or 0.0)) + 0.1)
    bottom = min(math.floor(math.log10(h.rate) - 0.5), top - 3)

    def x(value: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * (math.log10(value) - bottom) / (top - bottom)

    def lines() -> Iterator[str]:
        yield f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="hierarchical roofline" font-size="12">'
        for power in range(low, high + 1):
            yield f'<line x1="{x(10.0**power):.1f}" x2="{x(10.0**power):.1f}" y1="{TOP}" y2="{HIGH - BOTTOM}" stroke="#e7e5e4"/>'
            yield f'<text x="{x(10.0**power):.1f}" y="{HIGH - BOTTOM + 16}" text-anchor="middle">{10.0**power:g}</text>'
        for power in range(bottom, top + 1):
            yield f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(10.0**power):.1f}" y2="{y(10.0**power):.1f}" stroke="#e7e5e4"/>'
            yield f'<text x="{LEFT - 6}" y="{y(10.0**power) + 4:.1f}" text-anchor="end">1e{power}</text>'
        if h.peak:
            at = f"{y(h.peak):.1f}"
            yield f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{at}" y2="{at}" stroke="#1c1917" stroke-width="2"><title>peak</title></line>'
        for level, place in zip(h.levels, xs, strict=True):
            colour = COLOURS[level.key]
            if level.bandwidth:
                first = max(10.0**low, 10.0**bottom / level.bandwidth)
                last = min(10.0**high, (h.peak or 10.0**top) / level.bandwidth)
                if last > first:
                    yield (
                        f'<line x1="{x(first):.1f}" y1="{y(first * level.bandwidth):.1f}" x2="{x(last):.1f}" '
                        f'y2="{y(last * level.bandwidth):.1f}" '
                        f'stroke="{colour}" stroke-width="2"><title>{level.title}: {level.bandwidth / 1e9:.0f} GB/s, '
                        f'{level.source}</title></line>'
                    )
            said = f"{level.title}: {place:.3g} {h.unit} a byte, {h.rate:.3g} a second"
            yield f'<circle cx="{x(place):.1f}" cy="{y(h.rate):.1f}" r="6" fill="{colour}"><title>{said}</title></circle>'
            yield f'<text x="{x(place):.1f}" y="{y(h.rate) - 10:.1f}" text-anchor="middle" fill="{colour}">{level.key}</text>'
        yield f'<text x="{WIDE / 2}" y="{HIGH - 8}" text-anchor="middle">{h.unit} for a byte of each level</text>'
        yield f'<text x="14" y="{HIGH / 2}" transform="rotate(-90 14 {HIGH / 2})" text-anchor="middle">{h.unit} a second</text></svg>'

    return "\n".join(lines())
