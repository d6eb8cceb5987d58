"""How a CUDA C++ product reads an operand: which way it lies in memory, and the boxes that TMA copies."""

from __future__ import annotations

from rooftop.core import tensor_maps
from rooftop.core.spec import Meta, TensorMap

BK, LINE = 64, 128  # k of a slice, and its bytes
ANY, ACROSS = 1, 2  # modes of an operand, as in the kernels


def lies_across(name: str, meta: Meta) -> bool:
    """Whether the operand lies along M or N, not along K."""
    near, far = (-1, -2) if name == "a" else (-2, -1)
    return (meta.strides[near] != 1 and meta.shape[near] > 1) or (meta.strides[far] == 1 and meta.shape[far] > 1 and meta.shape[near] == 1)


def boxes(name: str, meta: Meta, lines: int) -> TensorMap:
    """Boxes of `lines` rows by 64 of K, or ACROSS of `lines` of K by 64 rows."""
    across = lies_across(name, meta)
    order = (0, 1) if (name == "a") != across else (1, 0)
    shape, strides = tuple(meta.shape[i] for i in order), (meta.strides[order[0]], 1)
    if shape[0] == 1:
        strides = (-(-shape[1] // 8) * 8, 1)
    return TensorMap(name, (lines, 64), swizzle=128, shape=shape, strides=strides)


def mode_of(name: str, meta: Meta) -> int:
    return ACROSS * lies_across(name, meta) + ANY * (tensor_maps.refused(boxes(name, meta, 64), meta) is not None)


def line_of(name: str, meta: Meta) -> int:
    """Elements from a line to the next: from a row of k to the next where the operand lies across, else along M or N."""
    return meta.strides[-2 if (name == "a") != lies_across(name, meta) else -1]
