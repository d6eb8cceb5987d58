"""Which kernel of rms_norm__cuda_sm90.cu runs, with which launch config: rooftop/kernels/norm/_fwd_sm90.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.norm import _fwd_sm90


def prefers(p: Problem, head: Head) -> int:
    """Preferred to Triton where it was faster on an H100: rows too long for a Triton block, odd rows, and rows of 2 KiB and more. rms_norm__cuda_sm80 has the
    higher preference where that is faster."""
    r, x = _fwd_sm90.of(p, centre=False), p["x"]
    if r.bytes > 65536 and 16 * r.count < r.sms // 2:
        return 0  # clusters of so few rows leave most of the card idle
    odd = x.shape[1] % 16 != 0 or x.strides[0] % 16 != 0 or x.align < 16
    if r.bytes > 131072 or (r.bytes > 65536 and x.shape[1] > 32768) or (r.bytes > 6144 and odd):
        return 1
    size = 2048 <= r.bytes <= 8192 or r.bytes > 10240
    return int(size and r.slices.aligned and not r.residual and x.nbytes > 32 << 20)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _fwd_sm90.choose(_fwd_sm90.of(p, centre=False))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _fwd_sm90.configs(_fwd_sm90.of(p, centre=False))


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _fwd_sm90.launches(p, config, head, centre=False)
