"""SwiGLU (a gated linear unit with SiLU), written as codes and scales.

    y = silu(a) · b in float32, then as `rooftop.quantize` by rows, or by groups along them

Sources: Shazeer 2020 (arXiv 2002.05202); what codes and scales are: rooftop/ops/quantize.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Values, first_of
from rooftop.core.spec import Input, Meta, Problem, Work
from rooftop.core.sweeps import Sizes
from rooftop.formats import random_bits
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._gated import halves
from rooftop.ops._gated import validate as validate_gated
from rooftop.ops._peers import compiled
from rooftop.ops._randomness import unless_drawn

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.number_formats import Format
    from rooftop.formats.quantized import Quantized


def swiglu_quantize(
    a: Tensor,
    b: Tensor | None = None,
    format: str | Format = "int8",
    *,
    group: int | None = None,
    rounding: str = "nearest",
    scale_dtype: str | None = None,
    over: Tensor | float | None = None,
    seed: int = 0,
    implementation: str | None = None,
) -> Quantized:
    """`rooftop.quantize(rooftop.swiglu(a, b), format)` in one pass; y is not rounded to 16 bits in between.

    Args:
        a: the gate: float32, float16 or bfloat16, at least one dimension, any strides.
        b: the values that are gated, of the shape and dtype of `a`. None: `a` holds both, [..., 2 C], the gate first.
        format: as in `rooftop.quantize`.
        group: consecutive elements along the last dimension that share a scale: 16, 32, 64, 128 or 256. None: the whole row, or that of an
            mx or nv format.
        rounding: "nearest", "stochastic" or "zero".
        scale_dtype, over, seed: as in `rooftop.quantize`; nvfp4 requires `over`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    Returns a `rooftop.quant.Quantized` of the shape of y. No gradient flows through it.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not fit, and what `rooftop.quantize` raises for
    the rest."""
    validate_gated("swiglu_quantize", a, b)
    if a.dim() == 0:
        raise ValueError("swiglu_quantize: a has no dimensions; it must have at least one")
    f, kind, columns, scaled = rows.how("swiglu_quantize", a, format, group, rounding, scale_dtype, over, seed)
    gate, value = halves(a, b)
    shape = tuple(gate.shape)
    codes, scale = OP(
        rows.flat(gate), rows.flat(value), None if scaled is None else scaled.reshape(1), columns, f.element, kind, rounding,
        random_bits.signed(seed), implementation=implementation,
    )
    return rows.packaged(codes, scale, scaled, f, kind, shape, a.dtype, columns)


def reference(
    a: Tensor, b: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int
) -> tuple[Tensor, Tensor]:
    return rows.quantized(a * a.sigmoid() * b, over, group, format, scales, rounding, seed)


def values(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    a, b = tensors["a"].double(), tensors["b"].double()
    y = a * a.sigmoid() * b
    return y, y.abs() * (rows.ULPS + a.abs() * 2.0**-22) + 2.0**-126  # the exponential's argument has an error of a · 2^-24


def outputs(a: Meta, group: int, format: str, scales: str, **_: Any) -> dict[str, Meta | None]:
    return rows.row_outputs(a, group, format, scales)


def work(p: Problem) -> Work:
    """Read a and b, write codes and scales."""
    n = p["a"].numel
    return Work(p["a"].nbytes + p["b"].nbytes, p["codes"].nbytes + p["scale"].nbytes, {"fma32": 8.0 * n, "exp": 1.0 * n})


def _eager(
    a: Tensor, b: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int
) -> tuple[Tensor, Tensor]:
    import torch

    return rows.plain(torch.nn.functional.silu(a) * b, group, format, scales, rounding)


def _wrong(change: str, a: Tensor, b: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int) -> Any:
    if change == "sigmoid":
        return rows.quantized(a.sigmoid() * b, over, group, format, scales, rounding, seed)
    return rows.worse(change, reference, (a, b, over, group, format, scales), rounding, seed)


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=rows.canonical("a", "b"),
    cases=rows.cases(lambda shape, d, fill, layout: {"a": Input(shape, d, fill, layout), "b": Input(shape, d, "normal", layout)}),
    swept=Sizes(
        lambda dtype, rows, columns: {
            "a": Input((rows, columns), dtype), "b": Input((rows, columns), dtype),
            "over": None, "group": 0, "format": "int8", "scales": "f32", "rounding": "nearest", "seed": 7,
        },
        {"rows": (1, 1 << 26), "columns": (64, 1 << 17)}, rows="rows", models={"columns": "inner"}, axis="columns",
    ),
    work=work,
    judging=Judging(rows=unless_drawn(first_of("a", "b", "codes", "scale")), compare=rows.laws(values, ("a", "b"))),
    values=Values(fixup=rows.arranged, runtime_options=("seed",)),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong=rows.wrong(_wrong, "sigmoid"),
)
