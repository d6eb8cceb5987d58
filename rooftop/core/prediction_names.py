"""The names that a head's `predict` may contain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

SPEEDUP = "speedup"
COUNTS: Mapping[str, str] = {  # counts of the simulator: name -> description
    "sectors_read": "32-byte sectors that a global read of a warp touches, on average",
    "sectors_written": "32-byte sectors that a global write of a warp touches, on average",
    "reads": "bytes of the global sectors read, as a multiple of what the op must read",
    "writes": "bytes of the global sectors written, as a multiple of what the op must write",
    "wavefronts": "wavefronts that a shared-memory access of a warp takes, on average",
    "conflicts": "wavefronts of shared memory as a multiple of the fewest, at the line where that is worst; 1: no bank conflict",
    "wavefronts_per_fma": "wavefronts of shared memory for each FMA of a warp",
    "intensity": "floating-point operations, an FMA as two, for each byte of the global sectors touched",
}
FACTS = ("registers", "spills", "shared", "occupancy")  # facts of the binary: registers and bytes of a thread, bytes of a block, percent
_INSTRUCTION = re.compile(r"[A-Z][A-Z0-9]*(\.[A-Z0-9]+)*")  # how often the binary contains it
_COUNTER = re.compile(r"[a-z0-9]+__\w+(\.\w+)*")  # hardware counters, by their names in records


def refused(name: str) -> str | None:
    """None, or why a prediction's name is not valid."""
    known = (SPEEDUP, *COUNTS, *FACTS)
    if name in known or _INSTRUCTION.fullmatch(name) or _COUNTER.fullmatch(name):
        return None
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}, and SASS instructions such as \"LDG.128\""
    return f"nothing is measured by that name; {hint}"
