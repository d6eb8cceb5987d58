"""What there is, where to read it, and what would run."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import LOOK, AsJson, CaseName, app, echo, kept_records, table

WAY = (  # of a measured time, from the timer to the page
    "rooftop/lab/timing/timer.py", "rooftop/lab/timing/bench_group.py", "rooftop/lab/records/record.py", "rooftop/lab/records/store.py",
    "rooftop/lab/records/form.py", "rooftop/lab/report/joined.py", "rooftop/lab/report/data.py",
)


@app.command(rich_help_panel=LOOK)
def ls(as_json: AsJson = False) -> None:
    """List ops, kernels and ladders.

    Also lists the kernels that have not been checked on a GPU yet.

    Example: [bold]rooftop ls[/bold]"""
    from rooftop.core import registry, settings
    from rooftop.lab.check.unproven import waiting

    rows: list[dict[str, Any]] = []
    for name in registry.op_names():
        found = [f.name for f in registry.kernel_files() if f.op in (name, f"{name}_bwd")]
        rows.append({"kind": "op", "name": name, "what": ", ".join(found) or "reference only"})
    for name in registry.ladder_names():
        ladder = registry.ladder(name)
        rows.append({"kind": "ladder", "name": name, "what": f"{ladder.title}: {len(ladder.rungs)} rungs of {ladder.op}"})
    lacking = waiting(settings.load().results)
    rows += [{"kind": "unproven", "name": kernel.name, "what": str(kernel).partition(": ")[2]} for kernel in lacking]
    table(rows, {"kind": "kind", "name": "name", "what": "what there is"}, as_json)


@app.command(rich_help_panel=LOOK)
def where(name: Annotated[str, typer.Argument(help="An op, an implementation, a ladder, a rung, or record.")], as_json: AsJson = False) -> None:
    """Print the files to read for a name, in their order.

    These are the contract, the kernels, and what the kernels include and import. For [bold]record[/bold]: the files that a measured time
    passes from the timer to the page. On a terminal each has a short description.

    Examples: [bold]rooftop where layer_norm__cuda_sm90[/bold] · [bold]vim $(rooftop where softmax)[/bold]"""
    from rooftop.core import settings

    paths = reading(name)
    shown = {str(p.relative_to(settings.CHECKOUT)) if p.is_relative_to(settings.CHECKOUT) else str(p): p for p in paths}
    if as_json or not sys.stdout.isatty():
        echo(json.dumps(list(shown)) if as_json else "\n".join(shown))
        return
    wide = max(map(len, shown))
    width = shutil.get_terminal_size().columns
    for text, path in shown.items():
        echo(f"{text:<{wide}}  {about(path)}"[:width] if wide < width - 24 else text)


def reading(name: str) -> list[Path]:
    """The files to read for a name, in order: the contract, what was named, and all that this includes and imports of the kernels."""
    from rooftop.core import helpers, registry, settings
    from rooftop.lab import candidates

    if name == "record":
        return [settings.CHECKOUT / file for file in WAY]
    found = candidates.find([name])
    base = (found[0].op.forward or found[0].op).name if found else name
    paths = [registry.HOUSE.ops / f"{base}.py", *(s.rung.path if s.rung else s.implementation.path for s in found if s.implementation)]
    if name in registry.op_names():  # else what was named, and what that includes
        paths += [f.path for f in registry.kernel_files() if f.op in (base, f"{base}_bwd") and f.path not in paths]
    for path in list(paths):
        beside = path.with_suffix(".py")
        if path.suffix == ".cu" and beside.is_file():
            paths.append(beside)
        if path.parent != registry.HOUSE.ops:
            paths += helpers.all_of(path, base)
    return list(dict.fromkeys(paths))


def about(path: Path) -> str:
    """What a file says of itself first: a sentence of its docstring, its first comment, or the idea of its head."""
    from rooftop.core.head import HeadError
    from rooftop.core.head_text import split

    text = path.read_text(encoding="utf-8")
    try:
        said = (ast.get_docstring(ast.parse(text)) or "") if path.suffix == ".py" else str(
            tomllib.loads(split(text, path.name)[0]).get("idea", "")
        )
    except (SyntaxError, HeadError, tomllib.TOMLDecodeError):
        said = ""
    if not said and path.suffix in (".cuh", ".cu"):
        comments = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
        said = " ".join(line.removeprefix("//").strip() for line in comments)
    return re.split(r"(?<=\.)\s", " ".join(said.split("\n\n")[0].split()))[0]


@app.command(rich_help_panel=LOOK)
def show(name: Annotated[str, typer.Argument(help="A ladder (sgemm_cuda), or one of its rungs by number (sgemm_cuda/04).")]) -> None:
    """Show a ladder, or what one rung of it changes.

    Shows each rung's idea, what it changes, and what was predicted, measured and counted. For one rung, also the difference from the rung
    before.

    Examples: [bold]rooftop show sgemm_cuda[/bold] · [bold]rooftop show sgemm_cuda/04[/bold]"""
    from rooftop.core import registry
    from rooftop.lab.report import ladder_text

    number = registry.rung(name).number if "/" in name else None
    page = ladder_text.page_of(name.partition("/")[0], kept_records())
    for line in ladder_text.overview(page) if number is None else ladder_text.rung(page, number):
        echo(line)


@app.command(rich_help_panel=LOOK)
def new(
    kind: Annotated[str, typer.Argument(help="What to write: op, kernel, rung or head.")],
    name: Annotated[str, typer.Argument(help="Its name: scale, scale__triton, softmax_cuda/11_my_idea or my.cu.")],
    empty: Annotated[
        bool, typer.Option("--empty", help="Write a kernel that only writes zeros, for you to fill, instead of a copy of an existing kernel.")
    ] = False,
    op: Annotated[str | None, typer.Option("--op", help="For a head: the op that the kernel computes.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="For a head: the kernel, if the file has several.")] = None,
) -> None:
    """Write a file that runs: an op, a kernel, a rung or a head.

    A head is written for a .cu that has none, into a new file.

    Examples: [bold]rooftop new op scale[/bold] · [bold]rooftop new kernel scale__triton[/bold] ·
    [bold]rooftop new kernel softmax__mine__cuda --empty[/bold] ·
    [bold]rooftop new rung softmax_cuda/11_my_idea[/bold] · [bold]rooftop new head my.cu --op rms_norm[/bold]"""
    from rooftop.lab import scaffold

    if kind == "head" or op is not None or kernel is not None:
        _new_head(kind, Path(name), op, kernel, empty)
        return
    for path in scaffold.written(kind, name, empty=empty):
        echo(f"wrote {path}")


def _new_head(kind: str, path: Path, op: str | None, kernel: str | None, empty: bool) -> None:
    from rooftop.lab.scaffold import head

    if kind != "head" or empty or op is None:
        raise ValueError("a head is written by rooftop new head my.cu --op softmax (--kernel NAME if the file has several kernels)")
    target, made = head.write(path, op, kernel)
    if made.right:
        echo(f"wrote {target}: {made.kernel}, right on {' and '.join(made.right)}; rooftop check {target} judges it")
    else:
        echo(f"wrote {target}: {made.kernel}, to be mended: no head that was tried is right. {made.why}")


@app.command(rich_help_panel=LOOK)
def explain(
    op: Annotated[str, typer.Argument(help="An op.")], case: CaseName = None,
    arch: Annotated[str, typer.Option(
        help="A card by name (h200, a800, rtx5090, mi300x), or an architecture (80, 86, ... 120, gfx942), for its default card."
    )] = "90",
    as_json: AsJson = False,
) -> None:
    """Show which kernel a call would run, and why.

    Shows the config too, and why the other kernels are not chosen.

    Example: [bold]rooftop explain softmax --case "rows 2048x131072 bf16"[/bold]"""
    from rooftop.core import dispatch, registry
    from rooftop.lab.inspect.inspector import device_of

    found = registry.op(op)
    rows = []
    for c in [found.case(case)] if case else [c for c in found.cases if "bench" in c.tags]:
        rows.append({"case": c.id, "explanation": str(dispatch.explain_problem(found, found.problem(c, device_of(arch))))})
    table(rows, {"case": "case", "explanation": "what runs"}, as_json)
