"""SwiGLU: a gated linear unit with SiLU.

    y = silu(a) · b,   silu(a) = a · sigmoid(a)

or, as in gpt-oss, with g = min(a, limit):  y = g · sigmoid(alpha · g) · (clamp(b, -limit, limit) + offset)

Sources: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202); OpenAI 2025, gpt-oss (arXiv 2508.10925)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.autocasting import widened
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, each_element
from rooftop.core.spec import Case
from rooftop.ops._gated import by_float32, gated_cases, halves, joined, outputs, outputs_bwd, validate, work_of
from rooftop.ops._peers import compiled
from rooftop.ops._pointwise import canonical, sizes

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(
    a: Tensor,
    b: Tensor | None = None,
    *,
    limit: float | None = None,
    alpha: float = 1.0,
    offset: float = 0.0,
    interleaved: bool = False,
    implementation: str | None = None,
) -> Tensor:
    """silu(a) · b, computed in float32 and rounded once; or with g = min(a, limit) and u = clamp(b, -limit, limit):
    g · sigmoid(alpha · g) · (u + offset).

    Args:
        a: the gate: float32, float16 or bfloat16, any shape and strides.
        b: the values that are gated, of the shape and dtype of `a`; under autocast two dtypes are both cast to float32. None: `a` holds
            both, [..., 2 C], the gate first.
        limit: above 0: `a` is clamped from above, `b` on both sides; gradients are 0 where a value was clamped. None: neither is.
        alpha: factor in the sigmoid, above 0; 1.702 in gpt-oss.
        offset: added to `b` after it was clamped; 1 in gpt-oss.
        interleaved: `a` holds gate and values in turns, as in gpt-oss: gate 0, value 0, gate 1, ... Not with `b`.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape of `a`, or [..., C] where it is packed, in its dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not fit, a packed last dimension that is odd,
    a limit or an alpha of 0 or less, `interleaved` with `b`, or an input that a named implementation cannot take."""
    a, b = widened(a, b)
    validate("swiglu", a, b)
    for name, value in (("limit", 1.0 if limit is None else limit), ("alpha", alpha), ("offset", offset)):
        number("swiglu", name, value, "a finite number", finite=value != inf or name != "limit")
    if not alpha > 0 or (limit is not None and not limit > 0):
        raise ValueError(f"swiglu: limit is {limit} and alpha {alpha}; they must be above 0, the limit may be None")
    if interleaved and b is not None:
        raise ValueError("swiglu: interleaved is True and b is given; gate and values are interleaved in a alone")
    bound = 0.0 if limit is None or limit == inf else float(limit)
    return OP(a, b, bound, float(alpha), float(offset), bool(interleaved), implementation=implementation)


def reference(
    a: Tensor, b: Tensor | None, limit: float = 0.0, alpha: float = 1.0, offset: float = 0.0, interleaved: bool = False
) -> Tensor:
    """A limit of 0 is none."""
    gate, value = halves(a, b, interleaved)
    if limit:
        gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
    if offset:
        value = value + offset
    return gate * (gate if alpha == 1.0 else alpha * gate).sigmoid() * value


def backward(
    dy: Tensor, a: Tensor, b: Tensor | None, limit: float = 0.0, alpha: float = 1.0, offset: float = 0.0, interleaved: bool = False
) -> tuple[Tensor, Tensor | None]:
    """With s = sigmoid(a): da = dy · b · s · (1 + a · (1 - s)), db = dy · a · s; packed as the inputs are."""
    if limit or alpha != 1.0 or offset or interleaved:
        return _backward(dy, a, b, limit, alpha, offset, interleaved)
    gate, value = halves(a, b)
    s = gate.sigmoid()
    return joined(dy * value * (s * (1 + gate * (1 - s))), dy * (gate * s), b)


def _backward(
    dy: Tensor, a: Tensor, b: Tensor | None, limit: float, alpha: float, offset: float, interleaved: bool
) -> tuple[Tensor, Tensor | None]:
    """With g and u the clamped a and b, s = sigmoid(alpha · g): da = dy · (u + offset) · s · (1 + alpha · g · (1 - s)), db = dy · g · s,
    0 where a or b was clamped."""
    gate, value = halves(a, b, interleaved)
    held, up = (gate.clamp(max=limit), value.clamp(-limit, limit)) if limit else (gate, value)
    s = (alpha * held).sigmoid()
    da, db = dy * (up + offset) * (s * (1 + alpha * held * (1 - s))), dy * (held * s)
    if limit:
        da, db = da.masked_fill(~(gate <= limit), 0), db.masked_fill(~(value.abs() <= limit), 0)
    return joined(da, db, b, interleaved)


def cpu(a: Tensor, b: Tensor | None, limit: float = 0.0, alpha: float = 1.0, offset: float = 0.0, interleaved: bool = False) -> Any:
    """Of another alpha torch's gradients are NaN for large values."""
    if alpha != 1.0:
        return NotImplemented
    if a.element_size() == 2:
        return by_float32(lambda gate, value: _factors(gate, value, limit, offset), a, b, interleaved)
    return _eager(a, b, limit, alpha, offset, interleaved)


def _factors(gate: Tensor, value: Tensor, limit: float, offset: float) -> tuple[Tensor, Tensor]:
    """What a float32 gate, which is written over where no gradient is wanted, and the values become before their product."""
    import torch

    if limit:
        gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
    return torch.nn.functional.silu(gate, inplace=not gate.requires_grad), value.float() + offset if offset else value


def _eager(a: Tensor, b: Tensor | None, limit: float = 0.0, alpha: float = 1.0, offset: float = 0.0, interleaved: bool = False) -> Tensor:
    import torch

    gate, value = halves(a, b, interleaved)
    if limit:
        gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
    if offset:
        value = value + offset
    return (torch.nn.functional.silu(gate) if alpha == 1.0 else gate * torch.sigmoid(alpha * gate)) * value


def _eager_backward(
    dy: Tensor, a: Tensor, b: Tensor | None, limit: float = 0.0, alpha: float = 1.0, offset: float = 0.0, interleaved: bool = False
) -> tuple[Tensor, Tensor | None]:
    import torch

    if limit or alpha != 1.0 or offset or interleaved:
        return _backward(dy, a, b, limit, alpha, offset, interleaved)
    gate, value = halves(a, b)
    return joined(torch.ops.aten.silu_backward(dy * value, gate), dy * torch.nn.functional.silu(gate), b)


def _liger() -> Callable[..., Any]:
    """Its backward writes over its inputs, so it is no peer there."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def run(a: Tensor, b: Tensor | None, limit: float, alpha: float, offset: float, interleaved: bool) -> Tensor:
        if b is None or limit or alpha != 1.0 or offset:
            raise ValueError("Liger's SwiGLU takes two inputs, and does not clamp")
        return LigerSiLUMulFunction.apply(a, b)

    return run


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return (tensors["a"], tensors["b"]), {**options, "limit": options["limit"] or None}


SOME = (
    "512 MiB", "4 MiB", "empty", "odd", "one block", "three", "transposed", "rows", "address", "every", "expanded", "wide", "large", "NaN",
    "+inf", "-inf", "-0.0",
)


def _clamped(name: str, given: list[Case]) -> list[Case]:
    """Some of the cases, by another name."""
    kept = [c for c in given if c.name.removeprefix("packed ").startswith(SOME) and not ("512 MiB" in c.name and c.dtype == "f32")]
    return [Case(f"{name} {c.name}", c.inputs, c.tags, c.why) for c in kept]


GPT_OSS = {"limit": 0.75, "alpha": 1.702, "offset": 1.0}  # with a limit that ordinary values exceed


def _unclamped(dy: Tensor, a: Tensor, b: Tensor | None, limit: float, alpha: float, offset: float, interleaved: bool) -> Any:
    """A known-wrong backward: the slope at the limit where there is none."""
    gate, value = halves(a, b, interleaved)
    return joined(
        *backward(dy, gate.clamp(max=limit or inf), value.clamp(-(limit or inf), limit or inf), limit, alpha, offset), b, interleaved
    )


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=[
        *gated_cases(), *_clamped("clamped", gated_cases(limit=0.75)),
        *_clamped("gpt-oss", [c for c in gated_cases(**GPT_OSS, interleaved=True) if c.name.startswith("packed")]),
        *_clamped("alpha alone,", [c for c in gated_cases(alpha=1.702) if c.name.startswith(("NaN", "+inf"))]),
        *_clamped("in halves", [c for c in gated_cases(**GPT_OSS) if c.name == "packed odd"]),
    ],
    judging=Judging(rows=each_element),
    swept=sizes(lambda x: {"a": x, "b": x}),
    work=work_of(5.0),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("a", "b"),
        judging=Judging(rows=each_element), saves=("a", "b"),
        backward=backward,
        outputs=outputs_bwd,
        work=work_of(9.0),
        peers={"torch": lambda: _eager_backward, "torch.compile": compiled(_eager_backward)},
        wrong={
            "gradients exchanged": lambda dy, a, b, *more: joined(*backward(dy, *halves(a, b, more[3]), *more[:3])[::-1], b, more[3]),
            "slope of the sigmoid left out": lambda dy, a, b, *more: joined(
                dy * halves(a, b, more[3])[1] * halves(a, b, more[3])[0].sigmoid(), reference(a, b, *more) * 0 + dy, b, more[3]
            ),
            "not 0 where it was clamped": lambda dy, a, b, limit, *more: _unclamped(dy, a, b, limit, *more),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger},
    wrong={
        "halves exchanged": lambda a, b, *more: reference(halves(a, b, more[3])[1], halves(a, b, more[3])[0], *more[:3]),
        "sigmoid alone": lambda a, b, *more: halves(a, b, more[3])[0].sigmoid() * halves(a, b, more[3])[1],
        "interleaved": lambda a, b, limit, alpha, offset, interleaved: reference(a, b, limit, alpha, offset, not interleaved),
        "not clamped": lambda a, b, limit, *more: reference(a, b, 0.0, *more),
        "the gate clamped below": lambda a, b, limit, alpha, offset, interleaved: reference(
            halves(a, b, interleaved)[0].clamp(min=-(limit or inf)), halves(a, b, interleaved)[1], limit, alpha, offset
        ),
        "alpha ignored": lambda a, b, limit, alpha, *more: reference(a, b, limit, 1.0, *more),
        "offset ignored": lambda a, b, limit, alpha, offset, interleaved: reference(a, b, limit, alpha, 0.0, interleaved),
    },
)
