"""Least squares whose result is the same on every machine, so that a container's bytes are too.

A BLAS adds in an order that depends on the processor and the number of threads, and rounds differently; the weights of a predictor, and
with them the size of a stream, would follow. Here the samples are rounded to integers of two parts, each so short that every sum of their
products is below 2^53: exact, whatever the order. The system is solved by a Cholesky decomposition, one IEEE operation at a time."""

from __future__ import annotations

import numpy as np

MANTISSA = 53


def products(m: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m^T m and m^T target, of finite samples [n, k] and [n], rounded to 32 bits of the largest, or more, where n is below 2^19."""
    both = np.concatenate((m, target[:, None]), 1)
    bits = (MANTISSA - 1 - len(both).bit_length()) // 2
    exponent = int(np.frexp(np.abs(both).max(initial=0.0))[1])
    scaled = np.ldexp(both, 2 * bits - exponent)  # below 2^(2 bits)
    high = np.rint(np.ldexp(scaled, -bits))
    low = np.rint(scaled - np.ldexp(high, bits))
    mixed = high.T @ low
    gram = np.ldexp(high.T @ high, 2 * bits) + np.ldexp(mixed + mixed.T, bits) + low.T @ low
    gram = np.ldexp(gram, 2 * (exponent - 2 * bits))
    return gram[:-1, :-1], gram[:-1, -1]


def solve(gram: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """x of gram x = right, gram symmetric; None where it is not positive definite."""
    n = len(gram)
    a = np.concatenate((gram, right[:, None]), 1)  # the right side is eliminated as one more column
    for j in range(n):
        if not a[j, j] > 0:
            return None
        a[j, j:] /= np.sqrt(a[j, j])
        a[j + 1 :, j + 1 :] -= a[j, j + 1 : n, None] * a[None, j, j + 1 :]
    x = a[:, n].copy()
    for j in range(n - 1, -1, -1):
        x[j] /= a[j, j]
        x[:j] -= a[:j, j] * x[j]
    return x
