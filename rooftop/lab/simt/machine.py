"""What the GPU's compiler made of the accesses of a source: asked of NVRTC and nvdisasm, which need no GPU, and kept beside the simulation.

The source says that a line reads 16 bytes; the machine code may read them in four instructions, or four such lines' 4 bytes in one, and may
name another line for them. From here the counting engine has the widths, and whoever shows counts the lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from rooftop.core.helpers import SHARED, Folders, included, with_headers

Key = tuple[str, int, str, str]  # file, line, space, read | write | atomic
_FORMAT = 3  # of what is kept


@dataclass(frozen=True)
class Access:
    """One instruction that accesses memory; an asynchronous copy is two. In the order of the machine code."""

    file: str
    line: int
    space: str  # global | shared | local | generic
    op: str
    width: int  # bytes a lane
    opcode: str
    base: str  # what its address adds `offset` to, with the predicate
    offset: int
    callers: tuple[tuple[str, int], ...] = ()  # (file, line) of the calls by which the line was inlined, innermost first

    @property
    def key(self) -> Key:
        return self.file, self.line, self.space, self.op

    @property
    def copies(self) -> bool:
        """Whether it is an asynchronous copy: the compiler neither merges nor splits those."""
        return self.opcode.startswith("LDGSTS")


@dataclass(frozen=True)
class MachineCode:
    """Of kernels, by name expression: their accesses, and the bytes of their static shared memory."""

    kernels: Mapping[str, tuple[Access, ...]] = field(default_factory=dict)
    shared: Mapping[str, int] = field(default_factory=dict)

    @property
    def accesses(self) -> list[Access]:
        return [a for found in self.kernels.values() for a in found]

    def only(self, kernels: Sequence[str]) -> MachineCode:
        return MachineCode({k: self.kernels[k] for k in dict.fromkeys(kernels) if k in self.kernels}, self.shared)

    def widest(self) -> dict[Key, int]:
        """The widest access of each line in bytes, asynchronous copies apart."""
        found: dict[Key, int] = {}
        for a in self.accesses:
            if not a.copies:
                found[a.key] = max(found.get(a.key, 0), a.width)
        return found

    def at(self, key: Key) -> list[Access]:
        """The accesses of a line in order, asynchronous copies apart."""
        return [a for a in self.accesses if a.key == key and not a.copies]


def of(text: str, path: str, kernels: Sequence[str], target: str, folders: Folders = (SHARED,)) -> MachineCode:
    """The machine code of `kernels` of the source `text`, shown as `path`, for `target`; empty where it cannot be made here.
    `folders`: those of its headers (rooftop/core/helpers.py).

    It is kept on disk, by all that it follows from: whichever compiler of the host's builds the simulation, this is the same."""
    from rooftop.core import disk_cache, settings
    from rooftop.core.compile import ToolchainError, nvrtc_version
    from rooftop.lab.simt import host, own_file
    from rooftop.lab.simt.program_build import Source

    own: dict[str, str] = {}
    if folders[-1] != SHARED:  # a user's folder, which NVRTC does not search: its headers become part of the text
        own = {name: p.read_text(encoding="utf-8") for name, p in included(text, folders).items()}
        folders = (SHARED,)
    if own or host.present(text):
        texts = {path: text, **own}
        text = own_file.Code(Source(Path(path), texts, {shown: {n: n for n in own} for shown in texts})).text()
    try:
        parts = (str(_FORMAT), target, str(nvrtc_version()), path, *with_headers(text, folders), *sorted(set(kernels)))
    except ToolchainError:
        return MachineCode()
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    kept = settings.load().cache / "simt" / "machine" / key[:2] / f"{key}.json"
    try:
        data = disk_cache.read_json(kept)
        return MachineCode({k: tuple(_access(fields) for fields in found) for k, found in data["kernels"].items()}, data["shared"])
    except (ValueError, KeyError, TypeError, AttributeError):  # absent, or not what is written below
        pass
    found = _compile(text, path, kernels, target, folders)
    if not found.kernels:
        return found
    data = {"kernels": {k: [astuple(a) for a in accesses] for k, accesses in found.kernels.items()}, "shared": found.shared}
    disk_cache.write_json(kept, data)
    return found


def _access(fields: Sequence[Any]) -> Access:
    file, line, space, op, width, opcode, base, offset, callers = fields
    return Access(file, line, space, op, width, opcode, base, offset, tuple((f, n) for f, n in callers))


def _compile(text: str, path: str, kernels: Sequence[str], target: str, folders: Folders) -> MachineCode:
    from rooftop.core.compile import CompileError, ToolchainError, compile_cuda
    from rooftop.lab.inspect.binary import BinaryError, static_shared

    wanted = sorted(set(kernels))
    try:
        binary = compile_cuda(text, name=path, target=target, kernels=wanted, folders=folders)
        shared = static_shared(binary.cubin, int("".join(filter(str.isdigit, target))))
        found = {k: tuple(accesses_of(binary.cubin, binary.names[k], path)) for k in wanted}
    except (BinaryError, CompileError, ToolchainError):
        return MachineCode()
    return MachineCode(found, {k: shared[binary.names[k]] for k in wanted if binary.names[k] in shared})


def accesses_of(cubin: bytes, symbol: str, shown: str) -> list[Access]:
    """Those of one kernel. Raises BinaryError, ToolchainError as rooftop.lab.inspect.sass_lines does."""
    from rooftop.lab.inspect import sass_lines

    return [
        Access(i.file, i.line, space, op, sass_lines.width(i.opcode), i.opcode, *sass_lines.address(i.sass), i.callers)
        for i in sass_lines.instructions(cubin, symbol, shown)
        for space, op in sass_lines.accesses(i.opcode)
    ]


def split(accesses: Sequence[Access], width: int) -> list[int]:
    """How the compiler split accesses of `width` bytes that a line makes: a mask for each copy of the access in the machine code, in order,
    whose bit i says that an instruction begins at byte i. Copies that follow a pattern are given once. Empty: nothing is split, or it is
    not plain how.

    A wide access is split where its values lie in registers that do not follow each other: the parts have one base and offsets in a row."""
    copies: list[list[Access]] = []
    open_ones: list[list[Access]] = []
    for a in accesses:
        if a.width >= width:
            copies.append([a])
            continue
        fitting = (c for c in open_ones if c[0].base == a.base and _fits([*c, a], width))
        found = next(fitting, None)
        if found is None:
            found = []
            open_ones.append(found)
            copies.append(found)
        found.append(a)
        if sum(p.width for p in found) == width:
            open_ones = [c for c in open_ones if c is not found]
    if open_ones:
        return []
    masks = [1 if len(c) == 1 else sum(1 << (p.offset - min(q.offset for q in c)) for p in c) for c in copies]
    period = next((n for n in range(1, len(masks)) if len(masks) % n == 0 and masks == masks[:n] * (len(masks) // n)), len(masks))
    return masks[:period] if set(masks) - {1} else []


def _fits(parts: Sequence[Access], width: int) -> bool:
    first, last = min(p.offset for p in parts), max(p.offset + p.width for p in parts)
    return last - first <= width and len({p.offset for p in parts}) == len(parts)


def home(access: Access, space: str, op: str, source: Mapping[Key, int]) -> Key | None:
    """The line of the source that an access of the machine code belongs to. `source`: the bytes a lane that each line of it accesses.

    That is the line that the machine code names, if the source makes such an access there, or the call that it was inlined by; else the
    nearest line before it, or failing that behind it, that makes an access of that width: the compiler names the line that uses what a load
    brings, and merges the copies that two lines make in the same way."""
    places = ((access.file, access.line), *access.callers)
    for file, line in places:
        width = source.get((file, line, space, op))
        if width is not None and (width == access.width or not access.copies):
            return file, line, space, op
    for file, line in places:
        near = [k for k, width in source.items() if k[0] == file and k[2:] == (space, op) and width == access.width]
        if near:
            return min(near, key=lambda k: (k[1] > line, abs(k[1] - line)))
    own = (access.file, access.line, space, op)
    return own if own in source else None
