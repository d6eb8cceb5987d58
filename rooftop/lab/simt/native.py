"""The built library from Python: its structures, memory and findings, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rooftop.lab.simt.report import Index

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
CTYPES: dict[str, Any] = {
    "i32": ctypes.c_int32, "u32": _U32, "i64": ctypes.c_int64, "u64": _U64, "f32": ctypes.c_float, "f64": ctypes.c_double,
    "bool": ctypes.c_bool,
    "ptr": _U64, "i16": ctypes.c_int16, "u16": ctypes.c_uint16, "i8": ctypes.c_int8, "u8": ctypes.c_uint8,
}


ENDLESS = 4
S = TypeVar("S", bound=ctypes.Structure)


class Parameter(ctypes.Structure):
    _fields_ = [("bytes", _U32), ("pointer", _U32), ("constant", _U32), ("text", ctypes.c_char_p)]

    @property
    def target(self) -> str:
        """The type that a pointer points to, as the compiler writes it."""
        return bytes(self.text or b"").decode(errors="replace").rpartition("Target = ")[2].rstrip("]")


class Kernel(ctypes.Structure):
    _fields_ = [("parameters", ctypes.POINTER(Parameter)), ("count", _U32), ("call", ctypes.c_void_p)]


class Launch(ctypes.Structure):
    _fields_ = [
        ("grid", _U32 * 3), ("block", _U32 * 3), ("cluster", _U32 * 3), ("dynamic", _U32), ("cooperative", _U32), ("workers", _U32),
        ("unit_count", _U32),
        ("poison", _U32), ("stack", _U32), ("patience", _U32), ("seed", _U64), ("units", ctypes.POINTER(_U32)),
    ]


class Pair(ctypes.Structure):
    _fields_ = [("plain", _U64), ("watched", _U64)]


class ProgramRun(ctypes.Structure):
    _fields_ = [
        *((name, _U32) for name in ("workers", "repeat", "poison", "patience", "sample", "listed", "pairs")), ("seed", _U64),
        ("stack", _U64),
        ("budget", ctypes.c_double), ("most", ctypes.c_double), ("entries", ctypes.POINTER(Pair)),
    ]


class RawFinding(ctypes.Structure):
    _fields_ = [
        ("kind", _U32), ("bytes", _U32), ("write", _U32), ("space", _U32), ("pc", _U64), ("other_pc", _U64), ("address", _U64),
        ("count", _U64),
        ("block", _U32 * 3), ("thread", _U32 * 3), ("other_block", _U32 * 3), ("other_thread", _U32 * 3), ("detail", _U32 * 4),
        ("has_other", _U32), ("unused", _U32), ("place", ctypes.c_char * 112), ("text", ctypes.c_char * 192),
    ]


class RawCount(ctypes.Structure):
    _fields_ = [
        ("site", _U64), ("space", _U32), ("op", _U32), ("width", _U32), ("contention", _U32), ("requests", _U64), ("lanes", _U64),
        ("sectors", _U64),
        ("ideal_sectors", _U64), ("bytes_useful", _U64), ("wavefronts", _U64), ("ideal_wavefronts", _U64),
        ("source_requests", _U64), ("source_sectors", _U64), ("source_wavefronts", _U64), ("source_width", _U32), ("apart", ctypes.c_int32),
        ("of_width", _U64 * 5), ("source_of_width", _U64 * 5), ("phases", _U32), ("in_phase", _U32 * 8),
        ("steps", ctypes.c_int32 * 2), ("pairs", _U32 * 2), ("alike", _U32 * 2), ("began", _U64), ("last", _U64),
    ]


class Site(ctypes.Structure):
    """One access in the library and what the GPU's machine code has at its line: see runtime/compiled.h. Splits are numbered from 1."""

    _fields_ = [
        ("site", _U32), ("line", _U32), ("shared", _U32), ("global", _U32), ("shared_split", _U32), ("global_split", _U32), ("again", _U32)
    ]


def array(kind: type[S], data: bytes) -> list[S]:
    """The structures that lie in `data` one behind the other."""
    size = ctypes.sizeof(kind)
    return [kind.from_buffer_copy(data, at) for at in range(0, len(data) // size * size, size)]


class Native:
    """One loaded library. It holds one simulation at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        lib = self._library
        lib.simt_arena.restype, lib.simt_arena.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        lib.simt_mark.argtypes = [ctypes.c_size_t, _U32, _U32, ctypes.POINTER(_U64), ctypes.POINTER(_U64), _U32]
        lib.simt_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Launch)]
        lib.simt_findings.argtypes = [ctypes.POINTER(ctypes.POINTER(RawFinding))]
        lib.simt_variables_at.restype = ctypes.c_void_p
        lib.simt_printed.restype = ctypes.c_size_t
        if lib.simt_finding_bytes() != ctypes.sizeof(RawFinding):
            raise RuntimeError(f"{path} was built of another version of the engine")

    def arena(self, size: int) -> int:
        """The address of `size` bytes of zeroed global memory, behind which lie the source's variables as they are initialised. Raises
        MemoryError."""
        self._library.simt_restore()
        base = self._library.simt_arena(size)
        if not base:
            raise MemoryError(f"no address space for {size} bytes of simulated global memory")
        return int(base)

    @property
    def variables(self) -> int:
        """The address of the first of the source's variables."""
        return int(self._library.simt_variables_at())

    def mark(self, at: int, item: int, shape: Sequence[int], strides: Sequence[int], bits: int) -> None:
        n = len(shape)
        self._library.simt_mark(at, item, n, (_U64 * max(n, 1))(*shape), (_U64 * max(n, 1))(*strides), bits)

    def kernel(self, number: int) -> Kernel:
        return Kernel.in_dll(self._library, f"simt_kernel_{number}")

    def cluster(self, number: int) -> Index | None:
        """What the kernel's source says of its clusters (`__cluster_dims__`)."""
        try:
            return index([n or 1 for n in (_U32 * 3).in_dll(self._library, f"simt_cluster_{number}")])
        except ValueError:
            return None

    def written(self, at: int, size: int) -> bytes:
        """For each byte of the arena, 1 where somebody has written it or it had a value to begin with. Checking libraries only."""
        found = (ctypes.c_uint8 * max(size, 1))()
        self._library.simt_written(ctypes.c_size_t(at), ctypes.c_size_t(size), found)
        return bytes(found)[:size]

    def made(self, maker: str, addresses: Sequence[int], size: int) -> Any:
        """A struct of `size` bytes that the function `maker` of the library makes from addresses."""
        cell = (ctypes.c_char * size)()
        getattr(self._library, maker)(cell, (ctypes.c_void_p * max(len(addresses), 1))(*addresses))
        return cell

    def run(self, kernel: Kernel, cells: Sequence[Any], launch: Launch) -> int:
        """0: it ran to its end; 1: a fault stopped it; 2: no memory for its threads; 4 (ENDLESS): a loop of it does not end."""
        values = (ctypes.c_void_p * max(len(cells), 1))(*(ctypes.addressof(c) for c in cells))
        return int(self._library.simt_run(ctypes.addressof(kernel), values, ctypes.byref(launch)))

    def findings(self) -> list[RawFinding]:
        at = ctypes.POINTER(RawFinding)()
        n = self._library.simt_findings(ctypes.byref(at))
        return [RawFinding.from_buffer_copy(at[i]) for i in range(n)]

    def counts(self) -> list[RawCount]:
        at = ctypes.POINTER(RawCount)()
        n = self._library.simt_counts(ctypes.byref(at))
        return [RawCount.from_buffer_copy(at[i]) for i in range(n)]

    def widths(self, sites: Sequence[Site], splits: Sequence[Sequence[int]]) -> None:
        """Tell the engine how wide the GPU's machine code accesses memory; counting libraries only."""
        masks = [m for s in splits for m in s]
        self._library.simt_widths(
            (Site * max(len(sites), 1))(*sites), _U32(len(sites)), (_U32 * max(len(masks), 1))(*masks),
            (_U32 * max(len(splits), 1))(*map(len, splits)),
            _U32(len(splits)),
        )

    def dynamic_at(self, offset: int) -> None:
        """Where dynamic shared memory begins on the GPU, in bytes; counting libraries only."""
        self._library.simt_dynamic_at(_U32(offset))

    def program_memory(self) -> int:
        """Lay out memory for a program; the place behind it, at which the source's variables lie."""
        self._library.simt_program_begin.restype = ctypes.c_size_t
        return int(self._library.simt_program_begin())

    def program(self, pairs: Sequence[tuple[int, int]], arguments: Sequence[str], **given: Any) -> str:
        """Run main() with `arguments` (the program's name first); what it did, as JSON objects with commas between."""
        entries = (Pair * max(len(pairs), 1))(*(Pair(*p) for p in pairs))
        words = (ctypes.c_char_p * (len(arguments) + 1))(*(a.encode() for a in arguments), None)
        asked = ProgramRun(**given, pairs=len(pairs), entries=entries)
        self._library.simt_program(ctypes.byref(asked), len(arguments), words)
        at = ctypes.c_char_p()
        self._library.simt_journal.restype = ctypes.c_size_t
        n = self._library.simt_journal(ctypes.byref(at))
        return ctypes.string_at(at, n).decode(errors="replace") if n else ""

    def floats(self) -> tuple[int, int]:
        fma, other = _U64(), _U64()
        self._library.simt_floats(ctypes.byref(fma), ctypes.byref(other))
        return fma.value, other.value

    def printed(self) -> str:
        at = ctypes.c_char_p()
        n = self._library.simt_printed(ctypes.byref(at))
        return ctypes.string_at(at, n).decode(errors="replace") if n else ""

    def forget(self) -> None:
        self._library.simt_forget()


def index(values: Any) -> Index:
    return (int(values[0]), int(values[1]), int(values[2]))
