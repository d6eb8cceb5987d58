"""Compares the parameters of a compiled kernel, read from its cubin, with those in its head.

A cubin is an ELF file. Its section `.nv.info.<kernel>` is a list of attributes, with one for each parameter: its index and its size in
bytes. NVIDIA publishes no layout of that section; `cuobjdump --dump-elf` prints it (CUDA Binary Utilities), and tests compare what is read
here with that. Only
sizes are known: a pointer cannot be told from an i64, nor an i32 from an f32."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from math import prod

from rooftop.core.compile import BinaryError
from rooftop.core.head import HeadError
from rooftop.core.launch import CTYPES
from rooftop.core.spec import Launch

BYTES: Mapping[str, int] = {kind: ctypes.sizeof(made) for kind, made in CTYPES.items()}
_SECTION = struct.Struct("<IIQQQQ")  # of ELF-64: name, type, flags, address, offset, size, and unused fields
_PARAMETER = struct.Struct("<IHHI")  # index, number of the parameter, offset, and bits of which the upper 14 are the size in bytes
_PARAMETER_INFO = 0x17  # EIATTR_KPARAM_INFO
_THREADS = struct.Struct("<III")
_REQUIRED_THREADS = 0x10  # EIATTR_REQNTID: threads of a block, x, y and z
_SIZED = 4  # EIFMT_SVAL: an attribute with a size; every other is four bytes in all


def check(launch: Launch, cubin: bytes, symbol: str, path: str) -> None:
    """Raises HeadError, with the file, if the kernel `symbol` of `cubin` has other parameters than `launch` passes.

    Raises BinaryError for a cubin that cannot be read or does not contain the kernel."""
    takes = sizes(cubin, symbol)
    given = [(name, kind, BYTES[kind]) for name, kind in zip(launch.args, launch.types, strict=True)]
    if len(given) != len(takes):
        listed = ", ".join(f"{name}: {kind}" for name, kind, _ in given)
        raise HeadError(
            f"{path}: the head's args of {launch.kernel} are {len(given)} ({listed}); the kernel takes {len(takes)} parameters, "
            f"of {', '.join(map(str, takes)) or 'no'} bytes"
        )
    wrong = [(i, *one, size) for i, (one, size) in enumerate(zip(given, takes, strict=True), 1) if one[2] != size]
    if wrong:
        said = "; ".join(
            f"parameter {i}, {name}: the head says {kind}, {mine} bytes, and the kernel takes {size}" for i, name, kind, mine, size in wrong
        )
        raise HeadError(f"{path}: the head's args do not fit {launch.kernel}: {said}")


def sizes(cubin: bytes, symbol: str) -> tuple[int, ...]:
    """Bytes of each parameter of a kernel (its mangled symbol), in order. Raises BinaryError if the cubin cannot be read or does not
    contain the kernel."""
    try:
        listed = [_PARAMETER.unpack(value) for key, value in _attributes(cubin, symbol) if key == _PARAMETER_INFO]
    except (struct.error, IndexError) as error:
        raise BinaryError(f"the parameters of {symbol} cannot be read from the cubin: {error}") from None
    found = {place: bits >> 18 for _, place, _, bits in listed}
    if sorted(found) != list(range(len(found))):
        raise BinaryError(f"the cubin describes the parameters {sorted(found)} of {symbol}: some are missing")
    return tuple(found[i] for i in range(len(found)))


def block_threads(cubin: bytes, symbol: str) -> int | None:
    """Threads of a block of a kernel, if its machine code requires a fixed number. Raises BinaryError like `sizes`."""
    try:
        found = [prod(_THREADS.unpack(value)) for key, value in _attributes(cubin, symbol) if key == _REQUIRED_THREADS]
    except (struct.error, IndexError) as error:
        raise BinaryError(f"the threads of {symbol} cannot be read from the cubin: {error}") from None
    return found[0] if found else None


def _attributes(cubin: bytes, symbol: str) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of a kernel's `.nv.info` section; values without an explicit size are two bytes."""
    if cubin[:4] != b"\x7fELF":
        raise BinaryError(f"not a cubin: it starts with {cubin[:4]!r}, an ELF file with b'\\x7fELF'")
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    each, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [_SECTION.unpack_from(cubin, start + i * each) for i in range(count)]
    texts = sections[names]
    wanted = f".nv.info.{symbol}".encode()
    found = [(at, at + size) for name, _, _, _, at, size in sections if cubin.startswith(wanted + b"\0", texts[4] + name)]
    if not found:
        raise BinaryError(f"no kernel {symbol!r} in the cubin")
    at, end = found[0]
    while at < end:
        kind, key, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if kind == _SIZED:
            yield key, cubin[at : at + value]
            at += value
        else:
            yield key, value.to_bytes(2, "little")
