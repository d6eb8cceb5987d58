"""How commands end: what a user can mend is one line and an exit code, not a traceback. The commands of `rooftop`, and modules that are
called as `python -m rooftop.lab....`."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from rooftop.core import disk_cache, settings
from rooftop.core.names import package_of
from rooftop.core.texts import brief, printable


class NoGpuError(RuntimeError):
    """Timing needs an NVIDIA GPU, and there is none."""


OK, WRONG, SLOWER, ENVIRONMENT = 0, 1, 2, 3
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
CLOSED = 141  # what a shell says of a program that a closed pipe ended
USAGE = typer.BadParameter.__bases__[0]  # typer's own class of usage errors, which it gives exit code 2


class Parser(argparse.ArgumentParser):
    """Of a module that is called by `python -m`: wrong usage ends with exit code 1, as everywhere."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message} (--help lists what there is)\n")


def positive(text: str) -> int:
    """The type of an option that is a count."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def device(text: str) -> str:
    """The type of an option that is a device of torch: one that is here. Raises NoGpuError."""
    import torch

    try:
        kind = torch.device(text).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda or cuda:N")
    if kind == "cuda":
        gpu_for(f"the device {text}")
    return text


def gpu_for(what: str) -> None:
    """Raises NoGpuError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise NoGpuError(f"{what} needs an NVIDIA GPU: torch.cuda.is_available() is False (rooftop doctor says what is missing)")


def ended(task: Callable[[], object]) -> None:
    """Do a command's task. Errors that a user can mend are one clear text, not a traceback. Ctrl-C ends it with exit code 130, quietly."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _ended(task)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # where Ctrl-C came in the exec of a text, Python would end by the signal, whatever the exit code: until another text was run
        exec("")
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _ended(task: Callable[[], object]) -> None:
    try:
        _run_reporting_errors(task)
    except ModuleNotFoundError as error:
        absent = error.name or ""
        if absent.partition(".")[0] in ("", "rooftop"):
            raise
        package = package_of(absent)
        said = (
            f"{package} is not installed: pip install {package}" if package
            else f"Python finds no module {absent}, which rooftop does not use itself"
        )
        _end(said, ENVIRONMENT)
    except SystemExit as end:
        if isinstance(end.__context__, USAGE):
            sys.exit(WRONG)
        if isinstance(end.__context__, BrokenPipeError):  # `| head` has read enough: that is no wrong result
            sys.exit(CLOSED)
        raise
    finally:
        disk_cache.trim()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """What Ctrl-C does. During an import an exception is no way out: packages catch it and go on without the half of themselves."""
    at = frame
    while at is not None:
        if at.f_code.co_filename == "<frozen importlib._bootstrap>":
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # the cursor, which a bar of progress hides
            os._exit(INTERRUPTED)
        at = at.f_back
    raise KeyboardInterrupt


def _run_reporting_errors(task: Callable[[], object]) -> None:
    from rooftop.core.compile import CompileError, ToolchainError
    from rooftop.core.expressions import ExpressionError
    from rooftop.core.head import HeadError
    from rooftop.core.names import RegistryError
    from rooftop.core.registry import not_python
    from rooftop.lab.records.store import RecordError

    try:
        task()
    except (NoGpuError, ToolchainError) as error:
        _end(str(error), ENVIRONMENT)
    except (RegistryError, HeadError, ExpressionError, CompileError, RecordError, ValueError) as error:
        _end(str(error.args[0] if isinstance(error, LookupError) and error.args else error), WRONG)
    except SyntaxError as error:  # of a kernel's file, or a rung's
        _end(not_python(error), WRONG)
    except MemoryError as error:  # an array that a file says is larger than the machine
        _end(f"there is not enough memory: {error}".rstrip(": "), ENVIRONMENT)
    except OSError as error:  # a folder that cannot be written, a full disk
        if error.errno == errno.ENOSPC and error.filename is None:
            error = _full(error)
        if error.errno is None:
            _end(str(error), WRONG if isinstance(error, FileNotFoundError) else ENVIRONMENT)
        where = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        said = f"{where}: {error.strerror}" if where else str(error)
        if _within(error, lambda: settings.load().cache):
            _end(f"{said}: the compile cache cannot be used; set ROOFTOP_CACHE to a folder that can be written", ENVIRONMENT)
        if _within(error, settings.triton_cache):
            _end(f"{said}: Triton's cache cannot be used; set TRITON_CACHE_DIR to a folder that can be written", ENVIRONMENT)
        if isinstance(error, FileNotFoundError):
            _end(f"no file {where}" if where else str(error), WRONG)
        if isinstance(error, IsADirectoryError):
            said = f"{where} is a folder; a file is needed"
        if isinstance(error, (NotADirectoryError, FileExistsError)) and (file := _file_above(error)):
            said = f"{file} is a file; a folder is needed"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            said = f"{said}; name a place that this user can use"
        if error.errno == errno.ENOSPC:
            said = f"{where or 'a file'} cannot be written: no space left on the disk; free some, or name a folder on another"
        _end(said, ENVIRONMENT)


def echo(text: object = "", err: bool = False) -> None:
    """A line of a command. What came from outside (a kernel's source, a record, a compiler) can hold no control characters."""
    typer.echo(printable(str(text)), err=err)


def _end(text: str, code: int) -> NoReturn:
    echo(f"rooftop: {brief(text)}", err=True)
    sys.exit(code)


def _full(error: OSError) -> OSError:
    """The error with the folder of the cache that is full, where it is one of the caches."""
    try:
        disk_cache.ready()
    except (OSError, ValueError) as found:
        return found if isinstance(found, OSError) and found.errno == errno.ENOSPC else error
    return error


def _file_above(error: OSError) -> Path | None:
    """The file that stands where the error's path needs a folder."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return None
    path = Path(error.filename)
    return next((p for p in (path, *path.parents) if p.is_file()), None)


def _within(error: OSError, folder: Callable[[], Path]) -> bool:
    """Whether the path of the error lies in a cache's folder, or above it while there is none."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return False
    try:
        path, cache = Path(error.filename).absolute(), folder().absolute()
    except (OSError, ValueError):  # no home folder, a variable that cannot be
        return False
    return path.is_relative_to(cache) or (cache.is_relative_to(path) and not cache.is_dir())
