"""A separate Python process that runs jobs one after another: for a compiler or an interpreter that this process must not import."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.core import settings

LIMIT = 300.0  # seconds that one job may take


def cpu_seconds() -> float:
    """CPU time of this process and of the child processes it has waited for, since it started."""
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


class ChildError(RuntimeError):
    """The error that the process reported for a job, or that the process ended."""


class ChildTimeout(ChildError):
    """The process did not answer in time."""


class Process:
    """Runs `module` with the interpreter `python`. The process reads each job as a line of JSON and answers with one. It is killed if it does not answer in
    time.

    `error`, `timeout`: the exceptions to raise; `what`: a name of the process for messages; `slow`: added to the message about a job that did not end."""

    def __init__(
        self, python: Path, module: str, environment: Mapping[str, str], *, what: str, error: type[ChildError] = ChildError,
        timeout: type[ChildError] = ChildTimeout, slow: str = "",
    ) -> None:  # fmt: skip
        self._python, self._module, self._environment = python, module, dict(environment)
        self._what, self._error, self._timeout, self._slow = what, error, timeout, slow
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._answered = False
        self._earlier_output = 0  # bytes of what it wrote about earlier jobs
        self._lock = threading.Lock()

    def ask(self, job: Mapping[str, Any], limit: float = LIMIT) -> Any:
        """The answer to a job. Raises `error` with the process's error text, `timeout` after `limit` seconds."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            self._earlier_output = os.fstat(self._errors.fileno()).st_size if self._answered else 0
            try:
                child.stdin.write(json.dumps(job).encode() + b"\n")
                child.stdin.flush()
                answer = _line(child.stdout.fileno(), limit)
            except (BrokenPipeError, EOFError):
                message = self._killed() or f"ended: {self._last_words()}"
                self.end()
                raise self._error(f"the process of {self._what} {message}") from None
            except TimeoutError:
                message = f"no answer in {limit:.0f} s from the {job['what']} of {Path(str(job.get('kernel', ''))).name}"
                self.end()
                raise self._timeout(f"{message}{self._slow}") from None
            except BaseException:
                self.end()
                raise
        self._answered = True
        found = json.loads(answer)
        if "error" in found:
            raise self._error(found["error"])
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._answered = False
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
            self._child = subprocess.Popen(
                [str(self._python), "-m", self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                env=settings.environment({**self._environment, "PYTHONPATH": str(settings.CHECKOUT)}), start_new_session=True, bufsize=0,
            )  # fmt: skip
        return self._child

    def _killed(self) -> str | None:
        """None, or a message that another process or the system killed it, so that no job is blamed."""
        assert self._child is not None
        try:
            killed = self._child.wait(5.0) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return None
        return "was killed (SIGKILL: by somebody, or for want of memory); run it again" if killed else None

    def _last_words(self) -> str:
        self._errors.seek(self._earlier_output)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        why = [line for line in lines if re.match(r"F\d{4} |.*Check fail", line)]  # the reason, if a compiler aborts itself; a long stack trace follows
        return " ".join((why or lines or ["it said nothing"])[-1].split())[:600]

    def close(self, patience: float = 2.0) -> None:
        """Let the process end by itself, so that it removes its temporary files; it is killed if that takes longer than `patience` seconds."""
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

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _line(source: int, limit: float) -> bytes:
    """One line from a pipe. Raises TimeoutError, EOFError."""
    found, end = b"", time.monotonic() + limit
    while not found.endswith(b"\n"):
        if not select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(source, 1 << 20)
        if not part:
            raise EOFError
        found += part
    return found
