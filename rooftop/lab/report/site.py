"""`rooftop report`: a folder of static pages from the records and the tree: home, a page a ladder, an op and a card.

All pages share one file of style and one script, which colours sources and takes choices; without it everything is shown. A content
security policy forbids the browser to load anything else, so the folder opens from a disk and needs no network."""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import jinja2
from markupsafe import Markup

from rooftop.core import registry
from rooftop.core.backends.table import BACKENDS
from rooftop.core.prediction_names import COUNTS
from rooftop.lab.records.store import Record
from rooftop.lab.report import counts, document, reference, search
from rooftop.lab.report.cards import Card
from rooftop.lab.report.charts import charts
from rooftop.lab.report.data import DeviceScore, Digests, LadderPage, OpScore, RungRow, SiteData, gather
from rooftop.lab.report.facts import TargetFacts
from rooftop.lab.report.markup import number, shorter
from rooftop.lab.report.model import DeviceView
from rooftop.lab.report.predictions import HIT, speedup
from rooftop.lab.report.rung_counts import RungCounts
from rooftop.lab.report.scatter import Point, drawing
from rooftop.lab.timing.languages import LANGUAGES as SHOWN

LANGUAGES = "languages.html"  # the page of the same ops in each language
TEMPLATES = Path(__file__).parent / "templates"
SHARED = ("report.css", "report.js")  # of all pages
CONTEXT = 3  # unchanged lines shown around a change
# The instructions that matter, in the order of the page: arithmetic, global, shared and local memory, the rest. With any width.
INSTRUCTIONS = (
    "FFMA", "FFMA2", "HFMA2", "HMMA", "IMMA", "DMMA", "QMMA", "HGMMA", "QGMMA", "IGMMA", "MUFU", "UTMALDG", "UTMASTG", "UBLKCP", "LDGSTS",
    "LDG", "STG", "ATOM", "RED", "LDSM", "STSM", "LDS", "STS", "ATOMS", "LDL", "STL", "BAR", "SHFL", "REDUX", "SYNCS",
)


def build(
    out: Path,
    records: Iterable[Record],
    facts: Mapping[tuple[str, int], Mapping[str, Any]] | None = None,
    checks: Iterable[Mapping[str, Any]] = (),
    counts: Mapping[str, RungCounts] | None = None,
    *,
    house: registry.House = registry.HOUSE,
    now: datetime | None = None,
    digests: Digests | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Writes the pages into the folder `out` (made where absent) and returns the path of the index. `say` is told of each page.

    `facts`, `checks`, `counts` and `digests` are as `rooftop.lab.report.data.gather` takes them. Raises RegistryError for a ladder that
    does not read as one, ValueError for facts that lack a fact."""
    return write(out, gather(records, facts, checks, counts, house=house, now=now, digests=digests), say)


def write(out: Path, site: SiteData, say: Callable[[str], None] = lambda text: None) -> Path:
    """The pages of what `gather` found. Each is written whole or not at all. `say` is told of each."""
    out.mkdir(parents=True, exist_ok=True)
    page = writer(out, site, say)
    for name in SHARED:
        _place(out / name, (TEMPLATES / name).read_text(encoding="utf-8"))
    for ladder in site.ladders:
        page(
            ladder.file, "ladder.html.j2", page=ladder, figures=charts(ladder), listings=listings(ladder.rungs),
            counted=counts.table(ladder.rungs),
            asked=[counts.of_rung(r, ladder.rungs[i - 1] if i else None) for i, r in enumerate(ladder.rungs)],
        )
    for op in site.ops:
        page(op.file, "op.html.j2", op=op, sweeps=[(s, sweep(s)) for s in op.scores], swept=site.swept.get(op.name, ()))
    for card in site.cards:
        page(card.file, "card.html.j2", card=card)
    if site.languages:
        page(LANGUAGES, "languages.html.j2", names=[BACKENDS[x].language for x in SHOWN])
    page("api.html", "api.html.j2", spaces=reference.namespaces(), paged={op.name for op in site.ops})
    if site.tutorial:
        page("tutorial.html", "tutorial.html.j2", title=document.title(site.tutorial), text=document.html(site.tutorial))
    _place(out / search.FILE, search.script(site, reference.namespaces()))
    made = {*(x.file for x in site.ladders), *(x.file for x in site.ops), *(x.file for x in site.cards)}
    for path in (p for kind in ("ladder", "op", "card") for p in out.glob(f"{kind}-*.html")):
        if path.name not in made:
            path.unlink()  # of a ladder, an op or a card that is gone
    cards = sorted(site.cards, key=lambda card: -sum(shown([op], card) for op in site.ops))  # the one with the most ops first
    return page(
        "index.html", "home.html.j2", rooflines=[(card, roofline(site, card)) for card in cards], sparks=[spark(x) for x in site.ladders]
    )


def writer(out: Path, site: SiteData, say: Callable[[str], None]) -> Callable[..., Path]:
    """What writes a page: `page(file, template, **about)`. Each is written whole or not at all."""
    env = environment()
    env.globals["site"] = site

    def page(file: str, template: str, **about: Any) -> Path:
        say(file)
        _place(out / file, shorter(env.get_template(template).render(**about)))
        return out / file

    return page


def sweep(score: DeviceScore) -> Markup:
    """The share of the roof against the bytes of a case, of the implementation that a call takes."""
    points = [
        Point(
            float(m.moved), m.share, f"{m.case}: {100 * m.share:.1f} % of the roof, {number(m.seconds * 1e6)} µs",
            label=m.case.rpartition(" ")[2]
        )
        for row in score.rows if (m := row.best) and m.share is not None
    ]
    return drawing(points, "MiB read and written", unit=float(1 << 20)) if len(points) > 2 else Markup("")


def roofline(site: SiteData, card: Card) -> Markup:
    """Every op's largest case under the roof, by its operations a byte."""
    points = []
    for op in site.ops:
        score = op.on(card.device)
        found = [m for row in (score.rows if score else ()) if (m := row.best) and m.share is not None]
        if found:
            m = max(found, key=lambda m: m.seconds)
            intensity = m.operations / m.moved if m.moved else 0.0
            assert m.share is not None
            text = f"{op.name}, {m.case}: {100 * m.share:.1f} % of the roof, {number(intensity, 3)} operations a byte, bound by {m.roofs.bound}"
            points.append(Point(intensity, m.share, text, "memory" if m.roofs.bound == "memory" else "unit", op.name, op.file))
    ridge = (card.ridge, "bf16 ridge") if card.ridge else None
    return drawing(points, "operations a byte", mark=ridge, width=440, height=316)


def gained(page: LadderPage, number: int, device: DeviceView, case: str) -> float | None:
    """Kernel time of the rung before over that of rung `number`, counted from 0; None unless both have a time that holds."""
    key = (device.name, case)
    return speedup(page.rungs[number].cells.get(key), page.rungs[number - 1].cells.get(key)) if number else None


def spark(page: LadderPage) -> list[tuple[float, bool]]:
    """Of each rung its throughput over the largest, and whether it is the fastest; 0 where it was not measured. At the headline case on the
    first card."""
    key = (page.devices[0].name, page.headline) if page.devices else ("", "")
    values = [m.throughput or 0.0 if (m := r.cells.get(key)) and m.kernel and not m.stale else 0.0 for r in page.rungs]
    most = max(values, default=0.0)
    return [(v / most if most else 0.0, bool(v) and v == most) for v in values]


def environment() -> jinja2.Environment:
    """Templates with everything escaped that is not marked as safe; an unknown name is an error."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters.update(num=number, micro=lambda seconds: number(seconds * 1e6), percent=lambda share: f"{100 * share:.1f}")
    env.filters.update(ratio=lambda value: number(value, 4 if value >= 0.9995 else 3))
    env.filters.update(grouped=lambda n: f"{n:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"), instructions=instructions, plain=counts.plain)
    env.filters.update(doc=reference.shown, sentence=reference.sentence, inline=document.inline)
    env.globals.update(_=lambda text, /, **about: Markup(text).format(**about), language="en", others=(), course="learn.html")
    env.globals.update(
        summary=counts.summary, hit=round(100 * HIT), gained=gained, about=dict(COUNTS), shown=shown, packed=packed, alike=alike,
        classes=classes
    )
    return env


def shown(ops: Iterable[OpScore], card: Card) -> bool:
    """Whether any of these ops was measured on the card, its kernels as they are."""
    return any((score := op.on(card.device)) is not None and score.summary.measured for op in ops)


def classes(*names: object) -> Markup:
    """The attribute, of those names that are one; nothing where none is."""
    found = " ".join(name for name in names if isinstance(name, str) and name)
    return Markup(f' class="{found}"' if found else "")


def alike(facts: Sequence[TargetFacts]) -> list[tuple[list[str], TargetFacts]]:
    """Facts of a rung, those that are the same for several targets once."""
    found: list[tuple[list[str], TargetFacts]] = []
    for one in facts:
        same = next((names for names, other in found if (other.kernels, other.refused) == (one.kernels, one.refused)), None)
        if same is None:
            found.append(([one.target], one))
        else:
            same.append(one.target)
    return found


def packed(families: Iterable[tuple[str, Sequence[OpScore]]], columns: int = 4) -> list[tuple[str, Sequence[OpScore]]]:
    """Families of ops in an order in which `columns` columns of whole tables come out about equally long."""
    made: list[list[tuple[str, Sequence[OpScore]]]] = [[] for _ in range(columns)]
    for family, ops in sorted(families, key=lambda f: (-len(f[1]), f[0])):
        min(made, key=lambda column: sum(len(ops) + 1 for _, ops in column)).append((family, ops))
    return [one for column in made for one in column]


def instructions(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Those that matter, widest first within a kind: `LDG.128` before `LDG.32`."""

    def place(name: str) -> tuple[int, int]:
        family, _, width = name.partition(".")
        return INSTRUCTIONS.index(family), -int(width or 0)

    return sorted(((n, c) for n, c in counts.items() if c and n.partition(".")[0] in INSTRUCTIONS), key=lambda nc: place(nc[0]))


# -- sources and the differences between them ----------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of a source or of the one before it. `number`: in its own file. `kind`:

    same      beside a change, and unchanged
    far       elsewhere
    added
    removed   of the one before: no line of this source"""

    kind: str
    number: int
    text: str


@dataclass(frozen=True)
class Listing:
    """A rung's source, and in their places the lines of the rung before that it lacks. `before`: that rung, "" for the first."""

    before: str
    added: int
    removed: int
    lines: tuple[Line, ...]

    @property
    def cut(self) -> bool:
        """Whether some lines stand out, so that the others can be left out."""
        return 0 < sum(line.kind == "far" for line in self.lines) < len(self.lines)

    @property
    def runs(self) -> list[tuple[str, int, str]]:
        return stretches((line.kind, line) for line in self.lines)


def stretches(lines: Iterable[tuple[str, Line]]) -> list[tuple[str, int, str]]:
    """Lines of a kind that follow each other: kind, number of the first one, text. A tab stands for four spaces of an indentation, which
    are a tenth of a page; the script of the page turns it back."""
    found = []
    for kind, group in groupby(lines, key=lambda line: line[0]):
        for _, beside in groupby(enumerate(line for _, line in group), key=lambda at: at[1].number - at[0]):
            run = [line for _, line in beside]
            found.append((kind, run[0].number, "\n".join(_tabbed(line.text) for line in run)))
    return found


def _tabbed(text: str) -> str:
    deep = (len(text) - len(text.lstrip(" "))) // 4
    return "\t" * deep + text[4 * deep :]


def lesson(text: str) -> list[int]:
    """The lines of a source that a difference speaks of: the code, and of a head the config's values. What the page shows apart (idea,
    prediction, limit) and what follows from the code (arguments, launches, targets) are left out."""
    lines = text.splitlines()
    if text.lstrip().startswith("/* rooftop"):
        end = next((i for i, line in enumerate(lines) if "*/" in line), len(lines) - 1)
        return [i for i in _config(lines[:end]) if i] + list(range(end + 1, len(lines)))
    said = _said(text)
    return [i for i in range(len(lines)) if i not in said]


def _config(head: Sequence[str]) -> list[int]:
    """The lines `NAME = value` of a head's table [config]."""
    table, found, quote = "", [], ""
    for i, line in enumerate(head):
        if quote:
            quote = "" if quote in line else quote
        elif section := re.match(r"\s*\[+([\w.]+)\]+", line):
            table = section[1]
        elif (mark := re.search(r"\"\"\"|'''", line)) and line.count(mark[0]) < 2:
            quote = mark[0]
        elif table == "config" and line.strip():
            found.append(i)
    return found


def _said(text: str) -> set[int]:
    """The lines of a Python source that the page shows apart: the values of IDEA, PREDICT and LIMIT."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return set()
    said = [
        n for n in body if isinstance(n, ast.Assign | ast.AnnAssign)
        and any(isinstance(t, ast.Name) and t.id in ("IDEA", "PREDICT", "LIMIT") for t in (n.targets if isinstance(n, ast.Assign) else [n.target]))
    ]
    return {i for node in said for i in range(node.lineno - 1, node.end_lineno or node.lineno)}


class Sourced(Protocol):
    """A rung, as far as its text goes."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...


@dataclass(frozen=True)
class Source:
    """The text of a rung alone."""

    name: str
    source: str


def listing(before: Sourced | None, after: Sourced, context: int = CONTEXT) -> Listing:
    """The source of a rung, with what it changes on the one before, and `context` lines around that."""
    new = after.source.splitlines()
    new_at = lesson(after.source)
    if before is None:
        kept = set(new_at)
        return Listing("", 0, 0, tuple(Line("same" if i in kept else "far", i + 1, text) for i, text in enumerate(new)))
    old = before.source.splitlines()
    old_at = lesson(before.source)
    matcher = difflib.SequenceMatcher(None, [old[i].rstrip() for i in old_at], [new[i].rstrip() for i in new_at], autojunk=False)
    kinds = ["far"] * len(new)
    gone: dict[int, list[int]] = {}  # line of the new source -> those of the old one that stood before it
    for group in matcher.get_grouped_opcodes(context):
        for kind, a, b, c, d in group:
            for i in new_at[c:d]:
                kinds[i] = "same" if kind == "equal" else "added"
            if kind != "equal" and a < b:
                gone[new_at[c] if c < len(new_at) else len(new)] = old_at[a:b]
    lines: list[Line] = []
    for i in range(len(new) + 1):
        lines += [Line("removed", o + 1, old[o]) for o in gone.get(i, ())]
        lines += [Line(kinds[i], i + 1, new[i])] if i < len(new) else []
    return Listing(before.name.rpartition("/")[2], kinds.count("added"), sum(map(len, gone.values())), tuple(lines))


def listings(rungs: Sequence[RungRow]) -> list[Listing]:
    return [listing(rungs[i - 1] if i else None, rung) for i, rung in enumerate(rungs)]


# -- files ---------------------------------------------------------------------------------------------------------


def _place(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:  # a full disk names no file
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
