"""Triton: a module whose `launches`, or `steps`, name `@triton.jit` functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

from rooftop.core import invariance
from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.head_parts import HeadError
from rooftop.core.head_text import shown
from rooftop.core.implementation import MachineCode, Prepared, Runner, Steps, Where
from rooftop.core.spec import Launch, Meta, Problem, Step, TorchCall, contiguous_strides


class TritonImplementation(ModuleImplementation):
    backend = "triton"
    needed = ("supports", "choose")
    package, install = "triton", "pip install 'triton>=3.6,<3.10'"

    @cached_property
    def module(self) -> ModuleType:
        module = super().module
        if hasattr(module, "launches") == hasattr(module, "steps"):
            raise HeadError(
                f"{shown(self.path)}: a {self.backend} kernel defines `launches`, or `steps` where torch is called between them: one of "
                f"the two"
            )
        return module

    def runs(self) -> Where:
        return Where("interpreter")

    def steps(self, problem: Problem, config: Any) -> Sequence[Step]:
        if not hasattr(self.module, "steps"):
            return self.launches(problem, config)
        return self.module.steps(problem, config)

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        """The launches. If the module defines `steps`: those of them that are launches, one for each binary."""
        if not hasattr(self.module, "steps"):
            return super().launches(problem, config)
        found: dict[Any, Launch] = {}
        for step in self.steps(problem, config):
            if isinstance(step, Launch):
                found.setdefault(_kind(step), step)
        return list(found.values())

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        if not hasattr(self.module, "steps"):
            return super().bind(problem, config, names, index)
        steps = self.steps(problem, config)
        prepared = iter(self.prepare(problem, [s for s in steps if isinstance(s, Launch)], names, index, self.scratch(problem, config)))
        return Steps([s if isinstance(s, TorchCall) else next(prepared) for s in steps], names)

    def varies(self, problem: Problem) -> str | None:
        """Triton's layouts of a row, and with them the order of its sums, follow from whether 16 divides its address and the strides: rows
        with gaps must be in that as rows without; unless the module says how the order is kept."""
        if hasattr(self.module, "for_any_rows") or self.contract is None or (contract := self.contract()).rows is None or contract.exact:
            return super().varies(problem)
        rows = contract.rows(problem)
        for name, dims in {} if isinstance(rows, str) else invariance.rows_of(contract, problem).items():
            m, last = problem[name], max(dims, default=0)
            if name in contract.output_names or len(dims) == len(m.shape):
                continue
            whole = contiguous_strides(m.shape)[last] % 16 == 0
            if (m.align < 16 or any(m.strides[d] % 16 for d in dims)) if whole else m.strides[last] % 16 == 0:
                return f"rows of {name} start at other places than those without gaps, and the order of sums follows them"
        return None

    def variant(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> str:
        from rooftop.core.triton_compat import variant

        return variant(launch, tensors, problem.device.gfx or problem.device.arch, problem.runtime_floats)

    def machine_code(self, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> MachineCode:
        from rooftop.core.triton_compat import compile_launch

        arch = problem.device.gfx or problem.device.arch
        made = compile_launch(launch, {**dict(problem.tensors), **scratch}, arch, problem.runtime_floats)
        return MachineCode(
            made.cubin, made.name, made.name, 32 * made.num_warps, made.shared, prod(launch.grid) * made.num_ctas, made.num_ctas, made.ptx
        )

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        from rooftop.core.triton_launch import prepare

        tensors = {**dict(problem.tensors), **(self.scratch(problem, self.resolve(problem)[0]) if scratch is None else scratch)}
        return [prepare(launch, tensors, names, index, problem.runtime_floats) for launch in launches]


def _kind(launch: Launch) -> Any:
    """A key that is equal for launches with the same compiled code."""
    from rooftop.core.triton_compat import seen_as


    facts = tuple((name, seen_as(launch.kernel, name, value)) for name, value in launch.args.items())
    return launch.kernel, launch.warps, launch.stages, launch.pdl, facts


class GluonImplementation(TritonImplementation):
    """Gluon: like Triton, with `@gluon.jit` functions. They use layouts, shared memory and the instructions of one architecture, which the
    file's name gives, and run on a GPU only."""

    backend = "gluon"
    own_instructions = True

    def runs(self) -> Where:
        return Where("none", "Gluon kernels run on a GPU only")
