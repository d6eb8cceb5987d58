"""How many neighbouring lanes of sddmm_csr__cuda_sm80.cu read a row together."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Problem


def supports(p: Problem, head: Any) -> str | None:
    if p["out"].numel == 0:
        return "there is nothing to compute"
    if p["out"].numel >= 2**31 - 512 or max(*p["a"].shape, *p["b"].shape) >= 2**31 - 4096:
        return "takes fewer than 2^31 elements, rows and columns"
    return None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """Vectors of at most 16 bytes to which every row is aligned; so many lanes that a row is about two vectors each."""
    n, size = p["a"].shape[1], p["a"].itemsize
    wide = 16 // size
    while wide > 1 and (n % wide or any(m.align % (wide * size) or (m.shape[0] > 1 and m.strides[0] % wide) for m in (p["a"], p["b"]))):
        wide //= 2
    vectors = max(1, -(-n // wide))
    return {"wide": wide, "lanes": min(32, 1 << max(0, -(-vectors // 2) - 1).bit_length())}
