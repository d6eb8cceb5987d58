"""The application: its name, exit codes, the options that commands share, and how rows are shown."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

OK, WRONG, SLOWER, ENVIRONMENT = 0, 1, 2, 3
LOOK, JUDGE, MEASURE, SHOW = "Find your way", "Judge", "Measure", "Records and pages"  # the panels of the help
app = typer.Typer(
    name="rooftop", no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Kernels climbed from naive to the roof: checked, measured, explained.",
)  # fmt: skip

What = Annotated[list[str] | None, typer.Argument(help="Ops, implementations, ladders, rungs (ladder/NN) or files. None: everything.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
CaseName = Annotated[str | None, typer.Option("--case", help="One case, by name or 'name dtype'.")]
DTypeName = Annotated[str | None, typer.Option("--dtype", help="Only cases of this dtype (f32, f16, bf16).")]


def table(rows: list[dict[str, Any]], columns: dict[str, str], as_json: bool, title: str = "") -> None:
    """A table, or the rows whole as JSON."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title or None, title_justify="left", header_style="bold")
    for key, name in columns.items():
        numeric = bool(rows) and all(isinstance(r.get(key), (int, float)) for r in rows)
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(cell(row.get(key)) for key in columns))
    Console().print(shown)


def cell(value: Any) -> str:
    from rich.markup import escape

    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else escape(str(value))
