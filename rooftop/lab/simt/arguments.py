"""The arguments of an ordinary kernel as a launch takes them, made from what a user says (`rooftop.lab.simt.ordinary`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core.helpers import Folders
from rooftop.core.spec import Launch
from rooftop.lab.simt import build, process
from rooftop.lab.simt.ordinary import Kernel, Parameter, split, structs

DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16",
    "i32": "int32",
    "u32": "uint32", "i64": "int64", "u64": "uint64", "bool": "bool",
}
CONTENTS = "random, range, zeros, ones, empty (nobody has written it), a number, or a .npy file"
NUMBERS = {  # of a kernel's parameters: C++'s type, as the compiler writes it -> the launch's
    "float": "f32", "double": "f64", "bool": "bool", "int": "i32", "unsigned int": "u32", "short int": "i16", "short unsigned int": "u16",
    "short": "i16",
    "unsigned short": "u16", "char": "i8", "signed char": "i8", "unsigned char": "u8", "long int": "i64", "long": "i64",
    "long long int": "i64",
    "long long": "i64", "long unsigned int": "u64", "unsigned long": "u64", "long long unsigned int": "u64", "unsigned long long": "u64",
}


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
            self.entry, grid, {n: v for n, v, _ in self.arguments}, types=tuple(t for _, _, t in self.arguments), block=block,
            cluster=cluster,
            shared=shared, cooperative=cooperative,
        )


def prepare(text: str, path: str, folders: Folders, kernel: Kernel, entry: str, given: Sequence[str], seed: int = 0) -> Prepared:
    """The arguments that `--arg` gives. Raises ValueError; CompileError where the source does not compile."""
    texts = split(kernel, given)
    made, values = structs(kernel, entry, texts)
    library = build.build(text, path=path, kernels=[entry], mode="check", folders=folders, values=values)
    known = process.parameters(library, entry)
    arguments: list[tuple[str, Any, str]] = []
    tensors: dict[str, Any] = {}
    for i, p in enumerate(kernel.parameters):
        said = texts[p.name]
        if p.name in made:
            arguments.append((p.name, made[p.name], "struct"))
        elif known[i].pointer:
            if said not in ("null", "nullptr", "0"):
                tensors[p.name] = tensor(p.name, said, seed + i)
            arguments.append((p.name, p.name if p.name in tensors else None, "ptr"))
        elif (kind := NUMBERS.get(known[i].target)) is not None:
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
        raise ValueError(
            f"--arg {p.name}={text}: it is a {p.text} and takes {'a number' if kind[0] == 'f' else 'a whole number'}"
        ) from None
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
        raise ValueError(
            f"--arg {name}={text}: a pointer takes TYPE:SIZE[xSIZE...][:CONTENTS] ({', '.join(DTYPES)}; {CONTENTS}), FILE.npy or null"
        )
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
