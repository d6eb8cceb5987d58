"""Tensor maps (`rooftop.core.spec.TensorMap`): what the hardware supports, and how the driver encodes one.

The rules are those of `cuTensorMapEncodeTiled` in the CUDA Driver API, "Tensor Map Object Management",
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from rooftop.core.spec import DTYPES, Meta, TensorMap

BYTES = 128  # of a map
ALIGN = 128  # of the memory that the driver writes it to (64 before CUDA 13)
_KEPT = 256  # maps kept, by address, of one argument of one launch

# Our name of an element type: the driver's number (CUtensorMapDataType). TMA copies bits, so 8-bit types are all one; "tf32" rounds what it
# copies.
TYPES: Mapping[str, int] = {
    "u8": 0, "i8": 0, "bool": 0, "f8e4m3": 0, "f8e5m2": 0, "i16": 1, "i32": 3, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
    "f32ftz": 10, "tf32": 11, "tf32ftz": 12,
}
_FLOAT32 = ("f32", "f32ftz", "tf32", "tf32ftz")
SWIZZLES: Mapping[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CUtensorMapSwizzle
PROMOTIONS: Mapping[int, int] = {0: 0, 64: 1, 128: 2, 256: 3}  # bytes: CUtensorMapL2promotion
FILLS: Mapping[str, int] = {"zero": 0, "nan": 1}  # CUtensorMapFloatOOBfill


def laid_out(meta: Meta, shape: tuple[int, ...] = (), strides: tuple[int, ...] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor, or of another view of it. The stride of a dimension with one element has no effect: it is replaced by
    one that TMA accepts."""
    shape, size = shape or meta.shape, meta.itemsize
    found = list(strides or meta.strides)
    for i in reversed(range(len(shape))):
        if shape[i] == 1:
            found[i] = 1 if i == len(shape) - 1 else -(-found[i + 1] * shape[i + 1] * size // 16) * 16 // size
    return shape, tuple(found)


def settled(given: TensorMap, meta: Meta) -> TensorMap:
    """The map with its defaults replaced by the tensor's dtype, shape, strides and steps."""
    shape, strides = laid_out(meta, given.shape, given.strides)
    return TensorMap(
        given.tensor, given.box, given.swizzle, given.steps or (1,) * len(shape), given.dtype or meta.dtype, given.promote, given.fill, shape, strides
    )


def refused(given: TensorMap, meta: Meta) -> str | None:
    """None, or why the hardware does not support this map of a tensor with this Meta."""
    rank = len(given.shape or meta.shape)
    if not 1 <= rank <= 5:
        return f"a tensor of {rank} dimensions; TMA takes 1 to 5"
    for what, found in (("box", given.box), ("steps", given.steps or given.box), ("strides", given.strides or given.box)):
        if len(found) != rank:
            return f"{what} of {len(found)} dimensions for a tensor of {rank}"
    if not _alike(meta.dtype, given.dtype or meta.dtype):
        return f"a {meta.dtype} tensor cannot be taken for {given.dtype}; TMA knows {', '.join(TYPES)}, and takes one of the same size"
    for name, value, accepted in (
        ("swizzle", given.swizzle, SWIZZLES), ("promote", given.promote, PROMOTIONS), ("fill", given.fill, FILLS)
    ):
        if value not in accepted:
            return f"{name} is {value!r}; it is one of {', '.join(map(str, accepted))}"
    return _unmapped(settled(given, meta), meta)


def not_copied(meta: Meta, shape: tuple[int, ...] = (), strides: tuple[int, ...] = (), *, stored: bool = False) -> str | None:
    """None, or why TMA cannot copy a tensor with this Meta, whatever the box; for a kernel's `supports`. Shape and strides may be those of
    another view.

    stored   whether TMA writes it: its rows must then be multiples of 16 bytes. On an H200 a store into a row of 2 bytes wrote 16"""
    shape, strides = laid_out(meta, shape, strides)
    if stored and shape and shape[-1] * meta.itemsize % 16:
        return f"its rows are {shape[-1] * meta.itemsize} bytes; TMA writes whole 16"
    if not 1 <= len(shape) <= 5:
        return f"a tensor of {len(shape)} dimensions; TMA takes 1 to 5"
    if meta.align % 16:
        return f"the tensor's address is a multiple of {meta.align} bytes; TMA needs 16"
    if min(shape) < 1 or max(shape) > 1 << 32:
        return f"the tensor is {list(shape)}; TMA takes 1 to 2^32 elements in a dimension"
    if strides[-1] != 1:
        return f"the innermost stride is {strides[-1]}; TMA takes 1"
    for step in strides[:-1]:
        if step * meta.itemsize % 16 or not 0 <= step * meta.itemsize < 1 << 40:
            outer = [s * meta.itemsize for s in strides[:-1]]
            return f"the outer strides are {outer} bytes; TMA takes multiples of 16 below 2^40"
    return None


def _unmapped(made: TensorMap, meta: Meta) -> str | None:
    size = meta.itemsize
    inner = made.box[-1] * size
    if reason := not_copied(meta, made.shape, made.strides):
        return reason
    if min(made.box) < 1 or max(made.box) > 256 or inner % 16:
        return f"the box is {list(made.box)}, {inner} bytes wide; TMA takes 1 to 256 elements in a dimension, and rows of whole 16 bytes"
    if made.swizzle and inner > made.swizzle:
        return f"the box is {inner} bytes wide; swizzle {made.swizzle} takes at most as many"
    if min(made.steps) < 1 or max(made.steps) > 8 or made.steps[-1] != 1:
        return f"the steps are {list(made.steps)}; TMA takes 1 to 8, and 1 for the innermost"
    if made.fill == "nan" and not DTYPES[meta.dtype].floating:
        return f"fill is 'nan', and {meta.dtype} has none"
    return None


def _alike(tensor: str, taken: str) -> bool:
    if taken in _FLOAT32:
        return tensor == "f32"
    return taken in TYPES and DTYPES[taken].bytes == DTYPES[tensor].bytes


class Encoder:
    """The map of one argument for the address of each call: `encoder(address)` gives its 128 bytes. `function`: the driver's
    cuTensorMapEncodeTiled. Maps are cached by address, since callers often pass the same ones."""

    def __init__(self, function: Callable[..., int], given: TensorMap) -> None:
        rank = len(given.shape)
        sizes, strides = given.shape[::-1], [s * _size(given.dtype) for s in given.strides[-2::-1]]
        self._what = given.tensor
        self._function = function
        self._before = (TYPES[given.dtype], ctypes.c_uint32(rank))
        self._after = (
            (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * max(rank - 1, 1))(*strides), (ctypes.c_uint32 * rank)(*given.box[::-1]),
            (ctypes.c_uint32 * rank)(*given.steps[::-1]), 0, SWIZZLES[given.swizzle], PROMOTIONS[given.promote], FILLS[given.fill],
        )
        self._memory = (ctypes.c_char * (BYTES + ALIGN))()
        start = ctypes.addressof(self._memory)
        self._place = start + -start % ALIGN
        self._kept: dict[int, bytes] = {}

    def __call__(self, address: int) -> bytes:
        found = self._kept.get(address)
        if found is None:
            status = self._function(self._place, *self._before, ctypes.c_void_p(address), *self._after)
            if status != 0:
                raise ValueError(f"a tensor map of {self._what} at {address:#x}: the driver answers {status}")
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = self._kept[address] = ctypes.string_at(self._place, BYTES)
        return found


def _size(dtype: str) -> int:
    return 4 if dtype in _FLOAT32 else DTYPES[dtype].bytes


def encode_function(driver: Any) -> Callable[..., int]:
    """cuTensorMapEncodeTiled, called without cuda-bindings: its CUtensorMap is not aligned as the driver requires
    (github.com/NVIDIA/cuda-python/pull/1692)."""
    status, pointer, *_ = driver.cuGetProcAddress(b"cuTensorMapEncodeTiled", 12000, 0)
    if int(status) != 0 or not int(pointer):
        raise ValueError(f"this driver makes no tensor maps: {status.name}")
    kind, u32, pointers = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
    return ctypes.CFUNCTYPE(
        kind, pointers, kind, u32, pointers, pointers, pointers, pointers, pointers, kind, kind, kind, kind
    )(int(pointer))
