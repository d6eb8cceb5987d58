"""A kernel to begin with where an op has none of its kind: the op's own tensors, sizes and options, and zeros for a result.

It compiles, runs and is judged as it stands: wrong wherever zero is not the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooftop.core.call import problem_for_kernels
from rooftop.core.contract import Contract
from rooftop.core.spec import DTYPES, TARGETS, Problem

LETTERS = "ABDEFGHIJKLMNOPQSUVWZ"
NUMBERS = {"int": "i64", "float": "f32", "bool": "bool"}
C_NUMBERS = {"i64": "long long", "i32": "int", "f32": "float", "bool": "bool"}
WORDS_OF_C = frozenset({  # that might name a tensor
    "and", "auto", "bool", "char", "class", "const", "default", "delete", "do", "double", "else", "enum", "explicit", "export", "extern",
    "false", "float", "for", "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "not", "operator", "or",
    "private", "protected", "public", "register", "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this",
    "throw", "true", "try", "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "while", "xor",
})
INCLUDES = {"bf16": "cuda_bf16.h", "f16": "cuda_fp16.h", "f8e4m3": "cuda_fp8.h", "f8e5m2": "cuda_fp8.h"}


@dataclass(frozen=True)
class Tensor:
    """One of the op's as most of its cases have it: `dims` are names of sizes or numbers; `dtype` may be T."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    optional: bool
    written: bool


@dataclass(frozen=True)
class Shown:
    """What a kernel of the op takes."""

    tensors: tuple[Tensor, ...]
    numbers: tuple[tuple[str, str], ...]  # name, type
    dtypes: tuple[str, ...]
    words: tuple[tuple[str, str], ...] = ()  # options that are texts, with the value of most cases

    @property
    def sizes(self) -> tuple[str, ...]:
        """Those that every call binds."""
        return tuple(dict.fromkeys(d for t in self.tensors if not t.optional for d in t.dims if not d.isdigit()))


def shown(op: Contract) -> Shown:
    """What most cases of the op look like to a kernel: the rank that each tensor mostly has. Raises ValueError for an op that takes
    lists."""
    if op.list_names:
        raise ValueError(f"{op.name} takes lists of tensors: write its kernel by hand (docs/adding.md)")
    problems = [(c.dtype, problem_for_kernels(op, op.problem(c, TARGETS[90]))[0]) for c in op.cases]
    most = Counter(tuple((n, None if m is None else len(m.shape)) for n, m in p.tensors) for _, p in problems).most_common()
    ranks: dict[str, int | None] = dict(most[0][0])
    for signature, _ in most[1:]:  # of tensors that those cases lack, from cases that fit them otherwise
        if all(r is None or ranks.get(n) in (None, r) for n, r in signature):
            ranks.update({n: r for n, r in signature if r is not None})
    fitting = [(d, p) for d, p in problems if all((m := p.get(n)) is None or len(m.shape) == r for n, r in ranks.items())]
    letter = _letters(op, [p for _, p in fitting])
    typed = _typed(fitting, [name for name, rank in ranks.items() if rank is not None])
    tensors = []
    for name, rank in ranks.items():
        if rank is None:  # absent in every case
            continue
        dtypes = Counter(m.dtype for _, p in fitting if (m := p.get(name)) is not None)
        dims = tuple(letter[tuple(_extents([p for _, p in fitting], name, i))] for i in range(rank))
        optional = any(p.get(name) is None for _, p in problems) or op.kinds.get(name) == "Tensor | None"
        tensors.append(
            Tensor(name, dims, "T" if name in typed else dtypes.most_common(1)[0][0], optional, name in (*op.output_names, *op.mutates))
        )
    numbers = [
        (n, "f32" if n in op.runtime_floats else "i32" if n in op.runtime_options else NUMBERS[op.kinds[n]])
        for n in op.option_names
        if op.kinds[n] in NUMBERS and n not in ranks  # a name has one meaning in a kernel: that of the tensor
    ]
    given = [(n, t) for n, t in numbers if all(op.options(c)[n] is not None for c in op.cases)]
    taken = {next(iter(own)) for _, p in fitting if len(own := {m.dtype for n in typed if (m := p.get(n)) is not None}) == 1}
    texts = {n: Counter(str(op.options(c)[n]) for c in op.cases).most_common(1)[0][0] for n in op.option_names if op.kinds[n] == "str"}
    return Shown(
        tuple(tensors), tuple(given), tuple(d for d in dict.fromkeys((*op.dtypes, *sorted(taken))) if d in taken), tuple(texts.items())
    )


def _typed(problems: Sequence[tuple[str, Problem]], names: Sequence[str]) -> set[str]:
    """The tensors that mostly have the case's dtype. Where none has (kernels see the bits of an element as a whole number, say): those that
    change together."""
    seen = {n: [(d, m.dtype) for d, p in problems if (m := p.get(n)) is not None] for n in names}
    found = {n for n, pairs in seen.items() if sum(d == own for d, own in pairs) >= Counter(own for _, own in pairs).most_common(1)[0][1]}
    changing = next((pairs for pairs in seen.values() if len({own for _, own in pairs}) > 1), None)
    return found or {n for n, pairs in seen.items() if pairs == changing}


def _extents(problems: Sequence[Problem], name: str, dim: int) -> list[int | None]:
    return [None if (m := p.get(name)) is None else m.shape[dim] for p in problems]


def _letters(op: Contract, problems: Sequence[Problem]) -> dict[tuple[int | None, ...], str]:
    """A name for each size: sizes that are the same in all cases in which they stand have one."""
    found: dict[tuple[int | None, ...], str] = {}
    reserved = {*op.kinds, *op.output_names, "T"}
    free = iter([x for x in LETTERS if x not in reserved])
    kinds: list[list[int | None]] = []
    names: list[str] = []
    for name, first in problems[0].tensors if problems else ():
        rank = len(first.shape) if first is not None else next((len(m.shape) for p in problems if (m := p.get(name)) is not None), 0)
        for dim in range(rank):
            extents = _extents(problems, name, dim)
            if tuple(extents) in found:
                continue
            if {e for e in extents if e is not None} == {1}:
                found[tuple(extents)] = "1"
                continue
            at = next(
                (i for i, known in enumerate(kinds) if all(a is None or b is None or a == b for a, b in zip(known, extents, strict=True))
                       and any(a is not None and a == b for a, b in zip(known, extents, strict=True))), None)
            if at is None:
                kinds.append(extents)
                names.append(next(free))
                at = len(kinds) - 1
            kinds[at] = [a if a is not None else b for a, b in zip(kinds[at], extents, strict=True)]
            found[tuple(extents)] = names[at]
    return found


def _size(dims: Sequence[str], empty: str = "1") -> str:
    return " * ".join(d for d in dims if d != "1") or empty


def _contiguous(t: Tensor) -> str:
    """The stride of a dimension of one element is any number."""
    parts = [f"({d} == 1 or stride({t.name}, {i}) == {_size(t.dims[i + 1:])})" for i, d in enumerate(t.dims) if d != "1"]
    return " and ".join(parts).removeprefix("(").removesuffix(")") if len(parts) == 1 else " and ".join(parts)


def _in_c(name: str) -> str:
    return f"{name}_" if name in WORDS_OF_C else name


def cuda(name: str, op: Contract) -> str:
    """A `.cu` of one kernel, a thread an element of the first output."""
    s = shown(op)
    args = [f'"{n}: i64"' for n in s.sizes] + [f'"{n}: {t}"' for n, t in s.numbers]
    args += [f'"{t.name}: {t.dtype}[{", ".join(t.dims)}]{"?" if t.optional else ""}"' for t in s.tensors]
    bound = [t for t in s.tensors if t.written and all(d in s.sizes or d.isdigit() for d in t.dims)]
    written = [t for t in bound if t.name in op.output_names] or bound
    if not written:
        raise ValueError(
            f"{op.name}: no size of its outputs is a size of a required input: write its kernel by hand (docs/adding.md)"
        )
    typed = bool(s.dtypes)
    headers = dict.fromkeys(INCLUDES[d] for d in (*s.dtypes, *(t.dtype for t in s.tensors)) if d in INCLUDES)
    parameters = [f"long long {n}" for n in s.sizes] + [f"{C_NUMBERS[t]} {n}" for n, t in s.numbers]
    parameters += [f"{'' if t.written else 'const '}{'T' if t.dtype == 'T' else DTYPES[t.dtype].cuda}* {_in_c(t.name)}" for t in s.tensors]
    requires = "".join(f'"{c}" = "{t.name} must be contiguous"\n' for t in s.tensors if not t.optional and (c := _contiguous(t)))
    requires += "".join(f"\"{n} == '{v}'\" = \"other values of {n} are to be written\"\n" for n, v in s.words)
    kernel = f"{op.name}_kernel"
    lines = [
        "/* rooftop", f'idea    = "{name}, to be written: zeros, as it stands. Contract: rooftop/ops/{op.name.removesuffix("_bwd")}.py"',
        *([f"dtypes  = [{', '.join(chr(34) + d + chr(34) for d in s.dtypes)}]"] if typed else []), f"args    = [{', '.join(args)}]", "",
        *(["[requires]", requires] if requires else []), "[[launch]]", f'kernel  = "{kernel}{"<{T}>" if typed else ""}"',
        f'grid    = ["ceil(max({_size(written[0].dims)}, 1) / 256)"]', "block   = [256]", "*/", *(f"#include <{h}>" for h in headers), "",
        *(["template <typename T>"] if typed else []), f"__global__ void {kernel}({', '.join(parameters)}) {{",
        "    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;",
    ]
    for t in written:
        zero = "T()" if t.dtype == "T" else f"{DTYPES[t.dtype].cuda}()" if DTYPES[t.dtype].floating else "0"
        guard = f"if ({_in_c(t.name)}) " if t.optional else ""
        lines += [
            f"    {guard}for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < {_size(t.dims)}; i += step) "
            f"{{",
                  f"        {_in_c(t.name)}[i] = {zero};  // to be written", "    }"]
    return "\n".join([*lines, "}"]) + "\n"


def triton(name: str, op: Contract) -> str:
    """A `.py` of one Triton kernel."""
    s = shown(op)
    written = [t for t in s.tensors if t.written and t.name in op.output_names] or [t for t in s.tensors if t.written]
    numbers = {n: f'"{n}"' if n in op.runtime_options else f'p.option("{n}")' for n, _ in s.numbers}
    names = list(dict.fromkeys([*(t.name for t in s.tensors), *numbers]))
    sizes = {f"{t.name}_size": t for t in written}
    stores = "".join(
        f"    tl.store({t.name} + at, tl.zeros((BLOCK,), {t.name}.dtype.element_ty), at < {t.name}_size)  # to be written\n"
        if not t.optional else
        f"    if {t.name} is not None:\n        tl.store({t.name} + at, tl.zeros((BLOCK,), {t.name}.dtype.element_ty), at < {t.name}_size) "
        f" # to be written\n"
        for t in written
    )
    listed = _entries(
        {**{t.name: f'"{t.name}" if p.get("{t.name}") is not None else None' if t.optional else f'"{t.name}"' for t in s.tensors},
                       **numbers, **{n: f'_numel(p, "{t.name}")' for n, t in sizes.items()}, "BLOCK": "BLOCK"})
    return f'''"""{name}, to be written: zeros, as it stands. Contract: rooftop/ops/{op.name.removesuffix("_bwd")}.py"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

BLOCK = 1024  # elements of a program


@triton.jit
def _kernel({", ".join([*names, *sizes])}, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
{stores}

def supports(p: Problem) -> str | None:
    for name, meta in p.tensors:
        if meta is not None and not meta.contiguous:
            return f"{{name}} must be contiguous"
    return None


def choose(p: Problem) -> dict[str, Any]:
    return {{}}


def _numel(p: Problem, name: str) -> int:
    meta = p.get(name)
    return 0 if meta is None else meta.numel


def launches(p: Problem, config: dict[str, Any]) -> list[Launch]:
    most = max({", ".join(f'_numel(p, "{t.name}")' for t in written)}, 1)
    args = {{
{listed}    }}
    return [Launch(kernel=_kernel, grid=(-(-most // BLOCK),), args=args)]
'''


def _entries(values: Mapping[str, str]) -> str:
    return "".join(f'        "{n}": {v},\n' for n, v in values.items())
