"""Which kernel compiles for which target."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, AsJson, app, echo, table

SUMMARY = {"target": "target", "card": "figures of", "compiles": "compile", "too large": "too large", "failed": "fail", "refused": "not for it",
           "unknown": "not compiled", "matrix": "matrix", "spilling": "spill"}
CELLS = {"kernel": "kernel", "target": "target", "state": "state", "registers": "regs", "spills": "spill B", "shared": "shared B", "limit": "of",
         "matrix": "matrix instructions", "reason": "why"}


@app.command(rich_help_panel=JUDGE)
def targets(
    what: Annotated[
        list[str] | None, typer.Argument(help="Ops or implementations. Default: all, a row a target.", show_default=False)
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="The target: sm_80, 86, 90a, 120a, gfx942, ... Default: all ten.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Compile what has changed since the table was written; all of it takes an hour.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which kernel compiles for which target.

    Targets are NVIDIA's sm_80 to sm_120a and AMD's. Shows registers, spills, shared memory and matrix instructions from a stored table;
    only --update compiles. Exit code 1 if a kernel has lost its matrix instructions on a target.

    Examples: [bold]rooftop targets[/bold] · [bold]rooftop targets matmul --target 120a[/bold]"""
    from rooftop.lab import candidates
    from rooftop.lab.inspect import targets as cells
    from rooftop.lab.inspect import targets_kept as kept
    from rooftop.lab.report import targets_page as page

    columns = [cells.target_of(t) for t in target] if target else list(cells.COLUMNS)
    every = cells.subjects()
    if what:
        names = {s.name for s in candidates.find(what)}
        if not (mine := [s for s in every if s.name in names]):
            raise ValueError(f"{', '.join(what)}: none of these is a shipped kernel in Triton, Gluon or CUDA C++ (rooftop ls)")
        every = mine
    if update:
        kept.update(every, columns, lambda line: echo(line, err=True))
    found = list(kept.table(every, columns, kept.read()))
    lost = kept.lost(found)
    outdated = sum(not c.current for c in found)
    if as_json:
        others = [r for r in page.of_others() if (not what or r["kernel"] in {s.name for s in every}) and not target]
        echo(json.dumps({"cells": [{**page.row_of(c), "current": c.current} for c in found] + others, "lost": lost}, indent=1))
    elif what:
        table(
            [{**page.row_of(c), "matrix": ", ".join(f"{k} {n}" for k, n in (c.row or {}).get("matrix", {}).items())} for c in found], CELLS,
            False
        )
    else:
        table(page.summary(found), SUMMARY, False)
    if not as_json:
        for line in lost:
            echo(line)
        if outdated:
            echo(f"{outdated} of {len(found)} cells are not of the kernels as they are: rooftop targets --update compiles them")
    if lost:
        raise typer.Exit(WRONG)
