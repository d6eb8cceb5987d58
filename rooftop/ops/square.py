"""Square of each element.

    y = x²"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, each_element
from rooftop.core.spec import Meta, Problem, Work
from rooftop.ops._peers import compiled, of_torch
from rooftop.ops._pointwise import canonical, cases, sizes, together, validate

if TYPE_CHECKING:
    from torch import Tensor


def square(input: Tensor, *, implementation: str | None = None) -> Tensor:
    """x · x, as `torch.square`, rounded once.

    Args:
        input: float32, float16 or bfloat16, any shape and strides.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape and dtype of `input`.

    Raises TypeError for other dtypes, ValueError for an input that a named implementation cannot take."""
    validate("square", "input", input=input)
    return OP(input, implementation=implementation)


def reference(x: Tensor) -> Tensor:
    return x * x


def backward(dy: Tensor, x: Tensor) -> Tensor:
    """dx = 2 x dy"""
    return 2 * x * dy


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes, p["y"].nbytes, {"fma32": 1.0 * p["x"].numel})


def work_bwd(p: Problem) -> Work:
    return Work(p["dy"].nbytes + p["x"].nbytes, p["dx"].nbytes, {"fma32": 2.0 * p["x"].numel})


OP = Op(
    reference,
    # whose gradient is (2 x) dy: float16 overflows
    calls=Calls(
        cpu=lambda x: x * x if x.element_size() == 2 and "bf" not in str(x.dtype) else x.square(), public=lambda tensors,
        options: ((tensors["x"],), options)
    ),
    outputs=lambda x: {"y": together(x)},
    canonical=canonical,
    cases=cases(lambda x: {"x": x}, traffic=2),
    judging=Judging(rows=each_element),
    swept=sizes(lambda x: {"x": x}),
    work=work,
    tolerance=Tolerance(multiple=1.0),
    grad=Grad(
        wrt=("x",),
        judging=Judging(rows=each_element), saves=("x",),
        backward=backward,
        outputs=lambda dy, x: {"dx": together(x) if dy.strides == x.strides else Meta(x.shape, x.dtype)},
        work=work_bwd,
        peers={"torch": lambda: backward, "torch.compile": compiled(backward)},
        wrong={"not doubled": lambda dy, x: x * dy, "dy lost": lambda dy, x: 2 * x},
    ),
    peers={"torch": of_torch("square"), "torch.compile": compiled(reference)},
    wrong={"sign kept": lambda x: x * x.abs(), "cubed": lambda x: x * x * x},
)
