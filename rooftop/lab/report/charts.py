"""The chart of a climb, as a plotly figure in plain data (plotly.js draws it in the page)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import cycle
from typing import Any

from rooftop.lab.report.model import DeviceView, LadderPage, Measured, RungRow

HEIGHT = 460  # pixels
TOP, BOTTOM, LEFT, RIGHT = 40, 76, 72, 184  # margins, pixels
LABEL = 16  # pixels between two labels at the right edge
BEYOND = 1.1  # times the highest line or point: predictions above it stand there, as a triangle that points up
LOG_FROM = 20.0  # a climb of more than this many times starts on a logarithmic axis
INK, GREY, BLUE, AMBER = "#1c2733", "#6b7785", "#1f5fa8", "#b45309"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
PEERS = (("#0f766e", "dot"), ("#7c3aed", "dash"), ("#be185d", "dashdot"), ("#4d7c0f", "longdash"), ("#0e7490", "longdashdot"))


def charts(page: LadderPage) -> list[dict[str, Any]]:
    """One chart for each card and case with a measured rung, the headline on the first card first.

    Each is `{label, data, layout, scales: {linear, log}, start}`; `scales` hold the part of the layout that depends on the axis."""
    found = []
    for device in page.devices:
        for case in sorted(page.cases, key=lambda c: not c.headline):
            if any((m := r.cells.get((device.name, case.id))) and m.kernel for r in page.rungs):
                found.append(climb(page, device, case.id))
    return found


def climb(page: LadderPage, device: DeviceView, case: str) -> dict[str, Any]:
    """The rungs' throughput on the roof. Predictions stand where they were made: at the headline case on the first card."""
    cells = [(i, r, m) for i, r in enumerate(page.rungs) if (m := r.cells.get((device.name, case))) and m.kernel]
    roofs = next((m.roofs for _, _, m in cells if not m.stale), cells[0][2].roofs)
    fresh = [(i, r, m) for i, r, m in cells if not m.stale]
    stale = [(i, r, m) for i, r, m in cells if m.stale]
    unit, count = roofs.unit, len(page.rungs)
    data: list[dict[str, Any]] = []
    lines: list[tuple[float, str, str]] = []  # value, label, colour

    def level(value: float, name: str, colour: str, dash: str, detail: str = "") -> None:
        x = [-0.5, *range(count), count - 0.5]
        hover = f"<b>{escape(name)}</b><br>{number(value)} {unit}{detail}<extra></extra>"
        line = {"color": colour, "dash": dash, "width": 2}
        series = {"type": "scatter", "mode": "lines", "x": x, "y": [value] * len(x), "name": escape(name)}
        data.append(series | {"line": line, "hovertemplate": hover, "showlegend": False})
        lines.append((value, name, colour))

    if roofs.datasheet:
        level(roofs.throughput(roofs.datasheet), "roof, datasheet", GREY, "dash")
    if roofs.measured:
        level(roofs.throughput(roofs.measured), "roof, measured", INK, "solid", f"<br>{_micro(roofs.measured)}, bound by {escape(roofs.bound)}")
    peers = [p for p in page.peers.get((device.name, case), ()) if not p.stale]
    for (colour, dash), peer in zip(cycle(PEERS), peers, strict=False):
        level(peer.roofs.throughput(peer.seconds), peer.subject.removeprefix("peer:"), colour, dash, f"<br>{_micro(peer.seconds)}")
    data.append(_broken(_series("measured", fresh, unit, BLUE, "circle", "lines+markers")))
    if stale:
        data.append(_series("stale", stale, unit, GREY, "circle-open", "markers"))
    if case == page.headline and device == page.devices[0] and (marks := _predicted(page, device, case)):
        most = BEYOND * max(v for series in data for v in series["y"] if v is not None)  # what is predicted far above all else would press it together
        data.append({
            "type": "scatter", "mode": "markers", "name": "predicted beforehand", "x": [m[0] for m in marks], "y": [min(m[1], most) for m in marks],
            "text": [m[2] for m in marks], "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "symbol": ["triangle-up-open" if m[1] > most else "diamond-open" for m in marks], "size": 11, "color": AMBER, "line": {"width": 2},
            },
        })  # fmt: skip
    values = [v for series in data for v in series["y"] if v is not None]
    name = next(c.id for c in page.cases if c.id == case)
    low, high = min(values), max(values)
    return {
        "label": f"{name} · {device.short}",
        "data": data,
        "layout": _layout(page.rungs, unit),
        "scales": {"linear": _linear(high, lines, unit), "log": _log(low, high, lines, unit)},
        "start": "log" if high / low > LOG_FROM else "linear",
    }


def number(value: float, digits: int = 4) -> str:
    """To so many significant digits, thousands apart, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 999.96 to four digits is 1000
    places = max(0, digits - 1 - exponent)
    return f"{value:,.{places}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _micro(seconds: float) -> str:
    return f"{number(seconds * 1e6)} µs"


def _series(name: str, cells: Sequence[tuple[int, RungRow, Measured]], unit: str, colour: str, symbol: str, mode: str) -> dict[str, Any]:
    y = [m.roofs.throughput(m.seconds) for _, _, m in cells]
    clocks = [m.kernel for _, _, m in cells if m.kernel]
    return {
        "type": "scatter", "mode": mode, "name": name, "cliponaxis": False, "showlegend": bool(cells), "x": [i for i, _, _ in cells], "y": y,
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": colour,
            "array": [max(0.0, m.roofs.throughput(c.low) - v) for (_, _, m), c, v in zip(cells, clocks, y, strict=True)],
            "arrayminus": [max(0.0, v - m.roofs.throughput(c.high)) for (_, _, m), c, v in zip(cells, clocks, y, strict=True)],
        },
        "text": [_hover(r, m, unit) for _, r, m in cells], "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": colour, "width": 2}, "marker": {"symbol": symbol, "size": 9, "color": colour},
    }  # fmt: skip


def _broken(series: dict[str, Any]) -> dict[str, Any]:
    """The series with a gap where a rung is left out: a line across it would show what nobody measured."""
    for i in range(len(series["x"]) - 1, 0, -1):
        if series["x"][i] - series["x"][i - 1] > 1:
            series["x"].insert(i, series["x"][i] - 0.5)
            for values, nothing in ((series["y"], None), (series["error_y"]["array"], 0.0), (series["error_y"]["arrayminus"], 0.0), (series["text"], "")):
                values.insert(i, nothing)
    return series


def _hover(rung: RungRow, m: Measured, unit: str) -> str:
    assert m.kernel is not None and m.throughput is not None
    rows = [f"<b>{rung.number:02d} {escape(rung.title)}</b>", f"{_micro(m.seconds)} ({number(m.kernel.low * 1e6)} to {number(m.kernel.high * 1e6)})"]
    rows.append(f"{number(m.throughput)} {unit}")
    if m.share is not None:
        rows.append(f"{100 * m.share:.1f} % of the measured roof")
    if m.stale:
        rows.append(f"stale: {escape(m.stale)}")
    return "<br>".join(rows)


def _predicted(page: LadderPage, device: DeviceView, case: str) -> list[tuple[int, float, str]]:
    """(x, throughput, hover) where the rung before was measured and a speed-up was predicted."""
    found = []
    for i, (before, rung) in enumerate(zip(page.rungs, page.rungs[1:], strict=False), 1):
        base = before.cells.get((device.name, case))
        if rung.speedup and base and not base.stale and base.throughput:
            p = rung.speedup
            result = f"measured {number(p.measured, 3)}×: {p.verdict}" if p.measured is not None else p.verdict
            text = f"<b>{rung.number:02d} {escape(rung.title)}</b><br>predicted {number(p.predicted, 3)}× of {before.number:02d}<br>{escape(result)}"
            found.append((i, base.throughput * p.predicted, text))
    return found


def _layout(rungs: Sequence[RungRow], unit: str) -> dict[str, Any]:
    words = [f"{r.number:02d}<br>" + "<br>".join(escape(w) for w in r.slug.split("_")) for r in rungs]
    return {
        "height": HEIGHT, "margin": {"t": TOP, "b": BOTTOM, "l": LEFT, "r": RIGHT}, "hovermode": "closest", "dragmode": False,
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff", "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "font": {"color": INK, "family": FONT}},
        "xaxis": {
            "tickmode": "array", "tickvals": list(range(len(rungs))), "ticktext": words, "tickangle": 0, "tickfont": {"size": 12},
            "range": [-0.5, len(rungs) - 0.5], "showgrid": False, "zeroline": False, "fixedrange": True,
        },
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},  # above the plot: over nothing
    }  # fmt: skip


def _linear(high: float, lines: Sequence[tuple[float, str, str]], unit: str) -> dict[str, Any]:
    top = high * 1.06
    axis = _axis(unit) | {"type": "linear", "range": [0, top]}
    return {"yaxis": axis, "annotations": _labels([(v / top, v, n, c) for v, n, c in lines], unit)}


def _log(low: float, high: float, lines: Sequence[tuple[float, str, str]], unit: str) -> dict[str, Any]:
    bottom, top = math.log10(low * 0.8), math.log10(high * 1.2)
    # Ticks at 1, 2 and 5 of each decade: plotly's own are bare on less than two decades.
    ticks = [m * 10.0**e for e in range(math.floor(bottom), math.ceil(top) + 1) for m in (1, 2, 5) if bottom <= math.log10(m * 10.0**e) <= top]
    axis = _axis(unit) | {"type": "log", "range": [bottom, top], "tickmode": "array", "tickvals": ticks, "ticktext": [number(t, 1) for t in ticks]}
    return {"yaxis": axis, "annotations": _labels([((math.log10(v) - bottom) / (top - bottom), v, n, c) for v, n, c in lines], unit)}


def _axis(unit: str) -> dict[str, Any]:
    return {"title": {"text": unit}, "gridcolor": "#e6eaef", "zeroline": False, "fixedrange": True}


def _labels(lines: Sequence[tuple[float, float, str, str]], unit: str) -> list[dict[str, Any]]:
    """Names of the lines at the right edge, pushed apart where they would overlap. Each comes as (height 0 to 1, value, name, colour)."""
    step = LABEL / (HEIGHT - TOP - BOTTOM)
    placed = spread([y for y, *_ in lines], step)
    return [
        {
            "xref": "paper", "x": 1.008, "xanchor": "left", "yref": "paper", "y": y, "yanchor": "middle", "showarrow": False, "align": "left",
            "text": f"{escape(name)} · {number(value, 3)}", "font": {"color": colour, "size": 12},
        }
        for y, (_, value, name, colour) in zip(placed, lines, strict=True)
    ]  # fmt: skip


def spread(heights: Sequence[float], step: float) -> list[float]:
    """The heights (0 to 1), moved as little as needed so that any two are `step` apart, in the same order and none above 1.

    Groups that would touch are merged and centred on the mean of what they stand for (pool of adjacent violators)."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[list[int]] = []

    def centre(group: Sequence[int]) -> float:
        wanted = sum(heights[i] for i in group) / len(group)
        return min(max(wanted, (len(group) - 1) * step / 2), 1 - (len(group) - 1) * step / 2)

    for i in order:
        groups.append([i])
        while len(groups) > 1:
            below, above = groups[-2], groups[-1]
            if centre(above) - centre(below) >= (len(above) + len(below)) * step / 2 - 1e-12:
                break
            groups[-2:] = [below + above]
    placed = [0.0] * len(heights)
    for group in groups:
        for k, i in enumerate(group):
            placed[i] = centre(group) + (k - (len(group) - 1) / 2) * step
    return placed
