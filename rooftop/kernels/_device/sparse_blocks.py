"""The TMA requirements of block-sparse products: how values and b are read, or why they cannot be."""

from __future__ import annotations

from rooftop.core import tensor_maps
from rooftop.core.spec import Meta, Problem, TensorMap

SHARED = 226 * 1024


def near(b: Meta) -> bool:
    """Whether b is contiguous along K."""
    return b.strides[0] == 1 and b.shape[0] > 1 and not (b.strides[1] == 1 and b.shape[1] > 1)


def maps(p: Problem, tile: int) -> dict[str, TensorMap]:
    """Boxes of the values: a block's rows; of b: `tile` columns along K, or 64 columns."""
    b, (count, high, wide) = p["b"], p["values"].shape
    sub = min(wide, 64)
    if near(b):
        pitch = b.strides[1] if b.shape[1] > 1 else -(-b.shape[0] // 8) * 8
        of_b = TensorMap("b", (tile, sub), swizzle=2 * sub, shape=(b.shape[1], b.shape[0]), strides=(pitch, 1))
    else:
        pitch = b.strides[0] if b.shape[0] > 1 else -(-b.shape[1] // 8) * 8
        of_b = TensorMap("b", (sub, 64), swizzle=128, shape=b.shape, strides=(pitch, 1))
    return {"values": TensorMap("values", (high, sub), swizzle=2 * sub, shape=(count * high, wide), strides=(wide, 1)), "b": of_b}


def refused(p: Problem) -> str | None:
    count, high, wide = p["values"].shape
    if p["out"].numel == 0 or count == 0:
        return "there is nothing to multiply"
    if wide < 16:
        return f"takes blocks of at least 16 columns; given {wide}"
    if not p["values"].contiguous:
        return "takes blocks that lie by rows"
    if max(*p["b"].shape, *p["out"].shape, count * max(high, wide)) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    for name, m in maps(p, 128).items():
        if reason := tensor_maps.refused(m, p[name]):
            return f"TMA does not read {name}: {reason}"
    return None
