"""Ceilings: what this card can do at best, measured as curves, and the roof that they give for a work.

`calibrate` measures; it gives one record of kind ``ceiling``. `Ceilings` reads such records, with the card's datasheet where a
ceiling was not measured. A roof is a time: the longer of what the memory needs for the bytes and each unit for its operations."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from rooftop.core import digests
from rooftop.core.devices import Datasheet, slug
from rooftop.core.settings import PACKAGE
from rooftop.lab.timing.timer import Call, Contestant, Measurement, Timer, sets_needed

if TYPE_CHECKING:
    import torch

Kind: TypeAlias = Literal["copy", "read", "write"]

SIZES = tuple(2**k << 20 for k in range(1, 14))  # bytes read + written: 2 MiB to 8 GiB
THREADS = 256
BLOCKS_A_SM = 2048 // THREADS
FMA_CHAINS = 8
FMA_UNROLL = 32  # as in ceilings.cu
NEVER = 0x5BD1E995
# name: vectors of 16 bytes a thread, hint of ceilings.cu, whether the grid stays resident and strides
VARIANTS: Mapping[str, tuple[int, int, bool]] = {
    "1 vector a thread": (1, 0, False),
    "1 vector a thread, streaming": (1, 1, False),
    "4 vectors a thread": (4, 0, False),
    "4 vectors a thread, streaming": (4, 1, False),
    "8 vectors a thread, streaming": (8, 1, False),
    "4 vectors a thread, resident grid": (4, 0, True),
}
SOURCE = PACKAGE / "kernels" / "_device" / "ceilings.cu"
TORCH: Mapping[Kind, str] = {"copy": "torch copy_", "read": "torch sum", "write": "torch fill_"}


class Streams:
    """The calibration kernels, loaded on torch device ``device``, and the memory that they run on."""

    def __init__(self, device: int = 0) -> None:
        import torch

        from rooftop.core.compile import compile_cuda
        from rooftop.core.launch import Module

        self._torch, self._index = torch, device
        facts = torch.cuda.get_device_properties(device)
        self.sms = int(facts.multi_processor_count)
        self._arch = arch = facts.major * 10 + facts.minor
        self._module = Module(
            compile_cuda(
                SOURCE.read_text(encoding="utf-8"), name=str(SOURCE), kernels=kernels(),
                target=f"sm_{arch}a" if arch >= 90 else f"sm_{arch}",
            )
        )  # fmt: skip
        self._arena = torch.empty(0, dtype=torch.int32, device=f"cuda:{device}")
        self._sink = torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")

    def reserve(self, size: int) -> None:
        """Replaces the arena by ``size`` bytes of random words; calls made before still hold the old one."""
        self._arena = self._torch.empty(0, dtype=self._torch.int32, device=self._sink.device)
        self._torch.cuda.empty_cache()
        self._arena = self._torch.empty(size // 4, dtype=self._torch.int32, device=self._sink.device).random_()

    def launch(self, kernel: str, blocks: int, types: Sequence[str], args: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Call:
        """A call that launches ``kernel`` on torch's current stream; string values in ``args`` name tensors."""
        from rooftop.core.spec import Launch

        chained = self._arch >= 90 and not kernel.startswith("fma")  # whose launches are long
        names = list(tensors)
        prepared = self._module.prepare(Launch(kernel, (blocks,), args, types=tuple(types), block=(THREADS,), chained=chained), names, self._index)
        current, index, kept = self._torch.cuda.current_stream, self._index, dict(tensors)
        addresses = [kept[n].data_ptr() for n in names]

        def call(_: Mapping[str, torch.Tensor] = kept) -> None:  # the call keeps its memory alive
            prepared(current(index).cuda_stream, addresses)

        return call

    def contestants(self, kind: Kind, total: int, sets: int, only: Sequence[str] = ()) -> list[Contestant]:
        """The ways to move ``total`` bytes (read + written; a multiple of 32), over ``sets`` places in the reserved memory: all of
        `VARIANTS` and torch's own, or those named in ``only``."""
        if kind not in get_args(Kind):
            raise ValueError(f"kind {kind!r} is not one of {', '.join(get_args(Kind))}")
        if unknown := set(only) - {*VARIANTS, TORCH[kind]}:
            raise ValueError(f"{', '.join(sorted(unknown))} is not one of {', '.join([*VARIANTS, TORCH[kind]])}")
        if total % 32 or total * sets > self._arena.nbytes:
            raise ValueError(f"{sets} sets of {total} bytes exceed the {self._arena.nbytes} reserved, or are no multiple of 32")
        words = total // (8 if kind == "copy" else 4)
        half = self._arena.numel() // 2
        places = []
        for i in range(sets):
            x = self._arena[i * words : (i + 1) * words]
            places.append((x, self._arena[half + i * words : half + (i + 1) * words] if kind == "copy" else x))
        field = [Contestant(name, [self._ours(kind, name, x, y) for x, y in places]) for name in VARIANTS if not only or name in only]
        if not only or TORCH[kind] in only:
            field.append(Contestant(TORCH[kind], [self._torchs(kind, x, y) for x, y in places]))
        return field

    def _ours(self, kind: Kind, name: str, x: torch.Tensor, y: torch.Tensor) -> Call:
        unroll, hint, resident = VARIANTS[name]
        vectors = x.nbytes // 16
        tiles = math.ceil(vectors / (unroll * THREADS))
        blocks = min(tiles, self.sms * BLOCKS_A_SM) if resident else tiles
        kernel = f"{kind}<{unroll}, {hint}>"
        if kind == "copy":
            return self.launch(kernel, blocks, ("ptr", "ptr", "i64"), {"x": "x", "y": "y", "n": vectors}, {"x": x, "y": y})
        if kind == "read":
            args = {"x": "x", "sink": "sink", "never": NEVER, "n": vectors}
            return self.launch(kernel, blocks, ("ptr", "ptr", "u32", "i64"), args, {"x": x, "sink": self._sink})
        return self.launch(kernel, blocks, ("ptr", "u32", "i64"), {"y": "y", "seed": NEVER, "n": vectors}, {"y": y})

    def _torchs(self, kind: Kind, x: torch.Tensor, y: torch.Tensor) -> Call:
        if kind == "copy":
            return lambda: y.copy_(x)
        if kind == "read":
            floats = x.view(self._torch.float32)
            return lambda: floats.sum()
        return lambda: y.fill_(NEVER)

    def empty(self) -> Call:
        return self.launch("empty", 1, (), {}, {})

    def fma(self, steps: int) -> tuple[Call, int]:
        """A call, and the fused multiply-adds that it makes."""
        blocks = self.sms * BLOCKS_A_SM
        out = self._torch.empty(blocks * THREADS, device=self._sink.device)
        args = {"out": "out", "c": -1.9, "steps": steps}
        call = self.launch(f"fma<{FMA_CHAINS}>", blocks, ("ptr", "f32", "i32"), args, {"out": out})
        return call, blocks * THREADS * FMA_CHAINS * FMA_UNROLL * steps


def kernels() -> list[str]:
    """Every kernel of ceilings.cu that calibration uses, as name expressions."""
    shapes = {(unroll, hint) for unroll, hint, _ in VARIANTS.values()}
    return ["empty", f"fma<{FMA_CHAINS}>", *sorted(f"{kind}<{u}, {h}>" for kind in get_args(Kind) for u, h in shapes)]


@cache
def digest() -> str:
    """Of the calibration kernels: what others measured is not what this tree holds kernels to."""
    from rooftop.core.compile import with_headers

    return digests.digest(*(digests.strip(text, "c") for text in with_headers(SOURCE.read_text(encoding="utf-8"))))


def calibrate(
    device: int = 0,
    *,
    sizes: Sequence[int] = SIZES,
    point_budget_s: float = 0.4,
    sensors: Callable[[], dict[str, Any]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measures this card's ceilings: copy, read and write by size, the launch, and fp32 FMA in a burst and sustained.

    Takes some 25 s on an H100, and the largest size in memory (sizes over four fifths of what is free are left out). Bytes count what is
    read plus what is written; times are the kernel clock's, so data rotates through more than L2. Raises RuntimeError where
    there is no CUDA device."""
    from rooftop.lab.records.store import versions
    from rooftop.lab.timing.timer_cuda import CudaBackend

    backend = CudaBackend(device)
    timer = Timer(backend, sensors=sensors)
    import torch

    free = int(torch.cuda.mem_get_info(device)[0] * 0.8)
    kept = [size for size in sizes if size * sets_needed(size, backend.l2_bytes) <= free]
    if not kept:
        raise RuntimeError(f"{free} bytes of device memory are too few for any of the sizes asked for")
    streams = Streams(device)
    say = progress or (lambda text: None)
    before = timer.read_sensors()
    launch = _launch(timer, streams)
    curves: dict[str, list[dict[str, Any]]] = {kind: [] for kind in get_args(Kind)}
    for size in sorted(kept):
        sets = sets_needed(size, backend.l2_bytes)
        streams.reserve(size * sets)
        for kind, points in curves.items():
            field = streams.contestants(cast(Kind, kind), size, sets)
            found = timer.measure(field, "kernel", bytes_per_call=size, target=0.003, budget_s=point_budget_s)
            points.append(_point(size, found))
            say(f"{kind} {size >> 20} MiB: {points[-1]['gb_per_s']:.0f} GB/s by {points[-1]['by']}")
            del field
    streams.reserve(0)
    return {
        "kind": "ceiling",
        "digest": digest(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": backend.describe(),
        "versions": versions() | {"cuda": str(torch.version.cuda)},
        "clock": "kernel",
        "curves": curves,
        "launch": launch,
        "fma_fp32": {duty: _fma(timer, streams, duty) for duty in ("burst", "sustained")},
        "sensors": {"before": before, "after": timer.read_sensors()},
    }


def _point(size: int, found: Measurement) -> dict[str, Any]:
    best = min(found.timings.values(), key=lambda t: t.median)
    return {
        "bytes": size,
        "seconds": best.median,
        "low": best.low,
        "high": best.high,
        "gb_per_s": size / best.median / 1e9,
        "by": best.name,
        "all": {name: t.median for name, t in found.timings.items()},
        "noise": found.noise,
        "error": found.error,
        "n": best.n,
        "calls": best.calls,
        "sets": best.sets,
    }


def _launch(timer: Timer, streams: Streams) -> dict[str, Any]:
    """An empty kernel: what one launch costs the CPU, and what one node of a graph costs the device. Seconds."""
    field = [Contestant("rooftop", [streams.empty()]), Contestant("torch", [timer.backend.empty("hot")])]
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
    found = timer.measure([Contestant("fma", [call])], "hot", duty=duty, target=0.003, budget_s=3.0)
    t = found["fma"]
    return {
        "ops_per_s": count / t.median,
        "tflops": 2 * count / t.median / 1e12,
        "seconds": t.median,
        "n": t.n,
        "busy": found.busy,
        "sensors": dict(found.sensors),
    }


@dataclass(frozen=True)
class Curve:
    """Time against bytes, through measured points. Between two of them log time is linear in log bytes, so that a fixed cost at
    small sizes and a fixed rate at large ones both come out nearly right."""

    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    by: tuple[str, ...] = ()  # which variant was the fastest at each point

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.bytes))
        if not self.bytes or len(self.bytes) != len(self.seconds) or not rising or min(self.seconds) <= 0:
            raise ValueError("a curve needs as many times as sizes, at least one; sizes must rise and times be positive")

    def time(self, size: float) -> float:
        """Seconds for ``size`` bytes. Past the largest point the last bandwidth holds; below the smallest the first slope goes
        on, but time never falls faster than the bytes do."""
        x, y = self.bytes, self.seconds
        if size <= 0:
            return 0.0
        if size >= x[-1] or len(x) == 1:
            return size * y[-1] / x[-1]
        i = max(1, bisect_left(x, size))
        slope = math.log(y[i] / y[i - 1]) / math.log(x[i] / x[i - 1])
        if size < x[0]:
            slope = min(max(slope, 0.0), 1.0)
        return float(y[i - 1] * (size / x[i - 1]) ** slope)


@dataclass(frozen=True)
class Roof:
    """The time that no kernel should beat. ``bound`` names what sets it: ``memory``, a unit, or ``launch``. ``assumed`` says in
    words which ceilings were not measured."""

    seconds: float
    bound: str
    parts: Mapping[str, float]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one card. Rates are operations/s by unit and duty (one FMA is one)."""

    device: str
    curves: Mapping[str, Curve] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    graph_node_s: float = 0.0
    datasheet: Datasheet | None = None
    at: str = ""  # when it was measured
    stale: bool = False  # there are measurements, but of other calibration kernels

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], device: str, datasheet: Datasheet | None = None) -> Ceilings:
        """The newest ``ceiling`` record of the card named ``device``, of the calibration kernels as they are; without one, the datasheet alone."""
        mine = [r for r in records if r.get("kind") == "ceiling" and slug(r["device"]["name"]) == slug(device)]
        record = max((r for r in mine if r.get("digest") == digest()), key=lambda r: r["at"], default=None)
        if record is None:
            return cls(device, datasheet=datasheet, stale=bool(mine))
        curves = {
            kind: Curve(tuple(p["bytes"] for p in points), tuple(p["seconds"] for p in points), tuple(p["by"] for p in points))
            for kind, points in record["curves"].items()
        }
        rates = {"fma32": {duty: found["ops_per_s"] for duty, found in record["fma_fp32"].items()}}
        return cls(device, curves, rates, record["launch"]["graph_node_s"], datasheet, record["at"])

    def bandwidth(self, kind: Kind, size: float) -> float:
        """Bytes/s of a copy, read or write of ``size`` bytes (read + written). Raises ValueError where neither record nor
        datasheet knows it."""
        if kind not in get_args(Kind):
            raise ValueError(f"kind {kind!r} is not one of {', '.join(get_args(Kind))}")
        if curve := self.curves.get(kind):
            return size / max(curve.time(size), self.graph_node_s) if size > 0 else 0.0
        if self.datasheet:
            return self.datasheet.bandwidth_gbs * 1e9
        raise ValueError(f"{self.device} has no measured {kind} ceiling and no datasheet; run rooftop calibrate")

    def fastest(self, kind: Kind, size: int) -> str | None:
        """The variant that was the fastest at the measured size nearest to ``size``, to be run again beside what it bounds."""
        curve = self.curves.get(kind)
        if curve is None or not curve.by:
            return None
        return curve.by[min(range(len(curve.bytes)), key=lambda i: abs(math.log(curve.bytes[i] / max(size, 1))))]

    def rate(self, unit: str, duty: str = "burst") -> float | None:
        """Operations/s of ``unit``: measured, else the datasheet's, else None."""
        measured = self.rates.get(unit, {}).get(duty)
        if measured or self.datasheet is None or unit not in self.datasheet.rates:
            return measured
        return self.datasheet.per_second(unit)

    def roof(self, read: int, write: int, ops: Mapping[str, float] | None = None, *, duty: str = "burst") -> Roof:
        """The roof of a work of ``read`` and ``write`` bytes and ``ops`` by unit.

        Between pure reading, a copy and pure writing the time a byte is linear in the share of writes, at the same total: as if
        the work were done partly as the one, partly as the other pattern. That goes through the three curves where they were
        measured. Units work side by side with the memory, so the longest part counts, and nothing beats an empty kernel."""
        total = read + write
        parts: dict[str, float] = {"launch": self.graph_node_s}
        assumed = [f"{k} bandwidth from the datasheet" for k in self._kinds(read, write) if k not in self.curves]
        if total:
            parts["memory"] = self._memory(read, write)
        for unit, count in (ops or {}).items():
            rate = self.rate(unit, duty)
            if rate is None:
                assumed.append(f"no ceiling of {unit}: left out")
                continue
            if not self.rates.get(unit, {}).get(duty):
                assumed.append(f"{unit} from the datasheet")
            parts[unit] = count / rate
        bound = max(parts, key=lambda k: parts[k])
        return Roof(parts[bound], bound, parts, tuple(assumed))

    def seconds(self, read: int, write: int, ops: Mapping[str, float] | None = None, *, duty: str = "burst") -> float:
        """The time of `roof`."""
        return self.roof(read, write, ops, duty=duty).seconds

    @staticmethod
    def _kinds(read: int, write: int) -> tuple[Kind, ...]:
        """The curves between which a work of these bytes lies."""
        if read and write:
            return ("copy",) if read == write else ("read", "copy") if read > write else ("copy", "write")
        return ("read",) if read else ("write",) if write else ()

    def _memory(self, read: int, write: int) -> float:
        total, share = read + write, write / (read + write)
        near: Kind = "read" if share <= 0.5 else "copy"
        far: Kind = "copy" if share <= 0.5 else "write"
        toward = share * 2 if share <= 0.5 else share * 2 - 1  # 0 at `near`, 1 at `far`
        seconds = 0.0
        for kind, weight in ((near, 1 - toward), (far, toward)):
            if weight:
                seconds += weight * total / self.bandwidth(kind, total)
        return seconds


def suspicious(seconds: float, roof: Roof, tolerance: float = 0.02) -> str | None:
    """Why a measured time says that the calibration is bad: it beats its roof by more than ``tolerance``. None where all is well."""
    if seconds >= roof.seconds * (1 - tolerance):
        return None
    return (
        f"{seconds * 1e6:.2f} us is under the {roof.bound} ceiling of {roof.seconds * 1e6:.2f} us: a ceiling is the fastest seen, "
        f"so it was set too low; run rooftop calibrate again"
    )
