"""Hand in a kernel, and the board of what was handed in."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import ENVIRONMENT, JUDGE, SHOW, WRONG, AsJson, Commands, DTypeName, app, echo, kept_records, table

if TYPE_CHECKING:
    from rooftop.lab.judge.board import Board, Entry
    from rooftop.lab.judge.serve.queue import Queue


@app.command(rich_help_panel=JUDGE)
def judge(
    file: Annotated[str, typer.Argument(help='A .cu with a head or with extern "C" void solve(...), a .py, or FILE.py:FUNCTION.')],
    op: Annotated[str | None, typer.Option(help="What it computes: an op of rooftop's.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="What it computes: FILE.py with class Model and get_inputs (KernelBench), or FILE.py:FUNCTION.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The card to time on, as h200, which this machine must have; cpu: no card. Default: what this machine has.")
    ] = None,
    dtype: DTypeName = None,
    user: Annotated[str | None, typer.Option(help="The user of the entry on the board. Default: the user of this machine.")] = None,
    board: Annotated[bool, typer.Option("--board/--no-board", help="Keep the entry on the local board.")] = True,
    as_json: AsJson = False,
) -> None:
    """Judge a kernel: right or wrong, a score, its place.

    Shapes and seeds are drawn at random. Also shows what bounds the kernel and its place among the rungs of the ladder. Exit code 1 unless
    it is right.

    Without a GPU the kernel is simulated and scored by counts. It runs in a process without access to files and network, if the system can
    isolate it; the verdict says how (docs/judge.md).

    Examples: [bold]rooftop judge my.cu --op softmax[/bold] · [bold]rooftop judge my.py:softmax --op softmax[/bold] ·
    [bold]rooftop judge new.py --reference problem.py[/bold]"""
    from dataclasses import replace

    from rooftop.lab.judge import judging

    verdict = judging.judge(file, op, reference=reference, target=target, dtype=dtype)
    if board:
        with _opened() as kept:
            kept.begin(kept_records() if verdict.basis == "time" else ())
            entry = kept.placed(verdict, user or getpass.getuser())
            kept.add(entry)
            verdict = replace(verdict, percentile=entry.verdict["percentile"])
    if as_json:
        echo(json.dumps(verdict.to_json(), indent=2))
    for line in [] if as_json else verdict.text():
        echo(line)
    if not verdict.right:
        raise typer.Exit(ENVIRONMENT if verdict.kind == "not judged" else WRONG)


board_app = typer.Typer(cls=Commands, invoke_without_command=True)
app.add_typer(board_app, name="board", rich_help_panel=SHOW)
user_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Add, remove and list the users of rooftop serve.")
board_app.add_typer(user_app, name="user")


@user_app.command("add")
def add_user(
    name: Annotated[str, typer.Argument(help="The user; an existing user gets another token.")],
    days: Annotated[int, typer.Option(help="Days after which the token expires.")] = 180,
) -> None:
    """Make a token with which a user signs in at rooftop serve.

    It is printed once; the board keeps a hash of it."""
    with _queue() as kept:
        token, until = kept.add_user(name, days)
    echo(f"{name} has this token until {until:%Y-%m-%d}; it is not shown again", err=True)
    echo(token)


@user_app.command("remove")
def remove_user(name: Annotated[str, typer.Argument(help="The user.")]) -> None:
    """End a user's tokens.

    Entries stay on the board."""
    with _queue() as kept:
        ended = kept.remove_user(name)
    if not ended:
        raise ValueError(f"{name} has no token; rooftop board user list shows who has")
    echo(f"{name}: {ended} token{'s' if ended > 1 else ''} ended")


@user_app.command("list")
def list_users(as_json: AsJson = False) -> None:
    """List who has a token, and until when."""
    with _queue() as kept:
        rows = [{"user": user, "made": made, "expires": expires} for user, made, expires in kept.users()]
    table(rows, {"user": "user", "made": "made", "expires": "expires"}, as_json)


@board_app.callback()
def show_board(
    context: typer.Context,
    op: Annotated[str | None, typer.Option(help="Only this op.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this card, as h200; counts: the board without a GPU.")] = None,
    user: Annotated[str | None, typer.Option(help="The history of a user: all entries, right or not.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the board as a page.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the entries judged here, signed (ed25519; needs the extra 'board').")] = None,
    take: Annotated[Path | None, typer.Option("--import", help="Add the signed entries of a file; all of them, or none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the board of judged kernels.

    Lists the kernels judged here or imported, beside every rung and peer of the records.

    Examples: [bold]rooftop board --op softmax[/bold] · [bold]rooftop board --user ann[/bold] ·
    [bold]rooftop board --html board.html[/bold] · [bold]rooftop board --export mine.jsonl[/bold] · [bold]rooftop board --import
    theirs.jsonl[/bold]"""
    from dataclasses import asdict

    from rooftop.core.whole_file import regular, write
    from rooftop.lab.judge import board as boards

    if context.invoked_subcommand is not None:
        return
    with _opened() as kept:
        if take is not None:
            new = kept.add(boards.imported(regular(take, 1 << 26).decode("utf-8", "replace")))
            echo(f"{new} entries of {take} are new")
            return
        if device != "counts":
            kept.begin(kept_records())
        else:
            kept.begin()
        found = kept.history(user) if user is not None else kept.entries()
        found = [e for e in found if op in (None, e.op) and (device is None or e.device == _card(device))]
    if export is not None:
        text = boards.exported(found, _file().with_suffix(".key"))
        write(export, text)
        echo(f"{text.count(chr(10))} entries judged here: {export}")
    elif html is not None:
        write(html, boards.page(found))
        echo(f"{len(found)} entries: {html}")
    elif as_json:
        echo(json.dumps([asdict(e) for e in found], indent=2))
    else:
        _shown(found)


def _shown(found: Sequence[Entry]) -> None:
    from rooftop.lab.judge import board as boards

    rows: list[dict[str, Any]] = [
        {
            "op": e.op, "device": e.device, "case": e.item, "user": e.user + (f" ({e.signer})" if e.signer else ""), "kernel": e.subject,
            "kind": e.kind, "score": e.score, "amount": boards.amount(e),
        }
        for e in found
    ]
    if not rows:
        echo("the board has no such entries; rooftop judge my.cu --op softmax adds one")
        return
    table(
        rows,
        {"op": "op", "device": "on", "case": "case", "user": "user", "kernel": "kernel", "kind": "verdict", "score": "score", "amount": ""},
        False,
    )


def _card(name: str) -> str:
    from rooftop.lab.inspect import inspector

    return name if name == "counts" else inspector.device_of(name).name


def _file() -> Path:
    from rooftop.core import settings

    return settings.load().board


def _queue() -> Queue:
    from rooftop.lab.judge.serve.queue import Queue

    return Queue(_file())


def _opened() -> Board:
    from rooftop.lab.judge.board import Board

    return Board(_file())
