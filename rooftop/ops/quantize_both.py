"""Quantise a matrix along its rows and along its columns, in one read, for training with 8-bit products.

    rows = quantize(x, format, groups along the last dimension),   columns = quantize(xᵀ, format, groups along the last dimension)

What codes and scales are: rooftop/ops/quantize.py. Sources: DeepSeek-AI 2024 (arXiv 2412.19437), section 3.3; OCP Microscaling Formats
1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Tolerance, Values, each_element
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.core.sweeps import Sizes
from rooftop.formats import random_bits
from rooftop.formats.number_formats import FORMATS, format_of
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._peers import compiled
from rooftop.ops._randomness import unless_drawn

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.number_formats import Format
    from rooftop.formats.quantized import Quantized


def quantize_both(
    x: Tensor,
    format: str | Format = "e4m3",
    *,
    group: int | None = None,
    rounding: str = "nearest",
    scale_dtype: str | None = None,
    over: Tensor | float | None = None,
    seed: int = 0,
    implementation: str | None = None,
) -> tuple[Quantized, Quantized]:
    """`rooftop.quantize(x, ...)` and `rooftop.quantize(x.T, ...)` in one read of `x`.

    Args:
        x: float32, float16 or bfloat16, two dimensions, any strides.
        format: as in `rooftop.quantize`.
        group: consecutive elements along a row of x, and of its transpose, that share a scale: 16, 32, 64 or 128. None: 128, or that of an
            mx or nv format.
        rounding: "nearest", "stochastic" or "zero".
        scale_dtype, over, seed: as in `rooftop.quantize`; nvfp4 requires `over`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    Returns two `rooftop.quant.Quantized`: of `x` and of its transpose, each contiguous. No gradient flows through them.

    Raises ValueError for other than two dimensions or another group, otherwise as `rooftop.quantize`."""
    rows.validate("quantize_both", "x", x)
    if x.dim() != 2:
        raise ValueError(f"quantize_both: x has {x.dim()} dimensions; it must have two")
    group = 128 if group is None and not format_of(format).group else group
    f, kind, columns, scaled = rows.how("quantize_both", x, format, group, rounding, scale_dtype, over, seed)
    if columns not in (16, 32, 64, 128):
        raise ValueError(f"quantize_both: group is {group}; accepted are 16, 32, 64, 128")
    found = OP(
        x.detach(), None if scaled is None else scaled.reshape(1), columns, f.element, kind, rounding, random_bits.signed(seed),
        implementation=implementation
    )
    r, c = x.shape
    return (
        rows.packaged(found[0], found[1], scaled, f, kind, (r, c), x.dtype, columns),
        rows.packaged(found[2], found[3], scaled, f, kind, (c, r), x.dtype, columns),
    )


def reference(
    x: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        *rows.quantized(x, over, group, format, scales, rounding, seed),
        *rows.quantized(x.T.contiguous(), over, group, format, scales, rounding, seed),
    )


def outputs(x: Meta, group: int, format: str, scales: str, **_: Any) -> dict[str, Meta | None]:
    turned = rows.row_outputs(Meta((x.shape[1], x.shape[0]), x.dtype), group, format, scales)
    return {**rows.row_outputs(x, group, format, scales), "turned": turned["codes"], "turned_scale": turned["scale"]}


def work(p: Problem) -> Work:
    """Read x once, write both codes and scales."""
    return Work(p["x"].nbytes, sum(p[n].nbytes for n in ("codes", "scale", "turned", "turned_scale")), {"fma32": 6.0 * p["x"].numel})


def _eager(
    x: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    codes, scale = rows.plain(x, group, format, scales, rounding)
    turned, turned_scale = rows.plain(x.T, group, format, scales, rounding)
    return codes, scale, turned, turned_scale


def _wrong(change: str, x: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int) -> Any:
    given = (x, over, group, format, scales)
    found = rows.worse(change, reference, given, rounding, seed)
    if change == "codes of rows twice" and x.shape[0] == x.shape[1]:
        return found[0], found[1], found[0], found[1]
    if change == "scales of columns a little larger":
        return *found[:3], found[3] * 1.01 if found[3].is_floating_point() else found[3] + 1
    return found


def _cases() -> list[Case]:
    def one(
        name: str, tags: str, shape: tuple[int, int], d: str = "bf16", fill: str = "normal", layout: str = "contiguous", **more: Any
    ) -> Case:
        given = {"group": 128, **more}
        return case(name, tags=tags, x=Input(shape, d, fill, layout), **rows.options(**given))

    big = (16384, 8192)
    found = [
        one("e4m3 groups of 128 16384x8192", "bench", big, format="e4m3"),
        one("int8 groups of 128 16384x8192", "bench", big, format="int8"),
        one("mxfp8_e4m3 16384x8192", "bench", big, format="mxfp8_e4m3"),
        one("mxfp4 16384x8192", "bench", big, format="mxfp4"),
    ]
    for format in FORMATS:
        found += [one(f"{format} 64x96", "edge", (64, 96), format=format), one(f"{format} odd 33x77", "edge", (33, 77), format=format)]
    for d in rows.FLOATS:
        found += [one(f"{format} 144x272", "edge", (144, 272), d, format=format) for format in ("int8", "e4m3")]
        found.append(one("square 128x128", "edge", (128, 128), d, format="int8"))
    for group in (16, 32, 64):
        found.append(one(f"int8 groups of {group}", "edge", (160, 144), format="int8", group=group))
        found.append(one(f"e2m3 groups of {group}", "edge", (48, 160), format="e2m3", group=group))
    for rounding in ("stochastic", "zero"):
        found += [one(f"{format} {rounding}", "edge", (48, 136), format=format, rounding=rounding) for format in ("int8", "e4m3", "e2m1")]
    for fill in ("nan", "inf", "-inf rows", "-0.0", "tiny", "large"):
        found += [one(f"{format} {fill}", "edge", (40, 64), fill=fill, format=format) for format in ("int8", "e5m2", "mxfp4")]
    for layout in ("transposed", "sliced", "padded", "strided", "offset"):
        found.append(one(f"{layout} rows", "edge", (24, 64), layout=layout, format="int8"))
    return [*found, one("one element", "edge", (1, 1), format="int8"), one("no rows", "edge", (0, 64), format="int8")]


OP = Op(
    reference,
    calls=Calls(objects=True),
    judging=Judging(rows=unless_drawn(each_element)),
    outputs=outputs,
    canonical=rows.canonical("x"),
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, groups: {
            "x": Input((rows, 128 * groups), dtype),
            "over": None, "group": 128, "format": "e4m3", "scales": "f32", "rounding": "nearest", "seed": 7,
        },
        {"rows": (1, 1 << 26), "groups": (1, 1 << 10)}, rows="rows", axis="groups",
    ),
    work=work,
    tolerance={n: Tolerance(exact=True) for n in ("codes", "scale", "turned", "turned_scale")},
    values=Values(fixup=rows.arranged, runtime_options=("seed",)),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong=rows.wrong(_wrong, "codes of rows twice", "scales of columns a little larger"),
)
