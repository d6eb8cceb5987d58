"""Latent attention on Hopper, of a cache of 8 bits: four warps read the codes and write what they mean into the tiles of tokens.

The queries and two tiles of 16 bits fill the shared memory. So the codes of the next tile are on their way to registers, 36 KB of them, while
those of a tile are converted. (wgmma multiplies 8 bits by 8 bits alone, and values only if tokens are neighbours in memory.)"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

# four codes of e4m3 as two pairs, of float16 and of bfloat16
TO_F16 = gl.constexpr("{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }")
TO_BF16 = gl.constexpr(
    "{ .reg .b16 a, b, x, y; .reg .b32 u, v; .reg .f32 f, g; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 u, a; cvt.rn.f16x2.e4m3x2 v, b; "
    "mov.b32 {x, y}, u; cvt.f32.f16 f, x; cvt.f32.f16 g, y; cvt.rn.bf16x2.f32 $0, g, f; "
    "mov.b32 {x, y}, v; cvt.f32.f16 f, x; cvt.f32.f16 g, y; cvt.rn.bf16x2.f32 $1, g, f; }"
)


@gluon.jit
def _places(table, row, keys, kb, ks, PAGES, PAGE: gl.constexpr):
    """(where tokens lie, in words; whether they exist)."""
    there = row < keys
    if PAGE:
        page = gl.load(table + row // PAGE, mask=there, other=-1)
        there = there & (page >= 0) & (page < PAGES)
        return gl.where(there, page, 0).to(gl.int64) * kb + (row % PAGE).to(gl.int64) * ks, there
    return row.to(gl.int64) * ks, there


@gluon.jit
def _codes(kv, table, token, keys, kb, ks, column, columns, PAGES, PAGE: gl.constexpr, BN: gl.constexpr, WIDTH: gl.constexpr):
    """WIDTH columns of a tile from `column` on, four to a word, 0 outside. `kv`, the columns and the strides count words."""
    WIDE: gl.constexpr = WIDTH // 16
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // WIDE, WIDE], [4, 1], [1, 0])
    row = token + gl.arange(0, BN, gl.SliceLayout(1, L))
    word = column + gl.arange(0, WIDTH // 4, gl.SliceLayout(0, L))
    at, there = _places(table, row, keys, kb, ks, PAGES, PAGE)
    return gl.load(kv + (at[:, None] + word[None, :]), mask=there[:, None] & (word < columns)[None, :], other=0)


@gluon.jit
def _convert(codes, piece, ROW: gl.constexpr):
    """The values of the codes into rows of a piece of a tile, from ROW on."""
    BN: gl.constexpr = piece.shape[2]
    ROWS: gl.constexpr = codes.shape[0]
    PAIRS: gl.constexpr = 2 * codes.shape[1]
    L: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    if piece.dtype == gl.float16:
        x, y = gl.inline_asm_elementwise(TO_F16, "=r,=r,r", [codes], dtype=(gl.int32, gl.int32), is_pure=True, pack=1)
    else:
        x, y = gl.inline_asm_elementwise(TO_BF16, "=r,=r,r", [codes], dtype=(gl.int32, gl.int32), is_pure=True, pack=1)
    piece._reinterpret(gl.int32, [BN, PAIRS], L).slice(ROW, ROWS, dim=0).store(gl.join(x, y).reshape([ROWS, PAIRS]))


@gluon.jit
def load_codes(kv, c_ring, r_ring, full, empty, table, begin, end, keys, kb, ks, PAGES, V: gl.constexpr, R: gl.constexpr, PAGE: gl.constexpr,
               BN: gl.constexpr):
    """The producer's part: the pieces of each tile in the order in which its scores need them, half of the rows at a time. Here is no fence
    between the stores and wgmma, since it would wait for the loads of the next tile as well: the groups that multiply have it."""
    HALF: gl.constexpr = c_ring.shape[4]
    MORE: gl.constexpr = r_ring.shape[4]
    FEW: gl.constexpr = BN // 2
    if R:
        r = _codes(kv, table, begin, keys, kb, ks, V // 4, (V + R) // 4, PAGES, PAGE, BN, MORE)
    x = _codes(kv, table, begin, keys, kb, ks, 0, V // 4, PAGES, PAGE, FEW, HALF)
    x_low = _codes(kv, table, begin + FEW, keys, kb, ks, 0, V // 4, PAGES, PAGE, FEW, HALF)
    y = _codes(kv, table, begin, keys, kb, ks, HALF // 4, V // 4, PAGES, PAGE, FEW, HALF)
    y_low = _codes(kv, table, begin + FEW, keys, kb, ks, HALF // 4, V // 4, PAGES, PAGE, FEW, HALF)
    for n in range((end - begin + BN - 1) // BN):
        slot = n % 2
        phase = n // 2 & 1
        ahead = begin + (n + 1) * BN
        last = gl.where(ahead < end, keys, 0)  # nothing beyond the part
        if R:
            mbarrier.wait(empty.index(3 * slot + 2), phase ^ 1)
            _convert(r, r_ring.index(slot), 0)
            r = _codes(kv, table, ahead, last, kb, ks, V // 4, (V + R) // 4, PAGES, PAGE, BN, MORE)
        mbarrier.wait(empty.index(3 * slot), phase ^ 1)
        _convert(x, c_ring.index(2 * slot), 0)
        x = _codes(kv, table, ahead, last, kb, ks, 0, V // 4, PAGES, PAGE, FEW, HALF)
        _convert(x_low, c_ring.index(2 * slot), FEW)
        x_low = _codes(kv, table, ahead + FEW, last, kb, ks, 0, V // 4, PAGES, PAGE, FEW, HALF)
        gl.thread_barrier()
        if R:
            mbarrier.arrive(full.index(3 * slot + 2), count=1)
        mbarrier.arrive(full.index(3 * slot), count=1)
        mbarrier.wait(empty.index(3 * slot + 1), phase ^ 1)
        _convert(y, c_ring.index(2 * slot + 1), 0)
        y = _codes(kv, table, ahead, last, kb, ks, HALF // 4, V // 4, PAGES, PAGE, FEW, HALF)
        _convert(y_low, c_ring.index(2 * slot + 1), FEW)
        y_low = _codes(kv, table, ahead + FEW, last, kb, ks, HALF // 4, V // 4, PAGES, PAGE, FEW, HALF)
        gl.thread_barrier()
        mbarrier.arrive(full.index(3 * slot + 1), count=1)
