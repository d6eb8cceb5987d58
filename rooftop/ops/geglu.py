"""GEGLU: a gated linear unit with GELU.

    y = gelu(a) · b,   gelu(a) = a · Φ(a), exact or by tanh (rooftop/ops/gelu.py)

Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.autocasting import widened
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, each_element
from rooftop.core.spec import Case
from rooftop.ops import gelu
from rooftop.ops._gated import by_float32, gated_cases, halves, joined, outputs, outputs_bwd, validate, work_of
from rooftop.ops._peers import compiled
from rooftop.ops._pointwise import canonical, sizes

if TYPE_CHECKING:
    from torch import Tensor


def geglu(a: Tensor, b: Tensor | None = None, approximate: str = "none", *, implementation: str | None = None) -> Tensor:
    """gelu(a) · b, computed in float32 and rounded once.

    Args:
        a: the gate: float32, float16 or bfloat16, any shape and strides.
        b: the values that are gated, of the shape and dtype of `a`; under autocast two dtypes are both cast to float32. None: `a` holds
            both, [..., 2 C], the gate first.
        approximate: `"none"`, exact, or `"tanh"`, as in `torch.nn.functional.gelu`.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape of `a`, or [..., C] where it is packed, in its dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not fit, a packed last dimension that is odd,
    another `approximate`, or an input that a named implementation cannot take."""
    a, b = widened(a, b)
    validate("geglu", a, b)
    if approximate not in gelu.APPROXIMATIONS:
        raise ValueError(f"geglu: approximate is {approximate!r}; it must be 'none' or 'tanh'")
    return OP(a, b, approximate, implementation=implementation)


def reference(a: Tensor, b: Tensor | None, approximate: str) -> Tensor:
    gate, value = halves(a, b)
    return gelu.reference(gate, approximate) * value


def backward(dy: Tensor, a: Tensor, b: Tensor | None, approximate: str) -> tuple[Tensor, Tensor | None]:
    """da = dy · b · gelu'(a), db = dy · gelu(a); packed as the inputs are."""
    gate, value = halves(a, b)
    return joined(gelu.backward(dy * value, gate, approximate), dy * gelu.reference(gate, approximate), b)


def cpu(a: Tensor, b: Tensor | None, approximate: str) -> Any:
    def factors(gate: Tensor, value: Tensor) -> Any:
        found = _gelu(gate, approximate)
        return found if found is NotImplemented else (found, value)

    if a.element_size() == 2:
        return by_float32(factors, a, b)
    gate, value = halves(a, b)
    found = gelu.cpu(gate, approximate)
    if found is NotImplemented:
        return found
    return found * value if found.requires_grad else found.mul_(value)


def _gelu(x: Tensor, approximate: str) -> Any:
    """By torch itself, not oneDNN (see gelu.cpu), to which a matrix of two columns is transposed."""
    if approximate == "tanh" or x.requires_grad or x.numel() % 2 or x.numel() < 4:
        return gelu.cpu(x, approximate)
    return gelu.eager(x.reshape(2, -1).mT, approximate).mT.reshape(x.shape)


def _eager(a: Tensor, b: Tensor | None, approximate: str) -> Tensor:
    import torch

    gate, value = halves(a, b)
    return torch.nn.functional.gelu(gate, approximate=approximate) * value


def _eager_backward(dy: Tensor, a: Tensor, b: Tensor | None, approximate: str) -> tuple[Tensor, Tensor | None]:
    import torch

    gate, value = halves(a, b)
    da = torch.ops.aten.gelu_backward(dy * value, gate, approximate=approximate)
    return joined(da, dy * torch.nn.functional.gelu(gate, approximate=approximate), b)


def _liger() -> Callable[..., Any]:
    """Its backward writes over its inputs, so it is no peer there."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    def run(a: Tensor, b: Tensor | None, approximate: str) -> Tensor:
        if b is None or approximate != "tanh":
            raise ValueError("Liger's GeGLU takes two inputs and approximates by tanh")
        return LigerGELUMulFunction.apply(a, b)

    return run


def _exact(cases: list[Case]) -> list[Case]:
    """The exact one on the packed edge cases, and on one bench case."""
    kept = [c for c in cases if c.name.startswith("packed") and ("bench" not in c.tags or "512" in c.name)]
    return [Case(f"exact {c.name}", c.inputs, c.tags, c.why) for c in kept]


OP = Op(
    reference,
    calls=Calls(cpu=cpu),
    outputs=outputs,
    canonical=canonical,
    cases=[*gated_cases(approximate="tanh"), *_exact(gated_cases(approximate="none"))],
    judging=Judging(rows=each_element),
    swept=sizes(lambda x: {"a": x, "b": x, "approximate": "tanh"}),
    work=work_of(9.0),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("a", "b"),
        judging=Judging(rows=each_element), saves=("a", "b"),
        backward=backward,
        outputs=outputs_bwd,
        work=work_of(25.0),
        peers={"torch": lambda: _eager_backward, "torch.compile": compiled(_eager_backward)},
        wrong={
            "gradients exchanged": lambda dy, a, b, approximate: joined(*backward(dy, *halves(a, b), approximate)[::-1], b),
            "slope of the other": lambda dy, a, b, approximate: backward(dy, a, b, "tanh" if approximate == "none" else "none"),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger},
    wrong={
        "halves exchanged": lambda a, b, approximate: reference(*halves(a, b)[::-1], approximate),
        "the other approximation": lambda a, b, approximate: reference(a, b, "tanh" if approximate == "none" else "none"),
        "interleaved": lambda a, b,
        approximate: reference(a, b, approximate) if b is not None else reference(a[..., ::2], a[..., 1::2], approximate),
    },
)
