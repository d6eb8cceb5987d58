"""Plain torch as an implementation: a module whose `run` fills the outputs by calling torch, which includes cuBLAS and cuDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.implementation import Runner, Where
from rooftop.core.spec import Launch, Meta, Problem, Step


class TorchImplementation(ModuleImplementation):
    """A module with `supports(problem)` and `run(inputs, outputs, scratch, config)`, optionally with `choose`, `scratch` and the rest of
    `ModuleImplementation`.

    `run` gets tensors by name with the problem's shapes and strides, writes every element of the outputs in place, and returns nothing; the
    options of the problem and runtime numbers are among the inputs. It runs wherever torch does, on torch's current stream."""

    backend = "torch"
    needed = ("supports", "run")
    package, install = "torch", "pip install 'torch>=2.11'"

    @property
    def demands(self) -> Mapping[str, Any]:
        return {}

    def runs(self) -> Where:
        return Where("torch")

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        return []

    def source(self, steps: Sequence[Step]) -> str:
        return self.digest

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        assert self.contract is not None, f"{self.name} has no contract"
        inputs = set(self.contract().inputs_of(problem))
        scratch = self.scratch(problem, config)
        options, metas = dict(problem.options), {**dict(problem.tensors), **scratch}
        run = self.module.run

        def call(stream: int, values: Sequence[Any]) -> None:
            given: dict[str, Any] = {**options}
            written: dict[str, Any] = {}
            aside: dict[str, Any] = {}
            for name, value in zip(names, values, strict=True):
                meta = metas.get(name)
                into = given if name in inputs or name not in metas else aside if name in scratch else written
                into[name] = value if value is None or meta is None else _seen(value, meta)
            run(given, written, aside, config)

        return call


def _seen(tensor: Any, meta: Meta) -> Any:
    """The tensor with the shape and strides that the problem gives it."""
    if tuple(tensor.shape) == meta.shape and tensor.stride() == meta.strides:
        return tensor
    return tensor.as_strided(meta.shape, meta.strides)
