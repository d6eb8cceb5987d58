"""The address space that an interpreted kernel sees.

Every tensor argument gets a region of its own, 2**48 bytes from the next, so that the upper bits of an address say which argument the
pointer was derived from, however far it went astray. An access is checked element by element before it happens and then goes to the
tensor's own memory: nothing is copied, aliases stay aliases, and a wrong access touches nothing."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Lanes: TypeAlias = "slice | Array"

SPACING_BITS = 48  # user-space addresses of x86-64 and aarch64 lie below 2**47, so no real address falls into a region
ALIGN = 128  # bytes; a region keeps its tensor's address modulo this, so that alignment checks and 16-byte rules hold


class InterpretError(RuntimeError):
    """An interpreted kernel did something wrong; the message says which program and source line."""


class OutOfBounds(InterpretError):
    """An unmasked lane read or wrote outside the elements of the argument that its pointer was derived from."""


class Misaligned(InterpretError):
    """An address is not a multiple of the element's size: a GPU stops with "misaligned address"."""


class ReadOnly(InterpretError):
    """A kernel wrote to an argument that its caller declared read-only."""


class NotSimulated(InterpretError, NotImplementedError):
    """The kernel uses something that the interpreter does not compute."""


class DeviceAssert(InterpretError):
    """A ``tl.device_assert``, ``tl.assume`` or ``assert`` in the kernel did not hold."""


class StaticAssert(DeviceAssert):
    """A ``tl.static_assert`` fails: the kernel does not compile with these constants."""


class Region:
    """One tensor in the address space. It keeps the tensor alive and works on the tensor's own memory.

    ``base`` is the address that the kernel gets, ``span`` the bytes from the first element to the end of the last that the strides
    reach. ``owned`` says for each of these bytes whether it belongs to an element of the view (None: all do)."""

    def __init__(self, name: str, tensor: torch.Tensor, base: int | None, readonly: bool) -> None:
        self.name, self.tensor, self.readonly = name, tensor, readonly
        size, address = tensor.element_size(), tensor.data_ptr()
        empty = tensor.numel() == 0
        steps = [(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
        self.span = 0 if empty else (sum(steps) + 1) * size
        self.lead = address % ALIGN
        self.base = address if base is None else base + self.lead
        padded = -(-(self.lead + self.span) // 16) * 16  # so that views of wider elements exist; checks keep accesses inside the span
        source = (ctypes.c_uint8 * padded).from_address(address - self.lead) if padded and not empty else b""
        self.bytes: Array = np.frombuffer(source, np.uint8)
        self.views: dict[np.dtype[Any], Array] = {}
        self.owned: Array | None = None
        if tensor.numel() * size < self.span:
            self.owned = np.zeros(self.span, bool)
            strides = tuple(s * size for s in tensor.stride())
            np.lib.stride_tricks.as_strided(self.owned, (*tensor.shape, size), (*strides, 1))[...] = True

    def cells(self, dtype: np.dtype[Any]) -> Array:
        """The region as elements of ``dtype``, counted from ``ALIGN`` bytes' boundary at or before the first element."""
        if dtype not in self.views:
            self.views[dtype] = self.bytes.view(dtype)
        return self.views[dtype]

    def __str__(self) -> str:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return f"argument {self.name!r} ({dtype}, shape {tuple(self.tensor.shape)}, strides {self.tensor.stride()})"

    def fault(self, offsets: Array, bad: Array, size: int, action: str, why: str) -> str:
        """The sentence that says which bytes of this region an access wanted; ``offsets`` are in bytes from the first element."""
        element = self.tensor.element_size()
        first, wrong = int(offsets[bad][0]), offsets[bad]
        return (
            f"{action} {why} {self}: {size} bytes at byte offset {first} (element {first // element}), the first of "
            f"{int(bad.sum())} such lanes of {offsets.size} active, which reach from byte {int(wrong.min())} to "
            f"{int(wrong.max()) + size}; allowed are bytes 0 to {self.span} (elements 0 to {self.span // element - 1})"
        )


class Memory:
    """The regions of one run, and the bytes that its programs moved (lane by lane: a byte read twice counts twice)."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.reachable: list[Region] = []
        self.loaded = 0
        self.stored = 0
        self.until = float("inf")  # seconds of this thread's time, after which an atomic is taken for one that waits

    def add(self, name: str, tensor: torch.Tensor, readonly: bool) -> int:
        """A new region for ``tensor``; returns the address that the kernel gets for it."""
        region = Region(name, tensor, (len(self.regions) + 1) << SPACING_BITS, readonly)
        self.regions.append(region)
        return region.base

    def add_reachable(self, tensor: torch.Tensor) -> None:
        """Let kernels reach ``tensor`` by its real address, as pointers kept in memory hold it."""
        self.reachable.append(Region(f"reachable[{len(self.reachable)}]", tensor, None, False))

    def locate(self, addresses: Array, size: int, action: str) -> Iterator[tuple[Region, Lanes, Array]]:
        """Split active ``addresses`` (uint64, one dimension) by region and check them; yields the region, which lanes, and their indices
        into ``region.cells`` of an element of ``size`` bytes. ``action`` is "load", "store" or "atomic"."""
        if action != "store":
            self.loaded += addresses.size * size
        if action != "load":
            self.stored += addresses.size * size
        if action == "atomic" and time.thread_time() > self.until:
            raise NotSimulated("not simulated: a program that waits for another by an atomic, as it seems: it took too long")
        if addresses.size == 0:
            return
        keys = (addresses + np.uint64(1 << (SPACING_BITS - 1))) >> np.uint64(SPACING_BITS)
        for key in [keys[0]] if (keys == keys[0]).all() else np.unique(keys):
            lanes: Lanes = slice(None) if (keys == key).all() else np.flatnonzero(keys == key)
            chosen = addresses[lanes]
            if key == 0:
                yield from self._real(chosen, np.arange(addresses.size)[lanes], size, action)
            elif key > len(self.regions):
                raise OutOfBounds(f"{action} at address {int(chosen[0]):#x}, which was derived from no argument")
            else:
                yield self._checked(self.regions[int(key) - 1], chosen, lanes, size, action)

    def _real(self, chosen: Array, lanes: Array, size: int, action: str) -> Iterator[tuple[Region, Lanes, Array]]:
        left = np.ones(chosen.size, bool)
        for region in self.reachable:
            inside = left & (chosen >= np.uint64(region.base)) & (chosen < np.uint64(region.base + region.span))
            if inside.any():
                left &= ~inside
                yield self._checked(region, chosen[inside], lanes[inside], size, action)
        if left.any():
            raise OutOfBounds(
                f"{action} at real address {int(chosen[left][0]):#x}, which lies in no tensor of `reachable` (a null pointer, or one read "
                "from memory that the run was not told of)"
            )

    def _checked(self, region: Region, chosen: Array, lanes: Lanes, size: int, action: str) -> tuple[Region, Lanes, Array]:
        if region.readonly and action != "load":
            raise ReadOnly(f"{action} to read-only {region}")
        offsets = (chosen - np.uint64(region.base)).view(np.int64)
        if offsets.min() < 0 or offsets.max() > region.span - size:
            bad = (offsets < 0) | (offsets > region.span - size)
            raise OutOfBounds(region.fault(offsets, bad, size, action, "outside"))
        if region.owned is not None:
            bad = ~(region.owned[offsets] & region.owned[offsets + (size - 1)])
            if bad.any():
                raise OutOfBounds(region.fault(offsets, bad, size, action, "in a gap between the elements of"))
        places = offsets + region.lead
        index = places // size
        if (index * size != places).any():
            raise Misaligned(region.fault(offsets, index * size != places, size, action, "not aligned to its size in"))
        return region, lanes, index
