"""An op of a list of tensors, without a kernel: out = the sum of all of them, and how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.op import Op
from rooftop.core.spec import Input, Meta, Work, case

if TYPE_CHECKING:
    from torch import Tensor


def made_up_total(xs: list[Tensor], *, implementation: str | None = None) -> tuple[Tensor, Tensor]:
    """The sum of `xs`, and how many they are, int64."""
    import torch

    for i, t in enumerate(xs):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"made_up_total: xs[{i}] is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16):
            raise TypeError(f"made_up_total: xs[{i}] is {t.dtype}; accepted are torch.float32, torch.float16")
    return OP(xs, implementation=implementation)


def reference(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    import torch

    return torch.stack(xs).sum(0), torch.tensor(len(xs), device=xs[0].device)


OP = Op(
    reference,
    outputs=lambda xs: {"out": Meta(xs[0].shape, xs[0].dtype), "count": Meta((), "i64")},
    cases=[
        case(name, tags=tags, xs=(Input(shape, d),) * n)
        for d in ("f32", "f16")
        for name, shape, n, tags in (("three", (7, 30), 3, "edge"), ("one", (1003,), 1, "edge"), ("many", (1 << 10, 1 << 10), 4, "bench"))
    ],
    work=lambda p: Work(sum(m.nbytes for _, m in p.tensors if m is not None), p["out"].nbytes, {}),
    wrong={"the first alone": lambda xs: (xs[0] + (1 if len(xs) == 1 else 0), reference(xs)[1])},
)
