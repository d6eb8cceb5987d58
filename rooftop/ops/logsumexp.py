"""The logarithm of the sum of exponentials.

    y = log sum_j exp(x_j)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, like
from rooftop.core.spec import Meta, Problem, Work, contiguous_strides
from rooftop.ops._gated import PIECE
from rooftop.ops._peers import compiled, of_torch
from rooftop.ops.softmax import SWEPT, cases, validate
from rooftop.ops.softmax import canonical as as_rows

if TYPE_CHECKING:
    from torch import Tensor


def logsumexp(x: Tensor, dim: int | Sequence[int] = -1, keepdim: bool = False, *, implementation: str | None = None) -> Tensor:
    """log(sum(exp(x))) over `dim`, as `torch.logsumexp`, computed in float32 and rounded once: no exponential overflows.

    Args:
        x: float32, float16 or bfloat16, any shape and strides with at least one dimension.
        dim: a dimension, or several that are summed together; negative values count from the last.
        keepdim: if True, these dimensions are kept with extent 1.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports `x`.

    Returns a tensor of the other dimensions, of the dtype and device of `x`. A result is NaN if an element is NaN, else +inf if an element
    is +inf; it is -inf if all elements are -inf, or if there are none. The gradient is dy · exp(x - y) with the rounded y, as torch's: for
    16 bits, its sum over a row differs from dy by a factor of up to exp(half a unit in the last place of y).

    Raises TypeError for anything but a floating tensor of these dtypes, IndexError for a `dim` out of range, ValueError for no dimensions,
    a dimension given twice or none, or where a named implementation cannot take `x`."""
    argument_checks.flag("logsumexp", "keepdim", keepdim)
    given = (dim,) if isinstance(dim, int) else argument_checks.shape("logsumexp", "dim", dim)
    over = argument_checks.in_order([validate("logsumexp", x, d) for d in given], x.dim())
    if not over or len(over) < len(given):
        raise ValueError(f"logsumexp: dim is {dim}; it must name at least one dimension, and none twice")
    kept = [1 if i in over else n for i, n in enumerate(x.shape)]
    first = over[0]
    if len(over) > 1:
        others = [i for i in range(x.dim()) if i not in over]
        x = x.permute(*others[:first], *over, *others[first:]).flatten(first, first + len(over) - 1)
    y = OP(x, first, implementation=implementation)
    return y.view(kept) if keepdim else y


def reference(x: Tensor, dim: int) -> Tensor:
    return x.logsumexp(dim)


def cpu(x: Tensor, dim: int) -> Any:
    """Torch's gradients of 16 bits are products of values that were rounded to 16 bits."""
    import torch

    return NotImplemented if x.element_size() == 2 and torch.is_grad_enabled() and x.requires_grad else reference(x, dim)


def backward(dy: Tensor, x: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = dy · exp(x - y)"""
    return dy.unsqueeze(dim) * (x - y.unsqueeze(dim)).exp()


def cpu_backward(dy: Tensor, x: Tensor, y: Tensor, dim: int) -> Any:
    """`backward` of rows of 16 bits, as many at a time as a core's cache holds in float32."""
    import torch

    if x.element_size() != 2 or dim % x.dim() != x.dim() - 1 or not (x.numel() and x.is_contiguous()):
        return NotImplemented
    dx, step = torch.empty_like(x), max(1, PIECE // x.shape[-1])
    rows = (t.reshape(-1, x.shape[-1]).split(step) for t in (dx, x))
    for into, part, lse, by in zip(*rows, *(t.reshape(-1, 1).float().split(step) for t in (y, dy)), strict=True):
        into.copy_(part.float().sub_(lse).exp_().mul_(by))
    return dx


def outputs(x: Meta, dim: int) -> dict[str, Meta]:
    dim %= len(x.shape)
    return {"y": Meta((*x.shape[:dim], *x.shape[dim + 1 :]), x.dtype)}


def outputs_bwd(dy: Meta, x: Meta, y: Meta, dim: int) -> dict[str, Meta]:
    return {"dx": Meta(x.shape, x.dtype, x.strides if like(x).strides == x.strides else contiguous_strides(x.shape))}


def canonical(p: Problem) -> Problem | None:
    """Every tensor as [outer, columns, inner], with one column where `dim` is summed over."""
    dim = int(p.option("dim"))

    def widened(m: Meta) -> Meta:
        return Meta((*m.shape[:dim], 1, *m.shape[dim:]), m.dtype, (*m.strides[:dim], 1, *m.strides[dim:]), m.align)

    return as_rows(p.replace(**{n: widened(m) for n, m in p.tensors if m is not None and n in ("y", "dy")}))


def work(p: Problem) -> Work:
    """Read x once, write a number a row; one exponential and an addition an element."""
    return Work(p["x"].nbytes, p["y"].nbytes, {"exp": p["x"].numel, "fma32": 2.0 * p["x"].numel})


def work_bwd(p: Problem) -> Work:
    read = p["dy"].nbytes + p["y"].nbytes + p["x"].nbytes
    return Work(read, p["dx"].nbytes, {"exp": p["dx"].numel, "fma32": 2.0 * p["dx"].numel})


def _rows(p: Problem) -> Mapping[str, int] | str:
    return {n: 0 for n, _ in p.tensors} if p["x"].shape[2] == 1 else "along another dimension than the last, neighbours share a tile"


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return (tensors["x"], options["dim"]), {}


def _tail_dropped(x: Tensor, dim: int) -> Tensor:
    """Sums whole chunks of 4 columns alone."""
    return x.narrow(dim, 0, x.shape[dim] // 4 * 4).logsumexp(dim)


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=cases(),
    swept=SWEPT,
    work=work,
    judging=Judging(rows=_rows),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x",),
        saves=("x", "y"),
        judging=Judging(rows=_rows),
        backward=backward,
        cpu=cpu_backward,
        outputs=outputs_bwd,
        work=work_bwd,
        peers={"torch": lambda: backward, "torch.compile": compiled(backward, every=True)},
        wrong={
            "gradient of the sum of exponentials": lambda dy, x, y, dim: dy.unsqueeze(dim) * x.exp(),
            "not multiplied": lambda dy, x, y, dim: (x - y.unsqueeze(dim)).exp() + 0 * dy.unsqueeze(dim),
        },
    ),
    peers={"torch": of_torch("logsumexp"), "torch.compile": compiled(reference, every=True)},
    wrong={
        "no max subtraction": lambda x, dim: x.exp().sum(dim).log(),
        "tail dropped": _tail_dropped,
        "maximum alone": lambda x, dim: x.amax(dim) if x.shape[dim] else x.logsumexp(dim),
        "NaN lost": lambda x, dim: x.nan_to_num(0.0).logsumexp(dim),
    },
)
