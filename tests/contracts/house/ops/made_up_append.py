"""An op that writes into an input and returns nothing: cache[at : at + n] = new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.op import Calls, Op, Tolerance
from rooftop.core.spec import Input, Problem, Work, case

if TYPE_CHECKING:
    from torch import Tensor


def made_up_append(cache: Tensor, new: Tensor, start: int = 0, *, implementation: str | None = None) -> Tensor:
    """Writes the rows of `new` into `cache`, from row `start` on, and returns `cache`."""
    import torch

    for name, t in (("cache", cache), ("new", new)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"made_up_append: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype != torch.bfloat16:
            raise TypeError(f"made_up_append: {name} is {t.dtype}; accepted is torch.bfloat16")
    OP(cache, new, start, implementation=implementation)
    return cache


def reference(cache: Tensor, new: Tensor, at: int) -> None:
    cache[at : at + new.shape[0]] = new


def canonical(p: Problem) -> Problem | None:
    return p if all(m is None or m.contiguous for _, m in p.tensors) else None


OP = Op(
    reference,
    outputs=lambda cache, new, at: {},
    canonical=canonical,
    cases=[
        case("odd", tags="edge", cache=Input((9, 7), "bf16"), new=Input((3, 7), "bf16"), at=2),
        case("at its end", tags="edge", cache=Input((9, 30), "bf16"), new=Input((2, 30), "bf16"), at=7),
        case("empty", tags="edge", cache=Input((0, 7), "bf16"), new=Input((0, 7), "bf16"), at=0),
        case("1 Mi elements", tags="bench", cache=Input((1 << 10, 1 << 10), "bf16"), new=Input((1, 1 << 10), "bf16"), at=5),
    ],
    work=lambda p: Work(p["new"].nbytes, p["new"].nbytes, {}),
    mutates=("cache",),
    tolerance=Tolerance(exact=True),
    wrong={"nothing written": lambda cache, new, at: None, "all written": lambda cache, new, at: cache.copy_(new[:1].expand_as(cache))},
    calls=Calls(public=lambda tensors, options: ((tensors["cache"], tensors["new"]), {"start": options["at"]})),
)
