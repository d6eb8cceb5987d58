"""Matrix product with a weight of 8, 6, 4 or 2 bits (W8A16, W4A16): a linear layer whose weight stays quantised.

    out[m, n] = x_scale[m] · Σ_k x[m, k] · (u[n, k] - zero[n, g]) · scale[n, g] + bias[n],   g = k // group

Floats have decode(code) for u and no zero; x_scale is there where x is codes. rooftop/formats/packed.py says how the weight lies in memory:
one way for every kernel and every number of rows.

Sources: Frantar et al., "GPTQ" (arXiv 2210.17323); Frantar et al., "MARLIN" (arXiv 2408.11743): weights stored in the order of the tensor
core's fragments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values, first_of
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.ops._quantized_peers import gemlite, humming

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.packed import PackedWeight
    from rooftop.formats.quantized import Quantized

BITS: Mapping[str, int] = {"int8": 8, "int4": 4, "int2": 2, "e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4}
LARGEST: Mapping[str, float] = {"int8": 127, "int4": 7, "int2": 1, "e4m3": 448, "e5m2": 57344, "e3m2": 28, "e2m3": 7.5, "e2m1": 6}
ACTIVATIONS = ("int8", "fp8")


def quantized_matmul(
    x: Tensor, weight: PackedWeight | Quantized, bias: Tensor | None = None, *, activations: str | None = None,
    implementation: str | None = None
) -> Tensor:
    """x times the transposed weight, plus bias: `torch.nn.functional.linear` with a weight in few bits.

    Args:
        x: [..., K], bfloat16 or float16, or float32 (only the reference supports it).
        weight: `rooftop.quant.pack_weight(...)`, [N, K] in the packing that all kernels use. With `activations` also a `Quantized` [N, K]
            by rows, symmetric, int8 for "int8" or e4m3 for "fp8".
        bias: [N] in the dtype of `x`, or None.
        activations: None multiplies x in its dtype, sums in float32 and rounds once. "int8" and "fp8" (e4m3) first quantise each row of x
            by its largest magnitude and multiply the codes; the sums are multiplied by the row's scale in float32. With a `Quantized` this
            is a product of 8-bit codes (`rooftop.scaled_matmul`). With a packed weight, whose groups have their own scales, the codes are
            multiplied in 16 bits, which represent them exactly. No gradient flows through the codes.
        implementation: name of a kernel (`"mma__cuda_sm80"`), which runs or raises; for packed weights only. None selects the best one that
            supports the input.

    Returns [..., N] in the dtype of `x`. Gradients flow to `x` and `bias`; the weight has none. The order of the sums depends only on
    shapes and the card.

    Raises TypeError for other dtypes and for a weight that is neither; ValueError for shapes that do not fit, a packed weight whose buffers
    do not match its shape and format, an activation format that the weight does not support, and tensors on different devices."""
    _validate(x, weight, bias, activations)
    rows, (n, k) = x.reshape(-1, x.shape[-1]), weight.shape
    from rooftop.formats.quantized import Quantized

    if isinstance(weight, Quantized):
        if implementation is not None:
            raise ValueError(
                f"quantized_matmul: implementation={implementation!r} is for packed weights; scaled_matmul takes the product of 8-bit codes"
            )
        return _eight(rows, weight, bias, str(activations)).reshape(*x.shape[:-1], n)
    w: Any = weight
    rows, of_rows = (rows, None) if activations is None else _coded(rows, activations)
    found = OP(rows, w.codes, w.scale, w.zero, of_rows, bias, n, k, w.group, w.format, w.scale_dtype, implementation=implementation)
    return found.reshape(*x.shape[:-1], n)


def _validate(x: Tensor, weight: Any, bias: Tensor | None, activations: str | None) -> None:
    import torch

    from rooftop.formats.packed import PackedWeight
    from rooftop.formats.quantized import Quantized

    floats = (torch.bfloat16, torch.float16, torch.float32)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"quantized_matmul: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in floats:
        raise TypeError(f"quantized_matmul: x is {x.dtype}; accepted are {', '.join(map(str, floats))}")
    if activations is not None and activations not in ACTIVATIONS:
        raise ValueError(f"quantized_matmul: activations is {activations!r}; accepted are None, {', '.join(map(repr, ACTIVATIONS))}")
    if not isinstance(weight, (PackedWeight, Quantized) if activations else PackedWeight):
        more = " or a Quantized" if activations else ""
        raise TypeError(
            f"quantized_matmul: weight is a {type(weight).__name__}; it must be a rooftop.quant.PackedWeight (pack_weight makes one){more}"
        )
    weight.verify()
    if isinstance(weight, Quantized):
        rows = len(weight.shape) == 2 and weight.split == (0, 1) and weight.rows == 1 and weight.columns >= weight.shape[1]
        wanted = "int8" if activations == "int8" else "e4m3"
        if weight.format != wanted or weight.zero is not None or not rows or weight.scale.dtype != torch.float32 or weight.seed is not None:
            given = f"{weight.format} of {tuple(weight.shape)} by {weight.rows} x {weight.columns}, scales {weight.scale.dtype}"
            takes = f"takes a symmetric {wanted} weight [N, K] by rows with float32 scales"
            raise ValueError(f"quantized_matmul: activations={activations!r} {takes}; given {given}")
    n, k = weight.shape
    if x.dim() == 0 or x.shape[-1] != k:
        raise ValueError(f"quantized_matmul: x is {tuple(x.shape)}; the weight is {(n, k)}, so it must be [..., {k}]")
    if weight.device != x.device:
        raise ValueError(f"quantized_matmul: x lies on {x.device} and weight on {weight.device}; they must be on one device")
    if bias is not None:
        if not isinstance(bias, torch.Tensor) or bias.dtype != x.dtype:
            given = bias.dtype if isinstance(bias, torch.Tensor) else type(bias).__name__
            raise TypeError(f"quantized_matmul: bias is {given}; it must be a tensor of {x.dtype}")
        if tuple(bias.shape) != (n,):
            raise ValueError(f"quantized_matmul: bias is {tuple(bias.shape)}; it must be {(n,)}")
        if bias.device != x.device:
            raise ValueError(f"quantized_matmul: x lies on {x.device} and bias on {bias.device}; they must be on one device")


def _coded(rows: Tensor, activations: str) -> tuple[Tensor, Tensor]:
    """The codes of each row in the dtype of `rows`, which holds them exactly, and the rows' scales in float32."""
    import torch

    from rooftop.ops.quantize import quantize

    if rows.shape[0] == 0:
        return rows, torch.ones(0, device=rows.device)
    q = quantize(rows.detach(), "int8" if activations == "int8" else "e4m3", granularity="row")
    return q.codes.to(rows.dtype), q.scale.reshape(-1)


def _eight(rows: Tensor, weight: Any, bias: Tensor | None, activations: str) -> Tensor:
    """Codes of 8 bits on both sides: one scale a row of x, one a row of the weight."""
    from rooftop.ops.quantize import quantize
    from rooftop.ops.scaled_matmul import scaled_matmul

    n = weight.shape[0]
    if rows.shape[0] == 0:
        return rows.new_empty(0, n)
    q = quantize(rows, "int8" if activations == "int8" else "e4m3", granularity="row")
    return scaled_matmul(q.codes, weight.codes.t(), q.scale.reshape(-1), weight.scale.reshape(-1), bias=bias, out_dtype=rows.dtype)


def reference(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, x_scale: Tensor | None, bias: Tensor | None, n: int, k: int, group: int,
    format: str, scales: str,
) -> Tensor:
    from rooftop.formats.packed import values

    out = x @ values(codes, scale, zero, n, k, group, format, scales, x.dtype).t()
    out = out if x_scale is None else out * x_scale[:, None]
    return out if bias is None else out + bias


def same(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, x_scale: Tensor | None, bias: Tensor | None, n: int, k: int, group: int,
    format: str, scales: str,
) -> Tensor:
    """The weight dequantised to the dtype of x, then the product that cuBLAS makes: summed in float32 and rounded once."""
    import torch

    from rooftop.formats.packed import values

    w = values(codes, scale, zero, n, k, group, format, scales, torch.float32).to(x.dtype)
    out = x.float() @ w.float().t()
    out = out if x_scale is None else out * x_scale[:, None]
    return (out if bias is None else out + bias.float()).to(x.dtype)


def backward(
    dout: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, x_scale: Tensor | None, n: int, k: int, group: int, format: str,
    scales: str
) -> tuple[Tensor, Tensor]:
    """dx = x_scale · dout W, with the weight dequantised; the sum of dout for the bias."""
    import torch

    from rooftop.formats.packed import values

    kind = torch.float64 if dout.dtype == torch.float64 else torch.float32
    through = dout if x_scale is None else (dout * x_scale[:, None]).to(dout.dtype)
    return through @ values(codes, scale, zero, n, k, group, format, scales, kind).to(dout.dtype), dout.sum(0)


def outputs(x: Meta, n: int, **_: Any) -> dict[str, Meta]:
    return {"out": Meta((x.shape[0], n), x.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Rows of x of neighbours; all else contiguous."""
    x = p["x"]
    rows = x.shape[1] == 1 or x.strides[1] == 1
    return p if rows and x.strides[0] >= 0 and all(m is None or m.contiguous for name, m in p.tensors if name != "x") else None


def work(p: Problem) -> Work:
    """Each operand read once, codes as they are packed; the result written once."""
    x, out = p["x"], p["out"]
    unit = {"bf16": "tensor-bf16", "f16": "tensor-f16"}.get(x.dtype, "fma32")
    return Work(
        sum(m.nbytes for name, m in p.tensors if m is not None and name != "out"), out.nbytes, {unit: float(x.numel) * out.shape[1]}
    )


def _fitting(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    """Every code (of fp8 the finite ones), what lies past N and K included; scales that make results of about 1."""
    import torch

    f, device = str(options["format"]), tensors["codes"].device

    def whole(t: Any, least: int, past: int) -> Any:
        return torch.randint(least, past, t.shape, generator=generator, device=device, dtype=torch.int32).to(torch.uint8)

    codes = whole(tensors["codes"], 0, 256)
    if f == "e4m3":
        codes = torch.where((codes & 0x7F) == 0x7F, codes - 1, codes)
    if f == "e5m2":
        codes = torch.where((codes & 0x7C) == 0x7C, codes & 0x83, codes)
    size = LARGEST[f] * max(1, int(options["k"])) ** 0.5 / 4
    scale = tensors["scale"]
    if scale.dtype == torch.uint8:
        top = 127 - int(torch.tensor(size).log2())
        found = {"codes": codes, "scale": whole(scale, top - 3, top + 1)}
    else:
        found = {"codes": codes, "scale": ((torch.rand(scale.shape, generator=generator, device=device) + 0.5) / size).to(scale.dtype)}
    if (of_rows := tensors["x_scale"]) is not None:
        found["x_scale"] = torch.rand(of_rows.shape, generator=generator, device=device, dtype=of_rows.dtype) * 0.1 + 0.01
    if (zero := tensors["zero"]) is not None:
        most = 1 << BITS[f]
        drawn = torch.rand(zero.shape, generator=generator, device=device) * (most - 1)
        found["zero"] = whole(zero, 0, most) if zero.dtype == torch.uint8 else drawn.to(zero.dtype)
    return found


def _torch() -> Callable[..., Tensor]:
    """What one would run without quantising: cuBLAS with the weight in 16 bits, dequantised outside what is timed."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    from rooftop.formats.packed import values

    held: Any = WeakTensorKeyDictionary()

    def cublas(
        x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, x_scale: Tensor | None, bias: Tensor | None, n: int, k: int,
        group: int, format: str, scales: str,
    ) -> Tensor:
        if x_scale is not None:
            raise ValueError("cuBLAS multiplies no scale of a row to its sums")
        if codes not in held:
            held[codes] = values(codes, scale, zero, n, k, group, format, scales, torch.float32).to(x.dtype)
        return torch.nn.functional.linear(x, held[codes], bias)

    return cublas


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        given = dict(zip(("x", "codes", "scale", "zero", "x_scale", "bias", "n", "k", "group", "format", "scales"), args, strict=True))
        change(given)
        return reference(**given)

    return run


def _swapped_halves(given: dict[str, Any]) -> None:
    """The two codes of a pair change places."""
    given["codes"] = given["codes"].unflatten(-1, (-1, 2, 2)).flip(-2).flatten(-3)


def _next_group(given: dict[str, Any]) -> None:
    given["scale"] = given["scale"].roll(1, 1) if given["scale"].shape[1] > 1 else given["scale"].roll(1, 2)


def _shifted_zero(given: dict[str, Any]) -> None:
    if given["format"].startswith("int"):
        given["zero"] = None if given["zero"] is not None else (given["scale"][..., :1] * 0 + 1).expand_as(given["scale"])
    else:
        given["scale"] = given["scale"][:, :, :1].expand_as(given["scale"])


def _tail(given: dict[str, Any]) -> None:
    x = given["x"].clone()
    x[:, -1:] = 0
    given["x"] = x


def _given(
    m: int, n: int, k: int, format: str = "int4", group: int = 0, dtype: str = "bf16", scales: str = "", zero: str = "", bias: bool = False,
    x: str = "contiguous", coded: bool = False,
) -> dict[str, Any]:
    high, wide, group, scales = -(-n // 16), -(-k // 128), group or k, scales or dtype
    shared = (high, -(-k // group), 16)
    return {
        "x": Input((m, k), dtype, layout=x), "codes": Input((high, wide, 256 * BITS[format]), "u8"),
        "scale": Input(shared, "u8" if scales == "e8m0" else scales), "zero": Input(shared, zero) if zero else None,
        "x_scale": Input((m,), "f32") if coded else None, "bias": Input((n,), dtype) if bias else None, "n": n, "k": k,
        "group": group, "format": format, "scales": scales,
    }


def _cases() -> list[Case]:
    bench = [
        case(f"int4 g128 {m}x{n}x{k}", tags="bench model", **_given(m, n, k, "int4", 128))
        for n, k in ((8192, 8192), (14336, 4096)) for m in (1, 4, 16, 64, 256, 1024, 4096)
    ]
    bench += [
        case(f"{name} {m}x8192x8192", tags="bench", **_given(m, 8192, 8192, f, g, scales=s))
        for name, f, g, s in (
            ("int8", "int8", 0, ""), ("int2 g64", "int2", 64, ""), ("e4m3", "e4m3", 0, ""), ("e2m3 g128", "e2m3", 128, ""),
            ("e2m1 g128", "e2m1", 128, ""), ("mxfp4", "e2m1", 32, "e8m0"), ("mxfp6", "e2m3", 32, "e8m0"), ("mxfp8", "e4m3", 32, "e8m0"),
        )
        for m in (1, 256, 4096)
    ]
    bench.append(case("int4 g128 zero points 1x8192x8192", tags="bench", **_given(1, 8192, 8192, "int4", 128, zero="u8")))
    edge = []
    for f in BITS:
        for dtype in ("bf16", "f16"):
            edge += [
                case(f"{f} rows", tags="edge", **_given(3, 40, 256, f, 0, dtype)),
                case(f"{f} groups of 64, tail", tags="edge", **_given(11, 37, 192, f, 64, dtype, bias=True)),
                case(f"{f} groups of 128", tags="edge", **_given(17, 64, 384, f, 128, dtype, "f32")),
            ]
        edge += [
            case(f"{f} e8m0", tags="edge", **_given(2, 33, 160, f, 32, "bf16", "e8m0")),
            case(f"{f} odd K", tags="edge", **_given(9, 30, 77, f, 0, "bf16", "f32")),
        ]
        if f.startswith("int"):
            edge += [
                case(f"{f} zero points, {what}", tags="edge", **_given(5, 48, 256, f, 32, dtype, zero=what))
                for dtype, what in (("bf16", "u8"), ("bf16", "bf16"), ("f16", "f16"))
            ]
    shapes = {
        "one element": (1, 1, 1, 0), "one row": (1, 48, 1024, 128), "two rows": (2, 48, 640, 128), "four rows": (4, 80, 256, 64),
        "eight rows": (8, 16, 512, 32), "33 rows": (33, 70, 384, 128), "64 rows": (64, 96, 256, 64), "65 rows": (65, 40, 256, 64),
        "130 rows": (130, 150, 256, 128), "deep": (6, 24, 4096, 256), "one group": (7, 20, 64, 64), "one output": (20, 1, 128, 32),
        "no rows": (0, 48, 128, 128),
    }
    edge += [
        case(f"int4 {name}", tags="edge", **_given(m, n, k, "int4", g, dtype, bias=dtype == "f16"))
        for name, (m, n, k, g) in shapes.items() for dtype in ("bf16", "f16")
    ]
    edge += [
        case("int4 zero points, 70 rows", tags="edge", **_given(70, 40, 256, "int4", 128, zero="u8")),
        case("int8 zero points, 40 rows", tags="edge", **_given(40, 40, 256, "int8", 32, "f16", zero="f16", bias=True)),
    ]
    edge += [
        case(f"int4 x {layout}", tags="edge", **_given(7, 48, 256, "int4", 128, x=layout))
        for layout in ("padded", "sliced", "offset", "strided", "transposed", "expanded")
    ]
    edge += [
        case(f"int4 codes of {m} rows", tags="edge", **_given(m, 40, 256, "int4", 128, dtype, bias=m > 9, coded=True))
        for m in (1, 9, 40, 130) for dtype in ("bf16", "f16")
    ]
    edge.append(case("e2m1 codes of 20 rows, by channel", tags="edge", **_given(20, 48, 256, "e2m1", 0, scales="f32", coded=True)))
    edge.append(case("int4 codes of 20 rows, deep", tags="edge", **_given(20, 64, 2048, "int4", 128, coded=True)))
    return bench + edge


OP = Op(
    reference,
    calls=Calls(objects=True), outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, M, N, K: _given(M, N, K, "int4", 128, dtype), {"M": (1, 1 << 14), "N": (16, 1 << 17), "K": (128, 1 << 16)},
        models={"N": "inner", "K": "hidden"}, dtypes=("bf16", "f16"), independent="M",
    ),
    work=work,
    tolerance=Tolerance(multiple=2.0),
    grad=Grad(wrt=("x", "bias"), saves=("codes", "scale", "zero", "x_scale"), backward=backward),
    values=Values(fixup=_fitting),
    judging=Judging(same=same, rows=first_of("x", "x_scale", "out")),
    peers={"torch": _torch, "humming": humming, "gemlite": gemlite},
    wrong={
        "pairs of codes swapped": _with(_swapped_halves),
        "scales of the group before": _with(_next_group),
        "zero points lost, scales of the first row": _with(_shifted_zero),
        "last column of x dropped": _with(_tail),
        "bias ignored": _with(lambda given: given.update(bias=None)),
        "scales of rows ignored": _with(lambda given: given.update(x_scale=None)),
    },
)
