"""The logarithm of softmax along one dimension.

    y_i = x_i - log sum_j exp(x_j)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance
from rooftop.core.spec import Problem, Work
from rooftop.ops._peers import compiled, of_torch
from rooftop.ops.softmax import SWEPT, canonical, cases, independent, outputs, outputs_bwd, validate

if TYPE_CHECKING:
    from torch import Tensor


def log_softmax(x: Tensor, dim: int = -1, *, implementation: str | None = None) -> Tensor:
    """log(softmax(x)) along `dim`, as `torch.nn.functional.log_softmax`, computed in float32 and rounded once: no exponential is rounded to 0 first.

    Args:
        x: float32, float16 or bfloat16, any shape and strides with at least one dimension.
        dim: the dimension along which the exponentials of the result sum to one; negative values count from the last.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports `x`.

    Returns a tensor of the shape, dtype and device of `x`. A row that contains NaN or +inf, or only -inf, gives NaN.

    Raises TypeError for anything but a floating tensor of these dtypes, IndexError for a `dim` out of range, ValueError for no dimensions
    or where a named implementation cannot take `x`."""
    dim = validate("log_softmax", x, dim)
    return OP(x, dim, implementation=implementation)


def reference(x: Tensor, dim: int) -> Tensor:
    return x.log_softmax(dim)


def cpu(x: Tensor, dim: int) -> Any:
    """Torch's own function. Its gradient of float32 along other dimensions than the last adds up dy one element after another, which errs too much."""
    import torch

    spoilt = x.requires_grad and x.element_size() == 4 and dim % x.dim() != x.dim() - 1 and torch.is_grad_enabled()
    return NotImplemented if spoilt else x.log_softmax(dim)


def cpu_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return dy.addcmul(y.exp(), dy.sum(dim, keepdim=True), value=-1)


def backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = dy - exp(y) · sum_j dy_j"""
    return dy - y.exp() * dy.sum(dim, keepdim=True)


def work(p: Problem) -> Work:
    """Read x once, write y once; one exponential and two additions an element."""
    return Work(p["x"].nbytes, p["y"].nbytes, {"exp": p["x"].numel, "fma32": 2.0 * p["x"].numel})


def work_bwd(p: Problem) -> Work:
    return Work(p["dy"].nbytes + p["y"].nbytes, p["dx"].nbytes, {"exp": p["dx"].numel, "fma32": 2.0 * p["dx"].numel})


def _eager_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    import torch

    return torch._log_softmax_backward_data(dy, y, dim, y.dtype)


def _tail_dropped(x: Tensor, dim: int) -> Tensor:
    """Sums whole chunks of 4 columns alone."""
    return x - x.narrow(dim, 0, x.shape[dim] // 4 * 4).logsumexp(dim, keepdim=True)


def _half_sum(x: Tensor, dim: int) -> Tensor:
    """Exponentials kept in bfloat16 before they are summed."""
    import torch

    less = x - x.amax(dim, keepdim=True)
    return less - less.exp().to(torch.bfloat16).sum(dim, keepdim=True).log().to(x.dtype)


OP = Op(
    reference,
    calls=Calls(cpu=cpu),
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
        cpu=cpu_backward,
        peers={"torch": lambda: _eager_backward, "torch.compile": compiled(_eager_backward, every=True)},
        wrong={
            "sum forgotten": lambda dy, y, dim: dy - y.exp() * dy,
            "tail dropped": lambda dy, y, dim: dy - y.exp() * dy.narrow(dim, 0, y.shape[dim] // 4 * 4).sum(dim, keepdim=True),
            "not the exponential": lambda dy, y, dim: dy - y * dy.sum(dim, keepdim=True),
        },
    ),
    peers={"torch": of_torch("log_softmax"), "torch.compile": compiled(reference, every=True)},
    wrong={
        "logarithm of a rounded softmax": lambda x, dim: x.softmax(dim).log(),
        "no max subtraction": lambda x, dim: x - x.exp().sum(dim, keepdim=True).log(),
        "tail dropped": _tail_dropped,
        "summed in bfloat16": _half_sum,
        "NaN lost": lambda x, dim: x.nan_to_num(0.0).log_softmax(dim),
    },
)
