"""Dequantise codes of 4, 6 or 8 bits with their scales to floats.

    x = (decode(code) - zero) * scale        in float32, rounded once to the dtype of the result

rooftop/formats/number_formats.py says what codes mean and how they lie in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Op, Sizes, Tolerance, Values
from rooftop.core.spec import DTYPES, Case, Input, Meta, Problem, Work, case
from rooftop.formats import random_bits
from rooftop.formats.number_formats import ELEMENTS, FORMATS, decode, effective, load_scale, noise, unpack
from rooftop.ops._peers import compiled
from rooftop.ops._quantized import SCALE_META, scale_shape
from rooftop.ops._quantized import canonical as _canonical

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rooftop.formats.quantized import Quantized


def dequantize(q: Quantized, dtype: torch.dtype | None = None, *, implementation: str | None = None) -> Tensor:
    """The values of `q`, a contiguous tensor.

    Args:
        q: a result of `rooftop.quantize`.
        dtype: float32, float16 or bfloat16; None: the dtype of the tensor that was quantised.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `q`.

    A value is rounded to `dtype` once. If it exceeds the largest finite number of `dtype` (65504 for float16), it becomes infinite. This
    may happen even if the quantised tensor was finite, since a code times its rounded scale may be larger than the original value.

    Raises TypeError for anything but a `Quantized` and for other dtypes, ValueError if codes or scales do not have the sizes that its shape
    requires."""
    import torch

    from rooftop.formats.quantized import Quantized

    if not isinstance(q, Quantized):
        raise TypeError(f"dequantize: q is a {type(q).__name__}; it must be a rooftop.quant.Quantized")
    q.verify()
    wanted = str(q.dtype if dtype is None else dtype).removeprefix("torch.")
    names = {d.torch: n for n, d in DTYPES.items() if n in ("f32", "f16", "bf16")}
    if wanted not in names:
        raise TypeError(f"dequantize: dtype is {dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    f, (outer, tall, wide) = q.kind, q.geometry
    shared = scale_shape((outer, tall, wide), q.rows, q.columns)

    def plain(t: Tensor) -> Tensor:
        return t if t.dtype in (torch.float32, torch.float16, torch.bfloat16) else t.view(torch.uint8)

    found = OP(
        plain(q.codes).reshape(outer, tall, f.bytes(wide)), plain(q.scale).reshape(shared),
        None if q.zero is None else plain(q.zero).reshape(shared), None if q.over is None else q.over.reshape(1), wide, q.rows, q.columns,
        f.element, q.scale_dtype, names[wanted], q.seed is not None, random_bits.signed(q.seed or 0), implementation=implementation,
    )
    return found.reshape(q.shape)


def reference(
    codes: Tensor, scale: Tensor, zero: Tensor | None, over: Tensor | None, wide: int, rows: int, columns: int, format: str, scales: str,
    dtype: str, dither: bool, seed: int,
) -> Tensor:
    import torch

    f = ELEMENTS[format]
    value = unpack(codes, f.bits, wide)
    tall = codes.shape[1]

    def spread(t: Tensor) -> Tensor:
        return t.repeat_interleave(max(rows, 1), 1)[:, :tall].repeat_interleave(max(columns, 1), 2)[:, :, :wide]

    s = load_scale(scale, scales) if scales in ("e8m0", "e4m3") else scale.float()
    s = effective(s, over)
    offset = None if zero is None else spread(zero.to(torch.int32) - ((zero.to(torch.int32) >> 7) << 8 if f.signed else 0))
    v = decode(value, format, offset)
    if dither:
        v = v - noise(value, format, random_bits.halves(seed, v.numel(), v.device).view(v.shape))
    return (v * spread(s)).to(getattr(torch, DTYPES[dtype].torch))


def outputs(codes: Meta, wide: int, dtype: str, **_: Any) -> dict[str, Meta]:
    return {"x": Meta((codes.shape[0], codes.shape[1], wide), dtype)}


def canonical(p: Problem) -> Problem | None:
    return _canonical(p, "x")


def work(p: Problem) -> Work:
    """Read codes, scales and zero points once, write x once."""
    return Work(
        sum(m.nbytes for k in ("codes", "scale", "zero") if (m := p.get(k)) is not None), p["x"].nbytes, {"fma32": float(p["x"].numel)}
    )


def _plain(
    codes: Tensor, scale: Tensor, zero: Tensor | None, over: Tensor | None, wide: int, rows: int, columns: int, format: str, scales: str,
    dtype: str, dither: bool, seed: int,
) -> Tensor:
    """As one writes it in torch: 8 bits, symmetric, float32 scales."""
    import torch

    f = ELEMENTS[format]
    if f.bits != 8 or not f.signed or zero is not None or scales != "f32" or dither:
        raise ValueError("plain torch: symmetric int8 and fp8, float32 scales")
    a, r, c = codes.shape
    if r % rows or c % columns:
        raise ValueError("plain torch: whole groups alone")
    v = codes.view({"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[format])
    tiles = v.view(a, r // rows, rows, c // columns, columns).float() * scale[:, :, None, :, None]
    return tiles.to(getattr(torch, DTYPES[dtype].torch)).view(a, r, c)


def _case(
    name: str, tags: str, shape: tuple[int, int, int], how: tuple[int, int], format: str, dtype: str = "bf16", zeros: bool = False,
    why: str = "", **more: Any
) -> Case:
    f = FORMATS[format]
    shared, scales = scale_shape(shape, *how), str(more.get("scales", f.scale))
    bare = scales in ("e8m0", "e4m3")
    given: dict[str, Any] = {
        "codes": Input((shape[0], shape[1], f.bytes(shape[2])), "u8", "below 256"),
        "scale": Input(shared, SCALE_META[scales], "below 120" if bare else "normal"),
        "zero": Input(shared, "u8", "below 256") if zeros else None, "over": Input((1,), "f32") if f.kind == "nv" else None,
        "wide": shape[2], "rows": how[0], "columns": how[1], "format": f.element, "scales": scales, "dtype": dtype, "dither": False,
        "seed": 7,
    }
    return case(name, tags=tags, why=why, **{**given, **more})


def _of_format(format: str, dtype: str) -> list[Case]:
    f, shape = FORMATS[format], (2, 35, 96)
    ways = {"group": (1, f.group)} if f.group else WAYS
    found = [_case(f"{format} {what} to {dtype}", "edge", shape, how, format, dtype) for what, how in ways.items()]
    return [
        *found,
        _case(f"{format} odd to {dtype}", "edge", (1, 3, 77), (1, f.group or 77), format, dtype),
        _case(f"{format} odd groups to {dtype}", "edge", (3, 2, 101), (1, f.group or 16), format, dtype),
        _case(f"{format} one to {dtype}", "edge", (1, 1, 1), (1, f.group or 1), format, dtype),
        _case(f"{format} empty to {dtype}", "edge", (1, 0, 64), (1, f.group or 64), format, dtype),
        _case(f"{format} long rows to {dtype}", "edge", (1, 3, 5000), (1, f.group or 5000), format, dtype),
    ]


WAYS = {"row": (1, 96), "column": (35, 1), "tensor": (35, 96), "group": (1, 32), "down": (16, 1), "block": (16, 48)}


def _cases() -> list[Case]:
    big = (1, 16384, 8192)
    bench = []
    for format in ("int8", "e4m3", "int4", "e3m2", "mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "nvfp4"):
        f = FORMATS[format]
        ways = {f"groups of {f.group}": (1, f.group)} if f.group else {"rows": (1, 8192), "groups of 128": (1, 128), "blocks": (128, 128)}
        bench += [_case(f"{format} {what} 16384x8192", "bench", big, how, format) for what, how in ways.items()]
    edge = [c for format in FORMATS for dtype in ("f32", "f16", "bf16") for c in _of_format(format, dtype)]
    for format in ("int8", "uint8", "int4", "uint4"):
        edge += [_case(f"{format} zeros {what}", "edge", (2, 35, 96), how, format, zeros=True) for what, how in WAYS.items()]
        edge += [_case(f"{format} dither {n}", "edge", (1, 3, n), (1, n), format, "f32", dither=True) for n in (64, 75)]
    for format in ("e4m3", "e5m2", "e3m2", "e2m1"):
        edge += [_case(f"{format} dither {n}", "edge", (1, 3, n), (1, n), format, "f32", dither=True) for n in (64, 75)]
    for scales in ("f16", "bf16", "e8m0", "e4m3"):
        for format in ("int8", "e4m3", "uint4", "e2m1"):
            edge.append(_case(f"{format} scales {scales}", "edge", (1, 9, 64), (1, 32), format, "f32", scales=scales))
    huge = _case("over 2^31 elements", "edge huge", (1, 65537, 32768), (1, 32768), "int8", why="offsets need 64 bits")
    return [*bench, *edge, huge]


def _changed(change: str) -> Callable[..., Tensor]:
    def run(
        codes: Tensor, scale: Tensor, zero: Tensor | None, over: Tensor | None, wide: int, rows: int, columns: int, format: str,
        scales: str, dtype: str, dither: bool, seed: int,
    ) -> Tensor:
        if change == "codes":
            codes = codes ^ 1
        elif change == "zero":
            zero = None if zero is None else zero + 1
        elif change == "seed":
            seed += 1
        elif change == "scale":
            scale = scale.roll(1, -1).roll(1, -2)
        v = reference(codes, scale, zero, over, wide, rows, columns, format, scales, dtype, dither, seed)
        if change == "last":
            v[..., -1:] = -1.5e-3
        return v

    return run


OP = Op(
    reference,
    calls=Calls(objects=True), outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns: _case("", "", (1, rows, columns), (1, columns), "int8").inputs,
        {"rows": (1, 1 << 26), "columns": (32, 1 << 22)}, rows="rows", models={"columns": "inner"}, dtypes=("u8",), axis="columns",
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(runtime_options=("seed",)),
    peers={"torch": lambda: _plain, "torch.compile": compiled(_plain)},
    wrong={
        "lowest bit of the codes": _changed("codes"),
        "zero points one more": _changed("zero"),
        "another seed": _changed("seed"),
        "the scale of the neighbour": _changed("scale"),
        "last column": _changed("last"),
    },
)
