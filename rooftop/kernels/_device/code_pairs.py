"""Codes of e4m3, two to a word of 16 bits, as float16: in PTX, and in NumPy for Triton on a CPU."""

from __future__ import annotations

from typing import Any

# Of two words the even codes (those of the low bytes) and the odd ones. Triton's own shifts and masks take five instructions for two codes.
FROM_WORDS = (
    "{ .reg .b32 u; .reg .b16 x, y; prmt.b32 u, $2, 0, 0x3120; mov.b32 {x, y}, u; "
    "cvt.rn.f16x2.e4m3x2 $0, x; cvt.rn.f16x2.e4m3x2 $1, y; }"
)


def from_words(words: Any) -> tuple[Any, Any]:
    """What FROM_WORDS makes of an array of words."""
    import ml_dtypes
    import numpy as np

    codes = np.ascontiguousarray(words).astype(np.uint16)
    even, odd = (part.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float16) for part in (codes & 255, codes >> 8))
    return even, odd
