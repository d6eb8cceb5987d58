"""Rotary position embedding in plain torch, for the contracts that rotate: angles, the rotation of rows, checks of tables.

Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import among, number

if TYPE_CHECKING:
    from torch import Tensor

LAYOUTS = ("half", "interleaved")
DIGITS = Context(prec=100)
TURN = DIGITS.multiply(
    2, Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
)
INTEGERS = ("torch.int32", "torch.int64")


def angles(rows: Tensor, cos: Tensor | None, sin: Tensor | None, rotary_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, S, 1, rotary_dim / 2] for the rows [1 or B, S] of the tables [1 or B, P, rotary_dim / 2], or for the positions
    `rows` where there are no tables. NaN for a row outside of its table."""
    import torch

    if cos is None or sin is None:
        steps = torch.tensor(turns(theta, rotary_dim // 2), dtype=torch.int64, device=like.device)
        angle = (rows.long()[..., None] * steps).double() * (math.pi * 2.0**-63)  # integers wrap at a whole turn
        return angle.cos().to(like.dtype)[:, :, None], angle.sin().to(like.dtype)[:, :, None]
    batch, count = cos.shape[0] if rows.shape[0] == 1 else rows.shape[0], cos.shape[1]
    rows = rows.long().expand(batch, -1)
    inside = (rows >= 0) & (rows < count)
    picked = torch.arange(batch, device=rows.device)[:, None].expand_as(rows) if cos.shape[0] > 1 else torch.zeros_like(rows)
    found = []
    for table in (cos, sin):
        if count and cos.shape[0]:
            values = table[picked, rows.clamp(0, count - 1)].to(like.dtype)
        else:
            values = like.new_empty((*rows.shape, table.shape[2]))
        found.append(values.masked_fill(~inside[..., None], float("nan"))[:, :, None])
    return found[0], found[1]


@lru_cache(maxsize=256)
def turns(theta: float, count: int) -> tuple[int, ...]:
    """What each angle, i < count, grows by from one position to the next: theta^(-i / count) / 2π turns, in units of 2^-64 turns, without
    the whole turns.

    Positions reach 2^32, where the product of two doubles would be wrong by 4e-7 radians."""
    powers = (DIGITS.power(Decimal(theta), DIGITS.divide(-i, count)) for i in range(count))
    exact = (int(DIGITS.multiply(DIGITS.divide(power, TURN), 2**64).to_integral_value()) for power in powers)
    return tuple((n + 2**63) % 2**64 - 2**63 for n in exact)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_dim: int) -> Tensor:
    """Rows [..., D] with their first `rotary_dim` elements rotated pair by pair; the others as they are."""
    import torch

    if not x.shape[-1]:  # nothing to rotate, whatever the tables have
        return x.clone()
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if layout == "half":
        a, b = turned[..., : rotary_dim // 2], turned[..., rotary_dim // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
    a, b = turned[..., ::2], turned[..., 1::2]
    return torch.cat((torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2), rest), -1)


def turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_dim: int) -> Tensor:
    """`rotated` on the CPU, in float32 and rounded once, with each part written into its place. Its gradient is the rotation back, any number of times."""
    import torch

    if torch.is_grad_enabled() and x.requires_grad:
        found: Tensor = _recorded()(x, cos, sin, layout, rotary_dim)
        return found
    with torch.no_grad():
        return _written(x, cos, sin, layout, rotary_dim)


def _written(x: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_dim: int) -> Tensor:
    """Heads that lie before tokens in memory do so in the result."""
    import torch

    if x.stride(1) < x.stride(2):
        return _written(x.transpose(1, 2), cos.transpose(1, 2), sin.transpose(1, 2), layout, rotary_dim).transpose(1, 2)
    wide = x.float()
    out = torch.empty(x.shape)
    (a, b), (first, second) = (
        t[..., :rotary_dim].chunk(2, -1) if layout == "half" else (t[..., :rotary_dim:2], t[..., 1:rotary_dim:2]) for t in (wide, out)
    )
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=second).addcmul_(a, sin)
    if rotary_dim < x.shape[-1]:
        out[..., rotary_dim:] = wide[..., rotary_dim:]
    return out.to(x.dtype)


@cache
def _recorded() -> Callable[..., Any]:
    import torch

    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_dim: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.options = layout, rotary_dim
        return _written(x, cos, sin, layout, rotary_dim)

    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        cos, sin = ctx.saved_tensors
        return turned(dy, cos, -sin, *ctx.options), None, None, None, None

    return type("rope", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}).apply  # type: ignore[attr-defined]


def rotary_size(op: str, rotary_dim: int | None, columns: int, layout: str) -> int:
    """The number of elements of a head that are rotated. Raises for a layout or a number that is none."""
    if layout not in LAYOUTS:
        raise ValueError(f"{op}: layout is {layout!r}; it must be one of {', '.join(map(repr, LAYOUTS))}")
    if rotary_dim is None:
        rotary_dim = columns
    if isinstance(rotary_dim, bool):
        raise TypeError(f"{op}: rotary_dim is {rotary_dim!r}, a bool; it must be a whole number")
    number(op, "rotary_dim", rotary_dim, "a whole number", whole=True)
    if not 0 <= rotary_dim <= columns or rotary_dim % 2:
        raise ValueError(f"{op}: rotary_dim is {rotary_dim}; it must be even and 0 to {columns}, the size of a head")
    return rotary_dim


def tables(
    op: str, cos: Tensor | None, sin: Tensor | None, rotary_dim: int, layout: str, like: Tensor, batch: int
) -> tuple[Tensor | None, Tensor | None]:
    """The tables as [1 or B, P, rotary_dim / 2] views. Raises for tables that do not fit."""
    import torch

    if (cos is None) != (sin is None):
        raise ValueError(f"{op}: {'sin' if cos is None else 'cos'} is given alone; cos and sin come together, or neither")
    found = []
    for name, t in (("cos", cos), ("sin", sin)):
        if t is None:
            return None, None
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, like.dtype):
            raise TypeError(f"{op}: {name} is {t.dtype}; accepted are torch.float32 and {like.dtype}")
        assert cos is not None
        if t.dtype != cos.dtype or t.shape != cos.shape:
            raise ValueError(f"{op}: cos is {cos.dtype} {tuple(cos.shape)} and sin {t.dtype} {tuple(t.shape)}; they must be alike")
        if t.device != like.device:
            raise ValueError(f"{op}: {name} lies on {t.device}; it must lie on {like.device}")
        if (
            t.dim() not in (2, 3) or not among(t.shape[-1], (rotary_dim // 2, rotary_dim))
            or (t.dim() == 3 and not among(t.shape[0], (1, batch)))
        ):
            raise ValueError(
                f"{op}: {name} has shape {tuple(t.shape)}; it must be [P, C] or [1 or {batch}, P, C] with C = {rotary_dim // 2} or "
                f"{rotary_dim}"
            )
        if t.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{op}: {name} requires a gradient, and there is none for the tables; give {name}.detach()")
        t = t if t.dim() == 3 else t.unsqueeze(0)
        if t.shape[-1] == rotary_dim and rotary_dim:
            t = t[..., : rotary_dim // 2] if layout == "half" else t[..., ::2]
        found.append(t)
    return found[0], found[1]


def integers(op: str, name: str, t: Tensor, shapes: tuple[tuple[int, ...], ...], device: object) -> None:
    """Raises unless `t` is an int32 or int64 tensor of one of the shapes on `device`."""
    import torch

    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
    if str(t.dtype) not in INTEGERS:
        raise TypeError(f"{op}: {name} is {t.dtype}; accepted are torch.int32 and torch.int64")
    if not among(tuple(t.shape), shapes) or t.device != device:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)} on {t.device}; it must be {' or '.join(map(str, shapes))} on {device}")
