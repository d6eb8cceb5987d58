"""Simulations asked of a process of their own (`child`), which what they run cannot leave: docs/trust.md."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from rooftop.core import settings
from rooftop.core.sandbox import on_the_clock
from rooftop.lab.simt.build import Library
from rooftop.lab.simt.child import ENDED, MOST_THREADS, SENT, TOO_LONG, TOO_MANY, TOO_MUCH
from rooftop.lab.simt.launching import Answer, LaunchError, Request
from rooftop.lab.simt.native import RawFinding, array
from rooftop.lab.simt.report import KINDS

if TYPE_CHECKING:
    from torch import Tensor

UNREADABLE = "the simulation answers what cannot be read: its source writes in its place"
LARGEST = 1 << 30  # bytes of an answer
TELL_S = 10.0  # seconds between two signs of life
_STARTING = Lock()
_SERVERS: dict[int, tuple[subprocess.Popen[bytes], socket.socket]] = {}  # by process: one that is forked starts its own
ERRORS = {"LaunchError": LaunchError, "MemoryError": MemoryError, "OSError": OSError, "RuntimeError": RuntimeError}


class SimulatedCrash(ValueError):
    """The process in which a source was simulated ended before it was through."""


@dataclass(frozen=True)
class Parameter:
    """One of a kernel: its size, whether it is a pointer, and to const; the type, of a pointer that which it points to, as the compiler
    writes it."""

    bytes: int
    pointer: bool
    constant: bool
    target: str


def ask(request: Request, tensors: Mapping[str, Tensor], path: str) -> Answer:
    """Run a simulation; what it wrote comes to the tensors. `path`: what its source is called.

    Raises LaunchError and MemoryError as the engine does, SimulatedCrash where its process ended by something else."""
    addresses = {request.tensors[n].at: (t.untyped_storage().data_ptr(), request.tensors[n].size) for n, t in tensors.items()}
    size = max((at + size for at, (_, size) in addresses.items()), default=0)
    with contextlib.ExitStack() as held:
        contents = os.memfd_create("rooftop-simulation", os.MFD_CLOEXEC)
        held.callback(os.close, contents)
        storage = None
        if size:
            os.ftruncate(contents, size)
            storage = held.enter_context(mmap.mmap(contents, size))
        shared = ctypes.c_char.from_buffer(storage) if storage is not None else None
        base = ctypes.addressof(shared) if shared is not None else 0
        try:
            for at, (address, n) in addresses.items():
                ctypes.memmove(base + at, address, n)
            said, blob = _asked(pickle.dumps(request), contents, path, request.seconds)
            answer = _answer(said, blob, path)
            for at, (address, n) in addresses.items():
                ctypes.memmove(address, base + at, n)
        finally:
            del shared  # the map is closed behind it
    return answer


NUMBERS = ("ran", "total", "threads", "status", "fma", "other")  # of an answer, whole ones


def _answer(said: dict[str, Any], blob: bytes, path: str) -> Answer:
    """An answer as it must be: whoever wrote it may have been taken over. Raises SimulatedCrash."""
    lengths, printed = said.pop("blobs", None), said.get("printed")
    whole = (
        isinstance(lengths, list) and len(lengths) >= 3 and all(type(n) is int and n >= 0 for n in lengths) and sum(lengths) == len(blob)
    )
    texts = isinstance(printed, str) and isinstance(said.get("journal"), str)
    if not whole or not texts or set(said) != {*NUMBERS, "printed", "journal"} or not all(type(said[n]) is int for n in NUMBERS):
        raise SimulatedCrash(f"{path}: {UNREADABLE}")
    blobs = [blob[sum(lengths[:i]) : sum(lengths[: i + 1])] for i in range(len(lengths))]
    if any(f.kind >= len(KINDS) for f in array(RawFinding, blobs[0])):
        raise SimulatedCrash(f"{path}: {UNREADABLE}")
    return Answer(**said, findings=blobs[0], counts=blobs[1], held=blobs[2])


def parameters(library: Library, kernel: str) -> list[Parameter]:
    """Those of one kernel of a built library."""
    contents = os.memfd_create("rooftop-simulation", os.MFD_CLOEXEC)
    try:
        said, _ = _asked(pickle.dumps((library.path, library.kernels[kernel])), contents, str(library.path), 60)
    finally:
        os.close(contents)
    try:
        return [Parameter(int(size), bool(pointer), bool(constant), str(target)) for size, pointer, constant, target in said["parameters"]]
    except (KeyError, TypeError, ValueError):
        raise SimulatedCrash(f"{library.path.name}: {UNREADABLE}") from None


def going_on(seconds: float) -> None:
    """Called every TELL_S while a simulation is under way, with the seconds since it began. A command that has something to say of it
    replaces it."""


def _asked(request: bytes, contents: int, path: str, seconds: int) -> tuple[dict[str, Any], bytes]:
    most = settings.load().simt_mib << 20
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            _send(struct.pack("QQQ", len(request), most, seconds), [theirs.fileno(), contents])
        ours.sendall(request)
        said: dict[str, Any] | None = None
        blob = b""
        why = status = 0
        began = time.monotonic()
        while kind := _first(ours, began):
            if kind == SENT and said is None:
                header, rest = struct.unpack("QQ", _exactly(ours, 16))
                if header + rest > LARGEST:
                    raise SimulatedCrash(f"{path}: its simulation answers {header + rest} bytes; at most {LARGEST} are read")
                try:
                    said, blob = json.loads(_exactly(ours, header)), _exactly(ours, rest)
                except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                    raise SimulatedCrash(f"{path}: {UNREADABLE}") from None
                if not isinstance(said, dict):
                    raise SimulatedCrash(f"{path}: {UNREADABLE}")
            elif kind == ENDED:
                why, status = struct.unpack("qq", _exactly(ours, 16))
    if said is None:
        raise SimulatedCrash(f"{path}: the simulation {_ending(why, status, most, seconds)}")
    if "error" in said:
        raise ERRORS.get(str(said["error"]), RuntimeError)(str(said.get("text")))
    return said, blob


def _first(ours: socket.socket, began: float) -> bytes:
    """The first byte of what comes next; none at the end."""
    while not select.select([ours], [], [], TELL_S)[0]:
        going_on(time.monotonic() - began)
    return ours.recv(1)


def _ending(why: int, status: int, most: int, seconds: int) -> str:
    """How a process ended that did not answer."""
    if why == TOO_MUCH:
        return f"took more than {most >> 20} MiB of memory (ROOFTOP_SIMT_MIB) and was ended"
    if why == TOO_LONG:
        return f"had not ended after {on_the_clock(seconds)} s and was ended: it may take {seconds} s of CPU time (ROOFTOP_SIMT_SECONDS)"
    if why == TOO_MANY:
        return f"started more than {MOST_THREADS} threads and was ended"
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"took more than {seconds} s of CPU time (ROOFTOP_SIMT_SECONDS), or more memory than the system has, and was ended"
    if status < 0:
        name = signal.Signals(-status)
        return f"crashed: {signal.strsignal(name)} ({name.name}), in code that no simulated thread runs, or in what a thread did to its process"
    return f"ended with exit code {status} before it was through: its source ends the process"


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise SimulatedCrash("the simulation broke off its answer")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(message: bytes, descriptors: list[int]) -> None:
    """To the server, which is started where there is none, or anew where it has ended."""
    for attempt in (0, 1):
        server = _server()
        try:
            socket.send_fds(server, [message], descriptors)
            return
        except OSError:
            if attempt:
                raise
            with _STARTING:
                _stop(os.getpid())


def _server() -> socket.socket:
    with _STARTING:
        own = os.getpid()
        if own not in _SERVERS:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            start = f"import sys; sys.path[:] = {sys.path!r}; from rooftop.lab.simt.child import serve; serve({theirs.fileno()})"
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-c", start], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    start_new_session=True, env=settings.bare_environment(),
                )
            _SERVERS[own] = process, ours
            atexit.register(_stop, own)
        return _SERVERS[own][1]


def _stop(own: int) -> None:
    if own in _SERVERS and own == os.getpid():
        process, channel = _SERVERS.pop(own)
        channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
