"""The engine's findings in words, with the lines of the source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rooftop.lab.simt import native
from rooftop.lab.simt.lines import places, text_of
from rooftop.lab.simt.memory import Layout
from rooftop.lab.simt.report import KINDS, Finding, Other

SHARED, GLOBAL, LOCAL, OTHER = range(4)  # the engine's `Memory`
APART = ("out-of-bounds", "misaligned")
NEARBY = 64  # bytes of code


def read(library: Path, raw: Sequence[native.RawFinding], place: Layout, sources: dict[str, str]) -> tuple[Finding, ...]:
    """One finding for each kind and line (reads and writes apart where the address is wrong), in the order of the source."""
    addresses = [f.pc for f in raw] + [f.other_pc for f in raw if f.other_pc]
    where = places(library, addresses)
    for pc in {a for a, (_, line) in where.items() if not line}:  # code that the compiler gives no line: what stands before it
        before = places(library, range(max(pc - NEARBY, 0), pc))
        where[pc] = next((before[a] for a in range(pc - 1, pc - NEARBY - 1, -1) if a in before and before[a][1]), where[pc])
    merged: dict[tuple[object, ...], Finding] = {}
    for f in raw:
        kind = KINDS[f.kind]
        file, line = where[f.pc]
        other_file, other_line = where.get(f.other_pc, ("", 0)) if f.other_pc else ("", 0)
        if kind in ("barrier-divergence", "absent-lane") and f.other_pc and (file, line) == (other_file, other_line):
            continue  # one barrier of the source that the compiler has copied
        if kind == "barrier-divergence" and f.detail[0] and (file != other_file or other_line <= line):
            continue  # those threads returned before the barrier: they do not count at it
        other = None
        if f.other_pc or f.has_other:
            other = Other(
                other_file, other_line, text_of(other_file, other_line, sources),
                native.index(f.other_block) if f.has_other else None, native.index(f.other_thread) if f.has_other == 1 else None,
            )
        key = (kind, file, line, other_file, other_line, bool(f.write) and kind in APART)
        if (old := merged.get(key)) is not None:
            merged[key] = replace(old, count=old.count + int(f.count))
            continue
        merged[key] = Finding(
            kind, _words(f, kind, place, other), file, line, text_of(file, line, sources), native.index(f.block), native.index(f.thread),
            other, int(f.count)
        )
    return tuple(sorted(_by_line(merged.values()), key=lambda x: (x.file, x.line, KINDS.index(x.kind))))


def _by_line(found: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for each kind and line: that with the other line that was seen most, and how often all of them were seen."""
    lines: defaultdict[tuple[str, str, int, bool], list[Finding]] = defaultdict(list)
    for f in found:
        lines[f.kind, f.file, f.line, f.kind in APART and f.message.startswith("write")].append(f)
    for same in lines.values():
        most = max(same, key=lambda f: f.count)
        more = sorted({(f.other.file, f.other.line) for f in same if f is not most and f.other is not None and f.other.line})
        count = sum(f.count for f in same)
        also = ", ".join(str(line) if file == most.file else f"{file}:{line}" for file, line in more)
        notes = [*([f"also line{'s' if len(more) > 1 else ''} {also}"] if more else []), *([f"{count:,} times"] if count > 1 else [])]
        yield replace(most, count=count, message=most.message + (f" ({'; '.join(notes)})" if notes else ""))


def _words(f: native.RawFinding, kind: str, place: Layout, other: Other | None) -> str:
    text = bytes(f.text).decode(errors="replace")
    if text:
        return text
    access = f"{'write' if f.write else 'read'} of {f.bytes} byte{'s' if f.bytes != 1 else ''}"
    if f.space == GLOBAL:
        at = place.describe(f.address, f.bytes) + (place.state(f.address, f.bytes) if kind == "out-of-bounds" else "")
    elif f.space == SHARED:
        at = bytes(f.place).decode(errors="replace")
        at += "" if "shared memory" in at else " in shared memory"
    else:
        at = "a null pointer" if f.address < 4096 else f"address 0x{f.address:x}"
    if kind == "out-of-bounds":
        if f.space == SHARED and f.detail[0] == 2:
            return f"{access} at {at}, which has ended"
        if f.space == SHARED and f.detail[0] == 3:
            return f"{access} at {at}, which may not have begun: a barrier of the cluster comes first"
        if f.space == OTHER:
            return f"{access} through {at}, which is no memory of the kernel's"
        return f"{access} at {at}, outside what it may {'write' if f.write else 'read'}"
    if kind == "misaligned":
        return f"{access} at {at}: the address is not a multiple of {f.bytes} bytes (it is {f.address % f.bytes} past one)"
    if kind == "uninitialised":
        return f"{access} at {at}, which nothing has written"
    if kind == "const-write":
        return f"{access} at {at}, {'which a kernel cannot write' if place.is_constant(f.address) else 'an input that must not be written'}"
    if kind == "missing-wait":
        return f"{access} at {at}, to which an asynchronous copy or store is still under way (line {other.line if other else '?'}): wait for it first"
    before = "wrote" if f.detail[0] else "read"
    if kind in ("shared-race", "warp-race"):
        whom = f"thread {other.thread}" if other and other.thread else "another thread"
        missing = "no __syncwarp()" if kind == "warp-race" else "no __syncthreads()"
        if f.has_other == 1 and tuple(f.other_block) != tuple(f.block):
            missing, whom = "no barrier of the cluster, nor an mbarrier that counts it,", f"{whom} of block {native.index(f.other_block)}"
        inside = " of the same warp" if kind == "warp-race" else ""
        return f"{access} at {at}, which {whom}{inside} {before} at line {other.line if other else '?'} with {missing} between"
    if kind == "global-race" and f.detail[3]:
        whom = f"thread {other.thread} of block {other.block}" if other and other.thread else "another thread"
        return f"{access} at {at}, which {whom} wrote at line {other.line if other else '?'} with no barrier between"
    if kind == "global-race":
        whom = f"block {other.block}" if other and other.block else "other blocks"
        return f"{access} at {at}, which {whom} {before} at line {other.line if other else '?'}: blocks run in any order"
    return f"{access} at {at}"
