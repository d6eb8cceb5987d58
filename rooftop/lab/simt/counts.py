"""What the engine counted, by source line: accesses, operations, branches at which warps parted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rooftop.lab.simt import host_code, machine, native
from rooftop.lab.simt.lines import Place, places, text_of
from rooftop.lab.simt.machine import Key, MachineCode
from rooftop.lab.simt.report import LineCounts, Walk

SPACES = ("shared", "global", "local", "other")
OPS = ("read", "write", "atomic")
MARK = 3  # the engine's PLACE


@dataclass(frozen=True)
class Counts:
    """Of one run: accesses by line; operations of threads and the times that a warp parted, by (file, line)."""

    lines: tuple[LineCounts, ...] = ()
    fma: Mapping[Place, int] = field(default_factory=dict)
    flops: Mapping[Place, int] = field(default_factory=dict)
    parted: Mapping[Place, int] = field(default_factory=dict)


def widths(library: Path, code: MachineCode) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """How wide the GPU's machine code accesses memory at each line, as `Native.widths` takes it: where it merges a line's accesses, where
    it splits them.

    And which reads no compiler would make, since the lane has just read the same."""
    widest = code.widest()
    sites = [x for x in host_code.of(library).sites if x.op != "copy"]
    if not widest:
        return [(x.address, 0, 0, 0, 0, 0, 1) for x in sites if x.again], []
    numbers: dict[Place, int] = {}
    sizes: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for x in sites:
        sizes[*x.place, x.op].add(x.bytes)
    splits: list[list[int]] = []
    known: dict[Key, int] = {}

    def split(key: Key) -> int:
        """The number of the line's split, from 1; 0: none. Lines of accesses of several widths have none: whose the narrow ones are is not
        known."""
        if key not in known:
            known[key] = 0
            found = machine.split(code.at(key), max(sizes[key[0], key[1], key[3]])) if len(sizes[key[0], key[1], key[3]]) == 1 else []
            if found:
                splits.append(found)
                known[key] = len(splits)
        return known[key]

    made: list[tuple[int, ...]] = []
    for x in sites:
        shared, far = (*x.place, "shared", x.op), (*x.place, "global", x.op)
        number = numbers.setdefault(x.place, len(numbers) + 1)
        made.append((x.address, number, widest.get(shared, 0), widest.get(far, 0), split(shared), split(far), int(x.again)))
    return made, splits


def read(library: Path, raw: Sequence[native.RawCount], sources: dict[str, str], code: MachineCode | None = None) -> Counts:
    """What was counted since the library's memory was laid out. `code`: where the accesses stand on the GPU."""
    where = places(library, (c.site for c in raw if c.op != MARK))
    merged: dict[tuple[str, int, int, int], list[native.RawCount]] = defaultdict(list)
    for c in raw:
        if c.op != MARK:
            file, line = where[c.site]
            merged[file, line, c.space, c.op].append(c)
    lines = tuple(
        LineCounts(
            file, line, text_of(file, line, sources), SPACES[space], OPS[op], max(c.width for c in all_),
            sum(c.requests for c in all_), sum(c.lanes for c in all_),
            sum(c.sectors for c in all_), sum(c.ideal_sectors for c in all_), sum(c.bytes_useful for c in all_),
            sum(c.wavefronts for c in all_),
            sum(c.ideal_wavefronts for c in all_), max(c.contention for c in all_),
            source_width=max(c.source_width for c in all_), source_requests=sum(c.source_requests for c in all_),
            source_sectors=sum(c.source_sectors for c in all_), source_wavefronts=sum(c.source_wavefronts for c in all_),
            apart=_apart(all_), walk=_walk(all_), widths=_widths([c.of_width for c in all_]),
            source_widths=_widths([c.source_of_width for c in all_]),
        )
        for (file, line, space, op), all_ in sorted(merged.items())
    )
    lines = _placed(library, lines, code) if code is not None and code.kernels else lines
    pieces = host_code.of(library).pieces
    fma: dict[Place, int] = defaultdict(int)
    flops: dict[Place, int] = defaultdict(int)
    parted: dict[Place, int] = defaultdict(int)
    for c in raw:
        piece = pieces.get(c.site) if c.op == MARK else None
        if piece is None:
            continue
        for operations, found in ((piece.fma, fma), (piece.flops, flops)):
            for place, n in operations.items():
                found[place] += n * c.lanes
        if piece.branch is not None and c.requests:
            parted[piece.branch] += c.requests
    return Counts(lines, *(dict(sorted((p, n) for p, n in found.items() if n)) for found in (fma, flops, parted)))


SCATTERED = -(2**31)


def _walk(all_: Sequence[native.RawCount]) -> Walk:
    """A step is one that three of four requests take: on a line that reads two tensors by turns half of them go from the first to the
    second."""
    most = max(all_, key=lambda c: c.phases)
    onward, within = (
        int(s) if n and s != SCATTERED and 4 * alike >= 3 * n else None
        for s, n, alike in zip(most.steps, most.pairs, most.alike, strict=True)
    )
    return Walk(max(c.phases for c in all_), tuple(map(sum, zip(*(c.in_phase for c in all_), strict=True))), onward, within)


def _apart(all_: Sequence[native.RawCount]) -> int | None:
    """Of the accesses of a line, those that take the most."""
    most = max(all_, key=lambda c: c.sectors + c.wavefronts)
    return None if most.apart == SCATTERED else int(most.apart)


def _widths(requests: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """(bytes a lane, requests) of every width that there is, the widest first; `requests` by the logarithm of the width."""
    sums = [sum(of_width) for of_width in zip(*requests, strict=True)]
    return tuple((1 << i, n) for i, n in reversed([*enumerate(sums)]) if n)


def _placed(library: Path, lines: Sequence[LineCounts], code: MachineCode) -> tuple[LineCounts, ...]:
    """`lines` with the other places where the machine code has accesses of theirs: those at a place whose source has none of that kind."""
    source = {(c.file, c.line, c.space, c.op): c.source_width for c in lines}
    passed = {(*x.place, x.op) for x in host_code.of(library).sites}  # or never reached
    found: dict[Key, set[tuple[str, int]]] = defaultdict(set)
    for a in code.accesses:
        if a.key not in source and (a.file, a.line, "copy" if a.copies else a.op) in passed:
            continue
        key = machine.home(a, a.space, a.op, source)
        if key is not None and key[:2] != (a.file, a.line):
            found[key].add((a.file, a.line))
    return tuple(replace(c, found_at=tuple(sorted(found.get((c.file, c.line, c.space, c.op), ())))) for c in lines)
