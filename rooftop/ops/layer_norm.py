"""Layer normalisation of rows, with the addition before it fused in.

    s = x + residual,   y = (s - mean(s)) / sqrt(var(s) + eps) · weight + bias

Source: Ba, Kiros & Hinton 2016, "Layer Normalization" (arXiv 1607.06450)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.gradients import refuse_second_derivative
from rooftop.core.layouts import widen
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, first_of
from rooftop.ops._norms import canonical, cases, far, from_first, of_rounded_sum, outputs, outputs_bwd, public, sizes, total, validate, work, work_bwd
from rooftop.ops._peers import Kept, compiled, one_dtype

if TYPE_CHECKING:
    from torch import Tensor

FEW, MANY = 8, 64  # columns; rows
PART, LONG = 1 << 16, 256  # elements: 256 KiB of float32; columns
NEARLY_EQUAL = 0.5  # of a row's variance and eps, the share of eps from which its elements count as equal


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int] | int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    implementation: str | None = None,
) -> Any:
    """Normalise each row to mean 0 and variance 1, as `torch.nn.functional.layer_norm`, computed in float32.

    Args:
        input: float32, float16 or bfloat16, [..., *normalized_shape], any strides.
        normalized_shape: the last dimensions of `input`, which are normalised together.
        weight, bias: of `normalized_shape`, in the dtype of `input` or float32, or None.
        eps: added to the variance.
        residual: added to `input` first; of the same shape and dtype. The sum, rounded to that dtype, is normalised and returned.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns y, of the shape and dtype of `input`; with `residual` the pair (y, input + residual).

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, an eps below 0, or an input that a named
    implementation cannot take."""
    dims = validate("layer_norm", input, normalized_shape, residual, weight, bias, eps)
    y, s = OP(input, residual, weight, bias, dims, float(eps), implementation=implementation)
    return y if residual is None else (y, s)


def reference(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    s = x if residual is None else x + residual
    axes = tuple(range(-dims, 0))
    off = s - s.mean(axes, keepdim=True)
    y = off * (off.square().mean(axes, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y, None if residual is None else s


def backward(
    dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """With g = dy · weight and n = (s - mean) · scale: dx = scale · (g - mean(g) - n · mean(g n)) + ds, dweight = sum of dy n, dbias = sum
    of dy."""
    axes = tuple(range(-dims, 0))
    off = s - s.mean(axes, keepdim=True)
    scale = (off.square().mean(axes, keepdim=True) + eps).rsqrt()
    n = off * scale
    g = dy if weight is None else dy * weight
    dx = scale * (g - n * (g * n).mean(axes, keepdim=True) - g.mean(axes, keepdim=True))
    return dx if ds is None else dx + ds, None if weight is None else total(dy * n, dims), None if bias is None else total(dy, dims)


def _undefined(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    """`reference` of what rows are above their first element: rows of equal elements are exactly 0 / 0 if eps is 0."""
    s = x if residual is None else x + residual
    return reference(from_first(s, dims), None, weight, bias, dims, eps)[0], None if residual is None else s


def _eager(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    import torch

    s = x if residual is None else x + residual
    return torch.nn.functional.layer_norm(s, s.shape[-dims:], weight, bias, eps), None if residual is None else s


def cpu(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
    """Where torch's own rounding spoils gradients, others make them: of 16 bits, which it sums in 16 bits, of few columns, which are little but
    rounding, and of many rows, which it adds one after another. Of 16 bits torch computes x · scale - mean · scale: rows far from zero are
    widened first."""
    import torch

    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, residual, weight, bias))
    columns = prod(x.shape[x.dim() - dims :])
    if columns <= 1 or (wanted and columns <= FEW):
        return NotImplemented
    if wanted and (x.numel() > MANY * columns or x.element_size() == 2):
        return (_keeping()(x, weight, bias, dims, eps), None) if residual is None and x.numel() and columns >= LONG else NotImplemented
    s = x if residual is None else x + residual
    return _normalised(s, weight, bias, dims, eps)[0], None if residual is None else s


def _normalised(s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
    """y, and mean and scale of each row in float32 if the weight has it."""
    y, mean, scale = _forward(s, dims, weight, bias, eps)
    if s.element_size() == 2 and far(mean, scale):
        y = _forward(s.float(), dims, widen(weight), widen(bias), eps)[0].to(s.dtype)
    return y, mean, scale


@cache
def _keeping() -> Callable[..., Tensor]:
    """The forward that keeps means and scales for `_by_torch`."""
    import torch

    refuse = refuse_second_derivative("layer_norm")

    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Tensor:
        w = torch.ones(x.shape[x.dim() - dims :]) if weight is None else weight.float()
        y, mean, scale = _normalised(x, w, widen(bias), dims, eps)
        ctx.save_for_backward(x, weight, bias, w, mean, scale)
        ctx.options = dims, eps
        return y

    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse(ctx, dy)
        x, weight, bias, w, *statistics = ctx.saved_tensors
        found = _by_torch(dy, x, w, *statistics, ctx.options[1], ctx.needs_input_grad[:3])
        if found is None:
            found = cpu_backward(dy, None, x, weight, bias, *ctx.options)
        else:
            found = tuple(None if t is None else t.to(like.dtype).view(like.shape) for t, like in zip(found, (x, weight, bias), strict=True))
        return (*found, None, None)

    made = type("layer_norm", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    apply = super(torch.autograd.Function, made).apply  # what `Function.apply` does without a transform
    return lambda *args: apply(*args)


def cpu_backward(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
    """By torch's own function; where a mean is far from 0, of rows from which it is taken beforehand, and so of equal elements, of which
    exactly zeros are left. The gradients of few columns cancel to nothing but rounding: in float64."""
    import torch

    if not s.numel():
        return NotImplemented
    if prod(s.shape[s.dim() - dims :]) <= FEW:
        w, b = (t if t is None else t.double() for t in (weight, bias))
        found = backward(dy.double(), ds if ds is None else ds.double(), s.double(), w, b, dims, eps)
    else:
        w = torch.ones(s.shape[s.dim() - dims :]) if weight is None else weight.float()
        by_torch = None
        if w.numel() >= LONG and (by_torch := _by_torch(dy, s, w, *_forward(s, dims, w, w, eps)[1:], eps, (True, True, True))) is not None and ds is not None:
            by_torch = by_torch[0].float() + ds.reshape(-1, w.numel()), *by_torch[1:]
        found = by_torch or _in_parts(dy, ds, s, w, dims, eps)
    return tuple(None if like is None else t.to(like.dtype).view(like.shape) for t, like in zip(found, (s, weight, bias), strict=True))


def _by_torch(dy: Tensor, s: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float, wanted: Sequence[bool]) -> Any:
    """The gradients of s, the weight and the bias that are wanted. Torch adds up those of the weights well enough in float32, MANY rows at a
    time. None where a row's mean is far from 0, or its elements are equal but for rounding."""
    import torch

    if far(mean, scale) or scale.amax().item() ** 2 * eps > NEARLY_EQUAL:
        return None
    columns = weight.numel()
    w, g, x = weight.reshape(columns), dy.reshape(-1, columns), s.reshape(-1, columns)
    rows = mean.reshape(-1, 1), scale.reshape(-1, 1)
    gradients, dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward, None, None, None
    if wanted[0]:
        dx = gradients(g, x, [columns], *rows, w, w, [True, False, False])[0]
    if wanted[1] or wanted[2]:
        parts = zip(*(t.split(MANY) for t in (g, x, *rows)), strict=True)
        own = [gradients(g.float(), x.float(), [columns], m, r, w, w, [False, True, True])[1:] for g, x, m, r in parts]
        dweight, dbias = (torch.stack(t).sum(0) if wanted[i] else None for i, t in enumerate(zip(*own, strict=True), 1))
    return dx, dweight, dbias


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


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        if weight is None or bias is None or residual is not None or dims != 1:
            raise ValueError("Liger's LayerNorm takes one dimension, a weight and a bias, and no residual")
        return LigerLayerNormFunction.apply(x, weight, bias, eps), None

    return run


def _forward(s: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    import torch

    return torch.ops.aten.native_layer_norm(s, s.shape[-dims:], weight, bias, eps)


def _torch_backward() -> Callable[..., Any]:
    import torch

    kept = Kept(_forward)

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        _, mean, scale = kept(s, dims, weight, bias, eps)
        need = [True, weight is not None, bias is not None]
        dx, dw, db = torch.ops.aten.native_layer_norm_backward(dy, s, s.shape[-dims:], mean, scale, weight, bias, need)
        return dx if ds is None else dx + ds, dw, db

    return run


def _compiled_backward() -> Callable[..., Any]:
    import torch

    def plain(dy: Tensor, ds: Tensor | None, s: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Any:
        n = (s.float() - mean) * scale
        g = dy.float() if weight is None else dy.float() * weight.float()
        dx = (scale * (g - n * (g * n).mean(-1, keepdim=True) - g.mean(-1, keepdim=True))).to(s.dtype)
        dw = None if weight is None else (dy.float() * n).sum(0).to(weight.dtype)
        return dx if ds is None else dx + ds, dw, None if bias is None else dy.float().sum(0).to(bias.dtype)

    made, kept = torch.compile(plain, dynamic=False), Kept(_forward)

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        one_dtype(s)
        if dims != 1 or s.dim() != 2:
            raise ValueError("written for two dimensions")
        _, mean, scale = kept(s, dims, weight, bias, eps)
        return made(dy, ds, s, mean, scale, weight, bias)

    return run


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward

    kept = Kept(lambda s, weight, bias, eps: layer_norm_forward(s, weight, bias, eps))

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        if weight is None or bias is None or ds is not None or dims != 1:
            raise ValueError("Liger's LayerNorm backward takes one dimension, a weight, a bias and no second gradient")
        _, flat, mean, scale, *_ = kept(s, weight, bias, eps)
        return layer_norm_backward(dy, flat, weight, bias, mean, scale)

    return run


def _changed(change: str) -> Callable[..., Any]:
    """A known-wrong forward."""

    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        import torch

        s = x if residual is None else x + residual
        axes = tuple(range(-dims, 0))
        mean = s.mean(axes, keepdim=True)
        variance = (s - mean).square().mean(axes, keepdim=True)
        match change:
            case "squares":
                variance = s.square().mean(axes, keepdim=True) - mean.square()
            case "sample":
                columns = prod(s.shape[-dims:])
                variance = variance * (columns / max(columns - 1, 1))
            case "tail":
                kept = max(s.shape[-1] // 8 * 8, 1)
                mean = s[..., :kept].mean(axes, keepdim=True)
            case "half":
                mean = s.to(torch.bfloat16).mean(axes, keepdim=True).to(s.dtype)
            case "nan":
                mean = mean.nan_to_num(0.0)
                variance = variance.nan_to_num(1.0)
        y = (s - mean) / (variance.sqrt() + eps) if change == "eps" else (s - mean) * (variance + eps).rsqrt()
        y = y if weight is None or change == "weight" else y * weight
        y = y if bias is None or change == "bias" else y + bias
        if change == "last" and y.numel():
            y[..., -1] = float("nan")
        return y, None if residual is None else x.clone() if change == "sum" else s

    return run


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=public),
    outputs=outputs,
    canonical=canonical,
    cases=cases(bias=True),
    swept=sizes(bias=True),
    work=work,
    judging=Judging(same=of_rounded_sum(reference), undefined=_undefined, rows=first_of("x", "residual", "y", "s")),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x=residual", "weight", "bias"),
        saves=("s|x", "weight", "bias"),
        judging=Judging(
            rows=first_of("dy", "ds", "s", "dx"),
            undefined=lambda dy, ds, s, weight, bias, dims, eps: backward(dy, ds, from_first(s, dims), weight, bias, dims, eps),
        ),
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        cpu=cpu_backward,
        peers={"torch": _torch_backward, "torch.compile": _compiled_backward, "liger": _liger_backward},
        wrong={
            "mean of g forgotten": lambda dy, ds, s, weight, bias, dims, eps: (
                backward(dy, ds, s, weight, bias, dims, eps)[0]
                + (dy if weight is None else dy * weight).mean(tuple(range(-dims, 0)), keepdim=True),
                *backward(dy, ds, s, weight, bias, dims, eps)[1:],
            ),
            "last row not in dweight": lambda dy, ds, s, weight, bias, dims, eps: (
                backward(dy, ds, s, weight, bias, dims, eps)[0],
                *backward(dy[:-1], None, s[:-1], weight, bias, dims, eps)[1:],
            ),
            "second gradient lost": lambda dy, ds, s, weight, bias, dims, eps: backward(dy, None, s, weight, bias, dims, eps),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger},
    wrong={
        "mean of squares less square of mean": _changed("squares"),
        "variance of a sample": _changed("sample"),
        "tail not in the mean": _changed("tail"),
        "mean in bfloat16": _changed("half"),
        "eps outside the root": _changed("eps"),
        "weight ignored": _changed("weight"),
        "bias ignored": _changed("bias"),
        "sum not returned": _changed("sum"),
        "last column not written": _changed("last"),
        "NaN lost": _changed("nan"),
    },
)
