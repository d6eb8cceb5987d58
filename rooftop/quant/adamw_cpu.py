"""Steps of `rooftop.adamw_8bit` on the CPU, of many parameters at once and with the same bits: what the op does, in passes over arrays that
stay in the cache.

Parameters are cut into pieces of at most PIECE elements, and pieces are gathered into batches of so many; a row of a batch is a block of
BLOCK elements of one parameter, padded with zeros. The random bits are those of rooftop/formats/random_bits.py `halves`, eight elements a
hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from rooftop.formats.number_formats import decode, encode, scale_of
from rooftop.formats.quantized import Quantized
from rooftop.formats.random_bits import FACTORS, LOW
from rooftop.formats.random_bits import signed as _signed
from rooftop.ops.adamw_8bit import BLOCK, ROOT, SMALLEST

PIECE = 1 << 17
EIGHTHS = BLOCK // 8  # hashes of a block


class Update(NamedTuple):
    """A parameter's part in a step: flat tensors of its elements, its states, and the seed of its random bits."""

    param: Tensor
    grad: Tensor
    first: Quantized
    second: Quantized
    seed: int


class Piece(NamedTuple):
    """`length` elements of a parameter from `start` on, which is a multiple of BLOCK."""

    of: Update
    start: int
    length: int

    @property
    def rows(self) -> int:
        return -(-self.length // BLOCK)

    def elements(self, t: Tensor) -> Tensor:
        return t if self.length == t.numel() else t[self.start : self.start + self.length]

    def blocks(self, t: Tensor) -> Tensor:
        return t if self.length == self.of.param.numel() else t[self.start // BLOCK : self.start // BLOCK + self.rows]


def step(updates: Iterable[Update], numbers: tuple[float, ...], rounding: str) -> None:
    """One step of each. `numbers`: those of rooftop/ops/adamw_8bit.py `numbers`, alike for all."""
    for batch in _batches(updates):
        _step(batch, numbers, rounding)


def _batches(updates: Iterable[Update]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    rows = 0
    for update in updates:
        n = update.param.numel()
        for start in range(0, n, PIECE):
            piece = Piece(update, start, min(PIECE, n - start))
            if batch and rows + piece.rows > PIECE // BLOCK:
                yield batch
                batch, rows = [], 0
            batch.append(piece)
            rows += piece.rows
    if batch:
        yield batch


def _step(batch: list[Piece], numbers: tuple[float, ...], rounding: str) -> None:
    size, root, keep, beta1, beta2, eps, bound = numbers
    rest1, rest2 = _rest(beta1), _rest(beta2)
    rows = [p.rows for p in batch]
    params = [p.elements(p.of.param) for p in batch]
    both = [[(p, p.of.first) for p in batch], [(p, p.of.second) for p in batch]]
    codes = [[p.elements(q.codes.view(torch.uint8)) for p, q in which] for which in both]
    scales = [[p.blocks(q.scale) for p, q in which] for which in both]
    param, grad = _gathered(params, torch.float32), _gathered([p.elements(p.of.grad) for p in batch], torch.float32)

    held = torch.empty(2, sum(rows), BLOCK)  # m and r
    for state, its_codes, its_scales in zip(held, codes, scales, strict=True):
        torch.index_select(_table(), 0, _gathered(its_codes, torch.int64), out=state.view(-1))
        state.mul_(_gathered(its_scales, torch.float32, 1)[:, None])
    m, r = held.view(2, -1)
    part = grad * rest1
    m.mul_(beta1).add_(part)
    r.copy_(r.mul_(r).mul_(beta2).add_(torch.mul(grad, grad, out=part).mul_(rest2)).double().sqrt_())
    torch.copysign(torch.minimum(m.abs(), torch.mul(r, bound, out=part), out=part), m, out=m)
    param.mul_(keep).sub_(torch.div(m, torch.mul(r, root, out=part).add_(eps), out=part).mul_(size))
    _scattered(param, params)

    largest = torch.stack([torch.abs(m, out=part).view(-1, BLOCK).amax(1), held[1].amax(1)])
    if not (clean := largest.sum().isfinite().item()):
        largest = held.where(held.isfinite(), 0).abs().amax(2)
    scale = scale_of(largest, "e4m3", "f32")
    torch.maximum(held[1], held[1].sign().mul_(scale[1, :, None] * SMALLEST), out=held[1])
    held.div_(scale[:, :, None])
    random = _random_bits(batch, rows) if rounding == "stochastic" else None
    found = _codes(held, random) if clean else encode(held, "e4m3", rounding, random)
    for which in range(2):
        _scattered(found[which].view(-1), codes[which])
        _scattered(scale[which], scales[which], 1)


@cache
def _rest(beta: float) -> float:
    """1 - beta as float32 has it."""
    return float(1 - torch.tensor(beta, dtype=torch.float32))


@cache
def _table() -> Tensor:
    """The value of each code."""
    return decode(torch.arange(256, dtype=torch.uint8), "e4m3")


def _gathered(parts: list[Tensor], dtype: torch.dtype, block: int = BLOCK) -> Tensor:
    """Parts one after another, each padded to whole blocks. A single whole part of this dtype is itself."""
    if len(parts) == 1 and parts[0].numel() % block == 0:
        return parts[0].to(dtype)
    none = torch.zeros(block, dtype=parts[0].dtype)
    padded = [t for part in parts for t in ((part, none[: -part.numel() % block]) if part.numel() % block else (part,))]
    return torch.cat(padded, out=torch.empty(sum(t.numel() for t in padded), dtype=dtype))


def _scattered(whole: Tensor, parts: list[Tensor], block: int = BLOCK) -> None:
    """The inverse of `_gathered`, into the parts."""
    if len(parts) == 1:
        if whole.data_ptr() != parts[0].data_ptr():
            parts[0].copy_(whole[: parts[0].numel()])
        return
    sizes = [n for part in parts for n in (part.numel(), -part.numel() % block)]
    torch._foreach_copy_(parts, list(whole.split(sizes)[::2]))


def _random_bits(batch: list[Piece], rows: list[int]) -> Tensor:
    """16 random bits for each element of both states [2, rows, BLOCK], int32. Hashes are of 32 bits, whose products wrap; a piece's index
    has one high half."""
    seeds = [[(p.of.seed ^ x) & LOW for p in batch] for x in (0, ROOT)]
    starts = [p.start // 8 for p in batch]
    highs = [(start >> 32) * FACTORS[3] for start in starts]
    into = (
        torch.tensor([[seed * FACTORS[0] & LOW for seed in of] for of in seeds]),
        torch.tensor([[seed + high for seed, high in zip(of, highs, strict=True)] for of in seeds]),
    )
    counts, eighths = torch.tensor(rows), torch.arange(EIGHTHS)
    first = torch.tensor(starts) - (counts.cumsum(0) - counts) * EIGHTHS
    a, b = (t.to(torch.int32).repeat_interleave(counts, 1)[:, :, None] for t in into)
    block = first.repeat_interleave(counts).add_(torch.arange(0, sum(rows) * EIGHTHS, EIGHTHS))[:, None].add(eighths).to(torch.int32)
    h = block ^ a  # [2, rows, EIGHTHS]
    for shift, factor in ((16, FACTORS[1]), (13, FACTORS[2])):
        h.bitwise_xor_((h >> shift).bitwise_and_(LOW >> shift)).mul_(_signed(factor))
    h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF)).bitwise_xor_(b)
    word = h.to(torch.int64).bitwise_and_(LOW)[..., None] * torch.tensor(FACTORS)
    word.bitwise_xor_(word >> 32)
    return word.to(torch.int32).view(torch.uint16).view(2, -1, BLOCK).to(torch.int32)


def _codes(v: Tensor, random: Tensor | None) -> Tensor:
    """What `encode` makes of finite values v [2, rows, BLOCK] that were divided by their scale; v[1] is not negative."""
    if random is None:
        return v.clamp_(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    bits = v.mul_(2.0**-120).view(torch.int32)  # with the exponents of e4m3: a code, and 20 bits of fraction
    sign = (bits[0] >> 24).bitwise_and_(0x80)
    bits[0].bitwise_and_(0x7FFFFFFF)
    code = bits.add_(random, alpha=16).add_(8).bitwise_right_shift_(20)  # never past 448: v exceeds it by two units of 20 bits at most
    code[0].bitwise_or_(sign)
    return code.to(torch.uint8)
