"""Writes files completely or not at all: a partial file, after a full disk for example, never replaces the old one. Reads files that are
files."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MOST = 1 << 28  # bytes of a file that is read whole


@contextlib.contextmanager
def open_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write into, which replaces `path` at the end. Raises OSError with the path; the old file is then unchanged."""
    path = Path(path)
    target = path.resolve() if path.is_symlink() else path
    apart = not target.exists() or target.is_file()  # devices and pipes are written into directly
    beside = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp") if apart else target
    try:
        with open(beside, "wb") as file:
            if apart and target.exists():
                beside.chmod(target.stat().st_mode & 0o7777)
            yield file
        if apart:
            os.replace(beside, target)
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(beside):
            raise
        code = error.errno or errno.ENOSPC  # NumPy reports "n requested and m written" without an error code
        raise OSError(code, os.strerror(code), str(path)) from None
    finally:
        if apart:
            beside.unlink(missing_ok=True)


def regular(path: str | Path, most: int = MOST) -> bytes:
    """The content of a file. Raises OSError for what is none, since to read a pipe that nobody writes into would wait for ever, and for
    more than `most` bytes, which an empty file can say that it has."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {most:,} are read", str(path))
        return file.read()


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds this path to write errors that name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write(path: str | Path, data: str | bytes) -> None:
    """Replaces the file's content by `data`."""
    with open_whole(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def save_array(path: str | Path, x: Any) -> None:
    """Writes a .npy file under any name."""
    import numpy as np

    with open_whole(path) as file:
        np.save(file, x)


def free(path: Path) -> Path:
    """A name beside a damaged file that is not taken."""
    names = (path.with_name(f"{path.name}.damaged{f'-{n}' if n else ''}") for n in range(10_000))
    return next(p for p in names if not p.exists())
