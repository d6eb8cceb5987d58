"""What test files of several folders share."""

from __future__ import annotations

import fcntl
import re
import sys
from functools import cache
from typing import Any

import pytest


@cache
def committed() -> list[Any]:
    """The records of the tree, read once a process: not to be changed."""
    from rooftop.core import settings
    from rooftop.lab.records import store

    return store.read(settings.CHECKOUT / "results")


@cache
def answers() -> Any:
    """What the pages ask of the tree for each record (rooftop.lab.report.known): one process of a run works it out, the others wait. It grows;
    what a test adds is kept by `known.save`."""
    from rooftop.core import settings
    from rooftop.lab.report import known
    from rooftop.lab.report.joined import staleness

    place = settings.load().cache / "facts"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = known.load()
        stale = staleness(committed(), found)
        for record in committed():
            stale(record)
        known.save(found)
    return found


def results(found: Any) -> tuple[Any, ...]:
    """What a function returns, as a tuple: empty for None."""
    return found if isinstance(found, tuple) else () if found is None else (found,)


def flat(text: str) -> str:
    """Without the line breaks of a terminal."""
    return re.sub(r"\s+", " ", text)


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command line in this process and return its exit code. What it does not answer itself is raised as it is: a traceback."""
    from rooftop.lab import cli

    monkeypatch.setattr(sys, "argv", ["rooftop", *words])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


TRITON = "import torch\nimport triton\nimport triton.language as tl\n"  # the head of a file of Triton kernels
COPIED = f"""{TRITON}
@triton.jit
def copied(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < {{bound}}), mask=at < n)
"""
# a file of CUDA C++ of one's own, which computes no softmax
KERNEL = """/* rooftop
op      = "softmax"
dtypes  = ["f32"]
args    = ["C: i32", "x: T[R, C, 1]", "y: T[R, C, 1]"]
[[launch]]
kernel  = "k<{T}>"
grid    = ["R"]
block   = [256]
*/
template <typename T> __global__ void k(int C, const T* x, T* y) {
    if (threadIdx.x == 0) y[0] = x[0];
}
"""
