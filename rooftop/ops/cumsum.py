"""Cumulative sum (prefix sum, scan) along one dimension.

    out_i = x_0 + x_1 + ... + x_i

Source: Merrill & Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (NVIDIA NVR-2016-002)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, first_of, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case, collapse
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")


def cumsum(x: Tensor, dim: int = -1, *, reverse: bool = False, implementation: str | None = None) -> Tensor:
    """The running sum of `x` along `dim`, computed in float32 and rounded once an element. The order of additions is fixed: equal calls
    give equal bits.

    Args:
        x: float32, float16 or bfloat16, any shape and strides with at least one dimension.
        dim: the dimension along which to add; negative values count from the last.
        reverse: if True, sum from the end.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports `x`.

    Returns a tensor of the shape, dtype and device of `x`. From the first NaN on, every sum is NaN.

    Raises TypeError for anything but a floating tensor of these dtypes, a whole number and a bool; IndexError for a `dim` out of range;
    ValueError for no dimensions or where a named implementation cannot take `x`."""
    rank = _validate(x, dim, reverse)
    return OP(x, dim % rank, reverse, implementation=implementation)


def _validate(x: Tensor, dim: int, reverse: bool) -> int:
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"cumsum: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"cumsum: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    argument_checks.number("cumsum", "dim", dim, "a whole number", whole=True)
    argument_checks.flag("cumsum", "reverse", reverse)
    rank = x.dim()
    if rank == 0:
        raise ValueError("cumsum: x has no dimensions; it must have at least one")
    if not -rank <= dim < rank:
        raise IndexError(f"cumsum: dim is {dim}; x has {rank} dimensions, so it must be {-rank} to {rank - 1}")
    return rank


def reference(x: Tensor, dim: int, reverse: bool) -> Tensor:
    """`reverse`: from the end, as the gradient runs."""
    return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)


def backward(dout: Tensor, dim: int, reverse: bool) -> Tensor:
    """dx_i = dout_i + dout_(i+1) + ... to the end"""
    return OP(dout, dim, not reverse)


def outputs(x: Meta, dim: int, reverse: bool) -> dict[str, Meta]:
    return {"out": like(x)}


def canonical(p: Problem) -> Problem | None:
    """Both as [outer, along, inner]; None where the outer or the inner dimensions do not collapse."""
    dim = int(p.option("dim"))
    found = {}
    for name, m in p.tensors:
        assert m is not None
        outer, inner = collapse(m.shape[:dim], m.strides[:dim]), collapse(m.shape[dim + 1 :], m.strides[dim + 1 :])
        if outer is None or inner is None:
            return None
        found[name] = Meta((outer[0], m.shape[dim], inner[0]), m.dtype, (outer[1], m.strides[dim], inner[1]), m.align)
    return p.replace(**found)


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes, p["out"].nbytes, {"fma32": float(p["x"].numel)})


def _restarts(x: Tensor, dim: int, reverse: bool) -> Tensor:
    """Sums begin anew every 16 elements."""
    import torch

    return torch.cat([reference(part, dim, reverse) for part in x.split(16, dim)], dim)


def _exclusive(x: Tensor, dim: int, reverse: bool) -> Tensor:
    return reference(x, dim, reverse) - x


def _bfloat16(x: Tensor, dim: int, reverse: bool) -> Tensor:
    """The sum itself kept in bfloat16."""
    import torch

    total = torch.zeros_like(x.select(dim, 0), dtype=torch.bfloat16)
    found = []
    for part in (x.flip(dim) if reverse else x).unbind(dim):
        total = (total.float() + part.float()).bfloat16()
        found.append(total.to(x.dtype))
    made = torch.stack(found, dim)
    return made.flip(dim) if reverse else made


def _forwards(x: Tensor, dim: int, reverse: bool) -> Tensor:
    return x.cumsum(dim)


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, dim: int, fill: str = "normal", layout: str = "contiguous", reverse: bool = False
    ) -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "dim": dim, "reverse": reverse}

    bench = [case(f"rows {r}x{c}", tags="bench", **call((r, c), d, 1)) for r, c in ((16384, 8192), (2048, 131072)) for d in ("bf16", "f32")]
    bench += [
        case("one row of 128 Mi", tags="bench", **call((1 << 27,), "f32", 0)),
        case("one row of 4 Mi", tags="bench", **call((1 << 22,), "f32", 0)),
        case("rows 16384x4095", tags="bench", why="odd", **call((16384, 4095), "f32", 1)),
        case("short rows 2097152x64", tags="bench", **call((1 << 21, 64), "bf16", 1)),
        case("columns 16384x8192", tags="bench", **call((16384, 8192), "bf16", 0)),
        case("columns 1048576x64", tags="bench", **call((1 << 20, 64), "f32", 0)),
        case("backwards 16384x8192", tags="bench", **call((16384, 8192), "bf16", 1, reverse=True)),
    ]
    edges: dict[str, tuple[Any, ...]] = {
        "empty": ((0, 5), 1),
        "no columns": ((3, 0), 1),
        "one element": ((1,), 0),
        "one column": ((5, 1), 1),
        "odd 3x7": ((3, 7), 1),
        "odd 37x1001": ((37, 1001), 1),
        "tile 4x1024": ((4, 1024), 1),
        "one more 2x4097": ((2, 4097), 1),
        "long 2x40000": ((2, 40000), 1),
        "longer 1x300001": ((1, 300001), 1),
        "short rows 700x6": ((700, 6), 1),
        "columns 65x33": ((65, 33), 0),
        "long columns 3000x20": ((3000, 20), 0),
        "middle 3x50x4": ((3, 50, 4), 1),
        "transposed": ((20, 36), 1, "normal", "transposed"),
        "rows padded": ((9, 256), 1, "normal", "padded"),
        "rows misaligned": ((9, 256), 1, "normal", "sliced"),
        "address misaligned": ((9, 256), 1, "normal", "offset"),
        "every second element": ((6, 64), 1, "normal", "strided"),
        "expanded": ((6, 64), 0, "normal", "expanded"),
        "slices do not collapse": ((3, 4, 30), 0, "normal", "sliced"),
        "denormals": ((4, 300), 1, "tiny"),
        "NaN": ((5, 300), 1, "nan"),
        "+inf": ((5, 300), 1, "inf"),
        "-inf": ((5, 300), 1, "-inf"),
        "-0.0": ((5, 300), 1, "-0.0"),
    }
    edge = [case(name, tags="edge", **call(how[0], d, *how[1:])) for d in FLOATS for name, how in edges.items()]
    backwards = ("odd 37x1001", "long 2x40000", "short rows 700x6", "long columns 3000x20", "middle 3x50x4")
    edge += [
        case(f"{name}, backwards", tags="edge", **call(edges[name][0], d, edges[name][1], reverse=True)) for d in FLOATS
        for name in backwards
    ]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((65537, 32769), "bf16", 1))]
    return bench + edge + huge


OP = Op(
    reference,
    calls=Calls(cpu=reference),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    judging=Judging(
        rows=lambda p: first_of()(p) if p["x"].shape[2] == 1 else "along another dimension than the last, neighbours share a tile"
    ),
    swept=Sizes(
        lambda dtype, rows, columns: {"x": Input((rows, columns), dtype), "dim": 1, "reverse": False},
        {"rows": (1, 1 << 26), "columns": (16, 1 << 26)}, rows="rows", models={"columns": "vocabulary"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("x",), saves=(), backward=backward),
    peers={"torch": lambda: reference, "torch.compile": compiled(reference, every=True)},
    wrong={"begins anew": _restarts, "exclusive": _exclusive, "in bfloat16": _bfloat16, "always forwards": _forwards},
)
