"""Source text without the parts that do not change the machine code, and its hash. One scanner, with the same result on every Python version."""

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
    """`text` without comments, docstrings (a triple-quoted string alone on its lines) and superfluous white space. `language`: python or c."""
    pattern = _PYTHON if language == "python" else _C
    bare = pattern.sub(lambda m: m["keep"] or "", text)
    lines = (re.sub(r"[ \t]+", " ", line.rstrip()) if language == "c" else line.rstrip() for line in bare.splitlines())
    return "\n".join(line for line in lines if line.strip())


def without_comments(text: str) -> str:
    """C++ `text` with each comment replaced by a space. Line breaks in comments stay, so that line numbers do not change."""
    return _C.sub(lambda m: m["keep"] or " " + "\n" * m["comment"].count("\n"), text)


def digest(*parts: Any) -> str:
    """Twelve hexadecimal digits over texts and JSON-able values."""
    joined = "\0".join(p if isinstance(p, str) else json.dumps(p, sort_keys=True, default=str) for p in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]
