"""Triton: a module whose `launches` name `@triton.jit` functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.implementation import MachineCode, Prepared, Where
from rooftop.core.spec import Launch, Meta, Problem


class TritonImplementation(ModuleImplementation):
    backend = "triton"
    needed = ("supports", "choose", "launches")
    package, install = "triton", "pip install 'triton>=3.6,<3.10'"

    def runs(self) -> Where:
        return Where("interpreter")

    def machine_code(self, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> MachineCode:
        from rooftop.core.triton_compat import compile_launch

        made = compile_launch(launch, {**dict(problem.tensors), **scratch}, problem.device.arch, problem.late_floats)
        return MachineCode(made.cubin, made.name, made.name, 32 * made.num_warps, made.shared, prod(launch.grid) * made.num_ctas, made.num_ctas, made.ptx)

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        from rooftop.core.triton_launch import prepare

        tensors = {**dict(problem.tensors), **(self.scratch(problem, self.resolve(problem)[0]) if scratch is None else scratch)}
        return [prepare(launch, tensors, names, index, problem.late_floats) for launch in launches]


class GluonImplementation(TritonImplementation):
    """Gluon: as Triton, with `@gluon.jit` functions. They name layouts, shared memory and the instructions of one architecture, which the file's
    name says, and run on a GPU only."""

    backend = "gluon"

    def runs(self) -> Where:
        return Where("none", "Gluon kernels run on a GPU only")
