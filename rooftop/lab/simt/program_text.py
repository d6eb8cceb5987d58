"""A source with its host code, for both builds of a program: launches become calls of the runtime, functions of the host's are marked.

The plain build holds everything. In the watched build functions of the host's are `inline`: the compiler leaves out those that no kernel
calls, and what is left of them are the kernels that they launch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from rooftop.lab.simt import host
from rooftop.lab.simt.tokens import Token, tokenise

EXTENTS = {"threadIdx": "thread_index", "blockIdx": "block_index", "blockDim": "block_extent", "gridDim": "grid_extent"}
POINTED = re.compile(r"\bcudaLaunch(?:Cooperative)?Kernel(?:Ex)?\b")  # launches of a kernel by its address
_BLANK = ("space", "newline", "comment")
_INLINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)[ \t][^\n]*\binline\b")  # a macro that says it of a function
_OPEN, _CLOSE = ("(", "[", "{"), (")", "]", "}")


def prepare(tokens: list[Token], device: Collection[str], kernels: Collection[str]) -> tuple[list[Token], bool]:
    """`tokens` as `translate` takes them, and whether kernels are launched by their address. `device`: see `host.marks`; `kernels`: names
    of kernels."""
    marked = list(_marked(tokens, device))
    marked, pointed = _launches(marked, kernels)
    return marked, pointed or any(t.kind == "word" and POINTED.fullmatch(t.text) for t in marked)


def launches(text: str) -> int:
    """How many launches the text holds."""
    return sum(t.kind == "symbol" and t.text == "<<<" for t in tokenise(text))


def _marked(tokens: list[Token], device: Collection[str]) -> Iterator[Token]:
    at = 0
    inline = {m[1] for t in tokens if t.kind == "directive" and (m := _INLINE.match(t.text))}
    while at < len(tokens):
        try:
            end, opens = host.declaration(tokens, at)
        except host.UnreadableError:  # functions from here on are not told apart
            end, opens = len(tokens), True
        part = tokens[at:end]
        if opens:
            yield from _opened(part)
        elif (body := host.body(part)) is None:
            yield from _positions(part)
        else:
            words = [t.text for t in part[:body] if t.kind == "word"]
            if any(w in device for w in words) or (inline & set(words) and "main" not in words):
                yield from _positions(part)
            else:
                yield from _inlined(part, words)
        at = end


def _opened(part: list[Token]) -> Iterator[Token]:
    """A namespace without a name gets one: its variables are the same in both builds."""
    words = [t.text for t in part if t.kind in ("word", "symbol")]
    for t in _positions(part):
        if words == ["namespace", "{"] and t.text == "namespace":
            t = t._replace(text="inline namespace simt_unnamed")
        yield t


def _inlined(part: list[Token], words: Sequence[str]) -> Iterator[Token]:
    main = "main" in words
    mark = "SIMT_MAIN " if main else "SIMT_HOST "
    if not main and (
        "inline" in words or "__inline__" in words or "__forceinline__" in words or (words[:1] == ["template"] and not _specialised(part))
    ):
        yield from part
        return
    code = [i for i, t in enumerate(part) if t.kind not in (*_BLANK, "directive")]
    first = _after_macros([part[i] for i in code])
    texts = [part[i].text for i in code[first : first + 3]]
    if texts[:2] == ["extern", '"C"']:
        first += 2
    elif texts == ["template", "<", ">"]:
        first += 3
    elif len(texts) > 1 and texts[0].isupper() and part[code[first + 1]].kind == "word":  # a macro: of a type, or of `extern "C"`
        first += 1
    at = code[first] if first < len(code) else len(part)
    yield from part[:at]
    yield Token("word", mark, part[at].line if at < len(part) else 0)
    yield from part[at:]


def _after_macros(code: Sequence[Token]) -> int:
    """Where a definition begins that follows calls of macros, `NAME(...)` without a semicolon, as those are that make functions or
    kernels."""
    at = 0
    while len(code) > at + 1 and code[at].kind == "word" and code[at + 1].text == "(":
        depth = 0
        for close in range(at + 1, len(code)):
            depth += (code[close].text == "(") - (code[close].text == ")")
            if not depth:
                break
        if close + 1 >= len(code) or code[close + 1].kind != "word" or code[close + 1].text in (
            "const", "noexcept", "override", "final", "try"
        ):
            break
        at = close + 1
    return at


def _specialised(part: Sequence[Token]) -> bool:
    return [t.text for t in part if t.kind not in (*_BLANK, "directive")][:3] == ["template", "<", ">"]


def _positions(part: Sequence[Token]) -> Iterator[Token]:
    """`threadIdx.x` is CUDA's where it is not a member or a name of the host's. A variable of the device's is not static: both builds have
    it."""
    before = ""
    static = depth = 0
    variable = any(t.text in ("__device__", "__constant__", "__managed__") for t in part)
    for i, t in enumerate(part):
        if t.kind == "directive":
            yield t._replace(
                text=re.sub(r"(?<![\w.>])(threadIdx|blockIdx|blockDim|gridDim)(?=\s*\.)", lambda m: f"(simt::{EXTENTS[m[1]]}())", t.text)
            )
            continue
        if t.kind == "word" and t.text in EXTENTS and before not in (".", "->", "::") and _next(part, i + 1) == ".":
            yield t._replace(text=f"(simt::{EXTENTS[t.text]}())")
        elif variable and t.text == "static" and not static and not depth:
            static = 1
            yield t._replace(kind="space", text="")
        else:
            yield t
        if t.kind not in _BLANK:
            before = t.text
            depth += (t.text == "{") - (t.text == "}")


def _next(part: Sequence[Token], at: int) -> str:
    return next((t.text for t in part[at:] if t.kind not in _BLANK), "")


# -- launches
# --------------------------------------------------------------------------------------------------------------------------------


def _launches(tokens: list[Token], kernels: Collection[str], macro: Collection[str] | None = None) -> tuple[list[Token], bool]:
    """`kernel<<<grid, block>>>(arguments)` as a call of the runtime. `macro`: the parameters of the macro whose body this is."""
    output: list[Token] = []
    pointed = False
    tokens = together(tokens)
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "directive":
            changed, by_pointer = _directive(token, kernels)
            output.append(changed)
            pointed |= by_pointer
            at += 1
        elif token.kind == "word" and POINTED.fullmatch(token.text):
            at = _without_cast(tokens, at, output)
        elif token.kind == "word" and token.text in kernels and (end := _addressed(tokens, at, output)):
            first = _kernel_before([*output, token])
            one = [*output[first:], *tokens[at:end]]
            shown = _instance(_plain(one).lstrip("&")) if macro is None else _quoted(token.text)
            output = [*output[:first], Token("word", f"simt::known({shown}, ", token.line), *one, Token("symbol", ")", token.line)]
            pointed, at = True, end
        elif token.kind == "symbol" and token.text == "<<<" and (ends := _ends(tokens, at)) is not None:
            first = _kernel_before(output)
            kernel, output = output[first:], output[:first]
            closed, opened, last = ends
            launch = _arguments(tokens[opened + 1 : last])
            name = " ".join("".join(" " if t.kind in _BLANK else t.text for t in kernel).split())
            words = [t.text for t in kernel if t.kind not in _BLANK]
            base = next((w for w in reversed(words[: words.index("<")] if "<" in words else words) if re.fullmatch(r"\w+", w)), "")
            by_pointer = base not in kernels and "<" not in words
            pointed |= by_pointer
            line = token.line
            shown = f"#{name}" if macro is not None and name in macro else _instance(name) if macro is None else _quoted(base)
            output.append(Token("word", f"simt::Launching({shown}, ", line))
            output += tokens[at + 1 : closed]
            arguments = (
                [Token("symbol", ", ##" if macro is not None and _plain(launch) == "__VA_ARGS__" else ", ", line), *launch] if _plain(launch)
                else []
            )
            if by_pointer:
                output += [Token("word", ").pointed(", line), *kernel, *arguments, Token("symbol", ")", line)]
            else:
                again = [t._replace(text=" ") if t.kind in _BLANK else t for t in kernel]
                output += [*(t._replace(text="\n" * t.text.count("\n")) for t in kernel if t.kind in _BLANK and "\n" in t.text)]
                output += [
                    Token("word", ").run([=](auto... simt_a) -> decltype(", line), *again, Token("word", "(simt_a...)) { ", line), *again
                ]
                output += [Token("word", "(simt_a...); }", line), *arguments, Token("symbol", ")", line)]
            at = last + 1
        else:
            output.append(token)
            at += 1
    return output, pointed


def together(tokens: list[Token]) -> list[Token]:
    """`<< <`, `< < <`, `>> >` and `> > >`, as some editors part them, in one piece."""
    output: list[Token] = []
    opened = False
    at = 0

    def follows(at: int, text: str) -> int:
        while at < len(tokens) and tokens[at].kind in _BLANK:
            at += 1
        return at if at < len(tokens) and tokens[at].text == text else 0

    while at < len(tokens):
        t = tokens[at]
        second = at if t.text == "<<" else follows(at + 1, "<") if t.text == "<" else None
        if second is not None and t.kind == "symbol" and (second or t.text == "<<") and (end := follows(second + 1, "<")):
            output.append(t._replace(text="<<<"))
            opened, at = True, end + 1
        elif opened and t.text == ">" and t.kind == "symbol" and (two := follows(at + 1, ">")) and (end := follows(two + 1, ">")) and follows(end + 1, "("):
            output.append(t._replace(text=">>>"))
            opened, at = False, end + 1
        else:
            output.append(t)
            at += 1
    return output


def _instance(kernel: str) -> str:
    """C++ whose value is a kernel's name; of a template with the values that its arguments have, which may be the host's constants."""
    base, opened, rest = kernel.partition("<")
    if not opened or not rest.endswith(">") or base.startswith("("):
        return _quoted(kernel)
    parts, depth = [""], 0
    for c in rest[:-1]:
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    shown = (f"simt::shown<{p.removesuffix('...')}>(){'...' * p.endswith('...')}" for p in map(str.strip, parts) if p)
    return f"simt::instance({_quoted(base.strip())}, {{{', '.join(shown)}}})"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "").replace('"', "'") + '"'


def _plain(tokens: Sequence[Token]) -> str:
    return "".join(t.text for t in tokens if t.kind not in _BLANK)


_DEFINE = re.compile(r"([ \t]*#[ \t]*define[ \t]+\w+(?:\(([^)]*)\))?)(.*)", re.S)


_TEXT = re.compile(r'("(?:\\.|[^"\\\n])*")(?=([A-Za-z_]\w*))')  # with a word right behind it


def _directive(token: Token, kernels: Collection[str]) -> tuple[Token, bool]:
    if (match := _DEFINE.match(token.text)) and match[2]:  # since C++11 "..."name is a literal of its own; older code means a parameter
        own = [*(p.strip() for p in match[2].split(",")), "__VA_ARGS__"]
        token = token._replace(text=match[1] + _TEXT.sub(lambda m: m[1] + " " * (m[2] in own), match[3]))
    if not re.search(r"<\s*<\s*<", token.text) or (match := _DEFINE.match(token.text)) is None:
        return token, False
    body = tokenise(match[3].replace("\\\n", " "))
    output, pointed = _launches(body, kernels, [p.strip() for p in (match[2] or "").split(",")])
    lines = "\\\n" * token.text.count("\n") + ("\n" if token.text.endswith("\n") else "")
    return token._replace(text=match[1] + "".join(t.text for t in output) + lines), pointed


def _ends(tokens: Sequence[Token], at: int) -> tuple[int, int, int] | None:
    """Of the launch that opens at `at`: its `>>>`, and the parentheses of its arguments."""
    depth = 0
    for i in range(at + 1, len(tokens)):
        text = tokens[i].text if tokens[i].kind == "symbol" else ""
        depth += (text in _OPEN) - (text in _CLOSE and text != "")
        if depth == 0 and text == ">>>":
            opened = next((k for k in range(i + 1, len(tokens)) if tokens[k].kind not in _BLANK), len(tokens))
            if opened == len(tokens) or tokens[opened].text != "(":
                return None
            inner = 0
            for last in range(opened, len(tokens)):
                symbol = tokens[last].text if tokens[last].kind == "symbol" else ""
                inner += (symbol == "(") - (symbol == ")")
                if inner == 0 and symbol == ")":
                    return i, opened, last
            return None
    return None


def _kernel_before(tokens: Sequence[Token]) -> int:
    """Where the expression that names a kernel begins, which ends at the end of `tokens`."""

    def back(at: int) -> int:
        while at >= 0 and tokens[at].kind in _BLANK:
            at -= 1
        return at

    at = back(len(tokens) - 1)
    if at >= 0 and tokens[at].text in (">", ">>", ">>>"):
        depth = inside = 0
        while at >= 0:
            text = tokens[at].text if tokens[at].kind == "symbol" else ""
            inside += (text in (")", "]")) - (text in ("(", "["))
            if not inside:
                depth += {">": 1, ">>": 2, ">>>": 3, "<": -1, "<<": -2}.get(text, 0)
            at -= 1
            if depth <= 0:
                break
        at = back(at)
    elif at >= 0 and tokens[at].text in (")", "]"):
        depth = 0
        while at >= 0:
            text = tokens[at].text if tokens[at].kind == "symbol" else ""
            depth += (text in (")", "]")) - (text in ("(", "["))
            if depth == 0:
                break
            at -= 1
        before = back(at - 1)
        if tokens[at].text == "(" and not (before >= 0 and tokens[before].kind == "word" and tokens[before].text not in ("return", "else", "do")):
            return at
        at = before
    first = at
    while at >= 0:  # a qualified name, backwards
        before = back(at - 1)
        pasted = before >= 0 and tokens[before].text == "##" and tokens[at].kind == "number"  # k_##n##2d
        if before < 0 or (tokens[at].kind != "word" and tokens[at].text not in ("::", ".", "->", "##") and not pasted):
            break
        joins = ("::", ".", "->", "##")
        word = pasted or (tokens[at].kind == "word" and tokens[before].text in (*joins, "template"))
        if not word and not (
            tokens[at].text in joins and tokens[before].kind in ("word", "number") and tokens[before].text not in ("return", "else", "do")
        ):
            break
        at = before
        first = at
    return max(first, 0)


def _arguments(tokens: Sequence[Token]) -> list[Token]:
    """A launch's: NULL is a null pointer, and so may be 0."""
    argument: list[Token] = []
    part: list[Token] = []
    depth = 0
    for t in [*tokens, None]:
        if t is None or (t.kind == "symbol" and t.text == "," and depth == 0):
            if _plain(part) in ("0", "NULL"):
                part = [p._replace(text="simt::Zero{}") if p.kind not in _BLANK else p for p in part]
            argument += part + ([t] if t is not None else [])
            part = []
            continue
        if t.kind == "symbol":
            depth += (t.text in _OPEN) - (t.text in _CLOSE)
        part.append(t)
    return argument


_TO_VOID = re.compile(r"(?:\((?:const)?void(?:const)?\*\)|<(?:const)?void(?:const)?\*>\()&?(?:\w+::)*$")


def _addressed(tokens: Sequence[Token], at: int, output: Sequence[Token]) -> int:
    """The end of a kernel's name, with its template's arguments, that begins at `at` and is cast to a pointer to void; 0 if it is not."""
    if not _TO_VOID.search(_plain(output[-32:])):
        return 0
    end = at + 1
    if _next(tokens, end) == "<":
        depth = 0
        while end < len(tokens):
            depth += {"<": 1, ">": -1, ">>": -2}.get(tokens[end].text, 0)
            end += 1
            if depth <= 0 and tokens[end - 1].kind == "symbol":
                break
    return 0 if _next(tokens, end) in ("(", "<<<") else end


_CAST = re.compile(r"\((?:const)?void(?:const)?\*\)")


def _without_cast(tokens: Sequence[Token], at: int, output: list[Token]) -> int:
    """Copies `cudaLaunchKernel(` without the cast to a pointer to void that follows; where to go on."""
    output.append(tokens[at])
    opened = at + 1
    while opened < len(tokens) and tokens[opened].kind in _BLANK:
        opened += 1
    if opened == len(tokens) or tokens[opened].text != "(":
        return at + 1
    output += tokens[at + 1 : opened + 1]
    seen, end = "", opened + 1
    while end < len(tokens) and len(seen) < 24:
        if tokens[end].kind not in _BLANK:
            seen += tokens[end].text
        end += 1
        if _CAST.fullmatch(seen):
            return end
    return opened + 1
