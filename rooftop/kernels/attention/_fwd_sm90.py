"""Shared by the forward kernels on Hopper: the order of the tiles, the keys that each sees, and how results are stored."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from rooftop.kernels.attention._scores_sm90 import columns_of, flat


@gluon.jit
def place(turn, tiles, rows_of_tiles, heads, section):
    """The turn-th tile of this block: (tile of queries from the last, batch times heads). Blocks reverse their order with each turn."""
    blocks = gl.num_programs(0)
    p = gl.program_id(0)
    t = turn * blocks + (blocks - 1 - p if turn % 2 == 1 else p)
    whole = section * rows_of_tiles
    first = t // whole * section
    here = gl.minimum(section, heads - first)
    rest = t % whole
    return t < tiles, rows_of_tiles - 1 - rest // here, first + rest % here


@gluon.jit
def range_of(row, SQ, SK, BM: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """For a tile of queries: the first tile of keys, one past the last, and the bounds (tiles too) between which no mask is needed: every
    query attends to every key."""
    position = SK - SQ
    stop = SK
    edge = SK
    if RIGHT >= 0:
        stop = gl.maximum(gl.minimum(SK, gl.minimum(row + BM, SQ) + position + RIGHT), 0)
        edge = gl.maximum(gl.minimum(SK, row + position + RIGHT + 1), 0)
    begin = 0
    whole = 0
    if LEFT >= 0:
        begin = gl.maximum(row + position - LEFT, 0) // BN
        whole = (gl.maximum(gl.minimum(row + BM, SQ) - 1 + position - LEFT, 0) + BN - 1) // BN
    end = gl.maximum((stop + BN - 1) // BN, begin)
    return begin, end, whole, edge // BN


@gluon.jit
def store_tile(tile, made, out_desc, b, h, row, more=None, REST: gl.constexpr = 0):
    """Stores 64 rows of the result through shared memory, once the store before has read it. With REST, `more` are the columns from 64 on."""
    tma.store_wait(0)
    if REST:
        columns_of(tile, 0, 64).store(made)
        columns_of(tile, 64, REST).store(more)
    else:
        flat(tile).store(made)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [b, h, row, 0], tile)
