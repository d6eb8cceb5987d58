"""Files of tensors: safetensors, read and written with torch alone.

Eight bytes, little end first, say how long the header is; the header is JSON, name -> {"dtype", "shape", "data_offsets": [begin, end]} and "__metadata__",
text -> text; the tensors' bytes follow, offsets counted from their begin.

Source: github.com/huggingface/safetensors, "Format"."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooftop.core import whole_file

NAMES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64,
}  # fmt: skip
LONGEST = 100_000_000  # bytes of a header


def save_file(tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write the tensors. Raises TypeError for a dtype that the format has no name for."""
    of = {d: n for n, d in NAMES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, t in tensors.items():
        if t.dtype not in of:
            raise TypeError(f"{name} is {t.dtype}; safetensors has {', '.join(map(str, of))}")
        size = t.numel() * t.element_size()
        header[name] = {"dtype": of[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file.open_whole(path) as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for t in tensors.values():
            flat = t.detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                file.write(flat.view(torch.uint8).numpy().tobytes())


def load_file(path: str | Path, device: Any = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata. Raises ValueError, naming the file, where it is truncated or no safetensors file."""
    data = Path(path).read_bytes()
    if len(data) < 8:
        raise ValueError(f"{path}: {len(data)} bytes; a safetensors file has 8 at least")
    (length,) = struct.unpack("<Q", data[:8])
    if length > LONGEST or 8 + length > len(data):
        raise ValueError(f"{path}: its header should be {length} bytes long, the file is {len(data)}: it is truncated or no safetensors file")
    try:
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        entries = {n: (e["dtype"], [int(i) for i in e["shape"]], [int(i) for i in e["data_offsets"]]) for n, e in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: its header is not one of a safetensors file: {error}") from None
    body = memoryview(data)[8 + length :]
    found = {}
    for name, (dtype, shape, offsets) in entries.items():
        if dtype not in NAMES:
            raise ValueError(f"{path}: {name} is of dtype {dtype}; accepted are {', '.join(NAMES)}")
        kind = NAMES[dtype]
        size = prod(shape) * torch.empty(0, dtype=kind).element_size()
        if len(offsets) != 2 or min(shape, default=0) < 0 or offsets[1] - offsets[0] != size or offsets[0] < 0:
            raise ValueError(f"{path}: {name} is {dtype} {shape}, {size} bytes, at {offsets}: they do not fit")
        if offsets[1] > len(body):
            raise ValueError(f"{path}: {name} ends at byte {offsets[1]} of {len(body)}: the file is truncated")
        part = torch.frombuffer(bytearray(body[offsets[0] : offsets[1]]), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        found[name] = part.view(kind).reshape(shape).to(device)
    return found, {str(k): str(v) for k, v in metadata.items()}
