"""Code of the host's in an ordinary `.cu`: `main()`, launches, calls of the runtime API. It is left out, line for line, and never run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rooftop.core.digests import without_comments

if TYPE_CHECKING:
    from rooftop.lab.simt.tokens import Token

_SIGN = re.compile(
    r"<<<|\bmain\s*\(|\bcuda(?!GridDep|Trigger)[A-Z]\w*\s*\("
    r"|#\s*include\s*<(?:iostream|vector|string|chrono|random|c?stdio(?:\.h)?|c?stdlib(?:\.h)?|fstream|cuda_runtime\w*\.h)>"
)
INTEGERS = "".join(
    f"typedef {'' if s else 'un'}signed {t} {'' if s else 'u'}int{n}_t; " for n, t in ((8, "char"), (16, "short"), (32, "int"))
    for s in (1, 0)
)
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[ \t]+[^\n(]*|\([^)\n]*\)(?:[^\n\\]|\\\n|\\)*?)(?:__device__|__global__|constexpr)", re.M
)
_CALL = re.compile(r"[A-Z][A-Z0-9_]+")  # how a macro is called that stands at the level of the file, without a semicolon
_DEVICE = ("__device__", "__global__", "__constant__", "__shared__", "constexpr", "consteval")
_ALIGNING = ("alignas", "__align__", "__attribute__")
_OWN = re.compile(r"std|cuda[A-Z]\w*|cublas\w*|cudnn\w*|torch|thrust")  # of a class that holds any of these, but for device code


class UnreadableError(ValueError):
    """The host's code cannot be read; the text begins with the line."""


def present(text: str) -> bool:
    """Whether a source has code of the host's."""
    return bool(_SIGN.search(without_comments(text)))


def marks(texts: Sequence[str]) -> frozenset[str]:
    """The words that make a function the device's: CUDA's own, and macros of the sources that stand for them."""
    return frozenset((*_DEVICE, *(m[1] for text in texts for m in _MACRO.finditer(text))))


def left_out(tokens: Sequence[Token], device: Collection[str]) -> list[Token]:
    """`tokens` without the functions of which no word says that they are the device's too, and without classes that are the host's: those
    that hold its types, or that no code of the device's speaks of."""
    parts: list[tuple[Sequence[Token], bool]] = []  # with whether it only opens a namespace, or closes one
    at = 0
    while at < len(tokens):
        end, opens = declaration(tokens, at)
        parts.append((tokens[at:end], opens))
        at = end
    out = [not opens and _hosts(part, device) for part, opens in parts]
    words = [{t.text for t in part if t.kind == "word"} for part, _ in parts]
    names = [_class_with_code(part) if not opens and not gone else "" for (part, opens), gone in zip(parts, out, strict=True)]
    spoken: set[str] = set()  # words of what is kept for certain
    for own, name, gone in zip(words, names, out, strict=True):
        spoken |= own if not gone and (not name or own & set(device)) else set()
    while more := [i for i, name in enumerate(names) if name and not words[i] & set(device) and name in spoken and not words[i] <= spoken]:
        for i in more:
            spoken |= words[i]
    kept: list[Token] = []
    for (part, _), own, name, gone in zip(parts, words, names, out, strict=True):
        if gone or (name and not own & set(device) and name not in spoken):
            kept += [t if t.kind == "directive" else t._replace(kind="space", text="\n" * t.text.count("\n")) for t in part]
        else:
            kept += part
    return kept


def _class_with_code(part: Sequence[Token]) -> str:
    """The name of the class that a declaration defines, if it holds functions; else nothing."""
    outside = _outside([t.text for t in part if t.kind in ("word", "symbol", "string", "number", "raw")])
    kind = next((i for i, w in enumerate(outside) if w in ("struct", "class", "union")), None)
    if kind is None or "{" not in outside or not any(t.text == "(" for t in part):
        return ""
    return next((w for w in outside[kind + 1 :] if w not in ("final", "{", ":") and w.isidentifier()), "")


def declaration(tokens: Sequence[Token], at: int) -> tuple[int, bool]:
    """Where the declaration at `at`, at the level of a namespace, ends; and whether it opens a namespace (or closes one)."""
    words: list[str] = []
    depth, body, line = 0, False, tokens[at].line
    for i in range(at, len(tokens)):
        token = tokens[i]
        if token.kind == "directive" and not words:
            return i + 1, True
        if token.kind not in ("word", "symbol", "string", "number", "raw"):
            continue
        text = token.text if token.kind == "symbol" else ""
        if depth == 0 and text == "{" and (
            words[:1] == ["namespace"] or words[:2] == ["inline", "namespace"] or words == ["extern", '"C"']
        ):
            return i + 1, True
        if depth == 0 and text == "}":
            return i + 1, True
        line = line if words else token.line
        words.append(token.text)
        if text in ("(", "[", "{"):
            body |= depth == 0 and text == "{" and _is_function(words)
            depth += 1
        elif text in (")", "]", "}") and text:
            depth -= 1
            if depth == 0 and text == "}" and body:
                return i + 1, False
            if depth == 0 and text == ")" and _CALL.fullmatch(words[0]) and words[1] == "(" and words.count("(") == words.count(")"):
                after = next((t for t in tokens[i + 1 :] if t.kind not in ("space", "comment")), None)
                if after is None or after.kind == "newline":
                    return i + 1, False
        elif depth == 0 and text == ";":
            return i + 1, False
    if depth > 0 or body:
        raise UnreadableError(f"{line}: the host's code cannot be read: what opens here is not closed by the end of the file")
    return len(tokens), False


def _outside(words: Sequence[str]) -> list[str]:
    """The words that stand in no parentheses and are no parameters of a template."""
    found, depth, i = [], 0, 0
    while i < len(words):
        if depth == 0 and words[i] == "template" and words[i + 1 : i + 2] == ["<"]:
            angle = 0
            while i + 1 < len(words):
                i += 1
                angle += {"<": 1, ">": -1, ">>": -2, "<<": 2}.get(words[i], 0)
                if angle <= 0:
                    break
        elif words[i] in _ALIGNING and words[i + 1 : i + 2] == ["("]:
            i += 1
            nested = 1
            while nested and i + 1 < len(words):
                i += 1
                nested += (words[i] == "(") - (words[i] == ")")
        else:
            depth -= words[i] in (")", "]", "}")
            if depth == 0:
                found.append(words[i])
            depth += words[i] in ("(", "[", "{")
        i += 1
    return found


def _is_function(words: Sequence[str]) -> bool:
    """Whether a brace that follows opens a function's body."""
    outside = _outside(words)
    outside = outside[:-1] if outside[-1:] == ["{"] else outside
    if ")" in outside and ":" in outside[outside.index(")") :] and (outside[-1].isidentifier() or outside[-1] == ">"):
        return False  # it opens the value of a member, in a constructor's list
    return ")" in outside and ("operator" in outside or "=" not in outside)


def _declares(outside: Sequence[str]) -> bool:
    """Whether these words outside parentheses declare a function: a type, a name and parameters; a macro has no type before it."""
    named = outside[: outside.index("(")] if "(" in outside else []
    return outside[-2:] == [")", ";"] and sum(w.isidentifier() for w in named) > 1 and "=" not in named


def body(part: Sequence[Token]) -> int | None:
    """Of a declaration that is a function's definition: the index of the brace that opens its body."""
    code = [(i, t.text) for i, t in enumerate(part) if t.kind in ("word", "symbol", "string", "number", "raw")]
    words = [text for _, text in code]
    depth = 0
    for n, (i, word) in enumerate(code):
        if word == "{" and depth == 0 and words[-1] == "}" and _is_function(words[:n]):
            return i
        depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
    return None


def _hosts(part: Sequence[Token], device: Collection[str]) -> bool:
    words = [t.text for t in part if t.kind in ("word", "symbol", "string", "number", "raw")]
    if (at := body(part)) is not None:
        return not any(t.text in device for t in part[:at])
    if any(w in device for w in words):
        return False
    if words[:1] == ["template"] and words[1:2] != ["<"] and words[-1:] == [";"]:
        return True  # an explicit instantiation
    outside = _outside(words)
    if _CALL.fullmatch(words[0] if words else "") and outside in ([words[0], "(", ")"], [words[0], "(", ")", ";"]):
        return True  # a macro that no code of the device's is in
    is_class = any(w in ("struct", "class", "union") for w in outside) and "{" in outside
    if outside[:1] in (["using"], ["typedef"], ["concept"]):
        return False
    if not is_class and _declares(outside):
        return True  # a function of the host's, whose types may be left out
    return any(_OWN.fullmatch(w) for w in (words if is_class or ")" in outside else outside[:3]))
