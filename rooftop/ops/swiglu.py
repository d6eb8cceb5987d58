"""Gated unit with SiLU.

    y = silu(a) · b,   silu(a) = a · sigmoid(a)

Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.autocasting import widened
from rooftop.core.op import Calls, Grad, Op, Tolerance
from rooftop.ops._gated import gated_cases, halves, joined, outputs, outputs_bwd, validate, work_of
from rooftop.ops._peers import compiled
from rooftop.ops._pointwise import canonical, sizes

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(a: Tensor, b: Tensor | None = None, *, implementation: str | None = None) -> Tensor:
    """silu(a) · b, computed in float32 and rounded once.

    Args:
        a: the gate: float32, float16 or bfloat16, any shape and strides.
        b: the values that are gated, of the shape and dtype of `a`; under autocast two dtypes are both cast to float32. None: `a` holds
        both,
            [..., 2 C], the gate first.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape of `a`, or [..., C] where it is packed, in its dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not fit, a packed last dimension that is odd, or
    an input that a named implementation cannot take."""
    a, b = widened(a, b)
    validate("swiglu", a, b)
    return OP(a, b, implementation=implementation)


def reference(a: Tensor, b: Tensor | None) -> Tensor:
    gate, value = halves(a, b)
    return gate * gate.sigmoid() * value


def backward(dy: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """With s = sigmoid(a): da = dy · b · s · (1 + a · (1 - s)), db = dy · a · s; packed as the inputs are."""
    gate, value = halves(a, b)
    s = gate.sigmoid()
    return joined(dy * value * (s * (1 + gate * (1 - s))), dy * (gate * s), b)


def cpu(a: Tensor, b: Tensor | None) -> Tensor:
    """In float32 where gradients follow, whose intermediate values overflow in 16 bits."""
    wide = a.element_size() == 2 and (a.requires_grad or (b is not None and b.requires_grad))
    return _eager(a.float(), None if b is None else b.float()).to(a.dtype) if wide else _eager(a, b)


def _eager(a: Tensor, b: Tensor | None) -> Tensor:
    import torch

    gate, value = halves(a, b)
    return torch.nn.functional.silu(gate) * value


def _eager_backward(dy: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
    import torch

    gate, value = halves(a, b)
    return joined(torch.ops.aten.silu_backward(dy * value, gate), dy * torch.nn.functional.silu(gate), b)


def _liger() -> Callable[..., Any]:
    """Its backward writes over its inputs, so it is no peer there."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def run(a: Tensor, b: Tensor | None) -> Tensor:
        if b is None:
            raise ValueError("Liger's SwiGLU takes two inputs")
        return LigerSiLUMulFunction.apply(a, b)

    return run


OP = Op(
    reference,
    calls=Calls(cpu=cpu),
    outputs=outputs,
    canonical=canonical,
    cases=gated_cases(),
    swept=sizes(lambda x: {"a": x, "b": x}),
    work=work_of(5.0),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("a", "b"),
        saves=("a", "b"),
        backward=backward,
        outputs=outputs_bwd,
        work=work_of(9.0),
        peers={"torch": lambda: _eager_backward, "torch.compile": compiled(_eager_backward)},
        wrong={
            "gradients exchanged": lambda dy, a, b: joined(*backward(dy, *halves(a, b))[::-1], b),
            "slope of the sigmoid left out": lambda dy, a,
            b: joined(dy * halves(a, b)[1] * halves(a, b)[0].sigmoid(), reference(a, b) * 0 + dy, b),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger},
    wrong={
        "halves exchanged": lambda a, b: reference(*halves(a, b)[::-1]),
        "sigmoid alone": lambda a, b: halves(a, b)[0].sigmoid() * halves(a, b)[1],
        "interleaved": lambda a, b: reference(a, b) if b is not None else reference(a[..., ::2], a[..., 1::2]),
    },
)
