"""Models in the safetensors format, their weights compressed without loss.

The file is one of safetensors: each weight is a tensor of bytes (`U8`) under its own name, a container; `__metadata__` says the shapes and that they are
containers. Format: https://huggingface.co/docs/safetensors (8 bytes: length of the header; the header, JSON; the data)."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rooftop.codecs.api import compress, decompress
from rooftop.core import whole_file
from rooftop.formats.container import FormatError
from rooftop.formats.elements import ELEMENTS

NAMES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "f8e4m3", "F8_E5M2": "f8e5m2", "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8",
    "U64": "u64", "U32": "u32", "U16": "u16", "U8": "u8", "BOOL": "bool",
}  # fmt: skip
MARK = "rooftop.codecs"
SHAPE = "rooftop.codecs.shape:"


def _header(data: Any, path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Tensors by name, metadata, where the data begin. Raises FormatError."""
    size = len(data)
    length = struct.unpack("<Q", data[:8])[0] if size >= 8 else size
    if length > size - 8:
        raise FormatError(f"{path} is no safetensors file: a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        for name, t in header.items():
            first, last = t["data_offsets"]
            count = prod(int(n) for n in t["shape"])
            sized = t["dtype"] not in NAMES or last - first == count * ELEMENTS[NAMES[t["dtype"]]].bytes
            if not (0 <= first <= last <= size - 8 - length) or not sized or any(n < 0 for n in t["shape"]):
                raise FormatError(f"{path}: tensor {name!r} of {t['dtype']} {t['shape']} lies at {first} to {last} of {size - 8 - length} bytes")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is no safetensors file: its header cannot be read ({error})") from None
    return header, metadata, 8 + length


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        if path.stat().st_size < 8:
            raise FormatError(f"{path} is no safetensors file: {path.stat().st_size} bytes")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def compress_model(source: str | Path, target: str | Path) -> float:
    """Compress every weight of a safetensors file losslessly, with codec "planes". Weights that do not get smaller, or have a dtype that the codecs do not
    support, are copied unchanged. The compressed weights are held in memory until all are done.

    Returns bytes of `source` divided by bytes of `target`.

    Raises FormatError for a file that is not a safetensors file, or is already compressed; ValueError if `target` is `source`."""
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
            length = len(container) if container is not None else t["data_offsets"][1] - t["data_offsets"][0]
            entries[name] = {**t, "data_offsets": [at, at + length]}
            if container is not None:
                entries[name] |= {"dtype": "U8", "shape": [length]}
                metadata[SHAPE + name] = json.dumps([t["dtype"], t["shape"]])
            at += length
        text = json.dumps({"__metadata__": metadata, **entries}).encode()
        text += b" " * (-len(text) % 8)
        out.write(struct.pack("<Q", len(text)) + text)
        for _, t, container in made:
            first, last = t["data_offsets"]
            out.write(container if container is not None else data[start + first : start + last])
    return source.stat().st_size / target.stat().st_size


def _weight(data: Any, t: dict[str, Any], start: int) -> bytes | None:
    """Its container; None where it is not to be compressed."""
    first, last = t["data_offsets"]
    if t["dtype"] not in NAMES:
        return None
    e = ELEMENTS[NAMES[t["dtype"]]]
    values = np.frombuffer(data[start + first : start + last], e.bits).view(e.numpy)
    container = bytes(compress(values, lossless=True, codec="planes"))
    return container if len(container) < last - first else None


def weights(path: str | Path, *, device: Any = "cpu") -> Iterator[tuple[str, Any]]:
    """(name, torch tensor) of each weight of a safetensors file, compressed or not, decoded one at a time while the file is read; on a GPU if `device`
    is one.

        model.load_state_dict(dict(rooftop.codecs.weights("model.safetensors", device="cuda")))

    Raises FormatError for a file that is not a safetensors file, or for a damaged one: it names the weight."""
    import torch

    from rooftop.core.spec import DTYPES
    from rooftop.formats.elements import element_of

    path = Path(path)
    data = _mapped(path)
    header, metadata, start = _header(data, path)
    for name, t in header.items():
        first, last = t["data_offsets"]
        held = data[start + first : start + last]
        if (said := metadata.get(SHAPE + name)) is not None and MARK in metadata:
            try:
                dtype, shape = json.loads(said)
                found = decompress(held, to=device)
                if NAMES[dtype] != element_of(found.dtype).name:
                    raise FormatError(f"it is {found.dtype}, the header says {dtype}")
                yield name, found.reshape(shape)
            except (ValueError, RuntimeError, KeyError, TypeError) as error:
                raise FormatError(f"{path}: weight {name!r}: {error}") from None
        elif t["dtype"] in NAMES:
            flat = torch.frombuffer(bytearray(held), dtype=torch.uint8) if last > first else torch.empty(0, dtype=torch.uint8)
            yield name, flat.view(getattr(torch, DTYPES[NAMES[t["dtype"]]].torch)).reshape(t["shape"]).to(device)
        else:
            raise FormatError(f"{path}: weight {name!r} is of {t['dtype']}, which rooftop does not read")
