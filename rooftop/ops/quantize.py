"""Quantise floats to codes of 4, 6 or 8 bits (int8, int4, fp8, fp4, mx, nvfp4), with a scale for each row, column, group or block.

    scale = max|x| / max code        in float32, IEEE division, over the finite x that share it; then rounded to the scale's type
    code  = encode(x / scale)        in float32, IEEE division, then rooftop/formats/number_formats.py

Asymmetric (ints): scale = max(x, 0) / n - min(x, 0) / n with n = 2^bits - 1, zero = least code - round(min(x, 0) / scale), code = round(x /
scale) + zero.

The division is IEEE's, not a product with 1 / scale: what is a multiple of the scale then has its own code in every rounding. Kernels pay
two fused multiply-adds for it: with r = 1 / s rounded to nearest and q = x r, fma(fma(-q, s, x), r, q) is x / s rounded to nearest
(Markstein 1990, "Computation of elementary functions on the IBM RISC System/6000 processor"), while nothing underflows.

Sources: Jacob et al. 2018 (arXiv 1712.05877); OCP Microscaling Formats 1.0; Gupta et al. 2015, stochastic rounding (arXiv 1502.02551)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number, whole_seed
from rooftop.core.op import Calls, Judging, Op, Sizes, Tolerance, Values, each_element
from rooftop.core.spec import Meta, Problem, Work
from rooftop.formats import random_bits
from rooftop.formats.number_formats import (
    ELEMENTS,
    ROUNDINGS,
    SCALES,
    Format,
    divided,
    effective,
    encode,
    format_of,
    load_scale,
    pack,
    scale_of,
    store_scale,
)
from rooftop.ops import tensor_scale as of_tensor
from rooftop.ops._peers import compiled
from rooftop.ops._quantize_cases import cases, one
from rooftop.ops._quantized import SCALE_META, scale_shape, tensor_scale
from rooftop.ops._quantized import canonical as _canonical
from rooftop.ops._quantized_peers import torchao
from rooftop.ops._randomness import unless_drawn

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.number_formats import Format
    from rooftop.formats.quantized import Quantized

GRANULARITIES = ("tensor", "row", "column", "group", "block")


def quantize(
    x: Tensor,
    format: str | Format = "int8",
    *,
    granularity: str | None = None,
    group: int = 128,
    dim: int = -1,
    block: tuple[int, int] = (128, 128),
    symmetric: bool = True,
    rounding: str = "nearest",
    scale_dtype: str | None = None,
    over: Tensor | float | None = None,
    seed: int = 0,
    subtract: bool = False,
    implementation: str | None = None,
) -> Quantized:
    """The codes of `x` with their scales: `rooftop.quantize(x, "int8", granularity="row").dequantize()` approximates `x`.

    Args:
        x: float32, float16 or bfloat16, at least one dimension, any strides.
        format: a name of `rooftop.quant.FORMATS`: int8, uint8, int4, uint4, e4m3, e5m2 (fp8), e3m2, e2m3 (fp6), e2m1 (fp4), mxfp8_e4m3,
            mxfp8_e5m2, mxfp6_e3m2, mxfp6_e2m3, mxfp4, nvfp4; or an alias ("fp8", "mxfp8", ...).
        granularity: the elements that share a scale: "tensor", "row" (along the last dimension), "column" (one index of the last
            dimension), "group" (`group` consecutive elements along `dim`), "block" (of the last two dimensions). None: "group" if the
            format defines groups (mx, nv), else "row".
        group: 1 or more; 16 to 256 are usual; more than the dimension has: the whole dimension. For mx and nv formats, the group of the
            format.
        symmetric: False, for integer formats only: with zero points.
        rounding: "nearest" (ties to even), "stochastic" (unbiased), "zero" (truncation), "dither" (adds noise of one step's width, then
            rounds to nearest; the step of a float format is the gap that contains the element, so that the codes are the stochastic ones).
        scale_dtype: "f32", "f16", "bf16", "e8m0" (a power of two), "e4m3". None: the format's own, float32 where it has none.
        over: nvfp4: the tensor's scale, finite and above zero: a number, or a float32 tensor of one element on the device of `x`. None:
            max|x| / (448 * 6).
        seed: of the random bits; its low 32 bits and an element's row-major index decide them, the same on every device.
        subtract: with "dither": `dequantize` subtracts the noise.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    NaN becomes NaN in fp8 and 0 in other formats; infinities stay infinite in e5m2 and become the largest code in other formats. Neither
    affects the scale. A group of zeros has the smallest possible scale. A scale that would round past the largest finite number of its type
    (65504 for f16, 448 for e4m3) is limited to that number, and elements that are too large for it saturate. `dequantize` may give
    infinities for the largest elements; its docstring says when.

    Returns a `rooftop.quant.Quantized`. No gradient flows through it; `rooftop.quant.fake_quantize` has the straight-through gradient.

    Raises TypeError for other dtypes, ValueError for an unknown format, granularity, rounding or scale type, or a combination that is not
    supported, IndexError for a `dim` out of range."""
    import torch

    from rooftop.formats.quantized import Quantized

    f = format_of(format)
    _validate(x, f, symmetric, rounding, subtract)
    whole_seed("quantize", seed)
    kind = scale_dtype or f.scale
    if kind not in SCALES:
        raise ValueError(f"quantize: scale_dtype is {scale_dtype!r}; accepted are {', '.join(SCALES)}")
    if f.group and (granularity or "group") != "group":
        raise ValueError(f"quantize: {f.name} has groups of {f.group}; granularity is {granularity!r}, it must be 'group' or None")
    if f.group and kind != f.scale:
        raise ValueError(f"quantize: {f.name} has scales of {f.scale}, not {kind}")
    (a, r), rows, columns, shared = _geometry(
        x, granularity or ("group" if f.group else "row"), f.group or group, dim, block, bool(f.group)
    )
    shape = tuple(x.shape)
    seen = x.detach().reshape(prod(shape[:a]), prod(shape[a:r]), prod(shape[r:]))
    scaled = of_tensor.tensor_scale(seen) if f.kind == "nv" and over is None else tensor_scale("quantize", over, f, x)
    codes, scale, zero = OP(
        seen, None if scaled is None else scaled.reshape(1), rows, columns, f.element, kind, symmetric, rounding, random_bits.signed(seed),
        implementation=implementation,
    )
    codes = codes.reshape(*(shape if f.bits == 8 else (*shape[:r], f.bytes(prod(shape[r:])))))
    codes = codes.view(torch.int8) if f.element == "int8" else codes.view(torch_dtype(f.element)) if f.bits == 8 and f.exponent else codes
    scale = scale.reshape(shared)
    return Quantized(
        codes, scale.view(torch_dtype(kind)) if kind in ("e8m0", "e4m3") else scale,
        None if symmetric else (zero.view(torch.int8) if f.signed else zero).reshape(shared),
        scaled, f.name, shape, str(x.dtype).removeprefix("torch."), rows, columns, (a, r), kind, seed if subtract else None,
    )


def torch_dtype(name: str) -> Any:
    """torch's name of an 8-bit float."""
    import torch

    return {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e8m0": torch.float8_e8m0fnu}[name]


def _validate(x: Tensor, f: Format, symmetric: bool, rounding: str, subtract: bool) -> None:
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"quantize: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"quantize: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if x.dim() == 0:
        raise ValueError("quantize: x has no dimensions; it must have at least one")
    if rounding not in ROUNDINGS:
        raise ValueError(f"quantize: rounding is {rounding!r}; accepted are {', '.join(ROUNDINGS)}")
    if not symmetric and f.exponent:
        raise ValueError(f"quantize: symmetric=False is for int8, uint8, int4 and uint4; {f.name} has no zero points")
    if subtract and rounding != "dither":
        raise ValueError(f"quantize: subtract=True takes off a dither; rounding is {rounding!r}")


def _geometry(
    x: Tensor, granularity: str, group: int, dim: int, block: tuple[int, int], fixed: bool
) -> tuple[tuple[int, int], int, int, tuple[int, ...]]:
    """Where the dimensions divide into [A, R, C], the rows and columns that share a scale, and the shape of the scales. A group or block
    larger than the dimension is the dimension, unless it is `fixed` by the format."""
    shape, rank = tuple(x.shape), x.dim()
    tall, wide = prod(shape[:-1]), shape[-1]
    if granularity not in GRANULARITIES:
        raise ValueError(f"quantize: granularity is {granularity!r}; accepted are {', '.join(GRANULARITIES)}")
    if granularity == "tensor":
        return (0, rank - 1), max(tall, 1), max(wide, 1), () if x.numel() else (0,)
    if granularity == "row":
        return (0, rank - 1), 1, max(wide, 1), shape[:-1] if wide else (0,)
    if granularity == "column":
        return (0, rank - 1), max(tall, 1), 1, shape[-1:] if tall else (0,)
    if granularity == "block":
        if not isinstance(block, Sequence) or isinstance(block, str):
            raise TypeError(f"quantize: block is {block!r}, a {type(block).__name__}; it must be two whole numbers of at least 1")
        for n in block:
            number("quantize", "block", n, "two whole numbers of at least 1", whole=True)
        if rank < 2 or len(block) != 2 or min(block) < 1:
            raise ValueError(
                f"quantize: a block is two numbers of at least 1, of two dimensions or more; it is {block}, x has {rank} dimensions"
            )
        down, across = min(block[0], max(shape[-2], 1)), min(block[1], max(wide, 1))
        return (rank - 2, rank - 1), down, across, (*shape[:-2], -(-shape[-2] // down), -(-wide // across))
    number("quantize", "group", group, "a whole number of at least 1", whole=True)
    number("quantize", "dim", dim, "a whole number", whole=True)
    if isinstance(group, bool) or group < 1:
        raise ValueError(f"quantize: group is {group}; it must be a whole number of at least 1")
    if not -rank <= dim < rank:
        raise IndexError(f"quantize: dim is {dim}; x has {rank} dimensions, so it must be {-rank} to {rank - 1}")
    d = dim % rank
    group = group if fixed else min(group, max(shape[d], 1))
    shared = (*shape[:d], -(-shape[d] // group), *shape[d + 1 :])
    return ((0, rank - 1), 1, group, shared) if d == rank - 1 else ((d, d + 1), group, 1, shared)


def _tiles(x: Tensor, rows: int, columns: int) -> Tensor:
    """[A, R, C] as [A, groups down, rows, groups across, columns], filled up with zeros."""
    import torch

    padded = torch.nn.functional.pad(x, (0, -x.shape[2] % columns, 0, -x.shape[1] % rows))
    return padded.unflatten(2, (padded.shape[2] // columns, columns)).unflatten(1, (padded.shape[1] // rows, rows))


def reference(
    x: Tensor, over: Tensor | None, rows: int, columns: int, format: str, scales: str, symmetric: bool, rounding: str, seed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    import torch

    f = ELEMENTS[format]
    v = x.float()
    a, r, c = v.shape
    zero = None
    zeros = v.new_zeros(())
    tiles = _tiles(v.where(v.isfinite(), zeros), rows, columns)
    if 0 in tiles.shape:
        down, across = tiles.shape[1], tiles.shape[3]
        stored = store_scale(v.new_ones(a, down, across), scales)
        return (
            v.new_zeros(a, r, f.bytes(c), dtype=torch.uint8), stored, None if symmetric
            else stored.new_zeros(a, down, across, dtype=torch.uint8)
        )
    if symmetric:
        over = None if over is None else over.float()
        stored = scale_of(tiles.abs().amax((2, 4)), format, scales, over)
        s = effective(load_scale(stored, scales), over)
    else:
        least, most, n = tiles.amin((2, 4)).clamp(max=0), tiles.amax((2, 4)).clamp(min=0), 2**f.bits - 1
        stored = store_scale(divided(most, n) - divided(least, n), scales)
        s = load_scale(stored, scales)
        low = -(2 ** (f.bits - 1)) if f.signed else 0
        zero = (low - (least / s).clamp(-n - 1, n + 1).round()).clamp(low, low + n).to(torch.int64)

    def spread(t: Tensor) -> Tensor:
        return t.repeat_interleave(rows, 1)[:, :r].repeat_interleave(columns, 2)[:, :, :c]

    random = None
    if rounding in ("stochastic", "dither"):
        random = random_bits.halves(seed, v.numel(), v.device).view(v.shape)
    codes = pack(encode(v / spread(s), format, rounding, random, None if zero is None else spread(zero)), f.bits)
    return codes, stored, None if zero is None else (zero & 0xFF).to(torch.uint8)


def outputs(x: Meta, rows: int, columns: int, format: str, scales: str, symmetric: bool, **_: Any) -> dict[str, Meta | None]:
    shared = scale_shape(x.shape, rows, columns)
    return {
        "codes": Meta((x.shape[0], x.shape[1], ELEMENTS[format].bytes(x.shape[2])), "u8"),
        "scale": Meta(shared, SCALE_META[scales]),
        "zero": None if symmetric else Meta(shared, "u8"),
    }


def canonical(p: Problem) -> Problem | None:
    return _canonical(p, "x")


def work(p: Problem) -> Work:
    """Read x once, write codes, scales and zero points once."""
    n = p["x"].numel
    return Work(p["x"].nbytes, sum(m.nbytes for k in ("codes", "scale", "zero") if (m := p.get(k)) is not None), {"fma32": 3.0 * n})


def _plain(
    x: Tensor, over: Tensor | None, rows: int, columns: int, format: str, scales: str, symmetric: bool, rounding: str, seed: int
) -> tuple[Tensor, Tensor, None]:
    """As one writes it in torch, for finite input: 8 bits, symmetric, float32 scales, nearest."""
    import torch

    f = ELEMENTS[format]
    if f.bits != 8 or not f.signed or not symmetric or scales != "f32" or rounding != "nearest":
        raise ValueError("plain torch: symmetric int8 and fp8, float32 scales, nearest")
    a, r, c = x.shape
    if r % rows or c % columns:
        raise ValueError("plain torch: whole groups alone")
    tiles = x.view(a, r // rows, rows, c // columns, columns).float()
    scale = divided(tiles.abs().amax((2, 4), keepdim=True), f.max).clamp(min=2.0**-126)
    v = (tiles / scale).clamp(-f.max, f.max)
    codes = v.round().to(torch.int8) if format == "int8" else v.to(torch.float8_e4m3fn if format == "e4m3" else torch.float8_e5m2)
    return codes.view(torch.uint8).view(a, r, c), scale.view(a, r // rows, c // columns), None


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """The tensor's scale from the tensor."""
    return {} if tensors.get("over") is None else {"over": of_tensor.reference(tensors["x"], of_tensor.NVFP4)}


def _changed(change: str) -> Callable[..., Any]:
    def run(
        x: Tensor, over: Tensor | None, rows: int, columns: int, format: str, scales: str, symmetric: bool, rounding: str, seed: int
    ) -> Any:
        if change == "seed":
            seed += 1
        if change == "rounding":
            rounding = "zero" if rounding == "nearest" else "nearest"
        if change == "last":
            codes, scale, zero = reference(x, over, rows, columns, format, scales, symmetric, rounding, seed)
            codes.reshape(-1)[-1:] ^= 1
            return codes, scale, zero
        if change == "tail":  # the last columns have no say
            short = x.clone()
            short[..., x.shape[-1] // 4 * 4 :] = 0
            short[..., -1:] = 0
            return reference(short, over, rows, columns, format, scales, symmetric, rounding, seed)
        if change == "scale":
            codes, scale, zero = reference(x, over, rows, columns, format, scales, symmetric, rounding, seed)
            return codes, (scale * 127 / 128 if scale.is_floating_point() else scale + 1), zero
        return reference(x.nan_to_num(0.0, 0.0, 0.0), over, rows, columns, format, scales, symmetric, rounding, seed)

    return run


OP = Op(
    reference,
    calls=Calls(objects=True), outputs=outputs,
    judging=Judging(rows=unless_drawn(each_element)),
    canonical=canonical,
    cases=cases(),
    swept=Sizes(
        lambda dtype, rows, columns: one("", "", (1, rows, columns), (1, columns), "int8", dtype).inputs,
        {"rows": (1, 1 << 26), "columns": (32, 1 << 22)}, rows="rows", models={"columns": "inner"}, axis="columns",
    ),
    work=work,
    tolerance={"codes": Tolerance(exact=True), "scale": Tolerance(exact=True), "zero": Tolerance(exact=True)},
    values=Values(runtime_options=("seed",), fixup=fixup),
    peers={"torch": lambda: _plain, "torch.compile": compiled(_plain), "torchao": torchao},
    wrong={
        "another seed": _changed("seed"),
        "another rounding": _changed("rounding"),
        "last code wrong": _changed("last"),
        "last columns left out": _changed("tail"),
        "scale by a power of two more": _changed("scale"),
        "NaN and infinities lost": _changed("nan"),
    },
)
