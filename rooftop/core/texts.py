"""Texts that come from outside (a kernel's source, a record, a compiler's message), made safe to show."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

# What a terminal obeys and nobody sees: control characters, marks that turn the direction of writing, halves of surrogate pairs.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

WORD, LINE = 400, 4000  # characters of an error
NUMBERS = (int, float, bool, type(None))
MARKED = re.compile(r"[\\`*\[\]<>|\n]")


def printable(text: str) -> str:
    """`text` with control characters other than newline and tab written as in Python: `\\x1b`, `\\u202e`."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text) if CONTROL.search(text) else text


def brief(text: str) -> str:
    """`printable`, of which no word is longer than WORD and no line than LINE: what was given is named, not repeated whole."""
    words = re.sub(rf"\S{{{WORD + 1},}}", lambda found: line(found[0], WORD), printable(text))
    return "\n".join(one if len(one) <= LINE else line(one, LINE) for one in words.split("\n"))


def markdown(value: Any) -> Any:
    """The same with the texts and keys in it (of tables, of lists) such that Markdown has them as they are: no markup, no cell of a table,
    no HTML."""
    if isinstance(value, str):
        return _marked(value)
    if isinstance(value, dict):
        return {_marked(k) if isinstance(k, str) else k: v if type(v) in NUMBERS else markdown(v) for k, v in value.items()}
    return [v if type(v) in NUMBERS else markdown(v) for v in value] if isinstance(value, list) else value


@lru_cache(10_000)
def _marked(text: str) -> str:
    return MARKED.sub(lambda found: " " if found[0] == "\n" else "\\" + found[0], text)


def line(text: str, width: int) -> str:
    """One line of at most `width` characters."""
    text = printable(text).replace("\n", "\\n").replace("\t", " ")
    return text if len(text) <= width else text[: width - 3] + "..."
