"""Whether CUDA C++ uses instructions that the simulator does not support: then the kernel runs on a GPU only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from rooftop.core.digests import without_comments
from rooftop.core.helpers import SHARED, Folders, headers

_KINDS = (  # instructions and types, as in PTX, in CUDA C++ without CUTLASS, and in CCCL; their names for messages
    (re.compile(r"\bwgmma\.(?:mma_async|fence|commit_group|wait_group)"), "wgmma"),
    (re.compile(r"\bcp\.(?:reduce\.)?async\.bulk\b|\bcp_async_bulk|\bCUtensorMap\b|\bprefetch\.tensormap\b|\btensormap\.\w+"), "TMA"),
    (re.compile(r"\bmultimem\.\w+"), "multimem"),
    (re.compile(r"\btcgen05\.\w+"), "tcgen05"),
    (re.compile(r"\bsetmaxnreg\.\w+"), "setmaxnreg"),
)
_FUNCTION = re.compile(r"(?:^|[\s*&])([A-Za-z_]\w*)\s*\([^;{}]*\)\s*(?:const\s*|noexcept\s*)*\{")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\\n|\\.)*)", re.M)
_WORD = re.compile(r"\w+")
_STATEMENTS = frozenset({"if", "for", "while", "switch", "asm", "sizeof", "return"})


def needs_gpu(source: str, folders: Folders = (SHARED,)) -> str | None:
    """None, or which instructions of `source`, and of the functions of shared headers that it uses, run on a GPU only."""
    own = without_comments(source)
    found = _kinds(own)
    names: dict[str, set[str]] = {}  # functions of the headers, with what each needs
    parts = [part for path in headers(source, folders) for part in _functions(path.read_text(encoding="utf-8"))]
    for name, kinds, _ in parts:
        names.setdefault(name, set()).update(kinds)
    calls = [(name, words & names.keys() - {name}) for name, _, words in parts]
    while True:  # a function needs what the functions that it calls need
        before = sum(map(len, names.values()))
        for name, called in calls:
            for word in called:
                names[name] |= names[word]
        if sum(map(len, names.values())) == before:
            break
    for word in set(_WORD.findall(own)) & set(names):
        found |= names[word]
    return f"{' and '.join(sorted(found))} {'runs' if len(found) == 1 else 'run'} on a GPU only" if found else None


def _kinds(text: str) -> set[str]:
    return {what for pattern, what in _KINDS if pattern.search(text)}


@lru_cache(512)  # most kernels include the same headers
def _functions(header: str) -> tuple[tuple[str, frozenset[str], frozenset[str]], ...]:
    """The functions and macros of a header: the name, what its own text needs, and the words in it."""
    return tuple((name, frozenset(_kinds(body)), frozenset(_WORD.findall(body))) for name, body in _parts(without_comments(header)))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The functions and macros of a header, each with its text."""
    yield from ((m[1], m[2]) for m in _MACRO.finditer(text))
    for match in _FUNCTION.finditer(text):
        if match[1] in _STATEMENTS:
            continue
        depth, at = 1, match.end()
        while at < len(text) and depth:
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        yield match[1], text[match.start() : at]
