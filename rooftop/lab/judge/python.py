"""A submission in Python, called in a process of its own (`python_child`): what this process writes and reads is memory that both share."""

from __future__ import annotations

import mmap
import os
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rooftop.core import settings
from rooftop.core.child import ChildError, ChildTimeout, Process, left_running
from rooftop.core.spec import DTYPES, dtype_of
from rooftop.lab.judge.forms import Submission
from rooftop.lab.judge.tasks import Call, OpTask, Task

SHARED = 64 << 20  # bytes of the memory that both see; pages that nobody writes take none
SECONDS = 60  # that a call may take
PROCESSES, ALIGN = 16, 256
Raising = Literal["raises", "denied", "memory", "ended", "beyond", "race", "fault", "broken", "lazy", "shape", "printed"]


@dataclass(frozen=True)
class Parameter:
    name: str
    default: bool
    open: bool


@dataclass(frozen=True)
class Loaded:
    n: int
    parameters: list[Parameter]
    kept: bool


@dataclass(frozen=True)
class Raised:
    n: int
    raised: Raising
    text: str


@dataclass(frozen=True)
class Result:
    dtype: str
    shape: list[int]


@dataclass(frozen=True)
class Called:
    n: int
    results: list[Result]
    count: int
    patched: list[str]
    launches: int
    loaded: int
    stored: int


@dataclass(frozen=True)
class Timed:
    n: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What a call, or all of them, came to: `kind` of a verdict."""

    kind: str
    said: str = ""
    launches: int = 0
    loaded: int = 0
    stored: int = 0
    trials: int = 0


class Child:
    """The process, with one submission loaded. `kept`: whether it is kept from files and network. `opened`: files that it opens in
    bubblewrap beside its own folder; None: not in bubblewrap."""

    def __init__(
        self, submission: Submission, *, gpu: bool = False, shared: int = SHARED, seconds: float = SECONDS,
        opened: Sequence[Path] | None = ()
    ) -> None:
        self.submission, self.gpu, self.kept, self.n = submission, gpu, False, 0
        self.seconds = min(seconds, settings.load().step_seconds)
        self.parameters: tuple[Parameter, ...] = ()
        self._folder = tempfile.TemporaryDirectory(prefix="rooftop-judge-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        place = Path(self._folder.name)
        (place / "memory").touch(0o600)
        os.truncate(place / "memory", shared)
        self._file = open(place / "memory", "r+b")  # noqa: SIM115 - closed with the process
        self.memory = mmap.mmap(self._file.fileno(), shared)
        source = place / submission.path.name  # alone: what lies beside the submission is none of its
        source.write_text(submission.text, encoding="utf-8")
        before = bubblewrap(place, opened) if gpu and opened is not None else []
        self.bubble = bool(before)
        (place / "tmp").mkdir()
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HOME": str(place), "TMPDIR": str(place / "tmp")}
        environment |= {"TRITON_CACHE_DIR": str(place / "tmp" / "triton"), "ROOFTOP_CACHE": str(place / "tmp" / "cache")}
        self._process = Process(
            Path(sys.executable), "rooftop.lab.judge.python_child", environment, what=submission.path.name, before=before,
            processes=PROCESSES,
            arguments=[str(place / "memory"), str(shared), str(int(4 * self.seconds) + 60), "gpu" if gpu else "cpu", str(source)],
        )
        self.calm = (0, 0)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        self._process.end()
        self._file.close()
        self._folder.cleanup()

    @property
    def isolation(self) -> str:
        return "kept from files and network" if self.kept else "in bubblewrap" if self.bubble else "not isolated: a plain process"

    def _ask(self, what: str, *forms: type, **more: Any) -> Any:
        self.n += 1
        said = self._process.ask({"what": what, "kernel": self.submission.path.name, "n": self.n, **more}, self.seconds, *forms, Raised)
        if said.n != self.n:
            raise ChildError(f"the process answers call {said.n} where {self.n} was asked: forged")
        return said

    def load(self) -> Outcome | None:
        """None, or how loading failed."""
        try:
            said = self._ask("loading", Loaded, name=self.submission.name)
        except ChildError as error:
            return of_end(error)
        if isinstance(said, Raised):
            return Outcome("broken" if said.raised == "raises" else said.raised, said.text)
        self.parameters, self.kept = tuple(said.parameters), said.kept
        self.calm = left_running(self._process.pid or 0)
        return None

    def call(self, call: Call) -> tuple[Outcome, dict[str, Any]]:
        """One call, and its outputs by name."""
        at, places = 0, {}
        keywords = {p.name for p in self.parameters}
        for n, t in (*call.tensors.items(), *((f"state:{n}", t) for n, t in call.state.items())):
            size = t.numel() * t.element_size()
            places[n] = at
            self._write(at, t)
            at = -(-(at + size) // ALIGN) * ALIGN
        ats, rooms = [], []
        for n, (shape, dtype) in call.outputs.items():
            size = prod(shape) * DTYPES[dtype].bytes
            places[n] = at
            self.memory[at : at + size] = b"\xff" * size  # NaN in every floating dtype
            ats.append(at)
            rooms.append(size)
            at = -(-(at + size) // ALIGN) * ALIGN
        if at > len(self.memory):
            return Outcome("not judged", f"the tensors of {call.name} take {at:,} bytes; at most {len(self.memory):,} are shared"), {}
        told = {n: {"at": places[n], "dtype": dtype_of(t.dtype), "shape": list(t.shape)} for n, t in call.tensors.items()}
        arguments = [told.get(n, v) for n, v in call.arguments if n in told or n not in keywords]
        named = {n: v for n, v in call.values.items() if n in keywords}
        state = {n: {"at": places[f"state:{n}"], "dtype": dtype_of(t.dtype), "shape": list(t.shape)} for n, t in call.state.items()}
        before = {n: _bytes(t) for n, t in call.tensors.items() if n not in call.mutates}
        try:
            said = self._ask(
                "call", Called, arguments=arguments, named=named, at=ats, bytes=rooms, state=state, seed=call.seed,
                made=list(call.made) if self.submission.form == "model" else None,
            )
        except ChildError as error:
            return of_end(error), {}
        if isinstance(said, Raised):
            return Outcome(said.raised, said.text), {}
        threads, others = left_running(self._process.pid or 0)
        for n, held in before.items():
            if self.memory[places[n] : places[n] + len(held)] != held:
                return Outcome("input changed", f"the input {n} was written"), {}
        if others or threads > self.calm[0]:
            return Outcome("left running", f"{others} processes and {threads - self.calm[0]} threads of it run on after its answer"), {}
        if said.patched:
            return Outcome("patched", f"it replaces {', '.join(said.patched[:4])}"), {}
        outputs = {}
        for (n, (shape, dtype)), r in zip(call.outputs.items(), said.results, strict=False):
            if (tuple(r.shape), r.dtype) != (tuple(shape), dtype):
                return Outcome("shape", f"{n} is {r.dtype} {tuple(r.shape)}; it must be {dtype} {tuple(shape)}"), {}
            outputs[n] = self._read(places[n], shape, dtype)
        if len(outputs) < len(call.outputs):
            return Outcome("shape", f"it returns {said.count} tensors; {len(call.outputs)} are needed: {', '.join(call.outputs)}"), {}
        outputs |= {n: self._read(places[n], tuple(t.shape), dtype_of(t.dtype)) for n, t in call.tensors.items() if n in call.mutates}
        return Outcome("right", launches=said.launches, loaded=said.loaded, stored=said.stored), outputs

    def open(self, sets: Sequence[Mapping[str, Any]]) -> str:
        """Have it open tensors of the GPU, which this process shares (rooftop/lab/judge/timed.py), before it loads the submission; why it
        cannot, or nothing. Raises ChildError."""
        said = self._ask("opening", Timed, sets=list(sets))
        return said.text if isinstance(said, Raised) else ""

    def time(self, count: int, given: Sequence[Sequence[str]], made: Sequence[Sequence[str]]) -> float:
        """Have it make `count` calls on the sets that it has opened; the seconds of its own events. Raises ChildError."""
        said = self._ask("timing", Timed, count=count, given=list(given), made=list(made))
        if isinstance(said, Raised):
            raise ChildError(f"it raises where it is timed: {said.text}")
        return said.seconds

    def _write(self, at: int, tensor: Any) -> None:
        held = _bytes(tensor)
        self.memory[at : at + len(held)] = held

    def _read(self, at: int, shape: Sequence[int], dtype: str) -> Any:
        import torch

        size = prod(shape) * DTYPES[dtype].bytes
        copy = bytearray(self.memory[at : at + size])
        made = torch.frombuffer(copy, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        return made.view(getattr(torch, DTYPES[dtype].torch)).reshape(tuple(shape))


def _bytes(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


def bubblewrap(place: Path, opened: Sequence[Path] = ()) -> list[str]:
    """The words that start a command in bubblewrap: the system read-only, devices, the one folder and `opened`, no network; nothing of the
    user's, of other processes, of contracts, kernels and records. None where it is not installed, or the system does not let it."""
    tool = settings.tool_path("bwrap")
    if tool is None or subprocess.run([tool, *_ALONE, "true"], capture_output=True, check=False, timeout=20).returncode:
        return []
    hidden = [p for p in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/run"), Path.home()) if p.is_dir()]
    python = (Path(sys.prefix), Path(sys.base_prefix), settings.PACKAGE, *map(Path, site.getsitepackages()))
    needed = [p for p in dict.fromkeys(python) if p.is_dir() and any(p.is_relative_to(h) for h in hidden)]
    own = [p for p in settings.PACKAGE.iterdir() if p.is_dir() and p.name not in ("core", "lab")]
    records = settings.load().results
    words = [str(tool), *_ALONE]
    for h in hidden:
        words += ["--tmpfs", str(h)]
    for n in needed:
        words += ["--ro-bind", str(n), str(n)]
    for o in [*own, *([records] if records.is_dir() and not any(records.is_relative_to(h) for h in hidden) else [])]:
        words += ["--tmpfs", str(o)]
    for w in (place, *opened):
        words += ["--bind", str(w), str(w)]
    return words


# PIDs are the system's: memory of the GPU that another process shares is opened by them
_ALONE = ("--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--unshare-user", "--unshare-net", "--die-with-parent", "--new-session")


def of_end(error: ChildError) -> Outcome:
    """The kind of a verdict by how the process ended."""
    said = str(error)
    if isinstance(error, ChildTimeout):
        return Outcome("stuck", said)
    for sign, kind in (("of memory", "memory"), ("processes", "processes"), ("printed more", "printed"), ("answers", "forged")):
        if sign in said:
            return Outcome(kind, said)
    return Outcome("ended", said)


def run(
    submission: Submission, task: Task, *, dtype: str | None = None, groups: int = 3, seconds: float = SECONDS, counting: Call | None = None
) -> tuple[Outcome, str]:
    """Judge it at hidden calls on the CPU: what it came to, and how it was kept apart. `counting`: a call after them, whose launches and
    bytes alone the outcome of a right one has."""
    with Child(submission, seconds=seconds) as child:
        if (outcome := child.load()) is None:
            outcome = _judged(child, task, dtype, groups, time.monotonic() + seconds)
            if outcome.kind == "right" and counting is not None:
                outcome = replace(_one(child, counting, ()), trials=outcome.trials)
        return outcome, child.isolation


def _judged(child: Child, task: Task, dtype: str | None, groups: int, end: float) -> Outcome:
    names = [p.name for p in child.parameters if not p.default and not p.open]
    total = Outcome("right")
    for group in task.groups(dtype, groups, None if child.submission.form == "model" else _tensors(task, names)):
        earlier: list[Call] = []
        for call in group:
            outcome = _one(child, call, earlier)
            if outcome.kind == "right" and time.monotonic() > end:
                outcome = Outcome("stuck", f"{total.trials + 1} calls took more than {child.seconds:.0f} s")
            total = replace(outcome, launches=total.launches + outcome.launches, trials=total.trials + 1)
            if outcome.kind != "right":
                return total
            earlier.append(call)
    return total


def _one(child: Child, call: Call, earlier: Sequence[Call]) -> Outcome:
    outcome, outputs = child.call(call)
    if outcome.kind == "right" and (said := call.wrong(outputs)):
        outcome = Outcome(wrongly(call, outputs, earlier), said)
    return replace(outcome, said=f"{call.name}: {outcome.said}") if outcome.said else outcome


def _tensors(task: Task, names: Sequence[str]) -> int | None:
    """How many tensors a function with these parameters takes; None where that is not for it to say."""
    if not isinstance(task, OpTask):
        return None
    count = len([n for n in names if n not in task.op.option_names])
    try:
        task.plain(None, count)
    except ValueError:
        return None
    return count


def wrongly(call: Call, outputs: Mapping[str, Any], earlier: Sequence[Call]) -> str:
    """The kind of a wrong result: unwritten (the judge's poison is still there), that of an earlier call, or wrong."""
    import torch

    for t in outputs.values():
        if t.numel() and bool((t.contiguous().reshape(-1).view(torch.uint8) == 0xFF).all()):
            return "unwritten"
    for old in earlier:
        if old.outputs == call.outputs and not old.wrong(outputs):
            return "replay"
    return "wrong"
