"""The application: its name, exit codes, the options that commands share, and how rows are shown."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rooftop.core.texts import brief, printable
from rooftop.lab.exit_codes import ENVIRONMENT as ENVIRONMENT
from rooftop.lab.exit_codes import OK as OK
from rooftop.lab.exit_codes import SLOWER as SLOWER
from rooftop.lab.exit_codes import USAGE
from rooftop.lab.exit_codes import WRONG as WRONG
from rooftop.lab.exit_codes import echo as echo

if TYPE_CHECKING:
    from rooftop.lab.records.store import Record

LOOK, JUDGE, MEASURE, SHOW = "Overview", "Check", "Measure", "Records and pages"  # the panels of the help


class Commands(TyperGroup):
    """The commands. A usage error holds words as they were typed: it is shown without control characters, and shortened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for command in self.commands.values():
            command.help = _paragraphs(command.help or "")

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self._brief(lambda: super(Commands, self).make_context(*args, **kwargs))

    def invoke(self, ctx: Any) -> Any:
        return self._brief(lambda: super(Commands, self).invoke(ctx))

    def _brief(self, task: Callable[[], Any]) -> Any:
        try:
            return task()
        except Exception as error:
            if isinstance(error, USAGE):
                error.message = brief(str(error.message))  # type: ignore[attr-defined]
            raise


def _paragraphs(text: str) -> str:
    """A docstring as help: its paragraphs are wrapped by the terminal, not where the source is, and each example has a line of its own."""
    found = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(re.sub(r"^Examples?: ", "Examples:\n  ", p).replace("[/bold] · [bold]", "[/bold]\n  [bold]") for p in found)


app = typer.Typer(
    name="rooftop", cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="GPU kernels, step by step from the naive version to the fastest: checked, timed, explained.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from rooftop import __version__

        echo(f"rooftop {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False
) -> None:
    """GPU kernels, step by step from the naive version to the fastest: checked, timed, explained."""


What = Annotated[
    list[str] | None, typer.Argument(help="Ops, implementations, ladders, rungs (ladder/NN) or files. Default: all.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
CaseName = Annotated[str | None, typer.Option("--case", help="One case, by name or 'name dtype'.")]
# Of a file without a head, in every command that takes one.
KernelName = Annotated[
    str | None, typer.Option("--kernel", help="For a .cu without a head: the kernel, with its template arguments ('k<float, 256>').")
]
Grid = Annotated[str | None, typer.Option("--grid", help="With --kernel: number of blocks, as 4 or 4x2x1.")]
Block = Annotated[str | None, typer.Option("--block", help="With --kernel: threads per block, as 256 or 16x16.")]
SharedBytes = Annotated[int, typer.Option("--shared", help="With --kernel: bytes of dynamic shared memory.")]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", help="For a .cu without a head: an argument, as n=1000, x=data.npy, p={x, 1000} or x=f32:64x64:range (or random, zeros, ones, "
        "empty, a number, a .npy file). Repeatable."
    ),
]
ProgramWords = Annotated[str | None, typer.Option("--args", help="For a program: its arguments, as in --args '512 3'.")]
Include = Annotated[list[Path] | None, typer.Option("-I", help="For a .cu without a head: a folder of headers that it includes. Repeatable.")]
RecordsFolder = Annotated[Path | None, typer.Option("--records", help="Folder of the records.", show_default="results/")]
DTypeName = Annotated[str | None, typer.Option("--dtype", help="Only cases of this dtype (f32, f16, bf16).")]


def kept_records() -> list[Record]:
    """The records of the settings' folder; a line on stderr where there are none."""
    from rooftop.core import settings
    from rooftop.lab.records import store

    folder = settings.load().results
    found = store.read(folder)
    say_if_none(found, folder)
    return found


def say_if_none(found: Sequence[Record], folder: Path) -> None:
    """That there are no records, as in an installed package, and where some are."""
    if not found:
        echo(
            f"no records in {folder}: measured figures are missing. rooftop's checkout has some; ROOFTOP_RESULTS names their folder",
            err=True
        )


def table(rows: list[dict[str, Any]], columns: dict[str, str], as_json: bool, title: str = "") -> None:
    """A table, or the rows whole as JSON. Where the terminal is too narrow for it, long texts stand beneath themselves, or below their
    row."""
    if as_json:
        echo(json.dumps(rows, indent=2, default=str))
        return
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console = Console()
    shown = Table(header_style="bold")
    for key, name in columns.items():
        shown.add_column(name, justify="right" if _numeric(rows, key) else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(cell(row.get(key)) for key in columns))
    if Measurement.get(console, console.options.update_width(10_000), shown).maximum <= console.width:
        if title:
            echo(title)  # a title of rich's is folded to the width of the table
        console.print(shown)
    else:
        echo("\n".join(_narrow(rows, columns, title, console.width)))


def listed(title: str, lines: Sequence[str]) -> None:
    """Lines beneath their title, if there are any."""
    if lines:
        echo(f"{title}:\n" + "\n".join(f"    {line}" for line in lines))


LONG = 28  # characters: what is longer leaves the row of a narrow table
HANGING = 36  # columns: with as many left, the first of the long texts begins in the row and goes on beneath itself


def _narrow(rows: list[dict[str, Any]], columns: dict[str, str], title: str, width: int) -> Iterator[str]:
    texts = [{key: plain(row.get(key)) for key in columns} for row in rows]
    first = next(iter(columns))
    size = {key: max(len(key_name), *(len(t[key]) for t in texts), 0) for key, key_name in columns.items()}
    inline = [key for key in columns if key == first or max((len(t[key]) for t in texts), default=0) <= LONG]
    while len(inline) > 1 and sum(size[key] + 2 for key in inline) > width:
        inline.remove(max(inline[1:], key=lambda key: size[key]))
    below = [key for key in columns if key not in inline]
    indent = sum(size[key] + 2 for key in inline)
    last = next((k for k in below[:1] if width - indent >= HANGING and not any("\n" in t[k] for t in texts)), None)
    below = [key for key in below if key != last]

    def line(values: dict[str, str]) -> str:
        return "  ".join(values[k].rjust(size[k]) if _numeric(rows, k) else values[k].ljust(size[k]) for k in inline).rstrip()

    def row(values: dict[str, str]) -> str:
        if last is None or not values[last]:
            return line(values)
        return _filled(values[last], width, line(values).ljust(indent), " " * indent)

    if title:
        yield title
    yield row(columns)
    yield "-" * min(width, indent + (min(size[last], width - indent) if last else -2))
    for values in texts:
        yield row(values)
        for key in below:
            if values[key]:
                label = f"    {columns[key]}: " if columns[key] else "    "
                for i, text in enumerate(values[key].splitlines()):
                    yield _filled(text.strip(), max(width, 40), "      " if i else label, "      ")


def _filled(text: str, width: int, first: str, later: str) -> str:
    """Lines of the width. A path longer than a line stays whole, to be copied."""
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False)


def _numeric(rows: list[dict[str, Any]], key: str) -> bool:
    values = [v for r in rows if (v := r.get(key)) is not None]
    return bool(values) and all(isinstance(v, (int, float)) for v in values)


def cell(value: Any) -> str:
    from rich.markup import escape

    return escape(plain(value))


def plain(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else printable(str(value))
