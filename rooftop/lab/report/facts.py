"""What `rooftop.lab.inspect.inspector` finds in a binary, as the pages show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.core.spec import TARGETS


@dataclass(frozen=True)
class KernelFacts:
    """What the binary of one kernel holds."""

    kernel: str
    registers: int  # a thread
    spills: int  # bytes a thread
    shared: int  # bytes a block, static and dynamic
    threads: int | None  # a block
    occupancy: float  # percent
    limiter: str
    counts: Mapping[str, int]  # instructions by family
    loop: Mapping[str, int]  # those in the hottest loop
    unmet: tuple[str, ...]  # demands of its author that the binary does not meet


@dataclass(frozen=True)
class TargetFacts:
    """Facts for one architecture: the kernels of one call, or why there are none (`refused`), or neither: not inspected."""

    arch: int
    target: str
    kernels: tuple[KernelFacts, ...]
    refused: str | None


def target_facts(arch: int, found: Mapping[str, Any] | None) -> TargetFacts:
    """Facts of one target as the page shows them.

    `found`: None (not inspected); `{"refused": why}`; the facts of one kernel; or `{"kernels": [facts, ...]}`. Facts of a kernel are
    `registers` (a thread), `spills` (bytes a thread), `shared` (bytes a block, static and dynamic), `occupancy` (`percent`, `limiter`,
    perhaps `refused`) and `counts` (instructions by family); `kernel`, `threads`, `loop` (counts of the hottest loop) and `unmet`
    (demands) may be there too. `rooftop.lab.inspect.inspector.facts_of` gives them. Raises ValueError where one is missing."""
    target = TARGETS[arch].target if arch in TARGETS else f"sm_{arch}"
    if found is None or found.get("refused"):
        return TargetFacts(arch, target, (), None if found is None else str(found["refused"]))
    kernels = []
    for k in found.get("kernels", [found]):
        if missing := {"registers", "spills", "shared", "occupancy", "counts"} - set(k):
            raise ValueError(f"facts for {target} lack {', '.join(sorted(missing))}; there are {', '.join(k)}")
        occupancy = k["occupancy"]
        kernels.append(KernelFacts(
            str(k.get("kernel", "")), int(k["registers"]), int(k["spills"]), int(k["shared"]),
            int(k["threads"]) if k.get("threads") else None,
            float(occupancy["percent"]), str(occupancy.get("refused") or occupancy["limiter"]),
            {str(n): int(c) for n, c in k["counts"].items()}, {str(n): int(c) for n, c in k.get("loop", {}).items()},
            tuple(map(str, k.get("unmet", ()))),
        ))
    return TargetFacts(arch, target, tuple(kernels), None)
