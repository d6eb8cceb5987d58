"""How fast kernels are, and what the card can do."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooftop.lab.cli.app import (
    MEASURE,
    SLOWER,
    WRONG,
    AsJson,
    Block,
    CaseName,
    DTypeName,
    Given,
    Grid,
    Include,
    KernelName,
    ProgramWords,
    RecordsFolder,
    SharedBytes,
    What,
    app,
    echo,
    listed,
    table,
)

if TYPE_CHECKING:
    from rooftop.lab.records.record import Record


@app.command(rich_help_panel=MEASURE)
def bench(
    what: What = None, case: CaseName = None, dtype: DTypeName = None,
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 8m.")] = "8m",
    case_budget: Annotated[float, typer.Option(help="Seconds of sampling for each case on the kernel clock.")] = 4.0,
    clocks: Annotated[str, typer.Option(help="Clocks, comma-separated: kernel, cold, hot, host.")] = "kernel,cold,hot,host",
    duty: Annotated[str, typer.Option(
        help="For the kernel clock: normal, burst, sustained, comma-separated; auto: burst and sustained for compute-bound cases, else normal."
    )] = "auto",
    records: Annotated[Path | None, typer.Option(
        "--records", "--export", help="Folder of the records; rooftop expect --records shows them beside what was expected.",
        show_default="results/"
    )] = None,
    again: Annotated[bool, typer.Option("--again", help="Also measure cases that have fresh records.")] = False,
    compiled: Annotated[bool, typer.Option(help="Include torch.compile among the peers: it compiles for seconds in each case.")] = True,
    require: Annotated[float | None, typer.Option(help="Exit with 2 unless every kernel is at least this many times as fast as the best peer.")] = None,
    like: Annotated[str | None, typer.Option(help="For a .cu without a head: a function to be timed beside it, as torch.softmax or FILE.py:FUNCTION.")] = None,
    arg: Given = None, kernel: KernelName = None, grid: Grid = None, block: Block = None, shared: SharedBytes = 0, args: ProgramWords = None,
    include: Include = None,
    invariant: Annotated[bool, typer.Option("--invariant", help="Time each op with and without rooftop.invariant(), --budget in all.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check and time kernels beside their peers. Needs a GPU.

    Compiles on all cores first, starts with cases that have no fresh record, writes after each case, and continues an interrupted run.
    Under torchrun it times kernels of several ranks on its GPUs, together with NCCL and torch. For a .cu without a head it times each
    launch of its main() or its functions, at the sizes used there, and writes no record.

    Examples: [bold]rooftop bench softmax --budget 8m[/bold] · [bold]rooftop bench sgemm_cuda --case "4096 cubed" --records out/[/bold] ·
    [bold]rooftop bench my.cu --arg rows=4096 --arg cols=1024[/bold]"""
    from rooftop.core import settings
    from rooftop.lab import candidates
    from rooftop.lab.check import own_op
    from rooftop.lab.cli import noted
    from rooftop.lab.cli import ranks as several
    from rooftop.lab.timing import bench as benches

    if invariant:
        _bench_invariant(what or [], _seconds(budget), records or settings.load().results, as_json)
        return
    launch = {"--like": like, "--arg": arg, "--kernel": kernel, "--grid": grid, "--block": block, "--args": args, "-I": include}
    if any(own_op.headless(Path(w)) for w in what or []):
        if len(what or []) != 1:
            raise ValueError(f"one .cu without a head is timed at a time; {len(what or [])} things are named")
        _bench_own(Path((what or [""])[0]), like, arg or [], kernel, grid, block, shared, args, include or [], case_budget, as_json)
        return
    for option, said in launch.items():
        if said:
            raise ValueError(f"{option} {said}: it goes with a .cu without a head; {', '.join(what or []) or 'nothing'} was named")
    found = candidates.find(what or [])
    if several.launched():
        if several.bench_on_ranks(found, case, _seconds(budget), records or settings.load().results, case_budget):
            raise typer.Exit(WRONG)
        return
    todo = benches.fields(found, case=case, dtype=dtype, compiled=compiled)
    say = (lambda text: echo(text, err=True)) if as_json else echo
    summary = benches.run(todo, records or settings.load().results, budget_s=_seconds(budget), case_budget_s=case_budget,
                          clocks=tuple(clocks.split(",")), duty=tuple(duty.split(",")), again=again, say=say)
    noted.bench(summary.written, len(summary.wrong))
    if as_json:
        echo(json.dumps(summary.written, indent=2, default=dict))
    else:
        listed("not measured", summary.skipped)
        listed("left for the next run: the budget is spent", summary.left)
        listed("WRONG", summary.wrong)
    if summary.wrong:
        raise typer.Exit(WRONG)
    if require is not None and any(_slower(r, require) for r in summary.written):
        raise typer.Exit(SLOWER)


def _bench_invariant(names: list[str], budget_s: float, folder: Path, as_json: bool) -> None:
    import torch

    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.records import store
    from rooftop.lab.timing import invariant_costs

    gpu_for("timing")
    records = []
    with store.Writer(folder, torch.cuda.get_device_name()) as writer:  # after each op: a run that is ended keeps what it has
        for record in invariant_costs.measure(names, budget_s, (lambda text: None) if as_json else echo):
            records.append(record)
            if record["rows"]:
                writer.write(record)
    if not any(r["rows"] for r in records):
        left = [line for r in records for line in r["left"]]
        raise ValueError(f"nothing was timed: {'; '.join(left[:3]) or 'the mode makes no difference to these ops'}")
    shown = [store.Record({**r, "at": ""}) for r in records]
    echo(json.dumps(records, indent=2) if as_json else invariant_costs.table(shown))


def _bench_own(
    path: Path, like: str | None, given: Sequence[str], kernel: str | None, grid: str | None, block: str | None, shared: int,
    args: str | None,
    folders: Sequence[Path], budget: float, as_json: bool,
) -> None:
    """A file without a head: what it launches, and on a GPU how long each launch takes."""
    from rooftop.core.compile import ToolchainError
    from rooftop.lab import simt
    from rooftop.lab.check import like as likes
    from rooftop.lab.cli.launched import launch_of
    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.simt import program
    from rooftop.lab.timing import own_program

    if reason := simt.unavailable():
        raise ToolchainError(reason)
    launch = launch_of(kernel, grid, block, shared)
    if launch or like:
        source, assumed = likes.source_for(path, given, folders, launch), ""
    else:
        source, assumed = program.source_of(path, folders, given)
    peers = own_program.peers(source, like, given) if like else {}
    plan = own_program.plan(source, shlex.split(args or ""))
    say = functools.partial(echo, err=as_json)
    if assumed:
        say(f"called as assumed (--arg gives others): {assumed}")
    for step in plan.steps:
        say(str(step))
    gpu_for(f"timing {'this launch' if len(plan.steps) == 1 else f'these {len(plan.steps)} launches'}")
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab.timing.timer import Timer
    from rooftop.lab.timing.timer_cuda import CudaBackend

    index = torch.cuda.current_device()
    at = torch.device("cuda", index)
    device = device_of(index)
    count = own_program.sets(plan, device.l2_bytes)
    rows = own_program.measure(source, plan, Timer(CudaBackend(index)), at, device.target, own_program.on(peers, at, count), budget, count)
    shown = [{**r, "time": f"{r['seconds'] * 1e6:,.1f} us", "of": f"{r['ratio']:.2f}x" if r["ratio"] else ""} for r in rows]
    table(
        rows if as_json else shown, {"what": "launch", "time": f"time on {torch.cuda.get_device_name(index)}", "of": "of the launches'"},
        as_json
    )


def _slower(record: Record, line: float) -> bool:
    """Whether a kernel misses `line` times the best peer; within noise of it counts as reached."""
    peers = [v for v in record.versus if v.name.startswith("peer:")]
    if record.subject.startswith("peer:") or not peers:
        return False
    best = peers[0].speed  # the slowest beside the fastest of them
    return best < line and not any(v.verdict == "same" and v.speed == best for v in peers)


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        return float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: write 90s, 8m or 1h") from None


@app.command(rich_help_panel=MEASURE)
def calibrate(
    records: RecordsFolder = None,
    parts: Annotated[
        str, typer.Option(help="Which ceilings, comma-separated: memory (with the launch and fp32 FMA), l2, tensor; none.")
    ] = "memory,l2,tensor",
    clocks: Annotated[bool, typer.Option("--clocks", help="Also time one copy with ten methods, for docs/timing.md.")] = False,
    builds: Annotated[bool, typer.Option("--builds", help="Also how long a kernel takes to build, for docs/dependencies.md.")] = False,
    comm: Annotated[
        bool, typer.Option("--comm", help="Instead, under torchrun: time all-reduce by size and wire, for the choices of rooftop.comm.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure this card's ceilings. Needs a GPU.

    The ceilings are the memory, the L2, the launch, fp32 FMA and tensor cores. Takes about two minutes.

    Examples: [bold]rooftop calibrate --records out/[/bold] · [bold]rooftop calibrate --parts none --clocks --builds[/bold]"""
    import torch

    from rooftop.core import settings
    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.records import store as recs
    from rooftop.lab.timing import calibrate as calibrating
    from rooftop.lab.timing import sensors

    gpu_for("calibrate")
    if comm:
        _sizes(as_json)
        return
    index = torch.cuda.current_device()

    def say(text: str) -> None:
        echo(text, err=True)

    written = []
    with recs.Writer(records or settings.load().results, torch.cuda.get_device_name(index)) as writer:
        chosen = () if parts == "none" else tuple(p.strip() for p in parts.split(","))
        written += [writer.write(r) for r in calibrating.calibrate(index, parts=chosen, sensors=functools.partial(sensors.told, index), progress=say)]  # type: ignore[arg-type]
        if clocks:
            from rooftop.lab.timing.timer_cuda import naive_demo

            written.append(writer.write(naive_demo(index) | {"versions": recs.versions()}))
        if builds:
            from rooftop.lab.timing import build_time as building

            written += [writer.write(r) for r in building.measure(say=say)]
        if written:
            echo(json.dumps(written, default=dict) if as_json else f"wrote {writer.path}")


def _sizes(as_json: bool) -> None:
    """The table of sizes, measured by the processes that torchrun has started."""
    import torch
    import torch.distributed as dist

    from rooftop.lab.timing import comm_sizes
    from rooftop.ranks import sizes

    if not dist.is_torchelastic_launched():
        raise ValueError("calibrate --comm measures several GPUs: torchrun --nproc-per-node 4 -m rooftop.lab.cli calibrate --comm")
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    first = dist.get_rank() == 0
    rows = comm_sizes.sizes(dist.group.WORLD, say=lambda text: echo(text, err=True) if first else None)
    if first:
        path = sizes.save(torch.cuda.get_device_name(), dist.get_world_size(), rows)
        echo(json.dumps(rows) if as_json else f"wrote {path}")
    dist.barrier()
    dist.destroy_process_group()
