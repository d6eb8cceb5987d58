"""Which kernel of layer_norm__cuda_sm90.cu runs, with which launch config: rooftop/kernels/norm/_fwd_sm90.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.norm import _fwd_sm90


def prefers(p: Problem, head: Head) -> int:
    """The preference among kernels that support the call (the highest runs): 1 if faster than the Triton kernel, measured on an H100: rows of more than 64
    KiB; rows of more than 6 KiB (4 KiB in a ring) that are unaligned or no multiple of 16 elements; without a residual, other rows of more than 6 KiB, and
    those of a power of two of columns from 512 bytes on. Otherwise 0, as the Triton kernel returns, which is then taken. layer_norm__cuda_sm80 returns 2
    where it is faster still."""
    r, x = _fwd_sm90.of(p, centre=True), p["x"]
    if r.bytes > 65536 and 16 * r.count < r.sms // 2:
        return 0  # clusters of so few rows leave most of the card idle
    odd = x.shape[1] % 16 != 0 or x.strides[0] % 16 != 0 or x.align < 16
    if r.bytes > 65536 or (odd and (r.bytes > 6144 or _fwd_sm90.through_a_ring(p, centre=True))):
        return 1
    power = x.shape[1] & (x.shape[1] - 1) == 0
    return int(r.slices.aligned and not r.residual and ((r.bytes >= 512 and power) or r.bytes > 6144))


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _fwd_sm90.choose(_fwd_sm90.of(p, centre=True))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _fwd_sm90.configs(_fwd_sm90.of(p, centre=True))


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _fwd_sm90.launches(p, config, head, centre=True)
