"""Source text without the parts that do not change the machine code, and its hash. One scanner, with the same result on every Python
version."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_PYTHON = re.compile(
    r"(?P<doc>^[ \t]*[rbuRBU]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?''')[ \t]*$)"
    r"|(?P<keep>[rbfuRBFU]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))"
    r"|(?P<comment>#[^\n]*)",
    re.S | re.M,
)
_C = re.compile(r"(?P<keep>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|(?P<comment>//[^\n]*|/\*.*?\*/)", re.S)


def strip(text: str, language: str) -> str:
    """`text` without comments, docstrings (a triple-quoted string alone on its lines) and superfluous white space. `language`: python or
    c."""
    pattern = _PYTHON if language == "python" else _C
    bare = pattern.sub(lambda m: m["keep"] or "", text)
    lines = (re.sub(r"[ \t]+", " ", line.rstrip()) if language == "c" else line.rstrip() for line in bare.splitlines())
    return "\n".join(line for line in lines if line.strip())


_SPACE = re.compile(r"[ \t]+")
_BETWEEN = re.compile(r"(?<=[\w.]) (?=[\w.])|(?<=([+\-<>&|=])) (?=\1)")  # a space that parts two words or two operators


def c_code(text: str) -> str:
    """C++ `text` without comments, the inclusion of the toolkit's headers, `#pragma once`, and white space that parts nothing; one line for
    all that stands between two directives."""
    lines, code = [], ""
    for line in _C.sub(lambda m: m["keep"] or " ", text.replace("\\\n", " ")).splitlines():
        if not (directive := line.lstrip()).startswith("#"):
            code += f" {line}"
        elif not re.match(r"#\s*(include\b|pragma once)", directive):
            lines += [_spaced(code, dense=True), _spaced(directive)]
            code = ""
    return "\n".join(one for one in (*lines, _spaced(code, dense=True)) if one)


def _spaced(code: str, *, dense: bool = False) -> str:
    """White space outside texts as one space; with `dense` none where it parts nothing."""

    def one(part: str) -> str:
        part = _SPACE.sub(" ", part)
        return _BETWEEN.sub("\0", part).replace(" ", "").replace("\0", " ") if dense else part

    parts = re.split(r"(\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')", code)
    return "".join(part if i % 2 else one(part) for i, part in enumerate(parts)).strip()


def without_comments(text: str) -> str:
    """C++ `text` with each comment replaced by a space. Line breaks in comments stay, so that line numbers do not change."""
    return _C.sub(lambda m: m["keep"] or " " + "\n" * m["comment"].count("\n"), text)


def digest(*parts: Any) -> str:
    """Twelve hexadecimal digits over texts and JSON-able values."""
    joined = "\0".join(p if isinstance(p, str) else json.dumps(p, sort_keys=True, default=str) for p in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]
