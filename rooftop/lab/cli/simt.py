"""CUDA C++ run on the CPU, thread by thread."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.core.texts import printable
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
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject
    from rooftop.lab.simt import Report
    from rooftop.lab.simt.launching import Mode

LARGEST = 1 << 18  # elements of the inputs of a case that is taken where none is named


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
    blocks: Annotated[int | None, typer.Option(help="Number of blocks to count, spread over the grid (default 32).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs and of the order in which warps run.")] = 0,
    schedules: Annotated[int, typer.Option(help="Number of random warp orders to check.")] = 1,
    kernel: KernelName = None, grid: Grid = None, block: Block = None, arg: Given = None, shared: SharedBytes = 0,
    cluster: Annotated[str | None, typer.Option(help="With --kernel: blocks of a cluster.")] = None,
    cooperative: Annotated[bool, typer.Option("--cooperative", help="With --kernel: a cooperative launch.")] = False,
    args: ProgramWords = None, include: Include = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Of a program: a file that it may read, here or beside the source. Repeatable.")
    ] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="Of a program: the file that its standard input is.")] = None,
    scale: Annotated[float | None, typer.Option(help="Of a program: the factor for the sizes among --args, numbers of 32 or more.")] = None,
    repeat: Annotated[
        int, typer.Option(help="Of a program: how often a launch is watched that is made again with the same arguments.")
    ] = 1,
    budget: Annotated[
        float, typer.Option(help="Of a program: seconds for the watched blocks of one launch; the others run unwatched.")
    ] = 10.0,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Also look for faults; this runs all blocks.")] = True,
    expect: Annotated[
        list[str] | None,
        typer.Option(help="With --kernel: what a tensor must hold afterwards, as out=ref.npy, within the tolerances of torch.testing.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the annotated source to this page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run CUDA C++ on the CPU, thread by thread, and print its source with the memory traffic of each line. Needs no GPU, but a C++
    compiler.

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
    own = _Ordinary(kernel, grid, block, tuple(arg or ()), shared, cluster, cooperative)
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
            raise ValueError(f"--input {input_}: no such file; it is the file that the program's standard input is")
        words, scaled = programs.words(args, scale)
        try:
            source, assumed = program.source_of(path, include or [], own.args)
        except program.NoCallerError as error:
            echo(f"rooftop: {error}", err=True)
            raise typer.Exit(ENVIRONMENT) from None
        if scaled:
            echo(scaled, err=as_json)
        raise typer.Exit(
            programs.simulate(
                source, assumed, words, kernel, seed, schedules, repeat, blocks, budget, check, html, as_json, file or [], input_,
                alone=None if kernel else lambda: program.kernels_alone(path, include or [], own.args)
            )
        )
    if plain and own.launches:
        for name, at in ordinary.filled(head_text.read(path)).items():
            echo(
                f"{path}:{at}: main() fills {name}, and a launch by --kernel does not run main(): {name} holds what it is declared with",
                err=True
            )
    if plain and own.launches and own.kernel and own.grid and own.block and _unusual(path, own.kernel):
        from rooftop.lab.cli import programs

        launch = launch_of(own.kernel, own.grid, own.block, shared, cooperative) or {}
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


def _unusual(path: Path, kernel: str) -> bool:
    """Whether a kernel is none that `ordinary` finds in the file itself: of a header, made by a macro, or one of several of its name."""
    import re

    from rooftop.core import head_text
    from rooftop.lab.simt import ordinary, program_build

    base, text = kernel.partition("<")[0].strip(), head_text.read(path)

    def there(text: str) -> int:
        return sum(base in (k.name, k.name.rpartition("::")[2]) for k in ordinary.every_kernel(text))

    makers = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\([^)]*\)(?:[^\n]|\\\n)*__global__", text, re.M)
    made = any(re.search(rf"^[ \t]*{maker}\s*\([^)]*\b{re.escape(base)}\b", text, re.M) for maker in makers)
    return there(text) > 1 or (there(text) == 0 and (made or any(map(there, program_build.read(path).texts.values()))))


def _build_ahead() -> None:
    """Build what all simulations share while the source is compiled; whoever needs it first waits for it, and says why it cannot be
    built."""
    from rooftop.lab.simt import build

    build.progress = lambda text: echo(text, err=True)

    def build_it() -> None:
        with contextlib.suppress(Exception):
            build.engine("check", "count")

    threading.Thread(target=build_it, daemon=True).start()


@dataclass(frozen=True)
class _Ordinary:
    """What the command line says of a launch of an ordinary `.cu`."""

    kernel: str | None
    grid: str | None
    block: str | None
    args: tuple[str, ...]
    shared: int
    cluster: str | None
    cooperative: bool

    @property
    def given(self) -> bool:
        return self != _Ordinary(None, None, None, (), 0, None, False)

    @property
    def launches(self) -> bool:
        """Whether it says how a kernel is launched, and not only which, or with what a function is called."""
        return replace(self, kernel=None, args=()).given or bool(self.kernel and self.args)


def _run(
    what: str, case: str | None, shape: str | None, blocks: int | None, seed: int, schedules: int, check: bool, own: _Ordinary
) -> tuple[str, dict[str, str], Report, Report | None]:
    """Title, sources by shown name, the counted run, the checked run."""
    from rooftop.core import head_text
    from rooftop.lab import candidates
    from rooftop.lab import simt as simulator

    for option, number in (("--schedules", schedules), ("--blocks", blocks)):
        if number is not None and number < 1:
            raise ValueError(f"{option} {number}: it must be 1 or more")
    sizes = _sizes(shape) if shape else {}
    path = Path(what)
    if path.suffix in (".cu", ".cuh") and path.is_file() and (own.given or not head_text.read(path).lstrip().startswith("/* rooftop")):
        for option, said in (("--case", case), ("--shape", shape)):
            if said is not None:
                raise ValueError(f"{option} {said}: {path} is taken as an ordinary .cu, whose sizes are given by --grid, --block and --arg")
        return _ordinary(path, own, blocks, seed, schedules, check)
    if own.given:
        raise ValueError(
            f"--kernel, --grid, --block, --arg, --shared, --cluster and --cooperative launch a kernel of a .cu file; {what} is none"
        )
    if path.suffix == ".cu" and path.is_file() and head_text.parse(head_text.read(path), path).op is None and not _registered(path):
        if case is not None:
            raise ValueError(f"--case {case}: {path} names no op and so has no cases; its sizes are given by --shape")
        return _without_op(path, sizes, blocks, seed, schedules, check)
    found = candidates.find([what])
    if len(found) != 1:
        raise ValueError(f"{what} names {len(found)} things; one rung, implementation or file is simulated at a time")
    subject = found[0]
    if subject.implementation is None or subject.implementation.backend != "cuda" or subject.implementation.head is None:
        raise ValueError(f"{subject.name} is not CUDA C++: only that is simulated (Triton runs in its interpreter: rooftop check)")
    if reason := subject.implementation.where().reason:
        raise ValueError(f"{subject.name} cannot be simulated: {reason}")
    chosen = _case(subject, case, sizes)
    sources = {subject.implementation.head.path: subject.implementation.head.source}

    def run(mode: Mode) -> Report:
        return simulator.run_rung(subject, chosen, mode=mode, seed=seed, schedules=schedules, blocks=blocks)

    counted, checked = _runs(run, check)
    inputs = ", ".join(f"{n} {'x'.join(map(str, v.shape))}" for n, v in chosen.tensors())
    return f"{subject.name}, {chosen.id} ({inputs})", sources, counted, checked


def _runs(run: Callable[[Mode], Report], check: bool) -> tuple[Report, Report | None]:
    """The counted run and the checked one, which comes first: what does not end in it would not end while it is counted either, and is
    not."""
    _build_ahead()
    checked = run("check") if check else None
    if checked is not None and any(f.kind in ("deadlock", "not-simulated") for f in checked.findings):
        return checked, checked
    return run("count"), checked


def _ordinary(path: Path, own: _Ordinary, blocks: int | None, seed: int, schedules: int, check: bool) -> tuple[
    str, dict[str, str], Report, Report | None
]:
    """One kernel of a file as it stands."""
    from rooftop.lab.simt import arguments, ordinary
    from rooftop.lab.simt import run as running

    text, _, folders = running.source_of(path)
    kernel, entry = ordinary.choose(text, str(path), own.kernel)
    grid, block = extents("--grid", own.grid, kernel), extents("--block", own.block, kernel)
    ordinary.split(kernel, own.args)  # what is wrong with them is said before anything is built
    _build_ahead()
    job = arguments.prepare(text, str(path), folders, kernel, entry, own.args, seed)
    launch = job.launch(grid, block, extents("--cluster", own.cluster, kernel) if own.cluster else (), own.shared, own.cooperative)

    def run(mode: Mode) -> Report:
        memory, uninitialised = job.memory()
        return running.run_launches(
            text, str(path), [launch], memory, uninitialised=uninitialised, mode=mode, seed=seed, schedules=schedules, blocks=blocks,
            folders=folders,
            values=job.values,
        )

    counted, checked = _runs(run, check)
    return f"{path}, {entry}<<<{own.grid}, {own.block}>>>", {str(path): text}, counted, checked


def extents(option: str, text: str | None, kernel: object) -> tuple[int, ...]:
    if text is None:
        raise ValueError(f"{kernel}: give its launch, as in --grid 4 --block 256 ({option} is missing)")
    numbers = text.replace(",", "x").split("x")
    if not 1 <= len(numbers) <= 3 or not all(n.strip().isdigit() and int(n) > 0 for n in numbers):
        raise ValueError(f"{option} {text}: it is one to three whole numbers of 1 or more, as in {option} 4x2")
    return tuple(map(int, numbers))


def launch_of(kernel: str | None, grid: str | None, block: str | None, shared: int, cooperative: bool = False) -> dict[str, Any] | None:
    """The launch that the options give, for `program.kernel_of`; None where none is. Raises ValueError where one of them is missing."""
    if kernel is None:
        for option, said in (("--grid", grid), ("--block", block), ("--shared", shared)):
            if said:
                raise ValueError(f"{option} {said}: it goes with --kernel, which says what is launched")
        return None
    blocks, threads = extents("--grid", grid, kernel), extents("--block", block, kernel)
    return {"entry": kernel, "grid": blocks, "block": threads, "shared": shared, "cooperative": cooperative}


def _registered(path: Path) -> bool:
    from rooftop.core import registry

    known = [f.path for f in registry.kernel_files()] + [r.path for n in registry.ladder_names() for r in registry.ladder(n).rungs]
    return any(path.samefile(p) for p in known)


def _sizes(text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, size in map(_size, text.split(",")):
        if name in found:
            raise ValueError(f"--shape {text}: {name} is given twice")
        found[name] = size
    return found


def _size(part: str) -> tuple[str, tuple[int, ...]]:
    name, equals, text = part.partition("=")
    numbers = text.split("x")
    if not equals or not all(n.strip().isdigit() for n in numbers):
        raise ValueError(f"--shape {part!r}: it is written NAME=SIZE or NAME=ROWSxCOLUMNS, with commas between")
    return name.strip(), tuple(int(n) for n in numbers)


def _case(subject: Subject, name: str | None, sizes: dict[str, tuple[int, ...]]) -> Case:
    """The case named; else the largest that is small enough to wait for. `sizes` replace the shapes of its inputs."""
    from rooftop.core.spec import TARGETS, Input
    from rooftop.lab.check import checker as checks

    device = TARGETS[90]
    cases = checks.select_cases(subject, name=name)
    if not name:
        plain = [c for c in cases if all(i.fill == "normal" for _, i in c.tensors())]
        small = [c for c in plain if sizes or sum(checks.count(i) for _, i in c.tensors()) <= LARGEST]
        cases = sorted(small, key=lambda c: -sum(checks.count(i) for _, i in c.tensors()))
    if sizes:

        def resized(c: Case) -> Case:
            inputs: dict[str, Any] = {
                n: replace(v, shape=sizes[n]) if isinstance(v, Input) and n in sizes else v for n, v in c.inputs.items()
            }
            return replace(c, name="as given", inputs=inputs)

        having = [c for c in cases if set(sizes) <= {n for n, _ in c.tensors()}]  # a weight, say, is no input of every case
        if not having and cases:
            most = max(cases, key=lambda c: len(set(sizes) & {n for n, _ in c.tensors()}))
            unknown = sorted(set(sizes) - {n for n, _ in most.tensors()}) or sorted(sizes)
            example = ",".join(f"{n}={'x'.join(str(min(d, 64)) for d in v.shape)}" for n, v in most.tensors())
            raise ValueError(
                f"--shape names {', '.join(unknown)}; the inputs are {', '.join(n for n, _ in most.tensors())}, as in --shape {example}"
            )
        cases = [resized(c) for c in having]
    reasons = []
    for c in cases:
        reason = (_mismatch(subject, c) if sizes else None) or subject.supports(c, device)
        if reason is None and all(
            m is None or m.numel == 0 for n, m in subject.op.problem(c, device).tensors if n in subject.op.output_names
        ):
            reason = "the output is empty: nothing is launched"
        if reason is None:
            return c
        reasons.append(f"{c.id}: {reason}")
    raise ValueError(f"{subject.name} takes none of its cases here: {'; '.join(dict.fromkeys(reasons[:3]))}")


def _mismatch(subject: Subject, case: Case) -> str | None:
    """Why the op's maths cannot take inputs of these shapes and options, in torch's words; None where it can."""
    import torch

    from rooftop.core.spec import DTYPES, TARGETS, Input

    op = subject.op.forward or subject.op
    given: dict[str, Any] = dict.fromkeys(op.tensor_names)
    given |= {
        n: torch.empty(v.shape, dtype=getattr(torch, DTYPES[v.dtype].torch), device="meta") for n, v in case.inputs.items()
        if isinstance(v, Input)
    }
    try:
        op.reference(**given, **op.options(case))
        subject.kernel_problem(case, TARGETS[90])  # torch does not look at every dimension of tensors without values
    except NotImplementedError:  # an operation that has no shapes without values
        return None
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        options = "".join(f", {n}={v!r}" for n, v in op.options(case).items())
        shapes = ", ".join(f"{n} {'x'.join(map(str, v.shape))}" for n, v in case.tensors())
        why = "an option names a dimension that no input has" if isinstance(error, IndexError) else error
        return f"{op.name} cannot take {shapes}{options}: {why}"
    return None


def _without_op(
    path: Path, sizes: dict[str, tuple[int, ...]], blocks: int | None, seed: int, schedules: int, check: bool
) -> tuple[str, dict[str, str], Report, Report | None]:
    """A file whose head names no op: its tensors are random, their sizes those of `--shape`."""
    from rooftop.core import head_text
    from rooftop.core.expressions import names
    from rooftop.core.head import NumberArg, TensorArg
    from rooftop.core.spec import TARGETS
    from rooftop.lab import simt as simulator
    from rooftop.lab.counters.jobs import Job, dimensions

    text = head_text.read(path)
    head = head_text.parse(text, path)
    known = dimensions(head)
    bound = {"arch", "card", "sms", *head.config, *head.let, *(a.name for a in head.args if isinstance(a, TensorArg))}
    free = {name for _, expression in head.expressions() for name in names(expression)} - bound  # may be given as well: options
    example = ",".join(f"{d}=1024" for d in sorted(known))
    if missing := sorted(known - set(sizes)):
        raise ValueError(f"{path} names no op: give the sizes of its dimensions ({', '.join(missing)} missing), as in --shape {example}")
    if unknown := sorted(set(sizes) - known - free):
        raise ValueError(
            f"--shape names {', '.join(unknown)}; the sizes in the head of {path} are {', '.join(sorted(known | free)) or 'all fixed'}"
        )
    for name, size in sizes.items():
        if len(size) != 1:
            raise ValueError(
                f"--shape {name}={'x'.join(map(str, size))}: {path} names no op, so {name} is one size, as in --shape {name}={size[0]}"
            )
    numbers = {name for a in head.args if isinstance(a, NumberArg) for name in names(a.expression)} & free - known
    if missing := sorted(numbers - set(sizes)):
        whole = ",".join([*(f"{n}={v[0]}" for n, v in sizes.items()), *(f"{n}=1" for n in missing)])
        raise ValueError(f"{path} names no op: give its numbers too ({', '.join(missing)} missing), as in --shape {whole}")
    device = TARGETS[90]
    job = Job(str(path.resolve()), "lines", 0, tuple((n, v[0]) for n, v in sizes.items()))

    def run(mode: Mode) -> Report:
        return simulator.run_launches(
            text, str(path), job.launches(device), job.memory(device, "cpu", seed), mode=mode, seed=seed, schedules=schedules,
            blocks=blocks,
            folders=head.folders,
        )

    counted, checked = _runs(run, check)
    return f"{path}, {job.title}" if sizes else str(path), {str(path): text}, counted, checked
