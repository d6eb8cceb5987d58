"""The element types that the container knows, and arrays as bits of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Element:
    """One element type: its code in the container, its bits, and for floats how they divide."""

    code: int
    name: str
    bytes: int
    kind: str  # "float", "int", "uint" (bool is one)
    mantissa: int = 0  # bits
    normal: int = 0  # bits of the least normal number: below it, apart from 0, numbers are denormal

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned type that holds one element."""
        return np.dtype(f"<u{self.bytes}")

    @property
    def wide(self) -> bool:
        """Whether its codes have 64 bits."""
        return self.bytes == 8

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.name in ("bf16", "f8e4m3", "f8e5m2"):
            import ml_dtypes

            return np.dtype({"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[self.name])
        return np.dtype(bool) if self.name == "bool" else np.dtype(f"<{self.name[0]}{self.bytes}")


def _floats(code: int, name: str, size: int, mantissa: int) -> Element:
    return Element(code, name, size, "float", mantissa, 1 << mantissa)


ELEMENTS: Mapping[str, Element] = MappingProxyType(
    {
        e.name: e
        for e in (
            _floats(1, "f64", 8, 52), _floats(2, "f32", 4, 23), _floats(3, "f16", 2, 10), _floats(4, "bf16", 2, 7),
            _floats(5, "f8e4m3", 1, 3), _floats(6, "f8e5m2", 1, 2),
            *(Element(c, f"i{8 * b}", b, "int") for c, b in ((7, 8), (8, 4), (9, 2), (10, 1))),
            *(Element(c, f"u{8 * b}", b, "uint") for c, b in ((11, 8), (12, 4), (13, 2), (14, 1))),
            Element(15, "bool", 1, "uint"),
        )
    }
)
OF_CODE: Mapping[int, Element] = MappingProxyType({e.code: e for e in ELEMENTS.values()})


def element_of(dtype: object) -> Element:
    """Of a dtype of NumPy or torch. Raises TypeError for one that the container does not know."""
    from rooftop.core.spec import OF_TORCH

    text = str(dtype)
    name = OF_TORCH.get(text.removeprefix("torch."), "")
    if not name and not text.startswith("torch."):
        name = next((e.name for e in ELEMENTS.values() if e.numpy == dtype), "")
    if name not in ELEMENTS:
        raise TypeError(f"compress: dtype is {dtype}; accepted are {', '.join(ELEMENTS)}")
    return ELEMENTS[name]


def bits_of(x: Any) -> tuple[np.ndarray, Element]:
    """A NumPy array, or a torch tensor on the CPU, as its bits, row-major, and their type. A big-endian array is turned round."""
    if isinstance(x, np.ndarray):
        dtype = x.dtype.newbyteorder("<") if x.dtype.byteorder == ">" else x.dtype
        e = element_of(dtype)
        return np.ascontiguousarray(x, dtype).reshape(x.shape).view(e.bits), e
    e = element_of(x.dtype)
    import torch

    flat = x.detach().contiguous().reshape(-1)
    held: np.ndarray = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return held.view(e.bits).reshape(tuple(x.shape)), e


def to_numpy(bits: np.ndarray, e: Element) -> np.ndarray:
    return bits.view(e.numpy)


def to_floats(bits: np.ndarray, e: Element, wide: bool = True) -> np.ndarray:
    """In float64, or float32 where not `wide`. Signalling NaN are no cause for a warning."""
    with np.errstate(invalid="ignore"):
        return bits.view(e.numpy).astype(np.float64 if wide else np.float32, copy=False)


def to_torch(bits: np.ndarray, e: Element) -> Any:
    import torch

    from rooftop.core.spec import DTYPES

    flat = torch.from_numpy(np.ascontiguousarray(bits).reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, DTYPES[e.name].torch)).reshape(bits.shape)
