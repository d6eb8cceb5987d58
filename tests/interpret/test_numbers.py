"""The interpreter's arithmetic against torch, bit for bit. Kernels run on the CPU; nothing here needs a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from rooftop.lab.interpret import interpreter

FLOATS = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
FP8_MAX = {"e4m3": 448.0, "e5m2": 57344.0}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
BLOCK = 4096


def every(dtype: torch.dtype, n: int = 1 << 15) -> torch.Tensor:
    """Every bit pattern of an 8- or 16-bit dtype; of wider ones random patterns, half of them near the range of the small dtypes."""
    size, g = dtype.itemsize, torch.Generator().manual_seed(7)
    if size <= 2:
        return torch.arange(1 << (8 * size), dtype=torch.int32).to(BITS[size]).view(dtype)
    wild = torch.randint(-(2**31), 2**31, (n * size // 4,), dtype=torch.int64, generator=g).to(torch.int32).view(dtype)
    tame = torch.randn(n - 16, dtype=torch.float64, generator=g) * torch.exp2(torch.randint(-24, 20, (n - 16,), generator=g))
    edge = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.00390625, 1.01171875, 448, 464, 465, 480, 57344, 61440, 65504, 65520, 3.39e38])
    ties = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40, 1 + 2.0**-4 + 2.0**-45], dtype=torch.float64)
    return torch.cat([wild, tame.to(dtype), edge.to(dtype), ties.to(dtype)])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bits, NaN standing for any NaN."""
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype.is_floating_point:
        nans = a.float().isnan()
        if not torch.equal(nans, b.float().isnan()):
            return False
        a, b = a[~nans], b[~nans]
        a, b = (t.contiguous().view(BITS[a.dtype.itemsize]) for t in (a, b))
    return torch.equal(a, b)


def launch(kernel: Any, n: int, **args: Any) -> None:
    interpreter.run(kernel, (triton.cdiv(n, BLOCK),), {**args, "n": n, "BLOCK": BLOCK})


# -- casts ---------------------------------------------------------------------------------------------------------


@triton.jit
def cast(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n).to(y.dtype.element_ty), at < n)


@triton.jit
def cast_toward_zero(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n).to(y.dtype.element_ty, fp_downcast_rounding="rtz"), at < n)


PAIRS = [(a, b) for a in FLOATS for b in FLOATS if a != "f64" or b in ("f64", "f32")]  # from f64 torch rounds twice


@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_float_casts(source: str, to: str) -> None:
    x = every(FLOATS[source])
    y = torch.empty(x.numel(), dtype=FLOATS[to])
    launch(cast, x.numel(), x=x, y=y)
    if to in FP8_MAX and source != to:  # saturating
        assert same(y, x.float().clamp(-FP8_MAX[to], FP8_MAX[to]).to(FLOATS[to]))
    else:
        assert same(y, x.to(FLOATS[to]))


@pytest.mark.parametrize("to", ["f16", "bf16", "e4m3", "e5m2"])
def test_f64_casts_round_once(to: str) -> None:
    """Against a search among all finite values of the dtype."""
    x = every(torch.float64)
    y = torch.empty(x.numel(), dtype=FLOATS[to])
    launch(cast, x.numel(), x=x, y=y)
    values = every(FLOATS[to]).double()
    positive = values[values.isfinite() & ~values.signbit()].unique()  # in the order of their bits
    top = positive[-1] if to in FP8_MAX else 2 * positive[-1] - positive[-2]
    positive = torch.cat([positive, torch.tensor([2 * positive[-1] - positive[-2]])])
    size = x.nan_to_num(0, math.inf, -math.inf).abs().clamp(max=top)
    above = torch.searchsorted(positive, size).clamp(1)
    middle = (positive[above - 1] + positive[above]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    nearest = positive[torch.where(up, above, above - 1)]
    nearest[nearest == positive[-1]] = math.inf
    expected = torch.copysign(nearest, x)
    expected[x.isnan()] = math.nan
    assert torch.equal(y.double().nan_to_num(-1e300), expected.nan_to_num(-1e300)) and bool((y.float().signbit() == x.signbit())[~x.isnan()].all())


def test_fp8_overflow_saturates() -> None:
    x = torch.tensor([449.0, 1e6, math.inf, -math.inf, math.nan])
    for name, most in FP8_MAX.items():
        y = torch.empty(5, dtype=FLOATS[name])
        launch(cast, 5, x=x if name == "e4m3" else x * 1000, y=y)
        assert y.float()[:4].tolist() == [most, most, most, -most] and bool(y.float()[4].isnan())


@pytest.mark.parametrize("to", ["bf16", "f16"])
def test_cast_toward_zero(to: str) -> None:
    x = every(torch.float32)
    y = torch.empty(x.numel(), dtype=FLOATS[to])
    launch(cast_toward_zero, x.numel(), x=x, y=y)
    finite = x.isfinite()
    y, x = y[finite].double(), x[finite].double()
    assert bool(y.isfinite().all() and (y.abs() <= x.abs()).all())
    above = torch.nextafter(y.to(FLOATS[to]), torch.copysign(torch.tensor(math.inf, dtype=torch.float64), x).to(FLOATS[to])).double()
    assert bool(((above.abs() > x.abs()) | (x == 0)).all())


@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_float_to_int(source: str, to: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-130, 130, 2001), torch.tensor([-0.9, 0.9, 2.5])]).to(FLOATS[source])
    x = x if to.is_signed else x.abs()
    y = torch.empty(x.numel(), dtype=to)
    launch(cast, x.numel(), x=x, y=y)
    assert torch.equal(y, x.double().to(torch.int64).to(to))
    wild = torch.tensor([1e30, -1e30, math.inf, math.nan])
    y = torch.empty(4, dtype=torch.int32)
    launch(cast, 4, x=wild, y=y)
    assert y.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 0]


@pytest.mark.parametrize("to", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("source", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool])
def test_int_to_float(source: torch.dtype, to: str) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(source)
    y = torch.empty(x.numel(), dtype=FLOATS[to])
    launch(cast, x.numel(), x=x, y=y)
    assert same(y, x.to(FLOATS[to]))


def test_int32_to_bf16_rounds_once() -> None:
    x = torch.tensor([2**24 + 2**16 + 1], dtype=torch.int32)  # f32 would round the 1 away and leave a tie
    y = torch.empty(1, dtype=torch.bfloat16)
    launch(cast, 1, x=x, y=y)
    assert y.item() == 2**24 + 2**17


# -- arithmetic ----------------------------------------------------------------------------------------------------


@triton.jit
def binary(x, y, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, at < n)
    b = tl.load(y + at, at < n)
    if OP == "add":
        c = a + b
    elif OP == "sub":
        c = a - b
    elif OP == "mul":
        c = a * b
    elif OP == "div":
        c = a / b
    elif OP == "fmax":
        c = tl.maximum(a, b)
    elif OP == "fmin":
        c = tl.minimum(a, b)
    elif OP == "maximum":
        c = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "where":
        c = tl.where(a < b, a, b)
    elif OP == "fma":
        c = tl.fma(a, b, a)
    elif OP == "clamp":
        c = tl.clamp(a, -b.abs(), b.abs())
    elif OP == "lt":
        c = a < b
    elif OP == "ne":
        c = a != b
    elif OP == "ge":
        c = a >= b
    else:
        tl.static_assert(False, OP)
    tl.store(out + at, c, at < n)


OPS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a < b, a, b),
    "clamp": lambda a, b: torch.fmin(torch.fmax(a, -b.abs()), b.abs()),
    "lt": torch.lt,
    "ne": torch.ne,
    "ge": torch.ge,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_binary(dtype: str, op: str) -> None:
    x = every(FLOATS[dtype], 1 << 14)
    x = x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))[: 1 << 14]]
    x[x.isnan()] = math.nan  # quiet: a signalling NaN makes C's fmax NaN, which torch follows and PTX does not
    y = x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(2))].clone()
    y[::64] = x[::64]
    if op in ("fmax", "fmin", "maximum", "clamp"):
        y[y == 0] = 1.0  # which zero is the larger is tested below; torch leaves it open
    expected = OPS[op](x, y)
    out = torch.empty(x.numel(), dtype=expected.dtype)
    launch(binary, x.numel(), x=x, y=y, out=out, OP=op)
    assert same(out, expected)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_zeros_have_an_order(dtype: str) -> None:
    x, y = torch.tensor([0.0, -0.0], dtype=FLOATS[dtype]), torch.tensor([-0.0, 0.0], dtype=FLOATS[dtype])
    out = torch.empty_like(x)
    launch(binary, 2, x=x, y=y, out=out, OP="fmax")
    assert not out.signbit().any()
    launch(binary, 2, x=x, y=y, out=out, OP="fmin")
    assert out.signbit().all()


def test_fma_rounds_once() -> None:
    from fractions import Fraction

    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(2048, generator=g), -1 / torch.randn(2048, generator=g)
    y[:1024] = -1 + torch.randn(1024, generator=g) * 2**-12
    x[0], y[0] = 1 + 2**-23, 2**-24 * (1 - 2**-23)  # x + x * y lies just below a tie that f64 would round it to
    out = torch.empty(2048)
    launch(binary, 2048, x=x, y=y, out=out, OP="fma")
    two_roundings = 0
    for a, b, c in zip(x.tolist(), y.tolist(), out.tolist(), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(a)
        up, down = (float(np.nextafter(np.float32(c), np.float32(v))) for v in (np.inf, -np.inf))
        assert all(abs(Fraction(c) - exact) <= abs(Fraction(v) - exact) for v in (up, down))
        two_roundings += float(np.float32(np.float32(a) * np.float32(b)) + np.float32(a)) != c
    assert two_roundings > 100  # so the test can tell


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_fp8_arithmetic_is_refused(dtype: str) -> None:
    x = torch.ones(4).to(FLOATS[dtype])
    for op, out in (("add", x.clone()), ("lt", torch.empty(4, dtype=torch.bool))):
        with pytest.raises(interpreter.NotSimulated, match="arithmetic or comparison on fp8"):
            launch(binary, 4, x=x, y=x, out=out, OP=op)


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, at < n, 1), tl.load(y + at, at < n, 1)
    tl.store(out + at, a // b, at < n)
    tl.store(out + n + at, a % b, at < n)
    tl.store(out + 2 * n + at, (a >> 3) ^ (b << 2) & ~a, at < n)
    tl.store(out + 3 * n + at, tl.umulhi(a, b), at < n)
    tl.store(out + 4 * n + at, tl.where((a > 0) and (not b > 0), a, b) + tl.cdiv(a, 3), at < n)


def test_integers_are_c_integers() -> None:
    g = torch.Generator().manual_seed(4)
    x, y = (torch.randint(-(2**31), 2**31, (1000,), generator=g, dtype=torch.int64).to(torch.int32) for _ in range(2))
    out = torch.empty(5000, dtype=torch.int32)
    launch(integers, 1000, x=x, y=y, out=out)
    a, b = x.long(), y.long()
    quotient = torch.div(a, b, rounding_mode="trunc")
    high = torch.tensor([((int(p) & 0xFFFFFFFF) * (int(q) & 0xFFFFFFFF)) >> 32 for p, q in zip(x, y, strict=True)]).to(torch.int32)
    mixed = (a >> 3) ^ ((b << 2) & ~a)
    chosen = torch.where((a > 0) & ~(b > 0), a, b) + torch.div((a + 2).to(torch.int32).long(), 3, rounding_mode="trunc")
    expected = torch.cat([quotient, a - quotient * b, mixed, high.long(), chosen]).to(torch.int32)
    assert torch.equal(out, expected)


# -- tl.dot --------------------------------------------------------------------------------------------------------


@triton.jit
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    x = tl.load(a + m * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n)
    kind: tl.constexpr = tl.int32 if c.dtype.element_ty == tl.int32 else tl.float32
    tl.store(c + m * N + n, tl.dot(x, y, tl.full((M, N), 3, kind), input_precision=PRECISION, out_dtype=kind).to(c.dtype.element_ty))


def dot(a: torch.Tensor, b: torch.Tensor, out: torch.dtype, precision: str = "ieee") -> torch.Tensor:
    c = torch.empty(a.shape[0], b.shape[1], dtype=out)
    args = {"a": a, "b": b, "c": c, "M": a.shape[0], "N": b.shape[1], "K": a.shape[1], "PRECISION": precision}
    interpreter.run(matmul, (1,), args, readonly={"a", "b"})
    return c


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "e5m2"])
def test_dot(dtype: str, out: torch.dtype) -> None:
    g = torch.Generator().manual_seed(5)
    a, b = torch.randint(-8, 9, (32, 64), generator=g).to(torch.float32), torch.randint(-8, 9, (64, 16), generator=g).to(torch.float32)
    a, b = (t.to(FLOATS[dtype]) for t in (a, b))  # e5m2 rounds some of them; all sums are exact in f32
    assert same(dot(a, b, out), (a.double() @ b.double() + 3).to(torch.float32).to(out))
    a, b = (torch.randn(s, generator=g).to(FLOATS[dtype]) for s in ((32, 64), (64, 16)))
    assert torch.allclose(dot(a, b, torch.float32).double(), a.double() @ b.double() + 3, rtol=1e-5, atol=1e-5)


def test_dot_int8() -> None:
    a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((16, 64), (64, 16)))
    assert torch.equal(dot(a, b, torch.int32), a.int() @ b.int() + 3)


def test_dot_tf32_drops_thirteen_bits() -> None:
    a, b = torch.randn(16, 32), torch.randn(32, 16)
    cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b)]
    coarse, fine = dot(a, b, torch.float32, "tf32"), dot(a, b, torch.float32, "tf32x3")
    assert same(coarse, dot(cut[0], cut[1], torch.float32)) and same(fine, dot(a, b, torch.float32)) and not same(coarse, fine)


# -- reductions ----------------------------------------------------------------------------------------------------


@triton.jit
def reductions(x, s, m, i, w, N: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * N + tl.arange(0, N))
    tl.store(s + row, tl.sum(v, 0))
    tl.store(m + row * 2, tl.max(v, axis=0))
    tl.store(m + row * 2 + 1, v.to(tl.float32).min(axis=0).to(x.dtype.element_ty))
    tl.store(i + row * 2, tl.argmax(v.to(tl.float32), 0))
    tl.store(i + row * 2 + 1, tl.argmin(v.to(tl.float32), 0, tie_break_left=True))
    tl.store(w + row * N + tl.arange(0, N), tl.cumsum(v.to(tl.float32), 0))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_reductions(dtype: str) -> None:
    x = torch.randint(-3, 4, (5, 64), generator=torch.Generator().manual_seed(6)).to(FLOATS[dtype])  # every partial sum is exact
    s, m, i, w = torch.empty(5, dtype=x.dtype), torch.empty(5, 2, dtype=x.dtype), torch.empty(5, 2, dtype=torch.int32), torch.empty(5, 64)
    assert interpreter.run(reductions, (5,), {"x": x, "s": s, "m": m, "i": i, "w": w, "N": 64}).programs == 5
    assert same(s, x.sum(1)) and same(m, torch.stack([x.amax(1), x.amin(1)], 1)) and same(w, x.float().cumsum(1))
    first = torch.stack([(x == x.amax(1, keepdim=True)).int().argmax(1), (x == x.amin(1, keepdim=True)).int().argmax(1)], 1)
    assert torch.equal(i.long(), first)


def test_bf16_sum_rounds_at_every_step() -> None:
    x = torch.full((1, 64), 1.0).bfloat16()
    x[0, 0] = 256.0  # 256 + 1 is 256 in bf16; a sum in f32 would give 319
    s, m, i, w = torch.empty(1).bfloat16(), torch.empty(1, 2).bfloat16(), torch.empty(1, 2, dtype=torch.int32), torch.empty(1, 64)
    interpreter.run(reductions, (1,), {"x": x, "s": s, "m": m, "i": i, "w": w, "N": 64})
    assert s.item() < 319 and s.item() == torch.tensor(256 + 62.0).bfloat16().item()


@triton.jit
def welford(m0, v0, n0, m1, v1, n1):
    n = n0 + n1
    d = m1 - m0
    part = tl.where(n == 0, 0.0, n1 / n)
    return m0 + d * part, v0 + v1 + d * d * n0 * part, n


@triton.jit
def linear(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def shapes(x, y, z, t, k, M: tl.constexpr, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    mean, square, count = tl.reduce((v, tl.zeros_like(v), tl.full((M, N), 1.0, tl.float32)), 1, welford)
    tl.store(y + tl.arange(0, M), mean)
    tl.store(y + M + tl.arange(0, M), square / count)
    tl.store(z, tl.sum(v))
    tl.store(z + 1 + tl.arange(0, N)[None, :], v.sum(axis=0, keep_dims=True))
    _, h = tl.associative_scan((v, v), 1, linear, reverse=True)
    tl.store(t + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], h)
    tl.store(k + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tl.sort(v, descending=True))


def test_tuples_axes_scans_and_sort() -> None:
    x = torch.rand(8, 32, generator=torch.Generator().manual_seed(8))
    y, z, t, k = torch.empty(16), torch.empty(33), torch.empty(8, 32), torch.empty(8, 32)
    interpreter.run(shapes, (1,), {"x": x, "y": y, "z": z, "t": t, "k": k, "M": 8, "N": 32})
    assert torch.allclose(y, torch.cat([x.mean(1), x.var(1, unbiased=False)]), atol=1e-6)
    assert torch.allclose(z, torch.cat([x.sum()[None], x.sum(0)]), rtol=1e-6)
    h, expected = torch.zeros(8), torch.empty(8, 32)
    for j in reversed(range(32)):
        h = h * x[:, j] + x[:, j]
        expected[:, j] = h
    assert torch.allclose(t, expected, rtol=1e-5) and same(k, x.sort(1, descending=True).values)


# -- atomics -------------------------------------------------------------------------------------------------------


@triton.jit
def atomics(x, at, total, most, old, swap, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(old + i, tl.atomic_add(total + tl.load(at + i), v, mask=i < N - 1))
    tl.atomic_max(most + tl.load(at + i), v.to(tl.float32))
    tl.atomic_cas(swap, 0, 7)
    tl.atomic_xchg(swap + 1, tl.atomic_cas(swap, 0, 9))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_atomics(dtype: str) -> None:
    g = torch.Generator().manual_seed(9)
    x, at = torch.randn(64, generator=g).to(FLOATS[dtype]), torch.randint(0, 5, (64,), generator=g, dtype=torch.int32)
    total, most = torch.zeros(5, dtype=x.dtype), torch.full((5,), -math.inf)
    old, swap = torch.empty(64, dtype=x.dtype), torch.zeros(2, dtype=torch.int32)
    interpreter.run(atomics, (1,), {"x": x, "at": at, "total": total, "most": most, "old": old, "swap": swap, "N": 64})
    expected, before = torch.zeros(5, dtype=x.dtype), torch.empty(63, dtype=x.dtype)
    for i in range(63):
        before[i] = expected[at[i]]
        expected[at[i]] = expected[at[i]] + x[i]
    assert same(total, expected) and same(old[:63], before) and swap.tolist() == [7, 7]
    assert same(most, torch.stack([x[at == j].float().amax() for j in range(5)]))
