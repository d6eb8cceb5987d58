"""Binaries before anybody waits for them, and what a first call costs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import MEASURE, WRONG, AsJson, DTypeName, RecordsFolder, app, echo, table

Ops = Annotated[list[str] | None, typer.Argument(help="Ops. Default: all.", show_default=False)]


@app.command(rich_help_panel=MEASURE)
def warm(
    ops: Ops = None,
    columns: Annotated[
        list[int] | None, typer.Option(help="Number of columns of future calls; repeat for several.", show_default="4096")
    ] = None,
    dtype: DTypeName = None,
    kernel: Annotated[str | None, typer.Option(help="One kernel by name, instead of those that the calls select.")] = None,
    card: Annotated[
        str | None, typer.Option(help="The card, h100, h200, a800, rtx4090, or an architecture.", show_default="the GPU here, else h100")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile kernels ahead of time, into the disk caches.

    Compiles all binaries for calls with these columns and any number of rows; for an op without rows and columns (attention, matmul) those
    of usual calls. Needs no GPU.

    Examples: [bold]rooftop warm layer_norm rms_norm --columns 4096 --columns 5120 --dtype bf16[/bold] · [bold]rooftop warm attention --card
    h200[/bold]"""
    import torch

    from rooftop.core import registry
    from rooftop.core.implementation import device_of
    from rooftop.core.spec import TARGETS
    from rooftop.lab.timing import warm as warms

    if bad := [c for c in columns or [] if c < 1]:
        raise ValueError(f"--columns is {bad[0]}; it must be at least 1")
    if card is not None:
        try:
            device = TARGETS[card]
        except KeyError:
            raise ValueError(f"--card is {card!r}; it is one of {', '.join(TARGETS.names)} or {', '.join(map(str, TARGETS))}") from None
    else:
        device = device_of(torch.cuda.current_device()) if torch.cuda.is_available() else TARGETS[90]
    found = warms.ops(ops or [])
    if dtype is not None and not any(c.dtype == dtype for op in found for c in op.cases):
        raise ValueError(f"no case has dtype {dtype!r}; there are {', '.join(sorted({c.dtype for op in found for c in op.cases}))}")
    if kernel is not None:
        op_name = registry.implementation(kernel).op.removesuffix("_bwd")
        if not any(op.name == op_name for op in found):
            raise ValueError(f"--kernel is {kernel}, which computes {op_name}, and the ops are {', '.join(ops or [])}")
        found = [op for op in found if op.name == op_name]
    rows = [warms.warm(op, c, device, dtype, kernel=kernel) for op in found for c in (columns or [4096] if warms.kinds(op, dtype) else [0])]
    shown = [{**r.__dict__, "columns": r.columns or "", "failed": "; ".join(r.failed)} for r in rows]
    table(shown, {"op": "op", "columns": "columns", "variants": "binaries", "failed": "failed"}, as_json)
    if any(r.failed for r in rows):
        raise typer.Exit(WRONG)
    if kernel is not None and not any(r.variants for r in rows):
        raise ValueError(
            f"{kernel} takes no call with {', '.join(map(str, columns or [4096]))} columns on {device.name}, so nothing was compiled"
        )


@app.command("first-calls", rich_help_panel=MEASURE)
def first_calls(
    ops: Ops = None,
    dtype: Annotated[str, typer.Option(help="The dtype of the inputs.")] = "bf16",
    rows: Annotated[int, typer.Option(help="Number of row counts.")] = 200,
    columns: Annotated[int, typer.Option(help="Number of column counts.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the shapes.")] = 0,
    compiled: Annotated[bool, typer.Option("--compiled/--no-compiled", help="Also time torch.compile(dynamic=True).")] = True,
    records: RecordsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Measure the host time of first calls. Needs a GPU.

    Times the very first call, new rows and new columns, together with torch and torch.compile(dynamic=True), and writes records.

    Example: [bold]rooftop first-calls layer_norm --dtype bf16[/bold]"""
    import torch

    from rooftop.core import settings
    from rooftop.core.implementation import device_of
    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.records import store
    from rooftop.lab.timing import first_calls as measures
    from rooftop.lab.timing import warm as warms

    if rows < 1 or columns < 1:
        raise ValueError(f"--rows and --columns are {rows} and {columns}; they must be at least 1")
    found = warms.ops(ops or [])
    gpu_for("timing first calls")
    card = store.about(device_of(torch.cuda.current_device()))
    measured: list[dict[str, Any]] = []
    with store.Writer(records or settings.load().results, card["name"]) as writer:
        for op in (op for op in found if warms.kinds(op, dtype)):
            rows_of_op = measures.measure(op, dtype, seed=seed, rows=rows, columns=columns, compiled=compiled)
            measured += rows_of_op
            for record in measures.records(rows_of_op, card, seed):
                writer.write(record)
    if as_json:
        echo(json.dumps(measured, indent=2))
        return

    def us(seconds: float | None) -> str:
        return "" if seconds is None else f"{1e6 * seconds:,.0f}"

    shown = [
        {
            "what": f"{r['op']}{' and its gradient' if r['gradients'] else ''}", "subject": r["subject"],
            "first": us(r.get("first_s")), "known": us(r.get("known_s")),
            **{f"{k} {s}": us(r[k][f"{s}_s"]) for k in ("rows", "columns") if k in r for s in ("median", "max")},
            **{f"{k} slow": f"{r[k]['slow']} of {r[k]['n']}" for k in ("rows", "columns") if k in r}, "note": r.get("refused", ""),
        }
        for r in measured
    ]
    names = {"what": f"{dtype}, µs", "subject": "", "first": "first", "known": "known", "rows median": "new rows", "rows max": "max", "rows slow": "> 10 ms",
             "columns median": "new columns", "columns max": "max", "columns slow": "> 10 ms", "note": ""}
    table(shown, names, False)
