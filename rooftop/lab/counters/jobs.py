"""What the hardware counters and the simulator count: subjects at small cases (`lines`) and at larger ones (`traffic`), the same for both.

A subject is a rung, a kernel or a file with an op at a case, or a `.cu` file whose head names no op with the sizes of its dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rooftop.core import head as heads
from rooftop.core import head_text, settings
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.call import Call
from rooftop.core.digests import digest
from rooftop.core.expressions import integer
from rooftop.core.spec import DTYPES, Case, Device, Input, Launch, Meta, Problem
from rooftop.lab import candidates
from rooftop.lab.candidates import Subject
from rooftop.lab.records.identity import DIGITS, Identity

TIERS = ("lines", "traffic")
FILES = tuple(settings.CHECKOUT / "tests" / "simt" / folder for folder in ("transpose", "patterns"))  # of heads without an op


def _mm(n: int) -> Case:
    return Case(f"{n} cubed", {"a": Input((n, n)), "b": Input((n, n)), "c": None, "alpha": 1.0, "beta": 1.0})


def _rows(r: int, c: int, dtype: str) -> Case:
    return Case(f"rows {r}x{c}", {"x": Input((r, c), dtype), "dim": 1})


CASES: Mapping[str, Mapping[str, tuple[Case, ...]]] = {  # op -> tier -> cases: those at which kernels are counted
    "matmul": {"lines": (_mm(512),), "traffic": (_mm(2048), _mm(4096))},
    "softmax": {
        "lines": (_rows(256, 4096, "f32"), _rows(256, 4096, "bf16")), "traffic": (_rows(1024, 8192, "f32"), _rows(4096, 8192, "f32"))
    },
}
SHAPES: Mapping[str, Mapping[str, tuple[Mapping[str, int], ...]]] = {  # dimensions of a head without an op -> tier -> their sizes
    "M N": {"lines": ({"M": 1024, "N": 1024},), "traffic": ({"M": 4096, "N": 4096},)},
    "N": {"lines": ({"N": 16384},), "traffic": ()},
}


@dataclass(frozen=True)
class Job:
    """One subject at one case. `subject`: a name that `rooftop.lab.candidates.find` knows, or a file without an op; then `shapes` are its
    case."""

    subject: str
    tier: str
    number: int  # of the case among those of its op and tier
    shapes: tuple[tuple[str, int], ...] = ()
    case_id: str = ""  # where the case is one of the op's own

    @cached_property
    def found(self) -> Subject | None:
        path = Path(self.subject)
        # the latter of tensors of fixed sizes
        alone = bool(self.shapes) or (path.suffix == ".cu" and not _is_rung(path) and self.file.head.op is None)
        return None if alone else candidates.find([self.subject])[0]

    @cached_property
    def file(self) -> CudaImplementation:
        path = Path(self.subject)
        return CudaImplementation(path_of(path), path.stem)

    @cached_property
    def implementation(self) -> CudaImplementation:
        one = self.file if self.found is None else self.found.implementation
        if not isinstance(one, CudaImplementation):
            raise ValueError(f"{self.subject} is no CUDA C++ kernel: source lines are counted for .cu files")
        return one

    @cached_property
    def case(self) -> Case | None:
        if self.found is None:
            return None
        return self.found.op.case(self.case_id) if self.case_id else CASES[self.found.op.name][self.tier][self.number]

    @property
    def title(self) -> str:
        return self.case.id if self.case else ", ".join(f"{k}={v}" for k, v in self.shapes)

    def call(self, device: Device) -> Call:
        """Of a case of an op. Raises UnsupportedError (a ValueError) where the kernel does not take it."""
        assert self.found is not None and self.case is not None
        return self.found.call(self.case, device)

    def problem(self, device: Device) -> Problem:
        """As the kernel sees it. Raises HeadError where the head does not fit, UnsupportedError where it does not take the case."""
        return problem_of_file(self.implementation.head, dict(self.shapes), device) if self.found is None else self.call(device).problem

    def launches(self, device: Device) -> list[Launch]:
        if self.found is not None:
            return self.call(device).launches
        problem = self.problem(device)
        return self.implementation.launches(problem, self.implementation.resolve(problem)[0])

    def identity(self, device: Device) -> Identity:
        if self.found is None:
            return Identity(digest(dict(self.shapes)), self.implementation.digest[:DIGITS])
        assert self.case is not None
        return self.found.identity(self.case, device)

    def memory(self, device: Device, place: str, seed: int = 1) -> dict[str, Any]:
        """Tensors by the names that launches use, and runtime options: inputs random, outputs and scratch NaN (integers: as they come)."""
        import torch

        from rooftop.lab import inputs

        if self.found is not None:
            call = self.call(device)
            assert self.case is not None
            tensors, options = inputs.make(self.found.op, self.case, place, seed)

            def empty(name: str, meta: Meta) -> Any:
                d = DTYPES[meta.dtype]
                t = torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, d.torch), device=place)
                return t.zero_() if name in call.zeroed else t.fill_(float("nan")) if d.floating else t

            return call.memory(call.given(tensors), {n: options[n] for n in self.found.op.runtime_options}, empty)  # type: ignore[misc]
        problem = self.problem(device)
        given: dict[str, Any] = {}
        generator = torch.Generator(device=place)
        generator.manual_seed(seed)
        config, _ = self.implementation.resolve(problem)
        for name, meta in (*problem.tensors, *self.implementation.scratch(problem, config).items()):
            given[name] = None if meta is None else inputs.tensor(Input(meta.shape, meta.dtype), generator, place)
        return given


def problem_of_file(head: heads.Head, shapes: Mapping[str, int], device: Device) -> Problem:
    """A problem of contiguous tensors as the args of a head without an op name them, with the sizes of their dimensions from `shapes`.

    A tensor of type T takes the first of the head's dtypes; options are numbers of `shapes` that no dimension is called by."""
    tensors: dict[str, Meta] = {}
    for arg in head.args:
        if isinstance(arg, heads.TensorArg):
            missing = [d for d in arg.dims if not d.isdigit() and d not in shapes]
            if missing:
                raise ValueError(f"{head.path}: {arg.name} has a dimension {missing[0]}: give its size (--shape {missing[0]}=1024)")
            dtype = head.dtypes[0] if arg.dtype == "T" else arg.dtype
            tensors[arg.name] = Meta(tuple(integer(d, dict(shapes)) for d in arg.dims), dtype)
    options = tuple((k, v) for k, v in shapes.items() if k not in dimensions(head))
    return Problem(Path(head.path).stem, tuple(tensors.items()), options, device)


def jobs_for(
    names: Sequence[str], tiers: Sequence[str] = TIERS, shapes: Mapping[str, int] | None = None, case: str | None = None
) -> list[Job]:
    """What the words mean, at the cases at which their ops are counted (with `case`, at that one of the op's own).

    No words: the ladders `sgemm_cuda` and `softmax_cuda` and, in a checkout, the transposes and access patterns of its tests. Raises
    ValueError for an op or dimensions without cases."""
    words = list(names)
    if not words:
        words = [
            "sgemm_cuda", "softmax_cuda", *(str(p.relative_to(settings.CHECKOUT)) for folder in FILES for p in sorted(folder.glob("*.cu")))
        ]
    found: list[Job] = []
    for word in words:
        path = Path(word)
        head = head_text.parse(path_of(path).read_text(encoding="utf-8"), word) if path.suffix == ".cu" else None
        if head is not None and head.op is None and not _is_rung(path):
            dims = " ".join(sorted(dimensions(head)))
            if shapes is None and dims not in SHAPES:
                raise ValueError(f"{word}: give the sizes of {dims} (--shape {dims.split()[0]}=1024)")
            found += [Job(word, t, n, tuple(s.items())) for t in tiers for n, s in enumerate((shapes,) if shapes else SHAPES[dims][t])]
            continue
        for s in candidates.find([word]):
            if case is not None:
                found.append(Job(s.name, tiers[0], 0, case_id=s.op.case(case).id))
            elif s.op.name in CASES:
                found += [Job(s.name, t, n) for t in tiers for n in range(len(CASES[s.op.name][t]))]
            else:
                raise ValueError(f"{s.name}: {s.op.name} has no cases to count at ({', '.join(CASES)} have): give --case")
    return list(dict.fromkeys(found))


def dimensions(head: heads.Head) -> set[str]:
    """The names of the sizes of a head's tensors."""
    return {d for a in head.args if isinstance(a, heads.TensorArg) for d in a.dims if not d.isdigit()}


def path_of(path: Path) -> Path:
    return path if path.is_absolute() or path.is_file() else settings.CHECKOUT / path


def _is_rung(path: Path) -> bool:
    return (path_of(path).parent / "ladder.toml").is_file()
