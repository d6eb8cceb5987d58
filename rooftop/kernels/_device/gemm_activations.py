"""Activations for the epilogue of a product with a 16-bit result, in few instructions: while they run, the tensor cores are idle.

With e(y) = Φ(-y) for y >= 0 (of gelu_tanh: the sigmoid that stands in for Φ), gelu(x) = x |[x > 0] - e(|x|)|. log2 e is smooth, so a polynomial and one ex2
give e to a given relative error, also in the tail of negative x. A multiprocessor executes 128 multiply-adds per clock but 16 ex2 or reciprocals: a sigmoid,
with one of each, costs as much as 16 multiply-adds."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _half(x, y, p):  # type: ignore[no-untyped-def]
    """x |[x > 0] - 2^p|, where p is a polynomial of y = |x| without its last two terms: -1 and the coefficient of y."""
    return x * tl.abs(tl.where(x > 0, 1.0, 0.0) - tl.exp2(p * y - 1.0))


@triton.jit
def gelu_coarse(x):  # type: ignore[no-untyped-def]
    """x Φ(x) with a relative error of Φ or 1 - Φ of 2.8e-4, a seventh of bfloat16's rounding: five multiply-adds. Decreasing for all |x|."""
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
