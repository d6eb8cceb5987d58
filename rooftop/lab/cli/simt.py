"""CUDA C++ run on the CPU, thread by thread."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, AsJson, app

if TYPE_CHECKING:
    from rooftop.lab.simt import Report
    from rooftop.lab.spec import Case
    from rooftop.lab.subjects import Subject

LARGEST = 1 << 18  # elements of the inputs of a case that is taken where none is named


@app.command(rich_help_panel=JUDGE)
def simt(
    what: Annotated[str, typer.Argument(help="A rung (ladder/NN), an implementation in CUDA C++, or a .cu file.")],
    case: Annotated[str | None, typer.Option("--case", help="One case of the op, by name or 'name dtype'.")] = None,
    shape: Annotated[str | None, typer.Option(help="Sizes: a=512x512,b=512x512 for the inputs of an op; M=1024,N=1024 for a head without an op.")] = None,
    blocks: Annotated[int | None, typer.Option(help="How many blocks are counted, spread over the grid (32).")] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs and of the order in which warps run.")] = 0,
    schedules: Annotated[int, typer.Option(help="Orders of warps in which the check is run.")] = 1,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Look for faults as well: all blocks are run for that.")] = True,
    html: Annotated[Path | None, typer.Option(help="Write the annotated source to this page.")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run CUDA C++ on the CPU, thread by thread, and print its source with the memory traffic of each line. Needs no GPU, but a C++ compiler.

    Beside an access stand the 32-byte sectors (global memory) or wavefronts (shared memory) that a request of a warp takes, in brackets the least it
    could take. Faults are named at their line: bounds, races, barriers, waits. Exit code 1 if there is one.

    Examples: [bold]rooftop simt sgemm_cuda/06[/bold] · [bold]rooftop simt my.cu --shape M=1024,N=1024 --html page.html[/bold]"""
    from rooftop.lab import simt as simulator
    from rooftop.lab.compile import ToolchainError
    from rooftop.lab.simt import annotate

    if reason := simulator.unavailable():
        raise ToolchainError(reason)
    title, sources, counted, checked = _run(what, case, shape, blocks, seed, schedules, check)
    report = dataclasses.replace(counted, findings=checked.findings if checked else counted.findings)
    if html is not None:
        html.write_text(annotate.as_html(report, sources, title), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"subject": title, **report.to_json()}, indent=2))
    else:
        from rich.console import Console

        console = Console()
        typer.echo(title)
        for line in annotate.as_text(report, sources, console.is_terminal and not console.no_color, console.width if console.is_terminal else 160):
            typer.echo(line)
        if checked is not None:
            times = f" in {schedules} orders of warps" if schedules > 1 else ""
            typer.echo(f"checked{times}: {'no fault' if not report.findings else f'{len(report.findings)} faults'} ({checked.seconds:.2f} s)")
        for text in (counted.printed,):
            sys.stdout.write(text)
    if report.findings:
        raise typer.Exit(WRONG)


def _run(
    what: str, case: str | None, shape: str | None, blocks: int | None, seed: int, schedules: int, check: bool
) -> tuple[str, dict[str, str], Report, Report | None]:
    """Title, sources by shown name, the counted run, the checked run."""
    from rooftop.lab import head_text, subjects
    from rooftop.lab import simt as simulator

    sizes = dict(_size(part) for part in shape.split(",")) if shape else {}
    path = Path(what)
    if path.suffix == ".cu" and path.is_file() and head_text.parse(path.read_text(encoding="utf-8"), path).op is None and not _registered(path):
        return _without_op(path, sizes, blocks, seed, schedules, check)
    found = subjects.find([what])
    if len(found) != 1:
        raise ValueError(f"{what} names {len(found)} things; one rung, implementation or file is simulated at a time")
    subject = found[0]
    if subject.implementation is None or subject.implementation.backend != "cuda" or subject.implementation.head is None:
        raise ValueError(f"{subject.name} is not CUDA C++: only that is simulated (Triton runs in its interpreter: rooftop check)")
    chosen = _case(subject, case, sizes)
    sources = {subject.implementation.head.path: subject.implementation.head.source}
    counted = simulator.run_rung(subject, chosen, mode="count", seed=seed, blocks=blocks)
    checked = simulator.run_rung(subject, chosen, mode="check", seed=seed, schedules=schedules) if check else None
    inputs = ", ".join(f"{n} {'x'.join(map(str, v.shape))}" for n, v in chosen.tensors())
    return f"{subject.name}, {chosen.id} ({inputs})", sources, counted, checked


def _registered(path: Path) -> bool:
    from rooftop.lab import registry

    known = [f.path for f in registry.kernel_files()] + [r.path for n in registry.ladder_names() for r in registry.ladder(n).rungs]
    return any(path.samefile(p) for p in known)


def _size(part: str) -> tuple[str, tuple[int, ...]]:
    name, equals, text = part.partition("=")
    numbers = text.split("x")
    if not equals or not all(n.strip().isdigit() for n in numbers):
        raise ValueError(f"--shape {part!r}: it is written NAME=SIZE or NAME=ROWSxCOLUMNS, with commas between")
    return name.strip(), tuple(int(n) for n in numbers)


def _case(subject: Subject, name: str | None, sizes: dict[str, tuple[int, ...]]) -> Case:
    """The case named; else the largest that is small enough to wait for. `sizes` replace the shapes of its inputs."""
    from rooftop.lab import check as checks
    from rooftop.lab.spec import TARGETS, Input

    device = TARGETS[90]
    cases = checks.select_cases(subject, name=name)
    if not name:
        plain = [c for c in cases if all(i.fill == "normal" for _, i in c.tensors())]
        small = [c for c in plain if sizes or sum(checks.count(i) for _, i in c.tensors()) <= LARGEST]
        cases = sorted(small, key=lambda c: -sum(checks.count(i) for _, i in c.tensors()))
    if sizes:
        def resized(c: Case) -> Case:
            unknown = set(sizes) - {n for n, _ in c.tensors()}
            if unknown:
                raise ValueError(f"--shape names {', '.join(sorted(unknown))}; the inputs are {', '.join(n for n, _ in c.tensors())}")
            inputs: dict[str, Any] = {n: dataclasses.replace(v, shape=sizes[n]) if isinstance(v, Input) and n in sizes else v for n, v in c.inputs.items()}
            return dataclasses.replace(c, name="as given", inputs=inputs)

        cases = [resized(c) for c in cases]
    reasons = []
    for c in cases:
        reason = subject.supports(c, device)
        if reason is None and all(m is None or m.numel == 0 for n, m in subject.op.problem(c, device).tensors if n in subject.op.output_names):
            reason = "the output is empty: nothing is launched"
        if reason is None:
            return c
        reasons.append(f"{c.id}: {reason}")
    raise ValueError(f"{subject.name} takes none of its cases here: {'; '.join(reasons[:3])}")


def _without_op(
    path: Path, sizes: dict[str, tuple[int, ...]], blocks: int | None, seed: int, schedules: int, check: bool
) -> tuple[str, dict[str, str], Report, Report | None]:
    """A file whose head names no op: its tensors are random, their sizes those of `--shape`."""
    from rooftop.lab import simt as simulator
    from rooftop.lab.counters_jobs import Job
    from rooftop.lab.spec import TARGETS

    if not sizes:
        raise ValueError(f"{path} names no op: give the sizes of its dimensions, as in --shape M=1024,N=1024")
    device = TARGETS[90]
    job = Job(str(path.resolve()), "lines", 0, tuple((n, v[0]) for n, v in sizes.items()))
    text = path.read_text(encoding="utf-8")

    def run(mode: Any) -> Report:
        return simulator.run_launches(
            text, str(path), job.launches(device), job.memory(device, "cpu", seed), mode=mode, seed=seed, schedules=schedules, blocks=blocks
        )

    return f"{path}, {job.title}", {str(path): text}, run("count"), run("check") if check else None
