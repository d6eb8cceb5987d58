"""What both predictors of the codec `ratio` share: whole numbers as symbols and low bits, which values are coded, how many bits symbols
take."""

from __future__ import annotations

import numpy as np

from rooftop.formats.elements import Element, to_floats

DIRECT = 192  # numbers that have a symbol of their own
FARTHEST = 1 << 30  # |k| stays below it
LAST = DIRECT + 1 + 2 * (31 - 8) + 1  # the highest symbol
EXACT = 1 << 40  # stands for an exact value among the k


def rounded(v: np.ndarray, e: Element) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(v.astype(e.numpy))


def plain_values(bits: np.ndarray, e: Element) -> np.ndarray:
    """+0 and normal, finite numbers."""
    size = bits & e.bits.type((1 << (8 * e.bytes - 1)) - 1)
    with np.errstate(all="ignore"):
        return np.asarray(((size >= e.bits.type(e.normal)) | (bits == 0)) & np.isfinite(to_floats(bits, e)))


def to_symbols(k: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers (|k| < 2^31) as symbols 1 to 242, and for the large ones bits below the two highest: z = 2|k|, or 2|k| - 1 where k < 0;
    z + 1 for z < 192, else 193 + 2 (length - 8) + the second highest bit, and `length` - 2 bits as they are. Returns symbols, those bits
    and how many they are."""
    z = np.where(k < 0, -2 * k - 1, 2 * k)
    length = np.frexp(z.astype(np.float64))[1].astype(np.int64)
    large = z >= DIRECT
    second = z >> np.maximum(length - 2, 0) & 1
    symbols = np.where(large, DIRECT + 1 + 2 * (length - 8) + second, z + 1).astype(np.uint8)
    count = np.where(large, length - 2, 0)
    return symbols, np.where(large, z & ((1 << count) - 1), 0), count


def from_symbols(symbols: np.ndarray, low: np.ndarray) -> np.ndarray:
    """The reverse; `low` as `to_symbols` gave them."""
    code = symbols.astype(np.int64)
    above = np.maximum(code - DIRECT - 1, 0)
    z = np.where(code > DIRECT, (2 + above % 2) << np.minimum(above // 2 + 6, 62) | low, np.maximum(code - 1, 0))
    return np.where(z % 2, -(z + 1) // 2, z // 2)


def low_counts(symbols: np.ndarray) -> np.ndarray:
    """How many bits follow each symbol."""
    return np.where(symbols > DIRECT, (symbols.astype(np.int64) - DIRECT - 1) // 2 + 6, 0)


def pack_low(low: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Bits one after the other, the lowest first, as bytes."""
    some = count > 0
    low, count = low[some], count[some]
    bits = low[:, None] >> np.arange(32) & 1
    return np.packbits(bits[np.arange(32) < count[:, None]].astype(np.uint8), bitorder="little")


def unpack_low(packed: np.ndarray, count: np.ndarray) -> np.ndarray:
    low, some = np.zeros(count.shape, np.int64), count > 0
    mine = count[some]
    bits = np.zeros((len(mine), 32), np.int64)
    bits[np.arange(32) < mine[:, None]] = np.unpackbits(packed, bitorder="little")[: int(mine.sum())]
    low[some] = (bits << np.arange(32)).sum(1)
    return low


def entropy_of(counts: np.ndarray) -> int:
    """Bits of so many of each symbol (fewer than 2^31 in all), times 2^16: n log n - sum of c log c, the same on every machine."""
    some = counts[counts > 0].astype(np.int64)
    total = some.sum(keepdims=True)
    return int((total * _log2(total)).sum() - (some * _log2(some)).sum()) if len(some) else 0


def _log2(n: np.ndarray) -> np.ndarray:
    """floor(2^16 log2 n) nearly, by squaring a number of 32 bits 16 times: whole numbers alone."""
    length = np.frexp(n.astype(np.float64))[1].astype(np.int64)
    found, m = length - 1, n.astype(np.uint64) << (32 - length).astype(np.uint64)  # 2^31 <= m < 2^32
    for _ in range(16):
        m = m * m >> np.uint64(31)
        above = m >> np.uint64(32)
        found = 2 * found + above.astype(np.int64)
        m >>= above
    return found
