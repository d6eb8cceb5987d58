"""What ops that write quantised rows have in common: a value is computed in float32 and becomes a code at once, with no rounding to 16 bits
in between.

How such a result is judged. The value differs from that in float64 by a few roundings, so a code may be another one where the value lies
next to the border of two. Scales and codes rise with the value. So the scale must lie between those of the largest value less and more its
error, and the code between those of the value less and more its error, divided by the scale that was written. Where the error crosses no
border, that is equality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number, whole_seed
from rooftop.core.contract import Judged
from rooftop.core.spec import Case, Input, Meta, Problem, case
from rooftop.formats import random_bits
from rooftop.formats.number_formats import ELEMENTS, FORMATS, SCALES, Format, decode, effective, encode, format_of, load_scale, scale_of, unpack
from rooftop.ops._quantized import SCALE_META, groups, tensor_scale

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.quantized import Quantized

FLOATS = ("f32", "f16", "bf16")
ULPS = 2.0**-20  # relative error of a value: sums, a root or an exponential, some products in float32
ROWS = 1024  # judged at once


def how(
    name: str, x: Tensor, format: str | Format, group: int | None, rounding: str, scale_dtype: str | None, over: Tensor | float | None,
    seed: int
) -> tuple[Format, str, int, Tensor | None]:
    """The format, the type of its scales, the elements of a row that share one (0: all of them), and `over` as a tensor. Raises as
    `rooftop.quantize` does."""
    f = format_of(format)
    if rounding not in ("nearest", "stochastic", "zero"):
        raise ValueError(f"{name}: rounding is {rounding!r}; accepted are nearest, stochastic, zero")
    whole_seed(name, seed)
    kind = scale_dtype or f.scale
    if kind not in SCALES:
        raise ValueError(f"{name}: scale_dtype is {scale_dtype!r}; accepted are {', '.join(SCALES)}")
    if f.group and (kind != f.scale or group not in (None, f.group)):
        raise ValueError(f"{name}: {f.name} has groups of {f.group} and scales of {f.scale}; given are group {group} and {kind}")
    columns = f.group or (0 if group is None else group)
    if group is not None:
        number(name, "group", group, "a whole number, a power of two of 16 to 256", whole=True)
    if columns not in (0, 16, 32, 64, 128, 256):
        raise ValueError(f"{name}: group is {group}; accepted are None (a row), 16, 32, 64, 128, 256")
    if f.kind == "nv" and over is None:
        raise ValueError(f"{name}: nvfp4 takes the scale of the tensor as `over`: what is quantised is known in this one pass only")
    return f, kind, columns, tensor_scale(name, over, f, x)


def packaged(
    codes: Tensor, scale: Tensor, over: Tensor | None, f: Format, kind: str, shape: tuple[int, ...], dtype: Any, columns: int
) -> Quantized:
    """Codes [N, bytes] and scales [N, groups] as what `rooftop.quantize` returns."""
    import torch

    from rooftop.formats.quantized import Quantized
    from rooftop.ops.quantize import torch_dtype

    wide = shape[-1]
    codes = codes.reshape(*shape[:-1], f.bytes(wide))
    codes = codes.view(torch.int8) if f.element == "int8" else codes.view(torch_dtype(f.element)) if f.bits == 8 and f.exponent else codes
    shared = (*shape[:-1], scale.shape[-1]) if columns or not wide else shape[:-1]
    scale = scale.reshape(shared)
    scale = scale.view(torch_dtype(kind)) if kind in ("e8m0", "e4m3") else scale
    rank = len(shape)
    name = str(dtype).removeprefix("torch.")
    return Quantized(codes, scale, None, over, f.name, shape, name, 1, columns or max(wide, 1), (0, rank - 1), kind, None)


def quantized(y: Tensor, over: Tensor | None, group: int, format: str, scales: str, rounding: str, seed: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of rows [N, L], as `rooftop.quantize` makes them."""
    from rooftop.ops.quantize import reference

    codes, scale, _ = reference(y.float().unsqueeze(0), over, 1, group or max(y.shape[1], 1), format, scales, True, rounding, seed)
    return codes[0], scale[0]


def row_outputs(x: Meta, group: int, format: str, scales: str, **_: Any) -> dict[str, Meta | None]:
    n, wide = x.shape
    shared = (n, groups(wide, group)) if group else (n, 1 if wide else 0)
    return {"codes": Meta((n, ELEMENTS[format].bytes(wide)), "u8"), "scale": Meta(shared, SCALE_META[scales])}


def canonical(*names: str) -> Callable[[Problem], Problem | None]:
    """None where the elements of a row are not neighbours, or rows lie upon each other."""

    def run(p: Problem) -> Problem | None:
        for name, m in p.tensors:
            if m is None:
                continue
            if name in names:
                if (m.shape[1] > 1 and m.strides[1] != 1) or (m.strides[0] == 0 and m.shape[0] > 1):
                    return None
            elif not m.contiguous:
                return None
        return p

    return run


Values = Callable[[Mapping[str, Any], Mapping[str, Any]], "tuple[Tensor, Tensor]"]


def laws(values: Values, rows: tuple[str, ...]) -> dict[str, Callable[[Judged], str | None]]:
    """The comparisons of `codes` and `scale`. values(tensors, options): the rows in float64 with the size of their error. rows: the inputs
    of one row each."""

    def parts(judged: Judged) -> Any:
        count = judged.got["scale"].shape[0]
        for start in range(0, count, ROWS):
            tensors = {n: t[start : start + ROWS] if n in rows and t is not None else t for n, t in judged.tensors.items()}
            yield start, *values(tensors, judged.options)

    def grouped(t: Tensor, group: int) -> Tensor:
        import torch

        group = group or max(t.shape[1], 1)
        return torch.nn.functional.pad(t, (0, -t.shape[1] % group)).unflatten(1, (-1, group))

    def scale(judged: Judged) -> str | None:
        o = judged.options
        element, kind, group, over = str(o["format"]), str(o["scales"]), int(o["group"]), judged.tensors.get("over")
        for start, y, error in parts(judged):
            got = judged.got["scale"][start : start + ROWS]
            if 0 in y.shape:
                continue
            finite = y.float().isfinite()
            y, error = y.where(finite, y.new_zeros(())), error.where(finite, y.new_zeros(()))
            low = grouped((y.abs() - error).clamp(min=0), group).amax(2).float()
            high = grouped(y.abs() + error, group).amax(2).float()
            found = _loaded(got, kind)
            ends = [_loaded(scale_of(t, element, kind, over), kind) for t in (low, high)]
            wrong = ~((ends[0] <= found) & (found <= ends[1]))
            if bool(wrong.any()):
                i = tuple(int(k) for k in wrong.nonzero()[0])
                return (
                    f"scale {(i[0] + start, *i[1:])} is {float(found[i]):.9g}; it must be {float(ends[0][i]):.9g} to "
                    f"{float(ends[1][i]):.9g}"
                )
        return None

    def codes(judged: Judged) -> str | None:
        o = judged.options
        f, kind, group, over = ELEMENTS[str(o["format"])], str(o["scales"]), int(o["group"]), judged.tensors.get("over")
        for start, y, error in parts(judged):
            if 0 in y.shape:
                continue
            beyond = ~y.float().isfinite()  # infinite in float32
            y, error = y.where(~beyond, y.float().double()), error.where(~beyond, error.new_zeros(()))
            got = unpack(judged.got["codes"][start : start + ROWS], f.bits, y.shape[1])
            s = effective(_loaded(judged.got["scale"][start : start + ROWS], kind), None if over is None else over.float())
            s = s.repeat_interleave(group or y.shape[1], 1)[:, : y.shape[1]].double()
            random = None
            if o["rounding"] == "stochastic":
                random = random_bits.halves(int(o["seed"]), y.numel(), y.device, start * y.shape[1]).view(y.shape)
            ends = [encode(((y + sign * error) / s).float(), f.name, str(o["rounding"]), random) for sign in (-1, 1)]
            low, found, high = (decode(t, f.name) for t in (ends[0], got, ends[1]))
            wrong = ~(((low <= found) & (found <= high)) | (found.isnan() & low.isnan()))
            if bool(wrong.any()):
                i = tuple(int(k) for k in wrong.nonzero()[0])
                said = f"code {(i[0] + start, i[1])} is {int(got[i]):#x}, {float(found[i])}; it must be {float(low[i])} to {float(high[i])}"
                return f"{int(wrong.sum())} codes of rows {start} on: {said}"
            if (
                f.bits < 8 and y.shape[1] * f.bits % 8
                and bool((judged.got["codes"][start : start + ROWS, -1] >> (y.shape[1] * f.bits % 8)).any())
            ):
                return f"the last byte of a row has bits beyond its {y.shape[1]} codes"
        return None

    return {"codes": codes, "scale": scale}


def _loaded(stored: Tensor, kind: str) -> Tensor:
    return load_scale(stored, kind) if kind in ("e8m0", "e4m3") else stored.float()


def options(format: str, group: int | None = None, rounding: str = "nearest", scales: str | None = None) -> dict[str, Any]:
    """Those of a case; `over` among them."""
    f = FORMATS[format]
    return {
        "over": Input((1,), "f32") if f.kind == "nv" else None, "group": f.group or group or 0, "format": f.element,
        "scales": scales or f.scale, "rounding": rounding, "seed": 7,
    }


def cases(
    inputs: Callable[[tuple[int, int], str, str, str], dict[str, Any]], big: tuple[int, int] = (16384, 8192), fills: tuple[str, ...] = ()
) -> list[Case]:
    """Cases of an op whose rows are `inputs(shape, dtype, fill, layout)`."""

    def one(
        name: str, tags: str, shape: tuple[int, int], d: str = "bf16", fill: str = "normal", layout: str = "contiguous", **more: Any
    ) -> Case:
        return case(name, tags=tags, **inputs(shape, d, fill, layout), **options(**more))

    found = [
        one("int8 rows 16384x8192", "bench", big, format="int8"),
        one("e4m3 groups of 128 16384x8192", "bench", big, format="e4m3", group=128),
        one("mxfp8_e4m3 16384x8192", "bench", big, format="mxfp8_e4m3"),
        one("int8 rows stochastic 16384x8192", "bench", big, format="int8", rounding="stochastic"),
    ]
    for format, f in FORMATS.items():
        found.append(one(f"{format} 5x256", "edge", (5, 256), format=format))
        found.append(one(f"{format} odd 3x77", "edge", (3, 77), format=format))
        if not f.group:
            found.append(one(f"{format} groups of 32", "edge", (4, 320), format=format, group=32))
    for d in FLOATS:
        for format in ("int8", "e4m3"):
            found += [
                one(f"{format} rows 7x1000", "edge", (7, 1000), d, format=format),
                one(f"{format} groups of 128 7x640", "edge", (7, 640), d, format=format, group=128),
                one(f"{format} rows 3x2000", "edge", (3, 2000), d, format=format),
                one(f"{format} rows 2x9001", "edge", (2, 9001), d, format=format),
            ]
    for rounding in ("stochastic", "zero"):
        found += [
            one(f"{format} {rounding}", "edge", (6, 192), format=format, rounding=rounding) for format in ("int8", "e4m3", "e2m1", "uint4")
        ]
        found += [one(f"{format} {rounding} odd", "edge", (5, 67), format=format, rounding=rounding) for format in ("int8", "e4m3")]
    for scales in ("f16", "bf16", "e8m0", "e4m3"):
        found.append(one(f"int8 scales {scales}", "edge", (5, 64), "f32", format="int8", scales=scales))
    for group in (16, 64, 256):
        found.append(one(f"int8 groups of {group}", "edge", (3, 512), format="int8", group=group))
    for fill in ("nan", "inf", "-inf", "-0.0", "tiny", "equal", *fills):
        found += [one(f"{format} {fill}", "edge", (7, 128), fill=fill, format=format) for format in ("int8", "e5m2", "mxfp4")]
    for layout in ("transposed", "sliced", "padded", "strided", "offset"):
        found.append(one(f"{layout} rows", "edge", (20, 64), layout=layout, format="int8"))
    found += [
        one("rows 2x20000", "edge", (2, 20000), format="int8"),
        one("short rows 300x24", "edge", (300, 24), format="e4m3"),
        one("one element", "edge", (1, 1), format="int8"),
        one("no rows", "edge", (0, 64), format="int8"),
        one("no columns", "edge", (3, 0), format="int8"),
    ]
    return found


def arranged(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """The tensor's scale of nvfp4: such as values of about one have."""
    import torch

    over = tensors.get("over")
    return {} if over is None else {"over": torch.full_like(over, 4.0 / (448 * 6))}


def wrong(function: Callable[..., Any], *changes: str) -> dict[str, Callable[..., Any]]:
    """Known-wrong versions by `function(change, *arguments)`, those of CHANGES among them."""
    return {what: partial(function, what) for what in (*CHANGES, *changes)}


CHANGES = ("last code wrong", "scale a little larger", "another rounding", "another seed")


def worse(change: str, reference: Callable[..., Any], given: tuple[Any, ...], rounding: str, seed: int) -> tuple[Any, ...]:
    """Known-wrong versions that every op has: one of CHANGES."""
    if change == "another rounding":
        rounding = "zero" if rounding == "nearest" else "nearest"
    codes, scale, *rest = reference(*given, rounding, seed + (change == "another seed"))
    if change == "last code wrong":
        codes.reshape(-1)[-1:] ^= 1
    if change == "scale a little larger":
        scale = scale * 1.01 if scale.is_floating_point() else scale + 1
    return codes, scale, *rest


def plain(y: Tensor, group: int, format: str, scales: str, rounding: str) -> tuple[Tensor, Tensor]:
    """As one writes it in torch, for finite values: 8 bits, nearest, float32 scales."""
    import torch

    f = ELEMENTS[format]
    if f.bits != 8 or not f.signed or scales != "f32" or rounding != "nearest" or (group and y.shape[1] % group):
        raise ValueError("plain torch: int8 and fp8, float32 scales, nearest, whole groups")
    tiles = y.float().unflatten(1, (-1, group or y.shape[1]))
    scale = (tiles.abs().amax(2, keepdim=True) / f.max).clamp(min=2.0**-126)
    v = (tiles / scale).clamp(-f.max, f.max)
    codes = v.round().to(torch.int8) if format == "int8" else v.to(torch.float8_e4m3fn if format == "e4m3" else torch.float8_e5m2)
    return codes.view(torch.uint8).flatten(1), scale.squeeze(2)


def validate(name: str, what: str, x: Tensor) -> None:
    """Raises TypeError for anything but a floating tensor of 16 or 32 bits, ValueError for one without dimensions."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: {what} is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{name}: {what} is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if x.dim() == 0:
        raise ValueError(f"{name}: {what} has no dimensions; it must have at least one")


def flat(x: Tensor) -> Tensor:
    """[..., L] as rows [N, L], without a gradient."""
    return x.detach().reshape(prod(x.shape[:-1]), x.shape[-1])
