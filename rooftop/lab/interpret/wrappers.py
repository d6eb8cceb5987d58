"""The functions of a Python file that launch its Triton kernels, and tensors to call them with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from rooftop.lab.interpret import guesses, shapes

POINTER = re.compile(r"(?:^|_)ptr(?:$|_)", re.I)  # what a tensor is called that older sources hand over by its address, as an int
OUTPUT = re.compile(r"(?:out|output|result|res|dst|y|z|c|o)(?:_\w+|ptr)?", re.I)  # what a parameter is called that a function writes into
USUAL = (  # values of numbers by the names that they go by
    (re.compile(r"eps(?:ilon)?"), 1e-5), (re.compile(r"(?:is_)?causal|inplace|training"), False), (re.compile(r"dim|axis"), -1),
    (re.compile(r"top_?k|(?:n|num)_?(?:experts_per_token|groups?)"), 2), (re.compile(r"(?:n|num)_?heads?|heads"), 4),
    (re.compile(
        r"(?:p|drop(?:out)?|prob(?:ability)?|temperature|alpha|beta|gamma|(?:\w+_)?scale|factor|(?:negative_)?slope|momentum|lr|learning_rate|weight_decay)(?:_\w+)?"
    ), 0.5),
)
ALSO = {"epsilon": "eps", "causal": "is_causal", "softmax_scale": "scale", "sm_scale": "scale"}  # names of torch's for others'
COUNTED = re.compile(r"dim|axis|(?:n|num|max)_\w+|(?:\w+_)?(?:size|dim|len|limit)|padding|stride", re.I)  # what a number is called that has no type
NUMBERS = re.compile(r"int|float|bool|str|dtype|torch\.dtype", re.I)
TARGET = re.compile(r"(?:\w+_)?(?:labels?|targets?|ind(?:ex|ices)|idx|ids)", re.I)  # what a parameter is called that holds whole numbers
# Tensors by the letters of their sizes: of one, two, three and more parameters, likely ones first. Targets of a loss are whole numbers.
ONE = ("mn",), ("m",), ("bhmd",), ("bmd",)
TWO = ("mn", "mn"), ("mk", "kn"), ("mn", "n"), ("m", "m"), ("bmk", "bkn"), ("bhmd", "bhmd"), ("mn", "m:i64"), ("mn", "k:kernel"), ("bdm", "hd:taps")
THREE = (
    ("mn", "mn", "mn"), ("mn", "n", "n"), ("mk", "kn", "n"), ("m", "m", "m"), ("bhmd", "bhmd", "bhmd"), ("md", "md", "md"),
    ("bmd", "bmd", "bmd"),
    ("mk", "nk", "n"),
)
SIZES = (  # odd ones first: what a file's own checks refuse is told from what is wrong
    {"m": 33, "n": 100, "k": 40, "b": 2, "h": 3, "d": 32}, {"m": 64, "n": 128, "k": 32, "b": 2, "h": 2, "d": 64},
    {"m": 128, "n": 256, "k": 64, "b": 1, "h": 2, "d": 16},
)

LARGER = {**SIZES[-1], "d": 64}  # where smaller ones are wrong: a block may be larger than they are


def kernels(names: Mapping[str, Any]) -> dict[str, Any]:
    """The `@triton.jit` functions among a file's names, those within `@triton.autotune` and `@triton.heuristics` too."""
    from triton.runtime.jit import KernelInterface

    return {n: v for n, v in names.items() if isinstance(v, KernelInterface)}


def jit_of(kernel: Any) -> Any:
    """The `@triton.jit` function itself."""
    while not hasattr(kernel, "raw_src"):
        kernel = kernel.fn
    return kernel


def functions(names: Mapping[str, Any], module: str, inner: bool = False) -> dict[str, Callable[..., Any]]:
    """The functions of a file that launch its kernels, themselves or by others of its functions; `apply` of classes of autograd. Of those
    that others of them call none is among them, or with `inner` those alone."""
    launch = set(kernels(names))
    own = {n: f for n, f in names.items() if inspect.isfunction(f) and f.__module__ == module}
    classes: dict[str, Any] = {n: c for n, c in names.items() if _of_autograd(c, module)}
    used = {n: _names(f) for n, f in own.items()} | {n: _names(inspect.getattr_static(c, "forward")) for n, c in classes.items()}
    launching = {n for n, u in used.items() if {"triton", "jit"} <= u}  # their kernels are inside them
    while new := {n for n, u in used.items() if n not in launching and u & (launch | launching)}:
        launching |= new
    called = {n for f in launching for n in used[f] if n in launching and n != f}
    chosen = called if inner else launching - called or launching
    return {n if n in own else f"{n}.apply": own[n] if n in own else classes[n].apply for n in used if n in chosen}


def _names(function: Any) -> set[str]:
    """What a function's code names, its inner functions' too."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    names: set[str] = set()
    todo = [function.__code__] if hasattr(function, "__code__") else []
    while todo:
        code = todo.pop()
        names |= set(code.co_names)
        todo += [c for c in code.co_consts if inspect.iscode(c)]
    return names


def _of_autograd(value: Any, module: str = "") -> bool:
    """Whether it is a function of autograd, of this module; a layer has `forward` and `apply` too, which are others."""
    from torch.autograd import Function

    own = inspect.isclass(value) and issubclass(value, Function) and "forward" in vars(value)
    return own and module in ("", value.__module__)


def resolve(names: Mapping[str, Any], word: str, path: Any) -> Any:
    """`softmax`, or `Softmax.apply`. Raises ValueError."""
    from rooftop.core.names import hint

    first, *rest = word.split(".")
    value: Any = names.get(first)
    if value is None:
        choices = [n for n, f in names.items() if inspect.isfunction(f) or n in kernels(names)]
        raise ValueError(
            f"{path} has no {word!r}; {hint(word, choices)}" if choices else f"{path} has no {word!r}, and no function that launches a kernel"
        )
    for part in rest:
        value = getattr(value, part, None)
    if _of_autograd(value):
        value = value.apply
    if not callable(value):
        raise ValueError(f"{path}: {word} is no function")
    return value


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Those that must be given. A context of autograd is none."""
    target = function
    if getattr(function, "__name__", "") == "apply" and hasattr(getattr(function, "__self__", None), "forward"):
        target = function.__self__.forward  # type: ignore[attr-defined]
    try:
        listed = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return []
    listed = listed[1:] if target is not function else listed
    return [p for p in listed if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def calls(
    function: Callable[..., Any], own: Mapping[str, Any], seed: int, sizes: Mapping[str, int], dtype: str = "float32", usual: bool = False
) -> Iterator[dict[str, Any]]:
    """Arguments by name that a call may take, likely ones first, with what is given. `usual`: a number has the value that is usual for its
    name; nothing that is compared with a reference, which does not have it, may assume one. Raises ValueError where a number is missing."""
    listed = parameters(function)
    assumed = {p.name: v for p in listed if usual for v in _usual(p)[:1]}
    extents = _extents([p for p in listed if p.name not in {**assumed, **own}]) if usual else {}
    own = {**assumed, **extents, **own}
    own = {**{p.name: (sizes["n"],) for p in listed if p.name == "normalized_shape"}, **own}
    more = {n: v for n, v in own.items() if n not in [p.name for p in listed]}
    open_ = [p for p in listed if p.name not in own]
    if number := next((p for p in open_ if _number(p) and not (usual and POINTER.search(p.name))), None):
        raise ValueError(f"{_said(function)} wants the number {number.name}: --arg {number.name}=...")
    targets = [TARGET.fullmatch(p.name) is not None for p in open_]
    if extents:  # sizes are given apart: as many elements as they say
        numbers = [own[n] for n in extents if isinstance(own[n], int)]
        elements = min(max(prod(numbers), 64), guesses.MOST)
        small = min((n for n in numbers if n > guesses.FEW), default=guesses.FEW)  # below any size
        flat = iter(_tensors(["e:i64" if one else "e" for one in targets], {**sizes, "e": elements, "n": small}, dtype, seed))
        yield {**{p.name: own[p.name] if p.name in own else next(flat) for p in listed}, **more}
        return
    own_shapes = [shapes.said(function, [p.name for p in open_], last, sizes is LARGER) for last in (False, True)] if usual and open_ else []
    for shape in [f for i, f in enumerate(own_shapes) if f is not None and f not in own_shapes[:i]]:
        family: Sequence[str] = [f"{letters}:i64" if one else letters for letters, one in zip(shape[0], targets, strict=True)]
        tensors = iter(_tensors(family, {"n": 3, **shape[1]}, dtype, seed))
        yield {**{p.name: own[p.name] if p.name in own else next(tensors) for p in listed}, **more}
    for family in sorted(families(len(open_)), key=lambda f: [letters.endswith(":i64") for letters in f] != targets if any(targets) else 0):
        tensors = iter(_tensors(family, sizes, dtype, seed))
        yield {**{p.name: own[p.name] if p.name in own else next(tensors) for p in listed}, **more}


def _number(p: inspect.Parameter) -> bool:
    return (COUNTED.fullmatch(p.name) if p.annotation is p.empty else NUMBERS.fullmatch(_said(p.annotation))) is not None


def unsure(function: Callable[..., Any]) -> list[str]:
    """Parameters behind the first of which nothing says whether they are tensors."""
    return [p.name for p in parameters(function)[1:] if p.annotation is p.empty]


def _extents(listed: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Sizes for whole numbers that have no usual value, as those of `solve(x: Tensor, y: Tensor, rows: int, columns: int)`."""
    whole = [p.name for p in listed if _number(p) and (p.annotation is p.empty or _said(p.annotation) == "int") and not POINTER.search(p.name)]
    return {**guesses.whole_numbers(whole)}


def takes(reference: Callable[..., Any]) -> set[str]:
    """The names of a function's parameters that may be given by name."""
    try:
        return set(inspect.signature(reference).parameters)
    except (TypeError, ValueError):  # of a builtin, whose documentation begins with it
        return set(re.findall(r"(\w+)=", (reference.__doc__ or "").strip().partition("->")[0]))


def agreed(function: Callable[..., Any], reference: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers that a function must be given and its reference takes too, with their usual values, by the names of each."""
    known = takes(reference)
    pairs = [
        (p.name, theirs, value) for p in parameters(function) for name, value in USUAL if name.fullmatch(p.name)
        for theirs in [ALSO.get(p.name, p.name)] if theirs in known
    ]
    return {ours: value for ours, _, value in pairs}, {theirs: value for _, theirs, value in pairs}


def _usual(p: inspect.Parameter) -> list[Any]:
    if whole := re.fullmatch(r"(?:typing\.)?tuple\[((?:int(?:, ?)?)+)\]", _said(p.annotation) if isinstance(p.annotation, str) else str(p.annotation), re.I):
        return [(16,) * whole[1].count("int")]  # of blocks, as a rule
    if not _number(p) and not (p.annotation is p.empty and p.name in ("causal", "is_causal", "sm_scale", "softmax_scale")):
        return []
    return [value for name, value in USUAL if name.fullmatch(p.name)]


def families(count: int) -> tuple[tuple[str, ...], ...]:
    """The tensors of so many parameters, by the letters of their sizes."""
    if count <= 3:
        return ((()), ONE, TWO, THREE)[count] if count else ((),)
    return ("mn",) * count, ("mn", *("n",) * (count - 1)), ("bhmd",) * count, ("m",) * count


def _tensors(family: Sequence[str], sizes: Mapping[str, int], dtype: str, seed: int) -> list[Any]:
    import torch

    drawn = torch.Generator().manual_seed(seed)
    tensors = []
    for letters in family:
        letters, _, kind = letters.partition(":")
        shape = [sizes[letter] for letter in letters]
        if kind == "i64":
            tensors.append(torch.randint(0, sizes["n"], shape, generator=drawn).cuda())
        else:
            shape = {"kernel": [5], "taps": [*shape, 5]}.get(kind, shape)
            tensors.append(torch.randn(shape, generator=drawn).to(getattr(torch, dtype)).cuda())
    return tensors


def _said(value: Any) -> str:
    return value if isinstance(value, str) else str(getattr(value, "__name__", value))
