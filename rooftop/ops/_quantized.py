"""What quantising and dequantising share: how scales lie over a tensor, and how kernels see that."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import Meta, Problem, collapse
from rooftop.formats.codes import readable
from rooftop.formats.number_formats import ELEMENTS, LARGEST, Format

if TYPE_CHECKING:
    from torch import Tensor

SCALE_META = {"f32": "f32", "f16": "f16", "bf16": "bf16", "e8m0": "u8", "e4m3": "u8"}


def groups(extent: int, of: int) -> int:
    """How many groups of `of` an extent makes; the last may be shorter."""
    return -(-extent // max(of, 1))


def scale_shape(shape: tuple[int, ...], rows: int, columns: int) -> tuple[int, int, int]:
    return shape[0], groups(shape[1], rows), groups(shape[2], columns)


def tensor_scale(op: str, over: Any, f: Format, x: Tensor) -> Tensor | None:
    """The tensor's scale of nvfp4 as it was given, a number made a tensor. Raises TypeError for anything else, ValueError for another
    format, dtype, size or device, and for a value that is not finite and above zero, as far as that is known without waiting for a GPU."""
    import torch

    if over is None:
        return None
    if isinstance(over, bool) or not isinstance(over, (int, float, torch.Tensor)):
        raise TypeError(f"{op}: over is {over!r}, a {type(over).__name__}; it must be a number or a tensor of one float32 element")
    if f.kind != "nv":
        raise ValueError(f"{op}: over is for nvfp4; {f.name} has no scale of the whole tensor")
    accepted = "it must be finite and above 0 in float32"
    if not isinstance(over, torch.Tensor):
        if not 2.0**-149 <= over <= LARGEST["f32"]:
            raise ValueError(f"{op}: over is {over}; {accepted}")
        return torch.full((1,), float(over), dtype=torch.float32, device=x.device)
    if over.dtype != torch.float32 or over.numel() != 1 or over.device != x.device:
        raise ValueError(f"{op}: over is {over.dtype} {tuple(over.shape)} on {over.device}; it must be one float32 element on {x.device}")
    if readable(over) and not 0 < (value := float(over.detach())) <= LARGEST["f32"]:
        raise ValueError(f"{op}: over is {value}; {accepted}")
    return over.detach()


def canonical(p: Problem, plain: str) -> Problem | None:
    """Two forms, by what `columns` is to the plain tensor [A, R, C].

    Segments: a group is some neighbours of a row, all groups alike. Then `plain` is [groups, columns], codes are [groups, bytes] and scales
    [groups]. Otherwise three dimensions, as the op has them. None where the columns of `plain` are not neighbours in memory."""
    x = p[plain]
    wide = x.shape[2]
    rows, columns, f = int(p.option("rows")), int(p.option("columns")), ELEMENTS[str(p.option("format"))]
    if (wide > 1 and x.strides[2] != 1) or any(s == 0 and n > 1 for s, n in zip(x.strides, x.shape, strict=True)):
        return None
    if not all(m is None or m.contiguous for n, m in p.tensors if n != plain):
        return None
    if rows != 1 or columns < 1 or x.numel == 0:
        return p
    lines = collapse(x.shape[:2], x.strides[:2])
    if columns == wide:
        if lines is None:
            return None
        seen = Meta((lines[0], wide), x.dtype, (lines[1] if lines[0] > 1 else wide, 1), x.align)
    elif wide % columns == 0 and columns * f.bits % 8 == 0:
        if not x.contiguous:
            return None
        seen = Meta((x.numel // columns, columns), x.dtype, (columns, 1), x.align)
    else:
        return p
    n = seen.shape[0]
    found: dict[str, Meta | None] = {plain: seen}
    for name in ("codes", "scale", "zero"):
        if (m := p.get(name)) is not None:
            shape = (n, f.bytes(columns)) if name == "codes" else (n,)
            if prod(shape) != m.numel:
                raise ValueError(f"{name} is {m.shape}; {n} segments of {columns} elements have {prod(shape)} in all")
            found[name] = Meta(shape, m.dtype, (), m.align)
    return p.replace(**found)
