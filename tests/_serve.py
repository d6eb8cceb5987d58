"""`rooftop serve` for its tests: without a port, and as a process by a stub that judges."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rooftop.core import settings
from rooftop.lab.judge.serve.queue import Limits, Queue
from rooftop.lab.judge.verdict import Verdict

for _name in ("starlette", "python_multipart", "uvicorn", "httpx"):
    pytest.importorskip(_name, reason=f"rooftop serve and its tests need {_name}: pip install 'rooftop[dev]'")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of httpx, in whose place a later Starlette takes another
    from starlette.testclient import TestClient

from rooftop.lab.judge.serve import app, guard  # noqa: E402
from rooftop.lab.judge.serve.service import Service  # noqa: E402
from rooftop.lab.judge.serve.worker import Worker  # noqa: E402

SOURCE = '__global__ void k(float* x) { x[0] = 1; }\nextern "C" void solve(float* x, int n) {\n    k<<<1, 1>>>(x);\n}\n'
VERDICT = Verdict(
    "k.cu", "0" * 64, "CUDA C++", "add", "right", trials=24, place="simulator", isolation="apart", case="round f32", basis="counts",
    cost=100.0, score=0.5, lines=((1, 90.0), (3, 10.0)), between=("add/01", "add/02"), lacking="add/02: wider loads", bound="global memory",
)


class Place(SimpleNamespace):
    """A server without a port: `client` is nobody; `ann` and `ben` have signed in."""

    path: Path
    service: Service
    ann: TestClient
    ben: TestClient
    client: TestClient
    tokens: dict[str, str]

    def hand_in(self, who: TestClient | None = None, **given: Any) -> Any:
        file = given.pop("file", ("", b""))
        data = {"op": "add", "target": "cpu", "language": "cu", "source": SOURCE, **given}
        return (who or self.ann).post("/hand-in", data=data, files={"file": file})

    def judged(self, verdict: Verdict = VERDICT) -> str:
        """The next job, judged so."""
        with Queue(self.path) as queue:
            job = queue.take("cpu")
            assert job is not None
            queue.judged(job, verdict)
        return job.id


def made(folder: Path, prefix: str = "", limits: Limits | None = None, users: tuple[str, ...] = ("ann", "ben")) -> Place:
    folder.mkdir(exist_ok=True)
    path = folder / "board.sqlite"
    with Queue(path) as queue:
        tokens = {user: queue.add_user(user, 10)[0] for user in users}
    log = guard.Log(folder / "log")
    service = Service(path, [Worker(path, "cpu", log)], log, prefix, limits or Limits())
    whole = app.application(service)

    def client(user: str = "") -> TestClient:
        found = TestClient(whole, follow_redirects=False, raise_server_exceptions=False)
        found.headers.update({"authorization": f"Bearer {tokens[user]}"} if user else {})
        return found

    return Place(path=path, service=service, ann=client(users[0]), ben=client(users[1]), client=client(), tokens=tokens)


# -- as a process ----------------------------------------------------------------------------------------------------

SERVER = """
import sys
from pathlib import Path
from rooftop.lab.judge.serve import server
board, port = Path(sys.argv[1]), int(sys.argv[2])
server.serve(board, ["cpu"], host="127.0.0.1", port=port, log=board.with_name("log"), child="_judge_stub")
"""


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def begun(board: Path, at: int) -> subprocess.Popen[bytes]:
    tests = str(settings.CHECKOUT / "tests")
    own = settings.environment({"PYTHONPATH": f"{settings.python_path()}{os.pathsep}{tests}"})
    return subprocess.Popen([sys.executable, "-c", SERVER, str(board), str(at)], env=own, stdout=subprocess.DEVNULL)


def until(true: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def health(at: int) -> str:
    """What the server says, "" where there is none yet."""
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{at}/healthz").text
    except httpx.TransportError:
        return ""


def up(at: int) -> bool:
    return '"ok":true' in health(at)
