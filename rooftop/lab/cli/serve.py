"""The judge, the board and the ladders in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import ENVIRONMENT, JUDGE, app, echo


@app.command(rich_help_panel=JUDGE)
def serve(
    host: Annotated[str, typer.Option(help="The address that it listens at. 0.0.0.0: all, for others of the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.", min=1, max=65535)] = 8000,
    prefix: Annotated[str, typer.Option(help="Of every path, where a proxy serves it under one, as /judge.")] = "",
    target: Annotated[
        list[str] | None,
        typer.Option(help="What is judged on: a card that is here, as h200, or cpu. Several: give it again. Default: what is here."),
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Also judge what would run with your rights: kernel modules, and Python on a card.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="The file of the log, lines of JSON. Default: stdout.")] = None,
    waiting: Annotated[int, typer.Option(help="Most jobs that wait.", min=1)] = 200,
    own: Annotated[int, typer.Option(help="Most jobs of one user that wait.", min=1)] = 10,
    hourly: Annotated[int, typer.Option(help="Most jobs that one user hands in within an hour.", min=1)] = 60,
) -> None:
    """Serve the judge, the board and the ladders to browsers, for a class, a team or a contest: hand in a kernel, follow it, see its
    verdict and its place. Users sign in with tokens of [bold]rooftop board user add NAME[/bold]. TLS is a proxy's. Needs the extra serve.

    Example: [bold]rooftop serve --host 0.0.0.0 --port 8000[/bold]"""
    from rooftop.core import settings
    from rooftop.core.names import extra

    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        echo(f"rooftop: {error.name} is not installed: {extra('serve')}", err=True)
        raise typer.Exit(ENVIRONMENT) from None
    from rooftop.lab.judge.serve import server, worker
    from rooftop.lab.judge.serve.queue import Limits

    server.prefixed(prefix)
    targets = list(dict.fromkeys(map(worker.device_of, target or (None,))))
    echo(f"http://{host}:{port}{prefix}/ judges on {', '.join(targets)}", err=True)
    if not server.serve(
        settings.load().board, targets, host=host, port=port, prefix=prefix, log=log, limits=Limits(waiting, own, hourly), trusted=trusted
    ):
        echo(f"rooftop: {host}:{port} cannot be listened at; --host and --port name another", err=True)
        raise typer.Exit(ENVIRONMENT)
