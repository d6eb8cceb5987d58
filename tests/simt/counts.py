"""The access patterns with counts worked out by hand: the `// COUNT key=value ...: reason` comments of patterns/*.cu and of no other file.

`requests`: instructions of a warp; `sectors`: of 32 bytes, of global memory; `ideal`: the least that as many bytes need (lanes x width / 32), no more
than `sectors`; `wavefronts`: of shared memory; `contention`: the most lanes of a warp on one word of an atomic. Of the line as a whole: `fma` and
`flops`, operations of threads; `parted`: how often a warp took both ways of its branch. All are sums over the one block that is launched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "patterns"
PROBES = "probes"  # has no counts: hardware alone can answer
SIZE = 16384  # elements of x and of out
_COUNT = re.compile(r"^(?P<code>.*?)\s*// COUNT (?P<facts>[\w= ]+?)(?:: (?P<reason>.+))?$")
_KERNEL = re.compile(r"__global__ void (\w+)\(")
_DONE = ("fma", "flops", "parted")
_FIELDS = {"requests": "requests", "sectors": "sectors", "ideal": "ideal_sectors", "wavefronts": "wavefronts", "contention": "contention"}


@dataclass(frozen=True)
class Expected:
    """One access of one kernel. `counts`: by the names of rooftop.lab.simt.LineCounts."""

    file: Path
    kernel: str
    line: int
    space: str
    op: str
    counts: dict[str, int]
    reason: str

    def __str__(self) -> str:
        return f"{self.file.stem}:{self.kernel}:{self.line}"


@dataclass(frozen=True)
class Done:
    """What is done at one line of one kernel: operations, and branches taken both ways."""

    file: Path
    kernel: str
    line: int
    counts: dict[str, int]
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel}:{self.line}"


def _access(code: str) -> tuple[str, str]:
    """(space, op) of the access that a line of patterns/ makes: `s`, `total` and `bins` are shared, `x` and `out` global."""
    if match := re.search(r"atomic\w+\(&?(\w+)", code):
        return ("global" if match[1] == "out" else "shared"), "atomic"
    left, _, right = code.partition(" = ")
    if re.search(r"\bout\b", left):
        return "global", "write"
    if re.match(r"\s*s\[", left):
        return "shared", "write"
    return ("shared" if re.search(r"\bs\[", right) else "global"), "read"


def expected() -> tuple[list[Expected], list[Done]]:
    found: list[Expected] = []
    done: list[Done] = []
    for file in sorted(FOLDER.glob("*.cu")):
        kernel = ""
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if match := _KERNEL.search(line):
                kernel = match[1]
            if match := _COUNT.match(line):
                facts = {k: int(v) for k, v in (pair.split("=") for pair in match["facts"].split())}
                if counts := {_FIELDS[k]: v for k, v in facts.items() if k not in _DONE}:
                    found.append(Expected(file, kernel, number, *_access(match["code"]), counts, match["reason"] or ""))
                if counts := {k: v for k, v in facts.items() if k in _DONE}:
                    done.append(Done(file, kernel, number, counts, match["reason"] or ""))
    return found, done


EXPECTED, DONE = ([e for e in found if e.file.stem != PROBES] for found in expected())
