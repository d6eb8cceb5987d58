"""The random bits of every op that needs some: a hash of a seed and an element's index. The same bits in torch (here), Triton
(rooftop/kernels/_device/random.py) and CUDA C++ (rooftop/kernels/_device/words.cuh); 32-bit multiplications, xors and shifts alone.

    mix(h): h ^= h >> 16; h *= 0x85EBCA6B; h ^= h >> 13; h *= 0xC2B2AE35; h ^= h >> 16
    bits(seed, i) = mix(mix(low(i) ^ (seed · 0x9E3779B9)) ^ (seed + high(i) · 0x7FEB352D))

mix is the finaliser of MurmurHash3 (Appleby, public domain). The seed enters twice: once only, and the bits of one seed would be those of
another in an order changed by an xor. Counter-based: any element's bits can be had alone, in any order, in the forward and again in the
backward, as with Philox (Salmon et al. 2011), at a third of its multiplications and none of 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LOW = 0xFFFFFFFF
ROUND = 1 << 15  # elements that are hashed together on the CPU; divides 2^32
FACTORS = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x7FEB352D)


def bits(seed: int, count: int, device: Any = "cpu", start: int = 0) -> Tensor:
    """The 32 random bits of elements `start` to `start + count`, as int64 of 0 to 2^32 - 1. `seed`: any whole number, its low 32 bits
    count."""
    import torch

    seed &= LOW
    index = torch.arange(start, start + count, dtype=torch.int64, device=device)
    first = _mix((index & LOW) ^ (seed * 0x9E3779B9 & LOW))
    return _mix(first ^ ((seed + (index >> 32) * 0x7FEB352D) & LOW))


def _mix(h: Tensor) -> Tensor:
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & LOW  # products wrap at 64 bits, which leaves their low 32 right
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & LOW
    return h ^ (h >> 16)


def halves(seed: int, count: int, device: Any = "cpu", start: int = 0) -> Tensor:
    """16 random bits of elements `start` to `start + count`, as int64. Eight neighbours share a mix, two of them a word:

        state(seed, b)   = mix(low(b) ^ (seed · 0x9E3779B9)) ^ (seed + high(b) · 0x7FEB352D), b = i // 8
        word(seed, b, j) = low(p) ^ high(p), p = state · FACTORS[j] in 64 bits, j = i // 2 % 4

    of which an even i has the low half. For rounding, where 16 bits decide: a mix and four products for 8 elements, where `bits` takes 16
    mixes."""
    import torch

    seed &= LOW
    index = torch.arange(start, start + count, dtype=torch.int64, device=device)
    block = index >> 3
    state = _mix((block & LOW) ^ (seed * 0x9E3779B9 & LOW)) ^ ((seed + (block >> 32) * 0x7FEB352D) & LOW)
    product = state * torch.tensor(FACTORS, dtype=torch.int64, device=device)[index >> 1 & 3]
    word = (product ^ (product >> 32)) & LOW
    return word >> (index % 2 * 16) & 0xFFFF


def threshold(p: float) -> int:
    """An element is dropped where its bits are below this: with probability p, to 2^-32."""
    return min(round(p * 2**32), LOW)


def kept(p: float, seed: int, shape: tuple[int, ...], device: Any) -> Tensor:
    """The mask of dropout: False with probability `p`; elements are counted row-major, whatever the strides."""
    from math import prod

    return (bits(seed, prod(shape), device) >= threshold(p)).view(shape)


def kept_on_cpu(p: float, seed: int, shape: tuple[int, ...]) -> Tensor:
    """The same as `kept` on the CPU, in wrapping int32 and a cache's worth at a time."""
    from math import prod

    import torch

    found = torch.empty(prod(shape), dtype=torch.bool)
    base, seed, at_once = torch.arange(min(ROUND, found.numel()), dtype=torch.int32), seed & LOW, ROUND
    part, shifted = torch.empty_like(base), torch.empty_like(base)
    for start in range(0, found.numel(), at_once):
        n = min(at_once, found.numel() - start)
        h, s = part[:n], shifted[:n]
        torch.add(base[:n], signed(start), out=h)
        for word in (seed * 0x9E3779B9, seed + (start >> 32) * 0x7FEB352D):
            h.bitwise_xor_(signed(word))
            for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
                torch.bitwise_right_shift(h, shift, out=s)
                h.bitwise_xor_(s.bitwise_and_((1 << (32 - shift)) - 1))
                if factor != 1:
                    h.mul_(signed(factor))
        torch.ge(h.bitwise_xor_(-(2**31)), signed(threshold(p) ^ 0x80000000), out=found[start : start + n])  # as unsigned numbers
    return found.view(shape)


def signed(seed: int) -> int:
    """The low 32 bits of a seed as a signed number, which is how kernels get it."""
    return ((seed & LOW) ^ 0x80000000) - 0x80000000
