"""One kernel for an op, in any language: what it supports, which config it uses, what it launches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rooftop.core import head as heads
from rooftop.core import settings
from rooftop.core.choice import Chosen
from rooftop.core.contract import Contract
from rooftop.core.launch import resident_clusters
from rooftop.core.spec import TARGETS, Device, Launch, Meta, Problem, Step, TorchCall

TUNED = settings.PACKAGE / "tuned"


class Prepared(Protocol):
    """A launch in which only the addresses change from call to call."""

    def __call__(self, stream: int, addresses: Sequence[int]) -> None: ...


class Runner(Protocol):
    """The prepared work of one call: ``runner(stream, values)`` with the tensors and runtime numbers of a call, in the order that
    `Implementation.bind` was given (None for an absent tensor). Thread-safe."""

    def __call__(self, stream: int, values: Sequence[Any]) -> None: ...


class Launches:
    """The runner of a backend that launches kernels. `addressed` takes addresses instead of tensors (0 for an absent one) and does not use
    torch."""

    __slots__ = ("prepared",)

    def __init__(self, prepared: Sequence[Prepared]) -> None:
        self.prepared = tuple(prepared)

    def __call__(self, stream: int, values: Sequence[Any]) -> None:
        self.addressed(stream, [0 if v is None else v if isinstance(v, (int, float)) else v.data_ptr() for v in values])

    def addressed(self, stream: int, addresses: Sequence[Any]) -> None:
        for launch in self.prepared:
            launch(stream, addresses)


class Steps:
    """The runner of launches with calls of torch between them. Those need tensors, so there is no `addressed`."""

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
    """How an implementation can run without its device: "interpreter", "simt", "torch", "pallas", or "none" with the reason."""

    place: str
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """The machine code of one launch, compiled without a GPU."""

    cubin: bytes
    symbol: str  # of the kernel in the cubin
    name: str  # the kernel's readable name
    threads: int  # of a block
    shared: int  # dynamic bytes of a block
    blocks: int  # of the grid
    cluster: int = 1  # blocks
    ptx: str = ""  # if the compiler produces any


class UnsupportedError(ValueError):
    """A named implementation does not support this input; the text gives the reason."""


class Implementation:
    """A kernel, read from one file; `name` is the file's stem. Subclasses define how their backend reads, compiles and launches."""

    backend: str
    platform = "gpu"  # the kind of device: "gpu" or "tpu"
    contract: Callable[[], Contract] | None = None  # the contract of its op
    automatic = True  # whether it may be chosen if a call names no kernel
    # of a shipped kernel: what its family's `choose.py` says of this kernel alone
    weighed: Callable[[Problem], Chosen | str | None] | None = None
    own_instructions = False  # whether it uses instructions of its architecture that later ones do not have (wgmma)
    unordered = ""  # why two runs may differ in their last bits (rungs only); shipped kernels are as deterministic as the contract requires

    def __init__(self, path: Path, op: str, name: str | None = None, arch: int | None = None) -> None:
        self.path, self.op, self.name, self.arch = path, op, name or path.stem, 80 if arch is None else arch

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why the problem is not supported: the kernel's own, or that of the family's function."""
        reason = self.rejects(problem)
        return str(found) if reason is None and isinstance(found := self.chosen(problem), str) else reason

    def rejects(self, problem: Problem) -> str | None:
        """None, or the reason of the kernel's own file."""
        raise NotImplementedError

    def foreign(self, device: Device) -> str | None:
        """None, or why the kernel does not run on such a card, whatever the input is."""
        if device.gfx:
            return None if self.backend == "triton" else f"only Triton kernels run on AMD's cards; {device.name} is {device.gfx}"
        if device.arch < self.arch:
            return f"needs sm_{self.arch} or later; {device.name} is sm_{device.arch}"
        if device.arch > self.arch and self.own_instructions:
            return f"uses instructions that only sm_{self.arch} has; {device.name} is sm_{device.arch}"
        return None

    def configs(self, problem: Problem) -> list[Any]:
        """Every valid config that tuning may try; the heuristic's choice is first."""
        raise NotImplementedError

    def choose(self, problem: Problem) -> Any:
        """The config that the heuristic chooses, a pure function of the problem: that of the family's function, or that of the kernel's own
        file.

        Raises UnsupportedError if the family's function refuses the problem."""
        found = self.chosen(problem)
        if isinstance(found, str):
            raise UnsupportedError(f"{self.name} cannot take this input: {found}")
        return self.configure(problem) if found is None else self.own(found.config)

    def configure(self, problem: Problem) -> Any:
        """The config of the kernel's own file."""
        raise NotImplementedError

    def chosen(self, problem: Problem) -> Chosen | str | None:
        """What the family's function for the op says of this kernel alone; None if there is no such function."""
        return None if self.weighed is None else self.weighed(problem)

    def breaks(self, problem: Problem, config: Any) -> str | None:
        """None, or why a problem cannot run with this config: the validity predicate."""
        return None

    def varies(self, problem: Problem) -> str | None:
        """None, or why the bits of a row depend on the number of rows although the config does not."""
        return None

    def for_any_rows(self, problem: Problem, stand_in: Problem, chosen: Chosen | None = None) -> tuple[Any, str]:
        """The config under `rooftop.invariant()`, and its source: that of `stand_in`, a fixed number of rows. A kernel whose order of sums
        follows from a part of its config alone may choose the rest for the rows that there are."""
        return self.resolve(stand_in, None, chosen)

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        raise NotImplementedError

    def steps(self, problem: Problem, config: Any) -> Sequence[Step]:
        """The launches, and calls of torch between them if there are any."""
        return self.launches(problem, config)

    def scratch(self, problem: Problem, config: Any) -> dict[str, Meta]:
        """Temporary memory that the caller allocates for each call, by name."""
        return {}

    def zeroed(self, problem: Problem, config: Any) -> tuple[str, ...]:
        """The scratch tensors that must be zero when the first launch starts; the caller zeroes them in each call."""
        return ()

    def explains(self, problem: Problem, config: Any) -> str:
        """A sentence about a config for `rooftop.explain`: the tile, the reason, the predicted time. "" if there is none."""
        return ""

    def stand_in(self, arch: int) -> Device:
        """The device for which configs are chosen if there is none here: the card of `arch`, or of the lowest architecture that the kernel
        supports."""
        return TARGETS[max(arch, self.arch)]

    def where(self) -> Where:
        """How it can run without a GPU."""
        return Where("none", f"{self.backend} kernels run on a GPU only")

    def builds(self) -> str | None:
        """None, or which package is missing here to compile it, and how to install it."""
        return None

    def variant(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> str:
        """A text that identifies the binary of a launch among those that the kernel may run."""
        return f"{self.name} {launch.kernel}"

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        """Compiles and loads everything for one call on GPU `index`, and returns its runner; nothing is launched. `names`: the order of a
        call's values (inputs, outputs, scratch, runtime options). Fast if the kernels are compiled and loaded already."""
        return Launches(self.prepare(problem, self.launches(problem, config), names, index, self.scratch(problem, config)))

    def prepare(
        self, problem: Problem, launches: Sequence[Launch], names: Sequence[str], index: int, scratch: Mapping[str, Meta] | None = None
    ) -> list[Prepared]:
        """The launches, compiled and loaded on GPU `index`; `names` is the order of the addresses. `scratch`: that of the config used;
        None: that of the config resolved for the problem."""
        raise NotImplementedError

    def machine_code(self, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> MachineCode:
        """Compiles one of the launches for the problem's device. Raises the compiler's error, or HeadError if the arguments do not match
        the kernel's parameters."""
        raise NotImplementedError

    @property
    def demands(self) -> Mapping[str, Any]:
        raise NotImplementedError

    @property
    def head(self) -> heads.Head | None:
        return None

    @cached_property
    def digest(self) -> str:
        """Hash of all code of the kernel that runs on the device, whatever is launched of it. It does not depend on where the code stands,
        nor on code of the host."""
        raise NotImplementedError

    def source(self, steps: Sequence[Step]) -> str:
        """Hash of the code that these steps run, in the same manner."""
        raise NotImplementedError

    # -- configs: explicit, then tuned, then heuristic ------------------------------------------------------------

    def resolve(self, problem: Problem, explicit: Mapping[str, Any] | None = None, chosen: Chosen | None = None) -> tuple[Any, str]:
        """The config and its source. `chosen`: what the family's function has chosen for the problem, if it was asked already."""
        if explicit is not None:
            return self.config_of(explicit), "explicit"
        if tuned := self._tuned(problem):
            return tuned
        return self.choose(problem) if chosen is None else self.own(chosen.config), "heuristic"

    def own(self, config: Any) -> Any:
        """A config of a `choose.py` in the form that the kernel takes."""
        return self.config_of(config) if isinstance(config, Mapping) else config

    def config_of(self, values: Mapping[str, Any]) -> Any:
        return dict(values)

    def config_dict(self, config: Any) -> dict[str, Any]:
        return dict(dataclasses.asdict(config)) if dataclasses.is_dataclass(config) and not isinstance(config, type) else dict(config)

    def _tuned(self, problem: Problem) -> tuple[Any, str] | None:
        if self.name not in _tuned_names(TUNED):
            return None
        key: str | None = None
        for path, card in _tuned_paths(TUNED, problem.device.name, self.name):
            if not (table := _tuned_table(path)):
                continue
            key = key or problem.tune_key
            entry = table.get(key)
            if isinstance(entry, dict) and entry.get("digest") == self.digest:  # a config tuned for other code may be wrong
                values = entry.get("config")  # null: the heuristic was measured to be best
                return None if values is None else (self.config_of(values), f"tuned on {card}")
        return None


@cache
def _tuned_names(root: Path) -> frozenset[str]:
    """The implementations of which some card has a table."""
    return frozenset(path.stem for path in root.glob("*/*.json"))


@cache
def _tuned_paths(root: Path, device: str, name: str) -> tuple[tuple[Path, str], ...]:
    """The tables of tuned configs of an implementation, with the card of each: the device's own, then that of its sibling."""
    from rooftop.core.devices import sibling, slug

    cards = [slug(n) for n in (device, sibling(device)) if n is not None]
    return tuple((root / card / f"{name}.json", card) for card in cards)


_TABLES: dict[Path, dict[str, Any]] = {}


def _tuned_table(path: Path) -> dict[str, Any]:
    """Signature -> entry (rooftop.lab.tune.tables describes an entry)."""
    if path not in _TABLES:
        _TABLES[path] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return _TABLES[path]


def device_of(index: int) -> Device:
    """The facts of GPU `index`, read from torch."""
    import torch

    p = torch.cuda.get_device_properties(index)
    l2 = int(getattr(p, "L2_cache_size", 0))
    if torch.version.hip:
        return Device(
            p.name, 80, p.multi_processor_count, int(getattr(p, "shared_memory_per_block", 64 * 1024)), l2,
            gfx=p.gcnArchName.partition(":")[0]
        )
    shared = getattr(p, "shared_memory_per_block_optin", 0) or {80: 163, 86: 99, 89: 99, 90: 227}.get(p.major * 10 + p.minor, 99) * 1024
    return Device(
        p.name, p.major * 10 + p.minor, p.multi_processor_count, int(shared), l2, resident_clusters(index) if p.major >= 9 else ()
    )
