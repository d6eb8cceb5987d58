"""One kernel that fulfils an op, whatever it is written in: what it supports, which config it takes, what it launches."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from rooftop.core import head as heads
from rooftop.core import head_text, settings
from rooftop.core.compile import Binary, compile_cuda, with_headers
from rooftop.core.digests import digest, strip
from rooftop.core.expressions import names
from rooftop.core.head_text import shown, without_head
from rooftop.core.launch import Module, resident_clusters
from rooftop.core.parameters import check as check_parameters
from rooftop.core.spec import Device, Launch, Meta, Problem

TUNED = settings.PACKAGE / "tuned"


class Prepared(Protocol):
    """A launch whose addresses alone change from call to call."""

    def __call__(self, stream: int, addresses: Sequence[int]) -> None: ...


class Runner(Protocol):
    """One call's work, ready to be run again and again: ``runner(stream, values)`` with the tensors and late numbers of this call, in the order that
    `Implementation.bind` was given (None for a tensor that is absent). Safe to call from several threads."""

    def __call__(self, stream: int, values: Sequence[Any]) -> None: ...


class Launches:
    """The runner of a backend that launches kernels. `addressed` takes the tensors as addresses (0 for an absent one): it asks torch nothing."""

    __slots__ = ("prepared",)

    def __init__(self, prepared: Sequence[Prepared]) -> None:
        self.prepared = tuple(prepared)

    def __call__(self, stream: int, values: Sequence[Any]) -> None:
        self.addressed(stream, [0 if v is None else v if isinstance(v, (int, float)) else v.data_ptr() for v in values])

    def addressed(self, stream: int, addresses: Sequence[Any]) -> None:
        for launch in self.prepared:
            launch(stream, addresses)


class Where(NamedTuple):
    """Where an implementation can be run without a GPU: "interpreter", "simt", "torch", or "none" with the reason."""

    place: str
    reason: str | None = None


class UnsupportedError(ValueError):
    """A named implementation cannot take this input; the text says why."""


class Implementation:
    """Read from one file; `name` is the file's stem. Subclasses say how their backend reads, compiles and launches."""

    backend: str

    def __init__(self, path: Path, op: str, name: str | None = None, arch: int = 80) -> None:
        self.path, self.op, self.name, self.arch = path, op, name or path.stem, arch

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why not."""
        raise NotImplementedError

    def prefers(self, problem: Problem) -> bool:
        """Whether it says of itself that it is the one to take here (a measured fact, written down by its author)."""
        return False

    def configs(self, problem: Problem) -> list[Any]:
        """Every valid config that tuning may try, the heuristic's choice first."""
        raise NotImplementedError

    def choose(self, problem: Problem) -> Any:
        """The heuristic's config: a pure function of the problem."""
        raise NotImplementedError

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        raise NotImplementedError

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        """Memory that the caller allocates for each call, by name."""
        return {}

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        """Those of `scratch` that must hold zeros when the first launch begins: the caller sees to it in each call."""
        return ()

    def where(self) -> Where:
        """Where it can be run without a GPU."""
        return Where("none", f"{self.backend} kernels run on a GPU only")

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        """What one call runs on GPU `index`, compiled and loaded; nothing is launched. `names`: the order of the values of a call (inputs, outputs,
        scratch, late options). Cheap where the kernels are compiled and loaded already."""
        return Launches(self.prepare(problem, self.launches(problem, config), names, index, self.scratch(problem, config)))

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        """The launches compiled and loaded on GPU `index`; `names` gives the order of the addresses. `scratch`: that of the config which launches so;
        None: of the config that is resolved for the problem."""
        raise NotImplementedError

    @property
    def demands(self) -> Mapping[str, Any]:
        raise NotImplementedError

    @property
    def head(self) -> heads.Head | None:
        return None

    @cached_property
    def digest(self) -> str:
        """Hash of the code that runs: kernel and helpers, comments apart."""
        raise NotImplementedError

    # -- configs: explicit, then tuned, then heuristic ------------------------------------------------------------

    def resolve(self, problem: Problem, explicit: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        """The config and where it comes from."""
        if explicit is not None:
            return self.config_of(explicit), "explicit"
        if tuned := self._tuned(problem):
            return tuned
        return self.choose(problem), "heuristic"

    def config_of(self, values: Mapping[str, Any]) -> Any:
        return dict(values)

    def config_dict(self, config: Any) -> dict[str, Any]:
        return dict(dataclasses.asdict(config)) if dataclasses.is_dataclass(config) and not isinstance(config, type) else dict(config)

    def _tuned(self, problem: Problem) -> tuple[Any, str] | None:
        from rooftop.core.devices import sibling, slug

        for name in (problem.device.name, sibling(problem.device.name)):
            if name is None:
                continue
            entry = _tuned_table(TUNED / slug(name) / f"{self.name}.json").get(problem.tune_key)
            if isinstance(entry, dict) and entry.get("digest") == self.digest:  # of other code it may be wrong
                values = entry.get("config")  # null: the heuristic was measured to be the best
                return None if values is None else (self.config_of(values), f"tuned on {slug(name)}")
        return None


_TABLES: dict[Path, dict[str, Any]] = {}


def _tuned_table(path: Path) -> dict[str, Any]:
    """Signature -> entry (rooftop.lab.tune.tables says what it holds)."""
    if path not in _TABLES:
        _TABLES[path] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return _TABLES[path]


def _facts(launch: heads.LaunchHead) -> tuple[Any, ...]:
    names = [f.name for f in dataclasses.fields(launch)]
    return tuple(value for name, value in zip(names, dataclasses.astuple(launch), strict=True) if name != "chained")


def _formulas(head: heads.Head) -> dict[str, str]:
    """The names of `let`. One that stands for a tensor or a constant, and only for other names of `let`, is written out: a formula that moves to
    a header is the one that it was, and so is what was measured."""
    let, used = head.formulas(), {name for _, text in head.uses() for name in names(text)}
    other = {name: text for name, text in let.items() if text.isidentifier() and text not in let and name not in used}
    return {name: re.sub(r"\w+", lambda m: other.get(m[0], m[0]), text) for name, text in let.items() if name not in other}


class CudaImplementation(Implementation):
    """A `.cu` file, read through its head."""

    backend = "cuda"

    def __init__(self, path: Path, op: str, name: str | None = None, arch: int | None = None, text: str | None = None) -> None:
        self._text = head_text.read(path) if text is None else text
        self._head = head_text.parse(self._text, shown(path))
        super().__init__(path, op, name, max(arch or 0, self._head.arch))
        if arch and arch > self._head.arch:
            self._head = dataclasses.replace(self._head, arch=arch)
        self._loaded: dict[tuple[str, str], Module] = {}  # by target and kernel

    @property
    def head(self) -> heads.Head:
        return self._head

    @property
    def demands(self) -> Mapping[str, Any]:
        return {"spills": 0, **self._head.demands}

    def supports(self, problem: Problem) -> str | None:
        return self._head.supports(problem)

    def prefers(self, problem: Problem) -> bool:
        return self._head.prefers(problem)

    def configs(self, problem: Problem) -> list[Any]:
        chosen = dict(self._head.choose(problem))
        found = [chosen]
        for config in (self._head.config, *(c for _, c in self._choices()), *self._head.configs):
            if dict(config) not in found and self._head.is_valid(problem, config):
                found.append(dict(config))
        return found

    def _choices(self) -> Iterable[tuple[str, dict[str, Any]]]:
        return ((when, {**self._head.config, **constants}) for when, constants in self._head.choices)

    def choose(self, problem: Problem) -> dict[str, Any]:
        return dict(self._head.choose(problem))

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        return self._head.launches_for(problem, config)

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        return self._head.scratch_for(problem, config)

    def where(self) -> Where:
        return Where("simt")

    def compile(self, kernels: Sequence[str], target: str) -> Binary:
        source, name, target, wanted = self.compile_job(kernels, target)
        return compile_cuda(source, name=name, target=target, kernels=wanted)

    def compile_job(self, kernels: Sequence[str], target: str) -> tuple[str, str, str, tuple[str, ...]]:
        """What `compile_many` takes."""
        return self._text, shown(self.path), target, tuple(sorted(set(kernels)))

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        target = problem.device.target
        kernels = {launch.kernel for launch in launches}
        if any((target, kernel) not in self._loaded for kernel in kernels):
            binary = self.compile(tuple(kernels), target)  # all of them at once: most of the time goes into the headers
            for launch in launches:
                check_parameters(launch, binary.cubin, binary.names[launch.kernel], self._head.path)
            module = Module(binary)
            self._loaded.update({(target, kernel): self._loaded.get((target, kernel), module) for kernel in kernels})
        return [self._loaded[target, launch.kernel].prepare(launch, names, index) for launch in launches]

    @cached_property
    def digest(self) -> str:
        h = self._head
        facts: dict[str, Any] = {
            "args": [dataclasses.astuple(a) for a in h.args], "launches": [_facts(x) for x in h.launches], "requires": dict(h.requires),
            "config": dict(h.config), "choices": [[w, dict(c)] for w, c in h.choices], "scratch": {k: dataclasses.astuple(v) for k, v in h.scratch.items()},
        }  # fmt: skip
        if let := _formulas(h):
            facts["let"] = let
        if any(x.chained for x in h.launches):  # what a head does not say leaves its digest as it was
            facts["chained"] = [x.chained for x in h.launches]
        return digest(*(strip(text, "c") for text in with_headers(self._text)), facts)


class TritonImplementation(Implementation):
    """A Triton file: a module with `supports`, `configs`, `choose` and `launches` (rooftop.core.spec.Launch)."""

    backend = "triton"

    @cached_property
    def module(self) -> ModuleType:
        module = load_file(self.path)
        missing = [name for name in ("supports", "choose", "launches") if not hasattr(module, name)]
        if missing:
            raise heads.HeadError(f"{shown(self.path)} lacks {', '.join(missing)}: a Triton kernel defines supports, choose and launches")
        return module

    @property
    def demands(self) -> Mapping[str, Any]:
        return {"spills": 0, **getattr(self.module, "DEMANDS", {})}

    def supports(self, problem: Problem) -> str | None:
        if problem.device.arch < self.arch:
            return f"needs sm_{self.arch} or later; {problem.device.name} is sm_{problem.device.arch}"
        reason: str | None = self.module.supports(problem)
        return reason

    def prefers(self, problem: Problem) -> bool:
        rule: Callable[[Problem], bool] = getattr(self.module, "prefers", lambda p: False)
        return rule(problem)

    def configs(self, problem: Problem) -> list[Any]:
        found = [self.choose(problem)]
        listed: Callable[[Problem], Iterable[Any]] = getattr(self.module, "configs", lambda p: [])
        return found + [c for c in listed(problem) if c not in found]

    def choose(self, problem: Problem) -> Any:
        return self.module.choose(problem)

    def config_of(self, values: Mapping[str, Any]) -> Any:
        return self.module.Config(**values)

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        found: list[Launch] = self.module.launches(problem, config)
        return found

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        function: Callable[[Problem, Any], dict[str, Meta]] = getattr(self.module, "scratch", lambda p, c: {})
        return function(problem, config)

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        function: Callable[[Problem, Any], Sequence[str]] = getattr(self.module, "zeroed", lambda p, c: ())
        return tuple(function(problem, config))

    def where(self) -> Where:
        return Where("interpreter")

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        from rooftop.core.triton_compat import prepare

        tensors = {**dict(problem.tensors), **(self.scratch(problem, self.resolve(problem)[0]) if scratch is None else scratch)}
        return [prepare(launch, tensors, names, index) for launch in launches]

    @cached_property
    def digest(self) -> str:
        return digest(*(strip(without_imports(without_head(text)), "python") for text in _with_helpers(self.path.read_text(encoding="utf-8"))))


_IMPORTS = re.compile(r"^(?:from rooftop[\w.]* import (?:\([^)]*\)|[^\n(]*)|import rooftop[^\n]*)\n", re.M)


def without_imports(text: str) -> str:
    """A Python file without what it imports from the package: where a helper lies does not change what runs. The helpers' own text is hashed beside it."""
    return _IMPORTS.sub("", text)


_HELPER = re.compile(r"^from rooftop\.kernels\._device\.(\w+) import ", re.M)


def _with_helpers(text: str) -> list[str]:
    """A Triton file's text and those of the modules of kernels/_device that it takes from, and so on."""
    found, todo = {"": text}, [text]
    while todo:
        for name in _HELPER.findall(todo.pop()):
            if name not in found:
                found[name] = (settings.PACKAGE / "kernels" / "_device" / f"{name}.py").read_text(encoding="utf-8")
                todo.append(found[name])
    return [found[name] for name in sorted(found)]


def load_file(path: Path) -> ModuleType:
    """Import one file by its path, once."""
    name = "rooftop._files." + "_".join(path.with_suffix("").parts[-3:]).replace("-", "_")
    name += f"_{digest(str(path))[:6]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def device_of(index: int) -> Device:
    """The facts of GPU `index`, from torch."""
    import torch

    p = torch.cuda.get_device_properties(index)
    shared = getattr(p, "shared_memory_per_block_optin", 0) or {80: 163, 86: 99, 89: 99, 90: 227}.get(p.major * 10 + p.minor, 99) * 1024
    l2 = int(getattr(p, "L2_cache_size", 0))
    return Device(p.name, p.major * 10 + p.minor, p.multi_processor_count, int(shared), l2, resident_clusters(index) if p.major >= 9 else ())
