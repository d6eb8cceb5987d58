"""Which instances of a source's kernel templates there are: those that launches ask for, in the source itself, through macros and through
templates of the host's. Where nothing says it, arguments are assumed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from rooftop.lab.simt import host, ordinary
from rooftop.lab.simt.ordinary import Kernel
from rooftop.lab.simt.program_text import together
from rooftop.lab.simt.tokens import Token, tokenise

_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)(.*)", re.S)
_BLANK = ("space", "newline", "comment")
_TYPE = r"((?:unsigned |const )*\w+(?:::\w+)*)"
_NO_TYPES = ("return", "typename", "auto", "void", "const", "delete", "new", "else", "sizeof", "class", "struct")
_OPENS, _CLOSES = Token("symbol", "(", 0), Token("symbol", ")", 0)
MOST = 4  # instances of one template
DEEP = 6  # macros and templates within each other


@dataclass(frozen=True)
class Instance:
    """A name expression of a kernel. `assumed`: what of its arguments nothing in the source says."""

    name: str
    assumed: str = ""


@dataclass(frozen=True)
class _Parameter:
    name: str
    kind: str  # type | bool | number | other
    default: tuple[Token, ...] = ()

    @property
    def guess(self) -> str:
        return "".join(t.text for t in self.default) or {"type": "float", "bool": "false", "number": "32"}.get(self.kind, "")


# of constants: `constexpr unsigned N{32U};`
_TYPES = "int", "unsigned", "long", "size_t", "uint32_t", "int32_t", "uint64_t", "bool", "auto"


@dataclass
class _Function:
    name: str
    parameters: tuple[_Parameter, ...]  # of its template
    tokens: Sequence[Token]  # its head and its body

    @cached_property
    def constants(self) -> dict[str, tuple[Token, ...]]:
        """What its body calls by a name of its own: constants and types."""
        values: dict[str, tuple[Token, ...]] = {}
        head = _arguments(self.tokens, 1)[1] if self.parameters else 0
        for i, t in enumerate(self.tokens[:-2]):
            if i < head:
                continue
            at = i
            while t.text in ("constexpr", "const", "using"):
                at = next(
                    (k for k in range(at + 1, len(self.tokens)) if self.tokens[k].text in ("=", ";", "{", "}", ")", ",", ">")),
                    len(self.tokens)
                )
                braced = (
                    at < len(self.tokens) and self.tokens[at].text == "{" and t.text != "using"
                    and self.tokens[at - 2].text in (*_TYPES, ">")
                )
                if at >= len(self.tokens) or not (braced or self.tokens[at].text == "=") or self.tokens[at - 1].kind != "word":
                    break
                end = self._end(at + 1)
                value = self.tokens[at + 1 : end]
                values[self.tokens[at - 1].text] = tuple(value) if t.text == "using" else (_OPENS, *value, _CLOSES)
                at = end
        return values

    def _end(self, at: int) -> int:
        """Where the value ends that begins at `at`: another name may follow."""
        depth = 0
        for end in range(at, len(self.tokens)):
            text = self.tokens[end].text
            follows = text == "," and [x.text for x in self.tokens[end + 2 : end + 3]] == ["="]
            if depth < 1 and (text == ";" or follows or text in (")", "}")):
                return end
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        return len(self.tokens)

    @cached_property
    def text(self) -> str:
        return " ".join(t.text for t in self.tokens)


@dataclass
class Templates:
    """The kernel templates of some texts, and who launches them."""

    texts: Sequence[str]
    kernels: Mapping[str, Kernel] = field(init=False)  # by their last name
    plain: Sequence[Kernel] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = expanded(self.texts)
        every = ordinary.every_kernel_of(self.tokens)
        self.plain = [k for k in every if not k.template]
        self.kernels = {k.name.rpartition("::")[2]: k for k in every if k.template}
        self.functions = list(_functions(self.tokens))

    def instances(self) -> tuple[list[Instance], list[str]]:
        """Those that the source asks for, or are assumed; and the templates for which nothing can be."""
        instances: dict[str, Instance] = {}
        opened: list[str] = []
        for base, kernel in self.kernels.items():
            own = {i.name: i for f in self.functions if f.name != base for i in self._launched(f, base, kernel)}
            stated = {n: i for n, i in own.items() if not i.assumed}
            if not own and (guessed := self._guessed(base, kernel)):
                own = {guessed.name: guessed}
            opened += [] if own else [kernel.name]
            instances |= dict(list((stated or own).items())[:MOST])
        return list(instances.values()), opened

    def _head(self, base: str) -> tuple[_Parameter, ...]:
        return next((f.parameters for f in self.functions if f.name == base and f.parameters), ())

    def _guessed(self, base: str, kernel: Kernel) -> Instance | None:
        head = self._head(base)
        if not head or not all(p.guess for p in head):
            return None
        return Instance(f"{kernel.name}<{', '.join(p.guess for p in head)}>", _said(head, [p.guess for p in head]))

    def _launched(self, f: _Function, base: str, kernel: Kernel) -> Iterator[Instance]:
        for at, t in enumerate(f.tokens[:-1]):
            if t.kind != "word" or t.text != base:
                continue
            after = f.tokens[at + 1].text
            head = self._head(base)
            arguments: list[tuple[Token, ...]] = []
            end = at + 1
            if after == "<":
                arguments, end = _arguments(f.tokens, at + 1)
            elif after != "<<<":
                continue
            missing: list[str] = []
            if len(arguments) < len(head) and not any(p.kind == "other" for p in head[len(arguments) :]):
                deduced = self._deduced(f, kernel, head, end)
                missing = [p.name for p in head[len(arguments) :] if p.name not in deduced and not p.default]
                arguments += [deduced.get(p.name) or (Token("word", p.guess, t.line),) for p in head[len(arguments) :]]
            for words, assumed in self._resolved(f, arguments, DEEP):
                said = ", ".join(filter(None, (assumed, _said(head, words, missing))))
                yield Instance(f"{kernel.name}<{', '.join(words)}>", said)

    def _deduced(self, f: _Function, kernel: Kernel, head: Sequence[_Parameter], at: int) -> dict[str, tuple[Token, ...]]:
        """Template arguments by the types of what a launch passes, whose `<<<` stands at `at`."""
        close = next((k for k in range(at, len(f.tokens)) if f.tokens[k].text == ">>>"), len(f.tokens))
        if close + 1 >= len(f.tokens) or f.tokens[close + 1].text != "(":
            return {}
        passed, _ = _arguments(f.tokens, close + 1)
        deduced: dict[str, tuple[Token, ...]] = {}
        for p, words in zip(kernel.parameters, passed, strict=False):
            name = next((h.name for h in head if h.kind == "type" and re.search(rf"\b{h.name}\b", p.text)), None)
            text = " ".join(w.text for w in words)
            shown = re.search(r"< (?:const )?([\w:]+)(?: \*)? >", text)
            variable = words[-1].text if words and words[-1].kind == "word" else ""
            declared = re.search(rf"\b{_TYPE} [*& ]*(?:\w+ (?:= [^;,]*)?, [*& ]*)*{variable} [;,)=\[]", f.text) if variable else None
            kind = shown[1] if shown else declared[1].removeprefix("const ") if declared else ""
            if name is not None and name not in deduced and kind and kind.rpartition(" ")[2] not in _NO_TYPES:
                deduced[name] = (Token("word", kind, 0),)
        return deduced

    def _resolved(self, f: _Function, arguments: Sequence[Sequence[Token]], deep: int) -> Iterator[tuple[list[str], str]]:
        """Arguments in words that stand outside `f` too, once for each way in which `f` is instantiated; and what of them is assumed."""
        flat = [_replaced(words, f.constants, DEEP) for words in arguments]
        used = {t.text for words in flat for t in words}
        own = [p for p in f.parameters if p.name in used]
        if "scalar_t" in used and not own and "scalar_t" not in f.constants:  # as macros of torch's call it
            yield [_text(_replaced(words, {"scalar_t": (Token("word", "float", 0),)}, 1)) for words in flat], "scalar_t = float"
            return
        if not own:
            yield [_text(words) for words in flat], ""
            return
        for bound, assumed in self._bindings(f, deep):
            if all(p.name in bound for p in own):
                values = {n: (Token("word", text, 0),) for n, text in bound.items()}
                yield [_text(_replaced(words, values, 1)) for words in flat], assumed

    def _bindings(self, f: _Function, deep: int) -> Iterator[tuple[dict[str, str], str]]:
        seen = False
        for caller in self.functions if deep else ():
            for at, t in enumerate(caller.tokens[:-1]):
                if caller is f or t.kind != "word" or t.text != f.name or caller.tokens[at + 1].text not in ("<", "("):
                    continue
                arguments = _arguments(caller.tokens, at + 1)[0] if caller.tokens[at + 1].text == "<" else []
                rest = f.parameters[len(arguments) :]
                missing = [p.name for p in rest if not p.default]
                if caller.name == f.name or not all(p.guess for p in rest):
                    continue
                arguments = [*arguments, *((Token("word", p.guess, 0),) for p in rest)]
                for words, assumed in self._resolved(caller, arguments, deep - 1):
                    seen = True
                    yield dict(zip((p.name for p in f.parameters), words, strict=False)), assumed or _said(f.parameters, words, missing)
        if not seen:
            guesses = {p.name: p.guess for p in f.parameters if p.guess}
            yield guesses, _said(f.parameters, [p.guess for p in f.parameters], list(guesses))


def _said(head: Sequence[_Parameter], values: Sequence[str], only: Sequence[str] | None = None) -> str:
    return ", ".join(f"{p.name} = {v}" for p, v in zip(head, values, strict=False) if only is None or p.name in only)


def _text(words: Sequence[Token]) -> str:
    return re.sub(r" ?(::) ?", r"\1", " ".join(t.text for t in words))


def _replaced(words: Sequence[Token], by: Mapping[str, Sequence[Token]], deep: int) -> tuple[Token, ...]:
    output: list[Token] = []
    before = ""
    for t in words:
        if t.kind == "word" and t.text in by and before not in ("::", ".", "->"):
            output += _replaced(by[t.text], {n: v for n, v in by.items() if n != t.text}, deep - 1) if deep > 1 else by[t.text]
        else:
            output.append(t)
        before = t.text
    return tuple(output)


def _arguments(tokens: Sequence[Token], at: int) -> tuple[list[tuple[Token, ...]], int]:
    """What stands in the brackets that open at `at`, divided at its commas; and where they end."""
    angles = tokens[at].text == "<"
    parts: list[list[Token]] = [[]]
    depth = angle = 0
    for end in range(at, len(tokens)):
        text = tokens[end].text if tokens[end].kind == "symbol" else ""
        if angles and not depth:
            angle += {"<": 1, ">": -1, ">>": -2, ">>>": -3}.get(text, 0)
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}") and bool(text))
        if (angles and angle <= 0) or (not angles and not depth):
            return [tuple(p) for p in parts if p], end + 1
        if text == "," and depth == (0 if angles else 1) and angle <= 1:
            parts.append([])
        elif end > at:
            parts[-1].append(tokens[end])
    return [], len(tokens)


def _functions(tokens: list[Token]) -> Iterator[_Function]:
    """All that could hold a launch: functions, their templates' parameters, and what stands at the level of the file."""
    at = 0
    concepts = {name.text for word, name in pairwise(tokens) if word.text == "concept"}
    while at < len(tokens):
        try:
            end, opens = host.declaration(tokens, at)
        except host.UnreadableError:
            end, opens = len(tokens), False
        part = tokens[at:end]
        at = end
        if opens or not part:
            continue
        parameters = _template(part, concepts)
        first = _arguments(part, 1)[1] if parameters and part[1].text == "<" else 0
        name = next((part[i].text for i in range(first, len(part) - 1) if part[i].kind == "word" and part[i + 1].text == "("
                     and part[i].text not in ("__launch_bounds__", "__cluster_dims__", "__align__", "alignas", "__attribute__")), "")
        yield _Function(name, parameters, part)


def _template(part: Sequence[Token], concepts: Collection[str]) -> tuple[_Parameter, ...]:
    if len(part) < 2 or part[0].text != "template" or part[1].text != "<":
        return ()
    parameters = []
    for words in _arguments(part, 1)[0]:
        at = next((i for i, t in enumerate(words) if t.text == "="), len(words))
        texts = [t.text for t in words[:at]]
        number = any(re.fullmatch(r"int|unsigned|size_t|long|short|u?int\d*(_t)?|char", t) for t in texts) and "*" not in texts
        kind = (
            "other" if "template" in texts or "..." in texts else "type" if texts[0] in ("typename", "class", *concepts) else "bool" if "bool" in texts
            else ""
        )
        parameters.append(_Parameter(texts[-1], kind or ("number" if number else "other"), words[at + 1 :]))
    return tuple(parameters)


# -- macros
# ------------------------------------------------------------------------------------------------------------------------------------------


def expanded(texts: Sequence[str]) -> list[Token]:
    """The tokens of texts without blanks and directives, and with what their own function-like macros stand for."""
    every = together([t for text in texts for t in tokenise(text)])
    macros: dict[str, tuple[list[str], list[Token]]] = {}
    for t in every:
        if t.kind == "directive" and (m := _DEFINE.match(t.text)):
            body = together([b for b in tokenise(m[3].replace("\\\n", " ").strip()) if b.kind not in _BLANK])
            if any(b.text == "asm" for b in body):
                continue
            macros[m[1]] = [p.strip() for p in m[2].split(",")], [b._replace(line=t.line) for b in body]
    return _expanded([t for t in every if t.kind not in (*_BLANK, "directive")], macros, DEEP)


def _expanded(tokens: list[Token], macros: Mapping[str, tuple[list[str], list[Token]]], deep: int) -> list[Token]:
    output: list[Token] = []
    at = 0
    while at < len(tokens):
        t = tokens[at]
        if deep and t.kind == "word" and t.text in macros and at + 1 < len(tokens) and tokens[at + 1].text == "(":
            names, body = macros[t.text]
            arguments, end = _arguments(tokens, at + 1)
            bound: dict[str, Sequence[Token]] = dict(zip(names, arguments, strict=False))
            if names[-1:] == ["..."]:
                rest = arguments[len(names) - 1 :]
                bound["__VA_ARGS__"] = [x for i, g in enumerate(rest) for x in ([Token("symbol", ",", t.line)] if i else []) + list(g)]
            inside = _pasted([x for b in body for x in (bound.get(b.text, [b]) if b.kind == "word" else [b])])
            output += _expanded([x._replace(line=t.line) for x in inside], {n: m for n, m in macros.items() if n != t.text}, deep - 1)
            at = end
        else:
            output.append(t)
            at += 1
    return output


def _pasted(tokens: Sequence[Token]) -> list[Token]:
    output: list[Token] = []
    joins = False
    for t in tokens:
        if t.text == "##":
            joins = bool(output)
        elif joins:
            output[-1] = output[-1]._replace(text=output[-1].text + t.text)
            joins = False
        elif t.text != "#":
            output.append(t)
    return output
