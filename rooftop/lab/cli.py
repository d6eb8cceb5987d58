"""The command line. Exit codes: 0 ok, 1 wrong, 2 slower than required, 3 environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

OK, WRONG, SLOWER, ENVIRONMENT = 0, 1, 2, 3
app = typer.Typer(
    name="rooftop", no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Kernels climbed from naive to the roof: checked, measured, explained.",
)  # fmt: skip
records_app = typer.Typer(no_args_is_help=True, help="Records of other runs and machines.")
app.add_typer(records_app, name="records")

What = Annotated[list[str] | None, typer.Argument(help="Ops, implementations, ladders, rungs (ladder/NN) or files. None: everything.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
CaseName = Annotated[str | None, typer.Option("--case", help="One case, by name or 'name dtype'.")]
DTypeName = Annotated[str | None, typer.Option("--dtype", help="Only cases of this dtype (f32, f16, bf16).")]


def _print(rows: list[dict[str, Any]], columns: dict[str, str], as_json: bool, title: str = "") -> None:
    """A table, or the rows whole as JSON."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for key, name in columns.items():
        numeric = bool(rows) and all(isinstance(r.get(key), (int, float)) for r in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    Console().print(table)


def _cell(value: Any) -> str:
    from rich.markup import escape

    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else escape(str(value))


@app.command()
def ls(as_json: AsJson = False) -> None:
    """List ops, implementations and ladders.

    Example: [bold]rooftop ls[/bold]"""
    from rooftop.lab import registry

    rows: list[dict[str, Any]] = []
    for name in registry.op_names():
        found = [f.name for f in registry.kernel_files() if f.op in (name, f"{name}_bwd")]
        rows.append({"kind": "op", "name": name, "what": ", ".join(found) or "reference only"})
    for name in registry.ladder_names():
        ladder = registry.ladder(name)
        rows.append({"kind": "ladder", "name": name, "what": f"{ladder.title}: {len(ladder.rungs)} rungs of {ladder.op}"})
    _print(rows, {"kind": "", "name": "name", "what": "what there is"}, as_json)


@app.command()
def where(name: Annotated[str, typer.Argument(help="An op, an implementation, a ladder or a rung.")], as_json: AsJson = False) -> None:
    """Print the files to read for a name, in the order to read them.

    Example: [bold]rooftop where softmax[/bold]"""
    from rooftop.lab import registry, settings, subjects

    paths: list[Path] = []
    found = subjects.find([name])
    base = (found[0].op.forward or found[0].op).name if found else name
    paths.append(registry.HOUSE.ops / f"{base}.py")
    paths += [s.rung.path if s.rung else s.implementation.path for s in found if s.implementation]
    paths += [f.path for f in registry.kernel_files() if f.op in (base, f"{base}_bwd") and f.path not in paths]
    shown = [str(p.relative_to(settings.CHECKOUT)) if p.is_relative_to(settings.CHECKOUT) else str(p) for p in dict.fromkeys(paths)]
    typer.echo(json.dumps(shown) if as_json else "\n".join(shown))


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="op, kernel or rung")],
    name: Annotated[str, typer.Argument(help="scale · scale__triton · softmax_cuda/08_my_idea")],
) -> None:
    """Write a correct skeleton: an op, a kernel or a rung.

    Examples: [bold]rooftop new op scale[/bold] · [bold]rooftop new kernel scale__triton[/bold] · [bold]rooftop new rung softmax_cuda/08_my_idea[/bold]"""
    from rooftop.lab import skeletons

    typer.echo(f"wrote {skeletons.write(kind, name)}")


@app.command()
def check(
    what: What = None, case: CaseName = None, dtype: DTypeName = None,
    backend: Annotated[str, typer.Option(help="auto, gpu or interpreter")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Of the inputs; fresh each time when not given.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only cases with this tag: edge, bench, model, huge.")] = None,
    huge: Annotated[bool, typer.Option("--huge/--no-huge", help="Also the cases of more than 2^31 elements, on a GPU that holds them.")] = True,
    records: Annotated[Path | None, typer.Option(help="Folder to write check records to.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every case, not the summary and the failures.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Judge kernels by their contract: error against float64, what is allowed, the first wrong element.

    Runs on the GPU where there is one, else Triton in its interpreter. Exit code 1 if anything is wrong.

    Examples: [bold]rooftop check softmax[/bold] · [bold]rooftop check softmax_cuda/06[/bold] · [bold]rooftop check my.cu --case "odd 3x7"[/bold]"""
    import secrets

    from rooftop.lab import check as checks
    from rooftop.lab import subjects

    seed = secrets.randbits(31) if seed is None else seed
    results = []
    for subject in subjects.find(what or []):
        chosen = checks.select_cases(subject, name=case, tags=tag or (), dtype=dtype)
        chosen = chosen if huge or case else [c for c in chosen if "huge" not in c.tags]
        results += [checks.check(subject, c, backend=backend, seed=seed) for c in chosen]
    if records is not None:
        _write_checks(records, results)
    _show_checks(results, seed, every, as_json)
    if any(r.status in ("wrong", "error") for r in results):
        raise typer.Exit(WRONG)


def _write_checks(folder: Path, results: list[Any]) -> None:
    import torch

    from rooftop.lab import records, subjects
    from rooftop.lab.implementation import device_of
    from rooftop.lab.spec import TARGETS

    gpu = torch.cuda.is_available()
    device = device_of(torch.cuda.current_device()) if gpu else TARGETS[90]
    known = {s.name: s for s in subjects.find([r.subject for r in results])} if results else {}
    with records.Writer(folder, device.name if gpu else "cpu") as writer:
        for r in results:
            if r.status in ("ok", "wrong") and r.subject in known:
                subject = known[r.subject]
                digest = subject.digest(subject.op.case(r.case), device)
                about = {"name": device.name if gpu else "cpu", "arch": device.arch, "sms": device.sms}
                writer.write({"kind": "check", "op": r.op, "case": r.case, "subject": r.subject, "digest": digest, "error": r.error(), "path": list(r.path),
                              "backend": r.backend, "device": about, "versions": records.versions()})  # fmt: skip


def _show_checks(results: list[Any], seed: int, every: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"seed": seed, "results": [r.to_json() for r in results]}, indent=2, default=str))
        return
    rows: list[dict[str, Any]] = []
    for r in results:
        if every or r.status in ("wrong", "error"):
            w = r.worst
            rows.append({"subject": r.subject, "case": r.case, "status": r.status, "max": w and w.max, "allowed": w and w.allowed_max,
                         "share": w and max(w.max_share, w.rms_share), "message": r.message})  # fmt: skip
    if rows:
        _print(rows, {"subject": "subject", "case": "case", "status": "", "max": "largest error", "allowed": "allowed", "share": "share of allowance",
                      "message": "finding"}, False, "cases")  # fmt: skip
    summary: dict[str, dict[str, Any]] = {}
    for r in results:
        row = summary.setdefault(r.subject, {"subject": r.subject, "ok": 0, "wrong": 0, "skipped": 0, "where": "", "worst": 0.0, "why": ""})
        row["ok" if r.status == "ok" else "skipped" if r.status == "skipped" else "wrong"] += 1
        row["where"] = r.backend or row["where"]
        if r.status == "ok" and r.worst:
            row["worst"] = max(row["worst"], r.worst.max_share, r.worst.rms_share)
        if r.status == "skipped" and not row["why"]:
            row["why"] = r.message
    _print(list(summary.values()), {"subject": "subject", "ok": "ok", "wrong": "wrong", "skipped": "skipped", "where": "ran on",
                                    "worst": "worst share of allowance", "why": "first reason to skip"}, False, f"seed {seed}")  # fmt: skip


@app.command()
def bench(
    what: What = None, case: CaseName = None, dtype: DTypeName = None,
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 8m.")] = "8m",
    case_budget: Annotated[float, typer.Option(help="Seconds of sampling a case on the kernel clock.")] = 4.0,
    clocks: Annotated[str, typer.Option(help="Which of kernel, cold, hot, host, comma-separated.")] = "kernel,cold,hot,host",
    records: Annotated[Path | None, typer.Option(help="Folder of the records.", show_default="results/")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what has fresh records too.")] = False,
    require: Annotated[float | None, typer.Option(help="Exit with 2 unless every kernel is at least this many times as fast as the best peer.")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Check and time kernels beside their peers, and write records. Needs a GPU.

    Compiles first on all cores, measures what has no fresh record first, writes after each case, and takes up where it stopped.

    Examples: [bold]rooftop bench softmax --budget 8m[/bold] · [bold]rooftop bench sgemm_cuda --case "4096 cubed" --records out/[/bold]"""
    from rooftop.lab import bench as benches
    from rooftop.lab import settings, subjects

    found = subjects.find(what or [])
    todo = benches.fields(found, case=case, dtype=dtype)
    say = (lambda text: typer.echo(text, err=True)) if as_json else typer.echo
    summary = benches.run(todo, records or settings.load().results, budget_s=_seconds(budget), case_budget_s=case_budget,
                          clocks=tuple(clocks.split(",")), again=again, say=say)  # fmt: skip
    if as_json:
        typer.echo(json.dumps(summary.written, indent=2))
    else:
        for title, lines in (("not measured", summary.skipped), ("left for the next run: the budget is spent", summary.left), ("WRONG", summary.wrong)):
            if lines:
                typer.echo(f"{title}:\n" + "\n".join(f"    {line}" for line in lines))
    if summary.wrong:
        raise typer.Exit(WRONG)
    if require is not None and any(_slower(r, require) for r in summary.written):
        raise typer.Exit(SLOWER)


def _slower(record: dict[str, Any], line: float) -> bool:
    """Whether a kernel misses `line` times the best peer; within noise of it counts as reached."""
    peers = [v for n, v in record.get("versus", {}).items() if n.startswith("peer:")]
    best = max((v["ratio"] for v in peers), default=None)
    if record["subject"].startswith("peer:") or best is None:
        return False
    return bool(best * line > 1 and not any(v["verdict"] == "same" and v["ratio"] == best for v in peers))


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        return float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: write 90s, 8m or 1h") from None


@app.command()
def inspect(
    what: What = None, case: CaseName = None,
    arch: Annotated[list[int] | None, typer.Option(help="80, 89 or 90; all when not given.")] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print PTX (Triton).")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Registers, spills, shared memory, occupancy and instructions from the binary; no GPU needed. Exit code 1 if a demand is not met.

    Examples: [bold]rooftop inspect sgemm_cuda[/bold] · [bold]rooftop inspect softmax__triton --arch 80 --ptx[/bold]"""
    from rooftop.lab import inspect as inspects
    from rooftop.lab import subjects

    found = subjects.find(what or [])
    archs = arch or [80, 89, 90]
    if sass or ptx:
        for s in found:
            typer.echo(inspects.text(s, inspects.inspect_case(s, case, archs[-1]), archs[-1], "sass" if sass else "ptx"))
        return
    jobs = [(s, inspects.inspect_case(s, case, a), a) for s in found for a in archs]
    facts = inspects.many(jobs)
    rows = []
    for (name, a), f in facts.items():
        if "refused" in f:
            rows.append({"subject": name, "arch": a, "note": f["refused"]})
        for k in f.get("kernels", []):
            counts = " ".join(f"{n}:{c}" for n, c in k["counts"].items() if n not in ("BRA", "total"))
            occupancy = f"{k['occupancy']['percent']:.0f} % ({k['occupancy']['limiter']})"
            rows.append({"subject": name, "arch": a, **k, "occ": occupancy, "note": "; ".join(k["unmet"]), "sass": counts})
    _print(rows, {"subject": "subject", "arch": "sm", "kernel": "kernel", "registers": "regs", "spills": "spill B", "shared": "shared B",
                  "occ": "occupancy", "sass": "instructions", "note": "unmet or refused"}, as_json)  # fmt: skip
    if any(k["unmet"] for f in facts.values() for k in f.get("kernels", [])):
        raise typer.Exit(WRONG)


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="An op.")], case: CaseName = None,
    arch: Annotated[int, typer.Option(help="The card that stands for this target: 80, 89 or 90.")] = 90, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say what a call would run, with which config, and why not the others.

    Example: [bold]rooftop explain softmax --case "rows 2048x131072 bf16"[/bold]"""
    from rooftop.lab import dispatch, registry
    from rooftop.lab.inspect import device_of

    found = registry.op(op)
    rows = []
    for c in [found.case(case)] if case else [c for c in found.cases if "bench" in c.tags]:
        rows.append({"case": c.id, "explanation": str(dispatch.explain_problem(found, found.problem(c, device_of(arch))))})
    _print(rows, {"case": "case", "explanation": "what runs"}, as_json)


@app.command()
def calibrate(
    records: Annotated[Path | None, typer.Option(help="Folder of the records.", show_default="results/")] = None, as_json: AsJson = False
) -> None:
    """Measure this card's ceilings: copy, read and write by size, launch, fp32 FMA. About a minute; needs a GPU."""
    import torch

    from rooftop.lab import records as recs
    from rooftop.lab import roofline, sensors, settings
    from rooftop.lab.bench import NoGpuError

    if not torch.cuda.is_available():
        raise NoGpuError("calibrate needs an NVIDIA GPU: torch.cuda.is_available() is False (rooftop doctor says what is missing)")
    index = torch.cuda.current_device()

    def read() -> dict[str, Any]:
        found = sensors.read(index)
        return dict(found.to_json()) if hasattr(found, "to_json") else {"absent": str(found)}

    found = roofline.calibrate(index, sensors=read, progress=lambda text: typer.echo(text, err=True))
    with recs.Writer(records or settings.load().results, found["device"]["name"]) as writer:
        writer.write(found)
        typer.echo(json.dumps(found) if as_json else f"wrote {writer.path}")


@records_app.command("merge")
def merge(
    path: Annotated[Path, typer.Argument(help="A folder or file of records from another run or machine.")],
    into: Annotated[Path | None, typer.Option(help="The folder to bring them into.", show_default="results/")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring records of another machine home. Nothing is lost; merging twice changes nothing.

    Example: [bold]rooftop records merge /tmp/from-the-gpu[/bold]"""
    from rooftop.lab import records, settings

    found = records.merge(path, into or settings.load().results)
    if as_json:
        typer.echo(json.dumps(found.__dict__))
    else:
        typer.echo(f"{found.records} records: {len(found.added)} files added, {len(found.grown)} grown, {len(found.same)} already there")
        for note in found.notes:
            typer.echo(f"note: {note}")


@app.command()
def report(
    out: Annotated[Path, typer.Option(help="The folder of the pages.")] = Path("report"),
    records: Annotated[Path | None, typer.Option(help="Folder of the records.", show_default="results/")] = None,
    readme: Annotated[bool, typer.Option("--readme", help="Write the README's score table instead.")] = False,
) -> None:
    """Build the HTML pages from the records: home, and one for each ladder."""
    from rooftop.lab import climb, scores

    if readme:
        typer.echo("the README's score table is " + ("written anew" if scores.update() else "as the records have it"))
        return
    typer.echo(climb.build_report(out, records).resolve())


@app.command()
def climb(
    ladders: Annotated[list[str] | None, typer.Argument(help="Ladders. None: all.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="The folder of the report.")] = Path("report"),
) -> None:
    """Check, compile and inspect every rung for three targets, time them where there is a GPU, and write the report.

    Example: [bold]rooftop climb sgemm_cuda softmax_cuda[/bold]"""
    from rooftop.lab import climb as climbs

    if not climbs.climb(ladders or [], out):
        raise typer.Exit(WRONG)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what works here, what is missing, and what to do about it. Exit code 3 if something needed is missing."""
    from rooftop.lab import doctor as doctors

    rows = doctors.examine()
    _print([r.__dict__ for r in rows], {"what": "what", "state": "", "found": "found", "do": "what to do"}, as_json)
    if any(r.state == "missing" and r.needed for r in rows):
        raise typer.Exit(ENVIRONMENT)


@app.command()
def stub() -> None:
    """Write rooftop/__init__.pyi, the types of the public functions, from the op files."""
    from rooftop.lab import api

    api.STUB.write_text(api.stub(), encoding="utf-8")
    typer.echo(f"wrote {api.STUB}")


def main() -> None:
    """Entry point. Errors that a user can mend are one clear text, not a traceback."""
    from rooftop.lab.bench import NoGpuError
    from rooftop.lab.compile import CompileError, ToolchainError
    from rooftop.lab.expressions import ExpressionError
    from rooftop.lab.head import HeadError
    from rooftop.lab.records import RecordError
    from rooftop.lab.registry import RegistryError

    try:
        app()
    except (NoGpuError, ToolchainError) as error:
        typer.echo(f"rooftop: {error}", err=True)
        sys.exit(ENVIRONMENT)
    except (RegistryError, HeadError, ExpressionError, CompileError, RecordError, FileNotFoundError, ValueError) as error:
        typer.echo(f"rooftop: {error.args[0] if isinstance(error, LookupError) and error.args else error}", err=True)
        sys.exit(WRONG)


if __name__ == "__main__":
    main()
