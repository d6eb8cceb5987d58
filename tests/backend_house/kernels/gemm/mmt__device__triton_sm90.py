"""mmt with descriptors made by the kernel itself, in scratch memory that Triton asks for. Contract: ops/mmt.py"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem
from rooftop.core.tensor_maps import not_copied


@triton.jit
def _mmt(a, b, c, M, N, K, M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr):
    row, column = tl.program_id(1) * M_TILE, tl.program_id(0) * N_TILE
    a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [M_TILE, K_TILE])
    b = tl.make_tensor_descriptor(b, [N, K], [K, 1], [N_TILE, K_TILE])
    sums = tl.zeros((M_TILE, N_TILE), tl.float32)
    for k in range(0, K, K_TILE):
        sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
    c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [M_TILE, N_TILE])
    c.store([row, column], sums.to(tl.bfloat16))


def supports(p: Problem) -> str | None:
    for name in "abc":
        if not p[name].contiguous or p[name].shape[1] % 8:
            return f"{name} is not contiguous, or its rows are no whole 16 bytes"
        if reason := not_copied(p[name]):
            return f"{name}: {reason}"
    return None


def choose(p: Problem) -> dict[str, Any]:
    return {}


def launches(p: Problem, config: dict[str, Any]) -> list[Launch]:
    (rows, depth), columns = p["a"].shape, p["b"].shape[0]
    args = {"a": "a", "b": "b", "c": "c", "M": rows, "N": columns, "K": depth, "M_TILE": 64, "N_TILE": 64, "K_TILE": 64}
    return [Launch(_mmt, (-(-columns // 64), -(-rows // 64)), args, warps=4, stages=2)]
