"""Many random calls: on a GPU, or several at a time, in child processes, which a call may kill; else in this process. What fails is made
smaller and shown."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rooftop.core import registry, settings
from rooftop.lab.fuzz import drafts, judge
from rooftop.lab.fuzz.drafts import Draft, Turn
from rooftop.lab.fuzz.judge import Outcome

SEEDS = 2**31
CALL_SECONDS = 240.0  # a call that takes longer hangs
BATCH = 200  # calls of one child: of those before a deadly one, the culprit is looked for
SHRINKS = 60  # simpler calls that are tried for a finding
FINDINGS = 10  # a campaign ends after so many
PROGRESS_SECONDS = 30.0
DIED = "the process died: "


class Runner(Protocol):
    def run(self, draft: Draft) -> Outcome: ...
    def stop(self) -> None: ...  # from another thread: the call that runs ends without an answer
    def close(self) -> None: ...


class Here:
    """Runs calls in this process."""

    def __init__(self, device: str) -> None:
        self._device = device

    def run(self, draft: Draft) -> Outcome:
        return judge.run(draft, self._device)

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


class Child:
    """Runs calls in a process of its own. Where that dies, so does only it; `history` are the calls since it began."""

    def __init__(self, device: str = "cuda") -> None:
        self._device, self._errors = device, tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the runner lives
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self.history: list[Draft] = []

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rooftop.lab.fuzz.child", self._device]
        self._errors.seek(0)
        self._errors.truncate()
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=settings.PACKAGE.parent
        )

    def run(self, draft: Draft) -> Outcome:
        return self.answer(draft)[1]

    def answer(self, given: Draft | Turn) -> tuple[Draft | None, Outcome]:
        """The call, drawn there where it was not yet, and what became of it. No call and "refused" where none could be drawn."""
        if self._stopped:
            return None, Outcome("refused")
        if self._process is None:
            self._process, self.history = self._start(), []
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(CALL_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(base64.b64encode(pickle.dumps(given)).decode() + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            hung = not timer.is_alive()
            timer.cancel()
        draft: Draft | None
        outcome: Outcome
        if line:
            draft, outcome = pickle.loads(base64.b64decode(line))
            if draft is not None:
                self.history.append(draft)
            if any(_destroys_context(m) for m in outcome.messages):
                self.close()
                return draft, Outcome("dead", [DIED + m for m in outcome.messages], outcome.ran)
            if len(self.history) >= BATCH:
                self.close()
            return draft, outcome
        draft = given.draw() if isinstance(given, Turn) else given
        if draft is not None:
            self.history.append(draft)
        self.close()
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        why = f"no answer within {CALL_SECONDS:.0f} s" if hung else " ".join(last) or f"exit code {process.returncode}"
        return draft, Outcome("dead", [DIED + why])

    def stop(self) -> None:
        self._stopped = True  # no other process is started
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process; the next call starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _destroys_context(message: str) -> bool:
    """Whether an error leaves the CUDA context unusable."""
    signs = (
        "misaligned address", "illegal memory access", "illegal instruction", "unspecified launch failure", "device-side assert",
        "CUDA error"
    )
    return any(sign in message for sign in signs)


@dataclass
class Finding:
    """A call that fails, made smaller. `before`: calls without which it does not fail."""

    first: Draft
    draft: Draft
    messages: list[str]
    before: tuple[Draft, ...] = ()

    def text(self, device: str) -> str:
        lines = [f"# {m}" for m in self.messages]
        parts = [_shown(d, device) for d in (*self.before, self.draft)]
        return "\n".join([*lines, *parts])


def _shown(draft: Draft, device: str) -> str:
    try:
        return drafts.script(draft, device)
    except Exception as error:  # its tensors cannot be made: that is the finding
        return f"# the tensors of this call cannot be made: {type(error).__name__}: {error}\n# {draft}"


@dataclass
class Summary:
    """What a campaign did."""

    seed: int
    device: str
    calls: int = 0
    skipped: int = 0
    refused: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    slowest: tuple[float, str] = (0.0, "")  # seconds of the call that took longest, compiling included, and its op
    ran: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def run(
    names: Sequence[str],
    *,
    seed: int,
    seconds: float | None = None,
    calls: int | None = None,
    jobs: int = 1,
    device: str = "cpu",
    runner: Callable[[], Runner] | None = None,
    say: Callable[[str], None] = lambda text: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Fuzz these ops by turns (all where none is named), until the seconds or the calls are over. `say` hears of each finding, `tell` of
    the progress. Ctrl-C ends it with what it has found until then.

    Raises ValueError for no time, a seed out of 0 to 2**31 - 1, an unknown op (RegistryError) or one of objects."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"--seconds is {seconds:g}; it must be above 0")
    if calls is not None and calls < 1:
        raise ValueError(f"--calls is {calls}; it must be at least 1")
    if not 0 <= seed < SEEDS:
        raise ValueError(f"--seed is {seed}; it must be 0 to 2**31 - 1")
    if jobs < 1:
        raise ValueError(f"--jobs is {jobs}; it must be at least 1")
    ops = [registry.op(n) for n in (names or [n for n in registry.op_names() if not registry.op(n).objects])]
    if objects := [op.name for op in ops if op.objects]:
        raise ValueError(f"fuzz does not draw calls of {', '.join(objects)}: the public function takes or returns objects, not tensors alone")
    limits = drafts.GPU if device == "cuda" else drafts.CPU
    summary = Summary(seed, device)
    alone = device == "cuda" or jobs > 1  # the interpreter runs one program a process
    build = runner or ((lambda: Child(device)) if alone else (lambda: Here(device)))
    lock, started, turn = threading.Lock(), time.monotonic(), iter(range(calls if calls is not None else sys.maxsize))
    broken: list[BaseException] = []
    told, runners, stopped = [started], list[Runner](), threading.Event()

    def make() -> Runner:
        made = build()
        runners.append(made)
        if stopped.is_set():
            made.stop()
        return made

    def out_of_time() -> bool:
        return stopped.is_set() or (seconds is not None and time.monotonic() - started >= seconds)

    def over() -> bool:
        return len(summary.findings) >= FINDINGS or bool(broken) or out_of_time()

    def work() -> None:
        mine = make()
        try:
            while not over():
                with lock:
                    i = next(turn, None)
                if i is None:
                    return
                began = time.monotonic()
                draft, outcome = _answer(mine, Turn(ops[i % len(ops)].name, seed, i // len(ops), limits, device == "cuda"))
                if stopped.is_set():
                    return
                if draft is None:
                    summary.refused += 1
                    continue
                with lock:
                    summary.calls += 1
                    if time.monotonic() - told[0] >= PROGRESS_SECONDS:
                        told[0] = time.monotonic()
                        tell(f"{summary.calls} calls in {told[0] - started:.0f} s, {len(summary.findings)} findings")
                    summary.skipped += outcome.status == "skipped"
                    summary.ran.update(outcome.ran)
                    summary.slowest = max(summary.slowest, (time.monotonic() - began, ops[i % len(ops)].name))
                if outcome.status in ("finding", "dead"):
                    found = _explained(draft, outcome, mine, make, out_of_time)
                    with lock:
                        summary.findings.append(found)
                    say(found.text(device))
        except BaseException as error:
            broken.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    if jobs == 1:
        work()
    else:
        try:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        except KeyboardInterrupt:
            stopped.set()
            for each in list(runners):
                each.stop()
            for t in threads:
                if t.ident is not None:  # it was started
                    t.join()
    summary.interrupted = stopped.is_set() or any(isinstance(b, KeyboardInterrupt) for b in broken)
    if broken and not summary.interrupted:
        raise broken[0]
    summary.seconds = time.monotonic() - started
    return summary


def _answer(runner: Runner, turn: Turn) -> tuple[Draft | None, Outcome]:
    if isinstance(runner, Child):
        return runner.answer(turn)
    draft = turn.draw()
    return (draft, runner.run(draft)) if draft is not None else (None, Outcome("refused"))


def _explained(
    draft: Draft, outcome: Outcome, runner: Runner, make: Callable[[], Runner], out_of_time: Callable[[], bool] = lambda: False
) -> Finding:
    """The finding made smaller, as far as there is time. Where a process died and the call alone does not kill one, the calls before it are
    bisected."""
    if outcome.status == "dead":
        if isinstance(runner, Child):
            runner.close()
        history = getattr(runner, "history", [draft])[:-1]
        fresh = make()
        try:
            if fresh.run(draft).status != "dead":
                return Finding(draft, draft, outcome.messages, _shortest_fatal_history(history, draft, make, out_of_time))
        finally:
            fresh.close()
    small, messages = shrink(draft, outcome, runner, out_of_time)
    return Finding(draft, small, messages)


def _shortest_fatal_history(
    history: Sequence[Draft], last: Draft, make: Callable[[], Runner], out_of_time: Callable[[], bool]
) -> tuple[Draft, ...]:
    """The shortest end of the calls before `last` with which a new process still dies, as far as there is time; empty where none does."""

    def dies(calls: Sequence[Draft]) -> bool:
        fresh = make()
        try:
            return any(fresh.run(d).status == "dead" for d in (*calls, last))
        finally:
            fresh.close()

    if not history or not dies(history):
        return ()
    low, high = 1, len(history)  # an end of `high` calls kills
    while low < high and not out_of_time():
        middle = (low + high) // 2
        if dies(history[len(history) - middle :]):
            high = middle
        else:
            low = middle + 1
    return tuple(history[len(history) - high :])


def shrink(draft: Draft, outcome: Outcome, runner: Runner, out_of_time: Callable[[], bool] = lambda: False) -> tuple[Draft, list[str]]:
    """The simplest call found that fails as well, in at most `SHRINKS` tries and until it is `late`, and what is wrong with it."""
    messages, tries, better = outcome.messages, SHRINKS if outcome.status == "finding" else SHRINKS // 4, True
    while better and tries and not out_of_time():
        better = False
        for other in drafts.smaller(draft):
            if not tries or out_of_time():
                break
            if (simpler := drafts.taken(other)) is None:
                continue
            tries -= 1
            found = runner.run(simpler)
            if found.status == outcome.status:
                draft, messages, better = simpler, found.messages, True
                break
    return draft, messages
