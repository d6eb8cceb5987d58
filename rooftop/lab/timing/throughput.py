"""What bounds a work by its counts alone, and the throughput that a time means."""

from __future__ import annotations

from rooftop.core.spec import Work


def compute_bound(work: Work) -> bool:
    """Whether there are so many operations a byte that a copy of the bytes is no measure of it."""
    return bool(sum(n for unit, n in work.ops.items() if unit != "exp") > 16 * work.bytes)


def rate(work: Work, seconds: float) -> str:
    """Throughput in the unit that says most: TFLOP/s where there are many operations a byte, else GB/s."""
    fma = sum(n for unit, n in work.ops.items() if unit != "exp")
    if compute_bound(work):
        return f"{2 * fma / seconds / 1e12:.2f} TFLOP/s"
    return f"{work.bytes / seconds / 1e9:.0f} GB/s"
