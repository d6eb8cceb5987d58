"""What judges the queue: a thread a device, which has a process judge one job after the other."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core.child import ChildError, Process
from rooftop.core.forms import FormError
from rooftop.lab.exit_codes import NoGpuError
from rooftop.lab.judge.board import BoardError
from rooftop.lab.judge.serve.queue import Job, Queue
from rooftop.lab.judge.verdict import Verdict

CHILD = "rooftop.lab.judge.serve.job_child"
SECONDS = 1800.0  # that a judgement may take in all
RECOGNISED = 20.0  # seconds that a form may take to be recognised
AGAIN = 2.0  # seconds after which what could not be kept is tried again
Say = Callable[..., None]


@dataclass(frozen=True)
class Refused:
    refused: str


@dataclass(frozen=True)
class Recognised:
    form: str


@dataclass(frozen=True)
class Judged:
    verdict: dict[str, Any]


@dataclass(frozen=True)
class Begun:
    begun: int


@dataclass(frozen=True)
class Device:
    device: str


@contextlib.contextmanager
def handed_in(file: str, source: str) -> Iterator[Path]:
    """The file, alone in a folder of its own that goes again."""
    with tempfile.TemporaryDirectory(prefix="rooftop-serve-") as folder:
        path = Path(folder).resolve() / file
        path.write_text(source, encoding="utf-8")
        yield path


def device_of(target: str | None) -> str:
    """"cpu", or the short name of the card that is here. Raises NoGpuError for one that is not. A process says it, so that this one needs
    no torch."""
    if target == "cpu":
        return target
    process = Process(Path(sys.executable), CHILD, {}, what="the judge")
    try:
        said = process.ask({"what": "device", "target": target}, SECONDS, Device, Refused)
    finally:
        process.close(0.1)
    if isinstance(said, Refused):
        raise NoGpuError(said.refused)
    return str(said.device)


def form_of(file: str, source: str, op: str, function: str, target: str, trusted: bool) -> tuple[str, str]:
    """(form, why it is not taken), asked of a process: to parse a text of somebody's can take long, or end the process."""
    with handed_in(file, source) as path:
        process = Process(Path(sys.executable), CHILD, {}, what="the judge")
        try:
            job = {"what": "form", "kernel": word(path, function), "op": op, "target": target, "trusted": trusted}
            said = process.ask(job, RECOGNISED, Recognised, Refused)
        except ChildError as error:
            return "", str(error)
        finally:
            process.close(0.1)
    return (said.form, "") if isinstance(said, Recognised) else ("", said.refused)


def word(path: Path, function: str) -> str:
    return f"{path}:{function}" if function else str(path)


class Worker(threading.Thread):
    """Judges the jobs of a device. `say(event, **fields)` is told what happens. `trusted`: what runs with this process's rights is judged
    too. `begin`: fill the board with the records first. `child`: the module that judges."""

    def __init__(
        self, board: Path, target: str, say: Say, *, trusted: bool = False, begin: bool = False, child: str = CHILD, seconds: float = SECONDS
    ) -> None:
        super().__init__(name=f"judge of {target}", daemon=True)
        self.target, self.trusted, self.trouble = target, trusted, ""
        self._board, self._say, self._child, self._seconds, self._begin = board, say, child, seconds, begin
        self._ending, self._wake = threading.Event(), threading.Event()
        self._process: Process | None = None
        self._now: tuple[str, Path] | None = None

    def wake(self) -> None:
        """There may be a job."""
        self._wake.set()

    def stop(self) -> None:
        """End at once; the job that is being judged waits again."""
        self._ending.set()
        self._wake.set()
        if (process := self._process) is not None:
            process.kill()
        self.join(10.0)

    def stage(self, name: str) -> str:
        """What is done for a job now, as far as its process has said."""
        now = self._now
        with contextlib.suppress(OSError):
            if now is not None and now[0] == name:
                return now[1].read_text(encoding="utf-8")
        return ""

    def run(self) -> None:
        lock = self._board.with_name(f"{self._board.name}.{self.target}.lock")
        while not self._ending.is_set():
            try:
                with lock.open("w") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two servers on one board: the second one waits
                    self._turns()
            except BlockingIOError:
                self.trouble = f"another server judges for {self.target} on this board"
            except Exception as error:  # the others of the queue go on; what it was about is begun again, a few times
                self.trouble = f"{type(error).__name__}: {error}"
                self._say("trouble", target=self.target, said=str(error))
            self._ending.wait(AGAIN)

    def _turns(self) -> None:
        with Queue(self._board) as queue:
            if resumed := queue.resume(self.target):
                self._say("resumed", target=self.target, jobs=resumed)
            if self._begin:
                self._begin = False
                self._asked({"what": "beginning", "board": str(self._board)}, Begun)
            while not self._ending.is_set():
                self._wake.clear()
                job = queue.take(self.target)
                self.trouble = ""
                if job is None:
                    self._wake.wait(AGAIN)
                    continue
                said = self._judged(job)
                while said is not None and not self._kept(queue, job, said):  # a full disk: the verdict is not lost meanwhile
                    if self._ending.wait(AGAIN):
                        return

    def _kept(self, queue: Queue, job: Job, said: Verdict | str) -> bool:
        try:
            if isinstance(said, str) and self._ending.is_set():
                queue.back(job)
            elif isinstance(said, str):
                queue.refuse(job, said)
            else:
                queue.judged(job, said)
        except BoardError as error:
            self.trouble = str(error)
            self._say("trouble", target=self.target, job=job.id, said=str(error))
            return False
        except FormError as error:
            return self._kept(queue, job, f"the judge says what no board keeps: {error}")
        self._say("judged", target=self.target, job=job.id, user=job.user, kind=said if isinstance(said, str) else said.kind)
        return True

    def _judged(self, job: Job) -> Verdict | str:
        """The verdict, or why there is none."""
        with handed_in(job.file, job.source) as path, tempfile.TemporaryDirectory(prefix="rooftop-serve-") as folder:
            self._now = job.id, Path(folder) / "progress"
            lock = self._board.with_name(f"{self._board.name}.{self.target}.judging")
            said = self._asked(
                {"what": "judgement", "kernel": word(path, job.function), "op": job.op, "target": job.target, "lock": str(lock),
                 "progress": str(self._now[1]), "trusted": self.trusted}, Judged,
            )
            self._now = None
        if isinstance(said, str):
            return said
        try:
            return Verdict.of_json(said.verdict)
        except FormError as error:
            return f"the judge says what is no verdict: {error}"

    def _asked(self, job: dict[str, Any], form: type) -> Any:
        """The answer of a process of its own, or a text: why there is none."""
        self._process = process = Process(Path(sys.executable), self._child, {}, what="the judge")
        try:
            if self._ending.is_set():
                return "the server ends"
            said = process.ask(job, self._seconds, form, Refused)
        except ChildError as error:
            return str(error)
        finally:
            self._process = None
            process.close(0.5)
        return said.refused if isinstance(said, Refused) else said
