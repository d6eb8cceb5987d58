"""The tables of docs/predictions.md: how far off the model is on the card that it was not fitted on, and what it expects of cards that
nobody measured."""

from __future__ import annotations

from rooftop.core import registry
from rooftop.core.devices import lookup
from rooftop.core.spec import TARGETS
from rooftop.lab.records.store import Record
from rooftop.lab.report.model import SiteData
from rooftop.lab.timing import expected

CARDS = ("a800", "l40s", "rtx4090", "h20", "h100", "h200", "rtx5090", "b200", "mi300x", "mi350x")
NOTHING = "Nothing has been measured yet."


def judged(found: list[Record], _site: SiteData) -> str:
    """A row a family: cases, median error, and the median of expected over measured."""
    rows = [t for t in expected.timed(found) if t.device == expected.JUDGED_ON]
    if not rows:
        return NOTHING
    fitted = expected.median_error([t for t in expected.timed(found) if t.device == expected.FITTED_ON])
    lines = ["| family | cases | median error | expected / measured |", "|---|---:|---:|---:|"]
    for name in sorted({t.family for t in rows}):
        lines.append(_row(name, [t for t in rows if t.family == name]))
    lines.append(_row("**all**", rows))
    return "\n".join(lines) + (f"\n\nOn the H100's own records: {100 * fitted:.1f} %." if fitted is not None else "")


def _row(name: str, rows: list[expected.Timed]) -> str:
    from statistics import median

    sheet = lookup(expected.JUDGED_ON)
    assert sheet is not None
    ratios = [s / t.seconds for t in rows if (s := expected.MODEL.seconds(sheet, t.work)) is not None]
    error = expected.median_error(rows)
    return (
        f"| {name} | {len(rows)} | {'' if error is None else f'{100 * error:.0f} %'} | {median(ratios):.2f} |" if ratios
        else f"| {name} | {len(rows)} | | |"
    )


def cards(found: list[Record], _site: SiteData) -> str:
    """A row an op, its first bench case, a column a card: microseconds expected; where it was measured, that in brackets."""
    measured = {(t.device, t.op, t.case): t.seconds for t in expected.timed(found)}
    sheets = [s for c in CARDS if (s := lookup(TARGETS[c].name)) is not None]
    lines = [
        f"| op | case | {' | '.join(s.name.removeprefix('NVIDIA ').removeprefix('AMD ') for s in sheets)} |",
        "|---|---|" + "---:|" * len(sheets)
    ]
    for name in registry.op_names():
        op = registry.op(name)
        case = next((c for c in op.cases if "bench" in c.tags), None)
        if case is None or op.twin_of is not None or name.endswith("_ranks"):
            continue
        work, cells = op.work(op.problem(case)), []
        for sheet in sheets:
            seconds, there = expected.MODEL.seconds(sheet, work), measured.get((sheet.name, name, case.id))
            cells.append(("" if seconds is None else f"{seconds * 1e6:.4g}") + ("" if there is None else f" ({there * 1e6:.4g})"))
        lines.append(f"| {name} | {case.id} | {' | '.join(cells)} |")
    return "\n".join(lines)
