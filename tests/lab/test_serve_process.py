"""The server of `rooftop serve` as a process: killed and begun again, ended, with large bodies. A stub judges, but for the last test."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from _serve import SERVER, SOURCE, begun, health, port, until, up
from _support import command

from rooftop.core import settings
from rooftop.lab.judge.serve.queue import Limits, Queue

MANY = Limits(100_000, 100_000, 100_000)


def over(board: Path) -> int:
    with Queue(board) as queue:
        return queue.counts().get("done", 0)


def fill(board: Path, count: int, name: str = "k") -> None:
    with Queue(board) as queue:
        for i in range(count):
            queue.hand_in("ann", op="add", file=f"{name}{i}.cu", source=SOURCE, target="cpu", limits=MANY)


def killed(board: Path, count: int, kills: int, seed: int) -> tuple[int, Counter[str]]:
    """`count` jobs, and the server killed so often in between: kills that hit a job, and how often each was begun."""
    fill(board, count)
    draw, hit, server = random.Random(seed), 0, begun(board, port())
    for n in range(1, kills + 1):
        until(lambda n=n: over(board) >= n * count // (kills + 1), 600.0)
        time.sleep(draw.uniform(0.0, 0.2))
        server.kill()
        server.wait()
        with Queue(board) as queue:
            hit += queue.counts().get("judging", 0)
        server = begun(board, port())
    until(lambda: over(board) == count, 600.0)
    server.terminate()
    assert server.wait(20) == 0
    with Queue(board) as queue:
        entries, jobs = queue.entries(), queue.jobs("ann", count)
        assert {e.id for e in entries} == {j.id for j in jobs} and len(entries) == count and {j.state for j in jobs} == {"done"}
    tries = Counter(line.split()[0] for line in board.with_name("begun").read_text(encoding="utf-8").splitlines())
    assert set(tries) == {f"k{i}.cu" for i in range(count)}
    assert sum(tries.values()) - count <= hit <= kills, "begun again only where it was killed"
    return hit, tries


def test_each_job_is_judged_once_however_often_the_server_is_killed(tmp_path: Path) -> None:
    killed(tmp_path / "board.sqlite", 6, 1, seed=1)


@pytest.mark.sampled("serve")
def test_a_thousand_jobs_and_ten_kills(tmp_path: Path) -> None:
    hit, _ = killed(tmp_path / "board.sqlite", 1000, 10, seed=2)
    assert hit >= 1


@pytest.mark.sampled("slow")
def test_it_ends_in_order_and_the_job_that_it_judged_waits_again(tmp_path: Path) -> None:
    """Though a page follows it. A second server on the board waits for the first one's end, and then judges."""
    import httpx

    board, at, other = tmp_path / "board.sqlite", port(), port()
    with Queue(board) as queue:
        token, _ = queue.add_user("ann", 1)
        job = queue.hand_in("ann", op="add", file="slow.cu", source=SOURCE, target="cpu")
    first = begun(board, at)
    until(lambda: up(at))
    second = begun(board, other)
    url, headers = f"http://127.0.0.1:{at}/job/{job.id}/events", {"authorization": f"Bearer {token}"}
    with httpx.stream("GET", url, headers=headers, timeout=20) as events:
        lines = events.iter_lines()
        assert any("the stub looks at it" in line for line in lines)
        until(lambda: "another server judges" in health(other))
        first.terminate()
        assert not any('"over": true' in line for line in lines), "the stream ends, the job does not"
    assert first.wait(15) == 0
    until(lambda: up(other))
    with Queue(board) as queue:
        until(lambda: queue.job(job.id).state == "judging")
    second.send_signal(signal.SIGINT)
    assert second.wait(15) == 0
    with Queue(board) as queue:
        assert (queue.job(job.id).state, queue.job(job.id).tries) == ("waiting", 0)
    said = [json.loads(line)["event"] for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    assert said.count("ended") == 2
    judges = [int(line.split()[1]) for line in (tmp_path / "begun").read_text(encoding="utf-8").splitlines()]
    assert len(judges) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in judges), "what judged has ended with its server"


@pytest.mark.sampled("slow")
def test_large_and_slow_bodies_over_a_socket(tmp_path: Path) -> None:
    import httpx

    board, at = tmp_path / "board.sqlite", port()
    with Queue(board) as queue:
        token, _ = queue.add_user("ann", 1)
    server = begun(board, at)
    try:
        until(lambda: up(at))
        headers = {"authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{at}/hand-in"
        answer = httpx.post(url, headers=headers, data={"op": "add"}, files={"file": ("k.cu", b"x" * (10 << 20))}, timeout=20)
        assert answer.status_code == 413 and "a submission has at most 1,048,576" in answer.text
        answer = httpx.post(url, headers=headers, content=(b"y" * 65536 for _ in range(200)), timeout=20)
        assert answer.status_code == 413, "without a length too"
        with socket.create_connection(("127.0.0.1", at)) as raw:
            raw.sendall(b"POST /hand-in HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 413")
        answer = httpx.post(url, headers=headers, data={"op": "add", "source": "x"}, files={"file": ("k.cu", b"")}, timeout=20)
        assert answer.status_code == 422 and up(at)
        words = [sys.executable, "-c", SERVER, str(tmp_path / "other.sqlite"), str(at)]
        own = settings.environment({"PYTHONPATH": settings.python_path()})
        again = subprocess.run(words, capture_output=True, timeout=30, check=False, env=own)
        assert again.returncode == 0 and b"Traceback" not in again.stderr, "the port is taken"
    finally:
        server.terminate()
        assert server.wait(15) == 0


@pytest.mark.sampled("slow")
def test_a_card_that_is_not_here_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for target, code in (("nosuch", 3), ("rtx4090", 3)):
        assert command(monkeypatch, "serve", "--target", target) == code
        said = capsys.readouterr().err.strip()
        assert len(said.splitlines()) == 1 and target in said.lower().replace(" ", "")
