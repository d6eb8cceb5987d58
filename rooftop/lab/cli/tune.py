"""Configs, chosen by measuring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import MEASURE, WRONG, AsJson, CaseName, DTypeName, What, app, echo, table
from rooftop.lab.cli.measure import _seconds


@app.command(rich_help_panel=MEASURE)
def tune(
    what: What = None, case: CaseName = None, dtype: DTypeName = None,
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 4m.")] = "4m",
    records: Annotated[Path | None, typer.Option(help="Folder of the records.", show_default="results/")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of the tables of configs.", show_default="the package's tuned/")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: install the tables that --keep wrote on another machine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time every config that a kernel lists; for each case, store one that is faster than the heuristic's by more than the noise. Needs a
    GPU.

    Without names: every shipped kernel; rungs only if named. Configs with wrong results are never stored. Cases that were never tuned come
    first.

    Examples: [bold]rooftop tune softmax --budget 4m[/bold] · [bold]rooftop tune --keep out/tuned --records out/[/bold]
    · [bold]rooftop tune --from out/tuned[/bold]"""
    from rooftop.core import implementation, settings
    from rooftop.lab import candidates
    from rooftop.lab.tune import tables
    from rooftop.lab.tune import tuner as tunes

    if source is not None:
        if what or case or dtype or records:
            raise typer.BadParameter("--from brings tables home and measures nothing: of the rest only --keep and --json go with it")
        brought = tables.bring(source, implementation.TUNED if keep is None else keep)
        if as_json:
            echo(json.dumps(brought.__dict__))
        else:
            echo(f"{len(brought.taken)} entries taken, {len(brought.same)} already there")
            _list("left out: measured with other code than the kernel's now", brought.stale)
        return
    found = [s for s in candidates.find(what or []) if what or s.rung is None]
    say = (lambda text: echo(text, err=True)) if as_json else echo
    summary = tunes.run(
        tunes.jobs(found, case=case, dtype=dtype), records or settings.load().results, keep, budget_s=_seconds(budget), say=say
    )
    if as_json:
        echo(json.dumps(summary.__dict__, indent=2, default=dict))
    else:
        rows: list[dict[str, Any]] = [
            {
                "subject": r.subject, "case": r.case, "configs": len(r["configs"]), "verdict": r["verdict"],
                "gain": f"{r['over_heuristic']:.3f}" if r["pick"] else "", "config": tables.label(r["pick"]) if r["pick"] else "",
            }
            for r in summary.written
        ]
        if rows:
            columns = {
                "subject": "implementation", "case": "case", "configs": "configs", "verdict": "verdict", "gain": "over heuristic",
                "config": "kept"
            }
            table(rows, columns, False)
        _list("tables written", summary.tables)
        _list("not tuned", summary.skipped)
        _list("configs that do not run", summary.failed)
        _list("left for the next run: the budget is spent", summary.left)
        _list("WRONG", summary.wrong)
    if summary.wrong:
        raise typer.Exit(WRONG)


def _list(title: str, lines: list[str]) -> None:
    if lines:
        echo(f"{title}:\n" + "\n".join(f"    {line}" for line in lines))
