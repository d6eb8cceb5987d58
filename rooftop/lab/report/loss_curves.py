"""Loss curves of docs/comm.md: a small GPT whose gradients travel in several types (scripts/train_gpt_quantised.py), as results/ keeps
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rooftop.core import settings
from rooftop.lab.records.record import Record
from rooftop.lab.report.data import SiteData
from rooftop.lab.report.picture import STYLE

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 600, 320, 52, 24, 24, 48  # pixels: the picture, the margins of the curves
COLOURS = ("--ink", "--bar", "--peer")
NOTHING = "Nothing has been measured yet."
TICKS = 4  # steps on each axis


def _kept(found: Sequence[Record]) -> Mapping[str, Any] | None:
    """`ends`: run -> the mean loss of the last 20 steps, a seed each; `losses`: run -> seed -> means of `mean_of_steps` steps."""
    path = settings.load().results / "h200" / "comm_training.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if found and path.is_file() else None


def text(found: list[Record], _site: SiteData) -> str:
    """The losses at the end, and how far each run's are from those of the first."""
    kept = _kept(found)
    if kept is None:
        return NOTHING
    first, plain = next(iter(kept["ends"].items()))
    said = [f"{', '.join(f'{v:.4f}' for v in plain)} ({first})"]
    for name, ends in kept["ends"].items():
        if name != first:
            said.append(f"{', '.join(f'{v:.4f}' for v in ends)} ({name}: {100 * (sum(ends) / sum(plain) - 1):+.2f} %)")
    return f"Measured on {kept['device']}, {kept['steps']} steps, mean loss of the last 20, a seed each: {'; '.join(said)}."


def picture(found: list[Record], _site: SiteData) -> str:
    kept = _kept(found)
    return drawn(kept["losses"], kept["mean_of_steps"]) if kept else drawn({})


def drawn(curves: Mapping[str, Sequence[Sequence[float]]], step: int = 1) -> str:
    """Curves as SVG, the seeds of a run in one colour. `step`: steps of training from one point to the next."""
    points = [losses for runs in curves.values() for losses in runs]
    body = [f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>']
    top, bottom = max(map(max, points), default=1.0), min(map(min, points), default=0.0)
    last = max(map(len, points), default=2) - 1

    def x(i: float) -> float:
        return LEFT + i / last * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (top - loss) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    for k in range(TICKS + 1) if points else ():
        loss, at = bottom + k / TICKS * (top - bottom), k / TICKS * last
        body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>')
        body.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        body.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{round(k / TICKS * (last + 1) * step)}</text>')
    for n, ((name, runs), colour) in enumerate(zip(curves.items(), COLOURS, strict=False)):
        for losses in runs:
            path = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(losses))
            body.append(f'<polyline points="{path}" style="fill: none; stroke: var({colour})"/>')
        body.append(f'<text x="{WIDTH - 190}" y="{44 + 20 * n}" style="fill: var({colour})">{escape(name)}, {len(runs)} seeds</text>')
    said = "loss, by steps of training" if points else NOTHING
    body.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{said}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>", ""])
