"""What a simulation found: faults, counts by source line, results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KINDS = (  # in the order of the engine's `Kind`
    "out-of-bounds", "misaligned", "uninitialised", "shared-race", "warp-race", "global-race", "barrier-divergence", "deadlock",
    "absent-lane",
    "const-write", "missing-wait", "not-simulated", "assert", "launch", "host", "leak",
)
HOSTS = ("launch", "host", "leak")  # kinds of what is found in the host's code
NO_FAULTS = ("not-simulated", "leak")
Index = tuple[int, int, int]


@dataclass(frozen=True)
class Other:
    """The other side of a race, or where the other threads wait. `thread` is None where only its block is known."""

    file: str
    line: int
    text: str
    block: Index | None = None
    thread: Index | None = None


@dataclass(frozen=True)
class Finding:
    """One fault, at one line of the source: the first thread that showed it, and how often it was seen."""

    kind: str
    message: str
    file: str
    line: int
    text: str
    block: Index
    thread: Index
    other: Other | None = None
    count: int = 1
    also: tuple[int, ...] = ()  # other lines of the same cause

    def __str__(self) -> str:
        at = "" if self.kind in HOSTS else f" [block {_index(self.block)}, thread {_index(self.thread)}]"
        more = f" (the same at line{'s' if len(self.also) > 1 else ''} {', '.join(map(str, sorted(set(self.also))))})" if self.also else ""
        where = f"{self.file}:{self.line}: {self.kind}: {self.message}{more}{at}" if self.line else f"{self.kind}: {self.message}"
        return where + (f"\n    {self.text.strip()}" if self.text.strip() else "")


def _index(index: Index) -> str:
    return f"({index[0]}, {index[1]}, {index[2]})"


@dataclass(frozen=True)
class Walk:
    """What the first warp of the first block that is run does at a line, phase by phase: a phase ends at each barrier of the block."""

    phases: int = 0  # the last one with a request, from 1
    requests: tuple[int, ...] = ()  # in each of the first phases
    onward: int | None = None  # bytes from the first request of a phase to that of the next which has one, where most keep to it
    within: int | None = None  # and from one request to the next in a phase


@dataclass(frozen=True)
class LineCounts:
    """Accesses of one source line to one kind of memory, summed over the blocks that were counted.

    They are counted as compiled, where NVRTC is at hand: a line's 4-byte reads that the machine code makes as one of 16 are one request.
    The fields `source_...` say what the source alone would make; `found_at` the other lines at which the machine code has some of these
    accesses or all."""

    file: str
    line: int
    text: str
    space: str  # global | shared
    op: str  # read | write | atomic
    width: int  # bytes a thread, the widest
    requests: int  # instructions of a warp
    lanes: int = 0  # threads that took part, over all requests
    sectors: int = 0  # of 32 bytes (global)
    ideal_sectors: int = 0
    bytes_useful: int = 0
    wavefronts: int = 0  # (shared)
    ideal_wavefronts: int = 0
    contention: int = 0  # atomics: the most lanes on one address
    source_width: int = 0  # bytes a thread, the widest; 0: not told apart
    source_requests: int = 0
    source_sectors: int = 0
    source_wavefronts: int = 0
    found_at: tuple[tuple[str, int], ...] = ()  # (file, line)
    widths: tuple[tuple[int, int], ...] = ()  # (bytes a thread, requests), the widest first
    source_widths: tuple[tuple[int, int], ...] = ()
    apart: int | None = None  # bytes from one thread's address to the next one's, where most of a request keeps to it
    walk: Walk = Walk()

    @property
    def rewritten(self) -> bool:
        """Whether the compiler merged or split accesses of the line."""
        return self.source_requests not in (0, self.requests)


@dataclass(frozen=True)
class Report:
    """All that one simulation came to. `outputs`: the tensors it wrote, by name. `divergent`: (file, line) -> times a warp parted there.

    `fma_at`, `other_at`: operations by (file, line); those of `mma` instructions have no line and are in the sums alone."""

    findings: tuple[Finding, ...] = ()
    lines: tuple[LineCounts, ...] = ()
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    fma: int = 0
    other_flops: int = 0
    fma_at: Mapping[tuple[str, int], int] = field(default_factory=dict)
    other_at: Mapping[tuple[str, int], int] = field(default_factory=dict)
    divergent: Mapping[tuple[str, int], int] = field(default_factory=dict)
    threads: int = 0
    blocks: int = 0  # that were run
    grid_blocks: int = 0  # of all launches
    seconds: float = 0.0
    build_seconds: float = 0.0
    printed: str = ""

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings, but for what is not simulated and for memory that is never freed: those are no faults. Accesses out of bounds come
        first, then the others, each in the order of the source: what follows from one (a race, memory that nobody wrote) may be met or not,
        as the memory lies."""
        return tuple(sorted((f for f in self.findings if f.kind not in NO_FAULTS), key=lambda f: f.kind != "out-of-bounds"))

    @property
    def clean(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Everything but the outputs."""
        return {
            "findings": [asdict(f) for f in self.findings], "lines": [asdict(c) for c in self.lines], "fma": self.fma,
            "other_flops": self.other_flops,
            **{
                name: [{"file": f, "line": n, "count": c} for (f, n), c in found.items()]
                for name, found in (("divergent", self.divergent), ("fma_at", self.fma_at), ("other_at", self.other_at))
            },
            "threads": self.threads, "blocks": self.blocks,
            "grid_blocks": self.grid_blocks, "seconds": self.seconds, "build_seconds": self.build_seconds, "printed": self.printed,
        }
