"""What a submission must compute: calls with shapes and seeds drawn at judging, and the judgement of what comes back."""

from __future__ import annotations

import base64
import inspect
import random
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

from rooftop.core import registry, settings
from rooftop.core.child import Process
from rooftop.core.contract import Contract, metas_of
from rooftop.core.public_arguments import arguments_of
from rooftop.core.spec import DTYPES, Case, Input, dtype_of
from rooftop.lab.check.compare import compare
from rooftop.lab.check.judgement import expect_given, judge_given
from rooftop.lab.inputs import make

Value = Any  # a tensor, or a number, a truth value or a text
ELEMENTS = 1 << 14  # of the tensors of a call without a GPU
MULTIPLE = 4.0  # of what plain torch errs in the same precision, where no contract says another
TRIES = 40  # draws of sizes until the op takes them


@dataclass(frozen=True)
class Call:
    """One call. `arguments`: in order, tensors first; `outputs`: name -> shape and dtype; `wrong`: what is wrong with results by name, or
    empty. `state`: parameters of a model; `made`: what a model is made with; `seed`: of what it draws while it is made."""

    name: str
    arguments: tuple[tuple[str, Value], ...]
    outputs: Mapping[str, tuple[tuple[int, ...], str]]
    wrong: Callable[[Mapping[str, Any]], str] = field(repr=False)
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    made: tuple[Value, ...] = ()
    seed: int = 0
    mutates: tuple[str, ...] = ()
    case: Case | None = field(default=None, repr=False)

    @property
    def tensors(self) -> dict[str, Any]:
        return {n: v for n, v in self.arguments if hasattr(v, "data_ptr")}

    @property
    def values(self) -> dict[str, Value]:
        return {n: v for n, v in self.arguments if not hasattr(v, "data_ptr")}


class Task(Protocol):
    name: str

    def groups(self, dtype: str | None, count: int, tensors: int | None = None) -> Iterator[list[Call]]:
        """Groups of calls of one shape each: random numbers, others, and the first with two elements exchanged (so that a result kept by
        address, sum or first elements shows)."""
        ...

    def close(self) -> None: ...


class OpTask:
    """An op of the package. Its reference runs in this process."""

    def __init__(self, name: str, plain: bool = True) -> None:
        """`plain`: for a submission that is called with tensors and numbers. Raises RegistryError for a name that is no op, ValueError for
        an op of several processes, or one of objects or lists where plain tensors are needed."""
        self.op: Contract = registry.op(name)
        if name.endswith("_ranks") or (plain and (self.op.objects or self.op.list_names)):
            raise ValueError(f"{name} takes or returns more than tensors and numbers: judge takes ops of plain tensors")
        self.name = name
        self.draw = random.Random(secrets.randbits(64))

    def close(self) -> None: ...

    def plain(self, dtype: str | None = None, tensors: int | None = None) -> list[Case]:
        """Small cases of ordinary numbers in plain layouts, of each set of tensors and ranks that of most different sizes, fewer
        dimensions first. `dtype`: float32 where none
        is asked for, if the op has it; `tensors`: how many there are. Raises ValueError where there is none."""
        dtype = dtype or ("f32" if "f32" in self.op.dtypes else self.op.dtypes[0])
        cases: dict[Any, Case] = {}
        for c in sorted(self.op.cases, key=lambda c: (len({e for _, v in c.tensors() for e in v.shape}), _elements(c))):
            given = list(c.tensors())
            ordinary = all(v.layout == "contiguous" and (v.fill == "normal" or v.fill.startswith("below ")) for _, v in given)
            sizes = {e for _, v in given for e in v.shape}
            grows = 1 not in sizes or (len(sizes) == 1 and all(len(v.shape) == 1 for _, v in given))
            if c.dtype == dtype and ordinary and 0 < _elements(c) <= ELEMENTS and 0 not in sizes and tensors in (None, len(given)):
                key = tuple((n, len(v.shape)) for n, v in given)
                if grows or key not in cases:
                    cases[key] = c
        if not cases:
            of = f" of {tensors} tensors" if tensors is not None else ""
            raise ValueError(f"{self.name} has no small plain case of {dtype}{of}; its dtypes: {', '.join(self.op.dtypes)}")
        return sorted(
            cases.values(),
            key=lambda c: (len(list(c.tensors())), all(not v.shape for _, v in c.tensors()), sum(len(v.shape) for _, v in c.tensors())),
        )

    def hidden(self, base: Case, most: int = ELEMENTS) -> Case:
        """The case with other sizes: equal ones stay equal."""
        every = {e for _, v in base.tensors() for e in v.shape}
        for _ in range(TRIES):
            sizes = {
                e: self.draw.randint(2, max(3, min(2 * e + 3, 400))) if e > 1 else self.draw.randint(2, 400) if every == {1} else e
                for e in every
            }
            if len({*sizes.values()}) < len(sizes):
                continue
            inputs = {n: resized(v, sizes) if isinstance(v, Input) else v for n, v in base.inputs.items()}
            shown = ", ".join("x".join(map(str, v.shape)) for v in inputs.values() if isinstance(v, Input))
            drawn = replace(base, name=f"hidden {shown}", inputs=inputs, tags=frozenset())
            try:
                if _elements(drawn) <= most and not self.op.idle(self.op.problem(drawn)):
                    tensors, options = make(self.op, drawn, "cpu", 0)
                    self._expected(tensors, options)
                    self._arguments(tensors, options)
                    return drawn
            except Exception:  # sizes that the op does not take together
                continue
        return base

    def groups(self, dtype: str | None, count: int, tensors: int | None = None) -> Iterator[list[Call]]:
        bases = self.plain(dtype, tensors)
        for i in range(count):
            yield self.group(self.hidden(bases[i % len(bases)]))

    def group(self, case: Case, kinds: Sequence[str] = ("a", "b", "swapped")) -> list[Call]:
        first, options = make(self.op, case, "cpu", secrets.randbits(40))
        other, others = make(self.op, case, "cpu", secrets.randbits(40))
        calls = {"a": (first, options), "b": (other, others), "swapped": (_swapped(first, self.draw), options)}
        return [self.call(case, *calls[k]) for k in kinds]

    def call(self, case: Case, tensors: dict[str, Any], options: dict[str, Any]) -> Call:
        options = self._usual(tensors, options)
        problem, expected = self._expected(tensors, options)
        copies = {n: None if t is None else t.clone() for n, t in tensors.items()}
        expected = replace(expected, tensors=copies)
        outputs = {n: (tuple(m.shape), m.dtype) for n in self.op.output_names if (m := problem.get(n)) is not None}

        def wrong(got: Mapping[str, Any]) -> str:
            values = {**dict.fromkeys(self.op.output_names), **{n: copies[n] for n in self.op.mutates}, **got}
            for n, v in judge_given(self.op, problem, expected, values).items():
                if not v.ok:
                    at = f" at [{', '.join(map(str, v.where))}]: {v.value!r}, expected {v.expected!r}" if v.where is not None else ""
                    return f"{n}: {v.message}{at}"
            return ""

        arguments = (*((n, t) for n, t in tensors.items() if t is not None), *((n, v) for n, v in options.items() if n in self._needed))
        return Call(case.id, arguments, outputs, wrong, mutates=tuple(self.op.mutates), case=case)

    def _expected(self, tensors: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
        problem = self.op.problem_of(metas_of(tensors), options)
        return problem, expect_given(self.op, problem, tensors, options)

    @property
    def _needed(self) -> set[str]:
        """The options that the public function has no default of."""
        public = inspect.signature(registry.public(self.name)).parameters if self.name in registry.op_names() else {}
        return {n for n in self.op.option_names if n in public and public[n].default is inspect.Parameter.empty}

    def _usual(self, tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The options as the public function has them by default, so that a submission of tensors alone can be judged."""
        try:
            results = self._arguments(tensors, {n: options[n] for n in self._needed})
        except (TypeError, ValueError, IndexError):
            results = {}
        return {n: results.get(n, v) for n, v in options.items()}

    def _arguments(self, tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """What the public function passes on, by name; nothing where it has other parameters. Raises what it raises for what it does not
        take."""
        if self.name not in registry.op_names() or self.op.objects:
            return {}
        arguments = {n: t for n, t in tensors.items() if t is not None} | options
        try:
            inspect.signature(public := registry.public(self.name)).bind(**arguments)
        except TypeError:
            return {}
        return dict(zip(self.op.kinds, arguments_of([self.op], public, **arguments)[1], strict=True))


def _elements(case: Case) -> int:
    return sum(prod(v.shape) for _, v in case.tensors())


def resized(spec: Input, sizes: Mapping[int, int]) -> Input:
    """The input with other sizes; whole numbers below one of them go with it."""
    fill = spec.fill
    if fill.startswith("below "):
        n = int(fill.removeprefix("below "))
        fill = f"below {sizes.get(n, n)}"
    return replace(spec, shape=tuple(sizes[e] for e in spec.shape), fill=fill)


def _swapped(tensors: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """Copies, two elements of each floating tensor exchanged, neither the first nor the last."""
    import torch

    copies = {n: None if t is None else t.clone(memory_format=torch.preserve_format) for n, t in tensors.items()}
    for t in copies.values():
        if t is not None and t.is_floating_point() and t.numel() > 3 and t.is_contiguous() and t.element_size() > 1:
            flat = t.view(-1)
            i, j = draw.sample(range(1, t.numel() - 1), 2)
            flat[[i, j]] = flat[[j, i]].clone()
    return copies


@dataclass(frozen=True)
class Held:
    """A tensor as another process says it."""

    dtype: str
    shape: list[int]
    data: str

    def tensor(self) -> Any:
        import torch

        if self.dtype not in DTYPES or any(n < 0 for n in self.shape):
            raise ValueError(f"a tensor of {self.dtype} {self.shape} is none")
        tensor = (
            torch.frombuffer(bytearray(base64.b64decode(self.data)), dtype=torch.uint8) if self.data else torch.empty(0, dtype=torch.uint8)
        )
        return tensor.view(getattr(torch, DTYPES[self.dtype].torch)).reshape(self.shape)


@dataclass(frozen=True)
class Drawn:
    """The answer of a reference: arguments in order, right results in float64 and at the same precision; a model's state, and what it is
    made with."""

    arguments: list[Held | int | float | bool | str | None]
    exact: list[Held]
    same: list[Held]
    state: dict[str, Held]
    made: list[int | float | bool | str | list[int] | None]
    sizes: dict[str, int]


class ReferenceTask:
    """`FILE.py` with `Model`, `get_inputs` and `get_init_inputs` (KernelBench's form), or `FILE.py:NAME`, a function, with `get_inputs`. It
    runs in a process of its own, which the submission's never sees. Shapes are those of the file (smaller by halves where `most` elements
    are exceeded), or what its get_inputs draws; seeds are drawn here."""

    def __init__(self, word: str, most: int = ELEMENTS) -> None:
        file, _, function = word.rpartition(":") if not word.endswith(".py") else (word, "", "")
        if not file.endswith(".py") or not Path(file).is_file():
            raise ValueError(
                f"--reference {word}: there is no such file; it is FILE.py (class Model, get_inputs) or FILE.py:FUNCTION (and get_inputs)"
            )
        self.name, self.most, self.word, self._word, self._function = Path(file).stem, most, word, file, function
        self._process = Process(
            Path(sys.executable), "rooftop.lab.judge.reference_child", {}, what=Path(file).name, slow=" (ROOFTOP_STEP_SECONDS)"
        )

    def close(self) -> None:
        self._process.close(patience=0.2)

    def groups(self, dtype: str | None, count: int, tensors: int | None = None) -> Iterator[list[Call]]:
        for _ in range(count):
            seed = secrets.randbits(31)
            yield [self._call(seed, seed), self._call(seed, secrets.randbits(31)), self._call(seed, seed, swap=True)]

    def _call(self, seed: int, drawn: int, swap: bool = False) -> Call:
        told = {
            "what": "drawing", "kernel": self._word, "function": self._function, "seed": seed, "drawn": drawn, "swap": swap,
            "most": self.most,
        }
        said = self._process.ask(told, settings.load().step_seconds, Drawn)
        arguments = tuple((f"input{i}", v.tensor() if isinstance(v, Held) else v) for i, v in enumerate(said.arguments))
        exact, same = [t.tensor() for t in said.exact], [t.tensor() for t in said.same]
        outputs = {f"output{i}": (tuple(t.shape), dtype_of(t.dtype)) for i, t in enumerate(same)}

        def wrong(got: Mapping[str, Any]) -> str:
            for (n, (_, kind)), right, plain in zip(outputs.items(), exact, same, strict=True):
                v = compare(got[n], right, plain, kind, MULTIPLE)
                if not v.ok:
                    at = f" at [{', '.join(map(str, v.where))}]: {v.value!r}, expected {v.expected!r}" if v.where is not None else ""
                    return f"{n}: {v.message}{at}"
            return ""

        sizes = "".join(f" {n}={v}" for n, v in said.sizes.items())
        shapes = ", ".join("x".join(map(str, v.shape)) for _, v in arguments if hasattr(v, "shape"))
        state = {n: t.tensor() for n, t in said.state.items()}
        made = tuple(said.made)
        return Call(f"{shapes}{sizes}", arguments, outputs, wrong, state, made, seed)
