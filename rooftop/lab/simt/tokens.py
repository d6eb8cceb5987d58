"""CUDA C++ as tokens: words, symbols, texts, comments, spaces and directives, each with its line. Put together again they are the text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f\v]+|\\\n)|(?P<newline>\n)|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R\"\(.*?\)\")|(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)|(?P<symbol>::|->|##|<<<|>>>|<<=|>>=|<<|[-+*/%&|^=!<>]=|&&|\|\||\+\+|--|.)",
    re.S,
)
_DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n\\]|\\\n|\\.)*")


class Token(NamedTuple):
    kind: str
    text: str
    line: int


def tokenise(text: str) -> list[Token]:
    return list(_tokens(text))


@lru_cache(maxsize=512)
def _tokens(text: str) -> tuple[Token, ...]:
    found, line = [], 1
    at_start = True
    position = 0
    while position < len(text):
        if at_start and (match := _DIRECTIVE.match(text, position)):
            kind = "directive"
        else:
            match = _TOKEN.match(text, position)
            assert match is not None and match.lastgroup is not None  # the last alternative takes any character
            kind = match.lastgroup
        found.append(Token(kind, match[0], line))
        line += match[0].count("\n")
        at_start = kind == "newline" or (at_start and kind in ("space", "comment"))
        position = match.end()
    return tuple(found)
