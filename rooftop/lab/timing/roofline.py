"""Ceilings: what this card can do at best, measured, and the roof that they give for a work.

`rooftop.lab.timing.calibrate` measures; its records are of kind ``ceiling``, one for each of PARTS. `Ceilings` reads such records, with the
card's datasheet where a ceiling was not measured. A roof is a time: the longer of what the memory needs for the bytes and each unit for its
operations."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from rooftop.core import digests
from rooftop.core.devices import Datasheet, slug
from rooftop.lab.records.record import Record, of_kind

Kind: TypeAlias = Literal["copy", "read", "write"]
Part: TypeAlias = Literal["memory", "l2", "tensor"]

MEMORY = Path(__file__).with_name("memory_ceilings.cu")
TENSOR = Path(__file__).with_name("tensor_ceilings.cu")
PARTS: Mapping[Part, Path] = {"memory": MEMORY, "l2": MEMORY, "tensor": TENSOR}  # and the kernels that each is measured with


@cache
def digest(part: Part = "memory") -> str:
    """Of the calibration kernels: what others measured is not what this tree holds kernels to."""
    from rooftop.core.helpers import SHARED, expanded

    return digests.digest(digests.c_code(expanded(PARTS[part].read_text(encoding="utf-8"), (SHARED,))))


def part_of(record: Record) -> str:
    """What a record of kind ``ceiling`` measured. Those of the memory were once the only ones, and did not say it."""
    return record.subject or "memory"


def current(record: Record) -> bool:
    """Whether a record of kind ``ceiling`` was measured with the calibration kernels of this tree."""
    part = part_of(record)
    return part in PARTS and record.digest == digest(part)


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
    """The ceilings of one card. Rates are operations/s by unit and duty (one FMA is one). `curves` are of the device memory, `l2` of what
    stays in the L2: bytes read + written, by the hot clock."""

    device: str
    curves: Mapping[str, Curve] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    graph_node_s: float = 0.0
    datasheet: Datasheet | None = None
    at: str = ""  # when the memory was measured
    stale: bool = False  # there are measurements of the memory, but of other calibration kernels
    l2: Mapping[str, Curve] = field(default_factory=dict)

    @classmethod
    def from_records(cls, records: Iterable[Record], device: str, datasheet: Datasheet | None = None) -> Ceilings:
        """Of each part the newest ``ceiling`` record of the card named ``device``, of the calibration kernels as they are; without one, the
        datasheet."""
        mine = [r for r in of_kind(records, "ceiling") if slug(r.card) == slug(device)]
        newest = {part_of(r): r for r in mine if current(r)}
        rates = {
            unit: {duty: found["ops_per_s"] for duty, found in by_duty.items()} for unit,
            by_duty in newest.get("tensor", Record({})).get("rates", {}).items()
        }
        l2 = _curves(newest["l2"]) if "l2" in newest else {}
        memory = newest.get("memory")
        if memory is None:
            return cls(device, rates=rates, datasheet=datasheet, stale=any(part_of(r) == "memory" for r in mine), l2=l2)
        rates["fma32"] = {duty: found["ops_per_s"] for duty, found in memory["fma_fp32"].items()}
        return cls(device, _curves(memory), rates, memory["launch"]["graph_node_s"], datasheet, memory["at"], l2=l2)

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


def _curves(record: Mapping[str, Any]) -> dict[str, Curve]:
    return {
        kind: Curve(tuple(p["bytes"] for p in points), tuple(p["seconds"] for p in points), tuple(p["by"] for p in points))
        for kind, points in record["curves"].items()
    }
