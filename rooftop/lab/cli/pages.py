"""Records brought home, pages built of them, and this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooftop.lab.cli.app import ENVIRONMENT, SHOW, WRONG, AsJson, Commands, app, echo, say_if_none, table

if TYPE_CHECKING:
    from rooftop.lab.records.store import Record
    from rooftop.lab.report.data import Digests

records_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Merge, prune and print records.")
app.add_typer(records_app, name="records", rich_help_panel=SHOW)


@records_app.command("merge")
def merge(
    path: Annotated[Path, typer.Argument(help="A folder or file of records from another run or machine.")],
    into: Annotated[Path | None, typer.Option(help="The folder to add them to.", show_default="results/")] = None,
    as_json: AsJson = False,
) -> None:
    """Add the records of another run or machine.

    Merging twice changes nothing. A record counts if its kernel compiles to the same machine code as in the tree, whatever its text.

    Example: [bold]rooftop records merge /tmp/from-the-gpu[/bold]"""
    from rooftop.core import settings
    from rooftop.lab.records import rewriting
    from rooftop.lab.report.joined import renewal

    found = rewriting.merge(path, into or settings.load().results, renewal(()))
    if as_json:
        echo(json.dumps(found.__dict__))
    else:
        echo(f"{found.records} records: {len(found.added)} files added, {len(found.grown)} grown, {len(found.same)} already there")
        for note in found.notes:
            echo(f"note: {note}")


@records_app.command("prune")
def prune(
    folder: Annotated[Path | None, typer.Option("--records", help="The folder of the records.", show_default="results/")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Count what would be dropped; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop records that newer ones supersede.

    A newer record has the same subject, case and card. The remaining records are packed into .jsonl.xz files.

    The newest record that is not stale is kept, or the newest if all are stale. Pages show no others.

    Example: [bold]rooftop records prune --dry-run[/bold]"""
    from rooftop.core import settings
    from rooftop.lab.records import rewriting
    from rooftop.lab.report.joined import renewal, staleness

    digests: Digests = {}
    done = rewriting.prune(folder or settings.load().results, lambda found: staleness(found, digests), dry, renew=renewal((), digests))
    if as_json:
        echo(json.dumps(done.__dict__))
    else:
        verb, gone = ("would be dropped", "would go") if dry else ("dropped", "gone")
        size = f"{done.bytes_dropped / 1e6:.1f} of {done.bytes / 1e6:.1f} MB"
        echo(f"{done.dropped} of {done.records} records {verb}, {size}; {done.files_dropped} of {done.files} files {gone}")


@records_app.command("show")
def show(
    path: Annotated[Path | None, typer.Argument(help="A folder or file of records, packed or not.", show_default="results/")] = None
) -> None:
    """Print records, a line of JSON each, oldest first.

    Each line is complete: it also has what its file states once for a run.

    Example: [bold]rooftop records show results/h200 | grep '"kind":"sweep"'[/bold]"""
    from rooftop.core import settings
    from rooftop.lab.records import form, store

    if path is not None and not path.exists():
        raise FileNotFoundError(f"no {path}")
    cut: list[str] = []
    for record in store.read(path or settings.load().results, cut):
        echo(form.dumps(record))
    for note in cut:
        echo(f"note: {note}", err=True)


def _prune_records(folder: Path, digests: Digests, notes: list[str]) -> list[Record] | None:
    """Prunes the checkout's own records, if there are any and no run is writing them; `notes` is told if not. Keeps the computed digests.
    Returns the records that were read, if they did not change, in the form of `rooftop.lab.records.store.read`; None: they must be read
    again."""
    from rooftop.lab.records import rewriting
    from rooftop.lab.records.store import RecordError
    from rooftop.lab.report.joined import renewal, staleness

    left: list[Record] = []
    try:
        if not folder.is_dir():
            return None
        done = rewriting.prune(folder, lambda found: staleness(found, digests), left=left, renew=renewal((), digests))
    except (RecordError, PermissionError) as error:
        notes.append(f"{folder} is not pruned: {error}")
        return None
    if done.bytes_dropped:
        echo(
            f"pruned {folder}: {done.dropped} of {done.records} records, {done.bytes_dropped / 1e3:.0f} of {done.bytes / 1e3:.0f} kB",
            err=True
        )
    return None if done.bytes_dropped else left


@app.command(rich_help_panel=SHOW)
def report(
    out: Annotated[Path, typer.Option(help="The folder of the pages.")] = Path("report"),
    records: Annotated[Path | None, typer.Option(help="Folder of the records, or one file of them.", show_default="results/")] = None,
    compute: Annotated[
        bool, typer.Option("--compute", help="Compile and count in the simulator what is not cached yet: takes minutes.")
    ] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Write the measured tables and pictures of README.md and docs/ instead.")] = False,
    check: Annotated[bool, typer.Option("--check", help="With --docs: write nothing; exit code 1 if a file would change.")] = False,
    language: Annotated[str, typer.Option(help="Also write the course's pages in this language: zh. Each page has a switch.")] = "en",
) -> None:
    """Build the HTML pages from the records.

    Writes the home page and one page for each ladder, op and card. Prunes results/ first, as rooftop records prune does.

    Example: [bold]rooftop report --docs --check[/bold]"""
    from rooftop.core import settings
    from rooftop.lab import climb
    from rooftop.lab.learn import words
    from rooftop.lab.records import store as recorded
    from rooftop.lab.report import known as known_digests

    if check and not docs:
        raise typer.BadParameter("--check is for --docs: pages are built anew each time")
    if records is not None and not records.exists():
        raise FileNotFoundError(f"no {records}")
    words.catalogue(language)
    if not docs:
        out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    cut: list[str] = []
    digests = known_digests.load()
    changed: list[str] = []
    from rich.console import Console
    from rich.markup import escape

    with (console := Console(stderr=True)).status("reading the records") as shown:
        told = time.monotonic()

        def show(stage: str) -> None:
            nonlocal told
            shown.update(escape(stage))
            if not console.is_terminal and time.monotonic() - told >= climb.EVERY_S:
                told = time.monotonic()
                echo(stage, err=True)

        known = _prune_records(settings.load().results, digests, cut) if records is None and not check else None
        if docs:
            from rooftop.lab.report import documents

            shown.update("writing tables and pictures")
            made = documents.outdated if check else documents.update
            changed = list(made(folder=records, cut=cut, digests=digests))
        else:
            known = recorded.read(records or settings.load().results, cut) if known is None else known
            say_if_none(known, records or settings.load().results)
            index, lacking = climb.build_report(out, known, digests, show, compute, language)
    known_digests.save(digests)
    if docs:
        said = "not as the records have it" if check else "written anew"
        echo(f"{said}: {', '.join(changed)}" if changed else "every table and picture is as the records have it")
    else:
        echo(index.resolve())
        if lacking:
            echo(f"note: the pages lack {lacking}: rooftop report --compute does that, in some minutes", err=True)
    for note in cut:
        echo(f"note: {note}", err=True)
    if check and changed:
        echo("rooftop report --docs writes them")
        raise typer.Exit(WRONG)


@app.command(rich_help_panel=SHOW)
def climb(
    ladders: Annotated[list[str] | None, typer.Argument(help="Ladders. Default: all.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="The folder of the report.")] = Path("report"),
) -> None:
    """Check, compile and time every rung, and write the report.

    Compiles for three targets. Times the rungs if there is a GPU.

    Example: [bold]rooftop climb sgemm_cuda softmax_cuda[/bold]"""
    from rooftop.lab import climb as climbs

    if not climbs.climb(ladders or [], out):
        raise typer.Exit(WRONG)


@app.command(rich_help_panel=SHOW)
def doctor(as_json: AsJson = False) -> None:
    """Show what works on this machine, and what is missing.

    Says how to install what is missing. Exit code 3 if something required is missing."""
    from rooftop.lab import doctor as doctors

    rows = doctors.examine()
    table([r.__dict__ for r in rows], {"what": "what", "state": "", "found": "found", "do": "what to do"}, as_json)
    if any(r.state == "missing" and r.needed for r in rows):
        raise typer.Exit(ENVIRONMENT)


@app.command(rich_help_panel=SHOW)
def stub() -> None:
    """Write rooftop/__init__.pyi, for type checkers.

    It says where the public names come from."""
    from rooftop import public_names
    from rooftop.core import whole_file

    whole_file.write(public_names.STUB, public_names.stub())
    echo(f"wrote {public_names.STUB}")


@app.command(rich_help_panel=SHOW)
def cache(
    empty: Annotated[bool, typer.Option("--empty", help="Empty the cache; it is filled again when needed.")] = False,
    part: Annotated[str, typer.Option(help="Only this part of the cache.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show or empty the cache of compiled kernels.

    Its size stays below ROOFTOP_CACHE_MIB.

    Example: [bold]rooftop cache --empty --part simt[/bold]"""
    from rooftop.core import disk_cache, settings

    if part and part not in disk_cache.PARTS:
        raise ValueError(f"--part is {part!r}; it is one of {', '.join(disk_cache.PARTS)}")
    found = disk_cache.empty(part) if empty else [p for p in disk_cache.parts() if part in ("", p.name)]
    rows = [{"part": p.name, "holds": p.about, "entries": p.entries, "bytes": p.bytes, "MiB": f"{p.bytes / 2**20:.1f}"} for p in found]
    columns = {"part": "Part", "holds": "Holds", "entries": "Entries", "MiB": "MiB"}
    done = "removed from" if empty else "in"
    table(
        rows, columns, as_json,
        f"{sum(p.bytes for p in found) / 2**20:.0f} MiB {done} {settings.load().cache}, at most {settings.load().cache_mib}"
    )
