"""Implementations that are Python modules: what the module says, whatever it launches."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from rooftop.core.backends.python_files import load_file, texts_of
from rooftop.core.digests import digest
from rooftop.core.head_parts import HeadError
from rooftop.core.head_text import shown
from rooftop.core.implementation import Implementation, Where
from rooftop.core.spec import Launch, Meta, Problem

_PRESENT: set[str] = set()  # packages that were found


def missing(package: str, install: str) -> str | None:
    """None, or that a package is not installed and how to get it."""
    if package in _PRESENT:
        return None
    if importlib.util.find_spec(package) is None:
        return f"package {package} is not installed ({install})"
    _PRESENT.add(package)
    return None


class ModuleImplementation(Implementation):
    """A file that is a module. It defines `needed`, and where it has something to say:

    prefers(problem) -> int                   how much it is the one to take (0: as the others; True is 1)
    configs(problem) -> Iterable              more configs, for tuning
    scratch(problem, config) -> dict[str, Meta]
    zeroed(problem, config) -> Sequence[str]  those of scratch that must hold zeros when the first launch begins
    explains(problem, config) -> str          what `rooftop.explain` says of a config: tile, why, predicted time
    DEMANDS                                   what the machine code must hold (docs/head.md, "Demands")
    UNORDERED                                 (a rung) why two runs may differ in their last bits: it adds by atomics

    `package` is what must be installed to run it, `install` how."""

    needed: tuple[str, ...]
    package: str
    install: str

    @cached_property
    def module(self) -> ModuleType:
        module = load_file(self.path)
        if lacks := [name for name in self.needed if not hasattr(module, name)]:
            raise HeadError(f"{shown(self.path)} lacks {', '.join(lacks)}: a {self.backend} kernel defines {', '.join(self.needed)}")
        return module

    def _said(self, name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self.module, name, otherwise)
        return found

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
        """Where it can be run without a GPU once its package is there."""
        raise NotImplementedError

    def supports(self, problem: Problem) -> str | None:
        if reason := missing(self.package, self.install):
            return reason
        if problem.device.arch < self.arch:
            return f"needs sm_{self.arch} or later; {problem.device.name} is sm_{problem.device.arch}"
        said: str | None = self.module.supports(problem)
        return said

    def prefers(self, problem: Problem) -> int:
        if missing(self.package, self.install):
            return 0
        return int(self._said("prefers", lambda p: 0)(problem))

    def configs(self, problem: Problem) -> list[Any]:
        found = [self.choose(problem)]
        listed: Iterable[Any] = self._said("configs", lambda p: [])(problem)
        return found + [c for c in listed if c not in found]

    def choose(self, problem: Problem) -> Any:
        return self._said("choose", lambda p: {})(problem)

    def config_of(self, values: Mapping[str, Any]) -> Any:
        made = getattr(self.module, "Config", None)
        return dict(values) if made is None else made(**values)

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        found: list[Launch] = self.module.launches(problem, config)
        return found

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        found: dict[str, Meta] = self._said("scratch", lambda p, c: {})(problem, config)
        return found

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        found: Sequence[str] = self._said("zeroed", lambda p, c: ())(problem, config)
        return tuple(found)

    def explains(self, problem: Problem, config: Any) -> str:
        said: str = self._said("explains", lambda p, c: "")(problem, config)
        return said

    @cached_property
    def digest(self) -> str:
        return digest(*texts_of(self.path.read_text(encoding="utf-8")))
