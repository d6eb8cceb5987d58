"""CUDA C++: a `.cu` file with a head, and a `.py` file of the same stem for what a head cannot express."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from rooftop.core import head as heads
from rooftop.core import head_text, tensor_maps
from rooftop.core.backends.gpu_only import needs_gpu
from rooftop.core.backends.python_files import load_file
from rooftop.core.choice import Chosen
from rooftop.core.compile import Binary, Job, compile_cuda
from rooftop.core.cuda_form import Definitions
from rooftop.core.digests import c_code, digest
from rooftop.core.expressions import ExpressionError
from rooftop.core.head_parts import RANGES, HeadError, MapArg, Unfit
from rooftop.core.head_text import shown
from rooftop.core.helpers import expanded
from rooftop.core.implementation import Implementation, MachineCode, Prepared, Where
from rooftop.core.launch import Module
from rooftop.core.parameters import check as check_parameters
from rooftop.core.spec import Launch, Meta, Problem, Step, TensorMap

GRID = (2**31 - 1, 65535, 65535)  # blocks of a grid at most


class CudaImplementation(Implementation):
    """A `.cu` file. If its head's `python` lists functions, a module of the same stem beside it defines them; each takes the head as its
    last argument:

        supports(problem, head) -> str | None     called if the head's own args and requires are satisfied
        choose(problem, head) -> Mapping | str    the constants; names of `[config]` may be omitted. Or why there are none: the problem is not
                                                  supported
        configs(problem, head) -> Iterable        more sets of constants, for tuning
        launches(problem, config, head) -> list[Launch]
        scratch(problem, config, head) -> dict[str, Meta]
        zeroed(problem, config, head) -> Sequence[str]
        for_any_rows(problem, head) -> Mapping | str  (as of a Python kernel: rooftop.core.backends.python_modules)"""

    backend = "cuda"

    def __init__(self, path: Path, op: str, name: str | None = None, arch: int | None = None, text: str | None = None) -> None:
        self._text = head_text.read(path) if text is None else text
        self._head = head_text.parse(self._text, shown(path), op=op)
        super().__init__(path, op, name, max(arch or 0, self._head.arch))
        if arch and arch > self._head.arch:
            self._head = dataclasses.replace(self._head, arch=arch)
        self._loaded: dict[tuple[str, str], Module] = {}  # by target and kernel
        self._sources: dict[tuple[str, ...], str] = {}  # by the kernels of a call
        self._last_support: tuple[Problem, str | None] | None = None  # the last result of `supports`
        self._last_choice: tuple[Problem, dict[str, Any]] | None = None  # the last result of `choose`
        self._last_launches: tuple[Problem, Mapping[str, Any], list[Launch]] | None = None  # the last result of the module's `launches`

    @property
    def head(self) -> heads.Head:
        return self._head

    @property
    def host_file(self) -> Path | None:
        """The Python file that belongs to it."""
        return self.path.with_suffix(".py") if self._head.python else None

    @cached_property
    def _module(self) -> ModuleType | None:
        path = self.host_file
        if path is None:
            return None
        listed = ", ".join(self._head.python)
        if not path.is_file():
            raise HeadError(f"{self._head.path}: python lists {listed}, and there is no {path.name} beside it")
        module = load_file(path)
        if missing := [name for name in self._head.python if not callable(getattr(module, name, None))]:
            raise HeadError(f"{shown(path)} lacks {', '.join(missing)}: the head of {self.path.name} lists {listed}")
        if extra := [name for name in head_text.PYTHON if name not in self._head.python and name in vars(module)]:
            raise HeadError(f"{shown(path)} defines {', '.join(extra)}, which the head of {self.path.name} does not list (python = [...])")
        return module

    @cached_property
    def _functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of the Python file beside it, by name."""
        return {name: getattr(self._module, name) for name in self._head.python}

    @property
    def demands(self) -> Mapping[str, Any]:
        return {"spills": 0, **self._head.demands}

    @cached_property
    def own_instructions(self) -> bool:  # type: ignore[override]
        return "wgmma" in (needs_gpu(self._text, self._head.folders) or "")

    def rejects(self, problem: Problem) -> str | None:
        if reason := self.foreign(problem.device):
            return reason
        if not self._head.python:
            return self._head.supports(problem)
        last = self._last_support  # another thread may replace it
        if last is None or last[0] is not problem:
            last = self._last_support = (problem, self._refusal(problem))
        return last[1]

    def _refusal(self, problem: Problem) -> str | None:
        """As `Head.supports`, with the module's functions in place of the head's."""
        try:
            if reason := self._head.refuses(problem, self._words):
                return reason
            function = self._functions.get("supports")
            if function is not None and (reason := function(problem, self._head)):
                return str(reason)
            # the family's function gives the constants, if there are any, and breaks() judges them
            if self.weighed is not None and "choose" not in self._head.python and self._head.config:
                return self._head.breaks(problem, self._head.config)
            return self._unfit(problem, self.configure(problem))
        except (Unfit, ExpressionError) as error:
            return str(error)

    @cached_property
    def _words(self) -> frozenset[str]:
        """The texts of one word in the Python file beside it: among them the names of the options and tensors that it reads."""
        return (
            frozenset(re.findall(r"[\"'](\w+)[\"']", self.host_file.read_text(encoding="utf-8"))) if self.host_file
            and self.host_file.is_file() else frozenset()
        )

    def _unfit(self, problem: Problem, config: Mapping[str, Any]) -> str | None:
        """None, or why a problem whose tensors the kernel supports cannot run with these constants."""
        try:
            if reason := self._head.breaks(problem, config):
                return reason
            self.launches(problem, config)
        except (Unfit, ExpressionError) as error:
            return str(error)
        return None

    def configs(self, problem: Problem) -> list[Any]:
        found = [self.choose(problem)]
        choices = ({**self._head.config, **constants} for _, constants in self._head.choices)
        function = self._functions.get("configs")
        listed = self._head.configs if function is None else [{**self._head.config, **config} for config in function(problem, self._head)]
        for config in (self._head.config, *choices, *listed):
            if dict(config) not in found and self._valid(problem, config):
                found.append(dict(config))
        return found

    def _valid(self, problem: Problem, config: Mapping[str, Any]) -> bool:
        """Whether tuning may try these constants: `valid` holds, and every launch fits its shared memory."""
        return (
            self._head.is_valid(problem, config)
            and all(x.shared <= problem.device.shared_per_block for x in self.launches(problem, config))
        )

    def configure(self, problem: Problem) -> dict[str, Any]:
        """The constants that the module or the head chooses."""
        function = self._functions.get("choose")
        if function is None:
            return dict(self._head.choose(problem))
        last = self._last_choice
        if last is None or last[0] is not problem:
            if isinstance(found := function(problem, self._head), str):
                raise Unfit(found)
            last = self._last_choice = (problem, {**self._head.config, **found})
        return dict(last[1])

    def own(self, config: Any) -> dict[str, Any]:
        return {**self._head.config, **(config if isinstance(config, Mapping) else dataclasses.asdict(config))}

    def breaks(self, problem: Problem, config: Mapping[str, Any]) -> str | None:
        return self._head.breaks(problem, config)

    def varies(self, problem: Problem) -> str | None:
        """Rows are read by whole vectors from the first boundary on, so that the terms of a thread follow from where a row starts; unless
        the Python code says how the order of sums is kept."""
        if (function := self._functions.get("for_any_rows")) is not None:
            found = function(problem, self._head)
            return found if isinstance(found, str) else None
        contract = None if self.contract is None else self.contract()
        if contract is None or contract.rows is None or contract.exact:  # exact results have no order
            return None
        rows = contract.rows(problem)
        inputs = () if isinstance(rows, str) else [n for n in rows if n not in contract.output_names]
        odd = [n for n in inputs if (m := problem.get(n)) is not None and m.align < 16 and len(m.shape) > 1]
        return f"rows of {odd[0]} start at different places of their 16 bytes, and the order of sums follows them" if odd else None

    def for_any_rows(self, problem: Problem, stand_in: Problem, chosen: Chosen | None = None) -> tuple[Any, str]:
        function = self._functions.get("for_any_rows")
        if function is None:
            return super().for_any_rows(problem, stand_in, chosen)
        return {**self._head.config, **function(problem, self._head)}, "heuristic"

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        function = self._functions.get("launches")
        if function is None:
            return self._head.launches_for(problem, config)
        made = self._last_launches
        if made is None or made[0] is not problem or made[1] != config:
            tensors = {**dict(problem.tensors), **self.scratch(problem, config)}
            found = self._with_full_maps(function(problem, config, self._head), tensors)
            made = self._last_launches = (problem, dict(config), found)
        return list(made[2])

    def _with_full_maps(self, launches: Iterable[Launch], tensors: Mapping[str, Meta | None]) -> list[Launch]:
        """Launches made by Python code, with tensor maps completed for the driver. Raises Unfit for a grid that no GPU supports, or a
        number that its type does not hold."""
        found = []
        for launch in launches:
            for extent, most in zip(launch.grid, GRID, strict=False):
                if not 1 <= extent <= most:
                    raise Unfit(f"{self._head.path}: a grid of {'x'.join(map(str, launch.grid))} blocks; at most {'x'.join(map(str, GRID))}")
            for (name, value), kind in zip(launch.args.items(), launch.types, strict=False):
                if kind in RANGES and type(value) is int and not RANGES[kind][0] <= value <= RANGES[kind][1]:
                    raise Unfit(f"{self._head.path}: {name} = {value} does not fit {kind}")
            maps: dict[str, Any] = {}
            for name, value in launch.args.items():
                if isinstance(value, TensorMap):
                    meta = tensors.get(value.tensor)
                    if meta is None:
                        raise HeadError(f"{self._head.path}: {name} is a map of {value.tensor!r}, and there is no such tensor")
                    if reason := tensor_maps.refused(value, meta):
                        raise Unfit(f"{self._head.path}: {name}: {reason}")
                    maps[name] = tensor_maps.settled(value, meta)
            found.append(dataclasses.replace(launch, args={**launch.args, **maps}) if maps else launch)
        return found

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        function = self._functions.get("scratch")
        return self._head.scratch_for(problem, config) if function is None else dict(function(problem, config, self._head))

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        function = self._functions.get("zeroed")
        return self._head.zeroed if function is None else tuple(function(problem, config, self._head))

    def explains(self, problem: Problem, config: Any) -> str:
        function = self._functions.get("explains")
        return "" if function is None else str(function(problem, config, self._head))

    def where(self) -> Where:
        return self._where

    @cached_property
    def _where(self) -> Where:
        maps = [
            arg for listed in (self._head.args, *(x.args or () for x in self._head.launches)) for arg in listed if isinstance(arg, MapArg)
        ]
        reason = "TMA runs on a GPU only: its args hold a tensor map" if maps else needs_gpu(self._text, self._head.folders)
        return Where("none", reason) if reason else Where("simt")

    def compile(self, kernels: Sequence[str], target: str) -> Binary:
        source, name, target, wanted, folders = self.compile_job(kernels, target)
        return compile_cuda(source, name=name, target=target, kernels=wanted, folders=folders)

    def compile_job(self, kernels: Sequence[str], target: str) -> Job:
        """The jobs for `compile_many`."""
        return self._text, shown(self.path), target, tuple(sorted(set(kernels))), self._head.folders

    def machine_code(self, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> MachineCode:
        made = self.compile([launch.kernel], problem.device.target)
        symbol = made.names[launch.kernel]
        check_parameters(launch, made.cubin, symbol, self._head.path)
        return MachineCode(made.cubin, symbol, launch.kernel, prod(launch.block), launch.shared, prod(launch.grid), prod(launch.cluster))

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        target = problem.device.target
        new = {launch.kernel for launch in launches if (target, launch.kernel) not in self._loaded}
        if new:
            binary = self.compile(tuple(new), target)  # all at once: most of the time is spent on the headers
            for launch in launches:
                if launch.kernel in new:
                    check_parameters(launch, binary.cubin, binary.names[launch.kernel], self._head.path)
            module = Module(binary)
            self._loaded.update({(target, kernel): module for kernel in new})
        return [self._loaded[target, launch.kernel].prepare(launch, names, index) for launch in launches]

    @cached_property
    def digest(self) -> str:
        return digest(c_code(expanded(self._text, self._head.folders)))

    def source(self, steps: Sequence[Step]) -> str:
        kernels = tuple(str(step.kernel) for step in steps if isinstance(step, Launch))
        if kernels not in self._sources:
            self._sources[kernels] = digest(self._definitions.reached(kernels), kernels)
        return self._sources[kernels]

    @cached_property
    def _definitions(self) -> Definitions:
        return Definitions(expanded(self._text, self._head.folders))
