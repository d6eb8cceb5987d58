"""From a kernel, a program or a model to where its time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import MEASURE, AsJson, CaseName, app, echo, kept_records
from rooftop.lab.cli.diagnose import diagnose


@app.command(rich_help_panel=MEASURE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def profile(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(help="An op, implementation, rung or file; a model's config.json; or a program, followed by its arguments.")
    ],
    how: Annotated[str, typer.Option("--with", help="events (the timer), torch (torch.profiler) or ncu (hardware counters).")] = "events",
    case: CaseName = None,
    out: Annotated[Path, typer.Option(help="Folder of the report or trace.")] = Path("profile"),
    count: Annotated[int | None, typer.Option(help="With ncu: maximum number of launches.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="With ncu: count by source line as well (compile with -lineinfo).")] = False,
    card: Annotated[str | None, typer.Option(help="With ncu: the card whose measured ceilings apply. For a model: the card whose records predict.")] = None,
    batch: Annotated[int, typer.Option(help="For a model: number of sequences.", min=1)] = 4,
    length: Annotated[int, typer.Option(help="For a model: tokens per sequence.", min=2)] = 2048,
    layers: Annotated[int, typer.Option(help="For a model: number of layers; 0: as the configuration says.", min=0)] = 0,
    records: Annotated[Path | None, typer.Option(help="For a model: a folder for a record of the measured gains.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time a kernel, or profile and diagnose it. Needs a GPU.

    For a model: the ops of a training step, and what patching gains.

    For a model, given as a config.json of Hugging Face Transformers, it shows each op's share of a training step, its roof, and what each
    part of rooftop.patch saves. The savings are predicted from the bench records of a card (without a GPU: h200), and on a GPU also
    measured, by patching only that part. With --card nothing is measured.

    A program runs as a whole. ncu takes any program; events and torch take a Python program (python train.py, python -m package, a script),
    also without a GPU.

    Examples: [bold]rooftop profile softmax --case "rows 2048x131072 bf16"[/bold] ·
    [bold]rooftop profile sgemm_cuda/05_tile_2d --with ncu[/bold] ·
    [bold]rooftop profile --with ncu -- python train.py[/bold] · [bold]rooftop profile config.json --card h200[/bold]"""
    if Path(what).suffix == ".json":
        _model(Path(what), batch, length, layers, card, records, as_json)
        return
    from rooftop.lab import candidates
    from rooftop.lab.cli import elsewhere
    from rooftop.lab.counters.diagnose import command, drive
    from rooftop.lab.inspect.inspector import inspect_case

    if how not in ("events", "torch", "ncu"):
        raise typer.BadParameter(f"--with {how}: accepted are events, torch, ncu")
    report = out / "report.ncu-rep"
    if command.is_program(what, context.args):
        if case is not None:
            raise typer.BadParameter("--case goes with an op, implementation, rung or file, not with a program")
        if how != "ncu":
            _program([what, *context.args], how, out)
            return
        out.mkdir(parents=True, exist_ok=True)
        drive.ncu([what, *context.args], report, count=count, lines=lines)
        diagnose(str(report), card=card)
        return
    elsewhere.elsewhere([what])
    subjects = [s for s in candidates.find([what]) if how != "ncu" or s.implementation is not None]
    if how == "events":
        from rooftop.lab.cli.measure import bench

        bench([what], case, None, budget="2m", case_budget=2.0, records=out, again=True)
        return
    subject = subjects[0]
    chosen = inspect_case(subject, case, "h200")
    if len(subjects) > 1:
        echo(f"{what} means {len(subjects)} kernels; profiled is {subject.name} at {chosen.id}", err=True)
    if how == "torch":
        echo(drive.torch_trace(subject, chosen, out))
        diagnose(str(out / "trace.json"))
        return
    out.mkdir(parents=True, exist_ok=True)
    drive.ncu(drive.command_of(what if Path(what).suffix else subject.name, chosen), report, from_start=False, count=count, lines=lines)
    diagnose(str(report), card=card)


def _program(line: list[str], how: str, out: Path) -> None:
    """A command line with events or torch. Exits with 1 where the program failed, after what was seen of it."""
    from rooftop.lab.counters.diagnose import command, timeline
    from rooftop.lab.counters.diagnose.reports import ReportError

    said = command.run(line, how, out)
    if how == "events":
        echo(command.screen(said))
    else:
        echo((out / "averages.txt").read_text(encoding="utf-8"))
        try:
            echo(timeline.screen(timeline.read(out / "trace.json")))
        except ReportError:
            why = "there is no GPU that torch can use" if said["gpu"] is None else f"the program gave {said['gpu']} no work"
            echo(f"no timeline of a GPU: {why}; {out / 'trace.json'} holds what the CPU did")
    if said["status"]:
        echo(f"the program ended with status {said['status']}", err=True)
        raise typer.Exit(1)


def _model(path: Path, batch: int, length: int, layers: int, card: str | None, records: Path | None, as_json: bool) -> None:
    """A training step of a model with random weights, in bfloat16."""
    from rooftop.core.devices import lookup
    from rooftop.core.spec import TARGETS
    from rooftop.lab.cli.configured import configuration, model_of

    config = configuration(path, layers, "profile")
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab.records import store
    from rooftop.lab.timing import model_profile
    from rooftop.lab.timing.model_costs import Costs

    here = card is None and torch.cuda.is_available()
    if records is not None and not here:
        raise ValueError("--records keeps what was measured, and nothing is measured without a GPU or with --card")
    known = TARGETS.get(card or "h200")  # type: ignore[call-overload]
    name = device_of(torch.cuda.current_device()).name if here else card or "h200" if known is None else known.name
    kept = kept_records()
    sheet = lookup(name)
    costs = Costs(name if sheet is None else sheet.name, kept)
    if not any(r.kind == "bench" for r in costs.records):
        there = sorted({r.card for r in kept if r.kind == "bench"})
        raise ValueError(f"there are no bench records of {costs.device}; there are some of {', '.join(there) or 'no card'}")
    model = model_of(path, config, "cpu", torch.bfloat16, values=False).train()
    vocabulary = config.get_text_config().vocab_size
    ids = torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))
    found = model_profile.profile(model, ids, costs, (lambda: model_of(path, config, "cuda", torch.bfloat16).train()) if here else None)
    text = config.get_text_config()
    of = f"{config.model_type} {text.hidden_size} x {text.num_hidden_layers}, {batch} x {length}"
    echo(json.dumps(found.to_json(), indent=2) if as_json else model_profile.screen(found, of))
    if records is not None:
        import transformers

        about = store.about(device_of(torch.cuda.current_device()))
        with store.Writer(records, about["name"]) as writer:
            said = {"kind": "clock", "subject": "models", "device": about, "versions": store.versions()}
            writer.write({**said, "transformers": f"Transformers {transformers.__version__}", "rows": found.rows(of)})
            echo(f"written: {writer.path}", err=True)
