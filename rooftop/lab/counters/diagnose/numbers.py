"""Numbers and units as Nsight Compute prints them: localised separators, scaled units. Everything is brought to seconds, hertz, bytes,
percent."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?\d[\d.,'\u2019\u00a0\u202f ]*(?:[eE][+-]?\d+)?%?")
_PLAIN = re.compile(r"[+-]?\d+(?:\.(\d*))?")  # as ncu prints most numbers; the group: the decimals
_SPACES = "'\u2019\u00a0\u202f "  # separators of thousands that are never decimal ones
# decimal separator -> what makes it Python's number
_TO_FLOAT = {".": str.maketrans("", "", _SPACES + ","), ",": str.maketrans(",", ".", _SPACES + ".")}
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "\u00b5": 1e-6, "n": 1e-9, "p": 1e-12}
_COUNTED = "byte|b|hz|inst|instruction|sector|cycle|request|warp|thread|block|wavefront|sample|register|tag|op|flop|packet"


def decimal_separator(texts: Iterable[str]) -> str:
    """'.' or ',': the decimal separator of numbers that were printed alike. '.', as ncu prints by default, where nothing tells.

    Raises ValueError where one text says '.' and another ','."""
    said: dict[str, str] = {}
    for text in texts:
        found: str | None
        if plain := _PLAIN.fullmatch(text):
            found = "." if len(plain[1] or "...") != 3 else _certain_separator(text)
        else:
            found = _certain_separator(text.strip().rstrip("%")) if _NUMBER.fullmatch(text.strip()) else None
        if found and found not in said:
            said[found] = text
            if len(said) == 2:
                raise ValueError(f"numbers of two kinds in one report: {said['.']!r} and {said[',']!r}")
    return next(iter(said), ".")


def _certain_separator(text: str) -> str | None:
    """The decimal separator that a number shows for sure, or None. One separator before three digits may be either."""
    mantissa = text.partition("e" if "e" in text else "E")[0]
    dots, commas = mantissa.count("."), mantissa.count(",")
    if dots and commas:
        return "." if mantissa.rfind(".") > mantissa.rfind(",") else ","
    if dots + commas == 0:
        return None
    mark = "." if dots else ","
    if dots + commas > 1:
        return "," if mark == "." else "."
    whole, _, rest = mantissa.partition(mark)
    digits = whole.lstrip("+-")
    return mark if len(rest) != 3 or len(digits) > 3 or digits.startswith("0") else None


def number(text: str, decimal: str = ".") -> float | None:
    """The value of a printed number, or None where it is none (`n/a`, a name, nothing)."""
    if decimal == "." and _PLAIN.fullmatch(text):
        return float(text)
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return float(text.rstrip("%").translate(_TO_FLOAT[decimal]))
    except ValueError:
        return None


def scale(unit: str) -> float:
    """By how much a value in this unit is multiplied: `usecond` 1e-6, `Kbyte/block` 1e3, `cycle/nsecond` 1e9. 1 for units that are not
    scaled."""
    above, *below = unit.strip().split("/")
    factor = _scale(above)
    for part in below:
        factor /= _scale(part)
    return factor


def _scale(unit: str) -> float:
    unit = unit.strip()
    if time := re.fullmatch(r"([munp\u00b5]?)(s|sec|seconds?)", unit):
        return _SMALL[time[1]]
    if unit in ("minute", "min"):
        return 60.0
    if counted := re.fullmatch(rf"([KMGTPk]?)(?:{_COUNTED})s?", unit, re.IGNORECASE):
        return _PREFIX[counted[1].upper()]
    return 1.0
