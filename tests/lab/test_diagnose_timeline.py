"""Timelines of torch.profiler: made so that what holds the GPU up is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooftop.lab.counters.diagnose import timeline
from rooftop.lab.counters.diagnose.reports import ReportError


class Trace:
    """Events as torch.profiler writes them, in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def launch(self, at: float, start: float, length: float, cat: str = "kernel", name: str = "k") -> None:
        n = len(self.events)
        self.call("cudaLaunchKernel" if cat == "kernel" else "cudaMemcpyAsync", at, 4, n)
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "args": {"correlation": n}})

    def call(self, name: str, at: float, length: float, correlation: int = -1) -> None:
        self.events.append({"ph": "X", "cat": "cuda_runtime", "name": name, "ts": at, "dur": length, "args": {"correlation": correlation}})


def judged(trace: Trace) -> timeline.Timeline:
    return timeline.of_events(trace.events)


def test_short_kernels_one_after_another_wait_for_launches() -> None:
    trace = Trace()
    for i in range(50):
        trace.launch(i * 8, i * 8 + 5, 2)
    found = judged(trace)
    assert found.bound == "launch" and found.idle == pytest.approx(0.74, abs=0.02) and found.kernels == 50


def test_a_host_that_works_between_launches() -> None:
    trace = Trace()
    for i in range(5):
        trace.launch(i * 2000, i * 2000 + 5, 300)
    found = judged(trace)
    assert found.bound == "host" and found.idle_by["host"] == pytest.approx(4 * 1700e-6)


def test_a_host_that_waits_and_launches_at_once() -> None:
    trace = Trace()
    for i in range(5):
        trace.launch(i * 100, i * 100 + 5, 60)
        trace.call("cudaStreamSynchronize", i * 100 + 6, 70)
    assert judged(trace).bound == "sync"


def test_copies_beside_nothing_and_beside_kernels() -> None:
    alone, beside = Trace(), Trace()
    for i in range(5):
        alone.launch(i, i * 100, 50, "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)")
        alone.launch(i, i * 100 + 50, 50)
        beside.launch(i, i * 100 + 10, 50, "gpu_memcpy")
        beside.launch(i, i * 100, 100)
    assert judged(alone).bound == "copies" and judged(alone).copies_alone_s == pytest.approx(250e-6) == judged(alone).pageable_s
    assert judged(beside).bound == "gpu" and judged(beside).copies_alone_s == 0 and judged(beside).idle == 0


@pytest.mark.parametrize(("text", "said"), [("{", "not a whole"), ('{"a": 1}', "no Chrome trace"), ('{"traceEvents": []}', "no kernel")])
def test_what_is_no_trace(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=said):
        timeline.read(path)


def test_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2}]}))
    with pytest.raises(ReportError, match="no kernel and no copy"):
        timeline.read(path)
