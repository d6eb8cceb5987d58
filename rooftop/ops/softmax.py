"""Softmax along one dimension.

    y_i = exp(x_i - max_j x_j) / sum_j exp(x_j - max_j x_j)

Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax" (arXiv 1805.02867)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case, collapse, contiguous_strides
from rooftop.ops._peers import compiled, of_torch

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")


def softmax(x: Tensor, dim: int = -1, *, implementation: str | None = None) -> Tensor:
    """Softmax of `x` along `dim`, computed in float32 and rounded once.

    Args:
        x: float32, float16 or bfloat16, any shape and strides with at least one dimension.
        dim: the dimension that sums to one; negative values count from the last.
        implementation: name of a kernel (`"triton"`, `"cuda_sm90"`), which runs or raises. None selects the best one that supports `x`.

    Returns a tensor of the shape, dtype and device of `x`. A row that contains NaN or +inf, or only -inf, gives NaN.

    Raises TypeError for anything but a floating tensor of these dtypes, IndexError for a `dim` out of range, ValueError for no dimensions
    or where a named implementation cannot take `x`.

    Source: Milakov & Gimelshein 2018 (arXiv 1805.02867)."""
    dim = validate("softmax", x, dim)
    return OP(x, dim, implementation=implementation)


def validate(name: str, x: Tensor, dim: int) -> int:
    """`dim`, counted from the first. Raises as the public functions say."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{name}: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    rank = x.dim()
    if rank == 0:
        raise ValueError(f"{name}: x has no dimensions; it must have at least one")
    argument_checks.number(name, "dim", dim, "a whole number", whole=True)
    if not -rank <= dim < rank:
        raise IndexError(f"{name}: dim is {dim}; x has {rank} dimensions, so it must be {-rank} to {rank - 1}")
    return dim + rank if dim < 0 else dim


def reference(x: Tensor, dim: int) -> Tensor:
    return x.softmax(dim)


def backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = y · (dy - sum_j dy_j y_j)"""
    return y * (dy - (dy * y).sum(dim, keepdim=True))


def outputs(x: Meta, dim: int) -> dict[str, Meta]:
    return {"y": like(x)}


def outputs_bwd(dy: Meta, y: Meta, dim: int) -> dict[str, Meta]:
    return {"dx": Meta(y.shape, y.dtype, y.strides if like(y).strides == y.strides else contiguous_strides(y.shape))}


def canonical(p: Problem) -> Problem | None:
    """Every tensor as [outer, columns, inner], `dim` in the middle; None where the outer or the inner dimensions do not collapse."""
    dim = int(p.option("dim"))
    tensors: dict[str, Meta | None] = {}
    for name, meta in p.tensors:
        assert meta is not None
        outer = collapse(meta.shape[:dim], meta.strides[:dim])
        inner = collapse(meta.shape[dim + 1 :], meta.strides[dim + 1 :])
        if outer is None or inner is None:
            return None
        shape = (outer[0], meta.shape[dim], inner[0])
        tensors[name] = Meta(shape, meta.dtype, (outer[1], meta.strides[dim], inner[1]), meta.align)
    if any(
        0 in (m.strides[0], m.strides[1]) and m.numel > 1 and m.shape[0] * m.shape[1] > 1 and _repeats(m) for m in tensors.values() if m
    ):
        return None
    return p.replace(**tensors)


def independent(p: Problem, name: str = "x") -> dict[str, int] | str:
    return {n: 0 for n, _ in p.tensors} if p[name].shape[2] == 1 else "along another dimension than the last, neighbours share a tile"


def _repeats(m: Meta) -> bool:
    """Whether one element of memory stands for several of the tensor."""
    return any(s == 0 and n > 1 for s, n in zip(m.strides, m.shape, strict=True))


def work(p: Problem) -> Work:
    """Read x once, write y once; one exponential and two FMAs (scale and subtract, normalise) an element."""
    return Work(p["x"].nbytes, p["y"].nbytes, {"exp": p["x"].numel, "fma32": 2.0 * p["x"].numel})


def work_bwd(p: Problem) -> Work:
    return Work(p["dy"].nbytes + p["y"].nbytes, p["dx"].nbytes, {"fma32": 3.0 * p["dx"].numel})


def _liger() -> Callable[..., Tensor]:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    def run(x: Tensor, dim: int) -> Tensor:
        if dim != x.dim() - 1:
            raise ValueError("Liger's softmax takes the last dimension only")
        return LigerSoftmaxFunction.apply(x)

    return run


def _eager_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    import torch

    return torch._softmax_backward_data(dy, y, dim, y.dtype)


def _no_max(x: Tensor, dim: int) -> Tensor:
    e = x.exp()
    return e / e.sum(dim, keepdim=True)


def _tail_dropped(x: Tensor, dim: int) -> Tensor:
    """Sums whole chunks of 4 columns alone."""
    n = x.shape[dim] // 4 * 4
    m = x.amax(dim, keepdim=True)
    e = (x - m).exp()
    return e / e.narrow(dim, 0, n).sum(dim, keepdim=True)


def _half_sum(x: Tensor, dim: int) -> Tensor:
    """Exponentials kept in bfloat16 before they are summed."""
    import torch

    e = (x - x.amax(dim, keepdim=True)).exp().to(torch.bfloat16)
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


def _last_not_written(x: Tensor, dim: int) -> Tensor:
    """The last element along `dim` keeps what was in memory."""
    y = x.softmax(dim)
    y.narrow(dim, y.shape[dim] - 1, 1).fill_(float("nan"))
    return y


def _nan_lost(x: Tensor, dim: int) -> Tensor:
    return x.nan_to_num(0.0).softmax(dim)


def cases() -> list[Case]:
    rows = [(16384, 8192), (4096, 32768), (2048, 131072)]
    bench = [case(f"rows {r}x{c}", x=Input((r, c), d), dim=1, tags="bench") for r, c in rows for d in ("bf16", "f32")]
    bench += [
        case("attention 32x2048x2048", x=Input((32, 2048, 2048), "bf16"), dim=2, tags="bench model"),
        case("vocabulary 2048x128256", x=Input((2048, 128256), "bf16"), dim=1, tags="bench model"),
        case("short rows 262144x256", x=Input((262144, 256), "bf16"), dim=1, tags="bench"),
        case("small 512x1024", x=Input((512, 1024), "bf16"), dim=1, tags="bench", why="a launch and little else"),
        case("columns 4096x8192", x=Input((4096, 8192), "f32"), dim=0, tags="bench", why="reduced along a strided dimension"),
    ]
    edge = []
    for d in FLOATS:
        edge += [
            case("empty rows", x=Input((0, 128), d), dim=1, tags="edge"),
            case("empty columns", x=Input((3, 0), d), dim=1, tags="edge"),
            case("one element", x=Input((1,), d), dim=0, tags="edge"),
            case("one column", x=Input((5, 1), d), dim=1, tags="edge"),
            case("odd 3x7", x=Input((3, 7), d), dim=1, tags="edge"),
            case("odd 5x1001", x=Input((5, 1001), d), dim=1, tags="edge"),
            case("tile 4x1024", x=Input((4, 1024), d), dim=1, tags="edge"),
            case("one more 2x4097", x=Input((2, 4097), d), dim=1, tags="edge"),
            case("long 2x33000", x=Input((2, 33000), d), dim=1, tags="edge", why="beyond one block's registers"),
            case("longer 1x131080", x=Input((1, 131080), d), dim=1, tags="edge", why="over a cluster, the last part short"),
            case("middle 3x50x4", x=Input((3, 50, 4), d), dim=1, tags="edge"),
            case(
                "middle, long 2x1030x5", x=Input((2, 1030, 5), d), dim=1, tags="edge",
                why="columns in rounds, inner positions no multiple of the lanes"
            ),
            case("first 65x33", x=Input((65, 33), d), dim=0, tags="edge"),
            case("four dimensions", x=Input((2, 3, 4, 40), d), dim=3, tags="edge"),
            case("transposed", x=Input((20, 36), d, layout="transposed"), dim=1, tags="edge"),
            case("rows padded", x=Input((9, 256), d, layout="padded"), dim=1, tags="edge"),
            case("rows misaligned", x=Input((9, 256), d, layout="sliced"), dim=1, tags="edge"),
            case("address misaligned", x=Input((9, 256), d, layout="offset"), dim=1, tags="edge"),
            case("every second element", x=Input((6, 64), d, layout="strided"), dim=1, tags="edge"),
            case("expanded", x=Input((6, 64), d, layout="expanded"), dim=1, tags="edge"),
            case("slices do not collapse", x=Input((3, 4, 30), d, layout="sliced"), dim=0, tags="edge"),
            case("large values", x=Input((8, 300), d, fill="large"), dim=1, tags="edge"),
            case("denormals", x=Input((4, 300), d, fill="tiny"), dim=1, tags="edge"),
            case("NaN", x=Input((5, 300), d, fill="nan"), dim=1, tags="edge"),
            case("+inf", x=Input((5, 300), d, fill="inf"), dim=1, tags="edge"),
            case("-inf", x=Input((5, 300), d, fill="-inf"), dim=1, tags="edge"),
            case("rows of -inf", x=Input((5, 300), d, fill="-inf rows"), dim=1, tags="edge"),
            case("-0.0", x=Input((5, 300), d, fill="-0.0"), dim=1, tags="edge"),
            case("all equal", x=Input((5, 300), d, fill="equal"), dim=1, tags="edge"),
        ]
    huge = [case("over 2^31 elements", x=Input((65537, 32768), "bf16"), dim=1, tags="edge huge", why="offsets need 64 bits")]
    return bench + edge + huge


SWEPT = Sizes(
    lambda dtype, rows, columns: {"x": Input((rows, columns), dtype), "dim": 1}, {"rows": (1, 1 << 26), "columns": (64, 1 << 22)},
    rows="rows", models={"columns": "vocabulary"}, axis="columns",
)

OP = Op(
    reference,
    calls=Calls(cpu=reference),
    outputs=outputs,
    canonical=canonical,
    cases=cases(),
    swept=SWEPT,
    work=work,
    judging=Judging(rows=independent),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x",),
        saves=("y",),
        judging=Judging(rows=lambda p: independent(p, "dx")),
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        peers={"torch": lambda: _eager_backward, "torch.compile": compiled(_eager_backward, every=True)},
        wrong={
            "sum forgotten": lambda dy, y, dim: y * dy,
            "tail dropped": lambda dy, y, dim: y * (dy - (dy * y).narrow(dim, 0, y.shape[dim] // 4 * 4).sum(dim, keepdim=True)),
        },
    ),
    peers={"torch": of_torch("softmax"), "torch.compile": compiled(reference, every=True), "liger": _liger},
    wrong={
        "no max subtraction": _no_max,
        "tail dropped": _tail_dropped,
        "summed in bfloat16": _half_sum,
        "last element not written": _last_not_written,
        "NaN lost": _nan_lost,
    },
)
