"""rANS with 32 states side by side, as the lanes of a warp have them: each step codes 32 symbols, and the 16-bit words that states give off
or take in stand in the order of steps, then of lanes, so that a warp finds them by counting votes.

    encode s:  while x >= f_s 2^20: give off x mod 2^16, x = floor(x / 2^16);   x = floor(x / f_s) 2^12 + x mod f_s + c_s
    decode:    slot = x mod 2^12, s: c_s <= slot < c_s + f_s;  x = f_s floor(x / 2^12) + slot - c_s;  where x < 2^16: x = 2^16 x + the next
    word

f_s are frequencies that add up to 2^12, c_s their sums before s. States begin at 2^16 (where the decoder ends) and stay below 2^32.
Sources: Duda 2013 (arXiv 1311.2540); Giesen 2014, interleaved entropy coders (arXiv 1402.3392)."""

from __future__ import annotations

import numpy as np

LANES = 32
BITS = 12
TOTAL = 1 << BITS
LOW = 1 << 16  # the least state


class Damaged(ValueError):
    """A stream that no encoder wrote. `stream`: which of those decoded together."""

    def __init__(self, stream: int, what: str) -> None:
        super().__init__(what)
        self.stream = stream


def normalised(counts: np.ndarray) -> np.ndarray:
    """Frequencies (u16, sum 2^12) of 256 counts: rounded shares, at least 1 where a symbol occurs. What they miss of 2^12 the most frequent
    symbol gets; what they have too much is taken from the most frequent of the moment, at most an eighth of it at a time. All 0 where no
    symbol occurs."""
    counts = counts.astype(np.uint64)
    total = int(counts.sum())
    if not total:
        return np.zeros(256, np.uint16)
    f = [max(1, (int(c) * TOTAL + total // 2) // total) if c else 0 for c in counts]
    rest = TOTAL - sum(f)
    if rest > 0:
        f[f.index(max(f))] += rest
    while rest < 0:
        most = max(f)
        taken = min(-rest, max(1, most // 8))
        f[f.index(most)] -= taken
        rest += taken
    return np.array(f, np.uint16)


def starts_of(frequencies: np.ndarray) -> np.ndarray:
    """Of [..., 256]."""
    return (np.cumsum(frequencies, -1, dtype=np.uint32) - frequencies).astype(np.uint32)


def _base(frequencies: np.ndarray, m: int, size: int) -> np.ndarray | int:
    """Where the table of each stream begins: [m, 1], or 0 where there is one for all."""
    return np.arange(m)[:, None] * size if frequencies.ndim == 2 else 0


def encode(symbols: np.ndarray, active: np.ndarray | None, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Streams of symbols u8 [m, steps, 32], of which `active` (all where None) are coded: states u32 [m, 32], the 16-bit words of all
    streams one after the other, and how many each has. `frequencies`: [256], or [m, 256]."""
    m, steps, _ = symbols.shape
    f, c, base = frequencies.astype(np.uint64).reshape(-1), starts_of(frequencies).astype(np.uint64).reshape(-1), _base(frequencies, m, 256)
    x = np.full((m, LANES), LOW, np.uint64)
    words, given = np.zeros(symbols.shape, np.uint16), np.zeros(symbols.shape, bool)
    for t in range(steps - 1, -1, -1):
        s = symbols[:, t] + base
        fs, live = f[s], None if active is None else active[:, t]
        if live is not None and not live.all():
            fs = np.where(live, fs, 1)  # divides by no 0; the state is kept below
            off = (x >= fs << np.uint64(20)) & live
        else:
            live = None
            off = x >= fs << np.uint64(20)
        given[:, t] = off
        words[:, t] = x.astype(np.uint16)
        y = np.where(off, x >> np.uint64(16), x)
        q = y // fs
        y = (q << np.uint64(BITS)) + (y - q * fs) + c[s]
        x = y if live is None else np.where(live, y, x)
    return x.astype(np.uint32), words[given], given.sum((1, 2))


def decode(
    states: np.ndarray, words: np.ndarray, counts: np.ndarray, steps: int, active: np.ndarray | None, frequencies: np.ndarray
) -> np.ndarray:
    """The reverse of `encode`. Raises Damaged where states or words do not come out even; reads no word of another stream."""
    m = len(states)
    base = _base(frequencies, m, TOTAL)
    tables = frequencies.reshape(-1, 256).astype(np.uint32)
    symbol_of = np.repeat(np.tile(np.arange(256, dtype=np.uint8), len(tables)), tables.reshape(-1))
    table_of = np.repeat(np.arange(len(tables)), TOTAL)
    f_of = tables[table_of, symbol_of]
    from_of = np.tile(np.arange(TOTAL, dtype=np.uint32), len(tables)) - starts_of(tables)[table_of, symbol_of]
    if (states < LOW).any():
        raise Damaged(int(np.flatnonzero((states < LOW).any(1))[0]), "a state is below 2^16")
    x = states.astype(np.uint32)
    ends = np.cumsum(counts)
    at = ends - counts
    padded = np.concatenate((words, np.zeros(LANES + 1, np.uint16)))
    out = np.zeros((m, steps, LANES), np.uint8)
    for t in range(steps):
        live = None if active is None else active[:, t]
        slot = (x & np.uint32(TOTAL - 1)) + base
        out[:, t] = symbol_of[slot]
        y = f_of[slot] * (x >> np.uint32(BITS)) + from_of[slot]
        low = y < LOW
        if live is not None and not live.all():
            y, low = np.where(live, y, x), low & live
            out[:, t] *= live
        place = np.cumsum(low, 1)
        took = place[:, -1]
        if (took > ends - at).any():
            raise Damaged(int(np.flatnonzero(took > ends - at)[0]), "it has too few words")
        more = padded[at[:, None] + place - 1]  # where nothing is taken, a word that is not used
        x = np.where(low, y << np.uint32(16) | more, y)
        at = at + took
    if (at != ends).any() or (x != LOW).any():
        raise Damaged(int(np.flatnonzero((at != ends) | (x != LOW).any(1))[0]), "its states do not end where they began")
    return out
