"""What to expect of a card that nobody has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import MEASURE, AsJson, CaseName, app, table

COLUMNS = {"op": "op", "case": "case", "expected_us": "expected us", "measured_us": "measured us", "off": "expected / measured"}


@app.command(rich_help_panel=MEASURE)
def expect(
    what: Annotated[list[str] | None, typer.Argument(help="Ops. Default: all.", show_default=False)] = None,
    card: Annotated[str, typer.Option(help="The card: b200, rtx5090, l40s, mi300x, h20, ... or as its driver calls it.")] = "h200",
    case: CaseName = None,
    records: Annotated[
        Path | None, typer.Option(help="Folder of records to show beside it, as rooftop bench --export writes it.", show_default="results/")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the time to expect of each bench case on a card.

    The times follow from a model fitted on an H100. Measured times are shown beside them. Needs no GPU.

    Example: [bold]rooftop expect rms_norm --card b200[/bold]"""
    from rooftop.core import registry, settings
    from rooftop.core.devices import lookup
    from rooftop.core.spec import TARGETS
    from rooftop.lab.records import store
    from rooftop.lab.timing import expected

    known = TARGETS.get(card)  # type: ignore[call-overload]
    sheet = lookup(card if known is None else known.name)
    if sheet is None:
        raise ValueError(f"--card {card} has no datasheet here; those that have one: {', '.join(TARGETS.names)}")
    if records is not None and not records.exists():
        raise FileNotFoundError(f"no {records}")
    found = expected.timed(store.read(records or settings.load().results))
    measured = {(t.op, t.case): t.seconds for t in found if t.device == sheet.name}
    rows: list[dict[str, Any]] = []
    for op_name in what or registry.op_names():
        op = registry.op(op_name)
        for c in [op.case(case)] if case else [c for c in op.cases if "bench" in c.tags]:
            seconds = expected.MODEL.seconds(sheet, op.work(op.problem(c)))
            there = measured.get((op.name, c.id))
            rows.append({
                "op": op.name, "case": c.id, "expected_us": None if seconds is None else seconds * 1e6,
                "measured_us": there and there * 1e6,
                "off": seconds / there if seconds and there else None,
            })
    table(rows, COLUMNS, as_json)
