"""Files of tensors: safetensors, read and written with torch alone. rooftop.core.safetensors says what the format is."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooftop.core import safetensors, whole_file

NAMES: Mapping[str, torch.dtype] = {name: getattr(torch, dtype) for name, (dtype, _) in safetensors.TORCH.items()}


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
    entries, metadata, start = safetensors.header(data, path)
    body = memoryview(data)[start:]
    found = {}
    for name, t in entries.items():
        if t.dtype not in NAMES:
            raise ValueError(f"{path}: {name} is of dtype {t.dtype}; accepted are {', '.join(NAMES)}")
        part = torch.frombuffer(
            bytearray(body[t.first : t.last]), dtype=torch.uint8
        ) if t.last > t.first else torch.empty(0, dtype=torch.uint8)
        found[name] = part.view(NAMES[t.dtype]).reshape(t.shape).to(device)
    return found, metadata
