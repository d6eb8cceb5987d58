"""What the engine counted, by source line; arithmetic and parted branches from the machine code between the places that were passed."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_right
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

from rooftop.lab import settings
from rooftop.lab.simt import native
from rooftop.lab.simt.build import NoCompilerError
from rooftop.lab.simt.lines import places, text_of
from rooftop.lab.simt.report import LineCounts

SPACES = ("shared", "global", "local", "other")
OPS = ("read", "write", "atomic")
PLACE = 3
_FMA = re.compile(r"v?fn?m(?:add|sub)\d*[sp][sd]|fn?m(?:add|sub)")
_FLOP = re.compile(r"v?(?:add|sub|mul|div|sqrt|min|max)s[sd]|f(?:add|sub|mul|div|sqrt|min|max)(?:nm)?")
_MATHS = re.compile(r"(?:exp|log|sin|cos|tan|pow|erf|cbrt|gamma|fmod|round|fma)\w*@plt")
_JUMP = re.compile(r"j(?!mp)[a-z]+|b\.\w+|cbn?z|tbn?z")


@lru_cache(maxsize=64)
def _blocks(library: Path) -> tuple[list[int], dict[int, tuple[int, int, int]]]:
    """For each place (the return address of a mark): FMAs, other floating operations, and the conditional jump that ends it (0: none)."""
    tool = settings.tool_path("objdump")
    if tool is None:
        raise NoCompilerError("objdump is not on PATH: counting needs binutils (apt install binutils)")
    text = subprocess.run([str(tool), "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True).stdout
    found: dict[int, tuple[int, int, int]] = {}
    place, fma, flops, jump, marked = 0, 0, 0, 0, False

    def close() -> None:
        if place:
            found[place] = (fma, flops, jump)

    for line in text.splitlines():
        if line.endswith(">:"):
            close()
            place, marked = 0, False
            continue
        address_text, colon, rest = line.partition(":\t")
        if not colon:
            continue
        address = int(address_text, 16)
        if marked:  # the instruction after the call: its address is the place's name
            close()
            place, fma, flops, jump, marked = address, 0, 0, 0, False
        name, _, operands = rest.partition(" ")
        if "__sanitizer_cov_trace_pc" in operands and name.startswith(("call", "bl", "jmp")):
            marked = True
        elif _FMA.fullmatch(name):
            fma += 1
        elif _FLOP.fullmatch(name) or (name.startswith(("call", "bl")) and _MATHS.search(operands)):
            flops += 1
        elif _JUMP.fullmatch(name):
            jump = address
    close()
    return sorted(found), found


def read(lib: native.Native, sources: dict[str, str]) -> tuple[tuple[LineCounts, ...], dict[tuple[str, int], int], int, int]:
    """Counts of every line, how often warps parted at each line, FMAs, other floating operations."""
    raw = lib.counts()
    where = places(lib.path, (c.site for c in raw if c.op != PLACE))
    merged: dict[tuple[str, int, int, int], list[native.RawCount]] = defaultdict(list)
    for c in raw:
        if c.op != PLACE:
            file, line = where[c.site]
            merged[file, line, c.space, c.op].append(c)
    lines = tuple(
        LineCounts(
            file, line, text_of(file, line, sources), SPACES[space], OPS[op], max(c.width for c in all_), sum(c.requests for c in all_), sum(c.lanes for c in all_),
            sum(c.sectors for c in all_), sum(c.ideal_sectors for c in all_), sum(c.bytes_useful for c in all_), sum(c.wavefronts for c in all_),
            sum(c.ideal_wavefronts for c in all_), max(c.contention for c in all_),
        )
        for (file, line, space, op), all_ in sorted(merged.items())
    )  # fmt: skip
    starts, blocks = _blocks(lib.path)
    fma = flops = 0
    parted: dict[int, int] = defaultdict(int)
    for c in raw:
        if c.op != PLACE:
            continue
        at = bisect_right(starts, c.site) - 1
        costs = blocks.get(c.site) or (blocks[starts[at]] if at >= 0 else (0, 0, 0))
        fma += costs[0] * c.lanes
        flops += costs[1] * c.lanes
        if c.requests:
            parted[costs[2] + 1 if costs[2] else c.site] += c.requests
    lines_of = places(lib.path, parted)
    divergent: dict[tuple[str, int], int] = defaultdict(int)
    for address, times in parted.items():
        divergent[lines_of[address]] += times
    return lines, dict(sorted(divergent.items())), fma, flops
