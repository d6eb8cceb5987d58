"""The process in which simulated code runs, and the one that it comes from.

A server, started once and as small as it can be, forks for every simulation a monitor, and that the process which loads the library and
runs it:
confined first (`sandbox`), then of no use for anything else. The monitor ends it where it takes too much time, memory or too many threads,
or nobody waits for it any more, and tells how it ended. What comes back is data without code: it is written by a process that may have been
taken over."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import pickle
import re
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooftop.core import sandbox, settings
from rooftop.lab.simt import native
from rooftop.lab.simt.launching import Answer, LaunchError, Request, answer

LOOK = 0.02  # seconds between two looks at what a simulation takes
MOST_THREADS = 4096
TOLD = 500  # times that a program is asked to end, once a look, before it is ended
_FIELD = re.compile(r"^(VmRSS|VmSwap|VmPTE|Threads):\s*(\d+)", re.M)
PRINTED = 63  # the descriptor by which runtime/program.cpp reads what a program prints
SENT, ENDED = b"A", b"E"  # the two messages of a simulation: what it came to, and how its process ended
TOO_MUCH, TOO_LONG, TOO_MANY = -1, -2, -3  # in place of an exit status: it took more memory, time or threads than it may


def serve(descriptor: int) -> None:
    """Take requests until the other side is gone: each is a message with two descriptors, a socket to answer by and the tensors'
    contents."""
    import numpy  # noqa: F401  # for all that are forked

    asked = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for monitors
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 64, 2)
        if not message:
            return
        if os.fork() == 0:
            status = 1
            try:
                asked.close()
                _monitor(descriptors[0], descriptors[1], *struct.unpack("QQQ", message))
                status = 0
            finally:
                os._exit(status)
        for d in descriptors:
            os.close(d)


def _monitor(reply: int, contents: int, size: int, most: int, seconds: int) -> None:
    """Read the request, run it in a process of its own, watch that. `size`: bytes of the request; `most`: of memory; `seconds`: of CPU
    time."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel = socket.socket(fileno=reply)
    request = pickle.loads(_exactly(channel, size))
    pid = os.fork()
    if pid == 0:
        try:
            _work(channel, contents, request)
        finally:
            os._exit(70)
    ended = os.pidfd_open(pid)
    watched = select.poll()
    watched.register(ended, select.POLLIN)
    watched.register(channel, select.POLLHUP | select.POLLRDHUP)
    why, end = 0, time.monotonic() + sandbox.on_the_clock(seconds)
    told = TOLD if isinstance(request, Request) and request.program is not None else 0
    while ended not in (events := dict(watched.poll(LOOK * 1000))):
        if events:  # nobody waits for it
            os.kill(pid, signal.SIGKILL)
            watched.unregister(channel)
        elif taken := _beyond(pid, most, end):
            if taken == TOO_LONG and told:  # a program may end by itself, and say what it has come to
                told, end = told - 1, time.monotonic() + LOOK
                os.kill(pid, signal.SIGXCPU)
                continue
            why = taken
            os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        channel.sendall(ENDED + struct.pack("qq", why, status))


def _beyond(pid: int, most: int, end: float) -> int:
    """What a process takes too much of; 0 where nothing. Memory is what it has in use, what of it lies in the swap, and the tables of its
    pages."""
    if time.monotonic() > end:
        return TOO_LONG
    try:
        said = dict(_FIELD.findall(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return 0
    if sum(int(said.get(name, 0)) for name in ("VmRSS", "VmSwap", "VmPTE")) << 10 > most:
        return TOO_MUCH
    return TOO_MANY if int(said.get("Threads", 0)) > MOST_THREADS else 0


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _work(channel: socket.socket, contents: int, request: Request | tuple[Path, int]) -> None:
    """Run a request and send what came of it. Does not return."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    printed = isinstance(request, Request) and request.program is not None
    if printed:  # what a program prints comes back to it by a pipe
        ends = os.pipe()
        os.dup2(ends[0], PRINTED)
        os.dup2(ends[1], 1)
        os.dup2(ends[1], 2)
    library = request.library if isinstance(request, Request) else request[0]
    size = os.fstat(contents).st_size
    storage = mmap.mmap(contents, size) if size else None
    keep = {0, 1, 2, channel.fileno(), *([PRINTED] if printed else ())}
    for d in [int(p.name) for p in Path("/proc/self/fd").iterdir()]:
        if d not in keep:
            with contextlib.suppress(OSError):
                os.close(d)
    sandbox.limits(request.seconds if isinstance(request, Request) else 60)
    given: Sequence[Path] = ()
    if isinstance(request, Request) and request.program is not None and (given := request.program.files):
        os.chdir(request.program.here)
        if request.program.input is not None:
            os.dup2(os.open(request.program.input, os.O_RDONLY), 0)
    sandbox.confine([library.parent, library.parent.parent / "engine", Path(sys.base_prefix) / "lib", *settings.library_folders(), *given])
    blobs: Sequence[bytes] = ()
    said: dict[str, Any]
    try:
        lib = native.Native(library)
        if isinstance(request, Request):
            at = ctypes.addressof(ctypes.c_char.from_buffer(storage)) if storage is not None else 0
            made = answer(request, lib, at)
            said, blobs = _message_of(made)
        else:
            kernel = lib.kernel(request[1])
            said = {"parameters": [[p.bytes, p.pointer, p.constant, p.target] for p in kernel.parameters[: kernel.count]]}
    except (LaunchError, MemoryError, OSError, RuntimeError) as error:
        said = {"error": type(error).__name__, "text": str(error)}
    except BaseException as error:
        said = {"error": "RuntimeError", "text": f"{type(error).__name__}: {error}"}
    header = json.dumps(said).encode()
    for part in (SENT + struct.pack("QQ", len(header), sum(map(len, blobs))), header, *blobs):
        left = memoryview(part)
        while left:  # by the one call that the filter leaves for it
            left = left[os.write(channel.fileno(), left) :]
    os._exit(0)


def _message_of(made: Answer) -> tuple[dict[str, Any], list[bytes]]:
    said = {name: getattr(made, name) for name in ("ran", "total", "threads", "status", "printed", "fma", "other", "journal")}
    blobs = [made.findings, made.counts, made.held]
    return {**said, "blobs": [len(b) for b in blobs]}, blobs


if __name__ == "__main__":
    serve(int(sys.argv[1]))
