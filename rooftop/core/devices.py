"""Datasheets of the known cards, their names, and the time below which no measurement can be true.

The figures are data, in `data/devices.toml`, each with its source. *Measured* ceilings are something else: `roofline` makes those."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

DATA = Path(__file__).parent / "devices.toml"


@dataclass(frozen=True, slots=True)
class Datasheet:
    """The datasheet of a card. `clock_mhz` is the highest clock that its driver may set, not the boost clock of the datasheet."""

    name: str  # as torch.cuda.get_device_name gives it
    arch: int | str  # 80, 89, 90; "gfx942" on AMD's cards
    sms: int
    clock_mhz: float
    memory_mhz: float
    bus_bits: int
    bandwidth_gbs: float  # GB/s, of device memory
    l2_bytes: int
    shared_per_sm: int  # bytes
    tflops: Mapping[str, float]  # dense, by dtype, at the datasheet's clock; an FMA is two operations
    nvlink_gbs: float  # both directions of all links together; 0: none
    power_w: float
    rates: Mapping[str, float]  # the most results an SM produces per clock, by unit; an FMA is one
    sibling: str | None  # the card whose tuned configs are used if this one has none
    sources: tuple[str, ...]

    @property
    def dram_bytes_per_second(self) -> float:
        """Peak bandwidth of device memory: the datasheet's, or that of clock and bus width if it is higher."""
        return max(self.bandwidth_gbs * 1e9, self.bus_bits / 8 * 2 * self.memory_mhz * 1e6)

    def per_second(self, unit: str, clock_mhz: float | None = None) -> float:
        """Peak operations of `unit` per second, at the card's highest clock or at `clock_mhz`; an FMA is one.

        Raises ValueError for a unit that this architecture does not have."""
        if unit not in self.rates:
            raise ValueError(f"{self.name} has no unit {unit!r}; it has {', '.join(self.rates)}")
        return self.rates[unit] * self.sms * (self.clock_mhz if clock_mhz is None else clock_mhz) * 1e6


def floor_seconds(sheet: Datasheet, dram_bytes: float, ops: Mapping[str, float], *, clock_mhz: float | None = None) -> float:
    """The seconds below which no measurement can be true: device memory or one of the SM's units at its peak.

    `dram_bytes` are only the bytes that must cross the memory bus, without those that may stay in L2. `ops` counts operations by unit
    (`fma32`, `exp`, `tensor-bf16`, ...), one FMA as one. `clock_mhz` is the card's own highest SM clock if it is known; the higher of it
    and the datasheet's is used, for cards sold overclocked.

    A unit is a specific one: `fma32` is the instruction, so an op that other units could compute as well must not name it. Raises
    ValueError for an unknown unit or a negative count."""
    for name, amount in (("dram_bytes", dram_bytes), *ops.items()):
        if not amount >= 0:
            raise ValueError(f"{name} is {amount}; it must be at least 0")
    clock = max(sheet.clock_mhz, clock_mhz or 0)
    return max(dram_bytes / sheet.dram_bytes_per_second, *(count / sheet.per_second(unit, clock) for unit, count in ops.items()), 0.0)


def lookup(name: str) -> Datasheet | None:
    """The datasheet of the card that torch or the driver calls `name`, or None. MIG slices have none."""
    return _sheets().get(slug(name))


def datasheets() -> tuple[Datasheet, ...]:
    """Every datasheet, each once."""
    return tuple({sheet.name: sheet for sheet in _sheets().values()}.values())


def slug(name: str) -> str:
    """The name of a card's folder: ``NVIDIA H100 80GB HBM3`` is ``h100-80gb-hbm3``. Raises ValueError for an empty one."""
    out = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").removeprefix("nvidia-")
    if not out:
        raise ValueError(f"{name!r} is no device name")
    return out


def units() -> frozenset[str]:
    """The units that at least one card has."""
    return frozenset(unit for sheet in datasheets() for unit in sheet.rates)


def sibling(name: str) -> str | None:
    """The card whose tuned configs `name` uses if it has none of its own (H800: H100), or None."""
    sheet = lookup(name)
    return sheet.sibling if sheet else None


@cache
def _sheets() -> Mapping[str, Datasheet]:
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    out: dict[str, Datasheet] = {}
    for entry in data["device"]:
        sheet = _sheet(entry, data["rates"][str(entry["arch"])])
        for name in entry["names"]:
            out[slug(name)] = sheet
    return MappingProxyType(out)


def _sheet(entry: Mapping[str, Any], rates: Mapping[str, float]) -> Datasheet:
    return Datasheet(
        name=entry["names"][0],
        arch=entry["arch"],
        sms=entry["sms"],
        clock_mhz=float(entry["clock"]),
        memory_mhz=float(entry["memory"]),
        bus_bits=entry["bus"],
        bandwidth_gbs=float(entry["bandwidth"]),
        l2_bytes=entry["l2"] << 20,
        shared_per_sm=entry["shared"] << 10,
        tflops=MappingProxyType({k: float(v) for k, v in entry["tflops"].items()}),
        nvlink_gbs=float(entry["nvlink"]),
        power_w=float(entry["power"]),
        rates=MappingProxyType({k: float(v) for k, v in {**rates, **entry.get("rates", {})}.items()}),
        sibling=entry.get("sibling"),
        sources=tuple(entry["sources"]),
    )
