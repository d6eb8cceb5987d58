"""Softmax of rows, written as codes and scales.

    y_i = exp(x_i - max(x)) / sum_j exp(x_j - max(x)) in float32, then as `rooftop.quantize` by rows, or by groups along them

Sources: Milakov & Gimelshein 2018 (arXiv 1805.02867); what codes and scales are: rooftop/ops/quantize.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Values, first_of
from rooftop.core.spec import Input, Problem, Work
from rooftop.core.sweeps import Sizes
from rooftop.formats import random_bits
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._peers import compiled
from rooftop.ops._randomness import unless_drawn

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.number_formats import Format
    from rooftop.formats.quantized import Quantized


def softmax_quantize(
    x: Tensor,
    format: str | Format = "int8",
    *,
    group: int | None = None,
    rounding: str = "nearest",
    scale_dtype: str | None = None,
    over: Tensor | float | None = None,
    seed: int = 0,
    implementation: str | None = None,
) -> Quantized:
    """`rooftop.quantize(rooftop.softmax(x), format)` along the last dimension in one pass; the probabilities are not rounded to 16 bits in
    between.

    Args:
        x: float32, float16 or bfloat16, at least one dimension, any strides.
        format: as in `rooftop.quantize`.
        group: consecutive elements along the last dimension that share a scale: 16, 32, 64, 128 or 256. None: the whole row, or that of an
            mx or nv format.
        rounding: "nearest", "stochastic" or "zero".
        scale_dtype, over, seed: as in `rooftop.quantize`; nvfp4 requires `over`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    A row that contains NaN or +infinity, or only -infinity, is NaN: its codes are those of NaN.

    Returns a `rooftop.quant.Quantized` of the shape of `x`. No gradient flows through it.

    Raises the errors of `rooftop.quantize`."""
    rows.validate("softmax_quantize", "x", x)
    f, kind, columns, scaled = rows.how("softmax_quantize", x, format, group, rounding, scale_dtype, over, seed)
    codes, scale = OP(
        rows.flat(x), None if scaled is None else scaled.reshape(1), columns, f.element, kind, rounding, random_bits.signed(seed),
        implementation=implementation
    )
    return rows.packaged(codes, scale, scaled, f, kind, tuple(x.shape), x.dtype, columns)


def reference(x: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int) -> tuple[Tensor, Tensor]:
    return rows.quantized(x.softmax(-1), over, group, format, scales, rounding, seed)


def values(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    x = tensors["x"].double()
    y = x.softmax(-1)
    if y.numel() == 0:
        return y, y
    below = (x.amax(-1, keepdim=True) - x).clamp(max=200.0).nan_to_num(0.0)  # of the largest; further below y is zero in float32
    return y, y * (rows.ULPS + below * 2.0**-22) + 2.0**-126


def work(p: Problem) -> Work:
    """Read x once, write codes and scales."""
    n = p["x"].numel
    return Work(p["x"].nbytes, p["codes"].nbytes + p["scale"].nbytes, {"fma32": 6.0 * n, "exp": 1.0 * n})


def _eager(x: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int) -> tuple[Tensor, Tensor]:
    return rows.plain(x.softmax(-1), group, format, scales, rounding)


def _wrong(change: str, x: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int) -> Any:
    if change == "tail":  # the last column has no say in the sum
        return rows.quantized(x.exp() / x[:, :-1].exp().sum(-1, keepdim=True), over, group, format, scales, rounding, seed)
    return rows.worse(change, reference, (x, over, group, format, scales), rounding, seed)


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=rows.row_outputs,
    canonical=rows.canonical("x"),
    cases=rows.cases(lambda shape, d, fill, layout: {"x": Input(shape, d, fill, layout)}, fills=("wide", "-inf rows", "large")),
    swept=Sizes(
        lambda dtype, rows, columns: {
            "x": Input((rows, columns), dtype),
            "over": None, "group": 0, "format": "int8", "scales": "f32", "rounding": "nearest", "seed": 7,
        },
        {"rows": (1, 1 << 26), "columns": (64, 1 << 17)}, rows="rows", models={"columns": "inner"}, axis="columns",
    ),
    work=work,
    judging=Judging(rows=unless_drawn(first_of("x", "codes", "scale")), compare=rows.laws(values, ("x",))),
    values=Values(fixup=rows.arranged, runtime_options=("seed",)),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong=rows.wrong(_wrong, "tail"),
)
