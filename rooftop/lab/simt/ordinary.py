"""An ordinary `.cu`, without a head: its kernels, and arguments for one of them as a user writes them.

`n=1000` is a number, `x=f32:64x64:range` a tensor by type, sizes and contents, `x=data.npy` one from a file, `p={x, 1000}` a struct: what
stands there is C++, in which the names of tensors are their addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rooftop.lab.simt.tokens import Token, tokenise


@dataclass(frozen=True)
class Parameter:
    name: str
    text: str  # its type, as the source has it

    @property
    def pointer(self) -> bool:
        return "*" in self.text or self.text.endswith("]")


@dataclass(frozen=True)
class Kernel:
    name: str  # with its namespaces
    parameters: tuple[Parameter, ...]
    template: bool
    line: int
    conditional: bool = False  # under an `#if`

    def __str__(self) -> str:
        given = ", ".join(f"{p.text} {p.name}" for p in self.parameters)
        return f"{self.name}{'<...>' if self.template else ''}({given})"


@dataclass(frozen=True)
class Struct:
    """An argument that C++ makes, by the function `maker` of the library, from the addresses of `tensors`."""

    maker: str
    tensors: tuple[str, ...]


def kernels(text: str) -> list[Kernel]:
    """The kernels that a source defines, the last of each name."""
    return list({k.name: k for k in every_kernel(text)}.values())


def every_kernel(text: str) -> list[Kernel]:
    """All of them, overloads too."""
    return every_kernel_of(tokenise(text))


def every_kernel_of(every: Sequence[Token]) -> list[Kernel]:
    """As `every_kernel`, of tokens."""
    tokens = [t for t in every if t.kind in ("word", "number", "string", "symbol")]
    asked = [(t.line, 1 if m[1] == "if" else -1) for t in every if t.kind == "directive" and (m := re.match(r"\s*#\s*(if|endif)", t.text))]
    found: list[Kernel] = []
    scopes: list[str] = []
    start = 0  # of the declaration that a token is part of
    for i, token in enumerate(tokens):
        if token.text == "__global__" and token.kind == "word":
            at = i + 1
            while at + 1 < len(tokens) and tokens[at].text not in (";", "{"):
                if tokens[at].kind == "word" and tokens[at + 1].text == "(" and not tokens[at].text.startswith("__"):
                    break
                at += 1
            if at + 1 >= len(tokens) or tokens[at].kind != "word":
                continue  # an instantiation, or a specialisation
            close, depth = at + 1, 0
            while close < len(tokens) and (depth := depth + (tokens[close].text == "(") - (tokens[close].text == ")")):
                close += 1
            if close + 1 >= len(tokens) or tokens[close + 1].text == ";":
                continue  # a declaration
            template = any(t.text == "template" for t in tokens[start:i])
            name = "::".join([*(s for s in scopes if s), tokens[at].text])
            conditional = sum(n for line, n in asked if line < token.line) > 0
            found.append(Kernel(name, tuple(parameters(tokens[at + 2 : close])), template, token.line, conditional))
        if token.kind == "symbol" and token.text in "{};":
            if token.text == "{":
                words = [t.text for t in tokens[start:i]]
                scopes.append("".join(words[1:]) if words[:1] == ["namespace"] else "")
            elif token.text == "}" and scopes:
                scopes.pop()
            start = i + 1
    return found


_STD = re.compile(r"\bstd::(?=(?:u?int\d+_t|size_t|ptrdiff_t)\b)")  # before types that have their names without it too
KIND = re.compile(r"__(?:half2?|nv_\w+|int\d+)")  # types; other words of that form say how a parameter is passed


def parameters(tokens: Sequence[Token]) -> list[Parameter]:
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1, ">>": -2}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token.text)
    result = []
    for i, words in enumerate(p for p in parts if p):
        words = words[: words.index("=")] if "=" in words else words
        at = next((k for k in range(len(words) - 1, 0, -1) if re.fullmatch(r"[A-Za-z_]\w*", words[k]) and words[k] != "const"), 0)
        text = re.sub(r" ?(::|[<>*&,]) ?", r"\1", " ".join(w for k, w in enumerate(words) if k != at and not (w.startswith("__") and not KIND.fullmatch(w))))
        result.append(Parameter(words[at] if at else f"argument{i + 1}", _STD.sub("", text)))
    return result


def named(text: str, path: str, asked: str) -> Kernel:
    """The kernel of this name, without its arguments. Raises ValueError."""
    have, base = kernels(text), asked.partition("<")[0].strip()
    matching = [k for k in have if base in (k.name, k.name.rpartition("::")[2])]
    if not matching:
        raise ValueError(f"--kernel {asked}: {path} has no such kernel; it has {'; '.join(map(str, have)) or 'none'}")
    return matching[0]


def choose(text: str, path: str, asked: str | None) -> tuple[Kernel, str]:
    """The kernel that `asked` names (the only one where None), and its name expression. Raises ValueError."""
    have = kernels(text)
    if not have:
        raise ValueError(f"{path} has no kernel: no __global__ function is defined in it")
    if asked is None and len(have) > 1:
        raise ValueError(f"{path} has {len(have)} kernels; choose one by --kernel: {'; '.join(map(str, have))}")
    kernel = named(text, path, asked or have[0].name)
    if kernel.template and "<" not in (asked or ""):
        raise ValueError(f"{kernel.name} is a template ({path}:{kernel.line}): give its arguments, as in --kernel '{kernel.name}<float>'")
    return kernel, kernel.name + "".join((asked or "").partition("<")[1:])


BYTES = {"float": 4, "int": 4, "unsigned": 4, "float4": 16, "double": 8, "half": 2, "__half": 2, "__nv_bfloat16": 2}


def stated(kernel: Kernel, text: str) -> tuple[list[int], int | None]:
    """Block and bytes of dynamic shared memory of the first launch of a kernel that the source holds, as far as they are numbers there."""
    base = re.escape(kernel.name.rpartition("::")[2])
    launch = re.search(rf"\b{base}\s*(?:<[^;{{}}]*?>)?\s*<<<(.*?)>>>", text, re.S)
    parts = [p.strip() for p in re.split(r",(?![^(]*\))", launch[1])] if launch else []
    block = _extents(parts[1], text) if len(parts) > 1 else []
    return block if prod(block) <= 1024 else [], number(parts[2], text) if len(parts) > 2 else None


def _extents(expression: str, text: str) -> list[int]:
    declared = re.search(rf"\bdim3\s+{re.escape(expression)}\s*[({{=]([^;]*)", text) if expression.isidentifier() else None
    inside = declared[1] if declared else expression
    numbers = [number(n.strip(" (){}"), text) for n in re.sub(r"\bdim3\b", "", inside).split(",")]
    return [n for n in numbers if n is not None] if all(numbers) else []


def number(word: str, text: str, depth: int = 4) -> int | None:
    """A product of numbers, constants of the text and sizes of types."""
    word = word.strip(" ()") if not word.startswith("sizeof") else word
    if "*" in word:
        factors = [number(part.strip(), text, depth) for part in word.split("*")]
        return prod(n for n in factors if n is not None) if None not in factors else None
    if (whole := re.fullmatch(r"(\d+)[uUlL]*", word)) is not None:
        return int(whole[1])
    if (size := re.fullmatch(r"sizeof\s*\(?\s*(\w+)\s*\)?", word)) is not None:
        return BYTES.get(size[1])
    if not word.isidentifier() or not depth:
        return None
    match = re.search(rf"#[ \t]*define[ \t]+{word}[ \t]+([^\n]+)|\b(?:int|unsigned|size_t|auto)\s+{word}\s*[={{(]\s*([^;,{{}}]+)", text)
    return number(re.sub(r"//.*|/\*.*", "", match[1] or match[2]).strip(), text, depth - 1) if match else None


def filled(text: str) -> dict[str, int]:
    """The `__constant__` and `__device__` variables that the host's code fills, by the line where it does."""
    sizes: dict[str, int] = {}
    code = [t for t in tokenise(text) if t.kind in ("word", "symbol")]
    for at, t in enumerate(code[:-2]):
        if t.text in ("cudaMemcpyToSymbol", "cudaMemcpyToSymbolAsync") and (
            name := next((x for x in code[at + 2 :] if x.kind == "word"), None)
        ):
            sizes.setdefault(name.text, t.line)
    return sizes


def split(kernel: Kernel, given: Sequence[str]) -> dict[str, str]:
    """The texts of `--arg`, by parameter. Raises ValueError for those that are missing, unknown, or given twice."""
    names = [p.name for p in kernel.parameters]
    # tensors that a struct points to
    names += [n for part in given if "={" in part.replace(" ", "") for n in _names(part.partition("=")[2])]
    values: dict[str, str] = {}
    for part in given:
        name, equals, text = part.partition("=")
        if not equals or not text.strip():
            raise ValueError(f"--arg {part!r}: it is written NAME=VALUE")
        if name.strip() not in names:
            raise ValueError(f"--arg {name}: {kernel} has no such parameter")
        if name.strip() in values:
            raise ValueError(f"--arg {name} is given twice")
        values[name.strip()] = text.strip()
    if missing := [p for p in kernel.parameters if p.name not in values]:
        example = " ".join(f"--arg {p.name}={'f32:1024' if p.pointer else '1024'}" for p in missing)
        raise ValueError(f"{kernel} wants more arguments: {', '.join(p.name for p in missing)}, as in {example}")
    return values


def structs(kernel: Kernel, entry: str, texts: Mapping[str, str]) -> tuple[dict[str, Struct], dict[str, str]]:
    """The arguments that are written in C++, and the functions that make them."""
    numbers = [p.name for p in kernel.parameters if not p.pointer]
    by_name: dict[str, Struct] = {}
    code: dict[str, str] = {}
    for i, p in enumerate(kernel.parameters):
        if not texts[p.name].startswith("{"):
            continue
        maker = f"simt_value_{i}"
        used = tuple(t for t in _names(texts[p.name]) if t in texts and t not in numbers)
        addresses = " ".join(f"const simt::Address {t}{{at[{k}]}};" for k, t in enumerate(used))
        by_name[p.name] = Struct(maker, used)
        code[p.name] = (
            f'#line 1 "--arg {p.name}"\nextern "C" __attribute__((visibility("default"))) SIMT_PLAIN void {maker}(void* to, void** at) '
            f"{{ {addresses} const typename simt::Argument<decltype(&{entry}), {i}>::type v = {texts[p.name]}; std::memcpy(to, &v, sizeof v); }}\n"
        )
    return by_name, code


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)))
