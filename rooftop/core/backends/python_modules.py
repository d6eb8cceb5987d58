"""Implementations that are Python modules, whatever they launch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from rooftop.core import normal_form
from rooftop.core.backends.python_files import load_file
from rooftop.core.choice import Chosen
from rooftop.core.digests import digest
from rooftop.core.head_parts import HeadError
from rooftop.core.head_text import shown
from rooftop.core.implementation import Implementation, Where
from rooftop.core.spec import Launch, Meta, Problem, Step

_PRESENT: set[str] = set()  # packages known to be installed


def missing(package: str, install: str) -> str | None:
    """None, or that a package is not installed and how to install it."""
    if package in _PRESENT:
        return None
    if importlib.util.find_spec(package) is None:
        return f"package {package} is not installed ({install})"
    _PRESENT.add(package)
    return None


class ModuleImplementation(Implementation):
    """A kernel that is a module. It defines the functions of `needed`, and optionally:

    configs(problem) -> Iterable              more configs, for tuning
    breaks(problem, config) -> str | None     the validity predicate: why a problem cannot run with a config
    scratch(problem, config) -> dict[str, Meta]
    zeroed(problem, config) -> Sequence[str]  scratch tensors that must be zero when the first launch starts
    for_any_rows(problem) -> Config | str     the config under `rooftop.invariant()`, with which the order of a row's sums follows from the row alone; or why
                                              it never does. Without it: the config of a fixed number of rows
    explains(problem, config) -> str          a sentence for `rooftop.explain`: tile, reason, predicted time
    DEMANDS                                   what the machine code must contain (docs/head.md, "Demands")
    UNORDERED                                 (a rung) why two runs may differ in their last bits: atomic additions

    `package` must be installed to run it; `install` says how."""

    needed: tuple[str, ...]
    package: str
    install: str

    @cached_property
    def module(self) -> ModuleType:
        module = load_file(self.path)
        if lacks := [name for name in self.needed if not hasattr(module, name)]:
            raise HeadError(f"{shown(self.path)} lacks {', '.join(lacks)}: a {self.backend} kernel defines {', '.join(self.needed)}")
        return module

    def _function_or(self, name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(self.module, name, otherwise)

    @property
    def demands(self) -> Mapping[str, Any]:
        return {"spills": 0, **getattr(self.module, "DEMANDS", {})}

    @property
    def unordered(self) -> str:  # type: ignore[override]
        return str(getattr(self.module, "UNORDERED", ""))

    def where(self) -> Where:
        reason = missing(self.package, self.install)
        return Where("none", reason) if reason else self.runs()

    def runs(self) -> Where:
        """How it can run without a GPU, if its package is installed."""
        raise NotImplementedError

    def rejects(self, problem: Problem) -> str | None:
        if absent := missing(self.package, self.install):
            return absent
        if reason := self.foreign(problem.device):
            return reason
        return self.module.supports(problem)

    def configs(self, problem: Problem) -> list[Any]:
        found = [self.choose(problem)]
        listed: Iterable[Any] = self._function_or("configs", lambda p: [])(problem)
        return found + [c for c in listed if c not in found]

    def configure(self, problem: Problem) -> Any:
        return self._function_or("choose", lambda p: {})(problem)

    def breaks(self, problem: Problem, config: Any) -> str | None:
        return self._function_or("breaks", lambda p, c: None)(problem, config)

    def varies(self, problem: Problem) -> str | None:
        found = self._function_or("for_any_rows", lambda p: None)(problem)
        return found if isinstance(found, str) else None

    def for_any_rows(self, problem: Problem, stand_in: Problem, chosen: Chosen | None = None) -> tuple[Any, str]:
        function = getattr(self.module, "for_any_rows", None)
        return super().for_any_rows(problem, stand_in, chosen) if function is None else (function(problem), "heuristic")

    def config_of(self, values: Mapping[str, Any]) -> Any:
        made = getattr(self.module, "Config", None)
        return dict(values) if made is None else made(**values)

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        return self.module.launches(problem, config)

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        return self._function_or("scratch", lambda p, c: {})(problem, config)

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        found: Sequence[str] = self._function_or("zeroed", lambda p, c: ())(problem, config)
        return tuple(found)

    def explains(self, problem: Problem, config: Any) -> str:
        return self._function_or("explains", lambda p, c: "")(problem, config)

    @cached_property
    def digest(self) -> str:
        hosts = [name for name in ("launches", "steps", "prepare", "run", "finish") if hasattr(self.module, name)]
        return digest(*(normal_form.reached_kernels(self.path, hosts) or [normal_form.of_function(self.path, name) for name in hosts]))

    def source(self, steps: Sequence[Step]) -> str:
        functions = [step.kernel if isinstance(step, Launch) else step.function for step in steps]
        return digest(*map(normal_form.of_object, functions))
