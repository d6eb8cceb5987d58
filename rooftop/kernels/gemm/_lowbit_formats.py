"""Shared by the kernels of `quantized_matmul`: the numbers of formats in _unpack.cuh, and the relation of groups to blocks of 128 columns."""

from __future__ import annotations

from rooftop.core.spec import Problem
from rooftop.ops.quantized_matmul import BITS

FORMATS = ("int8", "int4", "int2", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
assert set(FORMATS) == set(BITS)


def sizes(p: Problem) -> tuple[int, int, int]:
    """M, N, K."""
    return p["x"].shape[0], int(p.option("n")), p["x"].shape[1]


def grouping(p: Problem) -> tuple[int, int]:
    """Columns of a group that kernels are compiled for (32, 64 or 128), and how many blocks of 128 columns share a scale if that is 128."""
    group, k, blocks = int(p.option("group")), p["x"].shape[1], p["codes"].shape[1]
    if group == k:
        return 128, max(1, blocks)
    return (group, 1) if group < 128 else (128, group // 128)
