"""From a kernel or a report to what bounds it and what to try."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli import noted
from rooftop.lab.cli.app import (
    MEASURE,
    AsJson,
    Block,
    CaseName,
    DTypeName,
    Given,
    Grid,
    Include,
    KernelName,
    ProgramWords,
    SharedBytes,
    app,
    echo,
    kept_records,
)

if TYPE_CHECKING:
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject
    from rooftop.lab.report.place import Placed
    from rooftop.lab.report.rung_counts import RungCounts

_SOURCES = (".cu", ".cuh", ".py", ".toml", ".ptx", ".cubin")  # files that are kernels; any other file is a report
# what a report's name ends in, whether there is such a file or not
_PROFILER = (".ncu-rep", ".csv", ".gz", ".xz", ".bz2", ".json", ".txt", ".log")


@app.command(rich_help_panel=MEASURE)
def diagnose(
    what: Annotated[
        str,
        typer.Argument(help="A report (.ncu-rep, what ncu prints, a Chrome trace of torch.profiler; .gz, .xz too), or an op, rung or file.")
    ],
    after: Annotated[
        Path | None, typer.Argument(help="A report of the changed program: compare its kernels with the first report's.")
    ] = None,
    case: CaseName = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="For a report: only kernels whose name or NVTX range contains this. For a .cu without a head: which kernel.")
    ] = None,
    card: Annotated[
        str | None, typer.Option(help="The card whose measured ceilings apply: h100, h200. Default: the card that the report names.")
    ] = None,
    floor: Annotated[float | None, typer.Option(help="A lower bound of the op's time in microseconds, shown with the ceiling.")] = None,
    diff: Annotated[Path | None, typer.Option(help="The second report, as an option.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="A file to which the predicted gains are appended; with --diff and --lever also the measured gain.")
    ] = None,
    no_keep: Annotated[
        bool, typer.Option("--no-keep", help="Do not store predictions. By default they are appended to a file (ROOFTOP_PREDICTIONS).")
    ] = False,
    lever: Annotated[
        str | None, typer.Option(help="Which optimisation was made since the version before (conflicts, spills, ...).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="For a report: write a page with the hierarchical roofline of each kernel.")] = None,
    count: Annotated[
        bool, typer.Option("--count", help="For a kernel: count its accesses in the simulator if they are not counted yet.")
    ] = False,
    every: Annotated[bool, typer.Option("--every", help="For a report: show every kernel, not only the longest.")] = False,
    arg: Given = None, grid: Grid = None, block: Block = None, shared: SharedBytes = 0, args: ProgramWords = None, include: Include = None,
    as_json: AsJson = False,
) -> None:
    """Find out what limits a kernel, and what to try next.

    Shows what is wasted, and what each optimisation may gain.

    Uses the counters of a report; for an op or a rung at a case, recorded times and machine code; for a .cu without a head, the simulator's
    counts of what it launches, and machine code. Needs no GPU.

    Examples: [bold]rooftop diagnose my.ncu-rep --card h200[/bold] · [bold]rooftop diagnose before.ncu-rep after.ncu-rep[/bold] ·
    [bold]rooftop diagnose my.cu[/bold] ·
    [bold]rooftop diagnose sgemm_cuda/05_tile_2d[/bold]"""
    from rooftop.lab.check import own_op
    from rooftop.lab.cli import own_diagnosis
    from rooftop.lab.counters.diagnose import timeline

    path = Path(what)
    if after is not None and diff is not None:
        raise typer.BadParameter(f"two reports to compare with: {after} and --diff {diff}; give one")
    diff = diff or after
    if own_op.headless(path):
        if diff is not None or case is not None:
            raise typer.BadParameter(f"{path} is run as it is: {'two reports' if diff is not None else '--case NAME'} cannot go with it")
        own_diagnosis.show(path, kernel, grid, block, shared, arg or [], args, include or [], card or "h200", as_json)
        return
    for option, said in {"--arg": arg, "--grid": grid, "--block": block, "--args": args, "-I": include}.items():
        if said:
            raise typer.BadParameter(f"{option} is for a .cu without a head, and {what} is not one")
    if path.suffix not in _PROFILER and (path.suffix in _SOURCES or not path.is_file()):
        if diff is not None:
            raise typer.BadParameter(f"{what} is no report: {diff} can be compared with a report only")
        _without(what, case, card or "h200", as_json, count)
        return
    if case is not None:
        raise typer.BadParameter("--case goes with an op or a rung, not with a report")
    if _is_trace(path):
        if diff is not None:
            raise typer.BadParameter(f"{path} is a trace of torch.profiler; two reports of Nsight Compute can be compared")
        trace = timeline.read(path)
        echo(json.dumps(trace.to_json(), indent=2) if as_json else timeline.screen(trace))
        return
    before = _report(path, kernel, card, floor)
    noted.diagnosis(what, before)
    if diff is not None:
        changed = _report(diff, kernel, card, floor)
        _difference(before, changed, as_json)
        if keep is not None and lever is not None:
            _record_outcome(keep, before, changed, lever)
        elif keep is None and not no_keep:
            _note(before, False, None)
            _note(changed, False, lever)
        return
    if keep is None and not no_keep:
        _note(before, every, lever)
    elif keep is not None:
        from rooftop.lab.counters.diagnose import scores

        echo(f"{scores.keep(keep, before)} predictions appended to {keep}", err=True)
    if html is not None:
        from rooftop.core import whole_file
        from rooftop.lab.counters.diagnose import page
        from rooftop.lab.counters.diagnose.diagnosis import longest

        whole_file.write(html, page.html(longest(before), path.name))
        echo(f"{html}: {len(before)} kernels", err=True)
        if not as_json:
            return
    if as_json:
        echo(json.dumps([d.to_json() for d in before], indent=2))
        return
    from rooftop.lab.counters.diagnose import show
    from rooftop.lab.counters.diagnose.diagnosis import longest

    ordered = longest(before)
    if len(ordered) > 1 and not every:
        echo(show.summary(ordered) + "\n")
    echo("\n\n".join(show.screen(d) for d in (ordered if every else ordered[:1])))


def _report(path: Path, kernel: str | None, card: str | None, floor_us: float | None) -> list[Any]:
    from rooftop.lab.counters.diagnose import reports
    from rooftop.lab.counters.diagnose.diagnosis import diagnose as judged

    kernels = reports.read(path)
    chosen = [k for k in kernels if kernel is None or kernel in k.name or kernel in k.case]
    if not chosen:
        names = ", ".join(dict.fromkeys(k.name[:60] for k in kernels[:8]))
        raise ValueError(f"{path}: no kernel's name contains {kernel!r}; there are {names}")
    ceilings: dict[str | None, Any] = {None: None}
    diagnoses = []
    for k in chosen:
        own = card or _card_of(k)
        if own not in ceilings:
            ceilings[own] = None if own is None else _ceilings(own)
        diagnoses.append(judged(k, ceilings[own], None if floor_us is None else floor_us * 1e-6))
    return diagnoses


def _card_of(kernel: Any) -> str | None:
    """The short name of the card that the report names, where its data sheet is here."""
    from rooftop.core.devices import lookup

    name = kernel.texts.get("device__attribute_display_name", "")
    return name if name and lookup(name) is not None else None


def _ceilings(card: str) -> Any:
    from rooftop.core import settings
    from rooftop.core.devices import lookup
    from rooftop.lab.inspect.inspector import device_of
    from rooftop.lab.records import store
    from rooftop.lab.timing.roofline import Ceilings

    name = card if lookup(card) is not None else device_of(card).name
    return Ceilings.from_records(store.read(settings.load().results), name, lookup(name))


def _is_trace(path: Path) -> bool:
    from rooftop.lab.counters.diagnose import reports, timeline

    try:
        return path.is_file() and timeline.is_trace(reports.content(path, 1 << 20))
    except reports.ReportError:
        return False  # the reader of reports says what is wrong


def _difference(before: list[Any], after: list[Any], as_json: bool) -> None:
    from rooftop.lab.counters.diagnose import pairs, show

    matched = pairs.pair(before, after)
    if as_json:
        rows = [{"before": p.before and p.before.to_json(), "after": p.after and p.after.to_json(), "launches": p.launches} for p in matched]
        echo(json.dumps(rows if len(rows) > 1 else {k: rows[0][k] for k in ("before", "after")}, indent=2))
        return
    echo(show.differences(matched))


def _record_outcome(path: Path, before: list[Any], after: list[Any], lever: str) -> None:
    from rooftop.lab.counters.diagnose import pairs, scores

    for one, other in ((p.before, p.after) for p in pairs.pair(before, after)):
        if one is not None and other is not None and one.seconds and other.seconds:
            scores.came(path, one.name, lever, one.seconds / other.seconds, one.case, one.card)
            return
    raise ValueError("no kernel is in both reports with its duration: nothing to keep")


def _note(diagnoses: list[Any], every: bool, lever: str | None) -> None:
    """Keep what is shown, where the settings say. A kernel that the report has several times is left out: which launch the next version's
    is, nobody says."""
    from collections import Counter

    from rooftop.core import settings
    from rooftop.lab.counters.diagnose import scores
    from rooftop.lab.counters.diagnose.diagnosis import longest
    from rooftop.lab.counters.diagnose.reports import ReportError

    path = settings.load().predictions
    times = Counter((d.name, d.case) for d in diagnoses)
    try:
        for d in longest(diagnoses) if every else longest(diagnoses)[:1]:
            if times[d.name, d.case] == 1 and (said := scores.note(path, d, lever)):
                echo(said, err=True)
    except (OSError, ReportError) as error:
        echo(f"the predictions are not kept: {error}", err=True)


@app.command(rich_help_panel=MEASURE)
def predictions(
    path: Annotated[
        Path | None, typer.Argument(help="The file that diagnose --keep wrote. Without it: the steps of the recorded ladders.")
    ] = None,
    kept: Annotated[bool, typer.Option("--kept", help="The predictions that diagnose stored without --keep.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far off the predicted gains were.

    Shows the median error and the bias of each lever, beside the error of predicting no change.

    Without a file: the time of each ladder's next rung, predicted from the present one and the gains of the same idea on other ladders.

    Examples: [bold]rooftop predictions --kept[/bold] · [bold]rooftop predictions gains.jsonl[/bold]"""
    from dataclasses import asdict

    from rooftop.core import settings
    from rooftop.lab.cli.app import table
    from rooftop.lab.counters.diagnose import scores, steps

    if kept and path is not None:
        raise typer.BadParameter("--kept goes without a file")
    path = settings.load().predictions if kept else path
    if path is None:
        predicted = steps.predict(steps.steps(kept_records()))
        titles = {"idea": "idea of the step", "steps": "steps", "error": "median error", "bias": "bias", "no_change": "no change"}
        table([asdict(s) for s in steps.summary(predicted)], titles, as_json)
        return
    rows = [asdict(s) for s in scores.scores(scores.joined(path))]
    if not rows and not as_json:
        echo(f"{path}: no prediction has a result yet; diagnose a report of the kernel's next version (docs/profiling.md)")
        return
    columns = {
        "lever": "lever", "count": "results", "inside": "inside the range", "median_error": "median error", "bias": "bias",
        "no_change": "no change"
    }
    table(rows, columns, as_json)


@app.command(rich_help_panel=MEASURE)
def place(
    what: Annotated[str, typer.Argument(help="A kernel's file (.cu, .py), an implementation or a rung.")],
    ladder: Annotated[str | None, typer.Option(help="The ladder to place it on: sgemm_cuda, ... (default: every one that fits).")] = None,
    case: CaseName = None, dtype: DTypeName = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count its accesses and those of the rungs in the simulator: takes minutes the first time.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="A profiler's report of the kernel, for its accesses; the longest of its kernels counts.")
    ] = None,
    kernel: KernelName = None, include: Include = None,
    as_json: AsJson = False,
) -> None:
    """Compare a kernel with the rungs of a ladder.

    Shows which rung it is closest to, which optimisations it lacks, and what each gained there. Needs no GPU. A `.cu` whose head names no
    op is taken as one of the ladder's; one without a head is compared with the CUDA C++ rungs of every ladder.

    Examples: [bold]rooftop place my_gemm.cu --ladder sgemm_cuda[/bold] · [bold]rooftop place any.cu --kernel scale[/bold]"""
    from rooftop.core import registry
    from rooftop.lab import candidates
    from rooftop.lab.check import own_op
    from rooftop.lab.cli import triton_files
    from rooftop.lab.counters.diagnose import reports
    from rooftop.lab.report import place as placing

    measured = None
    if report is not None:
        measured = placing.measured_by(max(reports.read(report), key=lambda k: k.get("gpu__time_duration.sum") or 0.0))
    what, named = triton_files.cuda_one(what)
    if python := triton_files.own(what):
        name, facts = triton_files.facts(python, "h200")
        ladders = [ladder] if ladder else registry.ladder_names()
        places = placing.places(
            facts, name, ladders, kept_records(), case=case, dtype=dtype, measured=measured,
            backends=("triton", "gluon", *(("cuda",) if ladder else ()))
        )
    elif own_op.headless(Path(what)):
        places = _place_own(
            Path(what), [ladder] if ladder else registry.ladder_names(), kernel or named, include or [], case, dtype, measured
        )
    else:
        otherwise = registry.ladder(ladder).op if ladder else None
        subject = next((s for s in candidates.find([what], otherwise=otherwise) if s.implementation is not None), None)
        if subject is None:
            raise ValueError(f"{what}: there is no kernel to place, only a reference")
        on = [ladder] if ladder else [n for n in registry.ladder_names() if registry.ladder(n).op == subject.op.name]
        if not on:
            raise ValueError(f"{what} computes {subject.op.name}, of which there is no ladder")
        records = kept_records()
        places = placing.on_each(on, lambda n: placing.place(subject, n, records, case=case, dtype=dtype, count=count, measured=measured))
    noted.placing(what, places[0])
    if as_json:
        rows = [p.to_json() for p in places]
        echo(json.dumps(rows[0] if ladder else rows, indent=2, default=dict))
        return
    echo(placing.screen(places[0]))
    for p in places[1:3]:
        echo(f"also near: {' or '.join(p.nearest)} (distance {p.distance:.1f})")


def _place_own(
    path: Path, ladders: Sequence[str], kernel: str | None, folders: Sequence[Path], case: str | None, dtype: str | None,
    measured: Mapping[str, float] | None
) -> list[Placed]:
    """A file without a head: one kernel of it, the one of the most instructions where none is named."""
    from rooftop.lab.inspect import inspector
    from rooftop.lab.report import place as placing
    from rooftop.lab.simt import own_file

    facts = own_file.facts(own_file.read(path, folders), inspector.device_of("h200"), kernel)
    if not facts.found:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in facts.refused.items()) or f"{path}: no kernel of it is compiled")
    one = max(facts.found, key=lambda k: k["instructions"])
    if len(ladders) > 1:
        echo(
            f"comparing with the rungs of {len(ladders)} ladders, whose machine code is made the first time: that may take minutes",
            err=True
        )
    return placing.places(
        {"kernels": [one]}, f"{path}: {one['kernel']}", ladders, kept_records(), case=case, dtype=dtype, measured=measured
    )


def _without(what: str, case: str | None, card: str, as_json: bool, count: bool) -> None:
    from rooftop.lab import candidates
    from rooftop.lab.counters.diagnose import without
    from rooftop.lab.inspect.inspector import inspect_case

    records = kept_records()
    subjects = [s for s in candidates.find([what]) if s.implementation is not None]
    if not subjects:
        raise ValueError(f"{what}: there is no kernel to diagnose, only a reference")
    diagnoses, refusals = [], []
    for s in subjects:
        try:
            chosen = inspect_case(s, case, card)
            diagnoses.append(without.diagnose(s, chosen, card, records, _simulated(s, chosen, count)))
        except ValueError as error:
            if len(subjects) == 1:
                raise
            refusals.append(str(error))
    if not diagnoses:
        raise ValueError("; ".join(refusals))
    noted.diagnosis(what, diagnoses)
    echo(json.dumps([w.to_json() for w in diagnoses], indent=2, default=dict) if as_json else "\n\n".join(without.screen(w) for w in diagnoses))


def _simulated(subject: Subject, case: Case, count: bool) -> RungCounts | None:
    """What the simulator has counted, of a rung at its ladder's case, as for the ladder's page; None where it does not run such a
    kernel."""
    from rooftop.core import registry
    from rooftop.lab import candidates
    from rooftop.lab.report import ladder_cases, rung_counts

    if subject.rung is None:
        return rung_counts.count([subject], case, run=count).get(subject.name)
    ladder = registry.ladder(subject.rung.ladder)
    rungs = candidates.rungs(ladder)
    headline = ladder_cases.headline_of(ladder, registry.op(ladder.op))
    counts = rung_counts.count(rungs, headline, run=False).get(subject.name)
    if counts is None or not counts.why:
        return counts
    small = rung_counts.small([s for s in rungs if s.implementation is not None and s.implementation.where().place == "simt"], headline)
    return rung_counts.count([subject], small, run=count).get(subject.name)
