"""Whether kernels are right."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import (
    ENVIRONMENT,
    JUDGE,
    WRONG,
    AsJson,
    Block,
    CaseName,
    DTypeName,
    Given,
    Grid,
    Include,
    KernelName,
    SharedBytes,
    What,
    app,
    echo,
    table,
)

TELL_S = 10.0  # seconds after which a check says how far it is, again and again, on a terminal and elsewhere

if TYPE_CHECKING:
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject
    from rooftop.lab.check.apart import Own
    from rooftop.lab.check.result import Result
    from rooftop.lab.check.selection import Choice


@app.command(rich_help_panel=JUDGE)
def check(
    what: What = None, case: CaseName = None, dtype: DTypeName = None,
    backend: Annotated[
        str, typer.Option(help="auto, gpu, cpu (interpreter or simulator) or pallas (jax's interpreters, for TPU kernels).")
    ] = "auto",
    reference: Annotated[
        str | None, typer.Option(
            help="For a .cu whose head names no op: FILE.py:FUNCTION, a reference; its parameters have the names of the head's tensors."
        )
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(help="For a .cu without a head, or a function of a .py: what it computes, as torch.softmax or FILE.py:FUNCTION.")
    ] = None,
    arg: Given = None, kernel: KernelName = None, grid: Grid = None, block: Block = None, shared: SharedBytes = 0, include: Include = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="With --reference: sizes of a case by the head's names, as N=1000,M=3; with --like by the function's. Repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the inputs. Default: a new one each time.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only cases with this tag: edge, bench, model, huge.")] = None,
    huge: Annotated[
        bool, typer.Option("--huge/--no-huge", help="Also cases of more than 2^31 elements, if the GPU has enough memory.")
    ] = True,
    records: Annotated[Path | None, typer.Option(help="Folder to write check records to.")] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only cases without a check record of the present code on this card.")] = False,
    jobs: Annotated[
        int, typer.Option(help="Number of kernels that are checked at once, each in its own process; the processes share the GPUs evenly.")
    ] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="A sample: at most 40 cases of each kernel, of every dtype and kind, drawn by the seed.")
    ] = False,
    invariant: Annotated[
        bool, typer.Option("--invariant", help="Check that the bits of a row do not depend on what else is in the call, under rooftop.invariant().")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every case, not the summary and the failures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check kernels against float64, by their contracts.

    Shows the error, the allowed error and the first wrong element.

    Runs on the GPU if there is one. Otherwise Triton runs in its interpreter, and CUDA C++ in the simulator, thread by thread, after NVRTC
    has compiled it and its launches have been found valid for a GPU. For an op without a kernel, its contract is checked: its wrong
    versions, its gradient. Exit code 1 if anything is wrong or there is nothing to check. Under torchrun: kernels of several ranks, on its
    processes.

    Examples: [bold]rooftop check softmax[/bold] · [bold]rooftop check softmax_cuda/06[/bold] ·
    [bold]rooftop check my.cu --case "odd 3x7"[/bold] ·
    [bold]rooftop check my.cu --quick[/bold] · [bold]rooftop check my.cu --like torch.softmax[/bold] ·
    [bold]rooftop check my.py:softmax --like torch.softmax[/bold] ·
    [bold]rooftop check my.cu --reference my.py:scale --shape N=1000[/bold] · [bold]rooftop check rms_norm --invariant[/bold]"""
    import secrets

    from rooftop.lab import candidates
    from rooftop.lab.check import checker as checks
    from rooftop.lab.check import many, own_op
    from rooftop.lab.check.selection import Choice, card, select
    from rooftop.lab.cli import elsewhere, noted, triton_files
    from rooftop.lab.cli import ranks as several
    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.records import identity

    if invariant:
        _check_invariant(what or [], backend, secrets.randbits(31) if seed is None else seed, as_json)
        return
    what = triton_files.cuda(what) if what else what
    without_head = [word for word in what or [] if triton_files.own(word)]
    if like is not None or (reference is not None and what and (without_head or own_op.headless(Path(what[0])))):
        elsewhere.elsewhere([*(what or []), like or "", reference or ""])
        if len(what or []) == 1 and (python := triton_files.own((what or [""])[0], arg or ())):
            if shape:
                raise ValueError(f"--shape {shape[0]}: a function of Python gets tensors by --arg, as in --arg x=f32:48x40")
            raise typer.Exit(triton_files.compare(python, like or str(reference), seed or 0, as_json))
        _check_like(what or [], like or str(reference), arg or [], kernel, grid, block, shared, include or [], seed or 0, as_json, shape or [])
        return
    if without_head:
        raise ValueError(f"{without_head[0]} is no kernel by its name: say what it computes, as in rooftop check {without_head[0]} --like torch.softmax")
    if reference is not None and records is not None:
        raise ValueError("--records works only with rooftop's own ops; checks against a function of yours are not recorded")
    if reference is not None and (stale or jobs > 1):
        raise ValueError("--reference cannot be combined with --stale or --jobs: there are no records of your own function")
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be at least 1")
    if shape and reference is None:
        raise ValueError("--shape goes with --reference: the cases of an op have sizes of their own (--case)")
    if reference is not None and (what is None or len(what) != 1):
        raise ValueError(f"--reference judges one .cu file; {len(what or [])} things are named")
    if several.launched():
        elsewhere.elsewhere(what or [])
        results = several.check_on_ranks(candidates.find(what or []), case, seed, records)
        if any(r.status == "wrong" for r in results) or all(r.status == "skipped" for r in results):
            raise typer.Exit(WRONG)
        return
    seed = secrets.randbits(31) if seed is None else seed
    choice = Choice(backend, seed, case, dtype, tuple(tag or ()), huge, quick, stale, records)
    own = [word for word in what or [] if reference is not None or candidates.is_own_file(word)]
    named = [word for word in what or [] if word not in own]
    subjects = candidates.find(named) if named or not own else []
    if backend == "pallas":  # of what was asked for, the kernels that it can run
        subjects = [s for s in subjects if s.implementation is not None and s.implementation.backend == "pallas"]
    if not subjects and not own and backend != "pallas":
        _judge_contracts(what or [], as_json)
        return
    todo, whole = select(subjects, choice, ", ".join(named or ["rooftop"])) if subjects or not own else ([], 0)
    if backend == "gpu":
        gpu_for("--backend gpu")
    results = []
    with _loaded(own, choice, reference, shape) as files:
        count, whole = len(todo) + sum(f.cases for f in files), whole + sum(f.whole for f in files)
        if stale and not count and not any(f.lost for f in files):
            echo("nothing to check: a record proves every case as it is now")
            return
        keep = _record_writer(records) if records is not None else None
        _compile_first([(s, c) for s, c in todo if checks.backend_of(s, backend) == ("gpu", None)])
        began = told = time.monotonic()
        device = card()[1] if keep else None
        checked = many.check_many(todo, backend, seed, jobs)
        judged = ((r, identity.facts(s, [c], device) if device and r.status in ("ok", "wrong") else {}) for s, c, r in checked)
        for result, facts in itertools.chain(judged, *(f.results() for f in files)):
            results.append(result)
            if keep:
                keep(result, facts)
            now = time.monotonic()
            if now - told > TELL_S and len(results) < count:
                more = (now - began) / len(results) * (count - len(results))
                first = told == began
                sample = (
                    f"; --quick checks a sample of {many.SAMPLE} of a kernel"
                    if first and not quick and whole > many.SAMPLE and more > TELL_S else ""
                )
                echo(f"{len(results)} of {count} cases in {now - began:.0f} s: about {_time(more)} more{sample}", err=True)
                told = now
    noted.check(results)
    _show_checks(results, seed, every, as_json)
    if quick and count < whole and not as_json:
        echo(f"a sample: {count} of {whole} cases; without --quick all are checked, those that run here")
    if any(r.status in ("wrong", "error") for r in results):
        raise typer.Exit(WRONG)
    if all(r.status == "skipped" for r in results):
        echo("nothing was judged: every case was skipped", err=True)
        raise typer.Exit(ENVIRONMENT if all(checks.backend_of(s, backend)[1] for s in subjects) and all(f.unable for f in files) else WRONG)


def _check_invariant(names: list[str], backend: str, seed: int, as_json: bool) -> None:
    """Ops, forward and backward: rows of several lengths alone and among others, sequences padded, packed and in pieces. Ops that the mode
    refuses are named with the reason."""
    import torch

    from rooftop.core import registry
    from rooftop.core.contract import ALWAYS, MODE
    from rooftop.core.invariance import InvarianceError
    from rooftop.lab.check.batches import names_rows
    from rooftop.lab.check.sequences import comparisons

    forward = [registry.op(n) for n in names or registry.op_names()]
    rows: list[dict[str, Any]] = []

    def say(op: str, status: str, message: str = "", case: str = "", kernel: str = "", calls: int = 0) -> None:
        rows.append({"op": op, "case": case, "kernel": kernel, "calls": calls, "status": status, "message": message})

    for op in (o for f in forward for o in (f, f.bwd) if o is not None):
        holds = op.invariance["batch"]
        if holds not in (ALWAYS, MODE):
            say(op.name, "refused", holds)
            continue
        if not names_rows(op):
            exact, parts = ("always", "exact: no result has an order of sums"), ("by its parts", "it runs as other ops do")
            say(op.name, *(exact if holds == ALWAYS else parts))
            continue
        for text, compare in comparisons(op, seed, torch.cuda.is_available() and backend in ("auto", "gpu"), backend):
            try:
                results = compare()
            except InvarianceError as error:
                say(op.name, "refused", str(error), text)
                continue
            status = "skipped" if results.skipped else "wrong" if results.wrong else "ok"
            say(op.name, status, results.skipped or "; ".join(results.wrong[:2]), results.case, results.kernel, results.calls)
    table(rows, {"op": "op", "case": "rows of", "kernel": "kernel", "calls": "calls", "status": "", "message": "finding"}, as_json, f"seed {seed}")
    if any(r["status"] == "wrong" for r in rows):
        raise typer.Exit(WRONG)
    if not any(r["status"] in ("ok", "always", "by its parts") for r in rows):
        raise typer.Exit(ENVIRONMENT)


@contextlib.contextmanager
def _loaded(words: list[str], choice: Choice, reference: str | None, shape: list[str] | None) -> Iterator[list[Own]]:
    """Files of one's own, each in a process of its own, which is ended with all that it has started. What they print is shown when they are
    through."""
    from rooftop.core import sandbox
    from rooftop.lab.check import apart, own_op

    shapes = own_op.shapes_of(shape or [])
    if programs := [w for w in (*words, *([reference.rpartition(":")[0] or reference] if reference else [])) if own_op.is_program(Path(w))]:
        apart.announce(programs)
    if (open_to_it := sandbox.missing()) and any(Path(w).suffix == ".cu" for w in words):
        echo(f"this system has no {', no '.join(open_to_it)}: simulate only what you trust (docs/trust.md)", err=True)
    files: list[apart.Own] = []
    try:
        for word in words:
            files.append(apart.Own(word, choice, reference, shapes))
        yield files
    finally:
        for file in files:
            apart.show_printed(file.word, file.end())


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _judge_contracts(names: list[str], as_json: bool) -> None:
    """Ops that have no kernel yet: what their contracts must keep by themselves."""
    from rooftop.core import registry
    from rooftop.lab.check import contracts

    rows = []
    for name in names:
        for rule, wrong in contracts.judged(registry.op(name)):
            rows.append({"op": name, "rule": rule, "status": "ok" if wrong is None else "wrong", "message": wrong})
    table(
        rows, {"op": "op", "rule": "of the contract", "status": "", "message": "finding"}, as_json,
        "no kernel yet: the contract alone is judged"
    )
    if any(r["status"] == "wrong" for r in rows):
        raise typer.Exit(WRONG)
    if not as_json:
        echo(f"a kernel to begin with: rooftop new kernel {names[0]}__triton, or {names[0]}__cuda")


def _compile_first(todo: list[tuple[Subject, Case]]) -> None:
    """What the GPU is to run, on all cores: an op of many formats has a kernel for nearly every case, which is longer compiled than run."""
    if not todo:
        return
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab import aot

    aot.compile_first(todo, device_of(torch.cuda.current_device()))


def _record_writer(folder: Path) -> Callable[[Result, Mapping[str, str]], None]:
    """Writes a record of each result as it comes, with its identity. What was skipped leaves none. Raises OSError where the folder cannot
    be written."""
    from rooftop.lab.check.selection import card
    from rooftop.lab.records import store

    name, device = card()
    about = {**store.about(device), "name": name}
    writer = store.Writer(folder, name)
    writer.ready()

    def keep(r: Result, facts: Mapping[str, str]) -> None:
        if r.status in ("ok", "wrong") and facts:
            writer.write({"kind": "check", "op": r.op, "case": r.case, "subject": r.subject, "error": r.error(), **facts,
                          "path": list(r.path), "backend": r.backend, "device": about, "versions": store.versions()})

    return keep


SHOWN = 3  # findings of a kind that are shown of one subject
_NUMBER = re.compile(r"[-+]?\d[\d.e+-]*|\bnan\b|\binf\b| (?:in rows|over|at) [^:;]*")
_PLACE = re.compile(r"\.(?:py|cu|cuh):\d+: ")


def _by_reason(results: Iterable[Any]) -> dict[str, list[str]]:
    """The subjects that were not compiled, by what is missing."""
    names: dict[str, list[str]] = {}
    for r in results:
        if r.subject not in names.setdefault(r.unasked, []):
            names[r.unasked].append(r.subject)
    return names


def _fault(message: str) -> str:
    """An error without its numbers; of one that names its source line that line alone: what follows tells the case's shapes and dtypes."""
    first = message.partition("\n")[0]
    return _NUMBER.sub("0", first if _PLACE.search(first) else message)


def _show_checks(results: list[Any], seed: int, every: bool, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"seed": seed, "results": [r.to_json() for r in results]}, indent=2, default=str))
        return
    rows: list[dict[str, Any]] = []
    told: dict[tuple[str, str], int] = {}  # how often an error of a subject was met: the first is shown
    alike: dict[tuple[str, str], int] = {}  # how often a finding was, numbers apart: the first few are shown
    for r in results:
        if r.status == "error":
            told[r.subject, _fault(r.message)] = told.get((r.subject, _fault(r.message)), 0) + 1
        finding = r.subject, _NUMBER.sub("0", r.message)
        if r.status == "wrong":
            alike[finding] = alike.get(finding, 0) + 1
        if every or (r.status == "wrong" and alike[finding] <= SHOWN) or (r.status == "error" and told[r.subject, _fault(r.message)] == 1):
            w = r.worst
            rows.append({"subject": r.subject, "case": r.case, "status": r.status, "max": w and w.max, "allowed": w and w.allowed_max,
                         "share": w and max(w.max_share, w.rms_share), "message": r.message})
    for row in () if every else rows:
        if (n := told.get((row["subject"], _fault(row["message"])), 1) - 1) and row["status"] == "error":
            row["case"] = f"{row['case']} and {n} more"
    if rows:
        table(rows, {"subject": "subject", "case": "case", "status": "", "max": "largest error", "allowed": "allowed", "share": "share of allowance",
                      "message": "finding"}, False, "cases")
    if not every and (more := sum(n - SHOWN for n in alike.values() if n > SHOWN)):
        echo(f"{more} more cases are wrong in the same ways: --all shows them")
    summary: dict[str, dict[str, Any]] = {}
    reasons: dict[str, list[str]] = {}
    for r in results:
        row = summary.setdefault(
            r.subject, {"subject": r.subject, "ok": 0, "wrong": 0, "error": 0, "skipped": 0, "where": "", "worst": None}
        )
        row[r.status] += 1
        row["where"] = " ".join([r.backend, *(f"sm_{a}" for a in r.archs)]) if r.archs or (r.backend and not row["where"]) else row["where"]
        if r.status == "ok" and r.worst:
            row["worst"] = max(row["worst"] or 0.0, r.worst.max_share, r.worst.rms_share)
        if r.status == "skipped":
            reasons.setdefault(r.message, []).append(r.subject)
    table(list(summary.values()), {"subject": "subject", "ok": "ok", "wrong": "wrong", "error": "errors", "skipped": "skipped", "where": "ran on",
                                    "worst": "worst share of allowance"}, False, f"seed {seed}")
    for reason, names in _by_reason(r for r in results if r.unasked).items():
        echo(f"not compiled for a GPU before they were simulated, so what a GPU refuses was not found: {', '.join(names)} ({reason})")
    same: dict[str, tuple[str, list[str]]] = {}  # reasons that differ in a number alone are told once
    for reason, names in reasons.items():
        same.setdefault(re.sub(r"\d+", "0", reason), (reason, []))[1].extend(names)
    for reason, names in sorted(same.values(), key=lambda item: -len(item[1])):
        unique = list(dict.fromkeys(names))
        echo(f"skipped {len(names)}: {reason} ({', '.join(unique[:3])}{f' and {len(unique) - 3} more' if len(unique) > 3 else ''})")


def _check_like(
    what: Sequence[str], like: str, given: Sequence[str], kernel: str | None, grid: str | None, block: str | None, shared: int,
    folders: Sequence[Path],
    seed: int, as_json: bool, shapes: Sequence[str],
) -> None:
    """A file without a head against a function of torch or of the user's, in the simulator; with each of `shapes`, which give its sizes."""
    from rooftop.core.compile import ToolchainError
    from rooftop.lab import simt
    from rooftop.lab.check import like as likes
    from rooftop.lab.check import own_op
    from rooftop.lab.cli import cased, noted
    from rooftop.lab.cli.launched import launch_of

    if len(what) != 1 or not own_op.headless(Path(what[0])):
        raise ValueError(f"--like compares one .cu without a head; {', '.join(what) or 'nothing'} was named")
    if reason := simt.unavailable():
        raise ToolchainError(reason)
    launch = launch_of(kernel, grid, block, shared)
    results, findings, faults = list[likes.Compared](), list[str](), 0
    for one in shapes or [""]:
        sizes = [f"{n}={'f32:' * (len(v) > 1)}{'x'.join(map(str, v))}" for n, v in cased.sizes(one).items()] if one else []
        some, run = likes.compared(Path(what[0]), like, [*given, *sizes], folders, launch, seed)
        results += some
        findings += map(str, run.report.findings)
        faults += len(run.report.faults)
    if as_json:
        table([{"right": c.right, "text": str(c), "error": c.error, "allowed": c.allowed} for c in results], {}, True)
    for said in [] if as_json else [*results, *findings]:
        echo(str(said))
    noted.comparison(what[0], like, [c.right for c in results], faults)
    if faults or not all(c.right for c in results):
        if not (shapes or given or as_json):
            echo("its sizes are assumed: --shape NAME=NUMBER,NAME=NUMBER gives others, repeatable")
        raise typer.Exit(WRONG)
    if not results:
        raise typer.Exit(ENVIRONMENT)
