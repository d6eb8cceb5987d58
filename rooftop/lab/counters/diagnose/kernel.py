"""What every reader of a profiler's report gives: one `Kernel` for each profiled launch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class ReportError(ValueError):
    """A report that cannot be read, with what is wrong and what is accepted."""


@dataclass(frozen=True)
class Rule:
    """What one of Nsight Compute's own rules says. `speedup`: its estimate in percent; `scope`: global (of the kernel) or local (of one
    unit)."""

    name: str
    text: str
    section: str = ""
    speedup: float | None = None
    scope: str = ""


@dataclass(frozen=True)
class Line:
    """A source line with its part of the kernel's stalled warps' samples (`unit` stalled), or of its executed instructions (`unit`
    instructions)."""

    file: str
    line: int
    part: float
    unit: str


@dataclass
class Kernel:
    """One profiled launch. Numbers are in seconds, hertz, bytes, percent and plain counts. A metric that the report lacks, or shows as
    `n/a`, is not in `metrics`."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    arch: str = ""  # compute capability, "9.0"
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # metrics that are no numbers
    rules: list[Rule] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    case: str = ""  # the NVTX range around the launch, where the report names one

    def get(self, *names: str) -> float | None:
        """The first of the metrics that was collected, or None."""
        return next((self.metrics[n] for n in names if n in self.metrics), None)

    def total(self, *names: str) -> float | None:
        """The sum of those metrics that were collected, or None if none was."""
        found = [self.metrics[n] for n in names if n in self.metrics]
        return sum(found) if found else None


def sizes(text: str) -> tuple[int, ...]:
    """Of a grid or block as ncu prints it: `(4096, 1, 1)`."""
    return tuple(int(n) for n in re.findall(r"\d+", text))


def absent(text: str) -> bool:
    """Whether this stands where a value was not collected."""
    return not text.strip() or re.match(r"\(?(n/a|nan|inf|!)", text.strip(), re.IGNORECASE) is not None
