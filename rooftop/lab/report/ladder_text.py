"""A ladder in the terminal: of each rung its idea, what it changes, what was predicted, measured and counted."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from itertools import pairwise

from rooftop.core import registry
from rooftop.lab import candidates
from rooftop.lab.records.store import Record
from rooftop.lab.report import data, ladder_cases, rung_counts, site
from rooftop.lab.report.counts import COUNTED
from rooftop.lab.report.data import LadderPage, RungRow


def page_of(name: str, records: list[Record]) -> LadderPage:
    """The ladder with what is recorded of it, and the simulator's counts that are kept from before. Raises RegistryError for no such
    ladder."""
    ladder = registry.ladder(name)
    headline = ladder_cases.headline_of(ladder, registry.op(ladder.op))
    counts = rung_counts.count(candidates.rungs(ladder), headline, run=False)
    # what other ops took is on other pages, and takes seconds to join
    mine = [r for r in records if r.kind != "bench" or r.op == ladder.op]
    return data.Gatherer(mine, counts=counts).ladder_page(ladder)


def difference(before: RungRow, after: RungRow) -> list[str]:
    """The unified difference of two rungs' sources, without the idea, prediction and limit of their heads."""
    old, new = ([text[i].rstrip() for i in site.lesson(row.source)] for row in (before, after) for text in [row.source.splitlines()])
    return list(difflib.unified_diff(old, new, before.path, after.path, lineterm="", n=2))


def _changed(before: RungRow, after: RungRow) -> str:
    lines = difference(before, after)[2:]
    return f"{sum(line[0] == '+' for line in lines)} lines more, {sum(line[0] == '-' for line in lines)} less than {before.title}"


def _measured(page: LadderPage, row: RungRow) -> Iterator[str]:
    for device in page.devices:
        found = row.cells.get((device.name, page.headline))
        if found is None or found.kernel is None:
            continue
        r = found.roofs
        note = "" if found.stale is None else f" (before a change: {found.stale})"
        yield f"{device.name}: {found.seconds * 1e6:.1f} us, {r.throughput(found.seconds):.0f} {r.unit}{note}"


def _rung(page: LadderPage, before: RungRow | None, row: RungRow) -> Iterator[str]:
    yield from textwrap.wrap(row.idea, 118)
    if before is not None:
        yield _changed(before, row)
    for p in row.predictions:
        yield f"predicted {p.name} {p.predicted:g}, " + (p.verdict if p.measured is None else f"found {p.measured:.3g}: {p.verdict}")
    yield from _measured(page, row)
    if row.counts is not None and row.counts.values:
        values = row.counts.values
        yield f"counted at {row.counts.case}: " + ", ".join(
            f"{title} {values[name]:.4g}" for name, title in COUNTED.items() if name in values
        )
    if row.limit:
        yield from textwrap.wrap(f"limit: {row.limit}", 118)


def overview(page: LadderPage) -> Iterator[str]:
    """Line by line, without the sources."""
    yield f"{page.title}: {len(page.rungs)} rungs of {page.op}, figures at {page.headline}"
    yield from textwrap.wrap(page.intro, 120)
    for step in page.derivation:
        yield ""
        for text, formula in step.paragraphs:
            yield from [f"    {text}"] if formula else textwrap.wrap(text, 120)
        if step.picture:
            yield from textwrap.wrap(step.picture.about, 116, initial_indent="  [drawn on the page] ", subsequent_indent="  ")
    for before, row in pairwise((None, *page.rungs)):
        assert row is not None
        yield ""
        yield row.name
        yield from (f"  {line}" for line in _rung(page, before, row))
    if page.beyond:
        yield from ("", "from the last rung to the shipped kernel", *(f"  {line}" for line in page.beyond))


def rung(page: LadderPage, number: int) -> Iterator[str]:
    """One rung and how its source differs from that of the rung before; the source of the first."""
    at = next(i for i, row in enumerate(page.rungs) if row.number == number)
    row, before = page.rungs[at], page.rungs[at - 1] if at else None
    yield row.name
    yield from (f"  {line}" for line in _rung(page, before, row))
    yield ""
    yield from row.source.splitlines() if before is None else difference(before, row)
