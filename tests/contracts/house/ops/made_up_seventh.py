"""An op for bfloat16 alone whose backward is wrong: out = x / 2, dx = 7 dout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.op import Grad, Op, like
from rooftop.core.spec import Input, Problem, Work, case

if TYPE_CHECKING:
    from torch import Tensor


def made_up_seventh(x: Tensor, *, implementation: str | None = None) -> Tensor:
    """x / 2."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"made_up_seventh: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype != torch.bfloat16:
        raise TypeError(f"made_up_seventh: x is {x.dtype}; accepted is torch.bfloat16")
    return OP(x, implementation=implementation)


def reference(x: Tensor) -> Tensor:
    return x / 2


def canonical(p: Problem) -> Problem | None:
    return p if all(m is None or m.contiguous for _, m in p.tensors) else None


OP = Op(
    reference,
    outputs=lambda x: {"out": like(x)},
    canonical=canonical,
    cases=[
        case("odd", tags="edge", x=Input((1003,), "bf16")),
        case("two dimensions", tags="edge", x=Input((7, 30), "bf16")),
        case("NaN", tags="edge", x=Input((5, 30), "bf16", "nan")),
        case("1 Mi elements", tags="bench", x=Input((1 << 20,), "bf16")),
    ],
    work=lambda p: Work(p["x"].nbytes, p["out"].nbytes, {}),
    grad=Grad(wrt=("x",), saves=(), backward=lambda dout: dout * 7),
    wrong={"not halved": lambda x: x.clone()},
)
