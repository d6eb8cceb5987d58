"""Measure this card's ceilings, each part one record of kind ``ceiling``: the memory with the launch and fp32 FMA, the L2, the tensor
cores.

`rooftop.lab.timing.roofline` reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from rooftop.core.devices import floor_seconds, lookup
from rooftop.lab.timing import tensor_cores
from rooftop.lab.timing.roofline import PARTS, Kind, Part, digest
from rooftop.lab.timing.streams import Streams
from rooftop.lab.timing.timer import Candidate, Measurement, Timer, sets_needed

SIZES = tuple(2**k << 20 for k in range(1, 14))  # bytes read + written: 2 MiB to 8 GiB
L2_SIZES = tuple(2**k << 20 for k in range(8))  # 1 to 128 MiB, of which those are taken that fit
L2_SHARE = 0.6  # of the L2: a line that multiprocessors of both its halves read is kept in both
DUTIES: tuple[Literal["burst"], Literal["sustained"]] = ("burst", "sustained")
Say = Callable[[str], None]


def calibrate(
    device: int = 0,
    *,
    parts: Sequence[Part] = tuple(PARTS),
    sizes: Sequence[int] = SIZES,
    point_budget_s: float = 0.4,
    sensors: Callable[[], dict[str, Any]] | None = None,
    progress: Say | None = None,
) -> Iterator[dict[str, Any]]:
    """The ceilings of this card, a record for each of ``parts`` as it is measured.

    memory   copy, read and write by size, the launch, and fp32 FMA in a burst and sustained: some 25 s on an H100, and the largest size in
             memory (sizes over four fifths of what is free are left out). Times are the kernel clock's, so data rotates through more than
             L2
    l2       copy and read of sizes that stay in the L2, by the hot clock
    tensor   multiply-adds a second of the tensor cores, in a burst and sustained: some 10 s a dtype

    Bytes count what is read plus what is written. Raises RuntimeError where there is no CUDA device, ValueError for an unknown part."""
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"{', '.join(sorted(unknown))} is not one of {', '.join(PARTS)}")
    from rooftop.lab.timing.timer_cuda import CudaBackend

    timer = Timer(CudaBackend(device), sensors=sensors)
    say = progress or (lambda text: None)
    for part in dict.fromkeys(parts):
        before = timer.read_sensors()
        if part == "memory":
            points = _memory(timer, Streams(device), device, sizes, point_budget_s, say)
        elif part == "l2":
            points = _l2(timer, Streams(device), point_budget_s, say)
        else:
            points = _tensor(timer, tensor_cores.Loops(device), say)
        yield {
            "kind": "ceiling", "subject": part, "digest": digest(part), "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": timer.backend.describe(), "sensors": {"before": before, "after": timer.read_sensors()}, **points,
        }


def _memory(timer: Timer, streams: Streams, device: int, sizes: Sequence[int], point_budget_s: float, say: Say) -> dict[str, Any]:
    import torch

    l2_bytes = timer.backend.l2_bytes
    free = int(torch.cuda.mem_get_info(device)[0] * 0.8)
    fitting = [size for size in sizes if size * sets_needed(size, l2_bytes) <= free]
    if not fitting:
        raise RuntimeError(f"{free} bytes of device memory are too few for any of the sizes asked for")
    launch = _launch(timer, streams)
    curves: dict[str, list[dict[str, Any]]] = {kind: [] for kind in get_args(Kind)}
    for size in sorted(fitting):
        sets = sets_needed(size, l2_bytes)
        streams.reserve(size * sets)
        for kind, points in curves.items():
            field = streams.candidates(cast(Kind, kind), size, sets)
            measured = timer.measure(field, "kernel", bytes_per_call=size, target=0.003, budget_s=point_budget_s)
            points.append(_point(size, measured))
            say(f"{kind} {size >> 20} MiB: {points[-1]['gb_per_s']:.0f} GB/s by {points[-1]['by']}")
            del field
    streams.reserve(0)
    return {"clock": "kernel", "curves": curves, "launch": launch, "fma_fp32": {duty: _fma(timer, streams, duty) for duty in DUTIES}}


def _l2(timer: Timer, streams: Streams, point_budget_s: float, say: Say) -> dict[str, Any]:
    """The same copies and reads of one place again and again, of sizes that fit."""
    curves: dict[str, list[dict[str, Any]]] = {"copy": [], "read": []}
    fitting = [size for size in L2_SIZES if size <= L2_SHARE * timer.backend.l2_bytes]
    if not fitting:
        raise RuntimeError(f"an L2 of {timer.backend.l2_bytes} bytes is too small for any size that is measured")
    for size in fitting:
        streams.reserve(size)
        for kind, points in curves.items():
            measured = timer.measure(streams.candidates(cast(Kind, kind), size, 1), "hot", target=0.003, budget_s=point_budget_s)
            points.append(_point(size, measured))
            say(f"L2, {kind} {size >> 20} MiB: {points[-1]['gb_per_s']:.0f} GB/s by {points[-1]['by']}")
    streams.reserve(0)
    return {"clock": "hot", "curves": curves}


def _point(size: int, measured: Measurement) -> dict[str, Any]:
    best = min(measured.timings.values(), key=lambda t: t.median)
    return {
        "bytes": size, "seconds": best.median, "low": best.low, "high": best.high, "gb_per_s": size / best.median / 1e9, "by": best.name,
        "all": {name: t.median for name, t in measured.timings.items()}, "noise": measured.noise, "error": measured.error, "n": best.n,
        "sets": best.sets,
    }


def _launch(timer: Timer, streams: Streams) -> dict[str, Any]:
    """An empty kernel: what one launch costs the CPU, and what one node of a graph costs the device. Seconds."""
    field = [Candidate("rooftop", [streams.empty()]), Candidate("torch", [timer.backend.empty("hot")])]
    host, node = (timer.measure(field, clock, target=0.01, budget_s=0.5) for clock in ("host", "hot"))
    return {
        "host_s": {name: t.median for name, t in host.timings.items()},
        "host_floor_s": host.empty_s,
        "graph_node_s": min(t.median for t in node.timings.values()),
        "cold_s": timer.empty_seconds("cold"),
    }


def _fma(timer: Timer, streams: Streams, duty: Literal["burst", "sustained"]) -> dict[str, Any]:
    """Operations/s (one FMA is one) of chains that stay in registers."""
    call, count = streams.fma(512)
    return _rate(timer, "fma32", {"fma": (call, count)}, duty)


def _tensor(timer: Timer, loops: tensor_cores.Loops, say: Say) -> dict[str, Any]:
    """Of each unit: in a burst every loop in one field; sustained the fastest of them alone, as one that draws less power would lend it
    clock."""
    rates: dict[str, dict[str, Any]] = {}
    for unit, field in loops.by_unit().items():
        burst = _rate(timer, unit, field, "burst")
        rates[unit] = {"burst": burst, "sustained": _rate(timer, unit, {burst["by"]: field[burst["by"]]}, "sustained")}
        say(f"{unit}: {burst['tflops']:.0f} TFLOP/s by {burst['by']} in a burst, {rates[unit]['sustained']['tflops']:.0f} sustained")
    return {"clock": "hot", "rates": rates}


def _rate(timer: Timer, unit: str, field: dict[str, tuple[Any, int]], duty: Literal["burst", "sustained"]) -> dict[str, Any]:
    """Operations/s of the fastest of ``field``: name -> (call, the operations of `unit` that it makes). Refuses what no such card can
    do."""
    sheet = lookup(timer.backend.describe()["name"])
    per_second: dict[str, float] = {}
    listed = sheet is not None and unit in sheet.rates
    floor = min(floor_seconds(sheet, 0, {unit: count}) for _, count in field.values()) if sheet is not None and listed else 0.0
    candidates = [Candidate(name, [call]) for name, (call, _) in field.items()]
    measured = timer.measure(candidates, "hot", duty=duty, target=0.003, budget_s=3.0, floor_seconds=floor)
    per_second = {name: field[name][1] / t.median for name, t in measured.timings.items()}
    best = max(per_second, key=lambda name: per_second[name])
    t = measured[best]
    return {
        "ops_per_s": per_second[best], "tflops": 2 * per_second[best] / 1e12, "seconds": t.median, "by": best, "all": per_second, "n": t.n,
        "busy": measured.busy, "sensors": dict(measured.sensors),
    }
