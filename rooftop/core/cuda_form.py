"""The code of a CUDA C++ file that kernels reach, as text: the definitions that they name, directly or through others, each normalised.

The result does not depend on the file or header that a definition stands in, on the order of definitions, or on definitions that the
kernels do not reach. A definition is reached if its name stands in one that is: a name that hides another reaches too much, never too
little. What has no name of its own (`#define`, `static_assert`, operators, `using namespace`) is always reached; so is everything between
`#if` and `#endif` if a name in it is. Of a text that undefines a macro all counts, in its order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rooftop.core.digests import c_code

_TOKEN = re.compile(r"^[ \t]*#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|\.?\d(?:[eEpP][+-]|'?[\w.])*|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|[^\s\w]", re.M)
_OPENING, _CLOSING = "({[", ")}]"
_RECORDS = ("struct", "class", "union", "enum")
_QUALIFIERS = {"__launch_bounds__", "__align__", "alignas", "__attribute__", "decltype", "noexcept", "requires", "explicit"}


@dataclass(frozen=True)
class Definition:
    """Something at the top level of a file or of a namespace. `names`: what it defines; none if it is always reached."""

    text: str
    names: frozenset[str]
    uses: tuple[str, ...]  # identifiers, in order


class Definitions:
    """Those of a text whose headers have been put in and whose comments have been taken out (`helpers.expanded`)."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\\\n", " ")
        self._reached: dict[tuple[str, ...], str] = {}  # by the names that one begins with

    @cached_property
    def every(self) -> Sequence[Definition]:
        return tuple(_split(self._text))

    @cached_property
    def _of_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for i, one in enumerate(self.every):
            for name in one.names:
                found.setdefault(name, []).append(i)
        return found

    def reached(self, kernels: Sequence[str]) -> str:
        """The code of `kernels`, names with their template arguments."""
        names = tuple(dict.fromkeys(name for kernel in kernels for name in re.findall(r"[A-Za-z_]\w*", kernel)))
        if names not in self._reached:
            self._reached[names] = self._reached_by(names)
        return self._reached[names]

    def _reached_by(self, names: Sequence[str]) -> str:
        if "#undef" in self._text:
            return c_code(self._text)
        always = [i for i, one in enumerate(self.every) if not one.names]
        todo = [*names, *(name for i in always for name in self.every[i].uses)]
        order, seen, asked = [], set(always), set()
        todo.reverse()
        while todo:
            if (name := todo.pop()) in asked:
                continue
            asked.add(name)
            new = [i for i in self._of_name.get(name, ()) if i not in seen]
            seen.update(new)
            order += new
            todo += [used for i in reversed(new) for used in reversed(self.every[i].uses)]
        return "\n".join([*(self.every[i].text for i in always), *(self.every[i].text + self._later(i) for i in order)])

    def _later(self, i: int) -> str:
        """Which overloads of a name come after a definition that uses it: these it may not see."""
        uses = dict.fromkeys(self.every[i].uses)
        found = [(name, [k for k, j in enumerate(self._of_name[name]) if j > i]) for name in uses if len(self._of_name.get(name, ())) > 1]
        return "".join(f" // {name} {later}" for name, later in found if later)


def _split(text: str) -> Iterator[Definition]:
    spaces: list[str] = []  # the namespaces around
    depth, begin, tokens = 0, 0, list[str]()
    conditions: list[int] = []  # of the `#if` that are open in the present definition: the depth before each

    def ended(end: int) -> Definition:
        code = c_code(text[begin:end])
        return Definition("::".join([*spaces, code]), _names(tokens), tuple(t for t in tokens if t[0].isalpha() or t[0] == "_"))

    for found in _TOKEN.finditer(text):
        token = found[0]
        if directive := re.match(r"[ \t]*#\s*(\w*)", token):
            word = directive[1]
            if word == "include" or (word == "pragma" and "once" in token):
                continue
            if not tokens:
                begin = found.start()
            tokens += [f"#{word}", *re.findall(r"[A-Za-z_]\w*", token[directive.end() :])]
            if word.startswith("if"):
                conditions.append(depth)
            elif word.startswith("el") and conditions:
                depth = conditions[-1]
            elif word == "endif" and conditions:
                conditions.pop()
            if depth == 0 and not conditions and tokens[0].startswith("#"):
                yield ended(found.end())
                tokens = []
            continue
        if token == "}" and depth == 0:  # of a namespace
            spaces, tokens = spaces[:-1], []
            continue
        if not tokens:
            begin = found.start()
        tokens.append(token)
        if token == "{" and depth == 0 and next((t for t in tokens[:-1] if t != "inline"), "") == "namespace":
            spaces.append("".join(tokens[:-1]))
            tokens = []
            continue
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0 and not conditions and (token == ";" or (token == "}" and _is_function(tokens))):
            if tokens != [";"]:
                yield ended(found.end())
            tokens = []
    if tokens:
        yield ended(len(text))


def _bare(tokens: Sequence[str]) -> list[str]:
    """The tokens outside of brackets of all kinds, each pair of brackets that is not a template argument list as its first one; without
    template parameters."""
    found: list[str] = []
    depth = angle = 0
    for i, token in enumerate(tokens):
        if token in _OPENING:
            if depth == 0 and not angle:
                found.append(token)
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        elif depth == 0:
            if token == "<" and (angle or _closes(tokens, i)):
                angle += 1
            elif token == ">" and angle:
                angle -= 1
            elif not angle:
                found.append(token)
    return found


def _closes(tokens: Sequence[str], i: int) -> bool:
    """Whether the `<` at i has its `>` before the end of a statement or a body."""
    depth = angle = 0
    for token in tokens[i:]:
        if token in _OPENING:
            if token == "{" and depth == 0:
                return False
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        if depth < 0 or (depth == 0 and token == ";"):
            return False
        angle += (depth == 0) * ((token == "<") - (token == ">"))
        if angle == 0 and depth == 0:
            return True
    return False


def _is_function(tokens: Sequence[str]) -> bool:
    """Whether a definition ends with its body, without a semicolon."""
    before = _bare(tokens)
    head = before[: before.index("{")] if "{" in before else before
    return "(" in head and "=" not in head and not any(t in _RECORDS for t in head)


def _names(tokens: Sequence[str]) -> frozenset[str]:
    bare = _bare(tokens)
    if tokens[0].startswith("#"):
        if not tokens[0].startswith("#if"):
            return frozenset()
        return frozenset(t for t in tokens if t[0].isalpha() or t[0] == "_")  # any of them
    if "operator" in bare or bare[:2] == ["using", "namespace"] or bare[0] in ("static_assert", "asm") or any(t[0] == '"' for t in bare):
        return frozenset()
    head = bare[: bare.index("{")] if "{" in bare else bare
    names: set[str] = set()
    for before, token, after in zip(["", *head], head, [*head[1:], ";"], strict=False):
        if (
            (token[0].isalpha() or token[0] == "_") and token not in _QUALIFIERS and after in ("(", "=", ",", ";", "[", ":", "{")
            and before != ":"
        ):
            names.add(token)
    record = next((i for i, t in enumerate(head) if t in _RECORDS), None)
    if record is not None:
        names.update(t for t in head[record + 1 : record + 3] if t[0].isalpha() and t not in _RECORDS)
        if head[record] == "enum":
            names.update(t for t in tokens if t[0].isalpha())
    return frozenset(names)
