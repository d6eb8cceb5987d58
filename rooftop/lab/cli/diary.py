"""What was done, day by day."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import SHOW, app, echo


@app.command(rich_help_panel=SHOW)
def diary(
    day: Annotated[str | None, typer.Argument(help="One day, as 2026-11-29. Default: all. Days are those of UTC.")] = None,
    out: Annotated[Path, typer.Option(help="The folder in which the pages are written.")] = Path("diary"),
    notes: Annotated[
        Path, typer.Option(help="A folder of your notes: Markdown files whose names begin with a date, as 2026-11-29-gemm.md.")
    ] = Path("notes"),
    encoding: Annotated[str, typer.Option(help="The encoding of notes that are not UTF-8: gb18030, big5, latin-1, ...")] = "",
    records: Annotated[
        Path | None, typer.Option(help="Also the benches and checks of this folder of records, as of a card elsewhere.")
    ] = None,
) -> None:
    """Collect what you ran, by day, into pages with charts.

    The pages are Markdown and HTML. Nothing is sent anywhere.

    Each run of check, bench, simt, place or diagnose adds a line to the log (ROOFTOP_DIARY; 'off': no log). Predictions, answers and
    puzzles come from rooftop learn.

    Examples: [bold]rooftop diary[/bold] · [bold]rooftop diary 2026-11-29 --notes notes[/bold]"""
    from rooftop.core import settings
    from rooftop.lab.diary import days as collected
    from rooftop.lab.diary import log, pages
    from rooftop.lab.learn.progress import Progress
    from rooftop.lab.report.drawings.canvas import plural

    found = settings.load()
    if notes.exists() and not notes.is_dir():
        raise ValueError(f"--notes {notes} is a file; a folder is needed")
    if records is not None and not records.is_dir():
        raise ValueError(f"--records {records}: there is no such folder")
    if out.resolve() == notes.resolve():
        raise ValueError(f"--out and --notes are both {out}: the pages need a folder of their own")
    written, undated = collected.notes(notes, encoding)
    entries: list[log.Entry] = []
    if found.diary is not None:
        entries, aside = log.read(found.diary)
        if aside is not None:
            echo(
                f"note: {found.diary} held lines that are no entries: it is kept as it was in {aside}, and goes on with the others",
                err=True
            )
    if found.learn.is_file():
        with Progress(found.learn) as progress:
            if progress.aside is not None:
                echo(
                    f"note: {found.learn} was damaged, or no progress of rooftop's: it is kept as {progress.aside}, and a new one is begun",
                    err=True
                )
            entries += collected.of_progress(progress.export())
    if records is not None:
        from rooftop.lab.records import store

        entries += collected.of_records(store.read(records))
    for name in undated:
        echo(f"note: {notes / name} begins with no date and is left out", err=True)
    every = collected.days(entries, written)
    chosen = collected.select(every, day)
    if not every:
        echo("the diary is empty: check, bench or simulate a kernel, or write notes/2026-11-29.md; rooftop diary then makes its pages")
        return
    made = pages.write(out, chosen, every)
    count = sum(len(d.entries) for d in chosen)
    echo(f"{plural(len(chosen), 'day')}, {plural(count, 'thing')} done: {next(p for p in made if p.name == 'index.html')}")
