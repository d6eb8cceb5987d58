"""A separate Python process that runs jobs one after another: for a compiler or an interpreter that this process must not import, and for
other people's code, which may end the process that runs it, fill its memory or never come to an end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.forms import FormError, formed

LIMIT = 300.0  # seconds that one job may take
ANSWER = 1 << 28  # bytes of an answer
LOOK = 0.25  # seconds between two looks at what it takes
MOST_PROCESSES, MOST_PRINTED = 512, 1 << 30  # that it may start; bytes
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """CPU time of this process and of the child processes it has waited for, since it started."""
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


class ChildError(RuntimeError):
    """The error that the process reported for a job, or that the process ended."""


class ChildTimeout(ChildError):
    """The process did not answer in time."""


class Process:
    """Runs `module` with the interpreter `python`. The process reads each job as a line of JSON and answers with one. It is killed, with
    all that it has started, if it does not answer in time, takes more memory than a simulation may, or answers more than ANSWER bytes.

    `error`, `timeout`: the exceptions to raise; `what`: a name of the process for messages; `slow`: added to the message about a job that
    did not end. `before`: the words of a command that starts it, as bubblewrap; `arguments`: its own; `processes`: how many it may
    start."""

    def __init__(
        self, python: Path, module: str, environment: Mapping[str, str], *, what: str, error: type[ChildError] = ChildError,
        timeout: type[ChildError] = ChildTimeout, slow: str = "", before: Sequence[str] = (), processes: int = MOST_PROCESSES,
        arguments: Sequence[str] = (),
    ) -> None:
        self._python, self._module, self._environment = python, module, dict(environment)
        # what lies in the present folder is no module of Python's; 3.10 knows no such flag
        self._flags = ["-P"] if python == Path(sys.executable) else []
        self._what, self._error, self._timeout, self._slow = what, error, timeout, slow
        self._before, self._processes, self._arguments = list(before), processes, list(arguments)
        self._child: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._errors: Any = None
        self._answered = False
        self._earlier_output = 0  # bytes of what it wrote about earlier jobs
        self._lock = threading.Lock()

    def ask(self, job: Mapping[str, Any], limit: float = LIMIT, *forms: type) -> Any:
        """The answer to a job, as the first of `forms` that it has (`forms.formed`); an object of JSON where none is given. Raises `error`
        with the process's error text, or for an answer that is none; `timeout` after `limit` seconds."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            self._earlier_output = os.fstat(self._errors.fileno()).st_size if self._answered else 0
            try:
                child.stdin.write(json.dumps(job).encode() + b"\n")
                child.stdin.flush()
                answer = _line(child, limit, self._errors.fileno(), self._processes)
            except (BrokenPipeError, EOFError):
                message = self._killed() or self._ended()
                self.end()
                raise self._error(f"the process of {self._what} {message}") from None
            except TimeoutError:
                message = f"no answer in {limit:.0f} s from the {job['what']} of {Path(str(job.get('kernel', ''))).name}"
                self.end()
                raise self._timeout(f"{message}{self._slow}") from None
            except _TooMuch as error:
                self.end()
                raise self._error(f"the {job['what']} of {Path(str(job.get('kernel', ''))).name} {error}") from None
            except BaseException:
                self.end()
                raise
        self._answered = True
        try:
            found = formed(json.loads(answer), dict[str, Any])
        except (ValueError, RecursionError):
            raise self._error(f"the process of {self._what} answers what is no object of JSON") from None
        if isinstance(said := found.get("error"), str):
            raise self._error(said)
        wrong: list[FormError] = []
        for form in forms:
            try:
                return formed(found, form)
            except FormError as error:
                wrong.append(error)
        if wrong:
            raise self._error(f"the process of {self._what} answers what cannot be read: {' / '.join(map(str, wrong))}")
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._answered = False
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
            self._child = subprocess.Popen(
                [*self._before, str(self._python), *self._flags, "-m", self._module, *self._arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                env=settings.environment({**self._environment, "PYTHONPATH": settings.python_path()}), start_new_session=True, bufsize=0,
            )
            self._pid = self._child.pid
        return self._child

    def _killed(self) -> str | None:
        """None, or a message that another process or the system killed it, so that no job is blamed."""
        assert self._child is not None
        try:
            killed = self._child.wait(5.0) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return None
        return "was killed (SIGKILL: by somebody, or for want of memory); run it again" if killed else None

    def _ended(self) -> str:
        assert self._child is not None
        code = self._child.poll()  # None: it has closed its side alone
        how = (
            f" by {signal.Signals(-code).name}" if code is not None and code < 0 else "" if code in (None, 1) else f" with exit code {code}"
        )
        return f"ended{how}: {self._last_words()}"

    def printed(self, most: int) -> str:
        """What it has printed so far, its first `most` characters, with control characters written out."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        text = self._errors.read(4 * most + 4).decode(errors="replace")
        shown = "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text[:most])
        return shown + ("\n..." if len(text) > most else "")

    def _last_words(self) -> str:
        self._errors.seek(self._earlier_output)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        # the reason, if a compiler aborts itself; a long stack trace follows
        why = [line for line in lines if re.match(r"F\d{4} |.*Check fail", line)]
        return " ".join((why or lines or ["it said nothing"])[-1].split())[:600]

    def close(self, patience: float = 2.0) -> None:
        """Let the process end by itself, so that it removes its temporary files; it is killed if that takes longer than `patience`
        seconds."""
        free = self._lock.acquire(timeout=patience)
        try:
            if free and self._child is not None and self._child.stdin is not None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    self._child.stdin.close()
                    self._child.wait(patience)
            self.end()
        finally:
            if free:
                self._lock.release()

    def kill(self) -> None:
        """End the process at once, though another thread waits for its answer: that gets the error."""
        while not self._lock.acquire(timeout=0.05):
            if (child := self._child) is not None:
                for process in [*_session(child.pid), child.pid]:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGKILL)
        self._lock.release()
        self.end()

    @property
    def pid(self) -> int | None:
        """Of the process that runs, or ran last."""
        return self._pid

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            for process in [child.pid, *_session(child.pid)]:  # what it has started may have a group of its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


class _TooMuch(Exception):
    """What a process takes more of than it may."""


def left_running(leader: int) -> tuple[int, int]:
    """Threads of a process, and other processes of its session."""
    try:
        return len(list(Path(f"/proc/{leader}/task").iterdir())), len(_session(leader))
    except OSError:
        return 0, 0


def _session(leader: int) -> list[int]:
    """The processes of a session other than its leader."""
    found = []
    for process in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
        with contextlib.suppress(OSError):
            if process != leader and os.getsid(process) == leader:
                found.append(process)
    return found


def _memory(leader: int) -> int:
    """Bytes in use by the processes of a session."""
    return memory(leader) + sum(memory(process, shared=False) for process in _session(leader))


def memory(process: int, shared: bool = True) -> int:
    """Bytes in use by a process; 0 where nothing says it. `shared`: those that others use too are counted."""
    try:
        resident, theirs = map(int, Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1:3])
    except (OSError, ValueError):
        return 0
    return (resident if shared else resident - theirs) * PAGE


def alive() -> None:
    """Called where a long step of a command has come on. A process that runs one for another replaces it: who waits for an answer waits
    longer then."""


class Jobs:
    """The side of a process that answers: the jobs that it is given. What is printed goes to the standard error stream from now on, and is
    never taken for an answer; the standard input is empty. It ends when the process that asks is gone, even in the middle of a job."""

    def __init__(self) -> None:
        end_with_parent()
        self._jobs, self._answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def __iter__(self) -> Iterator[Any]:
        for line in self._jobs:
            yield json.loads(line)

    def answer(self, said: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(said, default=str) + "\n")
        self._answers.flush()


def end_with_parent() -> None:
    """Of a process that answers: end when the one that asked is gone, even in the middle of a job."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _line(child: subprocess.Popen[bytes], limit: float, printed: int, processes: int) -> bytes:
    """One line from a process. `printed`: the file of what it prints. Raises TimeoutError, EOFError, _TooMuch."""
    assert child.stdout is not None
    source, most = child.stdout.fileno(), settings.load().simt_mib
    parts: list[bytes] = []
    size, now = 0, time.monotonic()
    end, look = now + limit, now + LOOK
    while not (parts and parts[-1].endswith(b"\n")):
        ready = select.select([source], [], [], max(0.0, min(look, end) - time.monotonic()))[0]
        if (now := time.monotonic()) >= look:
            if _memory(child.pid) > most << 20:
                raise _TooMuch(f"took more than {most} MiB of memory (ROOFTOP_SIMT_MIB)")
            if len(_session(child.pid)) > processes:
                raise _TooMuch(f"started more than {processes} processes")
            if os.fstat(printed).st_size > MOST_PRINTED:
                raise _TooMuch(f"printed more than {MOST_PRINTED} bytes")
            look = now + LOOK
        if not ready:
            if now >= end:
                raise TimeoutError
            continue
        part = os.read(source, 1 << 20)
        if not part:
            raise EOFError
        parts.append(part)
        if (size := size + len(part)) > ANSWER:
            raise _TooMuch(f"answers more than {ANSWER} bytes")
    return b"".join(parts)
