"""`rooftop diagnose my.cu`, of a file without a head: what each of its launches is, by its machine code, and what its lines cost, by the
simulator."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from rooftop.lab.cli.app import ENVIRONMENT, echo, kept_records


def show(
    path: Path, kernel: str | None, grid: str | None, block: str | None, shared: int, given: Sequence[str], args: str | None,
    folders: Sequence[Path],
    card: str, as_json: bool,
) -> None:
    """Raises ToolchainError where there is no compiler, ValueError for a launch that is not given wholly."""
    from rooftop.core.compile import ToolchainError
    from rooftop.core.devices import lookup
    from rooftop.lab import simt
    from rooftop.lab.check import like as likes
    from rooftop.lab.cli.launched import launch_of
    from rooftop.lab.counters.diagnose import show as shown
    from rooftop.lab.counters.diagnose import without
    from rooftop.lab.inspect import inspector
    from rooftop.lab.inspect.occupancy import occupancy
    from rooftop.lab.simt import own_file, program, verdict
    from rooftop.lab.timing.roofline import Ceilings

    if reason := simt.unavailable():
        raise ToolchainError(reason)
    device = inspector.device_of(card)
    launch = launch_of(kernel, grid, block, shared) if grid or block else None
    source, assumed = (likes.source_for(path, given, folders, launch), "") if launch else program.source_of(path, folders, given)
    run = program.run(source, shlex.split(args or ""), mode="count", only=None if launch else kernel)
    if not run.launches:
        echo(f"rooftop: {path}: it ended ({run.ended}, exit code {run.status}) before any launch: rooftop simt {path} says why", err=True)
        raise typer.Exit(ENVIRONMENT)
    report = run.report
    moved, written = (
        32 * sum(c.sectors for c in report.lines if c.space == "global" and (c.op != "read" or every)) for every in (True, False)
    )
    share = report.grid_blocks / max(report.blocks, 1)
    ceilings = Ceilings.from_records(kept_records(), device.name, lookup(device.name))
    roof = ceilings.roof(int((moved - written) * share), int(written * share), {"fma": (report.fma + report.other_flops / 2) * share})
    facts = own_file.facts(own_file.read(path, folders), device, kernel)
    kernels: list[dict[str, Any]] = []
    for x in run.launches:
        base = x.kernel.partition("<")[0].rpartition("::")[2].strip()
        known = next((k for k in facts.found if k["kernel"].partition("<")[0].rpartition("::")[2].strip() == base), None)
        hints: list[str] = []
        if known is not None:
            threads = x.block[0] * x.block[1] * x.block[2]
            held = occupancy(
                device.arch, registers=known["registers"], threads=threads, static_shared=known["shared"], dynamic_shared=x.shared,
                cluster=1
            )
            at = {**known, "grid": x.grid, "occupancy": {"percent": held.percent, "limiter": held.limiter, "blocks": held.blocks}}
            hints = list(without.hints_of(at, device.sms))
        kernels.append({"launch": str(x), "registers": known and known["registers"], "spills": known and known["spills"], "hints": hints})
    remarks = verdict.sentences(report)
    refused = [f"{n}: {why}" for n, why in facts.refused.items()]
    if as_json:
        echo(json.dumps({"subject": str(path), "card": device.name, "bytes": int(moved * share), "fma": report.fma, "roof": asdict(roof), "kernels": kernels,
                         "verdict": [asdict(r) for r in remarks], "refused": refused}, indent=2))
        return
    echo(f"{path} · {device.name} · without counters")
    if assumed:
        echo(f"  called as assumed (--arg gives others): {assumed}")
    echo("  time       not measured: rooftop bench times it on a GPU")
    parts = ", ".join(f"{n} {shown.time(s)}" for n, s in roof.parts.items())
    echo(f"  floor      {shown.time(roof.seconds)} ({roof.bound}), of all launches as one: {parts}, at the {int(moved * share):,} bytes that they move here")
    for k in kernels:
        echo(f"  {k['launch']}" + (f": {k['registers']} registers, {k['spills']} bytes spilled" if k["registers"] is not None else ""))
        for h in k["hints"]:
            echo(f"    {h}")
    for r in remarks:
        echo(f"  {r}" if r.file == source.shown else f"  {r.file}: {r}")
    if not remarks:
        echo("  no line costs more than it must")
    for text in refused:
        echo(f"  not compiled: {text}")
