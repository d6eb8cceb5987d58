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
def words_apart(w):  # type: ignore[no-untyped-def]
    """The words of each lane, [stripes, chunks, 32, words], one by one: two, four or eight of [stripes, 32], the first chunk's first."""
    S: tl.constexpr = w.shape[0]
    COUNT: tl.constexpr = w.shape[1] * w.shape[3]
    w = w.permute(0, 2, 1, 3).reshape(S, 32, COUNT)
    if COUNT == 2:
        w0, w1 = tl.split(w)
        found = (w0, w1)
    elif COUNT == 4:
        even, odd = tl.split(w.reshape(S, 32, 2, 2))
        w0, w2 = tl.split(even)
        w1, w3 = tl.split(odd)
        found = (w0, w1, w2, w3)
    else:
        even, odd = tl.split(w.reshape(S, 32, 2, 2, 2))
        e0, e1 = tl.split(even)
        o0, o1 = tl.split(odd)
        w0, w4 = tl.split(e0)
        w2, w6 = tl.split(e1)
        w1, w5 = tl.split(o0)
        w3, w7 = tl.split(o1)
        found = (w0, w1, w2, w3, w4, w5, w6, w7)
    return found


@triton.jit
def codes_of(words, top, STEP: tl.constexpr, PAIR: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pair 2 h + r of a step: its codes in the low bits of both 16-bit halves. words, top: of the first and, for six bits, of the second
    plane; higher bits are anything."""
    TWO: tl.constexpr = STEP % 2 * 8 + 2 * PAIR  # where a pair is in a word of two bits a code
    if BITS == 8:
        u = words[2 * STEP + PAIR // 2] >> (8 * (PAIR % 2))
    elif BITS == 2:
        u = words[STEP // 2] >> TWO
    else:
        u = words[STEP] >> (4 * PAIR)
        if BITS == 6:
            u = (u & 0x000F000F) | (((top[STEP // 2] >> TWO) & 0x00030003) << 4)
    return u


@triton.jit
def matrix_of_step(x, RM: tl.constexpr):  # type: ignore[no-untyped-def]
    """A step's pairs, [stripes, 32, pair, r, h], as rows by 16 columns."""
    return x.reshape(RM // 16, 8, 4, 2, 2, 2).permute(0, 4, 1, 5, 2, 3).reshape(RM, 16)  # stripe, r, g; h, t, pair


@triton.jit
def matrix_of_half(x0, x1, x2, x3, RM: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same of four steps, as rows by 64 columns."""
    x = tl.join(tl.join(x0, x2), tl.join(x1, x3)).reshape(RM // 16, 8, 4, 2, 2, 2, 2, 2)  # stripe, g, t, pair, r, h, step in two parts
    return x.permute(0, 4, 1, 6, 7, 5, 2, 3).reshape(RM, 64)


four_of, of_step, of_half = gluon.jit(square.fn), gluon.jit(matrix_of_step.fn), gluon.jit(matrix_of_half.fn)
apart, codes_of_pair = gluon.jit(words_apart.fn), gluon.jit(codes_of.fn)


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
def words_of(codes, high, half: gl.constexpr, factors, BITS: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    """The lanes' words of one half of a block, those of the second plane (of six bits), and of each word its factors: scales of rows g
    and g + 8, then zero points. codes, high: planes in shared memory, int32 [stripes, chunks, 32, 4]."""
    if BITS == 8:
        w = codes.slice(2 * half, 2, dim=1).load(L)
    elif BITS == 2:
        w = codes.slice(0, 1, dim=1).slice(2 * half, 2, dim=3).load(L)
    else:
        w = codes.slice(half, 1, dim=1).load(L)
    words = apart(w)
    top = words
    if BITS == 6:
        LAYOUT: gl.constexpr = words[0].type.layout
        top0, top1 = apart(high.slice(2 * half, 2, dim=3).load(L2))
        top = (gl.convert_layout(top0, LAYOUT, assert_trivial=True), gl.convert_layout(top1, LAYOUT, assert_trivial=True))
    of = ()
    for i in gl.static_range(4):
        of += (words if CHANNEL else apart(factors[2 * half + i % 2 + i // 2 * 4] | (w & 0)),)
    return words, top, of


@gluon.jit
def pair_of(words, STEP: gl.constexpr, PAIR: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, ZERO: gl.constexpr,
            CHANNEL: gl.constexpr, KIND: gl.constexpr):
    """Pair 2 h + r of a step, as floats, times its scale."""
    w, top, of = words
    AT: gl.constexpr = 2 * STEP + PAIR // 2 if BITS == 8 else STEP // 2 if BITS == 2 else STEP  # its word
    x = floats(codes_of_pair(w, top, STEP, PAIR, BITS), FORMAT, KIND)
    if not CHANNEL:
        if ZERO:
            x = less(x, of[2 + PAIR % 2][AT], KIND)
        x = times(x, of[PAIR % 2][AT], KIND)
    return x


@gluon.jit
def step_of(words, STEP: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, ZERO: gl.constexpr, CHANNEL: gl.constexpr,
            KIND: gl.constexpr):
    """The pairs of a step, [stripes, 32, pair, r, h]."""
    p0 = pair_of(words, STEP, 0, FORMAT, BITS, ZERO, CHANNEL, KIND)
    p1 = pair_of(words, STEP, 1, FORMAT, BITS, ZERO, CHANNEL, KIND)
    p2 = pair_of(words, STEP, 2, FORMAT, BITS, ZERO, CHANNEL, KIND)
    p3 = pair_of(words, STEP, 3, FORMAT, BITS, ZERO, CHANNEL, KIND)
    return four_of(p0, p1, p2, p3, KIND)


@gluon.jit
def left_operand(words, PART: gl.constexpr, PARTS: gl.constexpr, LEFT: gl.constexpr, RM: gl.constexpr, FORMAT: gl.constexpr,
                 BITS: gl.constexpr, ZERO: gl.constexpr, CHANNEL: gl.constexpr, KIND: gl.constexpr):
    """Rows of the weight by a part of the 64 columns of a half: the four steps, or one of them."""
    if PARTS == 1:
        x0 = step_of(words, 0, FORMAT, BITS, ZERO, CHANNEL, KIND)
        x1 = step_of(words, 1, FORMAT, BITS, ZERO, CHANNEL, KIND)
        x2 = step_of(words, 2, FORMAT, BITS, ZERO, CHANNEL, KIND)
        x3 = step_of(words, 3, FORMAT, BITS, ZERO, CHANNEL, KIND)
        found = of_half(x0, x1, x2, x3, RM)
    else:
        found = of_step(step_of(words, PART, FORMAT, BITS, ZERO, CHANNEL, KIND), RM)
    return gl.convert_layout(found, LEFT, assert_trivial=True)
