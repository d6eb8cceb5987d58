"""The head of a `.cu` that has none: the parameters of its kernel are matched with an op's tensors, sizes and options, and every match is
tried.

Names decide first, then the order; sizes and grids that names leave open are tried on small cases in the simulator, and the first that is
right is written. The new file holds the head and the device's code; the file itself stays as it is."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from rooftop.core import head_text, registry, whole_file
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.call import problem_for_kernels
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS, Case
from rooftop.lab.candidates import Subject
from rooftop.lab.scaffold import kernel as skeleton
from rooftop.lab.simt import ordinary, own_file
from rooftop.lab.simt.instances import Templates

TRIES = 240  # heads that are tried at most
ELEMENTS = 1 << 14  # of a case on which they are
DTYPE = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "int": "i32",
    "long long": "i64"
}
WHOLE = {"int": "i32", "unsigned": "i32", "unsigned int": "i32", "int32_t": "i32", "uint32_t": "i32", "uint": "i32", "long": "i64", "long long": "i64",
         "int64_t": "i64", "size_t": "i64", "uint64_t": "i64", "unsigned long": "i64", "unsigned long long": "i64"}
REAL = {"float": "f32", "double": "f64"}
OTHERWISE = {  # what sources call an op's tensors and options
    "out": "y out output o dst result c d_out", "in": "x in input inp src a d_in", "weight": "weight w gamma g scale",
    "bias": "bias b beta shift",
    "residual": "residual res", "eps": "eps epsilon", "dim": "dim",
}
FIRST = re.compile(r"^(?:n_?)?(?:rows?|m|batch\w*|b|n_?tokens?|tokens|height|h|num_rows|seq\w*)$", re.I)
LAST = re.compile(r"^(?:n_?)?(?:cols?|columns?|hidden\w*|dim\w*|d|c|k|width|w|num_cols|features?|size)$", re.I)
EVERY = re.compile(r"^(?:n|size|len|length|total\w*|numel|count|num_elements|elements)$", re.I)


@dataclass(frozen=True)
class Written:
    """`text`: of the new file; `right`: the cases on which it was right, none where no match was; `why`: what the first then did."""

    text: str
    kernel: str
    right: tuple[str, ...]
    why: str = ""


def write(path: Path, op_name: str, kernel: str | None = None) -> tuple[Path, Written]:
    """Write `NAME_OP.cu` into the current folder. Raises as `made`, and ValueError for a file that is there."""
    target = Path(f"{path.stem}_{op_name}.cu")
    if target.exists():
        raise ValueError(f"{target} is there already")
    text = made(path, op_name, kernel)
    whole_file.write(target, text.text)
    return target, text


def made(path: Path, op_name: str, kernel: str | None = None) -> Written:
    """Raises ValueError for a file without the kernel, a kernel with parameters that nothing of the op can be, and RegistryError for no
    op."""
    op = registry.op(op_name)
    if head_text.read(path).lstrip().startswith("/* rooftop"):
        raise ValueError(f"{path} has a head already")
    source = own_file.read(path)
    code = own_file.Code(source)
    instance = _chosen(source.whole, path, kernel)
    body = _device_code(code)
    entry, letter = _entry(instance, source.whole)
    block, shared = ordinary.stated(instance, source.whole)
    words = {"block": " ".join(map(str, block)), "shared": str(shared or "")}
    first: tuple[str, str] | None = None
    tried = 0
    for shown, small in _variants(op, DTYPE.get(next((_kind(p) for p in instance.parameters if p.pointer), ""), "f32")):
        for tensors in _tensors(shown, instance):
            for text in _heads(op, shown, instance, entry, letter, tensors, words, source.whole):
                right, why = _tried(op, path, text, body, small)
                if right:
                    return Written(text + body, entry, right)
                first = first if first and (first[1] or not why) else (text, why)
                tried += 1
                if tried >= TRIES or "CompileError" in why:
                    return Written(first[0] + body, entry, (), why if "CompileError" in why else first[1])
    if first is None:
        names = ", ".join(op.kinds)
        raise ValueError(f"{path}: the parameters of {instance} are not those of {op_name} ({names}): write the head by hand (docs/head.md)")
    return Written(first[0] + body, entry, (), first[1])


def _variants(op: Contract, dtype: str) -> list[tuple[skeleton.Shown, list[Case]]]:
    """What kernels see in small cases, by the ranks of their tensors and which extents are 1: the commonest first."""
    groups: dict[object, list[Case]] = {}
    for c in _small(op, dtype):
        tensors = problem_for_kernels(op, op.problem(c, TARGETS[90]))[0].tensors
        groups.setdefault(tuple((n, None if m is None else tuple(e == 1 for e in m.shape)) for n, m in tensors), []).append(c)
    variants = []
    for cases in sorted(groups.values(), key=len, reverse=True):
        own = copy.copy(op)
        own.cases = tuple(cases)
        variants.append((skeleton.shown(own), cases))
    return variants


def _chosen(text: str, path: Path, kernel: str | None) -> ordinary.Kernel:
    every = [k for k in ordinary.kernels(text) if kernel in (None, k.name, k.name.rpartition("::")[2])]
    return every[0] if len(every) == 1 else ordinary.choose(text, str(path), kernel)[0]


def _entry(kernel: ordinary.Kernel, text: str) -> tuple[str, str]:
    """The name expression, with {T} for its type, and the letter of that parameter; "" where it has none."""
    if not kernel.template:
        return kernel.name, ""
    templates = Templates([text])
    base = kernel.name.rpartition("::")[2]
    parameters = templates._head(base)
    instance = next((i.name for i in templates.instances()[0] if i.name.partition("<")[0].rpartition("::")[2] == base), "")
    values = [a.strip() for a in instance.partition("<")[2].removesuffix(">").split(",")] if instance else [p.guess for p in parameters]
    letter = next((p.name for p in parameters if p.kind == "type"), "")
    return f"{kernel.name}<{', '.join('{T}' if p.name == letter else a for p, a in zip(parameters, values, strict=False))}>", letter


def _device_code(code: own_file.Code) -> str:
    """The declarations of the device's, with what NVRTC lacks of what they use."""
    pieces = ((text, part.tokens if isinstance(part, own_file.Part) else ()) for text, part in code.order)
    device_text = "".join("" if text.startswith("\n#line") else text + "".join(t.text for t in tokens) for text, tokens in pieces)
    device_text = re.sub(r"\n[ \t]*(?=\n)", "\n", re.sub(r'^#line .*\n', "", device_text, flags=re.M))
    device_text = re.sub(r"\n{3,}", "\n\n", device_text).strip("\n")
    headers = "".join(h for h, words in own_file.HALVES if re.search(words, device_text) and h.strip() not in device_text)
    limits = "".join(f"#define {n} {v}\n" for n, v in own_file._LIMITS.items() if re.search(rf"\b{n}\b", device_text))
    return f"{headers}{limits}{device_text}\n"


def _kind(p: ordinary.Parameter) -> str:
    return re.sub(r"\b(?:const|__restrict__|__restrict|volatile)\b|[*&]|\[\d*\]", "", p.text).strip()


def _named(name: str, what: str) -> bool:
    return name.lower() == what.lower() or name.lower() in OTHERWISE.get(what, "").split()


def _goes_by(name: str, t: skeleton.Tensor, first: skeleton.Tensor) -> bool:
    return _named(name, t.name) or (t is first and _named(name, "out" if t.written else "in"))


def _tensors(shown: skeleton.Shown, kernel: ordinary.Kernel) -> Iterator[dict[str, skeleton.Tensor]]:
    """Ways to match the kernel's pointers with the op's tensors: by name, then in order; inputs are those that it may not write, where any
    are."""
    pointers = [p for p in kernel.parameters if p.pointer]
    inputs, outputs = [t for t in shown.tensors if not t.written], [t for t in shown.tensors if t.written]
    by_name: dict[str, skeleton.Tensor] = {}
    for p in pointers:
        own = outputs if "const" not in p.text else inputs
        tensor = next((t for t in (*own, *shown.tensors) if t.name == p.name and t not in by_name.values()), None)
        tensor = tensor or next((t for t in own if t not in by_name.values() and _goes_by(p.name, t, own[0])), None)
        if tensor is not None:
            by_name[p.name] = tensor
    orders = [[*inputs, *outputs], [*outputs, *inputs]]
    seen = []
    for names in (by_name, {}):
        for order in orders:
            needed = [t for t in order if not t.optional and t not in names.values()]
            spare = [t for t in order if t.optional and t not in names.values()]
            open_ = [p for p in pointers if p.name not in names]
            taken = sorted([*needed, *spare[: max(len(open_) - len(needed), 0)]], key=order.index)
            match = {**names, **{p.name: t for p, t in zip(open_, taken, strict=False)}}
            whole = len(match) == len(pointers) and all(t in match.values() for t in shown.tensors if not t.optional)
            if whole and len(taken) >= len(open_) and match not in seen:
                seen.append(match)
                yield match


def _heads(
    op: Contract, shown: skeleton.Shown, kernel: ordinary.Kernel, entry: str, letter: str, tensors: Mapping[str, skeleton.Tensor],
    words: Mapping[str, str],
    text: str,
) -> Iterator[str]:
    """Heads in the order of likelihood."""
    kinds = {_kind(p) for p in kernel.parameters if p.pointer and tensors[p.name].dtype == "T"}
    dtypes = (
        [d for d in ("f32", "f16", "bf16") if d in shown.dtypes] if letter in kinds and letter else [DTYPE[k] for k in kinds if k in DTYPE]
    )
    if kinds and len(dtypes) != 1 and not letter:
        raise ValueError(
            f"{kernel}: its tensors are {', '.join(sorted(kinds))}; a head needs one type of {', '.join(DTYPE)}, or a template's"
        )
    used = list(dict.fromkeys(tensors.values()))
    letters = list(dict.fromkeys(d for t in used for d in t.dims if not d.isdigit()))
    out = next((t for t in used if t.written), used[-1])
    numbers = [p for p in kernel.parameters if not p.pointer]
    whole = [p for p in numbers if _kind(p) in WHOLE]
    choices = [_values(op, shown, p, letters, out, whole) for p in numbers]
    texts = [list(dict.fromkeys([v, *(str(op.options(c)[n]) for c in op.cases)])) for n, v in shown.words]
    missing = [
        t.name for t in skeleton.shown(op).tensors if op.kinds.get(t.name) == "Tensor | None" and t.name not in {u.name for u in used}
    ]
    for said in itertools.islice(itertools.product(*texts), 3):
        requires = [f"\"{n} == '{v}'\" = \"other values of {n} are to be written\"" for (n, _), v in zip(shown.words, said, strict=True)]
        for launch in _launches(letters, out, words, text, kernel):
            for values in itertools.product(*choices):
                number = dict(zip((p.name for p in numbers), values, strict=True))
                own = {
                    p.name: f"{t.name}: {t.dtype}[{', '.join(t.dims)}]" for p in kernel.parameters if p.pointer and (t := tensors[p.name])
                }
                args = [f'"{own.get(p.name) or number[p.name]}"' for p in kernel.parameters]
                yield "\n".join([
                    "/* rooftop", f'op      = "{op.name}"', *([f"dtypes  = [{_listed(dtypes)}]"] if kinds else []),
                    f"args    = [{', '.join(args)}]",
                    *([f"without = [{_listed(missing)}]"] if missing else []), *(["", "[requires]", *requires] if requires else []),
                    "", "[[launch]]", f'kernel  = "{entry}"', *launch, "*/", "",
                ])


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _values(
    op: Contract, shown: skeleton.Shown, p: ordinary.Parameter, letters: Sequence[str], out: skeleton.Tensor,
    whole: Sequence[ordinary.Parameter]
) -> list[str]:
    """What a number may be, the likeliest first. `whole`: the kernel's whole numbers: several stand in the order of the sizes."""
    kind = _kind(p)
    options = dict(shown.numbers)
    own = next((n for n in options if _named(p.name, n)), None)
    if kind in REAL:
        left = own or next((n for n, t in options.items() if t == "f32"), None)
        if left is None:
            raise ValueError(f"{op.name} has no number that {p.text} {p.name} could be; its options are {', '.join(options) or 'none'}")
        return [f"{p.name}: {REAL[kind]} = {left}" if p.name != left else f"{left}: {REAL[kind]}"]
    if kind == "bool":
        return [f"{p.name}: bool = {own}"] if own else [f"{p.name}: bool = 0", f"{p.name}: bool = 1"]
    if kind not in WHOLE:
        raise ValueError(f"{p.text} {p.name}: a head has numbers and tensors alone (docs/head.md)")
    every = f"numel({out.name})"
    ranked = [every] if EVERY.match(p.name) and len(whole) == 1 else []
    ranked += [letters[0]] if FIRST.match(p.name) else []
    ranked += [letters[-1]] if LAST.match(p.name) else []
    names = [q.name.lower() for q in whole]
    if {"m", "n", "k"} <= set(names) and len(letters) > 2 and p.name.lower() in "nk":  # of a product
        ranked += [letters[2 if p.name.lower() == "n" else 1]]
    ranked += [letters[whole.index(p)]] if whole.index(p) < len(letters) and len(whole) > 1 else []
    ranked += [x for x in (*letters, every) if x not in ranked]
    return [f"{p.name}: {WHOLE[kind]} = {x}" for x in dict.fromkeys(ranked)]


def _launches(letters: Sequence[str], out: skeleton.Tensor, words: Mapping[str, str], text: str, kernel: ordinary.Kernel) -> list[list[str]]:
    lines = text.splitlines()[kernel.line - 1 :]
    body = "\n".join(lines[: next((i for i, x in enumerate(lines[1:], 1) if "__global__" in x), len(lines))])
    flat = "threadIdx.y" in body or "blockIdx.y" in body
    block = [int(n) for n in words["block"].split()] or ([16, 16] if flat else [256])
    dims = [d for d in out.dims if not d.isdigit()] or ["1"]
    rows, columns = dims[0], dims[-1]
    x, y = block[0], block[1] if len(block) > 1 else 1
    if flat:
        grids = [
            [f"ceil({columns} / {x})", f"ceil({rows} / {y})"], [f"ceil({rows} / {x})", f"ceil({columns} / {y})"], [columns, rows],
            [rows, columns]
        ]
    else:
        every = f"numel({out.name})"
        by_thread = [[f"ceil({every} / {x})"], [f"ceil({rows} / {x})"], [f"ceil({every} / {4 * x})"]]
        by_block = [[rows], [" * ".join(dims[:-1]) or "1"], [f"ceil({rows} / {max(x // 32, 1)})"]]
        grids = [*by_thread, *by_block] if re.search(
            r"blockIdx\.x\s*\*\s*blockDim|blockDim\.x\s*\*\s*blockIdx", body
        ) else [*by_block, *by_thread]
    shared = [words["shared"]] if words["shared"] else [""]
    if not words["shared"] and re.search(r"extern\s+[\w ]*__shared__", body):
        shared = [f"4 * {x * y}", f"4 * max({x * y}, {columns})", f"8 * ({x * y} + {columns})"]
    launches = []
    for grid in grids:
        for size in shared:
            launches.append([f"grid    = [{_listed(grid)}]", f"block   = {block}", *([f'shared  = "{size}"'] if size else [])])
    return [list(launch) for launch in dict.fromkeys(map(tuple, launches))]


def _tried(op: Contract, path: Path, head: str, body: str, small: Sequence[Case]) -> tuple[tuple[str, ...], str]:
    """The cases on which a head is right: two that it takes; none if it is wrong on one, and what it then does."""
    from rooftop.lab.check import checker

    try:
        implementation = CudaImplementation(path, op.name, path.stem, text=head + body)
    except ValueError as error:
        return (), str(error)
    implementation._head = replace(implementation.head, source=body)  # one source for all heads: it is built once
    subject = Subject(path.stem, op, implementation)
    right: list[str] = []
    for case in small:
        if len(right) < 2 and implementation.supports(subject.kernel_problem(case, TARGETS[90])[1]) is None:
            result = checker.check(subject, case, backend="simt")
            if result.status != "ok":
                return (), f"{case.id}: {result.message}"
            right.append(case.id)
    return tuple(right), ""


def _small(op: Contract, dtype: str) -> list[Case]:
    """Small dense cases, ordinary numbers and different extents first."""

    def size(c: Case) -> int:
        return sum(prod(i.shape) for _, i in c.tensors())

    def key(c: Case) -> tuple[bool, bool, int, int]:
        extents = [n for n in next(c.tensors())[1].shape if n > 1]
        return any(i.fill != "normal" for _, i in c.tensors()), len(set(extents)) < max(len(extents), 2), -min(size(c), 512), size(c)

    return sorted(
        (c for c in op.cases if c.dtype == dtype and 32 <= size(c) <= ELEMENTS and all(i.layout == "contiguous" for _, i in c.tensors())),
        key=key
    )
