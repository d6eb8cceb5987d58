"""What the engine counted, by source line; arithmetic and parted branches from the machine code between the places that were passed."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from rooftop.lab import settings
from rooftop.lab.simt import machine, native
from rooftop.lab.simt.build import NoCompilerError
from rooftop.lab.simt.lines import places, text_of
from rooftop.lab.simt.machine import Key, MachineCode
from rooftop.lab.simt.report import LineCounts

SPACES = ("shared", "global", "local", "other")
OPS = ("read", "write", "atomic")
PLACE = 3
_FMA = re.compile(r"v?fn?m(?:add|sub)\d*[sp][sd]|fn?m(?:add|sub)")
_FLOP = re.compile(r"v?(?:add|sub|mul|div|sqrt|min|max)s[sd]|f(?:add|sub|mul|div|sqrt|min|max)(?:nm)?")
_MATHS = re.compile(r"(?:exp|log|sin|cos|tan|pow|erf|cbrt|gamma|fmod|round|fma)\w*@plt")
_JUMP = re.compile(r"j(?!mp)[a-z]+|b\.\w+|cbn?z|tbn?z")


_ACCESS = re.compile(r"__tsan_(?:unaligned_)?(?:volatile_)?(read|write)(\d+)|simt\d+(copy)_async")


@lru_cache(maxsize=64)
def _accesses(library: Path) -> tuple[tuple[int, str, int], ...]:
    """(return address, read | write | copy, bytes) of every access in the library that the compiler instruments, and of asynchronous copies."""
    found: list[tuple[int, str, int]] = []
    pending = ("", 0)
    for line in _disassembly(library).splitlines():
        address_text, colon, rest = line.partition(":\t")
        if not colon:
            continue
        if pending[0]:
            found.append((int(address_text, 16), *pending))
            pending = ("", 0)
        if rest.startswith(("call", "bl")) and (match := _ACCESS.search(rest)):
            pending = (match[1] or match[3], int(match[2] or 0))
    return tuple(found)


def widen(lib: native.Native, code: MachineCode) -> None:
    """Tell the engine how wide the GPU's machine code accesses memory at each line: where it merges a line's accesses and where it splits them."""
    widest = code.widest()
    if not widest:
        lib.widths([], [])
        return
    sites = [x for x in _accesses(lib.path) if x[1] != "copy"]
    where = places(lib.path, (a for a, _, _ in sites))
    numbers: dict[tuple[str, int], int] = {}
    sizes: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for a, op, size in sites:
        sizes[*where[a], op].add(size)
    splits: list[list[int]] = []
    known: dict[Key, int] = {}

    def split(key: Key) -> int:
        """The number of the line's split, from 1; 0: none. Lines of accesses of several widths have none: whose the narrow ones are is not known."""
        if key not in known:
            known[key] = 0
            found = machine.split(code.at(key), max(sizes[key[0], key[1], key[3]])) if len(sizes[key[0], key[1], key[3]]) == 1 else []
            if found:
                splits.append(found)
                known[key] = len(splits)
        return known[key]

    made = []
    for a, op, _ in sites:
        shared, far = (*where[a], "shared", op), (*where[a], "global", op)
        number = numbers.setdefault(where[a], len(numbers) + 1)
        made.append(native.Site(a, number, widest.get(shared, 0), widest.get(far, 0), split(shared), split(far)))
    lib.widths(made, splits)


@lru_cache(maxsize=8)
def _disassembly(library: Path) -> str:
    tool = settings.tool_path("objdump")
    if tool is None:
        raise NoCompilerError("objdump is not on PATH: counting needs binutils (apt install binutils)")
    return subprocess.run([str(tool), "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True).stdout


@lru_cache(maxsize=64)
def _blocks(library: Path) -> tuple[list[int], dict[int, tuple[int, int, int]]]:
    """For each place (the return address of a mark): FMAs, other floating operations, and the conditional jump that ends it (0: none)."""
    found: dict[int, tuple[int, int, int]] = {}
    place, fma, flops, jump, marked = 0, 0, 0, 0, False

    def close() -> None:
        if place:
            found[place] = (fma, flops, jump)

    for line in _disassembly(library).splitlines():
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


def read(
    lib: native.Native, sources: dict[str, str], code: MachineCode | None = None
) -> tuple[tuple[LineCounts, ...], dict[tuple[str, int], int], int, int]:
    """Counts of every line, how often warps parted at each line, FMAs, other floating operations. `code`: where the accesses stand on the GPU."""
    raw = lib.counts()
    where = places(lib.path, (c.site for c in raw if c.op != PLACE))
    merged: dict[tuple[str, int, int, int], list[native.RawCount]] = defaultdict(list)
    for c in raw:
        if c.op != PLACE:
            file, line = where[c.site]
            merged[file, line, c.space, c.op].append(c)
    lines = tuple(
        LineCounts(
            file, line, text_of(file, line, sources), SPACES[space], OPS[op], max(c.width for c in all_),
            sum(c.requests for c in all_), sum(c.lanes for c in all_),
            sum(c.sectors for c in all_), sum(c.ideal_sectors for c in all_), sum(c.bytes_useful for c in all_), sum(c.wavefronts for c in all_),
            sum(c.ideal_wavefronts for c in all_), max(c.contention for c in all_),
            source_width=max(c.source_width for c in all_), source_requests=sum(c.source_requests for c in all_),
            source_sectors=sum(c.source_sectors for c in all_), source_wavefronts=sum(c.source_wavefronts for c in all_),
        )
        for (file, line, space, op), all_ in sorted(merged.items())
    )  # fmt: skip
    lines = _placed(lib.path, lines, code) if code is not None and code.kernels else lines
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


def _placed(library: Path, lines: Sequence[LineCounts], code: MachineCode) -> tuple[LineCounts, ...]:
    """`lines` with the other places where the machine code has accesses of theirs: those at a place whose source has none of that kind."""
    source = {(c.file, c.line, c.space, c.op): c.source_width for c in lines}
    sites = _accesses(library)
    where = places(library, (a for a, _, _ in sites))
    passed = {(*where[a], op) for a, op, _ in sites}  # or never reached
    found: dict[Key, set[tuple[str, int]]] = defaultdict(set)
    for a in code.accesses:
        if a.key not in source and (a.file, a.line, "copy" if a.copies else a.op) in passed:
            continue
        key = machine.home(a, a.space, a.op, source)
        if key is not None and key[:2] != (a.file, a.line):
            found[key].add((a.file, a.line))
    return tuple(replace(c, found_at=tuple(sorted(found.get((c.file, c.line, c.space, c.op), ())))) for c in lines)
