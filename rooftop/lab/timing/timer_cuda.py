"""The timer's hands on a CUDA device, through torch: graphs, events, the L2 flush and the CPU's clock."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rooftop.lab.timing.statistics import median
from rooftop.lab.timing.timer import Call, Candidate, Clock, NotCapturable, Timer, sets_needed

if TYPE_CHECKING:
    import torch

FLUSH = 3  # the buffer that a flush reads, in times L2
HEAD_START_S = 30e-6  # the device is kept busy at least this long while the CPU queues what is timed
LONGEST_HEAD_START_S = 10e-3
CYCLES_PER_S = 2.0e9  # at or above any card's clock, so that a head start is never shorter than asked for


class CudaBackend:
    """Everything runs on a stream of its own; ``device`` is torch's index.

    Raises RuntimeError where torch sees no CUDA device."""

    def __init__(self, device: int = 0) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device; the timer needs one (records made elsewhere can be shown without)")
        self._torch = torch
        self._device = torch.device("cuda", device)
        self._facts = torch.cuda.get_device_properties(self._device)
        self.l2_bytes = int(self._facts.L2_cache_size)
        with torch.cuda.device(self._device):
            self.stream = torch.cuda.Stream()
        self._flushed: torch.Tensor | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "name": self._facts.name,
            "arch": self._facts.major * 10 + self._facts.minor,
            "sms": self._facts.multi_processor_count,
            "l2_bytes": self.l2_bytes,
            "memory_bytes": self._facts.total_memory,
        }

    def now(self) -> float:
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        self._torch.cuda.synchronize(self._device)
        time.sleep(seconds)

    def empty(self, clock: Clock) -> Call:
        """A Python function that does nothing on the host clock, a kernel that ends at once on the others."""
        return (lambda: None) if clock == "host" else (lambda: self._torch.cuda._sleep(0))

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self.stream):
            yield

    def before(self, call: Call) -> None:
        """On the stream that is timed: copies on torch's current stream would still run while the kernel is timed."""
        with self._on_stream():
            call()

    def prepare(self, calls: Sequence[Call]) -> None:
        """Each distinct call once, so that nothing is compiled, tuned or allocated for the first time later on."""
        self._torch.cuda.synchronize(self._device)
        with self._on_stream():
            for call in dict.fromkeys(calls):
                call()
        self._torch.cuda.synchronize(self._device)

    def flush_reading(self) -> None:
        """Reads three times L2 and writes a few bytes: what lay in L2 is gone, and no dirty line of ours is left to write back."""
        torch = self._torch
        if self._flushed is None:
            self._flushed = torch.randn(FLUSH * self.l2_bytes // 4, device=self._device)
            self._sum = torch.empty((), device=self._device)
        torch.sum(self._flushed, 0, out=self._sum)

    def head_start(self, seconds: float = HEAD_START_S) -> None:
        """Occupies the stream (one idle thread) so that the CPU is done queueing before the first event is reached."""
        self._torch.cuda._sleep(int(seconds * CYCLES_PER_S))

    def captured(self, calls: Sequence[Call], *, cold: bool) -> Replay | Cold:
        """Raises NotCapturable with the driver's or torch's reason."""
        self.prepare(calls)
        if cold:
            return Cold(self, [self._graph([call]).replay for call in calls], "graph")
        return Replay(self, self._graph(calls), len(calls))

    def _graph(self, calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
        torch = self._torch
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        kept: deque[object] = deque(maxlen=len(dict.fromkeys(calls)))  # outputs stay alive for one round of the sets
        try:
            with self._on_stream(), torch.cuda.graph(graph, pool=pool, stream=self.stream):
                for call in calls:
                    kept.append(call())
        except Exception as error:
            first: BaseException = error
            while first.__context__ is not None:  # ending a broken capture raises once more; the cause came first
                first = first.__context__
            self._end_broken_capture(pool)
            raise NotCapturable(f"{type(first).__name__}: {str(first).strip().splitlines()[0] if str(first) else ''}") from None
        return graph

    def _end_broken_capture(self, pool: Any) -> None:
        """After a broken capture torch's allocator and random generator still take it to go on (torch 2.11: the next random number
        raises). The allocator is told; a capture that succeeds resets the generator."""
        torch = self._torch
        torch.cuda.synchronize(self._device)
        with suppress(AttributeError, RuntimeError):  # a private function, and an error where the capture had ended after all
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
        with self._on_stream(), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self.stream):
            torch.cuda._sleep(0)
        torch.cuda.synchronize(self._device)

    def eager(self, calls: Sequence[Call], *, cold: bool) -> Eager | Cold:
        self.prepare(calls)
        return Cold(self, calls, "events") if cold else Eager(self, calls)

    def host(self, calls: Sequence[Call]) -> Host:
        self.prepare(calls)
        return Host(self, calls)

    def events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        return self._torch.cuda.Event(enable_timing=True), self._torch.cuda.Event(enable_timing=True)


class Replay:
    """A graph of many calls, replayed between two events."""

    method = "graph"

    def __init__(self, backend: CudaBackend, graph: torch.cuda.CUDAGraph, calls: int) -> None:
        self.calls = calls
        self._backend, self._graph = backend, graph
        self._start, self._end = backend.events()
        with backend._on_stream():
            graph.replay()  # the first replay uploads the graph
            backend.stream.synchronize()
            began = time.perf_counter()
            graph.replay()
            self._queueing = time.perf_counter() - began
            backend.stream.synchronize()

    def run(self, replays: int, lead: int) -> float:
        with self._backend._on_stream():
            for _ in range(lead):
                self._graph.replay()
            if not lead:
                self._backend.head_start(HEAD_START_S + 2 * self._queueing)
            self._start.record()
            for _ in range(replays):
                self._graph.replay()
            self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3


class Cold:
    """One launch between two events, right after L2 was emptied by reading. That also gives the CPU its head start; where Python
    launches call by call, a longer one goes before it."""

    calls = 1

    def __init__(self, backend: CudaBackend, launches: Sequence[Call], method: str) -> None:
        self.method = method
        self._backend, self._launches, self._turn = backend, launches, 0
        self._start, self._end = backend.events()
        began = time.perf_counter()
        with backend._on_stream():
            for launch in launches:
                launch()
        self._queueing = 0.0 if method == "graph" else (time.perf_counter() - began) / len(launches)
        backend.stream.synchronize()

    def run(self, replays: int, lead: int) -> float:
        total = 0.0
        for _ in range(replays):
            launch = self._launches[self._turn % len(self._launches)]
            self._turn += 1
            with self._backend._on_stream():
                if self._queueing:
                    self._backend.head_start(min(2 * self._queueing, LONGEST_HEAD_START_S))
                self._backend.flush_reading()
                self._start.record()
                launch()
                self._end.record()
            self._end.synchronize()
            total += float(self._start.elapsed_time(self._end)) * 1e-3
        return total


class Eager:
    """For what no graph can hold: calls launched one by one between two events, behind a head start that covers the CPU's part
    where the call does not itself wait for the device."""

    method = "events"

    def __init__(self, backend: CudaBackend, calls: Sequence[Call]) -> None:
        self.calls = len(calls)
        self._backend, self._calls = backend, calls
        self._start, self._end = backend.events()
        began = time.perf_counter()
        with backend._on_stream():
            self._launch()
        self._queueing = time.perf_counter() - began
        backend.stream.synchronize()

    def _launch(self) -> None:
        kept: deque[object] = deque(maxlen=self.calls)
        for call in self._calls:
            kept.append(call())

    def run(self, replays: int, lead: int) -> float:
        with self._backend._on_stream():
            for _ in range(lead):
                self._launch()
            self._backend.head_start(min(HEAD_START_S + 1.5 * self._queueing * replays, LONGEST_HEAD_START_S))
            self._start.record()
            for _ in range(replays):
                self._launch()
            self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3


class Host:
    """The CPU's seconds for a batch of eager calls, too small to fill the launch queue; the device catches up outside the time."""

    method = "cpu"

    def __init__(self, backend: CudaBackend, calls: Sequence[Call]) -> None:
        self.calls = len(calls)
        self._backend, self._calls = backend, calls

    def run(self, replays: int, lead: int) -> float:
        total = 0
        collecting = gc.isenabled()
        with self._backend._on_stream():
            for _ in range(replays):
                self._backend.stream.synchronize()
                gc.disable()
                began = time.perf_counter_ns()
                for call in self._calls:
                    call()
                total += time.perf_counter_ns() - began
                if collecting:
                    gc.enable()
            self._backend.stream.synchronize()
        return total * 1e-9


def naive_demo(device: int = 0, *, sizes: Sequence[int] = (16, 64), repeats: int = 101) -> dict[str, Any]:
    """A plain copy of so many MiB (read + written), timed in ten ways: six that a script might take, and the four clocks.
    The six are taken in turn, so that no slow moment of the machine falls on one of them alone.

    Gives a record of kind ``clock``; each row says how it was timed, the seconds a call (median of ``repeats``) and the
    bandwidth that would be claimed from it. docs/timing.md is generated from it."""
    timer = Timer(CudaBackend(device))
    rows = [row for mib in sizes for row in _naive(timer, mib, repeats)]
    return {"kind": "clock", "subject": "naive timing", "device": timer.backend.describe(), "repeats": repeats, "rows": rows}


def _naive(timer: Timer, mib: int, repeats: int) -> list[dict[str, Any]]:
    backend = cast(CudaBackend, timer.backend)
    torch, total = backend._torch, mib << 20
    pairs = [[torch.randn(total // 8, device=backend._device) for _ in range(2)] for _ in range(sets_needed(total, backend.l2_bytes))]
    calls: list[Call] = [partial(y.copy_, x) for x, y in pairs]
    copy, field = calls[0], [Candidate("copy", calls)]
    backend.prepare(calls)
    written = torch.empty(FLUSH * backend.l2_bytes // 4, device=backend._device)
    start, end = backend.events()

    def by_wall(loops: int, wait: bool) -> float:
        torch.cuda.synchronize()
        began = time.time()
        for _ in range(loops):
            copy()
        if wait:
            torch.cuda.synchronize()
        return (time.time() - began) / loops

    def by_events(before: Call) -> float:
        torch.cuda.synchronize()
        before()
        start.record()
        copy()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    naive: list[tuple[str, Callable[[], float], str]] = [
        ("time.time, one call, no synchronisation", lambda: by_wall(1, False), "what the CPU took to queue the copy"),
        ("time.time, a loop of 20, no synchronisation", lambda: by_wall(20, False), "the same, twenty times over"),
        ("time.time, one call, synchronised", lambda: by_wall(1, True), "the copy, its launch, and waking up the CPU"),
        (
            "time.time, a loop of 20, synchronised", lambda: by_wall(20, True),
            "the slower of two: the CPU queueing, or copies that find data of theirs in L2"
        ),
        ("events around one call", lambda: by_events(lambda: None), "the copy, and the CPU queueing it"),
        (
            "events after a flush that writes", lambda: by_events(lambda: written.fill_(1.0)),
            "the copy, and writing back the flush's dirty lines"
        ),
    ]
    taken: dict[str, list[float]] = {how: [] for how, _, _ in naive}
    with backend._on_stream():
        for turn in range(repeats + 5):
            for how, once, _ in naive:
                seconds = once()
                if turn >= 5:
                    taken[how].append(seconds)
    rows = [(how, median(taken[how]), says) for how, _, says in naive]
    for clock, says in (
        ("cold", "the copy, nothing in L2 before it, its last dirty lines left there"),
        ("kernel", "one copy among many, nothing reused, every byte paid; the clock that decides"),
        ("hot", "the same copy again and again, with what L2 kept of it"),
        ("host", "what the CPU spends on one call"),
    ):
        found = timer.measure(field, cast(Clock, clock), bytes_per_call=total)
        rows.append((f"rooftop, {clock} clock", found["copy"].median, says))
    return [{"how": how, "mib": mib, "seconds": s, "gb_per_s": total / s / 1e9, "says": says} for how, s, says in rows]
