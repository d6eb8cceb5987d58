"""How tensors travel between ranks: 8 or 4 bits an element with a scale for each group, or bfloat16.

A message holds the elements of one row, filled up with zeros to whole groups:

    [ codes, bits / 8 bytes an element, lowest bits first | scales, float32, one a group ]    filled up with zeros to a multiple of 16 bytes

    most  = max code, or the one below it where the group holds an infinity or a NaN
    scale = max|v| / most                     over the group's finite v, in float32, IEEE division; at least 2^-126
    code  = round(clamp(v * (1 / scale)))     to nearest even; or, stochastic, floor(v / scale + u) with 16 random bits u
    v     = code * scale

A group with infinities or NaN says so by the sign of its scale, which is negative then, and its outermost codes mean them: +-127 (int8),
+-7 (int4), +-448 (fp8, e4m3) are infinities, -128 and -8 (fp8: NaN) are NaN. So each arrives where it stood, and all others of the group,
one code coarser.

hadamard: a group is rotated first, H v / sqrt(n) with the n x n Hadamard matrix, which spreads an outlier over it (SDP4Bit, arXiv
2410.15526). Sums are taken as rotated, and rotated back at the end. An infinity or a NaN then reaches all of its group. The sums of a
rotation are up to n times as
large as v: tensors are scaled by ROOM before and by its inverse after (`lowered`, `raised`), so that they stay in the range. Powers of two
change no other bit; what is below 2^-106 is lost.

Plain torch, on any device; the kernels of rooftop/kernels/comm do the same, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROUPS = (32, 64, 128, 256)
SMALLEST = 2.0**-126
# 256 for the additions of a rotation, 16 for what they give, twice each way, with 16 ranks and the error of a wire to spare
ROOM = 2.0**-20
# by which rounding may push a rotated sum out of the range, of its largest number
MARGIN = {"bf16": 0.0, "fp8": 0.25, "int8": 0.0625, "int4": 0.5}


@dataclass(frozen=True)
class Wire:
    name: str
    bits: int
    most: float = 0.0  # the largest code; 0: no codes and no scales
    next: float = 0.0  # the one below it


WIRES = {w.name: w for w in (Wire("bf16", 16), Wire("fp8", 8, 448, 416), Wire("int8", 8, 127, 126), Wire("int4", 4, 7, 6))}


def wire_of(what: str, name: str, group: int, hadamard: bool, stochastic: bool) -> Wire:
    """The wire of that name. Raises ValueError for names, groups and options that there are not or that do not go together, TypeError for
    other types."""
    if not isinstance(name, str) or name not in WIRES:
        raise ValueError(f"{what}: wire is {name!r}; accepted are {', '.join(map(repr, WIRES))}")
    if isinstance(group, bool) or not isinstance(group, int):
        raise TypeError(f"{what}: group_size is {group!r}; it must be one of {', '.join(map(str, GROUPS))}")
    if group not in GROUPS:
        raise ValueError(f"{what}: group_size is {group}; accepted are {', '.join(map(str, GROUPS))}")
    if hadamard and name == "bf16":
        raise ValueError(f"{what}: hadamard=True smooths what is quantised; wire 'bf16' is not")
    if stochastic and name not in ("int8", "int4"):
        raise ValueError(f"{what}: stochastic=True is for wires 'int8' and 'int4'; wire is {name!r}")
    return WIRES[name]


def padded(count: int, group: int) -> int:
    """Elements in whole groups."""
    return -(-count // group) * group


def stripe(count: int, ranks: int, group: int) -> int:
    """Elements of each rank's share of `count`: whole groups, the same for all; the last shares may hold fewer, or none."""
    return padded(-(-count // ranks), group)


def message_bytes(wire: Wire, group: int, count: int) -> int:
    n = padded(count, group)
    return 2 * n if wire.bits == 16 else -(-(n * wire.bits // 8 + 4 * (n // group)) // 16) * 16


def rotate(v: Tensor, group: int) -> Tensor:
    """H v / sqrt(group) of each group of the last dimension; its own inverse. Additions in the order of the kernels."""
    import torch

    shape, h = v.shape, 1
    while h < group:
        pairs = v.reshape(-1, 2, h)
        v = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1)
        h *= 2
    return (v.reshape(-1) * (1 / sqrt(group))).reshape(shape)


def rows_of(x: Tensor, group: int, hadamard: bool) -> Tensor:
    """[R, n] in float32, filled up to whole groups, rotated if asked: what `encode` takes."""
    import torch

    v = torch.nn.functional.pad(x.float(), (0, -x.shape[-1] % group))
    return rotate(v, group) if hadamard else v


def encode(v: Tensor, wire: Wire, group: int, random: Tensor | None = None) -> Tensor:
    """Messages uint8 [R, bytes] of rows float32 [R, whole groups]. `random`: 16 bits for each element, for stochastic rounding."""
    import torch

    rows, n = v.shape
    if wire.bits == 16:
        return v.to(torch.bfloat16).contiguous().view(torch.uint8).reshape(rows, 2 * n)
    g = v.reshape(rows, n // group, group)
    finite = g.isfinite()
    bad = ~finite.all(2, keepdim=True) if n else finite.new_zeros(rows, 0, 1)
    most = torch.where(bad, wire.next, wire.most).to(torch.float32)
    size = g.abs().where(finite, g.new_zeros(()))
    scale = ((size.amax(2, keepdim=True) if n else size.new_zeros(rows, 0, 1)) / most).clamp(min=SMALLEST)
    t = torch.minimum(torch.maximum(g.nan_to_num(0.0, 0.0, 0.0) * (torch.ones_like(scale) / scale), -most), most)
    if wire.name == "fp8":
        codes = t.to(torch.float8_e4m3fn).view(torch.uint8)
        codes = torch.where(g.isinf(), torch.where(g > 0, 0x7E, 0xFE).to(torch.uint8), codes)
        codes = torch.where(g.isnan(), torch.full_like(codes, 0x7F), codes)
    else:
        k = t.round().to(torch.int32) if random is None else (
            (t * 65536).round().to(torch.int32) + random.to(torch.int32).reshape(g.shape)
        ) >> 16
        edge = int(wire.most)
        k = torch.where(g.isinf(), torch.where(g > 0, edge, -edge).to(torch.int32), k)
        k = torch.where(g.isnan(), torch.full_like(k, -edge - 1), k) & (2**wire.bits - 1)
        codes = k.to(torch.uint8) if wire.bits == 8 else (k[..., 0::2] | k[..., 1::2] << 4).to(torch.uint8)
    stored = torch.where(bad, -scale, scale).reshape(rows, n // group)
    message = torch.cat((codes.reshape(rows, n * wire.bits // 8), stored.contiguous().view(torch.uint8).reshape(rows, 4 * (n // group))), 1)
    return torch.nn.functional.pad(message, (0, -message.shape[1] % 16))


def values(messages: Tensor, wire: Wire, group: int, count: int) -> Tensor:
    """float32 [R, whole groups] of messages [R, bytes] of `count` elements each; still rotated where they were."""
    import torch

    rows, n = messages.shape[0], padded(count, group)
    if wire.bits == 16:
        return messages.reshape(-1).view(torch.bfloat16).reshape(rows, n).float()
    split = n * wire.bits // 8
    codes = messages[:, :split]
    stored = messages[:, split : split + 4 * (n // group)].contiguous().view(torch.float32).reshape(rows, n // group, 1)
    bad, scale = stored < 0, stored.abs()
    if wire.name == "fp8":
        v = codes.contiguous().view(torch.float8_e4m3fn).float()
        edge = 448.0
    else:
        k = codes.to(torch.int32)
        if wire.bits == 4:
            k = torch.stack((k & 15, k >> 4), 2).reshape(rows, n)
        half = 2 ** (wire.bits - 1)
        v = ((k ^ half) - half).to(torch.float32)
        edge = wire.most
    v = v.reshape(rows, n // group, group)
    found = v * scale
    found = torch.where(bad & (v.abs() == edge), v.sign() * float("inf"), found)
    if wire.name != "fp8":
        found = torch.where(bad & (v < -edge), float("nan"), found)
    return found.reshape(rows, n)


def total(parts: Tensor) -> Tensor:
    """Rows added in their order in float32: [W, n] to [n]. One order, so one result wherever it is taken."""
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def restored(v: Tensor, group: int, hadamard: bool, count: int) -> Tensor:
    """`rows_of` undone: rotated back, and cut to `count` elements."""
    return (rotate(v, group) if hadamard else v)[..., :count]


def lowered(x: Tensor) -> Tensor:
    """x scaled so that no rotation of it leaves the range: in x's dtype, float16 in float32."""
    import torch

    return (x.float() if x.dtype == torch.float16 else x) * ROOM


def raised(y: Tensor, dtype: torch.dtype, wire: Wire, ranks: int) -> Tensor:
    """What came of a `lowered` tensor, scaled back, in `dtype`. Of one rank's finite numbers (`ranks` is 1) none becomes infinite: one that
    rounding pushed out of the range is the largest number; of a sum that holds up to MARGIN beyond it, and more is an infinity, as of sums
    that are not rotated."""
    import torch

    largest = torch.finfo(dtype).max
    v = y * (1 / ROOM)
    known = torch.finfo(y.dtype).max if ranks == 1 else largest * (1 + MARGIN[wire.name]) * ROOM
    return torch.where(y.abs() <= known, v.clamp(-largest, largest), v).to(dtype)
