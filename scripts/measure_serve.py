"""How fast `rooftop serve` answers: 50 clients that poll its pages each second, and 5 uploads at once every five seconds, judged meanwhile.

python scripts/measure_serve.py [--seconds 20]"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from rooftop.core import settings
from rooftop.lab.judge.serve.queue import Queue

CLIENTS, UPLOADS, PAUSE = 50, 5, 1.0
PAGES = ("/", "/board", "/board?op=softmax", "/board?op=matmul", "/ladder/softmax_cuda", "/hand-in", "{job}", "{job}/verdict.json", "/user?name=ann")
SOURCE = """__global__ void k(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
extern "C" void solve(const float* a, const float* b, float* c, int n) { k<<<(n + 255) / 256, 256>>>(a, b, c, n); }
"""


async def polls(client: httpx.AsyncClient, end: float, job: str, times: dict[str, list[float]], errors: list[str], draw: random.Random) -> None:
    await asyncio.sleep(draw.random() * PAUSE)
    while time.monotonic() < end:
        page = draw.choice(PAGES)
        began = time.perf_counter()
        try:
            status = (await client.get(page.format(job=job))).status_code
        except httpx.HTTPError as error:
            status = repr(error)
        times.setdefault(page, []).append(time.perf_counter() - began)
        if status != 200:
            errors.append(f"{page}: {status}")
        await asyncio.sleep(PAUSE)


async def uploads(client: httpx.AsyncClient, end: float, times: dict[str, list[float]], errors: list[str]) -> None:
    async def one() -> None:
        began = time.perf_counter()
        answer = await client.post("/hand-in", data={"op": "add", "target": "cpu"}, files={"file": ("k.cu", SOURCE.encode())})
        times.setdefault("upload", []).append(time.perf_counter() - began)
        if answer.status_code != 303:
            errors.append(f"upload: {answer.status_code}")

    while time.monotonic() < end:
        await asyncio.gather(*(one() for _ in range(UPLOADS)))
        await asyncio.sleep(5.0)


async def measured(url: str, token: str, seconds: float) -> tuple[dict[str, list[float]], list[str]]:
    times: dict[str, list[float]] = {}
    errors: list[str] = []
    limits = httpx.Limits(max_connections=CLIENTS + UPLOADS)
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=30, limits=limits) as client:
        answer = await client.post("/hand-in", data={"op": "add"}, files={"file": ("k.cu", SOURCE.encode())})
        job, end = answer.headers["location"], time.monotonic() + seconds
        await asyncio.gather(
            uploads(client, end, times, errors), *(polls(client, end, job, times, errors, random.Random(n)) for n in range(CLIENTS))
        )
    return times, errors


def shown(name: str, found: list[float]) -> str:
    ranked = sorted(found)
    p50, p95 = (1000 * ranked[min(len(ranked) - 1, int(len(ranked) * q))] for q in (0.5, 0.95))
    return f"{name:24s} {len(found):6d}  p50 {p50:6.0f} ms  p95 {p95:6.0f} ms  most {1000 * ranked[-1]:6.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        board = Path(folder) / "board.sqlite"
        free.bind(("127.0.0.1", 0))
        at = free.getsockname()[1]
        free.close()
        with Queue(board) as queue:
            token, _ = queue.add_user("ann", 1)
        own = settings.environment({"ROOFTOP_BOARD": str(board), "PYTHONPATH": settings.python_path()})
        words = ["serve", "--target", "cpu", "--port", str(at), "--waiting", "1000", "--own", "1000", "--hourly", "1000", "--log", f"{folder}/log"]
        process = subprocess.Popen([sys.executable, "-P", "-m", "rooftop", *words], env=own)
        try:
            url = f"http://127.0.0.1:{at}"
            for _ in range(200):
                try:
                    httpx.get(f"{url}/healthz")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            time.sleep(15.0)  # until the board has its records
            times, errors = asyncio.run(measured(url, token, given.seconds))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            told = (Path(folder) / "log").read_text(encoding="utf-8").splitlines()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    for name, found in sorted(times.items()):
        print(shown(name, found))
    print(shown("all pages", [t for name, found in times.items() if name != "upload" for t in found]))
    print(f"{len(errors)} errors", *errors[:5])
    print(*(line for line in told if '"request"' not in line and ("error" in line or "trouble" in line)), sep="\n")


if __name__ == "__main__":
    main()
