"""Rotate groups of elements by a Hadamard matrix, then quantise. Outliers are spread over their group, so the scales become smaller.

    y = x H / sqrt(size) for each `size` neighbours along the last dimension, then as `rooftop.quantize` by rows, or by groups along them

H is Sylvester's: H(1) = 1, H(2 n) = [[H(n), H(n)], [H(n), -H(n)]]. It is computed in float32 by sums and differences at distances 1, 2, 4,
..., each rounded,
and one product with 1 / sqrt(size): so the bits are alike everywhere. H / sqrt(size) is its own inverse: `rooftop.hadamard` rotates back.

Sources: Ashkboos et al. 2024, "QuaRot" (arXiv 2404.00456); Tseng et al. 2024, "QuIP#" (arXiv 2402.04396)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Tolerance, Values, first_of
from rooftop.core.spec import Case, Input, Problem, Work, case
from rooftop.core.sweeps import Sizes
from rooftop.formats import random_bits
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._peers import compiled
from rooftop.ops._randomness import unless_drawn
from rooftop.ops.hadamard import check_size, matrix, rotated

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.number_formats import Format
    from rooftop.formats.quantized import Quantized


def hadamard_quantize(
    x: Tensor,
    size: int = 128,
    format: str | Format = "int8",
    *,
    group: int | None = None,
    rounding: str = "nearest",
    scale_dtype: str | None = None,
    over: Tensor | float | None = None,
    seed: int = 0,
    implementation: str | None = None,
) -> Quantized:
    """`rooftop.quantize(rooftop.hadamard(x, size), format)` in one pass; the rotated values are not rounded to 16 bits in between.
    `rooftop.hadamard(q.dequantize(), size)` approximates `x`.

    Args:
        x: float32, float16 or bfloat16, any strides; its last dimension is a multiple of `size`.
        size: consecutive elements that are rotated together: 16, 32, 64, 128 or 256.
        format: as in `rooftop.quantize`.
        group: consecutive elements along the last dimension that share a scale: 16, 32, 64, 128 or 256. None: the whole row, or that of an
            mx or nv format.
        rounding: "nearest", "stochastic" or "zero".
        scale_dtype, over, seed: as in `rooftop.quantize`; nvfp4 requires `over`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    Returns a `rooftop.quant.Quantized` of the rotated values, of the shape of `x`. No gradient flows through it.

    Raises ValueError for another size or a last dimension that is not a multiple of it, otherwise as `rooftop.quantize`."""
    rows.validate("hadamard_quantize", "x", x)
    check_size("hadamard_quantize", x, size)
    f, kind, columns, scaled = rows.how("hadamard_quantize", x, format, group, rounding, scale_dtype, over, seed)
    codes, scale = OP(
        rows.flat(x), None if scaled is None else scaled.reshape(1), size, columns, f.element, kind, rounding, random_bits.signed(seed),
        implementation=implementation,
    )
    return rows.packaged(codes, scale, scaled, f, kind, tuple(x.shape), x.dtype, columns)


def reference(
    x: Tensor, over: Tensor | None, size: int, group: int, format: str, scales: str, rounding: str, seed: int
) -> tuple[Tensor, Tensor]:
    return rows.quantized(rotated(x.float(), size), over, group, format, scales, rounding, seed)


def work(p: Problem) -> Work:
    """Read x once, write codes and scales."""
    n = p["x"].numel
    return Work(p["x"].nbytes, p["codes"].nbytes + p["scale"].nbytes, {"fma32": (4.0 + int(p.option("size")).bit_length()) * n})


def _eager(
    x: Tensor, over: Tensor | None, size: int, group: int, format: str, scales: str, rounding: str, seed: int
) -> tuple[Tensor, Tensor]:
    """By a product with the matrix, as one writes it in torch."""
    y = (x.unflatten(-1, (-1, size)) @ matrix(size, x)).flatten(-2)
    return rows.plain(y, group, format, scales, rounding)


def _wrong(change: str, x: Tensor, over: Tensor | None, size: int, group: int, format: str, scales: str, rounding: str, seed: int) -> Any:
    if change == "half":
        return reference(x, over, size // 2, group, format, scales, rounding, seed)
    if change == "order":  # rows of the matrix turned round
        return rows.quantized(
            rotated(x.float(), size).unflatten(-1, (-1, size)).flip(-1).flatten(-2), over, group, format, scales, rounding, seed
        )
    return rows.worse(change, reference, (x, over, size, group, format, scales), rounding, seed)


def _cases() -> list[Case]:
    def one(
        name: str, tags: str, shape: tuple[int, int], size: int, d: str = "bf16", fill: str = "normal", layout: str = "contiguous",
        **more: Any
    ) -> Case:
        return case(name, tags=tags, x=Input(shape, d, fill, layout), size=size, **rows.options(**more))

    big = (16384, 8192)
    found = [
        one("size 128 int8 rows 16384x8192", "bench", big, 128, format="int8"),
        one("size 16 int8 rows 16384x8192", "bench", big, 16, format="int8"),
        one("size 256 e4m3 groups of 128 16384x8192", "bench", big, 256, format="e4m3", group=128),
        one("size 32 mxfp4 16384x8192", "bench", big, 32, format="mxfp4"),
    ]
    for size in (16, 32, 64, 128, 256):
        found += [
            one(f"size {size} {format} 5x512", "edge", (5, 512), size, format=format)
            for format in ("int8", "e4m3", "e3m2", "mxfp4", "nvfp4")
        ]
        found += [one(f"size {size} int8 3x{3 * size}", "edge", (3, 3 * size), size, d, format="int8") for d in rows.FLOATS]
    for d in rows.FLOATS:
        found.append(one("int8 rows 3x2560", "edge", (3, 2560), 128, d, format="int8"))
        found.append(one("e4m3 groups of 32", "edge", (3, 640), 64, d, format="e4m3", group=32))
    for rounding in ("stochastic", "zero"):
        found += [
            one(f"{format} {rounding}", "edge", (5, 256), 64, format=format, rounding=rounding) for format in ("int8", "e4m3", "uint4")
        ]
    for fill in ("nan", "inf", "-inf", "-0.0", "tiny", "large", "equal"):
        found += [one(f"{format} {fill}", "edge", (7, 128), 32, fill=fill, format=format) for format in ("int8", "e5m2")]
    # a product with the reciprocal rounds some to the other side
    found.append(one("int8 ties", "edge", (3, 4096), 16, "f32", "ties", format="int8"))
    found.append(one("int8 ties of groups of 256", "edge", (3, 4096), 16, "f32", "ties", format="int8", group=256))
    for layout in ("transposed", "sliced", "padded", "strided", "offset"):
        found.append(one(f"{layout} rows", "edge", (20, 64), 16, layout=layout, format="int8"))
    return [*found, one("no rows", "edge", (0, 64), 64, format="int8"), one("no columns", "edge", (3, 0), 64, format="int8")]


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=rows.row_outputs,
    canonical=rows.canonical("x"),
    cases=_cases(),
    judging=Judging(rows=unless_drawn(first_of())),
    swept=Sizes(
        lambda dtype, rows, groups: {
            "x": Input((rows, 128 * groups), dtype), "size": 128,
            "over": None, "group": 0, "format": "int8", "scales": "f32", "rounding": "nearest", "seed": 7,
        },
        {"rows": (1, 1 << 26), "groups": (1, 1 << 10)}, rows="rows", axis="groups",
    ),
    work=work,
    tolerance={"codes": Tolerance(exact=True), "scale": Tolerance(exact=True)},
    values=Values(fixup=rows.arranged, runtime_options=("seed",)),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong=rows.wrong(_wrong, "half", "order"),
)
