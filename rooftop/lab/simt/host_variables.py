"""Variables of the host's that a kernel uses, which nvcc refuses: here they would be found, since both are one program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rooftop.lab.simt import host
from rooftop.lab.simt.tokens import Token, tokenise
from rooftop.lab.simt.translate import _declarators

_DEVICE = {"__device__", "__constant__", "__managed__", "__shared__"}
_NONE = {"using", "typedef", "template", "struct", "class", "enum", "union", "friend", "static_assert", "namespace", "operator", "extern", "const", "constexpr",
         "texture", "asm"}  # of a declaration that is no variable of the host's, or one whose value the device may have
_NO_TYPE = {"return", "else", "case", "goto", "throw", "new", "sizeof", "do", "delete", "co_return"}
_BLANK = ("space", "newline", "comment")


def used(texts: Mapping[str, str]) -> list[tuple[str, int, str, int]]:
    """File, line and name of the first use of each by a function of the device's alone, and the line that declares it."""
    parts = [(shown, part) for shown, text in texts.items() for part in _parts(tokenise(text))]
    variables: dict[str, int] = {}
    theirs: set[str] = set()
    for _, part in parts:
        code = [t for t in part if t.kind not in _BLANK]
        words = {t.text for t in code if t.kind == "word"}
        if host.body(part) is not None or not code or any(t.kind == "directive" for t in code):
            theirs |= {t.text for t in code if t.kind == "word"} if host.body(part) is None else set()
            continue
        names = {name for name, _, _ in _declarators([t for t in code if t.text != ";"])} if not words & _NONE else set()
        opened = next((i for i, t in enumerate(code) if t.text in ("(", "=", "{", "[")), len(code))
        if words & _DEVICE:
            theirs |= words
        elif names and len(code) > 2 and (opened == len(code) or code[opened].text != "("):
            variables |= {n: code[0].line for n in names if n not in variables}
    found: dict[str, tuple[str, int, str, int]] = {}
    for shown, part in parts:
        body = host.body(part)
        head = {t.text for t in part[:body] if t.kind == "word"} if body is not None else set()
        if body is None or "__host__" in head or not head & {"__global__", "__device__"}:
            continue
        code = [t for t in part if t.kind not in (*_BLANK, "directive")]
        for name in {t.text for t in code if t.text in variables} - theirs - set(found):
            at = [i for i, t in enumerate(code) if t.text == name and t.kind == "word"]
            if any(_declared(code, i) for i in at):
                continue
            uses = [i for i in at if code[i - 1].text not in (".", "->", "::") and code[i].line >= part[body].line]
            if uses:
                found[name] = (shown, code[uses[0]].line, name, variables[name])
    return list(found.values())


def _declared(code: Sequence[Token], at: int) -> bool:
    """Whether a name is one of the function's own there: behind a type, as a parameter, or as one of several."""
    before, after = code[at - 1], code[at + 1].text if at + 1 < len(code) else ""
    if before.text in ("*", "&", ">"):  # `float* n`, where it is no product
        typed = before.text == ">" or (code[at - 2].kind == "word" and code[at - 3].text in (";", "{", "}", "(", ",", "const"))
        return typed and after in ("=", ";", "[", "{", ")", ",")
    if before.text == ",":  # of a list of names, not of arguments
        depth = 0
        for i in range(at - 1, 0, -1):
            if depth > 0 or code[i].text in (";", "{", "}"):
                return depth <= 0 or code[i].text == "for"
            depth += (code[i].text == "(") - (code[i].text == ")")
    return before.kind == "word" and before.text not in _NO_TYPE


def _parts(tokens: list[Token]) -> Iterator[list[Token]]:
    at = 0
    while at < len(tokens):
        try:
            end, _ = host.declaration(tokens, at)
        except host.UnreadableError:
            return
        yield tokens[at:end]
        at = end
