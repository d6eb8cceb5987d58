"""2:4: of every four neighbours of a row at most two are not zero. How the two and their places are stored.

Values are [M, 2 ceil(K / 4)]: of each group of four the two that are kept, in their order. A code of four bits says which: the place of the
first and, two bits higher, that of the second; the first is always before the second, so there are six codes.

Metadata are int32 words [ceil(M / 16), ceil(K / 256), 32, 4], as a warp asks for them: what `mma.sp` and `wgmma.sp` of 16-bit operands take
without a shuffle. Lane 4 g + t of the warp that has rows 16 s to 16 s + 15 finds in its word i of block c the codes of the 16 columns from
256 c + 64 i + 16 t on: of row 16 s + g in the low half, of row 16 s + g + 8 in the high half, the first group lowest. Instructions of 32
columns read lanes t = 0, 1 (selector 0), then t = 2, 3 (selector 1). Instructions of 8-bit operands take 64 columns, and in lane t those of
row 16 s + g + 8 (t % 2), 32 columns from 32 (t / 2) on: its own half of the word and its neighbour's. Past M and K stands the code of the
first two places.

Source: PTX ISA, "Matrix fragments for multiply-accumulate operation with sparse matrix A"."""

from __future__ import annotations

import torch
from torch import Tensor

CODES = (4, 8, 12, 9, 13, 14)  # places 01, 02, 03, 12, 13, 23


def meta_shape(m: int, k: int) -> tuple[int, int, int, int]:
    return -(-m // 16), -(-k // 256), 32, 4


def pack(codes: Tensor) -> Tensor:
    """Codes [M, groups], whole numbers, as metadata words."""
    m, groups = codes.shape
    high, wide = -(-m // 16), -(-groups // 64)
    whole = torch.full((high * 16, wide * 64), CODES[0], dtype=torch.int32, device=codes.device)
    whole[:m, :groups] = codes.to(torch.int32)
    parts = whole.view(high, 2, 8, wide, 4, 4, 4)  # stripe, half, g, block, word, t, group
    low = sum(parts[..., j] << (4 * j) for j in range(4))
    words = low[:, 0] | (low[:, 1] << 16)  # stripe, g, block, word, t
    return words.permute(0, 2, 1, 4, 3).reshape(high, wide, 32, 4).contiguous()


def unpack(meta: Tensor, m: int, groups: int) -> Tensor:
    """The codes [m, groups] of metadata words."""
    high, wide = meta.shape[:2]
    words = meta.view(high, wide, 8, 4, 4).permute(0, 2, 1, 4, 3)  # stripe, g, block, word, t
    shifts = torch.arange(0, 32, 4, device=meta.device, dtype=torch.int32)
    parts = ((words.unsqueeze(-1) >> shifts) & 15).unflatten(-1, (2, 4))  # ..., half, group
    return parts.permute(0, 5, 1, 2, 3, 4, 6).reshape(high * 16, wide * 64)[:m, :groups]


def places(codes: Tensor) -> Tensor:
    """Columns of the values [M, 2 groups] of codes [M, groups]."""
    pair = torch.stack((codes & 3, codes >> 2), -1).to(torch.int64)
    return (pair + 4 * torch.arange(codes.shape[1], device=codes.device)[:, None]).flatten(1)


def expand(values: Tensor, meta: Tensor, k: int) -> Tensor:
    """The dense matrix [M, k]."""
    m, kept = values.shape
    at, bits = places(unpack(meta, m, kept // 2)), _bits(values)
    whole = torch.zeros(m, 2 * kept, dtype=bits.dtype, device=values.device).scatter(1, at, bits)[:, :k]
    return whole if bits is values else whole.view(values.dtype)  # a view of another dtype stops gradients


def select(keys: Tensor) -> Tensor:
    """Codes [M, groups] of the two largest keys [M, K] of each group, none below zero; the earlier place where two are equal."""
    whole = padded(keys)
    order = whole.view(keys.shape[0], whole.shape[1] // 4, 4).argsort(dim=-1, descending=True, stable=True)[..., :2].sort(-1).values
    return (order[..., 0] | (order[..., 1] << 2)).to(torch.int32)


def padded(x: Tensor) -> Tensor:
    """With zeros up to a multiple of four columns."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % 4))


def compress(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Values and metadata of a dense matrix by its codes; what the codes leave out is lost."""
    bits = _bits(x)
    values = padded(bits).gather(1, places(codes)).contiguous()
    return values if bits is x else values.view(x.dtype), pack(codes)


def _bits(x: Tensor) -> Tensor:
    """Values of fp8 as bytes, which torch pads, gathers and scatters."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 and x.dtype.is_floating_point else x
