"""Activations and their slopes as Triton functions of float32 values."""

from __future__ import annotations

import triton
import triton.language as tl

HALF_ROOT = tl.constexpr(0.7071067811865476)  # sqrt(1/2)
PEAK = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
TANH_SCALE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
TANH_CUBE = tl.constexpr(0.044715)


@triton.jit
def sigmoid(x):  # type: ignore[no-untyped-def]
    return 1 / (1 + tl.exp(-x))


@triton.jit
def silu(x):  # type: ignore[no-untyped-def]
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):  # type: ignore[no-untyped-def]
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


@triton.jit
def gelu(x):  # type: ignore[no-untyped-def]
    return x * (0.5 + 0.5 * tl.erf(x * HALF_ROOT))


@triton.jit
def gelu_slope(x):  # type: ignore[no-untyped-def]
    return 0.5 + 0.5 * tl.erf(x * HALF_ROOT) + x * (PEAK * tl.exp(-0.5 * x * x))


@triton.jit
def normal_short(x):  # type: ignore[no-untyped-def]
    """Φ(x) for 16-bit results, in half the instructions of erf: sigmoid(x q(x²)), where q is a fitted polynomial. The error of the argument
    is at most 2e-5 for |x| < 4.4 and 8e-4 up to 5.5; beyond, where Φ is within 2e-8 of 0 or 1, q is constant. The relative error of Φ is
    that of the argument."""
    t = tl.minimum(x * x, 30.25)
    q = 5.60175225105277e-09 - 4.5792598107055025e-11 * t
    q = -2.845478877014151e-07 + q * t
    q = 7.6270199844752935e-06 + q * t
    q = -0.00010387284107891617 + q * t
    q = -0.00010807971911727351 + q * t
    q = 0.07276761597245177 + q * t
    q = 1.5957047235797504 + q * t
    return sigmoid(x * q)


@triton.jit
def gelu_short(x):  # type: ignore[no-untyped-def]
    return x * normal_short(x)


@triton.jit
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    """x (1 + tanh z) / 2 = x sigmoid(2 z) with z = sqrt(2 / pi) (x + 0.044715 x³)."""
    return x * sigmoid(TANH_SCALE * (x + TANH_CUBE * x * x * x))


@triton.jit
def gelu_tanh_slope(x):  # type: ignore[no-untyped-def]
    """s + x s (1 - s) (2 z)' with s = sigmoid(2 z); from e = exp(-|2 z|), so that 1 - s keeps its digits."""
    z = TANH_SCALE * (x + TANH_CUBE * x * x * x)
    e = tl.exp(-tl.abs(z))
    r = 1 / (1 + e)
    return tl.where(z < 0, e, 1) * r + x * (e * r * r) * (TANH_SCALE * (1 + 3 * TANH_CUBE * x * x))


# For 16-bit results in few instructions: in the epilogue of a product the tensor cores are idle while they run, and elementwise they would take as
# long as the memory.
#
# With e(y) = Φ(-y) for y >= 0 (of gelu_tanh: the sigmoid that stands in for Φ), gelu(x) = x |[x > 0] - e(|x|)|. log2 e is smooth, so a
# polynomial and one ex2 give e to a given relative error, also in the tail of negative x. A multiprocessor executes 128 multiply-adds per
# clock but 16 ex2 or
# reciprocals: a sigmoid, with one of each, costs as much as 16 multiply-adds.


@triton.jit
def _half(x, y, p):  # type: ignore[no-untyped-def]
    """x |[x > 0] - 2^p|, where p is a polynomial of y = |x| without its last two terms: -1 and the coefficient of y."""
    return x * tl.abs(tl.where(x > 0, 1.0, 0.0) - tl.exp2(p * y - 1.0))


@triton.jit
def gelu_coarse(x):  # type: ignore[no-untyped-def]
    """x Φ(x) with a relative error of Φ or 1 - Φ of 2.8e-4, a seventh of bfloat16's rounding: five multiply-adds. Decreasing for all
    |x|."""
    y = tl.abs(x)
    p = 0.004987901111399587 - 0.00024116890856573647 * y
    p = -0.04523707817220202 + p * y
    p = -0.46818422102907264 + p * y
    p = -1.1476737479834211 + p * y
    return _half(x, y, p)


@triton.jit
def gelu_fine(x):  # type: ignore[no-untyped-def]
    """x Φ(x) with a relative error of Φ or 1 - Φ of 7e-6, for float16: seven multiply-adds."""
    y = tl.abs(x)
    p = 5.9754067385828225e-05 - 1.7356653543854073e-06 * y
    p = -0.0009169386381084332 + p * y
    p = 0.00845751245380599 + p * y
    p = -0.05386145716967388 + p * y
    p = -0.4585615975756573 + p * y
    p = -1.1512100265386889 + p * y
    return _half(x, y, p)


@triton.jit
def gelu_tanh_fine(x):  # type: ignore[no-untyped-def]
    """x (1 + tanh z) / 2, z = sqrt(2 / π) (x + 0.044715 x³), with a relative error of the factor of x of 1.1e-4: seven multiply-adds."""
    y = tl.abs(x)
    p = 0.0012117344005484337 - 5.533471232310738e-05 * y
    p = -0.00990444713145908 + p * y
    p = 0.031636046927571784 + p * y
    p = -0.07945439432297621 + p * y
    p = -0.44440656864656314 + p * y
    p = -1.1537079912607058 + p * y
    return _half(x, y, p)
