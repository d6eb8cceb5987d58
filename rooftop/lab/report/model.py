"""What pages show beside times: plain, without torch, records or files. Templates read it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooftop.core.spec import Device
from rooftop.lab.report.drawings.canvas import Picture


@dataclass(frozen=True)
class Prediction:
    name: str
    predicted: float
    measured: float | None
    verdict: str  # hit, too high, too low, not measured, not counted


@dataclass(frozen=True)
class Checked:
    """Checks of one subject in one place: how many cases were right, which were not, how many could not run there."""

    where: str
    ok: int
    failed: tuple[tuple[str, str], ...]  # case, message
    skipped: int
    why: str  # the commonest reason for skipping


@dataclass(frozen=True)
class ToolRun:
    """One tool of compute-sanitizer on one subject. `words`: the first finding, or why the run is stale."""

    tool: str
    state: str  # clean, wrong, stale, not run
    errors: int = 0  # 0 and wrong: the results were, or the kernels did not come to their end
    cases: int = 0
    edge: bool = True  # all of the cases are edge cases
    words: str = ""


@dataclass(frozen=True)
class Sanitized:
    """Every tool of compute-sanitizer on one subject, on one card."""

    device: str
    date: str
    tools: tuple[ToolRun, ...]

    @property
    def short(self) -> str:
        return self.device.removeprefix("NVIDIA ")

    @property
    def lines(self) -> tuple[tuple[str, ToolRun], ...]:
        """Tools that say the same, together: their names, and one of them."""
        alike: dict[ToolRun, list[str]] = {}
        for run in self.tools:
            alike.setdefault(replace(run, tool=""), []).append(run.tool)
        return tuple((", ".join(names), run) for run, names in alike.items())

    @property
    def state(self) -> str:
        """The worst of its tools: wrong, stale, not run, clean."""
        return min((run.state for run in self.tools), key=("wrong", "stale", "not run", "clean").index)


@dataclass(frozen=True)
class CaseView:
    id: str
    name: str
    dtype: str
    why: str
    headline: bool


@dataclass(frozen=True)
class DeviceView:
    """A card that records speak of. `calibrated`: its ceilings were measured. `outdated`: they were, with other calibration kernels.
    `known`: it has a datasheet here."""

    name: str
    device: Device
    calibrated: bool
    outdated: bool
    known: bool

    @property
    def short(self) -> str:
        return self.name.removeprefix("NVIDIA ")


@dataclass(frozen=True)
class Step:
    """Of a derivation. `paragraphs`: those that are formulas with True. `rung`: whose config and launch it is about, by its name; "" where
    of none."""

    paragraphs: tuple[tuple[str, bool], ...]
    picture: Picture | None = None
    rung: str = ""


@dataclass(frozen=True)
class ImplementationView:
    name: str
    backend: str
    arch: int
    path: str
    sanitized: tuple[Sanitized, ...]  # by card


@dataclass(frozen=True)
class Behind:
    """A point that falls behind. `why`: its neighbours' share, or the peer that is faster."""

    title: str
    share: float
    seconds: float
    by: str
    why: str


@dataclass(frozen=True)
class SweepView:
    """A sweep on a card. `current`: made with the kernels as they are. `below`: (share, points under it)."""

    device: str
    seed: int
    current: bool
    count: int
    middle: float
    below: tuple[tuple[float, int], ...]
    picture: str  # SVG
    peers: tuple[str, ...]
    behind: tuple[Behind, ...]
    left: int  # that the table has no room for
