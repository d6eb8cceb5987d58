"""What the portable attention kernels share: which keys a tile of queries sees, and the scores of a tile, with all that is added to them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Meta, Problem
from rooftop.ops._attention import UNBOUNDED

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sequence(tile, cu_q, cu_k, N, TQ, TK, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """(first query, queries, first key, keys, first row of the tile within the sequence) of the tile-th tile of packed sequences. Bounds that fit nothing are
    taken as the nearest that do. Queries before the first and after the last sequence are sequences of no keys. Past the last tile: no queries."""
    first = 0
    count = tl.minimum(tl.maximum(tl.load(cu_q).to(tl.int32), 0), TQ)
    first_key = 0
    keys = 0
    next_key = tl.minimum(tl.maximum(tl.load(cu_k).to(tl.int32), 0), TK)
    rest = tile
    n = 0
    while (n <= N) & (rest * BLOCK >= count):
        rest -= (count + BLOCK - 1) // BLOCK
        first += count
        first_key = next_key
        inner = n < N
        end = tl.load(cu_q + n + 1, mask=inner, other=0).to(tl.int32)
        end = tl.where(inner, tl.minimum(tl.maximum(end, first), TQ), TQ)
        end_key = tl.load(cu_k + n + 1, mask=inner, other=0).to(tl.int32)
        next_key = tl.where(inner, tl.minimum(tl.maximum(end_key, first_key), TK), first_key)
        count = end - first
        keys = next_key - first_key
        n += 1
    return first, count, first_key, keys, rest * BLOCK


@triton.jit
def added(z, rows, columns, rows_in, columns_in, bias, bias_row, bias_column, slope, position, FACTOR: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scores, times FACTOR, with bias and ALiBi added. `rows`, `columns`: queries and keys within the sequence."""
    if BIAS:
        at = rows.to(tl.int64)[:, None] * bias_row + columns.to(tl.int64)[None, :] * bias_column
        z += tl.load(bias + at, mask=rows_in[:, None] & columns_in[None, :], other=0.0).to(tl.float32) * FACTOR
    if ALIBI:
        z -= tl.abs((rows + position)[:, None] - columns[None, :]).to(tl.float32) * (slope * FACTOR)
    return z


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    """By one exponential of a negative number: no overflow, and nothing lost near 0 that float32 scores have."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    t = (1 - e) / (1 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def seen(rows, columns, position, keys, LEFT: tl.constexpr, RIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether query `rows` sees key `columns`. `position`: keys - queries."""
    inside = columns[None, :] < keys
    apart = columns[None, :] - (rows + position)[:, None]
    if LEFT >= 0:
        inside &= apart >= -LEFT
    if RIGHT >= 0:
        inside &= apart <= RIGHT
    return inside


def option(p: Problem, name: str) -> int:
    return int(p.option(name))


def refused(p: Problem, names: tuple[str, ...]) -> str | None:
    """None, or why the portable kernels do not take the tensors of a call: `names` are those beside q, k and v that they cannot."""
    q, k, v = p["q"], p["k"], p["v"]
    if q.dtype not in ("f16", "bf16") or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"takes f16 and bf16, alike for q, k and v; given {q.dtype}, {k.dtype}, {v.dtype}"
    for name in names:
        if p.get(name) is not None:
            return f"takes no {name}"
    if float(p.option("dropout_p")):
        return "takes no dropout"
    if q.numel == 0 or k.numel == 0:
        return "there is nothing to multiply"
    if max(q.shape[1], k.shape[1]) >= 2**30:
        return "takes fewer than 2^30 queries and keys"
    return None


def strides(p: Problem, letter: str, name: str) -> dict[str, int]:
    """Strides of batch, token and head by the names that the kernels use."""
    batch, token, head, _ = p[name].strides
    return {f"{letter}b": batch, f"{letter}s": token, f"{letter}h": head}


def broadcast(meta: Meta | None) -> dict[str, int]:
    """Strides of a bias [B, H, Sq, Sk], 0 where it is broadcast."""
    found = (0, 0, 0, 0) if meta is None else tuple(0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True))
    return dict(zip(("zb", "zh", "zs", "zk"), found, strict=True))


def pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def packed(p: Problem) -> bool:
    return p.get("cu_seqlens_q") is not None


def tiles(p: Problem, block: int, name: str = "q") -> int:
    """Tiles of queries (or keys) of one head of one batch: of packed sequences, as many as any bounds can need."""
    total = p[name].shape[1]
    if not packed(p):
        return -(-total // block)
    sequences = p["cu_seqlens_q"].shape[0] + 1
    return total // block + min(sequences, total)


def windows(p: Problem) -> dict[str, Any]:
    left, right = option(p, "left"), option(p, "right")
    return {"LEFT": left if left != UNBOUNDED else -1, "RIGHT": right if right != UNBOUNDED else -1}
