"""One kernel that fulfils an op, whatever it is written in: what it supports, which config it takes, what it launches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rooftop.core import head as heads
from rooftop.core import settings
from rooftop.core.contract import Contract
from rooftop.core.launch import resident_clusters
from rooftop.core.spec import TARGETS, Device, Launch, Meta, Problem, Step, TorchCall

TUNED = settings.PACKAGE / "tuned"


class Prepared(Protocol):
    """A launch whose addresses alone change from call to call."""

    def __call__(self, stream: int, addresses: Sequence[int]) -> None: ...


class Runner(Protocol):
    """One call's work, ready to be run again and again: ``runner(stream, values)`` with the tensors and runtime numbers of this call, in the order that
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


class Steps:
    """The runner of launches with calls of torch between them: those need tensors, so there is no `addressed`."""

    __slots__ = ("names", "steps")

    def __init__(self, steps: Sequence[Prepared | TorchCall], names: Sequence[str]) -> None:
        self.steps, self.names = tuple(steps), tuple(names)

    def __call__(self, stream: int, values: Sequence[Any]) -> None:
        memory = dict(zip(self.names, values, strict=True))
        addresses: list[Any] = [0 if v is None else v if isinstance(v, (int, float)) else v.data_ptr() for v in values]
        for step in self.steps:
            if isinstance(step, TorchCall):
                step.run(memory)
            else:
                step(stream, addresses)


class Where(NamedTuple):
    """Where an implementation can be run without the device it is for: "interpreter", "simt", "torch", "pallas", or "none" with the reason."""

    place: str
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """What one launch runs, compiled without a GPU."""

    cubin: bytes
    symbol: str  # the kernel's, in the cubin
    name: str  # the kernel's, as people know it
    threads: int  # of a block
    shared: int  # dynamic bytes of a block
    blocks: int  # of the grid
    cluster: int = 1  # blocks
    ptx: str = ""  # where the compiler made any


class UnsupportedError(ValueError):
    """A named implementation cannot take this input; the text says why."""


class Implementation:
    """Read from one file; `name` is the file's stem. Subclasses say how their backend reads, compiles and launches."""

    backend: str
    platform = "gpu"  # what it is for: "gpu", or "tpu"
    contract: Callable[[], Contract] | None = None  # that of its op
    automatic = True  # whether a call that names no kernel may take it
    unordered = ""  # why two runs may differ in their last bits, of a rung; what ships keeps the contract's promise

    def __init__(self, path: Path, op: str, name: str | None = None, arch: int | None = None) -> None:
        self.path, self.op, self.name, self.arch = path, op, name or path.stem, 80 if arch is None else arch

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why not."""
        raise NotImplementedError

    def prefers(self, problem: Problem) -> int:
        """How much it says of itself that it is the one to take here (a measured fact, written down by its author): 0 where it says nothing."""
        return 0

    def configs(self, problem: Problem) -> list[Any]:
        """Every valid config that tuning may try, the heuristic's choice first."""
        raise NotImplementedError

    def choose(self, problem: Problem) -> Any:
        """The heuristic's config: a pure function of the problem."""
        raise NotImplementedError

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        raise NotImplementedError

    def steps(self, problem: Problem, config: Any) -> Sequence[Step]:
        """The launches, with the calls of torch between them where there are any."""
        return self.launches(problem, config)

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        """Memory that the caller allocates for each call, by name."""
        return {}

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        """Those of `scratch` that must hold zeros when the first launch begins: the caller sees to it in each call."""
        return ()

    def explains(self, problem: Problem, config: Any) -> str:
        """What its author says of a config for people, on `rooftop.explain`'s page: the tile, why, the predicted time. "" where there is nothing to say."""
        return ""

    def stand_in(self, arch: int) -> Device:
        """The device that it is chosen for where there is none here: the card of `arch`, or of the lowest architecture that it takes."""
        return TARGETS[max(arch, self.arch)]

    def where(self) -> Where:
        """Where it can be run without a GPU."""
        return Where("none", f"{self.backend} kernels run on a GPU only")

    def builds(self) -> str | None:
        """None, or what is missing here to compile it, and how to get it."""
        return None

    def variant(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> str:
        """A text that tells the binary of a launch from the others that the kernel may run."""
        return f"{self.name} {launch.kernel}"

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        """What one call runs on GPU `index`, compiled and loaded; nothing is launched. `names`: the order of the values of a call (inputs, outputs,
        scratch, runtime options). Cheap where the kernels are compiled and loaded already."""
        return Launches(self.prepare(problem, self.launches(problem, config), names, index, self.scratch(problem, config)))

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        """The launches compiled and loaded on GPU `index`; `names` gives the order of the addresses. `scratch`: that of the config which launches so;
        None: of the config that is resolved for the problem."""
        raise NotImplementedError

    def machine_code(self, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> MachineCode:
        """One of the launches compiled for the problem's device. Raises what the compiler raises, HeadError where the arguments do not fit the kernel."""
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
        key: str | None = None
        for path, card in _tuned_paths(TUNED, problem.device.name, self.name):
            if not (table := _tuned_table(path)):
                continue
            key = key or problem.tune_key
            entry = table.get(key)
            if isinstance(entry, dict) and entry.get("digest") == self.digest:  # of other code it may be wrong
                values = entry.get("config")  # null: the heuristic was measured to be the best
                return None if values is None else (self.config_of(values), f"tuned on {card}")
        return None


@cache
def _tuned_paths(root: Path, device: str, name: str) -> tuple[tuple[Path, str], ...]:
    """The tables of an implementation, with the cards that they are of: the device's own, then that of its sibling."""
    from rooftop.core.devices import sibling, slug

    cards = [slug(n) for n in (device, sibling(device)) if n is not None]
    return tuple((root / card / f"{name}.json", card) for card in cards)


_TABLES: dict[Path, dict[str, Any]] = {}


def _tuned_table(path: Path) -> dict[str, Any]:
    """Signature -> entry (rooftop.lab.tune.tables says what it holds)."""
    if path not in _TABLES:
        _TABLES[path] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return _TABLES[path]


def device_of(index: int) -> Device:
    """The facts of GPU `index`, from torch."""
    import torch

    p = torch.cuda.get_device_properties(index)
    shared = getattr(p, "shared_memory_per_block_optin", 0) or {80: 163, 86: 99, 89: 99, 90: 227}.get(p.major * 10 + p.minor, 99) * 1024
    l2 = int(getattr(p, "L2_cache_size", 0))
    return Device(p.name, p.major * 10 + p.minor, p.multi_processor_count, int(shared), l2, resident_clusters(index) if p.major >= 9 else ())
