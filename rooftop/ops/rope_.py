"""Rotary position embedding in place: `rooftop.ops.rope` written over its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import apart, written
from rooftop.core.op import in_place
from rooftop.ops import rope as plain

if TYPE_CHECKING:
    from torch import Tensor


def rope_(
    q: Tensor,
    k: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    offset: int = 0,
    theta: float = 10000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
    order: str | None = None,
    implementation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate `q`, and `k` if it is given, in place: arguments and errors as for `rope`. Elements that are not rotated are neither read nor
    written.

    Returns the same tensors `q`, or (q, k). Raises RuntimeError for tensors that require a gradient while gradients are enabled, ValueError
    for a tensor that has several elements at one memory address (an expanded one, say), or for one tensor as both. `q` and `k` must not
    overlap."""
    order = plain.named_order("rope_", order, q, cos, positions)
    given = plain.arguments("rope_", q, k, cos, sin, positions, offset, theta, layout, rotary_dim, order)
    for name, t in (("q", q), ("k", k)):
        if t is not None:
            written("rope_", name, t)
    if k is not None:
        apart("rope_", "q", q, "k", k)
    OP(*given, implementation=implementation)
    return q if k is None else (q, k)


def _layout(case: Any) -> str:
    return str(case.inputs["q"].layout)


OP = in_place(plain.OP, {"out_q": "q", "out_k": "k"}, [c for c in plain.OP.cases if _layout(c) != "expanded"])
OP.peers["liger"] = plain.liger
