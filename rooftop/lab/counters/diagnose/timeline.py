"""The Chrome trace of torch.profiler as a timeline: how much of the time the GPU was idle, and why.

Between two stretches of work on the GPU, the gap is of the launches where the CPU had launched the next kernel only after the one before
had ended, and was launching all the while (many short kernels); of a synchronisation where the CPU waited for the GPU and only then went
on; of the host where it did neither."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rooftop.lab.counters.diagnose.reports import ReportError, content
from rooftop.lab.counters.diagnose.show import plain
from rooftop.lab.counters.diagnose.show import time as shown

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LONG_GAP_US = 100.0  # the CPU launches within a few microseconds: a longer gap is not of the launch alone
SYNCHRONISING = ("Synchronize", "cudaMemcpy")


@dataclass(frozen=True)
class Gap:
    start_us: float
    length_us: float
    why: str  # launch, sync, host
    before: str  # what the GPU did next


@dataclass(frozen=True)
class Timeline:
    """Of one trace. Times in seconds; `idle`: the share of the span from the first work of the GPU to the last in which it did nothing."""

    span_s: float
    busy_s: float
    idle: float
    kernels: int
    mean_kernel_s: float
    idle_by: dict[str, float]  # reason -> seconds
    copies_s: float
    copies_alone_s: float  # copies while no kernel ran
    pageable_s: float  # copies from or to memory of the host that is not pinned
    bound: str  # launch, sync, host, copies, gpu
    because: str
    longest: tuple[Gap, ...]
    top: tuple[tuple[str, float, int], ...]  # kernels: name, seconds, launches

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_trace(data: bytes) -> bool:
    """Whether a file's beginning is that of a Chrome trace."""
    return data.lstrip()[:1] in (b"{", b"[") and b'"ph"' in data[: 1 << 20]


def read(path: Path) -> Timeline:
    """Raises FileNotFoundError, ReportError for what is no trace or has no work of a GPU."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such trace")
    try:
        found = json.loads(content(path))
    except ValueError as error:  # ReportError among them
        raise ReportError(f"{path}: not a whole Chrome trace of torch.profiler ({error})") from None
    events = found.get("traceEvents") if isinstance(found, Mapping) else found
    if not isinstance(events, list):
        raise ReportError(f"{path}: JSON without traceEvents is no Chrome trace")
    return of_events([e for e in events if isinstance(e, Mapping) and e.get("ph") == "X" and "dur" in e and "ts" in e], str(path))


def of_events(events: Sequence[Mapping[str, Any]], path: str = "the trace") -> Timeline:
    """The diagnosis of complete events (`ph` X, microseconds)."""
    work = sorted((e for e in events if e.get("cat") in WORK), key=lambda e: float(e["ts"]))
    if not work:
        raise ReportError(f"{path}: the trace has no kernel and no copy of a GPU (record it with ProfilerActivity.CUDA)")
    kernels = [e for e in work if e["cat"] == "kernel"]
    copies = [e for e in work if e["cat"] == "gpu_memcpy"]
    busy = merged(_spans(work))
    span = busy[-1][1] - busy[0][0]
    filled = sum(b - a for a, b in busy)
    gaps = list(_gaps(events, work, busy))
    by = {why: sum(g.length_us for g in gaps if g.why == why) for why in ("launch", "sync", "host")}
    alone = sum(b - a for a, b in subtract(merged(_spans(copies)), merged(_spans(kernels))))
    copied = sum(float(e["dur"]) for e in copies)
    pageable = sum(float(e["dur"]) for e in copies if "Pageable" in str(e.get("name", "")))
    mean = sum(float(e["dur"]) for e in kernels) / len(kernels) if kernels else 0.0
    bound, because = _bound(span, filled, by, alone, mean, pageable)
    us = 1e-6
    return Timeline(
        span * us, filled * us, 1 - filled / span if span else 0.0, len(kernels), mean * us, {k: v * us for k, v in by.items()},
        copied * us, alone * us, pageable * us, bound, because, tuple(sorted(gaps, key=lambda g: -g.length_us)[:5]), tuple(_top(kernels)),
    )


def _bound(span: float, filled: float, by: Mapping[str, float], alone: float, mean: float, pageable: float) -> tuple[str, str]:
    idle = span - filled
    if idle >= 0.2 * span and idle >= alone:
        why = max(by, key=lambda w: by[w])
        return why, {
            "launch": f"the GPU waits for launches for {by['launch'] / span:.0%} of the time, a kernel takes {mean:.1f} us: join kernels, or use a CUDA graph",
            "sync": f"the CPU waits for the GPU before it launches on, {by['sync'] / span:.0%} of the time: drop .item(), .cpu() and synchronize from the loop",
            "host": f"the GPU waits for the host's own work for {by['host'] / span:.0%} of the time: move it out of the loop, or into another thread",
        }[why]
    if alone >= 0.2 * span:
        how = (
            f"pinned memory, as {pageable / span:.0%} of the time is for memory that is not pinned, then another stream" if pageable
            else "another stream"
        )
        return "copies", f"copies that overlap no kernel take {alone / span:.0%} of the time: {how}"
    return "gpu", f"the GPU works for {filled / span:.0%} of the time: look at its longest kernels (rooftop profile --with ncu)"


def _gaps(events: Sequence[Mapping[str, Any]], work: Sequence[Mapping[str, Any]], busy: Sequence[tuple[float, float]]) -> Iterator[Gap]:
    runtime = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    launched = {_correlation(e): e for e in runtime if _correlation(e) is not None}
    waits = merged(
        _spans([e for e in runtime if any(w in str(e.get("name", "")) for w in SYNCHRONISING) and "Async" not in str(e.get("name", ""))])
    )
    calls = sorted(float(e["ts"]) for e in runtime if "aunch" in str(e.get("name", "")))
    first = {float(e["ts"]): e for e in reversed(work)}
    for (_, end), (start, _) in pairwise(busy):
        after = first[start]
        call = launched.get(_correlation(after))
        length = start - end
        if call is not None and float(call["ts"]) + float(call["dur"]) < end:
            why = "launch"  # queued in time: the device's own step from kernel to kernel
        else:
            at = float(call["ts"]) if call is not None else start
            waited = any(a < end + 5.0 and b > end - 5.0 for a, b in _near(waits, end))
            ended = max((b for a, b in _near(waits, end)), default=end)
            rest = at - max(end, ended)  # from the end of the wait to the launch
            if length >= LONG_GAP_US and rest > 0.5 * length:
                why = "host"
            elif waited:
                why = "sync"
            else:
                between = bisect_left(calls, at) - bisect_right(calls, at - max(length, 50.0) * 2)
                why = "launch" if length < LONG_GAP_US or between >= length / LONG_GAP_US * 4 else "host"
        yield Gap(end, length, why, str(after.get("name", "")))


def _near(spans: Sequence[tuple[float, float]], at: float) -> list[tuple[float, float]]:
    """The spans that begin before `at` and end at it or later, and the one after."""
    i = bisect_right(spans, (at, float("inf")))
    return [s for s in spans[max(0, i - 1) : i + 1] if s[0] <= at + 5.0 and s[1] >= at - 5.0]


def _correlation(event: Mapping[str, Any]) -> Any:
    args = event.get("args") or {}
    return args.get("correlation", args.get("External id"))


def _spans(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    return sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events)


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans, sorted, with those that touch made one."""
    found: list[tuple[float, float]] = []
    for a, b in spans:
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], b))
        else:
            found.append((a, b))
    return found


def subtract(spans: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What of `spans` no one of `others` covers; both merged."""
    found = []
    ends = [d for _, d in others]
    for a, b in spans:
        at = a
        for c, d in others[bisect_right(ends, a) :]:
            if c >= b:
                break
            if c > at:
                found.append((at, c))
            at = max(at, d)
        if at < b:
            found.append((at, b))
    return found


def _top(kernels: Sequence[Mapping[str, Any]], most: int = 5) -> Iterator[tuple[str, float, int]]:
    sums: dict[str, list[float]] = {}
    for e in kernels:
        sums.setdefault(str(e.get("name", "")), []).append(float(e["dur"]))
    for name, times in sorted(sums.items(), key=lambda nt: -sum(nt[1]))[:most]:
        yield name, sum(times) * 1e-6, len(times)


def screen(t: Timeline) -> str:
    lines = [
        f"{shown(t.span_s)} of which the GPU is idle {t.idle:.0%}; {t.kernels} kernels of {shown(t.mean_kernel_s)} on average",
        f"  bound by   {t.bound}: {t.because}",
        "  idle for   " + ", ".join(f"{why} {shown(s)}" for why, s in t.idle_by.items() if s > 0),
        f"  copies     {shown(t.copies_s)}, of them {shown(t.copies_alone_s)} while no kernel ran, {shown(t.pageable_s)} with pageable "
        f"memory",
    ]
    lines += [f"  gap        {g.length_us:.0f} us ({g.why}) before {plain(g.before, 70)}" for g in t.longest[:3]]
    lines += [f"  {shown(s):>10}  {n:5} x {plain(name, 84)}" for name, s, n in t.top]
    return "\n".join(lines)
