"""The public functions on codes: those of rooftop/formats/number_formats.py, which kernels are judged by, with their arguments checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.formats import number_formats
from rooftop.formats.number_formats import ELEMENTS, ROUNDINGS, Format

if TYPE_CHECKING:
    from torch import Tensor

PACKED = (4, 6, 8)


def readable(t: Tensor) -> bool:
    """Whether its values can be looked at without waiting for a device, or breaking a graph that is being traced."""
    import torch

    return t.device.type == "cpu" and type(t) in (torch.Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()


def encode(v: Tensor, element: str, rounding: str = "nearest", random: Tensor | None = None, zero: Tensor | int | None = None) -> Tensor:
    """Codes (uint8, one a byte, unused high bits 0) of float32 values that have been divided by their scale.

    Args:
        v: float32.
        element: int8, uint8, int4, uint4, e4m3, e5m2, e3m2, e2m3 or e2m1.
        rounding: "nearest" (ties to even), "zero", "stochastic" or "dither", as in `rooftop.quantize`.
        random: for "stochastic" and "dither": 16 random bits an element, int32 or int64.
        zero: the zero point of ints, added after rounding; the codes then use the whole range. None: the symmetric one.

    Values beyond the largest become it, infinities too where the format has none. NaN becomes the code of NaN, or 0 in formats without one.

    Raises ValueError for an unknown format or rounding, missing random bits and a zero point of a float format, TypeError for other
    dtypes."""
    import torch

    f = _element("encode", element)
    if not isinstance(v, torch.Tensor) or v.dtype != torch.float32:
        raise TypeError(f"encode: v is {_said(v)}; it must be a tensor of torch.float32")
    if rounding not in ROUNDINGS:
        raise ValueError(f"encode: rounding is {rounding!r}; accepted are {', '.join(ROUNDINGS)}")
    if rounding in ("stochastic", "dither"):
        if random is None:
            raise ValueError(f"encode: random is None; {rounding} rounding takes 16 random bits an element")
        if not isinstance(random, torch.Tensor) or random.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"encode: random is {_said(random)}; it must be a tensor of torch.int32 or torch.int64")
    _zero("encode", f, zero)
    return number_formats.encode(v, element, rounding, random, zero)


def decode(codes: Tensor, element: str, zero: Tensor | int | None = None) -> Tensor:
    """The values of codes (uint8, one a byte) in float32; exact. `element`, `zero`: as in `encode`.

    Raises ValueError for an unknown format, a zero point of a float format and, on the CPU, codes of more bits than the format has,
    TypeError for other dtypes."""
    import torch

    f = _element("decode", element)
    if not isinstance(codes, torch.Tensor) or codes.dtype != torch.uint8:
        raise TypeError(f"decode: codes are {_said(codes)}; they must be a tensor of torch.uint8")
    _zero("decode", f, zero)
    _within("decode", codes, f.bits)
    return number_formats.decode(codes, element, zero)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of one byte each, packed along the last dimension: [..., n] to [..., ceil(n * bits / 8)]. `bits`: 4, 6 or 8.

    Raises ValueError for other bits, a tensor without dimensions and, on the CPU, codes outside 0 to 2^bits - 1, TypeError for other
    dtypes."""
    import torch

    _bits("pack", bits)
    if not isinstance(codes, torch.Tensor) or codes.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise TypeError(f"pack: codes are {_said(codes)}; they must be a tensor of integers, torch.uint8 as a rule")
    if codes.dim() == 0:
        raise ValueError("pack: codes have no dimensions; they must have at least one")
    _within("pack", codes, bits)
    return number_formats.pack(codes.to(torch.uint8), bits)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack`: [..., bytes] to [..., count] codes of one byte each.

    Raises ValueError for other bits than 4, 6 and 8, and where the bytes are not those of `count` codes, TypeError for other dtypes than
    uint8."""
    import torch

    _bits("unpack", bits)
    if not isinstance(packed, torch.Tensor) or packed.dtype != torch.uint8:
        raise TypeError(f"unpack: packed is {_said(packed)}; it must be a tensor of torch.uint8")
    if isinstance(count, bool) or not isinstance(count, (int, torch.SymInt)):
        raise TypeError(f"unpack: count is {count!r}; it must be a whole number of at least 0")
    if packed.dim() == 0 or count < 0:
        raise ValueError(
            f"unpack: packed has {packed.dim()} dimensions and count is {count}; it must have at least one, and count be at least 0"
        )
    return number_formats.unpack(packed, bits, count)


def _said(t: Any) -> str:
    import torch

    return f"a tensor of {t.dtype}" if isinstance(t, torch.Tensor) else f"a {type(t).__name__}"


def _element(op: str, element: Any) -> Format:
    f = ELEMENTS.get(element) if isinstance(element, str) else None
    if f is None:
        raise ValueError(f"{op}: element is {element!r}; accepted are {', '.join(ELEMENTS)}")
    return f


def _bits(op: str, bits: Any) -> None:
    if isinstance(bits, bool) or bits not in PACKED:
        raise ValueError(f"{op}: bits is {bits!r}; accepted are {', '.join(map(str, PACKED))}")


def _zero(op: str, f: Format, zero: Any) -> None:
    import torch

    if zero is None:
        return
    if f.exponent:
        raise ValueError(f"{op}: zero is given for {f.name}; zero points are for int8, uint8, int4, uint4")
    whole = not (
        zero.is_floating_point() or zero.is_complex() or zero.dtype == torch.bool
    ) if isinstance(zero, torch.Tensor) else isinstance(zero, int)
    if not whole:
        raise TypeError(f"{op}: zero is {_said(zero)}; it must be a whole number or a tensor of integers")


def _within(op: str, codes: Tensor, bits: int) -> None:
    if not codes.numel() or not readable(codes):
        return
    least, most = (int(v) for v in codes.aminmax())
    if least < 0 or most >= 1 << bits:
        raise ValueError(f"{op}: codes are {least} to {most}; codes of {bits} bits are 0 to {(1 << bits) - 1}")
