"""A `.cu` file of no known op, judged by a function of Python: `rooftop check my.cu --reference my.py:name`.

The function is the contract's reference: its parameters are the kernel's inputs by the names of the head's args, what it returns are the
tensors that remain, in the order of args. Sizes are those of `--shape`, or a few default sizes. At one of them the inputs are also what the
edge cases of an op are: NaN, infinite, vast, denormal, empty, at an odd address, and strided where the head speaks of strides (one that
does not takes dense tensors alone)."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from rooftop.core import head as heads
from rooftop.core import head_text
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.backends.python_files import load_file
from rooftop.core.contract import Contract
from rooftop.core.expressions import names
from rooftop.core.head_parts import HeadError
from rooftop.core.names import hint
from rooftop.core.spec import DTYPES, Case, Device, Input, Meta, Problem, Work
from rooftop.lab.candidates import Subject

SIZES = (  # of the first dimension, the second, the third and those after it; distinct, so that two that are mixed up show
    ("one", (1, 1, 1)), ("small", (5, 7, 3)), ("odd", (33, 101, 13)), ("of tiles", (64, 128, 32)), ("longer", (3, 1030, 6)),
    ("taller", (515, 20, 4)),
)
LONG = ("one", 1), ("a few", 7), ("a block", 256), ("odd", 1003), ("several blocks", 8192), ("several and a tail", 8209)  # of one dimension
EACH = {"nan": "NaN in {}", "inf": "an infinity in {}", "-inf": "a negative infinity in {}"}  # fills of one input at a time
ALL = {"vast": "vast numbers", "tiny": "denormals", "-0.0": "negative zeros"}  # of all inputs at once
LAYOUTS = {
    "sliced": "rows apart", "strided": "every second element", "transposed": "transposed", "padded": "rows padded", "expanded": "expanded"
}
OPTIONS = {bool: "bool", int: "int", float: "float", str: "str"}


def subject(path: Path, reference: str, shapes: Sequence[Mapping[str, int]] = ()) -> Subject:
    """The kernel of `path` with a contract made of the function `reference` ("my.py:name"; the name may be left out where the file has one
    function, or one of the kernel's name or called `reference`). `shapes`: sizes by the head's names, a case each.

    Raises HeadError or ValueError for what does not fit together."""
    if not path.is_file() or path.suffix != ".cu":
        raise ValueError(f"--reference judges one .cu file; {path} is {'no file' if not path.is_file() else 'none'}")
    head = head_text.parse(head_text.read(path), str(path))
    if head.op is not None:
        raise HeadError(f"{path}: the head names the op {head.op}, whose contract judges it; leave --reference out, or the op")
    function = _function(reference, path.stem)
    op = contract(head, function, reference, shapes)
    return Subject(path.stem, op, CudaImplementation(path.resolve(), op.name, path.stem))


def alone(path: Path, shapes: Sequence[Mapping[str, int]] = ()) -> Subject | None:
    """The kernel of a `.cu` whose head names no op, with what can be known of it without one: its machine code, at one case for each dtype
    and size of `shapes`; a size or a number that is not given is 1024, or 1. None for any other file."""
    if path.suffix != ".cu" or not path.is_file():
        return None
    head = head_text.parse(head_text.read(path), str(path))
    if head.op is not None:
        return None
    listed = {a.name: a for a in (*head.args, *head.tensors) if isinstance(a, heads.TensorArg) and a.name not in head.scratch}
    dims = list(dict.fromkeys(d for a in listed.values() for d in a.dims if not d.isdigit()))
    bound = {"T", "arch", "card", "sms", *head.config, *head.let, *listed, *dims}
    numbers = sorted({n for _, text in head.expressions() for n in names(text)} - bound)
    kind, place = inspect.Parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [*(kind(n, place, annotation="Tensor") for n in listed), *(kind(n, place, annotation="int", default=1) for n in numbers)]
    )

    def reference(*_: Any) -> Any:
        raise HeadError(f"{path}: the head names no op, so nothing says what is right")

    reference.__signature__ = signature  # type: ignore[attr-defined]
    if unknown := sorted({n for shape in shapes for n in shape} - {*dims, *numbers}):
        raise ValueError(f"--shape {unknown[0]}: the head has the sizes {', '.join([*dims, *numbers]) or 'of its text alone'}")
    cases = []
    for letter in head.dtypes or ("f32",):
        for given in shapes or ({},):
            sizes = {d: given.get(d, 1024) for d in dims}
            tensors = {
                n: Input(tuple(int(d) if d.isdigit() else sizes[d] for d in a.dims), letter if a.dtype == "T" else a.dtype)
                for n, a in listed.items()
            }
            name = ",".join(f"{n}={v}" for n, v in (*sizes.items(), *((n, given.get(n, 1)) for n in numbers))) or "as it stands"
            cases.append(Case(name, {**tensors, **{n: given.get(n, 1) for n in numbers}}))
    op = Contract(reference, outputs=lambda **_: {}, cases=cases, work=lambda p: Work(0, 0, {}), mutates=tuple(listed), name=path.stem)
    return Subject(path.stem, op, CudaImplementation(path.resolve(), op.name, path.stem))


def is_program(path: Path) -> bool:
    """Whether a file is judged by running its Python: it is Python, or a `.cu` whose head lists functions of the `.py` beside it."""
    if path.suffix == ".cu" and path.is_file():
        with contextlib.suppress(ValueError):
            return bool(head_text.parse(head_text.read(path), str(path)).python)
    return path.suffix == ".py"


def shapes_of(texts: Sequence[str]) -> list[dict[str, int]]:
    """What `--shape` says, each a case. Raises ValueError."""
    sizes = []
    for text in texts:
        pairs = [part.partition("=") for part in text.split(",")]
        if wrong := [n for n, _, v in pairs if not n.strip() or not v.strip().isdigit()]:
            raise ValueError(f"--shape {text}: {wrong[0]!r} has no size; it is written N=1000,M=3")
        sizes.append({n.strip(): int(v) for n, _, v in pairs})
    return sizes


def _function(reference: str, stem: str) -> Callable[..., Any]:
    file, _, name = reference.rpartition(":") if not reference.endswith(".py") else (reference, "", "")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"--reference {reference}: {path} is no file; it is written FILE.py:FUNCTION")
    module = load_file(path)
    own = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__ and not n.startswith("_")}
    name = name or next((n for n in (stem, "reference") if n in own), next(iter(own)) if len(own) == 1 else "")
    if name not in own:
        raise ValueError(f"--reference {reference}: {path} has no function {name!r}; {hint(name, list(own))}" if name else
                         f"--reference {reference}: {path} has {len(own)} functions; name one: {path}:{next(iter(own), 'reference')}")
    return own[name]


def contract(head: heads.Head, function: Callable[..., Any], named: str, shapes: Sequence[Mapping[str, int]] = ()) -> Contract:
    """Of a head without an op and the function that says what it computes."""
    listed = {a.name: a for a in (*head.args, *head.tensors) if isinstance(a, heads.TensorArg) and a.name not in head.scratch}
    signature = inspect.signature(function)
    inputs = {n: listed[n] for n in signature.parameters if n in listed}
    written = {n: a for n, a in listed.items() if n not in signature.parameters}
    parameters = []
    for p in signature.parameters.values():
        if p.name in listed:
            parameters.append(p.replace(annotation="Tensor", default=p.empty, kind=p.POSITIONAL_OR_KEYWORD))
        elif p.default is not p.empty and type(p.default) in OPTIONS:
            parameters.append(p.replace(annotation=OPTIONS[type(p.default)], kind=p.POSITIONAL_OR_KEYWORD))
        else:
            raise ValueError(
                f"--reference {named}: {p.name} is no tensor of the head's args ({', '.join(listed)}), and as a number it lacks a default "
                f"({p.name}=1.0: the value that the kernel is judged at)"
            )
    if not inputs:
        raise ValueError(f"--reference {named}: none of its parameters is a tensor of the head's args, which are {', '.join(listed)}")
    options = {p.name: p.default for p in parameters if p.name not in listed}

    @functools.wraps(function)
    def reference(*args: Any) -> Any:
        return function(*args)

    reference.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]

    def outputs(**known: Any) -> dict[str, Meta | None]:
        sizes: dict[str, Any] = {n: known[n] for n in options}
        letter = next((known[n].dtype for n, a in inputs.items() if a.dtype == "T"), head.dtypes[0] if head.dtypes else "f32")
        for n, a in inputs.items():
            sizes.update(zip(a.dims, known[n].shape, strict=True))
        return {n: Meta(tuple(_size(d, sizes, n, head) for d in a.dims), letter if a.dtype == "T" else a.dtype) for n, a in written.items()}

    def work(p: Problem) -> Work:
        size = {n: p[n].nbytes for n in listed}
        return Work(sum(size[n] for n in inputs), sum(size[n] for n in (written or mutated)), {})

    dims = list(dict.fromkeys(d for a in inputs.values() for d in a.dims if not d.isdigit()))
    cases = _cases(head, inputs, dims, options, shapes)
    mutated = () if written else _changed(function, cases[-1])
    edges = _edges(head, cases, function, [d for d in dims if d not in options], mutated, fixed=not shapes)
    if not written and not mutated:
        raise ValueError(f"--reference {named}: every tensor of the head is a parameter of it and it changes none, so that the kernel would have no output")
    return Contract(reference, outputs=outputs, cases=[*cases, *edges], work=work, mutates=mutated, name=Path(head.path).stem)


def _size(name: str, sizes: Mapping[str, Any], tensor: str, head: heads.Head) -> int:
    if name.isdigit():
        return int(name)
    if name not in sizes:
        raise ValueError(f"{head.path}: {tensor} has a size {name} that no input has: give the reference a parameter {name} with a default")
    return int(sizes[name])


def _cases(
    head: heads.Head, inputs: Mapping[str, heads.TensorArg], dims: Sequence[str], options: Mapping[str, Any],
    shapes: Sequence[Mapping[str, int]]
) -> list[Case]:
    wanted: list[tuple[str, dict[str, int]]] = []
    for shape in shapes:
        if unknown := sorted(set(shape) - {*dims, *options}):
            raise ValueError(f"--shape {unknown[0]}={shape[unknown[0]]}: the head's inputs have the sizes {', '.join(dims) or 'none'}")
        if missing := [d for d in dims if d not in shape]:
            raise ValueError(f"--shape {','.join(f'{n}={v}' for n, v in shape.items())}: the size {missing[0]} is missing")
        wanted.append(("x".join(str(shape[d]) for d in dims), dict(shape)))
    if not wanted and len(dims) < 2:
        wanted = [(name, dict.fromkeys(dims, n)) for name, n in LONG]
    elif not wanted:
        wanted = [(name, {d: sizes[min(i, len(sizes) - 1)] for i, d in enumerate(dims)}) for name, sizes in SIZES]
    cases = []
    for letter in head.dtypes or ("f32",):
        for name, sizes in wanted:
            tensors = {
                n: Input(tuple(int(d) if d.isdigit() else sizes[d] for d in a.dims), letter if a.dtype == "T" else a.dtype)
                for n, a in inputs.items()
            }
            cases.append(Case(name, {**tensors, **options, **{n: v for n, v in sizes.items() if n in options}}))
    return cases


def _edges(
    head: heads.Head, cases: Sequence[Case], function: Callable[..., Any], dims: Sequence[str], mutated: Sequence[str], fixed: bool
) -> list[Case]:
    """The edge cases of each dtype, at one of the sizes of `cases`: the smallest of those that were given, else an odd one. Nothing writes
    into `expanded`."""
    edges = []
    letters = {n: a.dims for n, a in ((a.name, a) for a in (*head.args, *head.tensors) if isinstance(a, heads.TensorArg))}
    for dtype in dict.fromkeys(c.dtype for c in cases):
        own = [c for c in cases if c.dtype == dtype]
        wanted = ("small" if len(dims) > 1 else "odd") if fixed else ""
        base = next((c for c in own if c.name == wanted), min(own, key=lambda c: sum(prod(i.shape) for _, i in c.tensors())))
        tensors = dict(base.tensors())
        floating = [n for n, i in tensors.items() if DTYPES[i.dtype].floating and i.dtype not in ("f4e2m1x2", "f8e8m0", "c64")]

        def case(name: str, changed: Mapping[str, Input], base: Case = base) -> Case:
            return Case(f"{base.name} {name}", {**base.inputs, **changed}, tags=frozenset({"edge"}))

        edges += [case(said.format(n), {n: replace(tensors[n], fill=fill)}) for fill, said in EACH.items() for n in floating]
        edges += [case(said, {n: replace(tensors[n], fill=fill) for n in floating}) for fill, said in ALL.items() if floating]
        edges.append(case("at odd addresses", {n: replace(i, layout="offset") for n, i in tensors.items()}))
        for layout, said in LAYOUTS.items():
            fits = {
                n: replace(i, layout=layout) for n, i in tensors.items() if n in head.strided
                and len(i.shape) >= (1 if layout == "strided" else 2)
            }
            fits = {n: i for n, i in fits.items() if layout != "expanded" or n not in mutated}
            edges += [case(said, fits)] if fits else []
        for d in dims:
            empty = {
                n: replace(i, shape=tuple(0 if name == d else k for name, k in zip(letters[n], i.shape, strict=True)))
                for n, i in tensors.items()
            }
            edges += [edge for edge in [case(f"without {d}", empty)] if _takes(function, edge)]
    return edges


def layouts(subject: Subject, device: Device) -> list[Case]:
    """For a kernel of somebody's of an op of the package: layouts that the op's cases have only with options, dtypes or shapes that the
    kernel does not take, each at the smallest case that it takes."""
    cases = []
    small = [
        c for c in subject.op.cases if not c.tags & {"huge", "bench", "model"} and not any(isinstance(v, tuple) for v in c.inputs.values())
    ]
    for dtype in dict.fromkeys(c.dtype for c in small):
        own = [c for c in small if c.dtype == dtype]
        takes = [c for c in own if not _laid(c) and all(0 not in i.shape for _, i in c.tensors()) and subject.supports(c, device) is None]
        for layout, said in (("offset", "at odd addresses"), *LAYOUTS.items()):
            asked = [c for c in own if layout in _laid(c).values()]
            if not asked or any(subject.supports(_dense(c), device) is None for c in asked):
                continue
            names = [n for n, kind in _laid(asked[0]).items() if kind == layout]
            for base in sorted(takes, key=lambda c: sum(prod(i.shape) for _, i in c.tensors())):
                fits = {
                    n: i for n, i in base.tensors() if n in names
                    and sum(k > 1 for k in i.shape) >= (1 if layout in ("offset", "strided") else 2)
                }
                if fits:
                    changed = {n: replace(i, layout=layout) for n, i in fits.items()}
                    cases.append(Case(f"{base.name} {said}", {**base.inputs, **changed}, frozenset({"edge"}), base.why, base.part))
                    break
    return cases


def _laid(case: Case) -> dict[str, str]:
    """The tensors of a case that are not contiguous, and how they lie."""
    return {n: i.layout for n, i in case.tensors() if i.layout != "contiguous"}


def _dense(case: Case) -> Case:
    return replace(case, inputs={n: replace(v, layout="contiguous") if isinstance(v, Input) else v for n, v in case.inputs.items()})


def _takes(function: Callable[..., Any], case: Case) -> bool:
    """Whether the function has a result for a case at all: the largest element of nothing is none."""
    try:
        _called(function, case)
    except Exception:  # whatever it raises
        return False
    return True


def _called(function: Callable[..., Any], case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call it on a case's inputs: these as they were, and after."""
    import torch

    from rooftop.lab import inputs as making

    generator = torch.Generator().manual_seed(0)
    tensors = {n: making.tensor(i, generator, "cpu") for n, i in case.tensors()}
    before = {n: t.clone() for n, t in tensors.items()}
    function(**tensors, **{n: v for n, v in case.inputs.items() if n not in tensors})
    return before, tensors


def _changed(function: Callable[..., Any], case: Case) -> tuple[str, ...]:
    """The tensors that the function writes into."""
    import torch

    before, after = _called(function, case)
    return tuple(n for n, t in after.items() if not torch.equal(t, before[n]))


def headless(path: Path) -> bool:
    """Whether a file of CUDA C++ has no head: it is taken as it stands."""
    from rooftop.core import head_text

    return path.suffix in (".cu", ".cuh") and path.is_file() and not head_text.read(path).lstrip().startswith("/* rooftop")
