"""Scores of attention on Hopper. Capped ones, in PTX: the tanh of a thread's scores, or their weights, by one branch a warp. And ALiBi's
distances."""

from __future__ import annotations

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

TANH = (1.0, -0.333323412, 0.13308175, -0.0519479014, 0.0151953686)  # of x, x^3, ...: relative error 1.2e-7 up to SMALL
SMALL = gl.constexpr(0.625)


def _hex(value: float) -> str:
    return "0f" + struct.pack(">f", value).hex().upper()


def _capped(count: int, weigh: bool) -> str:
    """PTX of tanh(x · SMALL / 2) for `count` numbers x of a thread; if `weigh`, of 2 to the power of by · (it - 1/2). If all x of a warp
    are below 2 in magnitude (bit 30 of none is set), by multiply-adds: the special function unit is already the bottleneck of the softmax.
    Otherwise the larger ones by an exponential and a reciprocal."""
    half = SMALL.value / 2
    x = [f"${count + i}" for i in range(count)]
    out = [f"${i}" for i in range(count)]
    by = f"${2 * count}"
    terms = len(TANH)
    lines = [f".reg .f32 v, e, less, {', '.join(f'c{k}' for k in range(terms))};", ".reg .b32 bits, b0, b1, b2, b3;", ".reg .pred far, p;"]
    lines += [f"mul.f32 less, {by}, {_hex(-0.5)};"] if weigh else []
    for k, c in enumerate(TANH):
        value = _hex(c * half ** (2 * k + 1))
        lines.append(f"mul.f32 c{k}, {by}, {value};" if weigh else f"mov.f32 c{k}, {value};")
    chains = [x[i :: 4] for i in range(4)]  # four, since one would wait for each of its steps
    lines += [f"or.b32 b{k}, {a}, {b};" for k, (a, b, *_) in enumerate(chains)]
    lines += [f"lop3.b32 b{k}, b{k}, {c[i]}, {c[i + 1]}, 0xFE;" for i in range(2, count // 4, 2) for k, c in enumerate(chains)]
    lines += ["lop3.b32 b0, b0, b1, b2, 0xFE;", "or.b32 bits, b0, b3;"]
    lines += ["and.b32 bits, bits, 0x40000000;", "setp.ne.b32 far, bits, 0;", "vote.sync.any.pred far, far, -1;", "@far bra.uni FAR;"]

    def near(i: int) -> list[str]:
        first = [f"mul.f32 v, {x[i]}, {x[i]};", f"fma.rn.f32 e, c{terms - 1}, v, c{terms - 2};"]
        last = f"fma.rn.f32 e, e, {x[i]}, less;" if weigh else f"mul.f32 e, e, {x[i]};"
        return [*first, *(f"fma.rn.f32 e, e, v, c{k};" for k in range(terms - 3, -1, -1)), last]

    def done(i: int) -> str:
        return f"ex2.approx.ftz.f32 {out[i]}, e;" if weigh else f"mov.f32 {out[i]}, e;"

    for i in range(count):
        lines += [*near(i), done(i)]
    lines += ["bra.uni DONE;", "FAR:"]
    for i in range(count):
        lines += [
            *near(i), f"mul.f32 v, {x[i]}, {_hex(half * 2.8853900817779268)};", "ex2.approx.ftz.f32 v, v;", f"add.f32 v, v, {_hex(1.0)};"
        ]
        lines += ["rcp.approx.ftz.f32 v, v;", f"fma.rn.f32 v, v, {_hex(-2.0)}, {_hex(1.0)};"]
        lines += [f"fma.rn.f32 v, v, {by}, less;"] if weigh else []
        lines += [f"abs.f32 {out[i]}, {x[i]};", f"setp.ge.f32 p, {out[i]}, {_hex(2.0)};", "@p mov.f32 e, v;", done(i)]
    return "{ " + " ".join(lines) + " DONE: }"


COUNTS = (16, 32, 64)  # scores of a thread
TANH_OF = gl.constexpr({n: _capped(n, False) for n in COUNTS})
TANH_OPERANDS = gl.constexpr({n: ",".join(n * ["=&f"] + n * ["f"]) for n in COUNTS})
WEIGHTS_OF = gl.constexpr({n: _capped(n, True) for n in COUNTS})
WEIGHTS_OPERANDS = gl.constexpr({n: ",".join(n * ["=&f"] + 2 * n * ["f"]) for n in COUNTS})


@gluon.jit
def distance(apart):
    """|apart| in float32, up to 2^22 exactly, in two operations: conversions have the unit of the exponentials."""
    return gl.abs((apart + 0x4B400000).to(gl.float32, bitcast=True) - 12582912.0)


@gluon.jit
def flat(x):
    """A tile [1, 1, rows, columns] as the matrix that wgmma reads."""
    return x.reshape([x.shape[2], x.shape[3]])


@gluon.jit
def columns_of(x, START: gl.constexpr, SIZE: gl.constexpr):
    """Columns of a tile [1, 1, rows, columns] as the matrix that wgmma reads. Of a head of 80 or 96 columns the 64 first and the 16 or 32
    next are operands of their own: its tile has 128, the rest of which no product needs."""
    return flat(x).slice(START, SIZE, dim=1)


@gluon.jit
def scores_of(a, b, LIKE: gl.constexpr, REST: gl.constexpr):
    """Begins a · bᵀ of two tiles. With REST the first 64 columns and REST more, in two products."""
    N: gl.constexpr = b.shape[2]
    z = gl.zeros((64, N), gl.float32, LIKE)
    if REST:
        z = warpgroup_mma(columns_of(a, 0, 64), columns_of(b, 0, 64).permute((1, 0)), z, use_acc=False, is_async=True)
        return warpgroup_mma(columns_of(a, 64, REST), columns_of(b, 64, REST).permute((1, 0)), z, is_async=True)
    return warpgroup_mma(flat(a), flat(b).permute((1, 0)), z, use_acc=False, is_async=True)
