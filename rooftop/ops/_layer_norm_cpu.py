"""Layer normalisation of tensors of the CPU: torch's own function, and gradients where torch's would err too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.gradients import refuse_second_derivative
from rooftop.core.layouts import widen
from rooftop.ops._norms import NEARLY_EQUAL, far

if TYPE_CHECKING:
    from torch import Tensor

FEW, MANY = 8, 64  # columns; rows
PART, LONG = 1 << 16, 256  # elements: 256 KiB of float32; columns


def cpu(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
    """Where torch's own rounding spoils gradients, others make them: of 16 bits, which it sums in 16 bits, of few columns, which are little but
    rounding, and of many rows, which it adds one after another. Of 16 bits torch computes x · scale - mean · scale: rows far from zero are
    widened first."""
    import torch

    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, residual, weight, bias))
    columns = prod(x.shape[x.dim() - dims :])
    spoilt = wanted and (x.numel() > MANY * columns or x.element_size() == 2)
    if columns <= 1 or (wanted and columns <= FEW) or (spoilt and (columns < LONG or not x.numel())):
        return NotImplemented
    s = x if residual is None else x + residual
    y = _keeping()(s, weight, bias, dims, eps) if spoilt else _normalised(s, weight, bias, dims, eps)[0]
    return y, None if residual is None else s


def _normalised(s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
    """y, and mean and scale of each row, in float32 if the weight has it."""
    import torch

    shape = s.shape[s.dim() - dims :]
    y, mean, scale = torch.native_layer_norm(s, shape, weight, bias, eps)
    if s.element_size() == 2 and far(mean, scale):
        y = torch.native_layer_norm(s.float(), shape, widen(weight), widen(bias), eps)[0].to(s.dtype)
    return y, mean, scale


@cache
def _keeping() -> Callable[..., Tensor]:
    """The forward that keeps means and scales for its backward."""
    import torch

    def forward(ctx: Any, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Tensor:
        w = torch.ones(s.shape[s.dim() - dims :]) if weight is None else weight.float()
        y, mean, scale = _normalised(s, w, widen(bias), dims, eps)
        ctx.save_for_backward(s, weight, bias, w, mean, scale)
        ctx.options = dims, eps
        return y

    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse_second_derivative("layer_norm")(ctx)
        s, weight, bias, w, mean, scale = ctx.saved_tensors
        found = _by_torch(dy, s, w, mean, scale, ctx.options[1], ctx.needs_input_grad[:3])
        return *_alike(found or _in_parts(dy, None, s, w, *ctx.options), s, weight, bias), None, None

    made = type("layer_norm", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    apply = super(torch.autograd.Function, made).apply  # what `Function.apply` does without a transform
    return lambda *args: apply(*args)


def cpu_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of few columns cancel to nothing but rounding: in float64, by the formula `backward`."""

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        import torch

        if not s.numel():
            return NotImplemented
        if prod(s.shape[s.dim() - dims :]) > FEW:
            w = torch.ones(s.shape[s.dim() - dims :]) if weight is None else weight.float()
            return _alike(_in_parts(dy, ds, s, w, dims, eps), s, weight, bias)
        w, b, more = (t if t is None else t.double() for t in (weight, bias, ds))
        return _alike(backward(dy.double(), more, s.double(), w, b, dims, eps), s, weight, bias)

    return run


def _alike(found: Sequence[Tensor | None], *given: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if like is None or t is None else t.to(like.dtype).view(like.shape) for t, like in zip(found, given, strict=True))


def _by_torch(dy: Tensor, s: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float, wanted: Sequence[bool]) -> Any:
    """The gradients of s, the weight and the bias that are wanted. Torch adds up those of the weights well enough in float32, MANY rows at a
    time. None where a row's mean is far from 0, or its elements are equal but for rounding."""
    import torch

    if far(mean, scale) or scale.amax().item() ** 2 * eps > NEARLY_EQUAL:
        return None
    columns = weight.numel()
    given = dy.reshape(-1, columns), s.reshape(-1, columns), mean.reshape(-1, 1), scale.reshape(-1, 1)

    def gradients(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor, *wanted: bool) -> Any:
        w = weight.reshape(columns)
        return torch.ops.aten.native_layer_norm_backward(g, x, [columns], mean, scale, w, w, wanted)

    dx = gradients(*given, True, False, False)[0] if wanted[0] else None
    if not (wanted[1] or wanted[2]):
        return dx, None, None
    parts = zip(*(t.split(MANY) for t in given), strict=True)
    own = [gradients(g.float(), x.float(), m, r, False, True, True)[1:] for g, x, m, r in parts]
    return dx, *(torch.stack(t).sum(0) for t in zip(*own, strict=True))


def _in_parts(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor, dims: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Some rows at a time, which a core's cache holds: what one pass leaves there, the next one finds. Torch adds up what the weights get of
    MANY rows well enough; so few short rows are not worth a call, and of more of them products are summed."""
    import torch

    columns = prod(s.shape[s.dim() - dims :])
    rows = s.numel() // columns
    dx, w = torch.empty(rows, columns), weight.reshape(columns)
    flat = [t if t is None else t.reshape(rows, columns) for t in (dy, ds, s)]
    sums, few = [], columns >= LONG
    step = MANY if few else PART // columns
    for i in range(0, rows, step):
        g, more, wide = (t if t is None else t[i : i + step].float() for t in flat)
        assert g is not None and wide is not None
        off = wide - wide.mean(1, keepdim=True)
        scale = (off.square().mean(1, keepdim=True) + eps).rsqrt()
        made, *own = torch.ops.aten.native_layer_norm_backward(g, off, [columns], torch.zeros_like(scale), scale, w, w, [True, few, few])
        dx[i : i + step] = made if more is None else made + more
        sums.append(own if few else (off.mul_(scale).mul_(g).sum(0), g.sum(0)))
    dweight, dbias = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
    return dx, dweight, dbias
