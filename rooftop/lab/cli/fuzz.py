"""Random calls of the public functions."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, AsJson, app, echo

SLOW = 20.0  # seconds from which on the slowest call is named


@app.command(rich_help_panel=JUDGE)
def fuzz(
    ops: Annotated[list[str] | None, typer.Argument(help="Ops. Default: all of them, in turn.", show_default=False)] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds to run; 60 if --calls is not given either.", show_default=False)] = None,
    calls: Annotated[int | None, typer.Option(help="Number of calls.")] = None,
    seed: Annotated[int | None, typer.Option(help="0 to 2**31 - 1. Default: a new one each time.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes on a GPU.", show_default="a quarter of the CPUs, 8 at most")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")] = False,
    invariant: Annotated[
        bool, typer.Option("--invariant", help="Compare the bits of rows and sequences alone and among others, under rooftop.invariant().")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check random calls of the public functions.

    Draws shapes, layouts, offsets, magnitudes, NaN and infinities, options, streams, gradients and torch.compile. On a GPU calls run in
    child processes. Without one the reference is called, and the chosen kernels run in the interpreter and the simulator.

    A failing call is minimised and printed as lines of Python. A call that runs out of memory is skipped and counted. Exit code 1 if there
    is a finding.

    Examples: [bold]rooftop fuzz --seconds 60 --seed 1[/bold] · [bold]rooftop fuzz softmax --calls 10000[/bold] ·
    [bold]rooftop fuzz --invariant[/bold]"""
    import secrets

    import torch

    from rooftop.core import disk_cache
    from rooftop.lab.fuzz import campaign

    disk_cache.ready()
    device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
    if seconds is None and calls is None:
        seconds = 60.0
    if jobs is None:
        jobs = min(8, max(1, (os.cpu_count() or 1) // 4)) if device == "cuda" else 1
    seed = secrets.randbits(31) if seed is None else seed
    if invariant:
        _invariant(ops or [], seed, seconds, calls, device == "cuda", as_json)
        return
    shown = (lambda text: None) if as_json else (lambda text: echo(text + "\n"))
    summary = campaign.run(
        ops or [], seed=seed, seconds=seconds, calls=calls, jobs=jobs, device=device, say=shown, tell=lambda text: echo(text, err=True)
    )
    if as_json:
        rows = [{"messages": f.messages, "python": f.text(device)} for f in summary.findings]
        facts = {"seed": seed, "device": device, "calls": summary.calls, "skipped": summary.skipped, "not_drawn": summary.refused, "seconds": summary.seconds,
                 "slowest": summary.slowest, "interrupted": summary.interrupted, "ran": summary.ran, "findings": rows}
        echo(json.dumps(facts, indent=2))
    else:
        for what, n in sorted(summary.ran.items()):
            echo(f"{n:7} {what}")
        echo(f"{summary.calls} calls on {device}, seed {seed}, {summary.seconds:.0f} s: {len(summary.findings)} findings, "
                   f"{summary.skipped} skipped for want of memory, {summary.refused} not drawn")
        if summary.slowest[0] >= SLOW:
            echo(f"the slowest call: {summary.slowest[1]}, {summary.slowest[0]:.0f} s")
    if summary.interrupted:
        raise KeyboardInterrupt
    if summary.findings:
        raise typer.Exit(WRONG)
    if not summary.calls:
        raise ValueError("no call could be drawn")


def _invariant(names: list[str], seed: int, seconds: float | None, rounds: int | None, gpu: bool, as_json: bool) -> None:
    from rooftop.lab.fuzz import invariant

    found = invariant.run(names, seed=seed, seconds=seconds, rounds=rounds, gpu=gpu, say=(lambda text: None) if as_json else lambda text: echo(text + "\n"))
    if as_json:
        echo(json.dumps({"seed": seed, "calls": found.calls, "refused": found.refused, "skipped": found.skipped, "findings": found.wrong}, indent=2))
    else:
        for why, n in found.skipped.most_common(5):
            echo(f"{n:7} lengths skipped: {why}")
        echo(f"{found.calls} calls, seed {seed}: {len(found.wrong)} findings; {found.refused} lengths that the mode refuses")
    if found.wrong:
        raise typer.Exit(WRONG)
    if not found.calls:
        raise ValueError("no call could be made: see what was skipped")
