"""Weights packed once for every kernel of `rooftop.quantized_matmul`: in the order in which tensor cores take them from registers.

Codes lie in blocks of 16 rows by 128 columns of the weight W [N, K] (N outputs, K inputs), block (s, b) at codes[s, b]: 256 bytes for each
bit of a code. A block is a plane of bits after another: of 8, 4 and 2 bits one plane, of 6 bits the low four and then the high two. A plane
of B bits is chunks of 512 bytes, each 16 rows by 256 / B columns. In a chunk each of 32 lanes has 16 bytes, four words of 32 bits, little
end first. Lane 4 g + t holds, of rows g and g + 8, what `mma` m16n8k16 and `wgmma` ask of that lane as operand A, pair by pair. Pair q = 4
step + 2 h + r of a lane is the codes of

    row    16 s + 8 r + g
    column 128 b + (256 / B) chunk + 16 step + 8 h + 2 t, and the next one

It lies in word q // (16 / B); with i = q % (16 / B) its first code takes bits B i and up, its second bits 16 + B i and up. So a word masked
by ((1 << B) - 1) * 0x10001 after a shift by B i is a pair of 16-bit numbers, and a warp that loads 16 bytes a lane reads 512 neighbouring
bytes.

Integers are stored without a sign, lowest value 0 (two's complement with the highest bit turned). Floats keep their bits. Rows past N and
columns past K hold the code 0. scale[s, j, i] belongs to row 16 s + i and group j of K; zero likewise. 1 and 0 stand past N.

    value = (u - zero) * scale       ints, u the stored number; without zero points zero is 2^(bits - 1)
    value = decode(code) * scale     floats"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rooftop.formats.number_formats import ALIASES, ELEMENTS, Format, decode, format_of, load_scale
from rooftop.formats.number_formats import unpack as unpack_bytes
from rooftop.formats.quantized import SCALE_DTYPES, Quantized

ROWS, COLUMNS = 16, 128  # of a block
WEIGHTS: Mapping[str, Format] = MappingProxyType(
    {
        **{n: ELEMENTS[n] for n in ("int8", "int4", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1")},
        "int2": Format("int2", "int", 2, 1, -1, element="int2"),
    }
)
OTHERS: Mapping[str, str] = MappingProxyType({**{a: f for a, f in ALIASES.items() if f in WEIGHTS}, "fp6": "e2m3"})
FACTS = ("format", "shape", "group", "dtype", "scale_dtype")
TENSORS = ("codes", "scale", "zero")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # formats whose codes torch has a dtype for


def weight_format(name: str) -> Format:
    """What codes of a weight mean, by a format's name or alias. Raises ValueError that lists what there is."""
    known = OTHERS.get(name, name) if isinstance(name, str) else ""
    if known in WEIGHTS:
        return WEIGHTS[known]
    raise ValueError(f"format of a weight is {name!r}; accepted are {', '.join((*WEIGHTS, *OTHERS))}")


def planes(bits: int) -> tuple[int, ...]:
    """Bits of each plane of a block."""
    return (4, 2) if bits == 6 else (bits,)


def blocks(n: int, of: int) -> int:
    return -(-n // of)


@dataclass(frozen=True)
class PackedWeight:
    """A weight [N, K] in codes, as `rooftop.quantized_matmul` reads it. `rooftop.quant.pack_weight` makes it; the module's docstring says
    where each bit lies.

    It is a pytree node and goes through `torch.compile` and `torch.save`; `tensors()` and `facts()` are what a safetensors file holds.

    codes        uint8 [ceil(N / 16), ceil(K / 128), 256 * bits]
    scale        float32, float16, bfloat16 or (e8m0) uint8 [ceil(N / 16), groups, 16]
    zero         None, uint8 or the dtype of a floating scale, in the shape of `scale`
    format       int8, int4, int2, e4m3, e5m2, e3m2, e2m3 or e2m1
    shape        (N, K)
    group        columns that share a scale: 32, 64, a multiple of 128, or K
    dtype        of what was quantised, as torch prints it, without "torch."
    scale_dtype  f32, f16, bf16 or e8m0"""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    format: str
    shape: tuple[int, int]
    group: int
    dtype: str
    scale_dtype: str

    @property
    def kind(self) -> Format:
        return weight_format(self.format)

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.codes, self.scale, self.zero) if t is not None)

    def to(self, device: Any) -> PackedWeight:
        """On another device."""
        return PackedWeight(
            *(None if t is None else t.to(device) for t in self._leaves()), *(getattr(self, n) for n in FACTS)  # type: ignore[arg-type]
        )

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values [N, K], computed in float32 and rounded once."""
        n, k = self.shape
        found = values(self.codes, self.scale, self.zero, n, k, self.group, self.format, self.scale_dtype, torch.float32)
        return found.to(dtype or getattr(torch, self.dtype))

    def tensors(self) -> dict[str, Tensor]:
        return {n: t for n, t in zip(TENSORS, self._leaves(), strict=True) if t is not None}

    def facts(self) -> str:
        """All but the tensors, as one line of JSON."""
        return json.dumps({n: getattr(self, n) for n in FACTS})

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: str) -> PackedWeight:
        """The inverse of `tensors()` and `facts()`. Raises ValueError where they do not fit each other."""
        try:
            given = json.loads(facts)
        except json.JSONDecodeError as error:
            raise ValueError(f"facts of a packed weight are no JSON: {error}") from None
        if not isinstance(given, dict) or set(given) != set(FACTS):
            raise ValueError(
                f"facts of a packed weight are {sorted(given) if isinstance(given, dict) else given!r}; they must name {', '.join(FACTS)}"
            )
        if missing := {"codes", "scale"} - set(tensors):
            raise ValueError(f"tensors of a packed weight lack {', '.join(sorted(missing))}; there are {', '.join(tensors) or 'none'}")
        given["shape"] = tuple(given["shape"])
        made = cls(tensors["codes"], tensors["scale"], tensors.get("zero"), **given)
        made.verify()
        return made

    def verify(self) -> None:
        """Raises TypeError or ValueError where codes, scales or zero points are not those that shape, format and group ask for. It looks at
        no values."""
        f = self.kind
        if len(self.shape) != 2 or not all(isinstance(n, int) and n > 0 for n in self.shape):
            raise ValueError(f"a packed weight's shape is {self.shape}; it must be (N, K), both at least 1")
        n, k = self.shape
        check_group(k, self.group)
        high = blocks(n, ROWS)
        wanted = (high, blocks(k, COLUMNS), 32 * COLUMNS // 16 * f.bits)
        if self.codes.dtype != torch.uint8 or tuple(self.codes.shape) != wanted:
            raise ValueError(f"codes are {tuple(self.codes.shape)} {self.codes.dtype}; {f.name} of {self.shape} takes {wanted} torch.uint8")
        types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "e8m0": torch.uint8}
        if self.scale_dtype not in types:
            raise ValueError(f"scale_dtype is {self.scale_dtype!r}; accepted are {', '.join(types)}")
        shared = (high, blocks(k, self.group), ROWS)
        if self.scale.dtype != types[self.scale_dtype] or tuple(self.scale.shape) != shared:
            raise ValueError(f"scale is {tuple(self.scale.shape)} {self.scale.dtype}; it must be {shared} {types[self.scale_dtype]}")
        if self.zero is not None:
            if f.exponent:
                raise ValueError(f"zero points are for int8, int4 and int2; {f.name} has none")
            if tuple(self.zero.shape) != shared or self.zero.dtype not in (torch.uint8, self.scale.dtype):
                raise ValueError(
                    f"zero is {tuple(self.zero.shape)} {self.zero.dtype}; it must be {shared}, torch.uint8 or {self.scale.dtype}"
                )
        for name, t in self.tensors().items():
            if t.device != self.codes.device:
                raise ValueError(f"codes lie on {self.codes.device} and {name} on {t.device}; they must be on one device")
            if not t.is_contiguous():
                raise ValueError(f"{name} of a packed weight must be contiguous; its strides are {t.stride()}")

    def _leaves(self) -> list[Tensor | None]:
        return [self.codes, self.scale, self.zero]


def check_group(k: int, group: int) -> None:
    """Raises ValueError where kernels know no such groups."""
    if (
        not isinstance(group, int) or isinstance(group, bool)
        or not (group == k or group in (32, 64) or (group > 0 and group % COLUMNS == 0))
    ):
        raise ValueError(f"group is {group!r}; accepted are 32, 64, a multiple of 128, or K = {k} for one scale a row")
    if k % group:
        raise ValueError(f"group is {group}, which does not divide K = {k}")


def arrange(codes: Tensor, bits: int) -> Tensor:
    """Codes [N, K], one a byte, as a packed weight's bytes."""
    n, k = codes.shape
    high, wide = blocks(n, ROWS), blocks(k, COLUMNS)
    padded = torch.nn.functional.pad(codes, (0, wide * COLUMNS - k, 0, high * ROWS - n))
    found, low = [], 0
    for b in planes(bits):
        part = (padded >> low) & ((1 << b) - 1)
        low += b
        # [stripe, r, g, block, chunk, step, h, t, pair] -> [stripe, block, chunk, g, t, (step, h, r), pair]
        nine = part.reshape(high, 2, 8, wide, b // 2, 16 // b, 2, 4, 2).permute(0, 3, 4, 2, 7, 5, 6, 1, 8)
        words = nine.reshape(high, wide, b // 2, 32, 4, 16 // b, 2).to(torch.int32)
        shift = torch.arange(16 // b, dtype=torch.int32, device=codes.device)[:, None] * b
        halves = (words << shift).sum(-2, dtype=torch.int32)  # [.., 4, 2], each below 2^16
        found.append(torch.stack([halves & 255, halves >> 8], -1).to(torch.uint8).reshape(high, wide, -1))
    return torch.cat(found, -1).contiguous()


def rearranged(packed: Tensor, bits: int, n: int, k: int) -> Tensor:
    """The inverse of `arrange`: codes [n, k], one a byte."""
    high, wide = packed.shape[:2]
    found, low, at = torch.zeros(high * ROWS, wide * COLUMNS, dtype=torch.uint8, device=packed.device), 0, 0
    for b in planes(bits):
        part = packed[..., at : at + 256 * b].reshape(high, wide, b // 2, 32, 4, 2, 2).to(torch.int32)
        halves = part[..., 0] | part[..., 1] << 8
        shift = torch.arange(16 // b, dtype=torch.int32, device=packed.device)[:, None] * b
        words = (halves[..., None, :] >> shift) & ((1 << b) - 1)
        nine = words.reshape(high, wide, b // 2, 8, 4, 16 // b, 2, 2, 2).permute(0, 7, 3, 1, 2, 5, 6, 4, 8)
        found |= nine.reshape(high * ROWS, wide * COLUMNS).to(torch.uint8) << low
        at, low = at + 256 * b, low + b
    return found[:n, :k]


def values(codes: Tensor, scale: Tensor, zero: Tensor | None, n: int, k: int, group: int, format: str, scales: str, kind: Any) -> Tensor:
    """The weight [n, k] in the floating dtype `kind`, plain torch."""
    f = weight_format(format)
    raw = rearranged(codes, f.bits, n, k)

    def spread(t: Tensor) -> Tensor:
        return t.transpose(1, 2).reshape(-1, t.shape[1])[:n].repeat_interleave(group, 1)[:, :k]

    s = load_scale(scale, "e8m0") if scales == "e8m0" else scale
    if f.exponent:
        return decode(raw, f.element).to(kind) * spread(s.to(kind))
    offset = float(1 << (f.bits - 1)) if zero is None else spread(zero.to(kind))
    return (raw.to(kind) - offset) * spread(s.to(kind))


def pack_codes(
    codes: Tensor, scale: Tensor, zero: Tensor | None = None, *, format: str, group: int | None = None, dtype: torch.dtype | None = None
) -> PackedWeight:
    """A packed weight made of existing codes.

    Args:
        codes: [N, K], one a byte: for integer formats the stored number u, 0 to 2^bits - 1, uint8; for floats their bits, uint8 or, of e4m3
            and e5m2, torch.float8_e4m3fn and torch.float8_e5m2.
        scale: [N], [N, 1] or [N, K / group], float32, float16, bfloat16, or float8_e8m0fnu.
        zero: for integer formats, in the shape of `scale`: uint8 (or any integer dtype) from 0 to 2^bits - 1, or floats in the dtype of
            `scale`. None: 2^(bits - 1).
        format: int8, int4, int2, e4m3, e5m2, e3m2, e2m3, e2m1 or an alias.
        group: columns that share a scale; None: as the shape of `scale` implies.
        dtype: the result dtype of `dequantize`, float32, float16 or bfloat16; None: bfloat16, or float16 if the scales are.

    Raises TypeError for other dtypes; ValueError for shapes or groups that do not match, codes or zero points out of range, scales, zero
    points or codes that are not finite, and tensors on different devices."""
    f = weight_format(format)
    if not all(isinstance(t, Tensor) for t in (codes, scale)):
        raise TypeError(f"codes and scale must be tensors; they are {type(codes).__name__} and {type(scale).__name__}")
    if codes.dim() != 2 or 0 in codes.shape:
        raise ValueError(f"codes are {tuple(codes.shape)}; they must be [N, K], both at least 1")
    if codes.dtype not in (torch.uint8, FP8.get(f.name)):
        raise TypeError(
            f"codes are {codes.dtype}; accepted for {f.name} {f'are torch.uint8 and {FP8[f.name]}' if f.name in FP8 else 'is torch.uint8'}"
        )
    if zero is not None and not isinstance(zero, Tensor):
        raise TypeError(f"zero is a {type(zero).__name__}; it must be a tensor or None")
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"dtype is {dtype!r}; accepted are None, {', '.join(map(str, FLOATS))}")
    n, k = codes.shape
    raw = codes.view(torch.uint8)
    for name, t in (("scale", scale), ("zero", zero)):
        if t is not None and t.device != codes.device:
            raise ValueError(f"codes lie on {codes.device} and {name} on {t.device}; they must be on one device")
    shared = scale.reshape(n, 1) if scale.dim() == 1 and scale.shape[0] == n else scale
    if shared.dim() != 2 or shared.shape[0] != n or shared.shape[1] == 0:
        raise ValueError(f"scale is {tuple(scale.shape)}; codes of {(n, k)} take {(n,)} or {(n, 'K / group')}")
    group = (k // shared.shape[1] if k % shared.shape[1] == 0 else 0) if group is None else group
    check_group(k, group)
    if shared.shape[1] != k // group:
        raise ValueError(f"scale is {tuple(scale.shape)}; groups of {group} in K = {k} take {(n, k // group)}")
    of_scale = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e8m0fnu: "e8m0"}
    if scale.dtype not in of_scale:
        raise TypeError(f"scale is {scale.dtype}; accepted are {', '.join(map(str, of_scale))}")
    finite = bool((shared.view(torch.uint8) != 255).all()) if scale.dtype == torch.float8_e8m0fnu else bool(shared.isfinite().all())
    if not finite:
        raise ValueError("scale holds NaN or infinity; every scale must be finite")
    if f.exponent and (f.nan or f.inf):
        most = (1 << (f.bits - 1)) - 2 if not f.inf else (((1 << f.exponent) - 1) << f.mantissa) - 1
        if bool(((raw & 0x7F) > most).any()):
            raise ValueError(f"codes of {f.name} hold NaN or infinity; every weight must be finite")
    if f.bits < 8 and bool((raw >> f.bits).any()):
        raise ValueError(f"codes of {f.name} are 0 to {(1 << f.bits) - 1}; given {int(raw.max())}")
    if zero is not None:
        if f.exponent:
            raise ValueError(f"zero points are for int8, int4 and int2; {f.name} has none")
        if zero.shape != scale.shape:
            raise ValueError(f"zero is {tuple(zero.shape)}; it must be as scale, {tuple(scale.shape)}")
        whole = not (zero.dtype.is_floating_point or zero.dtype.is_complex or zero.dtype == torch.bool)
        if not whole and (zero.dtype != scale.dtype or zero.dtype not in FLOATS):
            more = f" or, as scale, {scale.dtype}" if scale.dtype in FLOATS else ""
            raise TypeError(f"zero is {zero.dtype}; it must be of an integer dtype{more}")
        top = float((1 << f.bits) - 1)
        if not bool(zero.isfinite().all()) or (whole and (float(zero.min()) < 0 or float(zero.max()) > top)):
            raise ValueError(f"zero points of {f.name} are 0 to {top:.0f}; given {float(zero.min())} to {float(zero.max())}")
        zero = zero.to(torch.uint8) if whole else zero

    def laid(t: Tensor, fill: float) -> Tensor:
        kept = t.reshape(n, k // group)
        kept = kept.view(torch.uint8) if kept.dtype == torch.float8_e8m0fnu else kept
        return torch.nn.functional.pad(kept, (0, 0, 0, -n % ROWS), value=fill).reshape(-1, ROWS, k // group).transpose(1, 2).contiguous()

    given = dtype or (torch.float16 if scale.dtype == torch.float16 else torch.bfloat16)
    return PackedWeight(
        arrange(raw, f.bits), laid(shared, 127.0 if scale.dtype == torch.float8_e8m0fnu else 1.0),
        None if zero is None else laid(zero, 0.0), f.name, (n, k), group, str(given).removeprefix("torch."), of_scale[scale.dtype],
    )


def pack_weight(q: Quantized, *, scale_dtype: torch.dtype | None = None) -> PackedWeight:
    """The packed weight of a matrix [N, K] that `rooftop.quantize` made, by rows or by groups of 32, 64 or a multiple of 128 along the last
    dimension.

    `scale_dtype` rounds the scales to float16 or bfloat16, which kernels read faster, or makes them float32; None keeps their dtype. Raises
    TypeError for anything but a `Quantized` and for another `scale_dtype`; ValueError for other shapes, groups and formats (including
    nvfp4), a dither with `subtract=True`, values that are not finite, and scales that would become 0 or infinite in `scale_dtype`."""
    if not isinstance(q, Quantized):
        raise TypeError(f"pack_weight: q is a {type(q).__name__}; it must be a rooftop.quant.Quantized")
    if scale_dtype is not None and scale_dtype not in FLOATS:
        raise TypeError(f"pack_weight: scale_dtype is {scale_dtype!r}; accepted are None, {', '.join(map(str, FLOATS))}")
    q.verify()
    f = format_of(q.format)
    if len(q.shape) != 2:
        raise ValueError(f"pack_weight: q is of {q.shape}; a weight has two dimensions")
    n, k = q.shape
    group = min(q.columns, k)
    if f.kind == "nv" or q.seed is not None:
        raise ValueError(
            f"pack_weight: {'nvfp4, whose scales are e4m3 in groups of 16' if f.kind == 'nv' else 'a dither that is taken off'}, is not "
            f"packed"
        )
    if q.split != (0, 1) or q.rows != 1 or q.scale.numel() != n * blocks(k, group):
        raise ValueError(
            f"pack_weight: scales are shared by {q.rows} rows and {q.columns} columns; a weight has one for each row or each group of a row"
        )
    element = ELEMENTS[f.element]
    name = {"uint8": "int8", "uint4": "int4"}.get(element.name, element.name)
    raw = unpack_bytes(q.codes.view(torch.uint8), f.bits, k)
    zero = q.zero
    if not f.exponent and f.signed:  # the lowest becomes 0
        raw = raw ^ (1 << (f.bits - 1))
        zero = None if zero is None else zero.to(torch.int32) + (1 << (f.bits - 1))
    scale = q.scale.view(getattr(torch, SCALE_DTYPES[q.scale_dtype])) if q.scale.dtype == torch.uint8 else q.scale
    if scale_dtype is not None:
        scale = _rounded(scale, scale_dtype)
    if scale.dtype == torch.float8_e4m3fn:
        scale = scale.float()
    return pack_codes(
        raw, scale.reshape(n, -1), None if zero is None else zero.reshape(n, -1), format=name, group=group, dtype=getattr(torch, q.dtype)
    )


def _rounded(scale: Tensor, kind: torch.dtype) -> Tensor:
    """Scales in another dtype. Raises ValueError where one becomes 0 or infinite."""
    given = load_scale(scale.view(torch.uint8), "e8m0") if scale.dtype == torch.float8_e8m0fnu else scale.float()
    if not bool(given.isfinite().all()):
        raise ValueError("pack_weight: scale holds NaN or infinity; every scale must be finite")
    found = given.to(kind)
    if bool((((found == 0) & (given != 0)) | ~found.isfinite()).any()):
        sizes, facts = given[given != 0].abs(), torch.finfo(kind)
        held = f"{kind} holds {facts.smallest_normal:.4g} to {facts.max:.4g} (less precisely from {facts.smallest_normal * facts.eps:.4g})"
        raise ValueError(
            f"pack_weight: scales are {float(sizes.min()):.4g} to {float(sizes.max()):.4g} in size; {held}, so some would become 0 or "
            f"infinite"
        )
    return found


def _flatten(w: PackedWeight) -> tuple[list[Any], Any]:
    return w._leaves(), tuple(getattr(w, n) for n in FACTS)


def _unflatten(leaves: Any, context: Any) -> PackedWeight:
    return PackedWeight(*leaves, *context)


torch.utils._pytree.register_pytree_node(PackedWeight, _flatten, _unflatten, serialized_type_name="rooftop.quant.PackedWeight")
torch.serialization.add_safe_globals([PackedWeight])
