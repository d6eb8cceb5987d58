"""An op of whole numbers: out = x + y, exact, with no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.op import Op, Tolerance, like
from rooftop.core.spec import Input, Meta, Problem, Work, case

if TYPE_CHECKING:
    from torch import Tensor


def made_up_sum(x: Tensor, y: Tensor, *, implementation: str | None = None) -> Tensor:
    """x + y."""
    import torch

    for name, t in (("x", x), ("y", y)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"made_up_sum: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"made_up_sum: {name} is {t.dtype}; accepted are torch.int32, torch.int64")
    if x.dtype != y.dtype:
        raise TypeError(f"made_up_sum: x is {x.dtype} and y is {y.dtype}; they must be the same")
    if x.shape != y.shape:
        raise ValueError(f"made_up_sum: x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be the same")
    if x.device != y.device:
        raise ValueError(f"made_up_sum: x lies on {x.device} and y on {y.device}; they must be on one device")
    return OP(x, y, implementation=implementation)


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def canonical(p: Problem) -> Problem | None:
    if not all(m is None or m.contiguous for _, m in p.tensors):
        return None
    return p.replace(**{n: Meta((m.numel,), m.dtype, (1,), m.align) for n, m in p.tensors if m is not None})


OP = Op(
    reference,
    outputs=lambda x, y: {"out": like(x) if x.strides == y.strides else Meta(x.shape, x.dtype)},
    canonical=canonical,
    cases=[
        case(name, tags=tags, x=Input(shape, d), y=Input(shape, d))
        for d in ("i32", "i64")
        for name, shape, tags in (("odd", (1003,), "edge"), ("two dimensions", (7, 30), "edge"), ("empty", (0,), "edge"), ("many", (1 << 20,), "bench"))
    ],
    work=lambda p: Work(p["x"].nbytes + p["y"].nbytes, p["out"].nbytes, {}),
    tolerance=Tolerance(exact=True),
    wrong={"the last left out": lambda x, y: (x + y).index_fill(0, (x.new_ones(1) * x.shape[0] - 1).long(), 0) if x.numel() else x + y},
)
