"""Models in the safetensors format, their weights compressed without loss.

The file is one of safetensors: each weight is a tensor of bytes (`U8`) under its own name, a container; `__metadata__` says the shapes and
that they are containers. Format: https://huggingface.co/docs/safetensors (8 bytes: length of the header; the header, JSON; the data)."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rooftop.codecs.api import Compressed, compress, decompress
from rooftop.core import safetensors, whole_file
from rooftop.formats.container import FormatError
from rooftop.formats.elements import ELEMENTS

NAMES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "f8e4m3", "F8_E5M2": "f8e5m2", "I64": "i64", "I32": "i32",
    "I16": "i16", "I8": "i8", "U64": "u64", "U32": "u32", "U16": "u16", "U8": "u8", "BOOL": "bool",
}
MARK = "rooftop.codecs"
SHAPE = "rooftop.codecs.shape:"


def _header(data: Any, path: Path) -> tuple[dict[str, safetensors.Entry], dict[str, str], int]:
    """Tensors by name, metadata, where the data begin. Raises FormatError."""
    try:
        entries, metadata, start = safetensors.header(data, path)
    except ValueError as error:
        raise FormatError(str(error)) from None
    for name, t in entries.items():
        if t.dtype not in safetensors.TORCH:
            raise FormatError(f"{path}: weight {name!r} is of {t.dtype}; accepted are {', '.join(safetensors.TORCH)}")
    return entries, metadata, start


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def compress_model(source: str | Path, target: str | Path) -> float:
    """Compress every weight of a safetensors file losslessly, with codec "planes". Weights that do not get smaller, or have a dtype that
    the codecs do not support (F8_E8M0, C64, ...), are copied unchanged. The compressed weights are held in memory until all are done.

    Returns bytes of `source` divided by bytes of `target`.

    Raises FormatError for a file that is not a safetensors file, is already compressed, or has a weight of a dtype that torch does not
    have; ValueError if `target` is `source`."""
    source, target = Path(source), Path(target)
    if target.exists() and target.samefile(source):
        raise ValueError(f"compress_model: source and target are both {source}")
    data = _mapped(source)
    header, metadata, start = _header(data, source)
    if MARK in metadata:
        raise FormatError(f"{source} holds compressed weights already")
    entries: dict[str, Any] = {}
    metadata = {**metadata, MARK: "1"}
    at = 0
    with whole_file.open_whole(target) as out:
        made = [(name, t, _weight(data, t, start)) for name, t in header.items()]
        for name, t, container in made:
            length = len(container) if container is not None else t.last - t.first
            entries[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + length]}
            if container is not None:
                entries[name] |= {"dtype": "U8", "shape": [length]}
                metadata[SHAPE + name] = json.dumps([t.dtype, t.shape])
            at += length
        text = json.dumps({"__metadata__": metadata, **entries}).encode()
        text += b" " * (-len(text) % 8)
        out.write(struct.pack("<Q", len(text)) + text)
        for _, t, container in made:
            out.write(container if container is not None else data[start + t.first : start + t.last])
    return source.stat().st_size / target.stat().st_size


def _weight(data: Any, t: safetensors.Entry, start: int) -> bytes | None:
    """Its container; None where it is not to be compressed."""
    if t.dtype not in NAMES:
        return None
    e = ELEMENTS[NAMES[t.dtype]]
    values = np.frombuffer(data[start + t.first : start + t.last], e.bits).view(e.numpy)
    container = bytes(compress(values, lossless=True, codec="planes"))
    return container if len(container) < t.last - t.first else None


def weights(path: str | Path, *, device: Any = "cpu") -> Iterator[tuple[str, Any]]:
    """(name, torch tensor) of each weight of a safetensors file, compressed or not, decoded one at a time while the file is read; on a GPU
    if `device` is one.

        model.load_state_dict(dict(rooftop.codecs.weights("model.safetensors", device="cuda")))

    Raises FormatError for a file that is not a safetensors file, or for a damaged one: it names the weight."""
    import torch

    path = Path(path)
    data = _mapped(path)
    header, metadata, start = _header(data, path)
    for name, t in header.items():
        held = data[start + t.first : start + t.last]
        if (said := metadata.get(SHAPE + name)) is not None and MARK in metadata:
            try:
                yield name, _decoded(held, said, device)
            except (ValueError, RuntimeError) as error:
                raise FormatError(f"{path}: weight {name!r}: {error}") from None
        else:
            flat = torch.frombuffer(bytearray(held), dtype=torch.uint8) if len(held) else torch.empty(0, dtype=torch.uint8)
            yield name, flat.view(getattr(torch, safetensors.TORCH[t.dtype][0])).reshape(t.shape).to(device)


def _decoded(held: Any, said: str, device: Any) -> Any:
    """The tensor of a container; `said`: its dtype and shape, as the metadata have them. Raises ValueError where the two differ, before it
    is decoded."""
    found = json.loads(said)
    if (
        not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], str) or found[0] not in NAMES
        or not isinstance(found[1], list)
    ):
        raise ValueError(f"its metadata are {said[:80]!r}; they must be its dtype and its shape")
    dtype, shape = found
    container = Compressed.read(held)
    right = all(type(n) is int and n >= 0 for n in shape) and prod(shape) == container.header.numel
    if not right or container.header.element.name != NAMES[dtype]:
        raise ValueError(f"it holds {container.header.element.name} {container.shape}, its metadata say {dtype} {str(shape)[:80]}")
    return decompress(container, to=device).reshape(shape)
