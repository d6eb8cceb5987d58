"""What the contracts of gated units, y = f(a) · b, have in common: two inputs, or one that holds both halves side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import Case, Input, Meta, Problem, Work
from rooftop.ops._pointwise import cases, together
from rooftop.ops._pointwise import validate as validate_alike

if TYPE_CHECKING:
    from torch import Tensor


PIECE = 28 << 10  # elements: in float32 they stay in a core's cache, and below the 128 KiB from which malloc asks the system for pages


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


def by_float32(factors: Callable[[Tensor, Tensor], Any], a: Tensor, b: Tensor | None, interleaved: bool = False) -> Any:
    """A unit of 16 bits on the CPU, in float32: the gate is not rounded before the product, and gradients do not overflow. `factors` gets the gate in float32,
    a copy that it may write over, and the values as they are; it returns the two that are multiplied, the first in float32 and its own, or NotImplemented.
    Without gradients PIECE elements at a time: what one step leaves in a core's cache the next one finds."""
    import torch

    followed = torch.is_grad_enabled() and (a.requires_grad or (b is not None and b.requires_grad))
    if followed or not a.numel() or not a.is_contiguous() or (b is not None and not b.is_contiguous()):
        gate, value = halves(a, b, interleaved)
        found = factors(gate.float(), value.float())
        return found if found is NotImplemented else (found[0] * found[1]).to(a.dtype)
    out = torch.empty(a.shape if b is not None else (*a.shape[:-1], a.shape[-1] // 2), dtype=a.dtype)
    rows = 1 if b is not None else a.shape[-1]  # of a packed one whole rows
    step = max(1, PIECE // rows)
    given = [(t.view(-1) if b is not None else t.view(-1, t.shape[-1])).split(step) for t in (out, a, *(() if b is None else (b,)))]
    for o, x, *y in zip(*given, strict=True):
        gate, value = halves(x, y[0] if y else None, interleaved)
        found = factors(gate.float(), value)
        if found is NotImplemented:
            return found
        o.copy_(found[0].mul_(found[1].float()))  # rounded once
    return out


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
