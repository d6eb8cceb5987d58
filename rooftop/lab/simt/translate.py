"""CUDA C++ to C++ that the host's compiler takes: what macros cannot do, line for line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from rooftop.lab.simt import host, ptx
from rooftop.lab.simt.tokens import Token, tokenise

MARK = "/simulated:/"  # before the shown path of a source in debug information, which else would put a folder before it
_DEFINE = re.compile(r"([ \t]*#[ \t]*define[ \t]+\w+(?:\([^)]*\))?)(.*)", re.S)
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*([<\"][^>\"\n]+[>\"])")
_UNROLL = re.compile(r"\s*#\s*pragma\s+unroll\s*\(?\s*(\d*)\s*\)?\s*(?://.*)?$", re.S)
MOST = 256  # times that a loop marked for unrolling, without a number, is
_OPEN, _CLOSE = "([{", ")]}"
_ALIGNMENTS = ("__align__", "alignas", "__attribute__")
_WITH_ARGUMENTS = ("__cluster_dims__", "__launch_bounds__", "__maxnreg__", *_ALIGNMENTS)
_SPECIFIERS = ("extern", "static", "inline", "const", "volatile", *_ALIGNMENTS)  # that may stand before __shared__


class TranslateError(ValueError):
    """The source uses a form that this step cannot read; the text names file and line."""


def translate(
    text: str, path: str, *, unroll: bool = False, marks: Collection[str] | None = None, tokens: list[Token] | None = None,
    includes: Mapping[str, str] | None = None,
) -> str:
    """`text` in C++, beginning with a `#line` that names `path`; every line stays where it was. `unroll`: loops so marked, in g++'s words.

    `tokens`: those of `text`, where they have been changed before (program_text.py); `includes`: files that stand for its headers, by name.
    `marks`: the file holds code of the host's, which is left out; these words make a function the device's (see `host.marks`).
    Raises TranslateError for a declaration of shared memory or inline PTX that cannot be read."""
    try:
        tokens = _shared_first(tokens) if tokens is not None else _shared_first(
            host.left_out(tokenise(text), marks) if marks is not None else tokenise(text)
        )
    except host.UnreadableError as error:
        raise TranslateError(f"{path}:{error}") from None
    path = MARK + path
    return f'#line 1 "{path}"\n' + "".join(
        _Translator(tokens, path, unroll, marks is not None or includes is not None, includes or {}).run()
    )


def cluster_dims(text: str) -> dict[str, str]:
    """The `__cluster_dims__` of the kernels of a source, by their names."""
    tokens = [t for t in tokenise(text) if t.kind in ("word", "number", "string", "symbol")] if "__cluster_dims__" in text else []
    dims: dict[str, str] = {}
    for at in (i for i, t in enumerate(tokens) if t.text == "__cluster_dims__"):
        close = _closing(tokens, at + 1)
        extents, at = " ".join(t.text for t in tokens[at + 2 : close]), close + 1
        while at + 1 < len(tokens) and (tokens[at + 1].text != "(" or tokens[at].text in _WITH_ARGUMENTS):
            at = _closing(tokens, at + 1) + 1 if tokens[at].text in _WITH_ARGUMENTS else at + 1
        if extents and at + 1 < len(tokens):
            dims[tokens[at].text] = extents
    return dims


def _closing(tokens: Sequence[Token], at: int) -> int:
    """The index of the parenthesis that closes the one at `at`; the last one's where none does."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text == "(") - (tokens[i].text == ")")
        if depth == 0:
            return i
    return len(tokens) - 1


def constants(text: str) -> set[str]:
    """The names of the `__constant__` variables that a source declares."""
    tokens = [t for t in tokenise(text) if t.kind not in ("comment", "directive")] if "__constant__" in text else []
    names: set[str] = set()
    for at in (i for i, t in enumerate(tokens) if t.text == "__constant__"):
        end, depth = at + 1, 0
        while end < len(tokens) and not (depth == 0 and tokens[end].text in (";", "}")):
            depth += (tokens[end].text in _OPEN) - (tokens[end].text in _CLOSE)
            end += 1
        declared, _ = _attributes(tokens[at + 1 : end])
        names |= {name for name, _, _ in _declarators(declared)}
    return names


def _shared_first(tokens: list[Token]) -> list[Token]:
    """`float __shared__ s[32]` with `__shared__` in front."""
    for at in [i for i, t in enumerate(tokens) if t.kind == "word" and t.text == "__shared__"]:
        first = at
        while first > 0 and (
            (t := tokens[first - 1]).kind in ("space", "newline", "comment", "word", "number") or t.text in ("::", "<", ">", ",")
        ):
            first -= 1
        while first < at and tokens[first].kind != "word":
            first += 1
        before = [t for t in tokens[first:at] if t.kind == "word"]
        if before and not all(t.text in _SPECIFIERS for t in before) and not {"__device__", "__global__", "template"} & {t.text for t in before}:
            tokens.insert(first, tokens.pop(at))
            tokens.insert(first + 1, Token("space", " ", tokens[first].line))
    return tokens


class _Translator:
    def __init__(
        self, tokens: list[Token], path: str, unroll: bool, ordinary: bool = False, includes: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.tokens, self.path, self.at, self.unroll, self.ordinary, self.includes = tokens, path, 0, unroll, ordinary, includes
        self.scopes: list[bool] = []  # for each open brace, whether it is a namespace's
        self.recent: list[str] = []  # the last words before a brace

    def run(self) -> Iterator[str]:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "word":
                if token.text == "__shared__":
                    yield self._shared()
                    continue
                if token.text in _SPECIFIERS and (at := self._shared_after(self.at)):
                    self.tokens.insert(self.at, self.tokens.pop(at))
                    yield self._shared()
                    continue
                if token.text in ("asm", "__asm__", "__asm"):
                    yield self._asm()
                    continue
                if token.text in ("__device__", "__constant__"):
                    self.at += 1
                    self._without_const()
                    continue
                if token.text == "__noinline__":
                    self.at += 1
                    yield "__attribute__((noinline))"
                    continue
            if token.kind == "directive" and (unrolled := self._unrolled(token) if self.unroll else "") + (defined := self._defined(token)):
                self.at += 1
                yield unrolled or defined
                continue
            if token.kind == "symbol":
                if token.text == "{":
                    self.scopes.append("namespace" in self.recent or self.recent[-2:-1] == ["extern"])
                elif token.text == "}" and self.scopes:
                    self.scopes.pop()
                elif token.text == "<<<":
                    yield self._launch()
                    continue
            if token.kind in ("word", "string", "symbol"):
                self.recent = [] if token.text in ("{", "}", ";") else [*self.recent[-7:], token.text]
            self.at += 1
            yield token.text

    def _unrolled(self, token: Token) -> str:
        match = _UNROLL.match(token.text)
        if not match or self._next_word(self.at + 1) not in ("for", "while", "do"):
            return ""
        return f"#pragma GCC unroll {match[1] or MOST}" + "\n" * token.text.count("\n")

    def _defined(self, token: Token) -> str:
        """A directive, changed: a macro with inline PTX, translated. Its uses are at their own lines, so that it may be one line."""
        if self.ordinary and (included := _INCLUDE.match(token.text)):  # a header of the host's may not be here, and need not
            if (own := self.includes.get(included[1][1:-1])) is not None:
                return f'#include "{own}"\n#line {token.line + 1} "{self.path}"'
            return f'#if __has_include({included[1]})\n{token.text}\n#endif\n#line {token.line + 1} "{self.path}"'
        match = _DEFINE.match(token.text)
        if match is None or "asm" not in match[2]:
            return ""
        body = [t._replace(line=token.line) for t in tokenise(match[2].replace("\\\n", " "))]
        return match[1] + "".join(_Translator(body, self.path, False).run()) + "\n" * token.text.count("\n")

    def _launch(self) -> str:
        """A launch in the source, without the kernel's name before it: on the device that is dynamic parallelism."""
        line, first = self.tokens[self.at].line, self.at
        while self.tokens[self.at].text != ">>>" and self.at + 1 < len(self.tokens):
            self.at += 1
        at = self._find(self.at + 1)
        if at >= len(self.tokens) or self.tokens[at].text != "(":
            raise TranslateError(f"{self.path.removeprefix(MARK)}:{line}: a launch <<<...>>> that cannot be read")
        self.at = self._until(at + 1, ")") + 1
        lines = sum(t.text.count("\n") for t in self.tokens[first : self.at])
        return ', simt::not_simulated("a launch <<<...>>> by a kernel (dynamic parallelism)")' + "\n" * lines

    def _find(self, at: int) -> int:
        """The next token that is neither space nor comment."""
        while at < len(self.tokens) and self.tokens[at].kind in ("space", "newline", "comment"):
            at += 1
        return at

    def _next_word(self, at: int) -> str:
        at = self._find(at)
        return self.tokens[at].text if at < len(self.tokens) else ""

    def _until(self, at: int, end: str) -> int:
        """The index of `end` at the depth of `at`."""
        depth = 0
        while at < len(self.tokens):
            text = self.tokens[at].text
            if self.tokens[at].kind == "symbol":
                if depth == 0 and text == end:
                    return at
                depth += (text in _OPEN) - (text in _CLOSE)
            at += 1
        raise TranslateError(f"{self.path.removeprefix(MARK)}:{self.tokens[-1].line}: the file ends before a {end!r}")

    def _without_const(self) -> None:
        """Takes `const` from an array of the device's: of what cannot change the compiler leaves the reads out of its report."""
        end = self.at
        while end < len(self.tokens) and self.tokens[end].text not in ("(", "[", "=", ";", "{", "}", "*", "&"):
            end += 1
        if end < len(self.tokens) and self.tokens[end].text == "[":
            self.tokens[self.at : end] = [t._replace(kind="space", text="") if t.text == "const" else t for t in self.tokens[self.at : end]]

    # -- shared memory ------------------------------------------------------------------------------------------------

    def _shared_after(self, at: int) -> int:
        """The index of the `__shared__` that other specifiers stand before; 0 where none follows."""
        while at < len(self.tokens) and self.tokens[at].text in _SPECIFIERS:
            aligns = self.tokens[at].text in _ALIGNMENTS
            at = self._find(at + 1)
            if aligns and at < len(self.tokens) and self.tokens[at].text == "(":
                at = self._find(self._until(at + 1, ")") + 1)
        return at if at < len(self.tokens) and self.tokens[at].text == "__shared__" else 0

    def _shared(self) -> str:
        first = self.tokens[self.at]
        end = self._until(self.at, ";")
        body = [t for t in self.tokens[self.at + 1 : end] if t.kind != "comment"]
        newlines = "\n" * sum(t.text.count("\n") for t in self.tokens[self.at : end])
        self.at = end + 1
        declared, align = _attributes(body)
        extern = any(t.text == "extern" for t in declared)
        declared = [t for t in declared if t.text not in ("static", "extern", "inline")]
        declarators = _declarators(declared)
        if not declarators:
            raise TranslateError(f"{self.path.removeprefix(MARK)}:{first.line}: no name in this declaration of shared memory")
        type_text = " ".join("".join(t.text for t in declared[: declarators[0][1]]).split())
        outside = all(self.scopes)
        output = []
        for name, at, stop in declarators:
            declarator = "".join(t.text for t in declared[at:stop]).replace("\n", " ").strip()
            if extern:
                match = re.match(r"\s*\w+\s*(?:\[[^\]]*\])?(.*)", declarator, re.S)
                rows = match[1] if match else ""
                kind, before = type_text, ""
                if rows.strip():
                    kind, before = f"simt_row_{name}", f"typedef {type_text} simt_row_{name}{rows}; "
                if outside:
                    output.append((name, f"{before}|(static_cast<{kind}*>(simt::dynamic_shared()))"))
                else:
                    output.append((name, f"{before}{kind}* const {name} = static_cast<{kind}*>(simt::dynamic_shared());"))
                continue
            kind = f"simt_type_{name}"
            typedef = f"typedef {type_text} {declarator.replace(name, kind, 1)};"
            alignment = f"(alignof({kind}) < ({align}) ? ({align}) : alignof({kind}))" if align else f"alignof({kind})"
            address = f"static_cast<{kind}*>(simt::shared_variable({{}}, sizeof({kind}), {alignment}))"
            site = f"simt_site_{name}"
            typedef += f' static simt::SharedSite {site} = simt::shared_site<{kind}>("{name}");'
            output.append((name, f"{typedef}|(*{address.format(site)})" if outside else f"{typedef} {kind}& {name} = *{address.format(site)};"))
        if not outside:
            return " ".join(text for _, text in output) + newlines
        lines = []
        for name, text in output:  # at the level of the file a name stands for a call
            before, _, value = text.rpartition("|")
            lines.append(f"{before}\n#define {name} {value}\n")
        return "\n".join(lines) + f'#line {first.line + len(newlines)} "{self.path}"\n'

    # -- inline PTX -----------------------------------------------------------------------------------------------------

    def _asm(self) -> str:
        first = self.tokens[self.at]
        at = self._find(self.at + 1)
        while self.tokens[at].text in ("volatile", "__volatile__", "goto"):
            at = self._find(at + 1)
        if self.tokens[at].text != "(":
            self.at += 1
            return first.text
        end = self._until(at + 1, ")")
        body = self.tokens[at + 1 : end]
        newlines = "\n" * sum(t.text.count("\n") for t in self.tokens[self.at : end])
        self.at = end + 1
        sections: list[list[Token]] = [[]]
        depth = 0
        for token in body:
            if token.kind == "symbol":
                if depth == 0 and token.text in (":", "::"):
                    sections += [[] for _ in token.text]
                    continue
                depth += (token.text in _OPEN) - (token.text in _CLOSE)
            if token.kind not in ("comment", "newline"):
                sections[-1].append(token)
        if words := [t.text for t in sections[0] if t.kind in ("word", "symbol", "number")]:
            return "do { " + ptx.not_simulated(
                f"inline PTX whose text the preprocessor puts together ({words[0]})"
            ) + " } while (0)" + newlines
        template = "".join(_unquote(t.text) for t in sections[0] if t.kind in ("string", "raw"))
        operands = [ptx.Operand(c, e) for section in sections[1:3] for c, e in _operands(section)]
        return ptx.translate(template, operands) + newlines


def _unquote(text: str) -> str:
    if text.startswith('R"('):
        return text[3:-2]
    return text[1:-1].replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"').replace("\\\\", "\\")


def _operands(tokens: list[Token]) -> Iterator[tuple[str, str]]:
    """Constraint and expression of each operand of one section."""
    depth, constraint, expression = 0, "", ""
    for token in [*tokens, Token("symbol", ",", 0)]:
        if token.kind == "symbol" and token.text == "," and depth == 0:
            if constraint:
                yield constraint, expression
            constraint, expression = "", ""
            continue
        if token.kind == "symbol" and token.text in _OPEN:
            depth += 1
            if depth == 1:
                continue
        if token.kind == "symbol" and token.text in _CLOSE:
            depth -= 1
            if depth == 0:
                continue
        if depth == 0:
            if token.kind == "string" and expression:  # no comma between
                yield constraint, expression
                constraint, expression = "", ""
            constraint += _unquote(token.text) if token.kind == "string" else ""
        else:
            expression += token.text


def _attributes(tokens: list[Token]) -> tuple[list[Token], str]:
    """The declaration without its attributes, and the alignment that they ask for."""
    others: list[Token] = []
    align, at = "", 0
    while at < len(tokens):
        if tokens[at].text in _ALIGNMENTS:
            start = next(i for i in range(at, len(tokens)) if tokens[i].text == "(")
            depth, end = 0, start
            for end in range(start, len(tokens)):
                depth += (tokens[end].text == "(") - (tokens[end].text == ")")
                if depth == 0:
                    break
            inside = "".join(t.text for t in tokens[start + 1 : end])
            if match := re.search(r"aligned\s*\((.*?)\)", inside):
                inside = match[1]
            align = inside
            at = end + 1
            continue
        others.append(tokens[at])
        at += 1
    return others, align


def _declarators(tokens: list[Token]) -> list[tuple[str, int, int]]:
    """Name, first and last token (exclusive) of each declarator."""
    declared: list[tuple[str, int, int]] = []
    depth = angle = 0
    word, start, open_name = -1, -1, False
    for i, token in enumerate([*tokens, Token("symbol", ",", 0)]):
        if token.kind == "word" and depth == 0 and angle == 0 and not open_name:
            word = i
        if token.kind != "symbol":
            continue
        if depth == 0 and token.text in ("[", ",", "=") and angle == 0:
            if word >= 0 and not open_name:
                start, open_name = word, True
            if token.text == "," and start >= 0:
                declared.append((tokens[start].text, start, i))
                word, start, open_name = -1, -1, False
        if token.text in _OPEN:
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
        elif depth == 0 and not open_name:
            angle += {"<": 1, ">": -1, ">>": -2, "<<": 2}.get(token.text, 0)
    return declared
