"""An ordinary `.cu`, without a head: its kernels, and arguments for one of them as a user writes them.

`n=1000` is a number, `x=f32:64x64:range` a tensor by type, sizes and contents, `x=data.npy` one from a file, `p={x, 1000}` a struct: what stands there
is C++, in which the names of tensors are their addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core.spec import Launch
from rooftop.lab.simt.translate import Token, tokenise

DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32",
    "u32": "uint32", "i64": "int64", "u64": "uint64", "bool": "bool",
}  # fmt: skip
CONTENTS = "random, range, zeros, ones, empty (nobody has written it), a number, or a .npy file"
NUMBERS = {  # of a kernel's parameters: C++'s type, as the compiler writes it -> the launch's
    "float": "f32", "double": "f64", "bool": "bool", "int": "i32", "unsigned int": "u32", "short int": "i16", "short unsigned int": "u16", "short": "i16",
    "unsigned short": "u16", "char": "i8", "signed char": "i8", "unsigned char": "u8", "long int": "i64", "long": "i64", "long long int": "i64",
    "long long": "i64", "long unsigned int": "u64", "unsigned long": "u64", "long long unsigned int": "u64", "unsigned long long": "u64",
}  # fmt: skip


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

    def __str__(self) -> str:
        given = ", ".join(f"{p.text} {p.name}" for p in self.parameters)
        return f"{self.name}{'<...>' if self.template else ''}({given})"


@dataclass(frozen=True)
class Struct:
    """An argument that C++ makes, by the function `maker` of the library, from the addresses of `tensors`."""

    maker: str
    tensors: tuple[str, ...]


def kernels(text: str) -> list[Kernel]:
    """The kernels that a source defines."""
    tokens = [t for t in tokenise(text) if t.kind in ("word", "number", "string", "symbol")]
    found: list[Kernel] = []
    scopes: list[str] = []
    start = 0  # of the declaration that a token is part of
    for i, token in enumerate(tokens):
        if token.text == "__global__" and token.kind == "word":
            at = i + 1
            while at + 1 < len(tokens) and not (tokens[at].kind == "word" and tokens[at + 1].text == "(" and not tokens[at].text.startswith("__")):
                at += 1
            close, depth = at + 1, 0
            while close < len(tokens) and (depth := depth + (tokens[close].text == "(") - (tokens[close].text == ")")):
                close += 1
            if close + 1 >= len(tokens) or tokens[close + 1].text == ";":
                continue  # a declaration
            template = any(t.text == "template" for t in tokens[start:i])
            name = "::".join([*(s for s in scopes if s), tokens[at].text])
            found.append(Kernel(name, tuple(_parameters(tokens[at + 2 : close])), template, token.line))
        if token.kind == "symbol" and token.text in "{};":
            if token.text == "{":
                words = [t.text for t in tokens[start:i]]
                scopes.append(words[-1] if words[:1] == ["namespace"] and len(words) > 1 else "")
            elif token.text == "}" and scopes:
                scopes.pop()
            start = i + 1
    return list({k.name: k for k in found}.values())


def _parameters(tokens: Sequence[Token]) -> list[Parameter]:
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1, ">>": -2}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token.text)
    made = []
    for i, words in enumerate(p for p in parts if p):
        words = words[: words.index("=")] if "=" in words else words
        at = next((k for k in range(len(words) - 1, 0, -1) if re.fullmatch(r"[A-Za-z_]\w*", words[k]) and words[k] != "const"), 0)
        text = re.sub(r" ?(::|[<>*&,]) ?", r"\1", " ".join(w for k, w in enumerate(words) if k != at and not w.startswith("__")))
        made.append(Parameter(words[at] if at else f"argument{i + 1}", text))
    return made


def choose(text: str, path: str, asked: str | None) -> tuple[Kernel, str]:
    """The kernel that `asked` names (the only one where None), and its name expression. Raises ValueError."""
    have = kernels(text)
    if not have:
        raise ValueError(f"{path} has no kernel: no __global__ function is defined in it")
    listed = "; ".join(map(str, have))
    if asked is None and len(have) > 1:
        raise ValueError(f"{path} has {len(have)} kernels; choose one by --kernel: {listed}")
    base = (asked or have[0].name).partition("<")[0].strip()
    found = [k for k in have if base in (k.name, k.name.rpartition("::")[2])]
    if not found:
        raise ValueError(f"--kernel {asked}: {path} has no such kernel; it has {listed}")
    kernel = found[0]
    if kernel.template and "<" not in (asked or ""):
        raise ValueError(f"{kernel.name} is a template ({path}:{kernel.line}): give its arguments, as in --kernel '{kernel.name}<float>'")
    return kernel, kernel.name + (asked or "")[len(base) :]


def split(kernel: Kernel, given: Sequence[str]) -> dict[str, str]:
    """The texts of `--arg`, by parameter. Raises ValueError for those that are missing, unknown, or given twice."""
    names = [p.name for p in kernel.parameters]
    names += [n for part in given if "={" in part.replace(" ", "") for n in _names(part.partition("=")[2])]  # tensors that a struct points to
    found: dict[str, str] = {}
    for part in given:
        name, equals, text = part.partition("=")
        if not equals or not text.strip():
            raise ValueError(f"--arg {part!r}: it is written NAME=VALUE")
        if name.strip() not in names:
            raise ValueError(f"--arg {name}: {kernel} has no such parameter")
        if name.strip() in found:
            raise ValueError(f"--arg {name} is given twice")
        found[name.strip()] = text.strip()
    if missing := [p for p in kernel.parameters if p.name not in found]:
        example = " ".join(f"--arg {p.name}={'f32:1024' if p.pointer else '1024'}" for p in missing)
        raise ValueError(f"{kernel} wants more arguments: {', '.join(p.name for p in missing)}, as in {example}")
    return found


def structs(kernel: Kernel, entry: str, texts: Mapping[str, str]) -> tuple[dict[str, Struct], dict[str, str]]:
    """The arguments that are written in C++, and the functions that make them."""
    numbers = [p.name for p in kernel.parameters if not p.pointer]
    made: dict[str, Struct] = {}
    code: dict[str, str] = {}
    for i, p in enumerate(kernel.parameters):
        if not texts[p.name].startswith("{"):
            continue
        maker = f"simt_value_{i}"
        used = tuple(t for t in _names(texts[p.name]) if t in texts and t not in numbers)
        addresses = " ".join(f"const simt::Address {t}{{at[{k}]}};" for k, t in enumerate(used))
        made[p.name] = Struct(maker, used)
        code[p.name] = (
            f'#line 1 "--arg {p.name}"\nextern "C" __attribute__((visibility("default"))) SIMT_PLAIN void {maker}(void* to, void** at) '
            f"{{ {addresses} const typename simt::Argument<decltype(&{entry}), {i}>::type v = {texts[p.name]}; std::memcpy(to, &v, sizeof v); }}\n"
        )
    return made, code


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)))


@dataclass(frozen=True)
class Prepared:
    """A kernel with its arguments. `values`: functions that make those that are written in C++."""

    entry: str
    arguments: tuple[tuple[str, Any, str], ...]  # parameter, value, type
    tensors: Mapping[str, Any]
    uninitialised: tuple[str, ...]
    values: Mapping[str, str]

    def memory(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Fresh tensors, and the names of those that nobody has written."""
        return {n: t.clone() for n, t in self.tensors.items()}, self.uninitialised

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], cluster: tuple[int, ...], shared: int, cooperative: bool) -> Launch:
        return Launch(
            self.entry, grid, {n: v for n, v, _ in self.arguments}, types=tuple(t for _, _, t in self.arguments), block=block, cluster=cluster,
            shared=shared, cooperative=cooperative,
        )  # fmt: skip


def prepare(text: str, path: str, folder: Path, kernel: Kernel, entry: str, given: Sequence[str], seed: int = 0) -> Prepared:
    """The arguments that `--arg` gives. Raises ValueError; CompileError where the source does not compile."""
    from rooftop.lab.simt import build, native

    texts = split(kernel, given)
    made, values = structs(kernel, entry, texts)
    library = build.build(text, path=path, kernels=[entry], mode="check", folder=folder, values=values)
    known = native.of(library).kernel(library.kernels[entry])
    arguments: list[tuple[str, Any, str]] = []
    tensors: dict[str, Any] = {}
    for i, p in enumerate(kernel.parameters):
        said = texts[p.name]
        if p.name in made:
            arguments.append((p.name, made[p.name], "struct"))
        elif known.parameters[i].pointer:
            if said not in ("null", "nullptr", "0"):
                tensors[p.name] = tensor(p.name, said, seed + i)
            arguments.append((p.name, p.name if p.name in tensors else None, "ptr"))
        elif (kind := NUMBERS.get(known.parameters[i].target)) is not None:
            arguments.append((p.name, _number(p, said, kind), kind))
        else:
            raise ValueError(f"--arg {p.name}={said}: it is a {p.text}, which is written in C++: {p.name}={{...}}")
    own = [p.name for p in kernel.parameters]
    tensors |= {n: tensor(n, said, seed + len(own) + i) for i, (n, said) in enumerate(texts.items()) if n not in own}
    return Prepared(entry, tuple(arguments), tensors, tuple(n for n in tensors if texts[n].endswith(":empty")), values)


def _number(p: Parameter, text: str, kind: str) -> float | int | bool:
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    try:
        value = float(text.rstrip("f")) if kind[0] == "f" else int(text.rstrip("uUlL"), 0)
    except ValueError:
        raise ValueError(f"--arg {p.name}={text}: it is a {p.text} and takes {'a number' if kind[0] == 'f' else 'a whole number'}") from None
    bits = int(kind[1:]) if kind[1:].isdigit() else 1
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)
    if kind[0] != "f" and not low <= value <= high:
        raise ValueError(f"--arg {p.name}={text}: a {p.text} holds {low} to {high}")
    return value


def tensor(name: str, text: str, seed: int) -> Any:
    """`f32:64x64:range`, or the tensor of a file."""
    import torch

    if text.endswith(".npy") and ":" not in text:
        return torch.from_numpy(_file(name, text))
    kind, _, rest = text.partition(":")
    sizes, _, contents = rest.partition(":")
    numbers = sizes.split("x")
    if kind not in DTYPES or not all(n.isdigit() for n in numbers):
        raise ValueError(f"--arg {name}={text}: a pointer takes TYPE:SIZE[xSIZE...][:CONTENTS] ({', '.join(DTYPES)}; {CONTENTS}), FILE.npy or null")
    dtype, shape = getattr(torch, DTYPES[kind]), tuple(map(int, numbers))
    whole = not dtype.is_floating_point
    if contents in ("", "random"):
        drawn = torch.Generator().manual_seed(seed)
        wide = torch.randint(0, 2 if kind == "bool" else 100, shape, generator=drawn) if whole else torch.randn(shape, generator=drawn)
        return wide.to(dtype)
    if contents == "range":
        return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    if contents.endswith(".npy"):
        return torch.from_numpy(_file(name, contents)).to(dtype).reshape(shape)
    value = {"zeros": 0.0, "ones": 1.0, "empty": 0.0}.get(contents)
    try:
        return torch.full(shape, float(contents) if value is None else value).to(dtype)
    except ValueError:
        raise ValueError(f"--arg {name}={text}: the contents are {contents!r}; they may be {CONTENTS}") from None


def _file(name: str, text: str) -> Any:
    import numpy as np

    if not Path(text).is_file():
        raise ValueError(f"--arg {name}: {text} is no file")
    try:
        return np.ascontiguousarray(np.load(text, allow_pickle=False))
    except (ValueError, OSError) as error:
        raise ValueError(f"--arg {name}: {text} cannot be read as .npy: {error}") from None
