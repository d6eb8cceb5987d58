"""A file without a head against a function of torch: `rooftop check my.cu --like torch.softmax`. It is called in the simulator, with inputs
that are shown.

What it computes is what its memory holds afterwards: tensors that it returns, or else those that it changed. The reference gets the others,
in order; all of them, as they were before, where it takes no fewer (`C = alpha A B + beta C`, `x = relu(x)`). Numbers go by their names.

A function's sizes are a few that differ; the shapes of its arrays, where nothing says them, are found among these: those that the reference
takes and that give as many elements as were written, and of these the ones with the right values, if there are any."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooftop.lab.interpret.numbers import tf32 as rounded

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.lab.simt.program_build import Source

TIMES = 4.0  # of the error that torch itself makes in the same precision
SHAPES = 6000  # ways to shape the arrays that are tried
SMALLER = 23, 19, 27, 3, 2  # sizes, where there are many; odd, as all that are assumed here: what is right with those alone that a block divides is wrong
NEAR = 1e-2  # of the largest value: values that are farther off come of other shapes
FLOOR = 2.0  # units in the last place at the largest value, where torch is exact
DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16", "u8": "uint8",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Compared:
    """One output of one call. `error`, `allowed`: the largest of all elements; `at`: the element of the error."""

    function: str
    inputs: tuple[str, ...]
    output: str
    error: float
    allowed: float
    at: tuple[int, ...]
    got: float
    want: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed

    def __str__(self) -> str:
        said = f"{self.function}({', '.join(self.inputs)}), {self.output}: error {self.error:.2g}, {self.allowed:.2g} allowed"
        return f"right: {said}" if self.right else f"wrong: {said}; at {list(self.at)} {self.got:.7g} in place of {self.want:.7g}"


def reference_of(text: str) -> Callable[..., Any]:
    """`torch.softmax`, or `my.py:function`. Raises ValueError."""
    if ":" in text:
        from rooftop.core.backends.python_files import load_file

        file, _, name = text.partition(":")
        function = getattr(load_file(Path(file)), name, None)
    else:
        package, *rest = text.split(".")
        if package != "torch":
            raise ValueError(f"--like {text}: it is a function of torch, as in torch.softmax, or FILE.py:FUNCTION")
        function = importlib.import_module(package)
        for part in rest:
            function = getattr(function, part, None)
    if not callable(function):
        raise ValueError(f"--like {text}: there is no such function")
    return function


def compared(
    path: Path, like: str, given: Sequence[str], folders: Sequence[Path], launch: dict[str, Any] | None, seed: int
) -> tuple[list[Compared], Any]:
    """Each output, and what the simulation came to. `launch`: of a kernel (`program.kernel_of`); None: the file's own functions are called.

    Raises ValueError where nothing comes back that the reference could be compared with."""
    function = reference_of(like)
    numbers: Mapping[str, float] = {}
    if launch is None:
        given, numbers = _shaped(path, function, like, given, folders, seed)
    source = source_for(path, given, folders, launch)
    calls, run = _simulated(source, seed)
    results: list[Compared] = []
    for name, before, after, outs in calls:
        outputs = outs or {k: after[k] for k in _changed(before, after)}
        if not outputs:
            raise ValueError(f"{path}: {name} returns no tensor and changes none")
        inputs = next(_inputs(before, after, function, like, numbers))
        results += _judged(name, function, like, inputs, outputs, numbers=numbers)
    if not results and not run.report.findings:
        raise ValueError(f"{path}: no call of it came to its end, so nothing was compared:\n{run.report.printed[:400]}")
    return results, run


def source_for(path: Path, given: Sequence[str], folders: Sequence[Path], launch: dict[str, Any] | None) -> Source:
    """A file that is called with what `--arg` gives: its functions or, with `launch` (`program.kernel_of`), one kernel. Raises ValueError
    for a program."""
    from rooftop.lab.simt import program

    source = program.kernel_of(path, folders, given=given, **launch) if launch else program.source_of(path, folders, given)[0]
    if not source.added:
        how = "for one kernel of it give --kernel, --grid, --block and --arg"
        raise ValueError(f"{path} has a main() of its own, which checks itself: rooftop simt {path}; {how}")
    return source


Arrays = dict[str, "Tensor"]
Call = tuple[str, Arrays, Arrays, Arrays]  # of which function; its arrays before and after; what it returned


def _simulated(source: Source, seed: int) -> tuple[list[Call], Any]:
    from rooftop.lab.simt import program

    marker = secrets.token_hex(8)
    added = source.added.replace("/*simt_shown*/", f'simt::shown_by = "{marker}";')
    run = program.run(replace(source, added=f'#define SIMT_SHOWN "{marker}"\n{added}'), seed=seed)
    return _calls(run.report.printed, marker), run


def _changed(before: Arrays, after: Arrays) -> list[str]:
    return [k for k in before if k in after and not _same(before[k], after[k])]


def _inputs(before: Arrays, after: Arrays, function: Callable[..., Any], like: str, numbers: Mapping[str, float]) -> Iterator[Arrays]:
    """What the reference gets: arrays that the call left as they were; else all. At least one, whether it takes it or not."""
    changed = _changed(before, after)
    others = {k: v for k, v in before.items() if k not in changed}
    for some in (others, before):
        with contextlib.suppress(ValueError):
            if some:
                called(function, like, list(some.values()), numbers)
                yield some
    yield others


def _shaped(
    path: Path, function: Callable[..., Any], like: str, given: Sequence[str], folders: Sequence[Path], seed: int
) -> tuple[Sequence[str], Mapping[str, float]]:
    """What is given, with the shapes of arrays that nothing says; and the numbers that the file's function gets.

    Raises ValueError where no shapes fit the reference."""
    from rooftop.lab.simt import program, program_caller

    source, _ = program.source_of(path, folders, given)
    text = source.texts[source.shown]
    offered = program_caller.of_arrays(text) if source.added and not source.device and not program_caller.torch_functions(text) else []
    if len(offered) != 1:
        return given, {}
    texts = {n.strip(): v.strip() for n, _, v in (g.partition("=") for g in given)}
    assumed = program_caller.sizes_of(offered[0], texts, text)
    free = [n for n, v in assumed.items() if v > 3 and n not in texts and not any(":" in t for t in texts.values())]
    # where there are many every array has room for them all, and is shown twice
    small = [f"{n}={v}" for n, v in zip(free, SMALLER if len(free) > 2 else [assumed[n] - 1 for n in free], strict=False)]
    given, texts = [*given, *small], texts | dict(w.split("=") for w in small)
    source, _ = program.source_of(path, folders, given)
    numbers = program_caller.numbers_of(offered[0], texts, text)
    open_ = [n for n in program_caller.arrays_of(offered[0]) if n not in texts]
    if not open_:
        return given, numbers
    sizes = [n for name, n in program_caller.sizes_of(offered[0], texts, text).items() if n > 1]
    calls, run = _simulated(source, seed)
    if not calls or not (changed := _changed(calls[0][1], calls[0][2])):
        return given, numbers  # what it came to says more
    _, before, after, _ = calls[0]
    written = {k: int((before[k] != after[k]).reshape(-1).nonzero().max()) + 1 for k in changed}
    by_name = {n: tuple(map(int, texts[n].partition(":")[2].partition(":")[0].split("x"))) for n in texts if n in before and ":" in texts[n]}
    best: tuple[float, dict[str, tuple[int, ...]]] | None = None
    for names in ([k for k in before if k not in changed], list(before)):
        ways = [
            [by_name[k]] if k in by_name else _ways(sizes * (1 + program_caller.squares(offered[0], text)), before[k].numel()) for k in names
        ]
        for shapes in itertools.islice(itertools.product(*ways), SHAPES) if names else ():
            tensors = [before[k].reshape(-1)[: math.prod(s)].reshape(s) for k, s in zip(names, shapes, strict=True)]
            with contextlib.suppress(ValueError):
                wants = called(function, like, [t.double() if t.is_floating_point() else t for t in tensors], numbers)
                if [w.numel() for w in wants][: len(changed)] != [written[k] for k in changed]:
                    continue
                off = max(
                    float(
                        (after[k].reshape(-1)[: w.numel()].double() - w.double().reshape(-1)).abs().max() / (w.double().abs().max() + 1e-30)
                    )
                    for k, w in zip(changed, wants, strict=False)
                )
                if best is None or (best[0] > NEAR and off <= NEAR):
                    best = off, {
                        **dict(zip(names, shapes, strict=True)), **{k: tuple(w.shape) for k, w in zip(changed, wants, strict=False)}
                    }
            if best is not None and best[0] <= NEAR:
                break
        if best is not None:
            break
    if best is None:
        if run.report.faults:
            return given, numbers
        counts = ", ".join(f"{n} = {v:g}" for n, v in numbers.items())
        why = f"no shapes of its arrays with {counts} fit {like} and the elements that it writes"
        raise ValueError(f"{path}: {why}: give them, as in --arg {open_[0]}=f32:48x40")
    return [*given, *(f"{n}=f32:{'x'.join(map(str, best[1].get(n, tuple(before[n].shape))))}" for n in open_)], numbers


def _ways(sizes: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Shapes of at most so many elements, of one to three of the sizes: in their order first."""
    every = [w for n in (2, 3, 1) for w in itertools.combinations(sizes, n)] + [w for n in (2, 3) for w in itertools.permutations(sizes, n)]
    return [w for w in dict.fromkeys(every) if math.prod(w) <= most]


def _same(a: Tensor, b: Tensor) -> bool:
    import torch

    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def _calls(printed: str, marker: str) -> list[Call]:
    import torch

    calls: list[Call] = []
    for line in printed.splitlines():
        words = line.split()
        if words[:1] != [marker]:
            continue
        if words[1] == "call":
            if calls and not calls[-1][2] and not calls[-1][3]:  # it took nothing of what it was given
                calls.pop()
            calls.append((words[2], {}, {}, {}))
        elif calls and words[1] in ("before", "after", "out"):
            shape = [int(n) for n in words[4].split("x")]
            if len(words) < 6 or len(words[5]) % 8:
                raise ValueError(f"{words[2]} of {calls[-1][0]} is too large to be compared here: smaller sizes by --arg")
            data = torch.frombuffer(bytearray.fromhex(words[5]), dtype=getattr(torch, DTYPES[words[3]])).reshape(shape)
            _, before, after, outs = calls[-1]
            {"before": before, "after": after, "out": outs}[words[1]][words[2]] = data
    return [c for c in calls if c[2] or c[3]]


def _judged(
    name: str, function: Callable[..., Any], like: str, inputs: Arrays, outputs: Arrays, tf32: bool = False,
    numbers: Mapping[str, float] = MappingProxyType({})
) -> list[Compared]:
    """`tf32`: what torch errs on inputs that are rounded to TF32 counts as its error in float32."""
    import torch

    def narrow(t: Tensor) -> Tensor:
        return torch.from_numpy(rounded(t.contiguous().numpy())) if tf32 and t.dtype == torch.float32 else t

    wide = [t.double() if t.is_floating_point() else t for t in inputs.values()]
    exact, same = (called(function, like, tensors, numbers) for tensors in (wide, [narrow(t) for t in inputs.values()]))
    results = []
    for (label, got), want, plain in zip(outputs.items(), exact, same, strict=False):
        if got.numel() != want.numel():
            sizes = "x".join(map(str, want.shape))
            raise ValueError(f"{name}: {label} has {got.numel()} elements, {like} gives {want.numel()} ({sizes}): give sizes by --arg")
        real, got64 = want.double().reshape(-1), got.double().reshape(-1)
        error, torchs = (got64 - real).abs().nan_to_num(float("inf")), (plain.double().reshape(-1) - real).abs().nan_to_num(0)
        unit = torch.finfo(got.dtype).eps if got.is_floating_point() else 0
        worst = int(error.argmax())
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), want.shape)) if want.dim() else ()
        allowed = max(TIMES * float(torchs.max()), FLOOR * unit * float(real.abs().max())) if real.numel() else 0.0
        shown = tuple(f"{k}: {str(t.dtype).removeprefix('torch.')} {'x'.join(map(str, t.shape))}" for k, t in inputs.items())
        results.append(Compared(name, shown, label, float(error.max()), allowed, place, float(got64[worst]), float(real[worst])))
    return results


def called(
    function: Callable[..., Any], like: str, tensors: Sequence[Tensor], numbers: Mapping[str, float] = MappingProxyType({})
) -> list[Tensor]:
    """The reference's outputs; a function that wants a dimension gets the last, a norm its weight and bias by name, and `numbers` those
    that it names."""
    said = None
    named: dict[str, Any] = {}
    with contextlib.suppress(TypeError, ValueError):  # one of torch's own has no signature
        named = {n: v for n, v in numbers.items() if n in inspect.signature(function).parameters}
    normal = {"normalized_shape": tensors[0].shape[-1:], **dict(zip(("weight", "bias"), tensors[1:], strict=False))} if tensors else {}
    for some, more in ((tensors, {}), (tensors, {"dim": -1}), (tensors[:1], normal)):
        if len(some) + len(more) < len(tensors):
            continue
        try:
            result = function(*some, **{**named, **more})
        except (TypeError, RuntimeError, IndexError) as error:
            said = said or error
            continue
        return [result] if hasattr(result, "reshape") else list(result)
    shapes = ", ".join("x".join(map(str, t.shape)) for t in tensors)
    raise ValueError(f"{like} cannot take tensors of {shapes}: {said}; --arg gives others, and --like FILE.py:FUNCTION a function of yours")
