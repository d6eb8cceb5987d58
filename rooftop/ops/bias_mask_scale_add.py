"""Bias, dropout or a mask, scale and residual addition in one pass.

    out = residual + scale · mask · (x + bias)

With p > 0 the mask is made from a seed (rooftop/formats/random_bits.py): the forward and the backward make the same one and store none.
Source: Srivastava et al. 2014, "Dropout", with the scale that Vaswani et al. 2017 apply in training."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import random_bits
from rooftop.ops import _randomness
from rooftop.ops._peers import compiled
from rooftop.ops._pointwise import EDGES, FLOATS, by_rows, sizes, validate

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def bias_mask_scale_add(
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    p: float = 0.0,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    implementation: str | None = None,
) -> Tensor:
    """residual + scale · mask · (x + bias), computed in float32 and rounded once. Where the mask is False, x and bias are ignored, even
    NaN.

    Args:
        x: float32, float16 or bfloat16, [..., C], any strides.
        bias: [C] in the dtype of `x`, or None.
        residual: as `x` in shape and dtype, or None.
        mask: bool, of the shape of `x`; None: all True, or drawn from `seed` if `p` is not 0.
        scale: None: 1 / (1 - p), as in dropout.
        p: the probability that an element is dropped, 0 to 1; needs `mask` to be None.
        seed: any whole number, of which the low 32 bits count. It and an element's row-major index decide the mask, the same on every
            device and in every implementation. None: drawn from `generator`. A call that is captured in a CUDA graph needs a seed; every
            replay uses it.
        generator: a `torch.Generator` of the device of `x` that draws the seed; None: torch's default one, which `torch.manual_seed` sets.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape and dtype of `x`.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, a `p` out of range or together with a mask."""
    import torch

    validate("bias_mask_scale_add", "x", x=x, residual=residual)
    if x.dim() == 0:
        raise ValueError("bias_mask_scale_add: x has no dimensions; it must have at least one")
    for what, t, dtype, shape in (("bias", bias, x.dtype, tuple(x.shape[-1:])), ("mask", mask, torch.bool, tuple(x.shape))):
        if t is not None and not isinstance(t, torch.Tensor):
            raise TypeError(f"bias_mask_scale_add: {what} is a {type(t).__name__}; it must be a tensor")
        if t is not None and t.dtype != dtype:
            raise TypeError(f"bias_mask_scale_add: {what} is {t.dtype}; it must be {dtype}")
        if t is not None and (tuple(t.shape) != shape or t.device != x.device):
            raise ValueError(f"bias_mask_scale_add: {what} has shape {tuple(t.shape)} on {t.device}; it must be {shape} on {x.device}")
    number("bias_mask_scale_add", "p", p, "0 to 1")
    if scale is not None:
        number("bias_mask_scale_add", "scale", scale, "a number, or None")
    if not 0 <= p <= 1 or (p and mask is not None):
        raise ValueError(f"bias_mask_scale_add: p is {p}; it must be 0 to 1, and 0 where a mask is given")
    chosen = (1 / (1 - p) if p < 1 else 0.0) if scale is None else float(scale)
    return OP(
        x, bias, residual, mask, chosen, float(p), _randomness.seed("bias_mask_scale_add", seed, generator, x, p > 0),
        implementation=implementation
    )


def reference(x: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None, scale: float, p: float, seed: int) -> Tensor:
    v = x if bias is None else x + bias
    return _finish(v * scale, residual, mask, p, seed)


def _finish(v: Tensor, residual: Tensor | None, mask: Tensor | None, p: float, seed: int) -> Tensor:
    if p > 0:
        mask = random_bits.kept(p, seed, tuple(v.shape), v.device)
    v = v if mask is None else v.where(mask, v.new_zeros(()))
    return v if residual is None else v + residual


def cpu(x: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None, scale: float, p: float, seed: int) -> Tensor:
    import torch

    mask = random_bits.kept_on_cpu(p, seed, tuple(x.shape)) if p else mask
    to, v = x.dtype, x.float() if x.element_size() == 2 else x
    v = v if bias is None else v + bias
    v = v if scale == 1 else v * scale
    v = v if mask is None else torch.where(mask, v, 0.0)
    v = v if residual is None else v + residual
    return v.clone() if v is x else v.to(to)


def backward(dout: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, p: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """dx = scale · mask · dout, dbias = the sum of dx over all rows; the gradient of the residual is dout itself."""
    dx = _finish(dout * scale, None, mask, p, seed)
    return dx, None if bias is None else dx.reshape(prod(dx.shape[:-1]), dx.shape[-1]).sum(0)


def outputs(x: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": Meta(x.shape, x.dtype)}


def outputs_bwd(dout: Meta, bias: Meta | None, **_: Any) -> dict[str, Meta | None]:
    return {"dx": Meta(dout.shape, dout.dtype), "dbias": bias and Meta(bias.shape, bias.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Rows [R, C]; bias and dbias [C]."""
    single = {n: m for n, m in p.tensors if n in ("bias", "dbias") and m is not None}
    if any(not m.contiguous for m in single.values()):
        return None
    found = by_rows(p.replace(**dict.fromkeys(single)))
    return found and found.replace(**{n: Meta((m.numel,), m.dtype, (1,), m.align) for n, m in single.items()})


def work(p: Problem) -> Work:
    """Every tensor crosses memory once; a mask from a seed is 11 operations on integers an element."""
    n = p["x"].numel
    return Work(
        sum(m.nbytes for k in ("x", "bias", "residual", "mask") if (m := p.get(k)) is not None), p["out"].nbytes, {"fma32": 2.0 * n}
    )


def work_bwd(p: Problem) -> Work:
    read = sum(m.nbytes for k in ("dout", "mask") if (m := p.get(k)) is not None)
    return Work(read, sum(m.nbytes for k in ("dx", "dbias") if (m := p.get(k)) is not None), {"fma32": 2.0 * p["dx"].numel})


def _eager(x: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None, scale: float, p: float, seed: int) -> Tensor:
    """With torch's own random bits its masks differ, so that a seed is refused."""
    if p:
        raise ValueError("torch makes other masks")
    v = x if bias is None else x + bias
    v = v * scale if mask is None else v * mask * scale
    return v if residual is None else v + residual


def _eager_backward(
    dout: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, p: float, seed: int
) -> tuple[Tensor, Tensor | None]:
    if p:
        raise ValueError("torch makes other masks")
    dx = dout * scale if mask is None else dout * mask * scale
    return dx, None if bias is None else dx.reshape(prod(dx.shape[:-1]), dx.shape[-1]).sum(0)


def _given(
    x: Input, *, bias: bool = True, residual: bool = True, mask: bool = False, p: float = 0.0, scale: float = 1.25, seed: int = 7
) -> dict[str, Any]:
    given = {"x": x, "bias": Input(x.shape[-1:], x.dtype) if bias else None, "residual": x if residual else None}
    return {**given, "mask": Input(x.shape, "bool", "normal", x.layout) if mask else None, "scale": scale, "p": p, "seed": seed}


def _cases() -> list[Case]:
    call = _given
    bench = []
    for how, parts in (("mask", 7), ("seed", 6)):
        for mib in (512, 32, 4, 1):
            columns = 8192 if mib >= 32 else 1024
            x = Input(((mib << 20) // (parts * columns), columns), "bf16")
            bench.append(
                case(
                    f"{how} {mib} MiB {x.shape[0]}x{columns}", tags="bench", **call(x, mask=how == "mask", p=0.0 if how == "mask" else 0.1)
                )
            )
    edge = []
    for d in FLOATS:
        for name, (shape, fill, layout) in EDGES.items():
            if name != "scalar":
                edge.append(case(f"mask {name}", tags="edge", **call(Input(shape, d, fill, layout), mask=True)))
                edge.append(case(f"seed {name}", tags="edge", **call(Input(shape, d, fill, layout), p=0.25, seed=-5)))
        edge += [
            case("many rows", tags="edge", **call(Input((700, 40), d), p=0.5, scale=2.0)),
            case("rows of 1027", tags="edge", why="more than a tile", **call(Input((3, 1027), d), mask=True)),
            case("one column", tags="edge", **call(Input((33, 1), d), p=0.5)),
            case("no bias", tags="edge", **call(Input((33, 70), d), bias=False, p=0.1, seed=2**31 - 1)),
            case("no residual", tags="edge", **call(Input((33, 70), d), residual=False, p=0.9, seed=1)),
            case("neither mask nor seed", tags="edge", **call(Input((33, 70), d), seed=0)),
        ]
    return bench + edge


def _changed(change: str) -> Callable[..., Any]:
    def run(x: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None, scale: float, p: float, seed: int) -> Tensor:
        v = x if bias is None or change == "bias" else x + bias
        v = v if change == "scale" else v * scale
        if change == "kept":
            p, mask = p and 1 - p, None if mask is None else ~mask
        if change == "late" and mask is not None:
            return (v if residual is None else v + residual).where(mask, v.new_zeros(()))
        return _finish(v, residual, mask, p, seed + 1 if change == "seed" else seed)

    return run


OP = Op(
    reference,
    calls=Calls(cpu=cpu),
    outputs=outputs,
    judging=Judging(invariant={"batch": "which elements are dropped follows from their place in the call"}),
    canonical=canonical,
    cases=_cases(),
    swept=sizes(lambda x: _given(x, mask=True)),  # with a seed in its place torch makes another mask: no peer to stand beside
    work=work,
    tolerance=Tolerance(multiple=4.0),
    values=Values(runtime_options=("seed",)),
    grad=Grad(
        wrt=("x", "bias"),
        saves=("bias", "mask"),
        same={"residual": "out"},
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        peers={"torch": lambda: _eager_backward, "torch.compile": compiled(_eager_backward)},
        wrong={
            "another mask": lambda dout, bias, mask, scale, p,
            seed: backward(dout, bias, None if mask is None else ~mask, scale, p, seed + 1),
            "not scaled": lambda dout, bias, mask, scale, p, seed: backward(dout, bias, mask, 1.0, p, seed),
            "last row not in dbias": lambda dout, bias, mask, scale, p, seed: (
                backward(dout, None, mask, scale, p, seed)[0],
                None if bias is None else backward(dout[:-1], bias, mask[:-1] if mask is not None else None, scale, p, seed)[1],
            ),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong={
        "bias ignored": _changed("bias"),
        "scale ignored": _changed("scale"),
        "kept and dropped exchanged": _changed("kept"),
        "another seed": _changed("seed"),
        "residual masked": _changed("late"),
    },
)
