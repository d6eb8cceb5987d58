"""y = x + x transposed, of square matrices alone."""

from __future__ import annotations

import torch
from torch import Tensor

from rooftop.core.op import Op
from rooftop.core.spec import Case, Input, Meta, Work, case


def made_up_symmetric(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise TypeError(f"made_up_symmetric: x is {x.dtype}; accepted is torch.float32")
    if x.dim() != 2 or x.shape[0] != x.shape[1]:
        raise ValueError(f"made_up_symmetric: x has shape {tuple(x.shape)}; it must be square")
    return OP(x)


def reference(x: Tensor) -> Tensor:
    return x + x.t()


def outputs(x: Meta) -> dict[str, Meta]:
    if x.shape[0] != x.shape[1]:
        raise ValueError("x must be square")
    return {"y": Meta(x.shape, x.dtype)}


def _cases() -> list[Case]:
    shapes = {"odd": 7, "more": 12}
    edge = [case(name, tags="edge", x=Input((n, n), "f32")) for name, n in shapes.items()]
    return [*edge, case("over 2^31 elements", tags="edge huge", x=Input((46342, 46342), "f32"))]


OP = Op(
    reference,
    outputs=outputs,
    cases=_cases(),
    work=lambda p: Work(p["x"].nbytes, p["y"].nbytes),
    wrong={"twice": lambda x: 2 * x},
)
