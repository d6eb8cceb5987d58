"""CUDA C++ run on the CPU, thread by thread."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooftop.core.texts import printable
from rooftop.lab.cli import cased, launched
from rooftop.lab.cli.app import (
    ENVIRONMENT,
    JUDGE,
    WRONG,
    AsJson,
    Block,
    Given,
    Grid,
    Include,
    KernelName,
    ProgramWords,
    SharedBytes,
    app,
    echo,
)

if TYPE_CHECKING:
    from rooftop.lab.simt import Report
    from rooftop.lab.simt.launching import Mode


@app.command(rich_help_panel=JUDGE)
def simt(
    what: Annotated[
        str,
        typer.Argument(help="A rung (ladder/NN), an implementation in CUDA C++, a .cu file, a .py with Triton kernels (or my.py:name).")
    ],
    case: Annotated[str | None, typer.Option("--case", help="One case of the op, by name or 'name dtype'.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Sizes: a=512x512,b=512x512 for the inputs of an op; M=1024,N=1024 for a head without an op.")
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="Number of blocks to count, spread over the grid. Default: 32.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs and of the order in which warps run.")] = 0,
    schedules: Annotated[int, typer.Option(help="Number of random warp orders to check.")] = 1,
    kernel: KernelName = None, grid: Grid = None, block: Block = None, arg: Given = None, shared: SharedBytes = 0,
    cluster: Annotated[str | None, typer.Option(help="With --kernel: blocks per cluster.")] = None,
    cooperative: Annotated[bool, typer.Option("--cooperative", help="With --kernel: a cooperative launch.")] = False,
    args: ProgramWords = None, include: Include = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="For a program: a file that it may read, here or beside the source. Repeatable.")
    ] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="For a program: the file that it reads as standard input.")] = None,
    scale: Annotated[float | None, typer.Option(help="For a program: multiply the sizes among --args (numbers of 32 or more) by this factor.")] = None,
    repeat: Annotated[
        int, typer.Option(help="For a program: how many launches with the same arguments are watched.")
    ] = 1,
    budget: Annotated[
        float, typer.Option(help="For a program: seconds for the watched blocks of one launch; further blocks run unwatched.")
    ] = 10.0,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Also look for faults; this runs all blocks.")] = True,
    expect: Annotated[
        list[str] | None,
        typer.Option(help="With --kernel: what a tensor must hold afterwards, as out=ref.npy. The tolerances are those of torch.testing.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the annotated source to this page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run CUDA C++ on the CPU, and show what each line costs.

    The source is printed with the memory traffic of each line. Needs a C++ compiler, no GPU.

    Each access is shown with the 32-byte sectors (global memory) or wavefronts (shared memory) that a request of a warp takes, and the
    minimum in brackets. Faults are reported with their line: bounds, races, barriers, waits. Exit code 1 if there is one, 3 if the kernel
    reaches something that is not simulated. An ordinary .cu file runs as it is, from its main(), without a GPU; so does a .py, with its
    Triton kernels in the interpreter.

    Examples: [bold]rooftop simt my.cu[/bold] · [bold]rooftop simt my.cu --args '1024 3'[/bold] · [bold]rooftop simt sgemm_cuda/06[/bold] ·
    [bold]rooftop simt head.cu --shape M=1024,N=1024 --html page.html[/bold] ·
    [bold]rooftop simt any.cu --kernel scale --grid 4 --block 256 --arg n=1000 --arg x=f32:1024[/bold]"""
    from rooftop.core import head_text, whole_file
    from rooftop.core.compile import ToolchainError
    from rooftop.lab import simt as simulator
    from rooftop.lab.cli import noted, triton_files
    from rooftop.lab.simt import annotate, ordinary, program

    if budget <= 0:
        raise ValueError(f"--budget {budget:g}: it is a number of seconds, more than 0")
    what, named = triton_files.cuda_one(what)
    kernel = kernel or named
    if python := triton_files.own(what, arg or ()):
        others = {
            "--case": case, "--shape": shape, "--blocks": blocks, "--kernel": kernel, "--grid": grid, "--block": block, "--html": html
        }
        for option, said in others.items():
            if said is not None:
                raise ValueError(
                    f"{option} {said}: {python.path} is Python; it takes {python.path}:NAME, --arg, --args, --seed, --budget and --json"
                )
        raise typer.Exit(triton_files.simulate(python, args, seed, budget, as_json))
    if reason := simulator.unavailable():
        raise ToolchainError(reason)
    own = launched.Ordinary(kernel, grid, block, tuple(arg or ()), shared, cluster, cooperative)
    path = Path(what)
    plain = path.suffix in (".cu", ".cuh") and path.is_file()
    if expect and not (plain and own.launches):
        raise ValueError(f"--expect {expect[0]}: it goes with one kernel, launched by --kernel, --grid, --block and --arg")
    if plain and not own.launches and not head_text.read(path).lstrip().startswith("/* rooftop"):
        from rooftop.lab.cli import programs

        for option, said in (("--case", case), ("--shape", shape)):
            if said is not None:
                raise ValueError(f"{option} {said}: {path} is a program, whose sizes it has itself or takes from --args")
        if input_ is not None and not input_.is_file():
            raise ValueError(f"--input {input_}: no such file; the program reads it as its standard input")
        words, scaled = programs.words(args, scale)
        try:
            source, assumed = program.source_of(path, include or [], own.args)
        except program.NoCallerError as error:
            echo(f"rooftop: {error}", err=True)
            raise typer.Exit(ENVIRONMENT) from None
        if kernel:
            ordinary.named(source.whole, str(path), kernel)
        if scaled:
            echo(scaled, err=as_json)
        raise typer.Exit(
            programs.simulate(
                source, assumed, words, kernel, seed, schedules, repeat, blocks, budget, check, html, as_json, file or [], input_,
                alone=None if kernel else lambda: program.kernels_alone(path, include or [], own.args), own=source.path == path
            )
        )
    if plain and own.launches:
        for name, at in ordinary.filled(head_text.read(path)).items():
            echo(
                f"{path}:{at}: main() fills {name}, and a launch by --kernel does not run main(): {name} holds what it is declared with",
                err=True
            )
    if plain and own.launches and own.kernel and own.grid and own.block and launched.unusual(path, own.kernel):
        from rooftop.lab.cli import programs

        launch = launched.launch_of(own.kernel, own.grid, own.block, shared, cooperative) or {}
        source = program.kernel_of(path, include or [], given=own.args, **launch)
        raise typer.Exit(programs.simulate(source, "", [], None, seed, schedules, repeat, blocks, budget, check, html, as_json))
    for option, given in (("--scale", scale), ("--file", file), ("--input", input_)):
        if given:
            raise ValueError(
                f"{option} {given}: only a program that runs from its main() takes it, a .cu file without a head and without --grid"
            )
    if args is not None:
        raise ValueError(f"--args {args}: only a program takes arguments, a .cu file without a head and without --grid")
    title, sources, counted, checked = _run(what, case, shape, blocks, seed, schedules, check, own)
    report = replace(counted, findings=checked.findings if checked else counted.findings)
    wrong = _unexpected(checked or counted, expect or [], check)
    noted.simulation(what, report)
    if html is not None:
        whole_file.write(html, annotate.as_html(report, sources, title))
    if as_json:
        echo(json.dumps({"subject": title, **report.to_json()}, indent=2))
    else:
        from rich.console import Console

        console = Console()
        echo(title)
        sources = {name: printable(text) for name, text in sources.items()}
        for line in annotate.as_text(
            report, sources, console.is_terminal and not console.no_color, console.width if console.is_terminal else 160
        ):
            typer.echo(line)  # with colours
        sys.stdout.write(printable(counted.printed))
        for f in report.findings:
            echo(str(f))
        if checked is not None:
            times = f" in {schedules} orders of warps" if schedules > 1 else ""
            said = f"{len(report.faults)} fault{'s' if len(report.faults) > 1 else ''}" if report.faults else "no fault"
            if len(report.faults) < len(report.findings):
                said += f"{' as far as it came' if not report.faults else ''}; it came to what is not simulated"
            echo(f"checked{times}: {said} ({checked.seconds:.2f} s)")
    for text in wrong:
        echo(text, err=as_json)
    if report.findings or wrong:
        raise typer.Exit(WRONG if report.faults or wrong else ENVIRONMENT)


def _unexpected(report: Report, expected: Sequence[str], whole: bool) -> list[str]:
    """What tensors do not hold that they should. Raises ValueError for a name or a file that is none."""
    import numpy as np
    import torch

    if expected and not whole:
        raise ValueError("--expect goes without --no-check: only a check runs all blocks")
    said = []
    for text in expected:
        name, _, file = text.partition("=")
        if name not in report.outputs or not file.endswith(".npy") or not Path(file).is_file():
            raise ValueError(
                f"--expect {text}: it is NAME=FILE.npy, of a tensor that the kernel may write: {', '.join(report.outputs) or 'none'}"
            )
        got, want = report.outputs[name], torch.from_numpy(np.load(file, allow_pickle=False))
        try:
            torch.testing.assert_close(
                got.reshape(want.shape) if got.numel() == want.numel() else got, want, check_dtype=False, equal_nan=True
            )
        except AssertionError as error:
            said.append(f"wrong: {name} is not {file}: {' '.join(str(error).split())}")
    return said


def _run(
    what: str, case: str | None, shape: str | None, blocks: int | None, seed: int, schedules: int, check: bool, own: launched.Ordinary
) -> tuple[str, dict[str, str], Report, Report | None]:
    """Title, sources by shown name, the counted run, the checked run."""
    from rooftop.core import head_text
    from rooftop.lab import candidates
    from rooftop.lab import simt as simulator

    for option, number in (("--schedules", schedules), ("--blocks", blocks)):
        if number is not None and number < 1:
            raise ValueError(f"{option} {number}: it must be 1 or more")
    sizes = cased.sizes(shape) if shape else {}
    path = Path(what)
    if path.suffix in (".cu", ".cuh") and path.is_file() and (own.given or not head_text.read(path).lstrip().startswith("/* rooftop")):
        for option, said in (("--case", case), ("--shape", shape)):
            if said is not None:
                raise ValueError(f"{option} {said}: {path} is taken as an ordinary .cu, whose sizes are given by --grid, --block and --arg")
        return launched.run(path, own, blocks, seed, schedules, check)
    if own.given:
        raise ValueError(
            f"--kernel, --grid, --block, --arg, --shared, --cluster and --cooperative launch a kernel of a .cu file, and {what} is not one"
        )
    if path.suffix == ".cu" and path.is_file() and head_text.parse(head_text.read(path), path).op is None and not cased.registered(path):
        if case is not None:
            raise ValueError(f"--case {case}: {path} names no op and so has no cases; its sizes are given by --shape")
        return cased.without_op(path, sizes, blocks, seed, schedules, check)
    found = candidates.find([what])
    if len(found) != 1:
        raise ValueError(f"{what} names {len(found)} things; one rung, implementation or file is simulated at a time")
    subject = found[0]
    if subject.implementation is None or subject.implementation.backend != "cuda" or subject.implementation.head is None:
        raise ValueError(f"{subject.name} is not CUDA C++: only that is simulated (Triton runs in its interpreter: rooftop check)")
    if reason := subject.implementation.where().reason:
        raise ValueError(f"{subject.name} cannot be simulated: {reason}")
    chosen = cased.case(subject, case, sizes)
    sources = {subject.implementation.head.path: subject.implementation.head.source}

    def run(mode: Mode) -> Report:
        return simulator.run_rung(subject, chosen, mode=mode, seed=seed, schedules=schedules, blocks=blocks)

    counted, checked = launched.runs(run, check)
    inputs = ", ".join(f"{n} {'x'.join(map(str, v.shape))}" for n, v in chosen.tensors())
    return f"{subject.name}, {chosen.id} ({inputs})", sources, counted, checked


