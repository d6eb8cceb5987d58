"""Configs, chosen by measuring."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import MEASURE, WRONG, AsJson, CaseName, DTypeName, RecordsFolder, What, app, echo, listed, table
from rooftop.lab.cli.measure import _seconds

SHOWN = 16  # points of a regret, the worst first


@app.command(rich_help_panel=MEASURE)
def tune(
    what: What = None, case: CaseName = None, dtype: DTypeName = None,
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 4m.")] = "4m",
    records: RecordsFolder = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of the tables of configs.", show_default="the package's tuned/")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: install the tables that --keep wrote on another machine.")
    ] = None,
    regret: Annotated[
        int | None,
        typer.Option(help="Tune nothing: at this number of random sizes, time what a call runs beside the other kernels and 20 configs of its own kernel.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --regret: seed of the sizes.")] = 0,
    size: Annotated[list[str] | None, typer.Option(help="With --regret: the range of a size, as M=16..4096. Repeatable.", show_default=False)] = None,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="With --regret: compile the programs of all points, and time nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time the configs of a kernel, and keep faster ones.

    For each case, a config is stored if it is faster than the heuristic's by more than the noise. Needs a GPU.

    Without names: every shipped kernel; rungs only if named. Configs with wrong results are never stored. Cases that were never tuned come
    first.

    Examples: [bold]rooftop tune softmax --budget 4m[/bold] · [bold]rooftop tune --keep out/tuned --records out/[/bold]
    · [bold]rooftop tune --from out/tuned[/bold] · [bold]rooftop tune matmul --regret 40 --seed 7[/bold]"""
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
            listed("left out: measured with other code than the kernel's now", brought.stale)
        return
    if regret is None and (given := [n for n, v in (("--seed", seed), ("--size", size), ("--compile-only", compile_only)) if v]):
        raise typer.BadParameter(f"{given[0]} goes with --regret")
    if regret is not None:
        if case or keep:
            raise typer.BadParameter("--regret draws its sizes and stores no config: --case and --keep do not go with it")
        _regret(what or [], regret, seed, size or [], dtype, _seconds(budget), records, compile_only, as_json)
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
        listed("tables written", summary.tables)
        listed("not tuned", summary.skipped)
        listed("configs that do not run", summary.failed)
        listed("left for the next run: the budget is spent", summary.left)
        listed("WRONG", summary.wrong)
    if summary.wrong:
        raise typer.Exit(WRONG)


def _regret(
    what: list[str], count: int, seed: int, sizes: list[str], dtype: str | None, seconds: float, records: Path | None,
    compile_only: bool, as_json: bool
) -> None:
    """The time lost by what calls take, op by op: its record, and the worst points."""
    from rooftop.core import settings
    from rooftop.lab.cli.sweep import _asked, _range
    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.records import store
    from rooftop.lab.timing import bench, sweep_points, swept
    from rooftop.lab.tune import regret

    if not what or count < 1:
        raise typer.BadParameter("--regret takes at least one size, of ops that are named: rooftop tune matmul --regret 40")
    todo = [(op, sweep_points.narrowed(sweep_points.swept(op), dict(map(_range, sizes)), dtype)) for op, _ in _asked(what, "forward")]
    import torch

    gpu_for("tune --regret")
    from rooftop.core.implementation import device_of

    device, written, wrong = device_of(torch.cuda.current_device()), [], False
    say = (lambda text: echo(text, err=True)) if as_json else echo
    began, ends, runs = time.monotonic(), time.monotonic() + seconds, list[regret.Regret]()
    for op, of in todo:
        points = sweep_points.draw(op, of, device, int(torch.cuda.mem_get_info()[0] * sweep_points.SHARE), seed=seed, count=count, of_models=False)
        runs.append(regret.Regret(op, of, points, device, ceilings=runs[0].ceilings if runs else None))
    if compile_only:
        programs = bench.compile_first([f for run in runs for f in run.fields(range(len(run.points)))], device)
        say(f"{programs} programs compiled in {time.monotonic() - began:.1f} s")
        return
    with store.Writer(records or settings.load().results, device.name) as writer:
        for k, run in enumerate(runs):
            save = writer.replacing(seed=seed)
            measured = run.run((ends - time.monotonic()) / (len(runs) - k), say, save)
            wrong |= bool(run.wrong)
            if not measured["us"]:
                continue
            record, every = save(measured), [run.every[i] for i in sorted(run.every)]
            written.append({**record, "every": every})
            if as_json:
                continue
            lost = regret.ratios(record)
            shown = sorted(zip(lost, swept.points(record), every, record["best"], strict=True), key=lambda row: -row[0])[:SHOWN]
            rows = [{"point": p.title, "us": p.seconds * 1e6, "ran": f"{p.by} ({e['config']})", "best": best, "lost": x} for x, p, e, best in shown]
            title = (
                f"{run.op.name}: the time of the choice over the best of those tried, {len(lost)} points: {regret.mean(lost):.3f} in the geometric mean, "
                f"at most {max(lost):.2f}"
            )
            table(rows, {"point": "point", "us": "us", "ran": "a call runs", "best": "best", "lost": "time over best"}, False, title)
    if as_json:
        echo(json.dumps(written))
    if wrong:
        raise typer.Exit(WRONG)


