"""Runs the application: its port, its devices, its end."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from rooftop.lab.judge.serve.app import application
from rooftop.lab.judge.serve.guard import Log
from rooftop.lab.judge.serve.queue import Limits, Queue
from rooftop.lab.judge.serve.service import Service
from rooftop.lab.judge.serve.worker import CHILD, Worker

GRACE = 10  # seconds that open requests have at the end
MOST = 400  # connections at once; more are told 503


class Server(uvicorn.Server):
    """Tells the streams when it ends: they would hold it up."""

    service: Service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.stopping = True
        super().handle_exit(sig, frame)


def prefixed(text: str) -> str:
    """A prefix of paths. Raises ValueError."""
    if text and not re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)+", text):
        raise ValueError(f"--prefix {text}: it is the beginning of every path, as /judge, without a slash at its end")
    return text


def serve(
    board: Path, targets: Sequence[str], *, host: str, port: int, prefix: str = "", log: Path | None = None, limits: Limits | None = None,
    trusted: bool = False, child: str = CHILD,
) -> bool:
    """Serve until a signal ends it; a job that is being judged then waits for the next start. False where the port cannot be had."""
    say = Log(log)
    Queue(board).close()  # what is wrong with the file is said before the port is open
    workers = [Worker(board, t, say, trusted=trusted, child=child, begin=i == 0) for i, t in enumerate(targets)]
    service = Service(board, workers, say, prefixed(prefix), limits or Limits())
    logging.getLogger("uvicorn").addHandler(say)
    logging.getLogger("uvicorn").propagate = False
    config = uvicorn.Config(
        application(service), host=host, port=port, log_config=None, access_log=False, server_header=False,
        forwarded_allow_ips="127.0.0.1", lifespan="off", ws="none",
        http="h11", loop="asyncio", limit_concurrency=MOST, timeout_graceful_shutdown=GRACE,
    )
    server = Server(config)
    server.service = service
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn has its own meanwhile, and raises the signal again when it has ended
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    for worker in workers:
        worker.start()
    say("started", host=host, port=port, prefix=prefix, devices=list(targets), board=str(board))
    try:
        server.run()
    except SystemExit:  # uvicorn ends the process where the port is taken, and has said so
        return False
    finally:
        for worker in workers:
            worker.stop()
        say("ended")
        logging.getLogger("uvicorn").removeHandler(say)
        say.close()
    return server.started
