"""RMS normalisation of rows (RMSNorm), with optional additions before and after it.

    s = x + residual,   y = s / sqrt(mean(s²) + eps) · (weight + offset) + bias + addend

Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization" (arXiv 1910.07467)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.autocasting import widened
from rooftop.core.layouts import widen
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, first_of
from rooftop.core.spec import Case
from rooftop.ops._norms import canonical, cases, of_rounded_sum, outputs, outputs_bwd, public, sizes, total, validate, work, work_bwd
from rooftop.ops._peers import Kept, compiled, one_dtype

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int] | int,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    addend: Tensor | None = None,
    offset: float = 0.0,
    implementation: str | None = None,
) -> Any:
    """Divide each row by its root mean square, as `torch.nn.functional.rms_norm`, computed in float32.

    Args:
        input: float32, float16 or bfloat16, [..., *normalized_shape], any strides.
        normalized_shape: the last dimensions of `input`, which are normalised together.
        weight, bias: of `normalized_shape`, in the dtype of `input` or float32, or None.
        eps: added to the mean of the squares. None: torch's default, the epsilon of float32.
        residual: added to `input` first; of the same shape and dtype. The sum, rounded to that dtype, is normalised and returned.
        addend: added to the result before it is rounded; of the shape and dtype of `input`. For layers that add after their norm
            (OLMo 2, Gemma 2), `addend` is the residual.
        offset: added to the weight, in float32: 1 for Gemma, whose weights are stored as their difference from 1. Not without a weight.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Under autocast an input, a residual and an addend of two dtypes are all cast to float32.

    Returns y, of the shape and dtype of `input`; with `residual` the pair (y, input + residual).

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, an eps below 0, or an input that a named
    implementation cannot take."""
    chosen = 2.0**-23 if eps is None else eps
    input, residual, addend = widened(input, residual, addend)
    dims = validate("rms_norm", input, normalized_shape, residual, weight, bias, chosen, addend)
    number("rms_norm", "offset", offset, "a finite number", finite=True)
    if offset:
        if weight is None:
            raise ValueError(f"rms_norm: offset is {offset} and weight is None; an offset is added to a weight")
        weight = weight.float() + offset
    y, s = OP(input, residual, weight, bias, dims, float(chosen), addend, implementation=implementation)
    return y if residual is None else (y, s)


def reference(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, addend: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    s = x if residual is None else x + residual
    y = s * (s.square().mean(tuple(range(-dims, 0)), keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    y = y if addend is None else y + addend
    return y, None if residual is None else s


def backward(
    dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """With g = dy · weight and n = s · scale: dx = scale · (g - n · mean(g n)) + ds, dweight = sum of dy n, dbias = sum of dy."""
    axes = tuple(range(-dims, 0))
    scale = (s.square().mean(axes, keepdim=True) + eps).rsqrt()
    n = s * scale
    g = dy if weight is None else dy * weight
    dx = scale * (g - n * (g * n).mean(axes, keepdim=True))
    return dx if ds is None else dx + ds, None if weight is None else total(dy * n, dims), None if bias is None else total(dy, dims)


def _eager(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, addend: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    import torch

    s = x if residual is None else x + residual
    y = torch.nn.functional.rms_norm(s, s.shape[-dims:], weight, eps)
    y = y if bias is None else y + bias
    return y if addend is None else y + addend, None if residual is None else s


def cpu(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, addend: Any = None) -> Any:
    """Of 16 bits torch rounds before the weight: that is done in float32. A single column has gradients of nothing but rounding."""
    if prod(x.shape[x.dim() - dims :]) <= 1:
        return NotImplemented
    if x.element_size() > 2:
        return _eager(x, residual, weight, bias, dims, eps, addend)
    s = x if residual is None else x + residual
    y, _ = _eager(s.float(), None, widen(weight), widen(bias), dims, eps, widen(addend))
    return y.to(x.dtype), None if residual is None else s


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, addend: Any) -> Any:
        if weight is None or bias is not None or dims != 1 or addend is not None:
            raise ValueError("Liger's RMSNorm takes one dimension, a weight, no bias and no addend")
        if residual is None:
            return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False), None
        return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "llama", False)

    return run


def _quack() -> Callable[..., Any]:
    from quack.rmsnorm import rmsnorm_fwd

    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, addend: Any) -> Any:
        if dims != 1 or addend is not None:
            raise ValueError("quack's RMSNorm takes one dimension and no addend")
        found = rmsnorm_fwd(x, weight, bias=bias, residual=residual, eps=eps)
        return found[0], None if residual is None else found[1]

    return run


def _scale(s: Tensor, eps: float) -> Tensor:
    return (s.float().square().mean(-1, keepdim=True) + eps).rsqrt()


def _torch_backward() -> Callable[..., Any]:
    import torch

    kept = Kept(_scale)

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        if dims != 1 or bias is not None or not s.is_cuda:
            raise ValueError("torch's fused backward takes one dimension, no bias, and runs on CUDA tensors")
        dx, dw = torch.ops.aten._fused_rms_norm_backward(dy, s, s.shape[-1:], kept(s, eps), weight, [True, weight is not None])
        return dx if ds is None else dx + ds, dw if weight is not None else None, None

    return run


def _compiled_backward() -> Callable[..., Any]:
    import torch

    def plain(dy: Tensor, ds: Tensor | None, s: Tensor, scale: Tensor, weight: Tensor | None) -> Any:
        n = s.float() * scale
        g = dy.float() if weight is None else dy.float() * weight.float()
        dx = (scale * (g - n * (g * n).mean(-1, keepdim=True))).to(s.dtype)
        return dx if ds is None else dx + ds, None if weight is None else (dy.float() * n).sum(0).to(weight.dtype)

    made, kept = torch.compile(plain, dynamic=False), Kept(_scale)

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        one_dtype(s)
        if dims != 1 or bias is not None or s.dim() != 2:
            raise ValueError("written for two dimensions and no bias")
        return (*made(dy, ds, s, kept(s, eps), weight), None)

    return run


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward

    def forward(s: Tensor, weight: Tensor, eps: float) -> Any:
        return rms_norm_forward(s, weight, eps, 0.0, "llama", None)

    kept = Kept(forward)

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        if weight is None or bias is not None or ds is not None or dims != 1:
            raise ValueError("Liger's RMSNorm backward takes one dimension, a weight, no bias and no second gradient")
        _, flat, scale, size, warps, mode = kept(s, weight, eps)
        dx, dw = rms_norm_backward(dy, flat, weight, scale, 0.0, mode, size, warps, False, None)
        return dx, dw, None

    return run


def _quack_backward() -> Callable[..., Any]:
    from quack.rmsnorm import rmsnorm_bwd

    kept = Kept(lambda s, eps: _scale(s, eps).squeeze(-1))

    def run(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> Any:
        if dims != 1 or bias is not None:
            raise ValueError("quack's RMSNorm takes one dimension; without a bias here")
        dx, dw, *_ = rmsnorm_bwd(s, weight, dy, kept(s, eps), dresidual_out=ds)
        return dx, dw, None

    return run


def _changed(change: str) -> Callable[..., Any]:
    """A known-wrong forward."""

    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, addend: Any) -> Any:
        import torch

        if change == "before" and addend is not None:
            x, addend = x + addend, None
        s = x if residual is None else x + residual
        axes = tuple(range(-dims, 0))
        square = s.square().mean(axes, keepdim=True)
        match change:
            case "mean":
                square = (s - s.mean(axes, keepdim=True)).square().mean(axes, keepdim=True)
            case "tail":
                square = s[..., : max(s.shape[-1] // 8 * 8, 1)].square().mean(axes, keepdim=True)
            case "half":
                square = s.to(torch.bfloat16).square().mean(axes, keepdim=True).to(s.dtype)
            case "nan":
                s = s.nan_to_num(0.0)
                square = s.square().mean(axes, keepdim=True)
        y = s / (square.sqrt() + eps) if change == "eps" else s * (square + eps).rsqrt()
        y = y if weight is None else y * (weight + 1 if change == "offset" else weight)
        y = y if bias is None or change == "bias" else y + bias
        y = y if addend is None or change == "addend" else y + addend
        if change == "last" and y.numel():
            y[..., -1] = float("nan")
        return y, None if residual is None else x.clone() if change == "sum" else s

    return run


CASES = cases(bias=False)
CASES += [Case(f"{c.name}, added", {**c.inputs, "addend": c.inputs["x"]}, c.tags, c.why) for c in CASES if {"edge", "model"} & {*c.tags}]

OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=public),
    outputs=outputs,
    canonical=canonical,
    cases=CASES,
    swept=sizes(bias=False),
    work=work,
    judging=Judging(same=of_rounded_sum(reference), rows=first_of("x", "residual", "addend", "y", "s")),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x=residual", "weight", "bias"),
        saves=("s|x", "weight", "bias"),
        judging=Judging(rows=first_of("dy", "ds", "s", "dx")),
        same={"addend": "y"},
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        peers={"torch": _torch_backward, "torch.compile": _compiled_backward, "liger": _liger_backward, "quack": _quack_backward},
        wrong={
            "mean forgotten": lambda dy, ds, s, weight, bias, dims, eps: (
                (s.square().mean(tuple(range(-dims, 0)), keepdim=True) + eps).rsqrt() * (dy if weight is None else dy * weight),
                *backward(dy, ds, s, weight, bias, dims, eps)[1:],
            ),
            "last row not in dweight": lambda dy, ds, s, weight, bias, dims, eps: (
                backward(dy, ds, s, weight, bias, dims, eps)[0],
                *backward(dy[:-1], None, s[:-1], weight, bias, dims, eps)[1:],
            ),
            "second gradient lost": lambda dy, ds, s, weight, bias, dims, eps: backward(dy, None, s, weight, bias, dims, eps),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger, "quack": _quack},
    wrong={
        "mean subtracted": _changed("mean"),
        "tail dropped": _changed("tail"),
        "squares in bfloat16": _changed("half"),
        "eps outside the root": _changed("eps"),
        "weight off by one": _changed("offset"),
        "bias ignored": _changed("bias"),
        "sum not returned": _changed("sum"),
        "last column not written": _changed("last"),
        "NaN lost": _changed("nan"),
        "addend ignored": _changed("addend"),
        "addend before the norm": _changed("before"),
    },
)
