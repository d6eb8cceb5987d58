"""How fast an op is between its cases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import MEASURE, SLOWER, WRONG, AsJson, DTypeName, RecordsFolder, app, echo, table

if TYPE_CHECKING:
    from rooftop.core.contract import Contract
    from rooftop.core.sweeps import Sizes
    from rooftop.lab.candidates import Subject
    from rooftop.lab.records.record import Record

LINES = (0.5, 0.6, 0.65, 0.75, 0.78, 0.88)  # shares of the roof; how many points lie below each is printed
SHOWN = 12  # of the worst points
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@app.command(rich_help_panel=MEASURE)
def sweep(
    what: Annotated[
        list[str],
        typer.Argument(help="Ops; or implementations, which are timed in addition to the one that a call selects.", show_default=False)
    ],
    points: Annotated[int, typer.Option(help="Random sizes, in addition to the models' widths.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the sizes.")] = 0,
    dtype: DTypeName = None,
    size: Annotated[list[str] | None, typer.Option(help="The range of a size, as columns=64..4096. Repeatable.", show_default=False)] = None,
    moved: Annotated[
        str, typer.Option("--bytes", help="Range of the bytes that a call with many rows reads and writes; for an op without rows, its upper end is the limit.")
    ] = "128M..1G",
    direction: Annotated[str, typer.Option(help="forward, backward or both.")] = "both",
    compiled: Annotated[int, typer.Option(help="Number of points at which torch.compile and quack are timed too.")] = 4,
    models: Annotated[bool, typer.Option("--models/--no-models", help="Also the widths of forty well-known models.")] = True,
    budget: Annotated[float, typer.Option(help="Seconds for each op and direction, compiling included.")] = 120.0,
    total: Annotated[float | None, typer.Option(help="Seconds in total; each op gets an equal part of the time that is left, at most its budget.")] = None,
    worst: Annotated[int, typer.Option(help="List so many of the worst points, with kernel, config, bound and the fastest other config.")] = 0,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Compile the kernels of all points, and time nothing.")] = False,
    records: RecordsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time ops at sizes between their cases. Needs a GPU.

    The sizes are the widths of well-known models and random ones. A copy, torch and Liger are timed with them.

    The op's contract says which numbers are sizes. Results are on disk within a second. If an op fails, the others continue. Exit code 2: a
    point is slower than a peer, or its share of the roof is under 0.8 of its neighbours'; 1: a result is wrong, or an op failed.

    Examples: [bold]rooftop sweep rms_norm layer_norm[/bold] · [bold]rooftop sweep softmax --size columns=64..4096 --seed 7[/bold]"""
    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.records import store
    from rooftop.lab.timing import sweep as sweeping
    from rooftop.lab.timing import sweep_points

    if direction not in ("both", "forward", "backward"):
        raise ValueError(f"direction is {direction!r}; accepted are both, forward, backward")
    ranges = dict(_range(text) for text in size or [])
    asked = _asked(what, direction)
    todo = [(op, sweep_points.narrowed(sweep_points.swept(op), ranges, dtype), named) for op, named in asked]
    bounds = _bounds(moved)
    if worst < 0:
        raise ValueError(f"worst is {worst}; it must be 0 or more points")
    if not budget > 0:
        raise ValueError(f"budget is {budget:g}; it must be above 0 seconds")
    if total is not None and not total > 0:
        raise ValueError(f"total is {total:g}; it must be above 0 seconds")

    import torch

    gpu_for("sweep")
    from rooftop.core import settings
    from rooftop.core.implementation import device_of

    device = device_of(torch.cuda.current_device())
    memory = int(torch.cuda.mem_get_info()[0] * sweep_points.SHARE)
    say = partial(echo, err=as_json)
    ends = None if total is None else time.monotonic() + total
    written: list[Mapping[str, Any]] = []
    codes: set[int] = set()
    ceilings = None  # the records of the card are read once
    if compile_only:
        from rooftop.lab.timing import bench

        began, fields = time.monotonic(), []
        for op, of, named in todo:
            chosen = sweep_points.draw(op, of, device, memory, seed=seed, count=points, moved=bounds, of_models=models)
            fields += sweeping.Sweep(op, of, chosen, device, named=named, compiled=0).fields(range(len(chosen)))
        say(f"{bench.compile_first(fields, device)} programs compiled in {time.monotonic() - began:.1f} s")
        return
    with store.Writer(records or settings.load().results, device.name) as writer:
        for k, (op, of, named) in enumerate(todo):
            seconds = budget if ends is None else min(budget, (ends - time.monotonic()) / (len(todo) - k))
            if seconds <= 0:
                say(f"{op.name}: left out: {total:g} s are spent")
                continue
            save, lost = writer.replacing(seed=seed), False
            try:
                chosen = sweep_points.draw(op, of, device, memory, seed=seed, count=points, moved=bounds, of_models=models)
                run = sweeping.Sweep(op, of, chosen, device, named=named, compiled=compiled, ceilings=ceilings)
                ceilings = run.ceilings
                found = run.run(seconds, say, save)
                codes |= {WRONG} if run.wrong else set()
                lost = run.ended
                if found["us"]:
                    written.append(last := save(found))
                    codes |= {SLOWER} if _shown(last, as_json) else set()
                    if worst and not lost:
                        written[-1] = {**last, "worst": _worst(run, last, worst, seconds, as_json)}
            except Exception as error:
                if len(todo) == 1 or isinstance(error, OSError):  # a disk that is full is full for all of them
                    raise
                say(f"{op.name}: {sweeping.first_line(error)}")
                codes.add(WRONG)
                lost = sweeping.context_lost()
            if lost and todo[k + 1 :]:
                left = None if ends is None else max(0.0, ends - time.monotonic())
                flags = {"--points": points, "--seed": seed, "--dtype": dtype, "--bytes": moved, "--compiled": compiled, "--budget": budget, "--total": left,
                         "--worst": worst or None,
                         "--records": records}
                more = [*(w for t in size or [] for w in ("--size", t)), "--models" if models else "--no-models", *(["--json"] if as_json else [])]
                code, others = _in_new_process(todo[k + 1 :], [*(str(w) for n, v in flags.items() if v is not None for w in (n, v)), *more], as_json)
                codes.add(code)
                written += others
                break
    if as_json:
        echo(json.dumps(written, default=dict))
    if code := next((c for c in (WRONG, SLOWER) if c in codes), 0):
        raise typer.Exit(code)


def _in_new_process(todo: Iterable[tuple[Contract, Sizes, list[Subject]]], flags: list[str], as_json: bool) -> tuple[int, list[dict[str, Any]]]:
    """The same command for the ops that are left, in a process with a CUDA context of its own; its exit code and, as JSON, its records."""
    from rooftop.core import settings

    words = [w for op, _, named in todo for w in (op.name, *(s.name for s in named))]
    # a backward is named where it is wanted
    command = [sys.executable, "-m", "rooftop.lab.cli", "sweep", *words, "--direction", "forward", *flags]
    done = subprocess.run(
        command, stdout=subprocess.PIPE if as_json else None, env=settings.environment({"PYTHONPATH": str(settings.CHECKOUT)}), check=False
    )
    try:
        records = json.loads(done.stdout) if as_json else []
    except ValueError:
        records = []
    return done.returncode if done.returncode in (0, SLOWER) else WRONG, records


def _asked(words: Iterable[str], direction: str) -> list[tuple[Contract, list[Subject]]]:
    """Ops in the order asked for, each with the implementations of it that were named."""
    from rooftop.core import registry
    from rooftop.lab import candidates

    ops: dict[str, tuple[Contract, list[Subject]]] = {}
    for word in words:
        if word in registry.op_names() or (word.endswith("_bwd") and word.removesuffix("_bwd") in registry.op_names()):
            op = registry.op(word)
            both = [op] if op.forward else [
                *([op] if direction != "backward" else []), *([op.bwd] if op.bwd and direction != "forward" else [])
            ]
            if not both:
                raise ValueError(f"{word} has no backward that is an op of its own")
            for one in both:
                ops.setdefault(one.name, (one, []))
            continue
        for subject in candidates.find([word]):
            if subject.implementation is None or subject.rung is not None:
                raise ValueError(f"{word!r} is no op and no implementation; rungs are timed by rooftop bench")
            ops.setdefault(subject.op.name, (subject.op, []))[1].append(subject)
    return list(ops.values())


def _range(text: str) -> tuple[str, tuple[int, int]]:
    """`columns=64..4096`, or one value."""
    found = re.fullmatch(r"(\w+)=(\d+)(?:\.\.(\d+))?", text)
    if not found:
        raise ValueError(f"{text!r} is no range of a size; write columns=64..4096")
    return found[1], (int(found[2]), int(found[3] or found[2]))


def _bounds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)([KMG]?)\.\.(\d+)([KMG]?)", text)
    if not found:
        raise ValueError(f"{text!r} is no range of bytes; write 128M..1G")
    return int(found[1]) * UNITS[found[2]], int(found[3]) * UNITS[found[4]]


def _shown(record: Record, as_json: bool) -> int:
    """Print what a record says; how many points fall behind."""
    from rooftop.lab.timing import swept
    from rooftop.lab.timing.statistics import median

    found = swept.points(record)
    cliffs, slower = swept.cliffs(found), swept.slower(found, record.get("named", ()))
    behind = {p.index for p, _ in cliffs} | {p.index for p, _, _ in slower}
    if as_json:
        return len(behind)
    for few, about in ((False, "many rows"), (True, "few rows")):
        for even, lies in ((True, "rows on 16 bytes"), (False, "odd rows")):
            some = [p for p in found if p.few == few and p.aligned == even]
            if some:
                below = ", ".join(f"{n} under {line:g}" for n, line in zip(swept.counted(some, LINES), LINES, strict=True) if n)
                echo(f"    {about}, {lies}: {len(some)} points, median {median([p.share for p in some]):.2f} of the roof; {below or 'none under 0.88'}")
    said: dict[int, list[str]] = {}
    for p, near in cliffs:
        said.setdefault(p.index, []).append(f"neighbours {near:.2f}")
    for p, name, ratio in slower:
        said.setdefault(p.index, []).append(f"{ratio:.2f} of {name}")
    worst = sorted((p for p in found if p.index in said), key=lambda p: p.share)[:SHOWN]
    rows = [{"point": p.title, "share": p.share, "us": p.seconds * 1e6, "by": p.by, "behind": "; ".join(said[p.index])} for p in worst]
    if rows:
        title = f"{record['op']}: {len(behind)} of {len(found)} points fall behind"
        table(rows, {"point": "point", "share": "of the roof", "us": "us", "by": "kernel", "behind": "behind"}, False, title)
    return len(behind)


def _worst(run: Any, record: Record, count: int, seconds: float, as_json: bool) -> list[dict[str, Any]]:
    from rooftop.lab.timing import swept
    from rooftop.lab.tune import worst

    rows = worst.table(run, swept.points(record), count, seconds)
    if not as_json:
        columns = {"point": "point", "share": "of the roof", "us": "us", "kernel": "kernel", "config": "config", "bound": "bound", "next": "next better"}
        title = f"{record['op']}: the worst {len(rows)}; {worst.needed(run.device) / 1024:.0f} KiB in flight keep the memory busy"
        table(rows, {**columns, "faster": "times as fast"}, False, title)
    return rows
