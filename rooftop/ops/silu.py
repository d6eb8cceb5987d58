"""SiLU (sigmoid linear unit), also called swish.

    y = x · sigmoid(x)

Source: Elfwing, Uchibe & Doya 2017, "Sigmoid-Weighted Linear Units" (arXiv 1702.03118)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, each_element
from rooftop.core.spec import Meta, Problem, Work
from rooftop.ops._peers import compiled
from rooftop.ops._pointwise import canonical, cases, sizes, together, validate

if TYPE_CHECKING:
    from torch import Tensor


def silu(input: Tensor, *, implementation: str | None = None) -> Tensor:
    """x · sigmoid(x), as `torch.nn.functional.silu`, computed in float32 and rounded once.

    Args:
        input: float32, float16 or bfloat16, any shape and strides.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape and dtype of `input`.

    Raises TypeError for other dtypes, ValueError for an input that a named implementation cannot take."""
    validate("silu", "input", input=input)
    return OP(input, implementation=implementation)


def reference(x: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.silu(x)


def backward(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy · s · (1 + x · (1 - s)) with s = sigmoid(x)"""
    s = x.sigmoid()
    return dy * (s * (1 + x * (1 - s)))


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes, p["y"].nbytes, {"exp": 1.0 * p["x"].numel, "fma32": 4.0 * p["x"].numel})


def work_bwd(p: Problem) -> Work:
    return Work(p["dy"].nbytes + p["x"].nbytes, p["dx"].nbytes, {"exp": 1.0 * p["x"].numel, "fma32": 7.0 * p["x"].numel})


def _torch_backward() -> Callable[..., Any]:
    import torch

    return lambda dy, x: torch.ops.aten.silu_backward(dy, x)


OP = Op(
    reference,
    calls=Calls(cpu=reference, public=lambda tensors, options: ((tensors["x"],), options)),
    outputs=lambda x: {"y": together(x)},
    canonical=canonical,
    cases=cases(lambda x: {"x": x}, traffic=2),
    judging=Judging(rows=each_element),
    swept=sizes(lambda x: {"x": x}),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x",),
        judging=Judging(rows=each_element), saves=("x",),
        backward=backward,
        outputs=lambda dy, x: {"dx": together(x) if dy.strides == x.strides else Meta(x.shape, x.dtype)},
        work=work_bwd,
        peers={"torch": _torch_backward, "torch.compile": compiled(backward)},
        wrong={"slope of the sigmoid left out": lambda dy, x: dy * x.sigmoid(), "not times dy": lambda dy, x: backward(dy * 0 + 1, x)},
    ),
    peers={"torch": lambda: reference, "torch.compile": compiled(reference)},
    wrong={
        "sigmoid alone": lambda x: x.sigmoid(),
        "hard": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
        "tail cut off": lambda x: reference(x) * (x > -4),
    },
)
