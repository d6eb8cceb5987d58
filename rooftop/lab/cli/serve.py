"""The judge, the board and the ladders in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import ENVIRONMENT, JUDGE, app, echo


@app.command(rich_help_panel=JUDGE)
def serve(
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0: all, for other machines of the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at.", min=1, max=65535)] = 8000,
    prefix: Annotated[str, typer.Option(help="The prefix of every path, if a proxy serves it under one, as /judge.")] = "",
    target: Annotated[
        list[str] | None,
        typer.Option(help="Where kernels are judged: a card of this machine, as h200, or cpu. Repeatable. Default: what this machine has."),
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Also judge what would run with your rights: kernel modules, and Python on a card.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="The file of the log, in lines of JSON. Default: stdout.")] = None,
    waiting: Annotated[int, typer.Option(help="Most jobs that may wait.", min=1)] = 200,
    own: Annotated[int, typer.Option(help="Most jobs of one user that may wait.", min=1)] = 10,
    hourly: Annotated[int, typer.Option(help="Most jobs that one user may submit within an hour.", min=1)] = 60,
) -> None:
    """Serve the judge and the board to browsers.

    For a class, a team or a contest: users submit a kernel, follow its progress, and see its verdict and its place. They sign in with
    tokens of [bold]rooftop board user add NAME[/bold]. To use TLS, put a proxy in front. Needs the extra serve.

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
