"""What the head of a kernel may predict, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

SPEEDUP = "speedup"
COUNTS: Mapping[str, str] = {  # what the simulator counts of a rung: name -> what it is
    "sectors_read": "32-byte sectors that a global read of a warp touches, on average",
    "sectors_written": "32-byte sectors that a global write of a warp touches, on average",
    "reads": "bytes of the global sectors read, as a multiple of what the op must read",
    "writes": "bytes of the global sectors written, as a multiple of what the op must write",
    "wavefronts": "wavefronts that a shared-memory access of a warp takes, on average",
    "conflicts": "wavefronts of shared memory as a multiple of the fewest, at the line where that is worst; 1: no bank conflict",
    "wavefronts_per_fma": "wavefronts of shared memory for each FMA of a warp",
    "intensity": "floating-point operations, an FMA as two, for each byte of the global sectors touched",
}
FACTS = ("registers", "spills", "shared", "occupancy")  # of the binary: a thread's registers and bytes, a block's bytes, percent
_INSTRUCTION = re.compile(r"[A-Z][A-Z0-9]*(\.[A-Z0-9]+)*")  # how often the binary has it
_COUNTER = re.compile(r"[a-z0-9]+__\w+(\.\w+)*")  # of the hardware, as a record has it


def refused(name: str) -> str | None:
    """None, or what is wrong with the name of a prediction."""
    known = (SPEEDUP, *COUNTS, *FACTS)
    if name in known or _INSTRUCTION.fullmatch(name) or _COUNTER.fullmatch(name):
        return None
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}, and SASS instructions such as \"LDG.128\""
    return f"nothing is measured by that name; {hint}"
