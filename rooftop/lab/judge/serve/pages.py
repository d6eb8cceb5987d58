"""Pages: the report's templates, style and script with a few of their own, everything from users escaped; static files by their hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from rooftop.core import registry
from rooftop.core.texts import printable
from rooftop.lab.judge.board import RECORD, Entry, amount
from rooftop.lab.judge.verdict import KINDS, Verdict
from rooftop.lab.report import site
from rooftop.lab.report.drawings.canvas import Canvas

TEMPLATES = Path(__file__).with_name("templates")
TYPES = {".css": "text/css", ".js": "text/javascript"}
LEVELS = ((0.40, "cost4"), (0.20, "cost3"), (0.08, "cost2"), (0.02, "cost1"))  # share of a kernel's cycles -> colour of the line
TOLD = 5  # lines whose share is also written out
SHOWN = 40  # entries of a history that are drawn
BAR, STEP, TALL, LEFT = 14.0, 18.0, 120.0, 34.0  # pixels of the drawing


@cache
def static() -> Mapping[str, tuple[bytes, str]]:
    """Name with its hash -> content, media type."""
    found = {}
    for path in (*(site.TEMPLATES / n for n in site.SHARED), *(TEMPLATES / n for n in ("serve.css", "serve.js"))):
        content = path.read_bytes()
        found[f"{path.stem}.{hashlib.sha256(content).hexdigest()[:16]}{path.suffix}"] = content, TYPES[path.suffix]
    return found


@cache
def ladders() -> tuple[registry.Ladder, ...]:
    return tuple(registry.ladder(name) for name in registry.ladder_names())


class Pages:
    """Renders the templates. `prefix`: of every path, behind a proxy; `targets`: the devices that are judged on."""

    def __init__(self, prefix: str, targets: Sequence[str]) -> None:
        self._prefix = prefix
        ladders()  # parsed here, in one thread: Python 3.11 fails to in several at once
        self._environment = env = site.environment()
        env.loader = jinja2.FileSystemLoader([TEMPLATES, site.TEMPLATES])
        env.finalize = _shown
        hashed = {re.sub(r"\.\w+(?=\.\w+$)", "", name): name for name in static()}
        env.globals.update(
            at=self.at, static=lambda name: self.at(f"/static/{hashed[name]}"), kinds=KINDS, amount=amount, targets=tuple(targets),
            profile=self.profile,
        )

    def at(self, path: str, **query: str) -> str:
        """Where a page is, for a browser."""
        return f"{self._prefix}{quote(path)}{f'?{urlencode(query)}' if query else ''}"

    def profile(self, user: str) -> str:
        return self.at("/user", name=user)

    def html(self, template: str, **about: Any) -> str:
        return self._environment.get_template(template).render(**{"user": "", **about})


def _shown(value: Any) -> Any:
    """What a template prints: control characters, and marks that turn the direction of writing, are written out."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


# -- a verdict -------------------------------------------------------------------------------------------------------


def stretches(source: str, verdict: Verdict | None, file: str) -> list[tuple[str, int, str]]:
    """The source in stretches of lines of one colour: class, number of the first line, text. Lines are coloured by their share of the
    cycles, and where the finding names them."""
    lines = source.removesuffix("\n").split("\n")
    kinds = ["same"] * len(lines)
    if verdict is not None:
        total = sum(cycles for _, cycles in verdict.lines) or 1.0
        levels = [(n, next((c for least, c in LEVELS if cycles / total >= least), "")) for n, cycles in verdict.lines]
        named = re.findall(rf"(?<![\w.-]){re.escape(file)}:(\d+)", verdict.said) if not verdict.right else []
        for number, kind in [*levels, *((int(n), "fault") for n in named)]:
            if 0 < number <= len(lines) and kind:
                kinds[number - 1] = f"same {kind}"
    found = []
    for kind, group in groupby(enumerate(lines), key=lambda at: kinds[at[0]]):
        run = list(group)
        found.append((kind, run[0][0] + 1, "".join(f"{printable(text)}\n" for _, text in run)))
    return found


def costly(source: str, verdict: Verdict) -> list[tuple[int, float, str]]:
    """(line, share of the cycles, text) of the lines that cost most."""
    lines, total = source.split("\n"), sum(cycles for _, cycles in verdict.lines) or 1.0
    most = sorted(verdict.lines, key=lambda at: -at[1])[:TOLD]
    return [(n, cycles / total, lines[n - 1].strip()) for n, cycles in most if 0 < n <= len(lines)]


# -- a history -------------------------------------------------------------------------------------------------------


def history(entries: Sequence[Entry]) -> Markup:
    """The last entries of a user as bars, the oldest first: a score, or a mark for what is not right."""
    last = entries[-SHOWN:]
    if not last:
        return Markup("")
    canvas = Canvas()
    for share in (0.0, 0.5, 1.0):
        y = 12 + TALL * (1 - share)
        canvas.text(LEFT - 6, y + 4, f"{share:.1f}", "end")
        canvas.line(LEFT, y, LEFT + STEP * len(last), y, "thin")
    for i, e in enumerate(last):
        height = 5.0 if e.score is None else max(2.0, TALL * e.score)
        kind = "a" if e.score is not None else "e" if e.kind == "right" else "hot"
        said = f"{e.at[:16]} {e.op} {e.subject}: {e.kind}" + ("" if e.score is None else f", {e.score:.3f}")
        canvas.box(LEFT + STEP * i + (STEP - BAR) / 2, 12 + TALL - height, BAR, height, kind, about=printable(said))
    return canvas.picture(f"scores of the last {len(last)} entries, the oldest first").svg


def rungs(ladder: registry.Ladder, entries: Sequence[Entry]) -> tuple[list[str], list[tuple[registry.Rung, dict[str, Entry]]]]:
    """The boards on which rungs of a ladder stand, and of each rung the entry with its best score there."""
    found: dict[str, dict[str, Entry]] = {}
    for e in entries:
        if e.source == RECORD and e.score is not None:
            best = found.setdefault(e.subject, {})
            if e.device not in best or (best[e.device].score or 0.0) < e.score:
                best[e.device] = e
    devices = sorted({d for r in ladder.rungs for d in found.get(r.name, ())})
    return devices, [(r, found.get(r.name, {})) for r in ladder.rungs]

