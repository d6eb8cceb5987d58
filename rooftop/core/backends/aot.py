"""Shared by the backends whose compiler runs in a separate process and produces a cubin: cuTile and CuTe DSL."""

from __future__ import annotations

import atexit
import base64
import contextlib
import importlib.util
import json
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rooftop.core import cubins, launch, parameters
from rooftop.core.backends.python_files import texts_of, texts_of_function
from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.child import LIMIT, ChildError, Process
from rooftop.core.compile import Binary, CompileError
from rooftop.core.cubins import AbsentCompiler, Cubin
from rooftop.core.head_parts import HeadError
from rooftop.core.head_text import shown
from rooftop.core.implementation import MachineCode, Prepared, Where
from rooftop.core.names import extra
from rooftop.core.spec import Launch, Meta, Problem


def found(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package
        return False


def constant(name: str, value: Any) -> Any:
    """A constant in the form in which a job carries it. Raises TypeError for a value that cannot be written as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise TypeError(f"the constant {name} is {value!r}; it must be a number, a text, True, False, None, or a list of these") from None
    return value


_PROCESSES: dict[tuple[str, str], Process] = {}  # by module and target
# by module and target: the text of each file when the process was first asked for one of its kernels
_IMPORTED: dict[tuple[str, str], dict[Path, str]] = {}
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Answer:
    """Of a compiler's process: machine code in base64, its one kernel, CPU seconds, facts of how it is launched."""

    code: str
    symbol: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


class AotImplementation(ModuleImplementation):
    """A module whose `launches` name Python functions that another process compiles. It can be imported without the language: the functions
    are plain ones, and the process that compiles them looks up what they call.

    Such a kernel runs only if a call names it, because its compiler may not be installed.

    `distributions` are the packages whose versions identify a compiler, `child` the module that compiles, `part` the cache's folder,
    `extra` what to install."""

    needed = ("supports", "choose", "launches")
    automatic = False
    language: str
    distributions: tuple[str, ...]
    child: str
    part: str
    extra: str

    @property
    def install(self) -> str:  # type: ignore[override]
        return extra(self.extra)

    def runs(self) -> Where:
        return Where("none", f"{self.language} kernels run on a GPU only")

    def where(self) -> Where:
        return self.runs()  # a cached cubin runs without the compiler

    @cached_property
    def module(self) -> ModuleType:
        with self._errors_name_the_file():
            return super().module

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        with self._errors_name_the_file():
            return super().launches(problem, config)

    @contextlib.contextmanager
    def _errors_name_the_file(self) -> Iterator[None]:
        """An error of the kernel's file, with its name: a launch that does not match its kernel, or a use of the language where it is not
        installed."""
        try:
            yield
        except (TypeError, AttributeError) as error:
            lines = [f":{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self.path)]
            raise HeadError(f"{shown(self.path)}{lines[-1] if lines else ''}: {error}") from error

    def rejects(self, problem: Problem) -> str | None:
        if reason := self.foreign(problem.device):
            return reason
        return self.module.supports(problem)

    def builds(self) -> str | None:
        """The package and its version must be found: a folder with the package's name that Python happens to find is not the package."""
        there = found(self.package) and cubins.versions(self.distributions[:1])
        return None if there else f"package {self.package} is not installed ({self.install})"

    def job(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> dict[str, Any]:
        """Everything that determines the machine code of a launch, as JSON. Raises TypeError if its arguments do not match the kernel."""
        raise NotImplementedError

    def refuses(self, target: str, compiler: str) -> str | None:
        """None, or why this compiler cannot compile for a target, and what to do."""
        return None

    def environment(self, target: str) -> dict[str, str]:
        """Environment variables that must be set before the language is imported."""
        return {}

    def ready(self, launch: Launch, cubin: Cubin, tensors: Mapping[str, Meta | None], problem: Problem) -> Launch:
        """The launch for the driver: arguments by position, with their types."""
        raise NotImplementedError

    def cubin(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> Cubin:
        """The machine code of a launch, from the cache or compiled now. Raises AbsentCompiler if it is neither cached nor can be compiled,
        CompileError."""
        target, (job, name) = problem.device.target, self._asked(launch, tensors, problem)
        missing = self.builds()
        compiler = "" if missing else cubins.versions(self.distributions)
        kept = cubins.read(self.part, name, compiler)
        if kept is not None:
            return kept
        if missing:
            raise AbsentCompiler(
                f"{self.name}: no cubin for sm_{problem.device.arch} is kept for this input in "
                f"{cubins.folder_of(self.part, name).parent.parent}, and {missing}"
            )
        if reason := self.refuses(target, compiler):
            raise AbsentCompiler(f"{self.name}: {reason}")
        with cubins.alone(self.part, name):
            kept = cubins.read(self.part, name, compiler)  # another process may have compiled it meanwhile
            if kept is not None:
                return kept
            made = self._compiled(launch, job, target, compiler)
            cubins.write(self.part, name, made)
        return made

    def _asked(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> tuple[dict[str, Any], str]:
        """The job of a launch and its key. Raises HeadError if the launch is not of a function of the file, or its arguments do not
        match."""
        with self._errors_name_the_file():
            if not isinstance(launch.kernel, FunctionType):
                raise TypeError(f"a launch is of {launch.kernel!r}; it must be of a function of this file")
            job = self.job(launch, tensors, problem)
            return job, self._key(launch, problem.device.target, job)

    def _key(self, launch: Launch, target: str, job: Mapping[str, Any]) -> str:
        """The key depends on the text of the kernel's functions, not on the whole file: a change of how configs are chosen changes no
        cubin."""
        function = launch.kernel.__name__
        if function not in self._texts:
            self._texts[function] = texts_of_function(self.path.read_text(encoding="utf-8"), function)
        return cubins.key(self._texts[function], target, job)

    @cached_property
    def _texts(self) -> dict[str, list[str]]:
        return {}

    def _compiled(self, launch: Launch, job: Mapping[str, Any], target: str, compiler: str) -> Cubin:
        try:
            answer = self._process(target).ask({"what": "compilation", "kernel": str(self.path), "target": target, **job}, LIMIT, Answer)
        except ChildError as error:
            raise CompileError(
                f"{shown(self.path)}: {launch.kernel.__name__} does not compile for {target} ({compiler}): {error}"
            ) from None
        return Cubin(base64.b64decode(answer.code), answer.symbol, compiler, answer.seconds, answer.facts)

    def _process(self, target: str) -> Process:
        """The compiler's process for a target. It imports a file once. If the file or a helper was edited since then, a new process
        replaces it; otherwise code of the old text would be cached as that of the new."""
        which, text = (self.child, target), cubins.key(texts_of(self.path.read_text(encoding="utf-8")))
        with _LOCK:
            if which not in _PROCESSES:
                _PROCESSES[which] = Process(Path(sys.executable), self.child, self.environment(target), what=self.language)
                _IMPORTED[which] = {}
                atexit.register(_PROCESSES[which].close)
            if _IMPORTED[which].setdefault(self.path, text) != text:
                _PROCESSES[which].close()
                _IMPORTED[which] = {self.path: text}
            return _PROCESSES[which]

    def verify(self, ready: Launch, cubin: Cubin) -> None:
        """Raises HeadError if the kernel has other parameters than the launch passes."""
        parameters.check(ready, cubin.code, cubin.symbol, self.path.name)

    def variant(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> str:
        return self._asked(launch, tensors, problem)[1]

    def machine_code(self, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> MachineCode:
        tensors = {**dict(problem.tensors), **scratch}
        made = self.cubin(launch, tensors, problem)
        with self._errors_name_the_file():
            ready = self.ready(launch, made, tensors, problem)
        self.verify(ready, made)
        threads = parameters.block_threads(made.code, made.symbol) or prod(ready.block)
        return MachineCode(made.code, made.symbol, launch.kernel.__name__, threads, ready.shared, prod(launch.grid), prod(ready.cluster))

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        tensors = {**dict(problem.tensors), **(self.scratch(problem, self.resolve(problem)[0]) if scratch is None else scratch)}
        return [self._prepared(one, tensors, problem, names, index) for one in launches]

    def _prepared(self, one: Launch, tensors: Mapping[str, Meta | None], problem: Problem, names: Sequence[str], index: int) -> Prepared:
        made = self.cubin(one, tensors, problem)
        with self._errors_name_the_file():
            ready = self.ready(one, made, tensors, problem)
        self.verify(ready, made)
        binary = Binary(made.code, {one.kernel.__name__: made.symbol}, problem.device.target)
        try:
            module = launch.Module(binary)
        except launch.LaunchError as error:
            raise launch.LaunchError(f"{self.name}: {error}; the cubin is of {made.compiler}: {self.driver()}") from None
        return module.prepare(replace(ready, kernel=one.kernel.__name__), names, index)

    def driver(self) -> str:
        """What to do if the driver cannot load a cubin."""
        return "update the driver, or compile with an older release of the compiler"
