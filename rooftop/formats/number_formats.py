"""Number formats of 4, 6 and 8 bits: what their codes mean, how a float32 becomes a code, how codes lie in bytes.

    int8 int4       two's complement, -127 to 127 and -7 to 7 where symmetric (the lowest code is left out), -128 and -8 included where not
    uint8 uint4     the value is code - zero point; where symmetric the zero point is 128 and 8
    e4m3 e5m2       fp8: sign, exponent, mantissa. e4m3 has NaN and no infinity (torch's float8_e4m3fn), e5m2 has both
    e3m2 e2m3       fp6, without NaN and infinity
    e2m1            fp4, without NaN and infinity: 0, 0.5, 1, 1.5, 2, 3, 4, 6
    mx...           groups of 32 elements of one of these with a power of two (e8m0) as scale
    nvfp4           groups of 16 e2m1 with an e4m3 scale, and a float32 scale of the whole tensor

Bytes: each row of codes along the last dimension begins at a byte and is a string of bits, lowest first. So 4-bit codes 0 and 1 are the low
and the high half of byte 0; of 6-bit codes a, b, c, d the first three bytes are a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2 (each modulo
256). A last byte that is not full ends in zeros.

Sources: OCP 8-bit Floating Point (OFP8) 1.0; OCP Microscaling Formats (MX) 1.0, sections 5 and 6; NVIDIA's description of NVFP4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROUNDINGS = ("nearest", "stochastic", "zero", "dither")
SCALES = ("f32", "f16", "bf16", "e8m0", "e4m3")
TINY: Mapping[str, float] = MappingProxyType({"f32": 2.0**-126, "f16": 2.0**-24, "bf16": 2.0**-126, "e8m0": 2.0**-127, "e4m3": 2.0**-6})
LARGEST: Mapping[str, float] = MappingProxyType(
    {"f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38, "e8m0": 2.0**127, "e4m3": 448.0}
)


@dataclass(frozen=True)
class Format:
    """One format.

    kind      "int", "float", "mx" or "nv"
    bits      of a code
    max, min  largest and least value of a code less its zero point (of ints where symmetric)
    exponent, mantissa, bias   bits and bias of floats; `exponent` 0: an integer
    element   the format of the codes themselves: its own name but for mx and nv
    group     elements that must share a scale; 0: any number
    scale     the type of the scale where none is asked for"""

    name: str
    kind: str
    bits: int
    max: float
    min: float
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    signed: bool = True
    nan: bool = False
    inf: bool = False
    element: str = ""
    group: int = 0
    scale: str = "f32"

    @property
    def smallest(self) -> float:
        """The smallest value above zero (a subnormal number of floats)."""
        return float(2.0 ** (1 - self.bias - self.mantissa)) if self.exponent else 1.0

    @property
    def normal(self) -> float:
        """The smallest number of a float that is not subnormal."""
        return float(2.0 ** (1 - self.bias)) if self.exponent else 1.0

    @property
    def top(self) -> int:
        """The exponent of the largest number, which the OCP's rule for scales of mx formats takes off that of the group's largest."""
        return (1 << self.exponent) - 1 - self.bias - self.inf if self.exponent else self.bits - 2

    @property
    def zero(self) -> int:
        """The zero point where symmetric."""
        return 0 if self.signed else 1 << (self.bits - 1)

    def bytes(self, count: int) -> int:
        """Of a row of so many codes."""
        return -(-count * self.bits // 8)


def _float(name: str, bits: int, exponent: int, mantissa: int, bias: int, largest: float, nan: bool = False, inf: bool = False) -> Format:
    return Format(name, "float", bits, largest, -largest, exponent, mantissa, bias, True, nan, inf, name)


ELEMENTS: Mapping[str, Format] = MappingProxyType(
    {
        f.name: f
        for f in (
            Format("int8", "int", 8, 127, -127, element="int8"),
            Format("uint8", "int", 8, 127, -127, signed=False, element="uint8"),
            Format("int4", "int", 4, 7, -7, element="int4"),
            Format("uint4", "int", 4, 7, -7, signed=False, element="uint4"),
            _float("e4m3", 8, 4, 3, 7, 448.0, nan=True),
            _float("e5m2", 8, 5, 2, 15, 57344.0, nan=True, inf=True),
            _float("e3m2", 6, 3, 2, 3, 28.0),
            _float("e2m3", 6, 2, 3, 1, 7.5),
            _float("e2m1", 4, 2, 1, 1, 6.0),
        )
    }
)


def _shared(name: str, kind: str, element: str, group: int, scale: str) -> Format:
    e = ELEMENTS[element]
    return Format(name, kind, e.bits, e.max, e.min, e.exponent, e.mantissa, e.bias, True, e.nan, e.inf, element, group, scale)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        **ELEMENTS,
        **{
            f.name: f
            for f in (
                _shared("mxfp8_e4m3", "mx", "e4m3", 32, "e8m0"),
                _shared("mxfp8_e5m2", "mx", "e5m2", 32, "e8m0"),
                _shared("mxfp6_e3m2", "mx", "e3m2", 32, "e8m0"),
                _shared("mxfp6_e2m3", "mx", "e2m3", 32, "e8m0"),
                _shared("mxfp4", "mx", "e2m1", 32, "e8m0"),
                _shared("nvfp4", "nv", "e2m1", 16, "e4m3"),
            )
        },
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp8": "e4m3", "fp6_e3m2": "e3m2", "fp6_e2m3": "e2m3", "fp4_e2m1": "e2m1", "fp4": "e2m1",
        "mxfp8": "mxfp8_e4m3", "mxfp6": "mxfp6_e2m3",
    }
)


def format_of(name: str | Format) -> Format:
    """A format by its name or alias. Raises ValueError that lists what there is, also for a `Format` that is none of them."""
    if isinstance(name, Format):
        if FORMATS.get(name.name) != name:
            known = f"{name.name} is a known name with other facts" if name.name in FORMATS else f"its name is {name.name!r}"
            raise ValueError(f"format is a Format that is not in rooftop.quant.FORMATS: {known}; accepted are {', '.join(FORMATS)}")
        return name
    found = FORMATS.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"format is {name!r}; accepted are {', '.join((*FORMATS, *ALIASES))}")
    return found


# -- codes ------------------------------------------------------------------------------------------------------------


def encode(v: Tensor, element: str, rounding: str = "nearest", random: Tensor | None = None, zero: Tensor | int | None = None) -> Tensor:
    """Codes (uint8, one a byte, unused high bits 0) of float32 values that have been divided by their scale.

    nearest: ties to even. zero: cut off.
    stochastic: up (of floats: away from zero) where `random` (16 bits an element) plus the fraction reaches one, so with probability
    fraction and never off a value that has a code. The fraction is that of the value in units of the gap that it lies in, rounded to 16
    bits (ties of ints to even, of floats up; below a float's smallest normal number to 23 - mantissa bits before that).
    dither: nearest of v + (random + 0.5) / 65536 - 0.5, of ints; of floats, whose steps differ, the same as stochastic: noise of the
    value's gap. What lies beyond the largest value becomes it, infinities too where the format has none. NaN becomes the code of NaN
    (0x7f), of formats without one 0.

    zero: the zero point of ints, added after rounding; the codes then use the whole range. None: the symmetric one."""
    import torch

    f = ELEMENTS[element]
    if rounding in ("stochastic", "dither"):
        assert random is not None
    if not f.exponent:
        least, most = (f.min, f.max) if zero is None else (-(2 ** (f.bits - 1)), 2 ** (f.bits - 1) - 1)
        if not f.signed:
            least, most = least + f.zero, most + f.zero
        offset = f.zero if zero is None else zero
        bound = float(2 ** (f.bits + 1))  # beyond every code, whatever the zero point
        v = v.nan_to_num(0.0, bound, -bound).clamp(-bound, bound)
        if rounding == "stochastic":
            k = ((v * 65536).round().to(torch.int64) + random) >> 16
        elif rounding == "dither":
            assert random is not None
            k = (v + ((random.to(torch.float32) + 0.5) / 65536 - 0.5)).round().to(torch.int64)
        else:
            k = (v.trunc() if rounding == "zero" else v.round()).to(torch.int64)
        return ((k + offset).clamp(least, most) & ((1 << f.bits) - 1)).to(torch.uint8)
    bits = v.contiguous().view(torch.int32)
    size = v.abs().clamp(max=f.max).contiguous()
    exponent = (size.view(torch.int32) & 0x7F800000).clamp(min=(128 - f.bias) << 23)
    t = size / (exponent - (f.mantissa << 23)).view(torch.float32)  # units of the gap: exact, below 2^(mantissa + 1)
    # float32 with the format's least exponent as its own counts by 2^-24 of the code, once shifted
    if rounding in ("stochastic", "dither"):
        assert random is not None
        raised = (size.nan_to_num(0) * 2.0 ** (f.bias - 127)).view(torch.int32).to(torch.int64) << (1 + f.mantissa)
        code = (raised + (random << 8) + 128) >> 24
    else:
        code = (t.floor() if rounding == "zero" else t.round()).nan_to_num(0).to(torch.int64) + (
            ((exponent >> 23) - (128 - f.bias)) << f.mantissa
        )
    code = code + ((bits < 0).to(torch.int64) << (f.bits - 1))
    if f.inf:
        code = torch.where(v.isinf(), (((1 << f.exponent) - 1) << f.mantissa) + ((bits < 0).to(torch.int64) << (f.bits - 1)), code)
    return torch.where(v.isnan(), 0x7F if f.nan else 0, code).to(torch.uint8)


def decode(codes: Tensor, element: str, zero: Tensor | int | None = None) -> Tensor:
    """The values of codes (uint8, one a byte) in float32; exact."""
    import torch

    f = ELEMENTS[element]
    c = codes.to(torch.int32)
    if not f.exponent:
        if f.signed:
            c = c - ((c >> (f.bits - 1)) << f.bits)
        return (c - (f.zero if zero is None else zero)).to(torch.float32)
    size = c & ((1 << (f.bits - 1)) - 1)
    e, m = size >> f.mantissa, size & ((1 << f.mantissa) - 1)
    normal = ((e + 127 - f.bias) << 23 | m << (23 - f.mantissa)).view(torch.float32)
    value = torch.where(e == 0, m.to(torch.float32) * f.smallest, normal)
    if f.inf:
        value = torch.where(e == (1 << f.exponent) - 1, torch.where(m == 0, float("inf"), float("nan")), value)
    elif f.nan:
        value = torch.where(size == (1 << (f.bits - 1)) - 1, float("nan"), value)
    return torch.where(c >> (f.bits - 1) == 1, -value, value)


def noise(codes: Tensor, element: str, random: Tensor) -> Tensor:
    """What a dither added before rounding, float32, by the codes and the `random` bits that they were made with: half a step more or less,
    of floats half the gap above the code, away from zero."""
    import torch

    f = ELEMENTS[element]
    steps = (random.to(torch.float32) + 0.5) / 65536 - 0.5
    if not f.exponent:
        return steps
    c = codes.to(torch.int32)
    e = ((c & ((1 << (f.bits - 1)) - 1)) >> f.mantissa).clamp(min=1)
    gap = ((e + 127 - f.bias - f.mantissa) << 23).view(torch.float32)
    return steps * torch.where(c >> (f.bits - 1) == 1, -gap, gap)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of one byte each, packed along the last dimension: [..., n] to [..., ceil(n * bits / 8)]."""
    import torch

    if bits == 8:
        return codes
    per, into = (2, 1) if bits == 4 else (4, 3)  # so many codes fill so many bytes
    n = codes.shape[-1]
    c = torch.nn.functional.pad(codes, (0, -n % per)).to(torch.int32).unflatten(-1, (-1, per))
    word = sum(c[..., i] << (bits * i) for i in range(per))
    assert isinstance(word, torch.Tensor)
    out = torch.stack([(word >> (8 * i)) & 0xFF for i in range(into)], -1).to(torch.uint8).flatten(-2)
    return out[..., : -(-n * bits // 8)].contiguous()


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse: [..., bytes] to [..., count] codes of one byte each. Raises ValueError where the bytes are not those of `count`
    codes."""
    import torch

    if packed.shape[-1] != -(-count * bits // 8):
        raise ValueError(f"{packed.shape[-1]} bytes a row; {count} codes of {bits} bits take {-(-count * bits // 8)}")
    if bits == 8:
        return packed
    per, into = (2, 1) if bits == 4 else (4, 3)
    b = torch.nn.functional.pad(packed, (0, -packed.shape[-1] % into)).to(torch.int32).unflatten(-1, (-1, into))
    word = sum(b[..., i] << (8 * i) for i in range(into))
    assert isinstance(word, torch.Tensor)
    return torch.stack([(word >> (bits * i)) & ((1 << bits) - 1) for i in range(per)], -1).to(torch.uint8).flatten(-2)[..., :count]


# -- scales -----------------------------------------------------------------------------------------------------------


def store_scale(scale: Tensor, type_: str) -> Tensor:
    """A float32 scale in its type: float32, float16, bfloat16, or the bytes of e8m0 and e4m3. Held between `TINY` and `LARGEST` of the
    type, then rounded to
    nearest (e8m0: up to a power of two): a scale is never zero, infinite or NaN. Float16's subnormal numbers are scales too. They have few
    bits, so below 2^-14 a scale is rounded up: rounded down it could saturate a third of a group."""
    import torch

    if type_ == "e8m0":
        bits = scale.clamp(TINY["e8m0"], LARGEST["e8m0"]).contiguous().view(torch.int32)
        return ((bits + 0x7FFFFF) >> 23).clamp(0, 254).to(torch.uint8)
    held = scale.clamp(TINY[type_], LARGEST[type_])
    if type_ == "e4m3":
        return encode(held, "e4m3")
    stored = held.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type_])
    if type_ == "f16":
        stored = (stored.view(torch.int16) + ((held < 2.0**-14) & (stored.float() < held)).to(torch.int16)).view(torch.float16)
    return stored


def load_scale(stored: Tensor, type_: str) -> Tensor:
    """Its value in float32."""
    import torch

    if type_ == "e8m0":
        e = stored.view(torch.uint8).to(torch.int32)
        return torch.where(e == 0, 1 << 22, e << 23).to(torch.int32).view(torch.float32)
    return decode(stored.view(torch.uint8), "e4m3") if type_ == "e4m3" else stored.to(torch.float32)


def effective(scale: Tensor, over: Tensor | None) -> Tensor:
    """The scale that values are divided by, float32: with the tensor's own where there is one, then held between 2^-126 and 2^125."""
    return scale if over is None else (scale * over.float()).clamp(2.0**-126, 2.0**125)


def divided(x: Tensor, by: float) -> Tensor:
    """x / by as IEEE divides. On a GPU torch multiplies by 1 / by where `by` is a number."""
    import torch

    return x / torch.full_like(x, by)


def scale_of(largest: Tensor, element: str, type_: str, over: Tensor | None = None) -> Tensor:
    """The stored scale of groups whose largest finite size is `largest` (float32).

    largest / max by an IEEE division in float32 (then divided by `over`, the tensor's scale), stored as `type_`. e8m0 with a float format:
    2^(floor(log2 largest) - top), the OCP's rule, by which the largest may saturate; with an integer format the next power of two."""
    import torch

    f = ELEMENTS[element]
    if type_ == "e8m0" and f.exponent:
        e = (largest.contiguous().view(torch.int32) >> 23) - f.top
        return e.clamp(0, 254).to(torch.uint8)
    s = divided(largest, f.max)
    return store_scale(s if over is None else s / over, type_)
