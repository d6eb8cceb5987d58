"""Unpacks codes of a low-bit weight to the left operand of wgmma, in registers. rooftop/formats/packed.py defines the layout; the same in
CUDA C++: _unpack.cuh.

A lane's words of a plane of B bits hold pairs of codes, i of 16 / B in a word, at bits B i and B i + 16: a shift and a mask give two 16-bit
numbers, which packed arithmetic converts to floats. `matrix` then only states which row and column each element is: the register layouts
are equal, so no data moves."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from rooftop.kernels.gemm._lowbit_plan import FORMATS

INT8, INT4, INT2, E4M3, E5M2, E3M2, E2M3, E2M1 = (gl.constexpr(i) for i in range(len(FORMATS)))


def words_layout(high: int, chunks: int, words: int) -> Any:
    """The layout of [stripes, chunks, 32, words]: each lane has its own words, warp w stripes w and w + 4."""
    steps = [[0, 0, 0, 1 << i] for i in range(words.bit_length() - 1)] + [[0, 1, 0, 0]] * (chunks == 2) + [[4, 0, 0, 0]] * (high == 8)
    return gl.DistributedLinearLayout(
        steps, [[0, 0, 1 << i, 0] for i in range(5)], [[1, 0, 0, 0], [2, 0, 0, 0]], [], [high, chunks, 32, words]
    )


def plane_shape(bits: int) -> tuple[int, int]:
    """Chunks and words a lane of half a block (64 columns) of the first plane."""
    return {8: (2, 4), 6: (1, 4), 4: (1, 4), 2: (1, 2)}[bits]


@triton.jit
def both(pairs, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Splits each 32 bits into two 16-bit floats, the low one first, along a new last dimension."""
    low = (pairs & 0xFFFF).to(tl.int16).to(KIND, bitcast=True)
    high = ((pairs >> 16) & 0xFFFF).to(tl.int16).to(KIND, bitcast=True)
    return tl.join(low, high)


@triton.jit
def square(p0, p1, p2, p3, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs 2 h + r of one step: [.., pair, r, h]."""
    return tl.join(tl.join(both(p0, KIND), both(p1, KIND)), tl.join(both(p2, KIND), both(p3, KIND)))


@triton.jit
def matrix_of_fours(p0, p1, p2, p3, RM: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs of words of four (of six bits too), each [stripes, 1, 32, 4 steps], as rows by 64 columns."""
    x = square(p0, p1, p2, p3, KIND).reshape(RM // 16, 8, 4, 4, 2, 2, 2)  # stripe, g, t, step, pair, r, h
    return x.permute(0, 5, 1, 3, 6, 2, 4).reshape(RM, 64)


@triton.jit
def matrix_of_eights(p0, p1, RM: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs of words of two, each [stripes, 2 chunks, 32, 4 = (step, h)], as rows by 64 columns."""
    x = tl.join(both(p0, KIND), both(p1, KIND)).reshape(RM // 16, 2, 8, 4, 2, 2, 2, 2)  # stripe, chunk, g, t, step, h, pair, r
    return x.permute(0, 7, 2, 1, 4, 5, 3, 6).reshape(RM, 64)


@triton.jit
def matrix_of_twos(p0, p1, p2, p3, p4, p5, p6, p7, RM: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs of words of eight, each [stripes, 1, 32, 2 words], two steps a word, as rows by 64 columns."""
    # stripe, g, t, word, pair, r, h, step
    x = tl.join(square(p0, p1, p2, p3, KIND), square(p4, p5, p6, p7, KIND)).reshape(RM // 16, 8, 4, 2, 2, 2, 2, 2)
    return x.permute(0, 5, 1, 3, 7, 6, 2, 4).reshape(RM, 64)


of_fours, of_eights, of_twos = gluon.jit(matrix_of_fours.fn), gluon.jit(matrix_of_eights.fn), gluon.jit(matrix_of_twos.fn)


@gluon.jit
def less(a, b, KIND: gl.constexpr):
    """a - b for two 16-bit floats a register."""
    if gl.bfloat16 == KIND:
        return gl.inline_asm_elementwise("sub.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], gl.int32, is_pure=True, pack=1)
    else:  # noqa: RET505
        return gl.inline_asm_elementwise("sub.f16x2 $0, $1, $2;", "=r,r,r", [a, b], gl.int32, is_pure=True, pack=1)


@gluon.jit
def times(a, b, KIND: gl.constexpr):
    if gl.bfloat16 == KIND:
        return gl.inline_asm_elementwise("mul.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], gl.int32, is_pure=True, pack=1)
    else:  # noqa: RET505
        return gl.inline_asm_elementwise("mul.f16x2 $0, $1, $2;", "=r,r,r", [a, b], gl.int32, is_pure=True, pack=1)


@gluon.jit
def masked(a, MASK: gl.constexpr, OR: gl.constexpr):
    """(a & MASK) | OR in one lop3 instruction: the compiler makes two if both are constants."""
    return gl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, $3, 0xea;", "=r,r,r,r", [a, a * 0 + MASK, a * 0 + OR], gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def floats(u, FORMAT: gl.constexpr, KIND: gl.constexpr):
    """Codes in the low bits of both 16-bit halves (higher bits are ignored) to 16-bit floats: ints u - 2^(bits - 1), floats the value;
    exact."""
    HALF: gl.constexpr = gl.float16 == KIND
    MAGIC: gl.constexpr = 0x64006400 if HALF else 0x43004300  # 1024, or 128, and the number
    if FORMAT == INT8:
        if HALF:
            return less(masked(u, 0x00FF00FF, MAGIC), u * 0 + 0x64806480, KIND)
        else:  # noqa: RET505
            return less(masked(u, 0x007F007F, MAGIC), masked(~u, 0x00800080, MAGIC), KIND)
    elif FORMAT == INT4:
        return less(masked(u, 0x000F000F, MAGIC), u * 0 + (MAGIC + 0x00080008), KIND)
    elif FORMAT == INT2:
        return less(masked(u, 0x00030003, MAGIC), u * 0 + (MAGIC + 0x00020002), KIND)
    else:
        BITS: gl.constexpr = 4 if FORMAT == E2M1 else 6 if FORMAT >= E3M2 else 8
        MANTISSA: gl.constexpr = 3 if FORMAT == E4M3 else 3 if FORMAT == E2M3 else 1 if FORMAT == E2M1 else 2
        BIAS: gl.constexpr = 7 if FORMAT == E4M3 else 15 if FORMAT == E5M2 else 3 if FORMAT == E3M2 else 1
        UP: gl.constexpr = (10 if HALF else 7) - MANTISSA
        BY: gl.constexpr = (15 if HALF else 127) - BIAS
        SIGN: gl.constexpr = (1 << (BITS - 1)) * 0x10001
        SIZE: gl.constexpr = ((1 << (BITS - 1)) - 1) * 0x10001
        POWER: gl.constexpr = ((BY + 15) << 10 if HALF else (BY + 127) << 7) * 0x10001
        placed = ((u & SIGN) << (16 - BITS)) | ((u & SIZE) << UP)
        if BY == 0:
            return placed
        else:  # noqa: RET505
            return times(placed, u * 0 + POWER, KIND)


@gluon.jit
def twice(bits):
    """16 bits in both halves of 32."""
    low = bits.to(gl.int32) & 0xFFFF
    return low | (low << 16)


@gluon.jit
def load_scales(scale, zero, stripe, stripes, groups, place, HIGH: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
                CHANNEL: gl.constexpr, L: gl.constexpr):
    """Scales, then zero points (or scales again), of the lanes' rows g and g + 8 in both halves of a block as they are stored:
    [(half 0, r 0), (0, 1), (1, 0), (1, 1)] of each. `place`: the block, of groups of 128 or more the group. With CHANNEL dummy values."""
    high = gl.arange(0, HIGH, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L))))[:, None, None, None]
    lane = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L))))[None, None, :, None]
    CHUNKS: gl.constexpr = L.shape[1]
    WORDS: gl.constexpr = L.shape[3]
    chunk = gl.arange(0, CHUNKS, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L))))[None, :, None, None]
    word = gl.arange(0, WORDS, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L))))[None, None, None, :]
    at = ((stripe + high) * groups) * 16 + lane // 4
    there = stripe + high < stripes
    s = ()
    z = ()
    for half in gl.static_range(2):
        if CHANNEL:
            s += (at, at)
            z += (at, at)
        else:
            if GROUP == 128:
                here = at + place * 16
            elif GROUP == 64:
                here = at + gl.minimum(place * 2 + half, groups - 1) * 16
            elif BITS == 8:
                here = at + gl.minimum(place * 4 + half * 2 + chunk, groups - 1) * 16
            else:
                here = at + gl.minimum(place * 4 + half * 2 + word * 2 // WORDS, groups - 1) * 16
            for r in gl.static_range(2):
                value = gl.load(scale + here + 8 * r, mask=there, other=0)
                s += (value,)
                z += (value if zero is None else gl.load(zero + here + 8 * r, mask=there, other=0),)
    return s + z


@gluon.jit
def factors_of(raw, ZERO: gl.constexpr, BITS: gl.constexpr, CHANNEL: gl.constexpr, KIND: gl.constexpr):
    """Loaded scales and zero points, these less 2^(bits - 1), as floats of 16 bits, each twice in 32 bits."""
    found = ()
    for i in gl.static_range(8):
        if CHANNEL:
            found += (raw[i],)
        elif i < 4 or not ZERO:
            if raw[i].dtype == gl.uint8:  # a power of two in bf16
                e = raw[i].to(gl.int32)
                found += (twice(gl.where(e == 0, 0x40, e << 7)),)
            else:
                found += (twice(raw[i].to(gl.float32).to(KIND).to(gl.int16, bitcast=True)),)
        else:
            whole = raw[i].to(gl.int32) - (1 << (BITS - 1))
            found += (twice(whole.to(gl.float32).to(KIND).to(gl.int16, bitcast=True)),)
    return found


@gluon.jit
def scaled(
    u, factors, HALF_INDEX: gl.constexpr, R: gl.constexpr, FORMAT: gl.constexpr, ZERO: gl.constexpr, CHANNEL: gl.constexpr,
    KIND: gl.constexpr
):
    x = floats(u, FORMAT, KIND)
    if not CHANNEL:
        if ZERO:
            x = less(x, factors[4 + 2 * HALF_INDEX + R], KIND)
        x = times(x, factors[2 * HALF_INDEX + R], KIND)
    return x


@gluon.jit
def left_operand(codes, high, half: gl.constexpr, factors, MMA: gl.constexpr, RM: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr,
                 ZERO: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr, KIND: gl.constexpr):
    """Rows of the weight by the 64 columns of one half of a block. codes, high: planes in shared memory, int32
    [stripes, chunks, 32, 4]; `high` of 6 bits alone."""
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=MMA, k_width=2)
    if BITS == 8:
        w = codes.slice(2 * half, 2, dim=1).load(L)
        found = of_eights(
            scaled(w, factors, half, 0, FORMAT, ZERO, CHANNEL, KIND), scaled(w >> 8, factors, half, 1, FORMAT, ZERO, CHANNEL, KIND), RM,
            KIND
        )
    elif BITS == 2:
        w = codes.slice(0, 1, dim=1).slice(2 * half, 2, dim=3).load(L)
        found = of_twos(scaled(w, factors, half, 0, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 2, factors, half, 1, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 4, factors, half, 0, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 6, factors, half, 1, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 8, factors, half, 0, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 10, factors, half, 1, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 12, factors, half, 0, FORMAT, ZERO, CHANNEL, KIND),
                        scaled(w >> 14, factors, half, 1, FORMAT, ZERO, CHANNEL, KIND), RM, KIND)
    else:
        w = codes.slice(half, 1, dim=1).load(L)
        p = ()
        for i in gl.static_range(4):
            u = w >> (4 * i)
            if BITS == 6:  # the high two bits lie in the second plane, two steps a word
                v = high.slice(2 * half, 2, dim=3).load(L2)
                top = gl.join(v >> (2 * i), v >> (2 * i + 8)).reshape([RM // 16, 1, 32, 4])
                u = (u & 0x000F000F) | ((gl.convert_layout(top, L, assert_trivial=True) & 0x00030003) << 4)
            p += (scaled(u, factors, half, i % 2, FORMAT, ZERO, CHANNEL, KIND),)
        found = of_fours(p[0], p[1], p[2], p[3], RM, KIND)
    return gl.convert_layout(found, LEFT, assert_trivial=True)
