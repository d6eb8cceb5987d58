"""What the contracts of gated units, y = f(a) · b, have in common: two inputs, or one that holds both halves side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import Case, Input, Meta, Problem, Work
from rooftop.ops._pointwise import cases, together
from rooftop.ops._pointwise import validate as validate_alike

if TYPE_CHECKING:
    from torch import Tensor


def validate(name: str, a: Tensor, b: Tensor | None) -> None:
    validate_alike(name, "a", a=a, b=b)
    if b is None and (a.dim() == 0 or a.shape[-1] % 2):
        raise ValueError(f"{name}: without b, a holds both halves in its last dimension, which must be even; a has shape {tuple(a.shape)}")


def halves(a: Tensor, b: Tensor | None, interleaved: bool = False) -> tuple[Tensor, Tensor]:
    """The gate and what it gates. `interleaved`: without b they are the even and the odd elements of a."""
    if b is not None:
        return a, b
    if interleaved:
        return a[..., ::2], a[..., 1::2]
    n = a.shape[-1] // 2
    return a[..., :n], a[..., n:]


def joined(da: Tensor, db: Tensor, b: Tensor | None, interleaved: bool = False) -> tuple[Tensor, Tensor | None]:
    """The gradients, packed as the inputs are."""
    import torch

    if interleaved:
        return torch.stack((da, db), -1).flatten(-2), None
    return (torch.cat((da, db), -1), None) if b is None else (da, db)


def outputs(a: Meta, b: Meta | None, **_: Any) -> dict[str, Meta | None]:
    return {"y": Meta((*a.shape[:-1], a.shape[-1] // 2), a.dtype) if b is None else together(a, b)}


def outputs_bwd(dy: Meta, a: Meta, b: Meta | None, **_: Any) -> dict[str, Meta | None]:
    if b is None:
        return {"da": Meta(a.shape, a.dtype), "db": None}
    return {"da": together(dy, a, b), "db": together(dy, a, b)}


def work_of(fmas: float) -> Callable[[Problem], Work]:
    """Every tensor crosses memory once; `fmas` and one exponential an element of the result."""

    def work(p: Problem) -> Work:
        backward = p.get("dy") is not None
        given, made = (("dy", "a", "b"), ("da", "db")) if backward else (("a", "b"), ("y",))
        n = p["dy" if backward else "y"].numel
        total = [sum(m.nbytes for name in names if (m := p.get(name)) is not None) for names in (given, made)]
        return Work(total[0], total[1], {"fma32": fmas * n, "exp": 1.0 * n})

    return work


def gated_cases(**options: Any) -> list[Case]:
    """Two inputs and packed ones."""

    def packed(x: Input) -> dict[str, Any]:
        return {"a": Input((*x.shape[:-1], 2 * x.shape[-1]), x.dtype, x.fill, x.layout), "b": None, **options}

    two = cases(lambda x: {"a": x, "b": x, **options}, traffic=3)
    one = cases(packed, traffic=3, leave=("scalar",))
    return two + [Case(f"packed {c.name}", c.inputs, c.tags, c.why) for c in one if "huge" not in c.tags]
