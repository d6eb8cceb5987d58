"""CPU tensors in the simulator's global memory: aligned as cudaMalloc aligns, apart from each other, marked byte by byte."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooftop.lab.simt.link import Variable
from rooftop.lab.simt.native import Native

if TYPE_CHECKING:
    from torch import Tensor

GAP = 1 << 20  # bytes between buffers, in which every access is a fault
ALIGN = 256
INITIALISED, READABLE, WRITABLE, CONSTANT = 1, 2, 4, 8


@dataclass(frozen=True)
class Buffer:
    """One tensor in simulated memory; `at` is its first element's place, `span` the bytes from there to its last one's end."""

    name: str
    at: int
    span: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int


@dataclass(frozen=True)
class Held:
    """A CPU tensor as a simulation takes it: where its storage begins among the contents of all, the storage's size in bytes, and how it
    lies in there."""

    at: int
    size: int
    offset: int  # elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    dtype: str  # torch's name of it

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        return 0 if 0 in self.shape else (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))) * self.item


def hold(tensors: Mapping[str, Tensor]) -> dict[str, Held]:
    """Where the contents of tensors lie behind each other; those that share a storage share a place. Raises ValueError for one that is not
    on the CPU."""
    sizes: dict[int, int] = {}
    for t in tensors.values():
        if t.device.type != "cpu":
            raise ValueError(f"a tensor on {t.device}: the simulator takes CPU tensors")
        storage = t.untyped_storage()
        sizes[storage.data_ptr()] = max(sizes.get(storage.data_ptr(), 0), storage.nbytes())
    places, at = {}, 0
    for address, size in sizes.items():
        places[address] = at
        at += (size + ALIGN) // ALIGN * ALIGN
    return {
        n: Held(
            places[p := t.untyped_storage().data_ptr()], sizes[p], t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.element_size(),
            str(t.dtype).removeprefix("torch."),
        )
        for n, t in tensors.items()
    }


@dataclass(frozen=True)
class _Block:
    """Storage that one or more tensors share: its place among the contents, its size, its place in simulated memory."""

    held: int
    size: int
    at: int


class Layout:
    """Where tensors and variables lie in simulated memory, in bytes from its beginning."""

    def __init__(self, tensors: Mapping[str, Held], variables: Sequence[Variable]) -> None:
        self.variables = variables
        self.blocks: dict[int, _Block] = {}
        at = GAP
        for t in tensors.values():
            if t.at not in self.blocks:
                self.blocks[t.at] = _Block(t.at, t.size, at)
                at += (t.size + GAP + ALIGN - 1) // ALIGN * ALIGN
        self.end = at
        self.buffers = {
            n: Buffer(n, self.blocks[t.at].at + t.offset * t.item, t.span, t.shape, t.strides, t.item) for n, t in tensors.items()
        }

    def is_constant(self, at: int) -> bool:
        """Whether a `__constant__` variable lies there."""
        return any(v.constant and v.at <= at - self.end < v.at + v.size for v in self.variables)

    def state(self, at: int, size: int) -> str:
        """What else is to be said of memory that may not be accessed."""
        return ""

    def describe(self, at: int, size: int) -> str:
        """Where an access of `size` bytes at `at` lies, in words."""
        best: tuple[int, str] | None = None
        if self.variables and at >= self.end:
            return _near(self.variables, at - self.end, size)
        for b in self.buffers.values():
            if b.at <= at < b.at + b.span:
                over = at + size - (b.at + b.span)
                return f"{b.name}[{', '.join(map(str, _position(b, at)))}]" + (f", {_bytes(over)} of it past the end" if over > 0 else "")
            distance = b.at - at if at < b.at else at - (b.at + b.span)
            side = f"{distance} bytes before the first element of {b.name}" if at < b.at else f"{distance} bytes past the end of {b.name}"
            shape = "x".join(map(str, b.shape)) or "scalar"
            if best is None or distance < best[0]:
                best = distance, f"{side} ({shape}, {b.span} bytes)"
        return best[1] if best else "no tensor"


class Memory(Layout):
    """The tensors of one simulation in the engine's memory. Copies are made at the start; `store` brings the results back."""

    def __init__(
        self, native: Native, tensors: Mapping[str, Held], variables: Sequence[Variable], storage: int, *,
        uninitialised: Collection[str] = (),
        constant: Collection[str] = (), poison: int | None = None, held: bytes | None = None,
    ) -> None:
        """`storage`: the address of the contents that `hold` laid out. `held`: of the source's variables (`held`)."""
        super().__init__(tensors, variables)
        self._native, self._storage = native, storage
        self.base = native.arena(self.end)
        self._device = [(native.variables + v.at, v.size) for v in self.variables if not v.constant]
        if held is not None and len(held) == sum(size for _, size in self._device):
            at = 0
            for address, size in self._device:
                ctypes.memmove(address, held[at : at + size], size)
                at += size
        for v in self.variables:
            native.mark(self.end + v.at, 1, (v.size,), (1,), INITIALISED | READABLE | (CONSTANT if v.constant else WRITABLE))
        for block in self.blocks.values():
            ctypes.memmove(self.base + block.at, storage + block.held, block.size)
        if poison is not None:  # what nobody has written may be anything
            for name in uninitialised:
                if name in self.buffers:
                    ctypes.memset(self.base + self.buffers[name].at, poison, self.buffers[name].span)
        for b in self.buffers.values():  # bytes between the elements may be read (a wide load passes over them), never written
            if b.span:
                native.mark(b.at, 1, (b.span,), (1,), INITIALISED | READABLE)
        for name, b in self.buffers.items():
            if b.span:
                bits = READABLE | (CONSTANT if name in constant else WRITABLE) | (0 if name in uninitialised else INITIALISED)
                native.mark(b.at, b.item, *_runs(b), bits)

    def address(self, name: str) -> int:
        """Of the tensor's first element, in simulated memory."""
        return self.base + self.buffers[name].at

    def contents(self) -> list[bytes]:
        """All of it as it is now."""
        return [ctypes.string_at(self.base + block.at, block.size) for block in self.blocks.values()]

    def held(self) -> bytes:
        """What the source's variables that may be written hold now, one behind the other."""
        return b"".join(ctypes.string_at(address, size) for address, size in self._device)

    def written(self) -> list[bytes]:
        """For each byte of that, 1 where somebody has written it or it had a value to begin with."""
        return [self._native.written(block.at, block.size) for block in self.blocks.values()]

    def store(self, contents: list[bytes]) -> None:
        """What the kernels wrote, to where the contents came from."""
        for block, content in zip(self.blocks.values(), contents, strict=True):
            ctypes.memmove(self._storage + block.held, content, block.size)


def _near(known: Sequence[Variable], at: int, size: int) -> str:
    """The variable at that place, or the one nearest to it."""
    v = min(known, key=lambda v: max(v.at - at, at - (v.at + v.size) + 1, 0))
    kind = f"{'__constant__' if v.constant else '__device__'}, {_bytes(v.size)}"
    if at < v.at:
        return f"{v.at - at} bytes before {v.name} ({kind})"
    if at >= v.at + v.size:
        return f"{at - v.at - v.size} bytes past the end of {v.name} ({kind})"
    over = at + size - (v.at + v.size)
    return f"{v.name}{f' + {at - v.at} bytes' if at > v.at else ''} ({kind})" + (f", {_bytes(over)} of it past the end" if over > 0 else "")


def _bytes(n: int) -> str:
    return f"{n} byte{'s' if n != 1 else ''}"


def _runs(b: Buffer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides with neighbouring dimensions joined and the last one of stride 1."""
    dims = [(n, s) for n, s in zip(b.shape, b.strides, strict=True) if n != 1]
    dims.sort(key=lambda d: -d[1])
    joined: list[tuple[int, int]] = []
    for n, s in dims:
        if s == 0:
            continue
        if joined and joined[-1][1] == n * s:
            joined[-1] = (joined[-1][0] * n, s)
        else:
            joined.append((n, s))
    if not joined or joined[-1][1] != 1:
        joined.append((1, 1))
    return tuple(n for n, _ in joined), tuple(s for _, s in joined)


def _position(b: Buffer, at: int) -> tuple[int, ...]:
    """Indices of the element that holds the byte; of the one before it where it lies between elements."""
    left = (at - b.at) // b.item
    found = [0] * len(b.shape)
    for i in sorted(range(len(b.shape)), key=lambda i: -b.strides[i]):
        if b.strides[i] > 0:
            found[i] = min(left // b.strides[i], b.shape[i] - 1)
            left -= found[i] * b.strides[i]
    return tuple(found)
