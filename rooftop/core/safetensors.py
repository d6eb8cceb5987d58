"""The header of a safetensors file, read and checked without torch.

Eight bytes, little end first, say how long the header is; the header is JSON, name -> {"dtype", "shape", "data_offsets": [begin, end]} and
"__metadata__", text -> text; the tensors' bytes follow, offsets counted from their begin.

Source: github.com/huggingface/safetensors, "Format"."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

TORCH: Mapping[str, tuple[str, int]] = {  # dtype of the format -> torch's, and bytes of an element
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1), "F8_E8M0": ("float8_e8m0fnu", 1), "I16": ("int16", 2),
    "U16": ("uint16", 2), "F16": ("float16", 2), "BF16": ("bfloat16", 2), "I32": ("int32", 4), "U32": ("uint32", 4), "F32": ("float32", 4),
    "I64": ("int64", 8), "U64": ("uint64", 8), "F64": ("float64", 8), "C64": ("complex64", 8),
}
LONGEST = 100_000_000  # bytes of a header


@dataclass(frozen=True)
class Entry:
    """One tensor. Its bytes are those from `first` to before `last` of the data."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


def header(data: bytes | memoryview, path: str | Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    """The tensors by name, the metadata, and where the data begin. Raises ValueError, naming the file and the tensor, where it is truncated
    or no
    safetensors file: a tensor that is not as long as its shape and dtype, that lies outside of the data or within another."""
    if len(data) < 8:
        raise ValueError(f"{path} is no safetensors file: it has {len(data)} bytes; one has 8 at least")
    (length,) = struct.unpack("<Q", data[:8])
    if length > LONGEST or 8 + length > len(data):
        raise ValueError(
            f"{path} is truncated, or is no safetensors file: its header should be {length} bytes long, the file is {len(data)}"
        )
    try:
        found = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=_unique)
        if not isinstance(found, dict):
            raise ValueError(f"it is a {type(found).__name__}, not a table")
        metadata = found.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise ValueError("its __metadata__ is not a table of texts")
        entries = {name: _entry(name, t, len(data) - 8 - length) for name, t in found.items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no safetensors file: its header cannot be read: {str(error)[:300]}") from None
    end, before = 0, ""
    for name, t in sorted(entries.items(), key=lambda item: (item[1].first, item[1].last)):
        if t.first < end and t.last > t.first:
            raise ValueError(f"{path} is no safetensors file: tensors {before!r} and {name!r} share bytes {t.first} to {min(end, t.last)}")
        end, before = (t.last, name) if t.last > end else (end, before)
    return entries, metadata, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is in it twice")
    return made


def _entry(name: str, t: Any, size: int) -> Entry:
    if not isinstance(t, dict) or set(t) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} is {str(t)[:80]}; it must be a table of dtype, shape and data_offsets")
    dtype, shape, offsets = t["dtype"], t["shape"], t["data_offsets"]
    said = f"tensor {name!r} of {str(dtype)[:20]} {str(shape)[:80]} at {str(offsets)[:60]}"
    if not isinstance(dtype, str) or not all(
        isinstance(v, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in v) for v in (shape, offsets)
    ):
        raise ValueError(f"{said}: the dtype must be a text, shape and offsets whole numbers of at least 0")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise ValueError(f"{said}: it lies outside of the data, which are {size} bytes: the file is truncated, or no safetensors file")
    if dtype in TORCH and offsets[1] - offsets[0] != (needed := prod(shape) * TORCH[dtype][1]):
        raise ValueError(f"{said}: {needed} bytes and {offsets[1] - offsets[0]} do not fit")
    return Entry(dtype, tuple(shape), *offsets)
