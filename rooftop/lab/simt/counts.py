"""What the engine counted, by source line; arithmetic and parted branches from the machine code between the places that were passed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
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


_ACCESS = re.compile(r"__tsan_(?:unaligned_)?(?:volatile_)?(read|write)\d+")


@lru_cache(maxsize=64)
def _accesses(library: Path) -> tuple[tuple[int, str], ...]:
    """(return address, read | write) of every instrumented access in the library."""
    found, pending = [], ""
    for line in _disassembly(library).splitlines():
        address_text, colon, rest = line.partition(":\t")
        if not colon:
            continue
        if pending:
            found.append((int(address_text, 16), pending))
            pending = ""
        if rest.startswith(("call", "bl")) and (match := _ACCESS.search(rest)):
            pending = match[1]
    return tuple(found)


def widen(lib: native.Native, widest: Mapping[tuple[str, int, str, str], int]) -> None:
    """Tell the engine how wide the GPU's machine code accesses memory at each (file, line, space, op)."""
    if not widest:
        lib.widths([])
        return
    sites = _accesses(lib.path)
    where = places(lib.path, (a for a, _ in sites))
    numbers: dict[tuple[str, int], int] = {}
    lib.widths([
        (a, numbers.setdefault(where[a], len(numbers) + 1), widest.get((*where[a], "shared", op), 0), widest.get((*where[a], "global", op), 0))
        for a, op in sites
    ])  # fmt: skip


def machine_widths(library: Path, text: str, path: str, kernels: Sequence[str], target: str) -> dict[tuple[str, int, str, str], int]:
    """The widest access in bytes of each (file, line, space, op) of the GPU's machine code; empty where that cannot be made here.

    It is kept beside the library, which is of the same text and kernels."""
    from rooftop.lab.compile import ToolchainError, nvrtc_version

    try:
        kept = library.with_suffix(f".{target}-{nvrtc_version()}.json")
    except ToolchainError:
        return {}
    if kept.is_file():
        return {(file, line, space, op): wide for file, line, space, op, wide in json.loads(kept.read_text(encoding="utf-8"))}
    found = _machine_widths(text, path, kernels, target)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps([[*key, wide] for key, wide in found.items()]), encoding="utf-8")
    os.replace(part, kept)
    return found


def _machine_widths(text: str, path: str, kernels: Sequence[str], target: str) -> dict[tuple[str, int, str, str], int]:
    from rooftop.lab.binary import BinaryError
    from rooftop.lab.compile import CompileError, ToolchainError, compile_cuda
    from rooftop.lab.sass_lines import widths

    found: dict[tuple[str, int, str, str], int] = {}
    try:
        binary = compile_cuda(text, name=path, target=target, kernels=sorted(set(kernels)))
        for kernel in sorted(set(kernels)):
            for key, by_width in widths(binary.cubin, binary.names[kernel], path).items():
                found[key] = max(found.get(key, 0), *by_width)
    except (BinaryError, CompileError, ToolchainError):
        return {}
    return found


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
            file, line, text_of(file, line, sources), SPACES[space], OPS[op], max(c.width for c in all_),
            sum(c.requests for c in all_), sum(c.lanes for c in all_),
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
