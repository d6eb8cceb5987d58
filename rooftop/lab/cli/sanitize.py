"""Kernels under compute-sanitizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, AsJson, CaseName, What, app, echo, table


@app.command(rich_help_panel=JUDGE)
def sanitize(
    what: What = None, case: CaseName = None,
    tools: Annotated[str, typer.Option(help="Tools, comma-separated: memcheck, racecheck, synccheck.")] = "memcheck,racecheck,synccheck",
    records: Annotated[Path | None, typer.Option(help="Folder to write sanitize records to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find faults on a GPU with NVIDIA's compute-sanitizer.

    Finds accesses out of bounds, races and wrong barriers. Needs a GPU and the CUDA toolkit.

    Runs the edge cases with torch's caching allocator off. First the sanitizer must find the faults planted in three small kernels. Exit
    code 1 for any finding.

    Examples: [bold]rooftop sanitize softmax_cuda[/bold] · [bold]rooftop sanitize my.cu --tools memcheck --case "odd f32"[/bold]"""
    from rooftop.lab import candidates
    from rooftop.lab import sanitize as sanitizes
    from rooftop.lab.records import store as recs

    def say(text: str) -> None:
        echo(text, err=True)

    found = candidates.find(what or [])
    chosen = tuple(t.strip() for t in tools.split(",") if t.strip())
    if records is None:
        results = sanitizes.run(found, chosen, case=case, say=say)
    else:
        import torch

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        with recs.Writer(records, name) as writer:
            results = sanitizes.run(found, chosen, case=case, writer=writer, say=say)
    rows: list[dict[str, Any]] = [
        {"subject": r.subject, "tool": r.tool, "errors": r.errors, "cases": len(r.cases), "finding": r.message or r.first} for r in results
    ]
    if as_json:
        echo(json.dumps(rows, indent=2))
    else:
        unclean = [row for row, r in zip(rows, results, strict=True) if not r.clean]
        if unclean:
            table(unclean, {"subject": "subject", "tool": "tool", "errors": "errors", "cases": "cases", "finding": "first finding"}, False)
        echo(f"{len(results) - len(unclean)} of {len(results)} clean ({len({r.subject for r in results})} subjects, {', '.join(chosen)})")
    if any(not r.clean for r in results):
        raise typer.Exit(WRONG)
