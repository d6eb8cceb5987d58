"""Layer normalisation of rows, with an optional residual addition before it.

    s = x + residual,   y = (s - mean(s)) / sqrt(var(s) + eps) · weight + bias

Source: Ba, Kiros & Hinton 2016, "Layer Normalization" (arXiv 1607.06450)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, first_of
from rooftop.ops._layer_norm_cpu import cpu, cpu_backward
from rooftop.ops._norms import canonical, cases, from_first, of_rounded_sum, outputs, outputs_bwd, public, sizes, total, validate, work, work_bwd
from rooftop.ops._peers import Kept, compiled, one_dtype

if TYPE_CHECKING:
    from torch import Tensor


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
        cpu=cpu_backward(backward),
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
