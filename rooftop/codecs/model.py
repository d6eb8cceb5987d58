"""Models in the safetensors format, their weights compressed without loss.

The file is one of safetensors: each weight is a tensor of bytes (`U8`) under its own name, a container; `__metadata__` says the shapes and
that they are containers. Format: https://huggingface.co/docs/safetensors (8 bytes: length of the header; the header, JSON; the data)."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rooftop.codecs.api import Compressed, compress, decompress
from rooftop.core import safetensors, whole_file
from rooftop.formats.array_chunks import each, workers
from rooftop.formats.codec_planes import BATCH
from rooftop.formats.container import FormatError
from rooftop.formats.elements import ELEMENTS, bits_of

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


@dataclass(frozen=True)
class Progress:
    """How far a model is: after each weight."""

    name: str  # of the weight
    done: int  # bytes of weights that are read
    of: int  # bytes of all weights of the source
    written: int  # bytes of weights of the target so far


Told = Callable[[Progress], object]
T = TypeVar("T")


def _side_by_side(do: Callable[[tuple[str, safetensors.Entry]], T], of: dict[str, safetensors.Entry], device: Any) -> Iterator[T]:
    """What `do` makes of each weight, in order: on the CPU a thread a weight; of one with a part for each thread, a thread a part; on a GPU
    one weight after the other."""
    here = str(device) == "cpu"

    def alone(item: tuple[str, safetensors.Entry]) -> bool:
        return not here or item[1].last - item[1].first >= 2 * BATCH * workers()

    for large, some in groupby(of.items(), alone):
        if large:
            yield from map(do, some)
        else:
            yield from each(do, some)


def compress_model(source: str | Path, target: str | Path, *, device: Any = "cpu", progress: Told | None = None) -> float:
    """Compress every weight of a safetensors file losslessly, with codec "planes", several weights side by side. Weights that do not get
    smaller, or have a dtype that the codecs do not support (F8_E8M0, C64, ...), are copied unchanged. Of the compressed weights a few are
    in memory at a time.

    Args:
        source: a safetensors file.
        target: the file to write; one that exists is replaced, at the end.
        device: where the weights are compressed: "cpu", "cuda", a torch.device. The file has the same bytes.
        progress: is called with a `Progress` after each weight, in the order of the file.

    Returns bytes of `source` divided by bytes of `target`.

    Raises FormatError for a file that is not a safetensors file, is already compressed, or has a weight of a dtype that torch does not
    have; ValueError if `target` is `source`, or cannot be written out of order (a pipe)."""
    source, target = Path(source), Path(target)
    data, header, metadata, start = _opened("compress_model", source, target)
    if MARK in metadata:
        raise FormatError(f"{source} holds compressed weights already")
    metadata = {**metadata, MARK: "1"}
    of = sum(t.last - t.first for t in header.values())
    shapes = {name: json.dumps([t.dtype, t.shape]) for name, t in header.items() if t.dtype in NAMES}
    # the header stands before the weights, whose sizes are known after them: it has room for the longest that it can be
    longest = {
        name: {"dtype": "U8", "shape": [of], "data_offsets": [of, of]} if name in shapes else _entry(t.dtype, t.shape, of, of)
        for name, t in header.items()
    }
    room = len(_text({**metadata, **{SHAPE + name: said for name, said in shapes.items()}}, longest))
    entries: dict[str, Any] = {}
    done = at = 0
    with whole_file.open_whole(target) as out:
        if not out.seekable():
            raise ValueError(f"compress_model: {target} is a pipe; a file is needed, whose header is written last")
        out.seek(8 + room)
        made = _side_by_side(lambda item: _weight(data, item[1], start, device), header, device)
        for (name, t), container in zip(header.items(), made, strict=True):
            length = len(container) if container is not None else t.last - t.first
            entries[name] = _entry(t.dtype, t.shape, at, at + length)
            if container is not None:
                entries[name] |= {"dtype": "U8", "shape": [length]}
                metadata[SHAPE + name] = shapes[name]
            out.write(container if container is not None else data[start + t.first : start + t.last])
            at, done = at + length, done + t.last - t.first
            if progress is not None:
                progress(Progress(name, done, of, at))
        out.seek(0)
        out.write(struct.pack("<Q", room) + _text(metadata, entries).ljust(room))
    return len(data) / (8 + room + at)


def _opened(function: str, source: Path, target: Path) -> tuple[Any, dict[str, safetensors.Entry], dict[str, str], int]:
    """The bytes of a model, its weights, metadata, and where its data begin. Raises ValueError where the target is the source."""
    if target.exists() and target.samefile(source):
        raise ValueError(f"{function}: source and target are both {source}")
    data = _mapped(source)
    return (data, *_header(data, source))


def _entry(dtype: str, shape: tuple[int, ...], first: int, last: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


def _text(metadata: dict[str, str], entries: dict[str, Any]) -> bytes:
    """The header of a file, filled up with spaces to whole words of 8 bytes."""
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **entries}).encode()
    return text + b" " * (-len(text) % 8)


def _weight(data: Any, t: safetensors.Entry, start: int, device: Any) -> bytes | None:
    """Its container; None where it is not to be compressed."""
    if t.dtype not in NAMES:
        return None
    held = data[start + t.first : start + t.last]
    if str(device) == "cpu":
        e = ELEMENTS[NAMES[t.dtype]]
        values: Any = np.frombuffer(held, e.bits).view(e.numpy)
    else:
        values = _tensor(held, t, device).reshape(-1)
    container = bytes(compress(values, lossless=True, codec="planes"))
    return container if len(container) < t.last - t.first else None


def decompress_model(source: str | Path, target: str | Path, *, device: Any = "cpu", progress: Told | None = None) -> None:
    """Write a model that `compress_model` wrote as a safetensors file without compression: every weight has its name, dtype, shape and
    bits, and other metadata stay.

    Args:
        source: a compressed safetensors file.
        target, device, progress: as those of `compress_model`.

    Raises FormatError for a file that is not a safetensors file, has no compressed weights, or is damaged: it names the weight and the
    chunk, and nothing is written. ValueError if `target` is `source`."""
    source, target = Path(source), Path(target)
    data, header, metadata, start = _opened("decompress_model", source, target)
    if MARK not in metadata:
        raise FormatError(f"{source} holds no compressed weights; it is a safetensors file as it is")
    of = sum(t.last - t.first for t in header.values())
    entries: dict[str, Any] = {}
    held = {name: _container(source, name, data[start + t.first : start + t.last], metadata) for name, t in header.items()}
    at = 0
    for name, t in header.items():
        packed = held[name]
        dtype, shape = (t.dtype, t.shape) if packed is None else packed[1:]
        length = t.last - t.first if packed is None else packed[0].header.numel * packed[0].header.element.bytes
        entries[name] = _entry(dtype, shape, at, at + length)
        at += length

    def bytes_of(item: tuple[str, safetensors.Entry]) -> Any:
        name, t = item
        if (packed := held[name]) is None:
            return data[start + t.first : start + t.last]
        with _naming(source, name):
            values = decompress(packed[0], to=None if str(device) == "cpu" else device)
        return (values if isinstance(values, np.ndarray) else bits_of(values.cpu())[0]).reshape(-1).view(np.uint8)

    kept = {name: text for name, text in metadata.items() if name != MARK and not name.startswith(SHAPE)}
    text, done = _text(kept, entries), 0
    with whole_file.open_whole(target) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for (name, t), values in zip(header.items(), _side_by_side(bytes_of, header, device), strict=True):
            out.write(values)
            done += t.last - t.first
            if progress is not None:
                progress(Progress(name, done, of, entries[name]["data_offsets"][1]))


def weights(path: str | Path, *, device: Any = "cpu") -> Iterator[tuple[str, Any]]:
    """(name, torch tensor) of each weight of a safetensors file, compressed or not, decoded one at a time while the file is read; on a GPU
    if `device` is one.

        model.load_state_dict(dict(rooftop.codecs.weights("model.safetensors", device="cuda")))

    Raises FormatError for a file that is not a safetensors file, or for a damaged one: it names the weight."""
    path = Path(path)
    data = _mapped(path)
    header, metadata, start = _header(data, path)
    for name, t in header.items():
        yield name, _read(path, name, t, data[start + t.first : start + t.last], metadata, device)


def weight(path: str | Path, name: str, *, device: Any = "cpu") -> Any:
    """One weight of a safetensors file, compressed or not, as a torch tensor on `device`. Of the file its header and the bytes of this
    weight are read; damage of another does not matter.

    Raises ValueError for a name that is not in the file; FormatError as `weights`."""
    path = Path(path)
    data = _mapped(path)
    header, metadata, start = _header(data, path)
    if (t := header.get(name)) is None:
        near = get_close_matches(name, header, 3, 0.5) or list(header)[:3]
        raise ValueError(f"{path} has no weight {name[:80]!r} among its {len(header)}; near are {', '.join(map(repr, near)) or 'none'}")
    return _read(path, name, t, data[start + t.first : start + t.last], metadata, device)


def _read(path: Path, name: str, t: safetensors.Entry, held: Any, metadata: dict[str, str], device: Any) -> Any:
    packed = _container(path, name, held, metadata)
    if packed is None:
        return _tensor(held, t, device)
    with _naming(path, name):
        return decompress(packed[0], to=device).reshape(packed[2])


def _tensor(held: Any, t: safetensors.Entry, device: Any) -> Any:
    """Of a weight that is not compressed."""
    import torch

    flat = torch.frombuffer(bytearray(held), dtype=torch.uint8) if len(held) else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, safetensors.TORCH[t.dtype][0])).reshape(t.shape).to(device)


@contextmanager
def _naming(path: Path, name: str) -> Iterator[None]:
    """Errors of a container name the weight too."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise FormatError(f"{path}: weight {name!r}: {error}") from None


def _container(path: Path, name: str, held: Any, metadata: dict[str, str]) -> tuple[Compressed, str, tuple[int, ...]] | None:
    """The container of a weight, its dtype and its shape, as the metadata have them; None where it is not compressed. Raises FormatError
    where the two differ, before it is decoded."""
    said = metadata.get(SHAPE + name) if MARK in metadata else None
    if said is None:
        return None
    with _naming(path, name):
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
        return container, dtype, tuple(shape)
