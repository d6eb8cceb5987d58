"""Sequences of several lengths on Hopper: the list of the tiles of packed ones, and the part of a tile past the end of its sequence."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

CHUNK = 256  # sequences counted together


@gluon.jit
def later(a, b):
    return gl.maximum(a, b)


@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def rising(bounds, i, last, most, before):
    """Offsets `i` of packed sequences; `last` is the index of the last offset. Decreasing offsets and those past the buffer are clamped."""
    found = gl.load(bounds + i, mask=(i >= 0) & (i <= last), other=0).to(gl.int32)
    found = gl.where(i > last, most, gl.minimum(gl.maximum(found, 0), most))
    return gl.maximum(gl.associative_scan(found, 0, later), before)


@gluon.jit(do_not_specialize=("N", "TQ", "TK"))
def plan_tiles(cu_q, cu_k, plan, N, TQ, TK, BM: gl.constexpr, CHUNK: gl.constexpr):
    """The list of tiles of queries of packed sequences: their number, then for each (first query, queries, first key, keys, row within the
    sequence), eight words apart. Program j lists the j-th tiles of all sequences, after those of the programs before it: in causal calls
    the tiles with the most keys are last. Queries before the first and after the last sequence are treated as sequences without keys."""
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    j = gl.program_id(0)
    lane = gl.arange(0, CHUNK, L)
    before = 0
    place = 0
    total = 0
    for start in range(0, N + 2, CHUNK):
        i = start + lane
        begin = rising(cu_q, i - 1, N, TQ, before)
        tiles = (rising(cu_q, i, N, TQ, begin) - begin + BM - 1) // BM
        tiles = gl.where(i <= N + 1, tiles, 0)
        place += gl.sum(gl.minimum(tiles, j), 0)
        total += gl.sum(tiles, 0)
        before = gl.max(begin, 0)
    if j == 0:
        gl.store(plan, total)
    before = 0
    before_k = 0
    for start in range(0, N + 2, CHUNK):
        i = start + lane
        begin = rising(cu_q, i - 1, N, TQ, before)
        count = rising(cu_q, i, N, TQ, begin) - begin
        first_key = rising(cu_k, i - 1, N, TK, before_k)
        keys = rising(cu_k, i, N, TK, first_key) - first_key
        keys = gl.where((i >= 1) & (i <= N), keys, 0)
        there = (i <= N + 1) & (j * BM < count)
        ones = there.to(gl.int32)
        to = plan + 8 + (place + gl.associative_scan(ones, 0, plus) - ones).to(gl.int64) * 8
        gl.store(to, begin, mask=there)
        gl.store(to + 1, count, mask=there)
        gl.store(to + 2, first_key, mask=there)
        gl.store(to + 3, keys, mask=there)
        gl.store(to + 4, gl.zeros_like(begin) + j * BM, mask=there)
        place += gl.sum(ones, 0)
        before = gl.max(begin, 0)
        before_k = gl.max(first_key, 0)


@gluon.jit
def tile_of(plan, tile, SQ, SK, BM: gl.constexpr, PACKED: gl.constexpr):
    """(first query, queries, first key, keys, row) of a tile of queries."""
    if PACKED:
        at = plan + 8 + tile.to(gl.int64) * 8
        return gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3), gl.load(at + 4)
    return 0, SQ, 0, SK, tile * BM


@gluon.jit
def length_of(at, most):
    """Keys of a sequence: lengths beyond the cache are clamped."""
    return gl.minimum(gl.maximum(gl.load(at).to(gl.int32), 0), most)


@gluon.jit
def clear_rows(values, there, BN: gl.constexpr):
    """Zeros in rows `there` and later of a tile."""
    STEP: gl.constexpr = 32
    WIDE: gl.constexpr = values.shape[1] // 8 if values.shape[1] < 256 else 32
    L: gl.constexpr = gl.BlockedLayout([1, 8], [32 // WIDE, WIDE], [4, 1], [1, 0])
    for i in gl.static_range(BN // STEP):
        if there < (i + 1) * STEP:
            part = values.slice(i * STEP, STEP, dim=0)
            row = i * STEP + gl.arange(0, STEP, gl.SliceLayout(1, L))
            x = part.load(L)
            part.store(gl.where((row < there)[:, None], x, gl.zeros_like(x)))
    fence_async_shared()
    gl.thread_barrier()
