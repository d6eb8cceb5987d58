"""Which way is faster at which size: a table that `rooftop calibrate --comm` measures, by card, ranks and wire. Without one plain is not
taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.devices import slug

ALL_REDUCE = "all_reduce"
saved = 0  # tables, in this process


@dataclass(frozen=True)
class Measured:
    path: str
    why: str


def file(device: str) -> Path:
    """Where the table of a card lies."""
    return settings.load().results / slug(device) / "comm.json"


@cache
def _table(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def save(device: str, ranks: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """`rows`: {"kind", "bytes", "wire", "plain_us", "symmetric_us", "portable_us"}, of an all-reduce without "kind"; of other numbers of
    ranks what is there stays."""
    path = file(device)
    table = dict(_table(path))
    table[str(ranks)] = [dict(row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    global saved
    saved += 1
    _table.cache_clear()
    _decided.cache_clear()
    return path


def faster(x: Any, ranks: int, wire: str, path: str, kind: str = ALL_REDUCE) -> Measured | None:
    """The faster of the plain collective of x and `path` at the measured size that is nearest; None where nobody has measured."""
    return _decided(x.device.index, x.numel() * x.element_size(), ranks, wire, path, kind) if x.is_cuda else None


@lru_cache(1024)
def _decided(index: int, size: int, ranks: int, wire: str, path: str, kind: str) -> Measured | None:
    import torch

    return judged(_table(file(torch.cuda.get_device_name(index))).get(str(ranks), ()), size, wire, path, kind)


def judged(rows: Sequence[Mapping[str, Any]], size: int, wire: str, path: str, kind: str = ALL_REDUCE) -> Measured | None:
    """The row of this collective and wire whose size is nearest by ratio decides."""
    known = [r for r in rows if r["wire"] == wire and r.get("kind", ALL_REDUCE) == kind and r.get(f"{path}_us") and r.get("plain_us")]
    if not known:
        return None
    row = min(known, key=lambda r: abs(max(size, 1) / r["bytes"] - 1) if size >= r["bytes"] else abs(r["bytes"] / max(size, 1) - 1))
    plain, quantised = row["plain_us"], row[f"{path}_us"]
    said = f"measured at {row['bytes']} bytes: plain {plain:.1f} us, {path} {quantised:.1f} us"
    return Measured("plain" if plain < quantised else path, said)
