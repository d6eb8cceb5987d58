"""Backward of attention on Hopper: rows, tiles and masks, shared by the launches."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from rooftop.kernels.attention._packed_sm90 import tile_of
from rooftop.kernels.attention._scores_sm90 import SMALL, TANH_OF, TANH_OPERANDS, distance

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit(do_not_specialize=("SQ", "PADDED"))
def common_of(dout, out, dlse, lse, norms, deltas, SQ, PADDED, H, gb, gs, gh, ob, os, oh, DV: gl.constexpr, SIZE: gl.constexpr):
    """norms and deltas [B · H, PADDED], 0 if there is no such query or it attends to no key."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SIZE, SIZE // 8], [4, 1], [1, 0])
    row = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, L))
    head = gl.program_id(1).to(gl.int64)
    batch = gl.program_id(2).to(gl.int64)
    d = gl.arange(0, SIZE, gl.SliceLayout(0, L))
    there = row < SQ
    inside = there[:, None] & (d < DV)[None, :]
    token = row.to(gl.int64)
    a = gl.load(dout + batch * gb + head * gh + token[:, None] * gs + d[None, :], mask=inside, other=0.0).to(gl.float32)
    b = gl.load(out + batch * ob + head * oh + token[:, None] * os + d[None, :], mask=inside, other=0.0).to(gl.float32)
    total = gl.sum(a * b, 1)
    at = (batch * H + head) * SQ + token
    if dlse is not None:
        total -= gl.load(dlse + at, mask=there, other=0.0)
    norm = gl.load(lse + at, mask=there, other=0.0) * LOG2E
    norm = gl.where(norm == float("-inf"), 0.0, norm)
    to = (batch * H + head) * PADDED + token
    gl.store(norms + to, norm, mask=row < PADDED)
    gl.store(deltas + to, total, mask=row < PADDED)


@gluon.jit
def block_of(plan, tiles, heads, section, mine, others, BLOCK: gl.constexpr, LAST_FIRST: gl.constexpr):
    """(batch times heads, first token of a sequence, its tokens, those of the other side, row within the sequence) of this block's tile:
    grouped order, the tiles of as many heads as the L2 holds together. `mine`, `others`: tokens of the two sides. Packed sequences: `plan`
    lists the tiles; a block past the last has no tokens."""
    PACKED: gl.constexpr = plan is not None
    if PACKED:
        tiles = gl.load(plan)
    whole = section * tiles
    before = gl.program_id(0) // whole * section
    here = gl.minimum(section, heads - before)
    if PACKED:
        here = gl.maximum(here, 1)
    rest = gl.program_id(0) % whole
    tile = rest // here
    bh = before + rest % here
    there = 1
    if PACKED:
        there = (bh < heads).to(gl.int32)
        tile = gl.minimum(tile, tiles - 1)
        bh = gl.minimum(bh, heads - 1)
    if LAST_FIRST:
        tile = tiles - 1 - tile
    first, count, first_other, count_other, row = tile_of(plan, tile, mine, others, BLOCK, PACKED)
    return bh, first, count * there, first_other, count_other * there, row


@gluon.jit
def queries_of(column, SQ, SK, BM: gl.constexpr, BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """For a block of keys: the first tile of queries, one past the last, and the bounds (tiles too) between which no mask is needed: every
    query attends to every key."""
    position = SK - SQ
    last = gl.minimum(column + BLOCK, SK) - 1
    begin = 0
    whole = 0
    if RIGHT >= 0:
        begin = gl.maximum(column - position - RIGHT, 0) // BM
        whole = (gl.maximum(last - position - RIGHT, 0) + BM - 1) // BM
    stop = SQ
    edge = SQ
    if LEFT >= 0:
        stop = gl.maximum(gl.minimum(SQ, last - position + LEFT + 1), 0)
        edge = gl.maximum(gl.minimum(SQ, column - position + LEFT + 1), 0)
    end = gl.maximum((stop + BM - 1) // BM, begin)
    whole = gl.minimum(gl.maximum(whole, begin), end)
    return begin, end, whole, gl.minimum(gl.maximum(edge // BM, whole), end)


@gluon.jit
def keys_of(row, SQ, SK, BN: gl.constexpr, BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """For a block of queries: the first tile of keys, one past the last, and the bounds (tiles too) between which no mask is needed: every
    query attends to every key."""
    position = SK - SQ
    last = gl.minimum(row + BLOCK, SQ) - 1
    begin = 0
    whole = 0
    if LEFT >= 0:
        begin = gl.minimum(gl.maximum(row + position - LEFT, 0), SK) // BN
        whole = (gl.minimum(gl.maximum(last + position - LEFT, 0), SK) + BN - 1) // BN
    stop = SK
    edge = SK
    if RIGHT >= 0:
        stop = gl.maximum(gl.minimum(SK, last + position + RIGHT + 1), 0)
        edge = gl.maximum(gl.minimum(SK, row + position + RIGHT + 1), 0)
    end = gl.maximum((stop + BN - 1) // BN, begin)
    whole = gl.minimum(gl.maximum(whole, begin), end)
    return begin, end, whole, gl.minimum(gl.maximum(edge // BN, whole), end)


@gluon.jit
def inside_of(rows, columns, position, count, LEFT: gl.constexpr, RIGHT: gl.constexpr, COUNT_ROWS: gl.constexpr):
    """The mask: whether queries attend to keys, and whether the rows (COUNT_ROWS) or the columns exist."""
    apart = columns - rows - position
    if COUNT_ROWS:
        inside = (rows < count) & (apart == apart)
    else:
        inside = (columns < count) & (apart == apart)
    if RIGHT >= 0:
        inside &= apart <= RIGHT
    if LEFT >= 0:
        inside &= apart >= -LEFT
    return inside


@gluon.jit
def factors_of(scale, softcap, CAP: gl.constexpr):
    """(the factor of a score in base 2, that of what its soft cap takes the tanh of)."""
    if CAP:
        return softcap * LOG2E, scale / softcap * (2 / SMALL)
    return scale * LOG2E, 0.0


@gluon.jit
def capped(z, cap, CAP: gl.constexpr):
    """Scores, or the tanh of capped ones."""
    EACH: gl.constexpr = z.shape[1] // 2  # scores of a thread
    if CAP:
        z = gl.inline_asm_elementwise(TANH_OF[EACH], TANH_OPERANDS[EACH], [z * cap], dtype=gl.float32, is_pure=False, pack=EACH)
    return z


@gluon.jit
def weights_of(z, factor, norm, rows, columns, position, slope, added, ALIBI: gl.constexpr, BIAS: gl.constexpr):
    """exp2 of scores less norm, with a bias `added` and ALiBi of `slope` if there are."""
    if BIAS:
        norm = norm - added.to(gl.float32) * LOG2E
    if ALIBI:
        return gl.exp2(z * factor - norm - distance(columns - (rows + position)) * slope)
    return gl.exp2(z * factor - norm)


@gluon.jit
def load_bias(z_desc, z_tiles, z_full, z_empty, batch, head, row, column, DOWN: gl.constexpr, RIGHT: gl.constexpr, n):
    """The n-th tile of a bias for each of two groups: the second's lies DOWN rows and RIGHT columns further."""
    b = gl.minimum(batch, z_desc.shape[0] - 1)
    h = gl.minimum(head, z_desc.shape[1] - 1)
    for g in gl.static_range(2):
        mbarrier.wait(z_empty.index(g), (n & 1) ^ 1)
        mbarrier.expect(z_full.index(g), z_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(z_desc, [b, h, row + g * DOWN, column + g * RIGHT], z_full.index(g), z_tiles.index(g))


@gluon.jit
def store_columns(to, x, START: gl.constexpr, first, row, stored, most, stride, WIDTH: gl.constexpr):
    """x, 64 rows of a sequence from `row` on, as columns from START on of a gradient of WIDTH columns. Of the sequence, whose first token is
    `first`, `stored` rows are written: zeros from `most` on."""
    rows = row + gl.arange(0, 64, gl.SliceLayout(1, x.type.layout))
    columns = START + gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    x = gl.where((rows < most)[:, None], x, 0.0)
    inside = (rows < stored)[:, None] & (columns < WIDTH)[None, :]
    gl.store(to + (first + rows).to(gl.int64)[:, None] * stride + columns[None, :], x.to(to.dtype.element_ty), mask=inside)


@gluon.jit
def left_operand(x, ring, acc):
    """Scores in registers as the left operand of a product with a tile of `ring`."""
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    return gl.convert_layout(x.to(ring.dtype), operand, assert_trivial=True)
