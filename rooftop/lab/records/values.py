"""What a value of a record may be: a text, a number, a list or a table of such. Nothing here knows what the keys mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rooftop.core.spec import DTYPES
from rooftop.core.texts import CONTROL

LARGEST, SMALLEST = 1e300, 1e-30  # of numbers, and of those that are divided by, which are at most 1 / SMALLEST

Check = Callable[[Any, str], None]  # (value, its name in the record): raises ValueError


def must(good: bool, value: Any, at: str, what: str) -> None:
    if not good:
        shown = repr(value)
        raise ValueError(f"{at} is {shown if len(shown) < 60 else shown[:57] + '...'}; it must be {what}")


def shown(value: Any, at: str = "") -> None:
    """Raises ValueError for control characters in the texts and keys of a value: what shows a record would obey them."""
    if isinstance(value, str):
        if found := CONTROL.search(value):
            raise ValueError(f"{at} holds the control character U+{ord(found[0]):04X}; texts of records hold none but newlines and tabs")
    elif isinstance(value, dict):
        for key, inner in value.items():
            shown(key, f"a key of {at or 'the record'}")
            shown(inner, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            shown(inner, f"{at}[{i}]")


def dtype(value: Any, at: str) -> None:
    must(isinstance(value, str) and value in DTYPES, value, at, f"one of {', '.join(DTYPES)}")


def text(value: Any, at: str) -> None:
    must(isinstance(value, str), value, at, "a text")


def name(value: Any, at: str) -> None:
    must(isinstance(value, str) and 0 < len(value) <= 200 and "\n" not in value, value, at, "a text of one line, 1 to 200 characters")


def time(value: Any, at: str) -> None:
    try:
        good = datetime.fromisoformat(value).utcoffset() is not None
    except (TypeError, ValueError, OverflowError):
        good = False
    must(good, value, at, "a time with its zone, as 2026-11-22T02:19:04+00:00")


def flag(value: Any, at: str) -> None:
    must(isinstance(value, bool), value, at, "true or false")


def number(value: Any, at: str) -> None:
    must(isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST, value, at, "a number")


def whole(value: Any, at: str) -> None:
    must(type(value) is int and 0 <= value < 1 << 63, value, at, "a whole number of at least 0")


def positive(value: Any, at: str) -> None:
    number(value, at)
    must(SMALLEST <= value <= 1 / SMALLEST, value, at, "above 0")


def count(value: Any, at: str) -> None:
    whole(value, at)
    must(value > 0, value, at, "at least 1")


def positive_or_null(value: Any, at: str) -> None:
    if value is not None:
        positive(value, at)


def number_or_null(value: Any, at: str) -> None:
    if value is not None:
        number(value, at)


def table_or_null(value: Any, at: str) -> None:
    if value is not None:
        keys({})(value, at)


def list_of(one: Check, least: int = 0) -> Check:
    def check(value: Any, at: str) -> None:
        must(isinstance(value, list) and len(value) >= least, value, at, f"a list of at least {least}" if least else "a list")
        for i, v in enumerate(value):
            one(v, f"{at}[{i}]")

    return check


def table_of(one: Check) -> Check:
    def check(value: Any, at: str) -> None:
        must(isinstance(value, dict), value, at, "a table")
        for key, v in value.items():
            one(v, f"{at}.{key}")

    return check


def keys(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    def check(value: Any, at: str) -> None:
        must(isinstance(value, dict), value, at, "a table")
        for key, one in required.items():
            if key not in value:
                raise ValueError(f"{at + '.' if at else ''}{key} is missing")
            one(value[key], f"{at + '.' if at else ''}{key}")
        for key, one in (optional or {}).items():
            if key in value:
                one(value[key], f"{at + '.' if at else ''}{key}")

    return check


def whole_or_null(value: Any, at: str) -> None:
    if value is not None:
        whole(value, at)
