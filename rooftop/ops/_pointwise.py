"""What the contracts of elementwise functions have in common: arguments, layouts, cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Sizes, like
from rooftop.core.spec import Case, Input, Meta, Problem, case, collapse

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")


def validate(name: str, first: str, **tensors: Tensor | None) -> None:
    """Tensors of one dtype, shape and device; `first` names the one that the others are held against, None are left out."""
    import torch

    x = tensors[first]
    for what, t in tensors.items():
        if t is None and what != first:
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}: {what} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"{name}: {what} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
        assert x is not None
        if t.dtype != x.dtype:
            raise TypeError(f"{name}: {first} is {x.dtype} and {what} is {t.dtype}; they must be the same")
        if t.shape != x.shape:
            raise ValueError(f"{name}: {first} has shape {tuple(x.shape)} and {what} {tuple(t.shape)}; they must be the same")
        if t.device != x.device:
            raise ValueError(f"{name}: {first} lies on {x.device} and {what} on {t.device}; they must be on one device")


def together(*metas: Meta | None) -> Meta:
    """An output of elementwise inputs: in their layout where all have the same, dense one."""
    first = next(m for m in metas if m is not None)
    return like(first) if all(m is None or m.strides == first.strides for m in metas) else Meta(first.shape, first.dtype)


def canonical(p: Problem) -> Problem | None:
    """All as one row [1, n] where they lie alike and without gaps; else as rows [R, C] of neighbours; None where they are neither."""
    metas = {n: m for n, m in p.tensors if m is not None}
    first = next(iter(metas.values()))
    if all(m.shape == first.shape and m.strides == first.strides and like(m).strides == m.strides for m in metas.values()):
        return p.replace(**{n: Meta((1, m.numel), m.dtype, (m.numel, 1), m.align) for n, m in metas.items()})
    return by_rows(p)


def by_rows(p: Problem) -> Problem | None:
    """Every tensor as rows [R, C] of its last dimension; None where they do not lie so."""
    found: dict[str, Meta | None] = {}
    for n, m in p.tensors:
        if m is None:
            continue
        if not m.shape:
            found[n] = Meta((1, 1), m.dtype, (1, 1), m.align)
            continue
        outer = collapse(m.shape[:-1], m.strides[:-1])
        if outer is None or (m.shape[-1] > 1 and m.strides[-1] != 1):
            return None
        found[n] = Meta((m.numel // max(m.shape[-1], 1) if m.numel else 0, m.shape[-1]), m.dtype, (outer[1], 1), m.align)
    return p.replace(**found)


EDGES: Mapping[str, tuple[tuple[int, ...], str, str]] = {
    "empty": ((0,), "normal", "contiguous"),
    "scalar": ((), "normal", "contiguous"),
    "one element": ((1,), "normal", "contiguous"),
    "odd": ((1003,), "normal", "contiguous"),
    "one block": ((2, 2048), "normal", "contiguous"),
    "three dimensions": ((3, 5, 7), "normal", "contiguous"),
    "transposed": ((20, 36), "normal", "transposed"),
    "rows padded": ((9, 96), "normal", "padded"),
    "rows misaligned": ((9, 100), "normal", "sliced"),
    "address misaligned": ((1003,), "normal", "offset"),
    "every second element": ((6, 64), "normal", "strided"),
    "expanded": ((6, 64), "normal", "expanded"),
    "wide range": ((6, 300), "wide", "contiguous"),
    "large values": ((5, 300), "large", "contiguous"),
    "denormals": ((5, 300), "tiny", "contiguous"),
    "NaN": ((5, 300), "nan", "contiguous"),
    "+inf": ((5, 300), "inf", "contiguous"),
    "-inf": ((5, 300), "-inf", "contiguous"),
    "-0.0": ((5, 300), "-0.0", "contiguous"),
}


def sizes(make: Callable[[Input], dict[str, Any]]) -> Sizes:
    """Of a call that `make` gives the inputs of, from one tensor."""
    return Sizes(
        lambda dtype, rows, columns: make(Input((rows, columns), dtype)), {"rows": (1, 1 << 26), "columns": (64, 1 << 20)}, rows="rows",
        models={"columns": "inner"}, axis="columns",
    )


def cases(make: Callable[[Input], dict[str, Any]], *, traffic: int, leave: tuple[str, ...] = ()) -> list[Case]:
    """`make` gives the inputs of a call from one tensor; `traffic`: tensors of that shape that cross memory; `leave`: edge cases that
    do not apply. Bench cases move 512, 32, 4 and 1 MiB."""
    bench = []
    for mib in (512, 32, 4, 1):
        for d in ("bf16", "f32") if mib >= 512 else ("bf16",):
            columns = 8192 if mib >= 32 else 1024
            rows = (mib << 20) // (traffic * columns * (4 if d == "f32" else 2))
            bench.append(case(f"{mib} MiB {rows}x{columns}", tags="bench", **make(Input((rows, columns), d))))
    edge = [
        case(name, tags="edge", **make(Input(shape, d, fill, layout)))
        for d in FLOATS
        for name, (shape, fill, layout) in EDGES.items()
        if name not in leave
    ]
    return bench + edge + [
        case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **make(Input(((1 << 31) + 4097,), "bf16")))
    ]
