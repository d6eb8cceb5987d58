"""RMS normalisation of rows, written as codes and scales, with an optional residual addition before it.

    s = x + residual,   y = s / sqrt(mean(s²) + eps) · weight in float32, then as `rooftop.quantize` by rows, or by groups along them

Sources: Zhang & Sennrich 2019 (arXiv 1910.07467); what codes and scales are: rooftop/ops/quantize.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Judging, Op, Tolerance, Values, first_of
from rooftop.core.spec import Case, Input, Meta, Problem, Work
from rooftop.core.sweeps import Sizes
from rooftop.formats import random_bits
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._peers import compiled
from rooftop.ops._randomness import unless_drawn

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.number_formats import Format
    from rooftop.formats.quantized import Quantized


def rms_norm_quantize(
    input: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    format: str | Format = "int8",
    *,
    residual: Tensor | None = None,
    group: int | None = None,
    rounding: str = "nearest",
    scale_dtype: str | None = None,
    over: Tensor | float | None = None,
    seed: int = 0,
    implementation: str | None = None,
) -> Quantized | tuple[Quantized, Tensor]:
    """`rooftop.quantize(rooftop.rms_norm(input, ...), format)` along the last dimension in one pass; y is not rounded to 16 bits in
    between.

    Args:
        input: float32, float16 or bfloat16, at least one dimension, any strides.
        weight: [C] for a last dimension of C, in the dtype of `input` or float32, or None.
        eps: added to the mean of the squares. None: the epsilon of float32.
        format: as in `rooftop.quantize`.
        residual: added to `input` first; of the same shape and dtype. The sum is normalised in float32 and returned rounded to that dtype.
        group: consecutive elements along the last dimension that share a scale: 16, 32, 64, 128 or 256. None: the whole row, or that of an
            mx or nv format.
        rounding: "nearest", "stochastic" or "zero".
        scale_dtype, over, seed: as in `rooftop.quantize`; nvfp4 requires `over`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    Squares are added in float32: a row whose squares are beyond its range becomes zeros.

    Returns a `rooftop.quant.Quantized` of the shape of `input`; with `residual` the pair (quantized, input + residual). No gradient flows
    through them.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit or an eps below 0, and what `rooftop.quantize`
    raises for the rest."""
    import torch

    rows.validate("rms_norm_quantize", "input", input)
    f, kind, columns, scaled = rows.how("rms_norm_quantize", input, format, group, rounding, scale_dtype, over, seed)
    chosen = 2.0**-23 if eps is None else eps
    number("rms_norm_quantize", "eps", chosen, "a number of at least 0")
    if not chosen >= 0:
        raise ValueError(f"rms_norm_quantize: eps is {eps}; it must be at least 0")
    for name, t, shape in (("residual", residual, input.shape), ("weight", weight, input.shape[-1:])):
        if t is None:
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"rms_norm_quantize: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype != input.dtype and (name == "residual" or t.dtype != torch.float32):
            raise TypeError(f"rms_norm_quantize: {name} is {t.dtype}; input is {input.dtype}")
        if t.shape != shape or t.device != input.device:
            raise ValueError(f"rms_norm_quantize: {name} is {tuple(t.shape)} on {t.device}; it must be {tuple(shape)} on {input.device}")
    codes, scale, s = OP(
        rows.flat(input), None if residual is None else rows.flat(residual), None if weight is None else weight.detach(),
        None if scaled is None else scaled.reshape(1), float(chosen), columns, f.element, kind, rounding, random_bits.signed(seed),
        implementation=implementation,
    )
    q = rows.packaged(codes, scale, scaled, f, kind, tuple(input.shape), input.dtype, columns)
    return q if residual is None else (q, s.reshape(input.shape))


def _normalised(s: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = s * (s.square().mean(-1, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * weight


def reference(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, over: Tensor | None, eps: float, group: int, format: str, scales: str,
    rounding: str, seed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    s = x if residual is None else x + residual
    codes, scale = rows.quantized(_normalised(s, weight, eps), over, group, format, scales, rounding, seed)
    return codes, scale, None if residual is None else s


def values(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    x, residual, weight = tensors["x"], tensors.get("residual"), tensors.get("weight")
    s = x.double() if residual is None else x.double() + residual.double()
    y = _normalised(s, None if weight is None else weight.double(), float(options["eps"]))
    error = s.abs() if residual is None else x.double().abs() + residual.double().abs()  # of a sum, by its terms
    part = y.abs() / s.abs().clamp(min=2.0**-149)
    return y, (y.abs() * rows.ULPS + (part * error).nan_to_num(0.0) * 2.0**-23) + 2.0**-126


def outputs(x: Meta, residual: Meta | None, group: int, format: str, scales: str, **_: Any) -> dict[str, Meta | None]:
    return {**rows.row_outputs(x, group, format, scales), "s": None if residual is None else Meta(x.shape, x.dtype)}


def work(p: Problem) -> Work:
    """Read x, the residual and the weight once, write codes, scales and the sum."""
    read, written = (
        sum(m.nbytes for n in names if (m := p.get(n)) is not None) for names in (("x", "residual", "weight"), ("codes", "scale", "s"))
    )
    return Work(read, written, {"fma32": 6.0 * p["x"].numel})


def _eager(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, over: Tensor | None, eps: float, group: int, format: str, scales: str,
    rounding: str, seed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    import torch

    s = x if residual is None else x + residual
    codes, scale = rows.plain(torch.nn.functional.rms_norm(s, s.shape[-1:], weight, eps), group, format, scales, rounding)
    return codes, scale, None if residual is None else s


def _wrong(
    change: str, x: Tensor, residual: Tensor | None, weight: Tensor | None, over: Tensor | None, eps: float, group: int, format: str,
    scales: str, rounding: str, seed: int,
) -> Any:
    if change == "mean":
        x = x - x.mean(-1, keepdim=True)
    if change == "weight":
        weight = None if weight is None else weight.roll(1)
    if change == "sum":
        codes, scale, s = reference(x, residual, weight, over, eps, group, format, scales, rounding, seed)
        return codes, scale, None if s is None else x.clone()
    return rows.worse(change, reference, (x, residual, weight, over, eps, group, format, scales), rounding, seed)


def _cases() -> list[Case]:
    def inputs(shape: tuple[int, int], d: str, fill: str, layout: str) -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "residual": None, "weight": Input((shape[1],), d), "eps": 1e-5}

    found = rows.cases(inputs)
    for c in found[:2] + [
        c for c in found if c.name in ("int8 rows 7x1000", "e4m3 groups of 128 7x640", "odd 3x77", "mxfp4 odd 3x77", "strided rows")
    ]:
        x = c.inputs["x"]
        assert isinstance(x, Input)
        found.append(replace(c, name=f"residual {c.name}", inputs={**c.inputs, "residual": Input(x.shape, x.dtype)}))
    for c in [c for c in found if c.name in ("int8 rows 7x1000", "e4m3 odd 3x77")]:
        x = c.inputs["x"]
        assert isinstance(x, Input)
        found.append(replace(c, name=f"no weight {c.name}", inputs={**c.inputs, "weight": None}))
        if x.dtype != "f32":
            found.append(replace(c, name=f"weight of float32 {c.name}", inputs={**c.inputs, "weight": Input((x.shape[1],), "f32")}))
    return found


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=rows.canonical("x", "residual"),
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns: {
            "x": Input((rows, columns), dtype), "residual": None, "weight": Input((columns,), dtype), "eps": 1e-5,
            "over": None, "group": 0, "format": "int8", "scales": "f32", "rounding": "nearest", "seed": 7,
        },
        {"rows": (1, 1 << 26), "columns": (64, 1 << 17)}, rows="rows", models={"columns": "hidden"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(multiple=2.0),
    judging=Judging(rows=unless_drawn(first_of("x", "residual", "s", "codes", "scale")), compare=rows.laws(values, ("x", "residual"))),
    values=Values(fixup=rows.arranged, runtime_options=("seed",)),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong=rows.wrong(_wrong, "mean", "weight", "sum"),
)
