"""How fast the simulator is: every rung of two ladders at one size each, timed on this CPU beside what it may take.

    python -m rooftop.lab.counters.simulator_speed [--out DIR] [LADDER ...]
    python -m rooftop.lab.counters.simulator_speed --first [--out DIR]

Timed is `run_rung`, from inputs to report, its build in the cache: fresh inputs, every launch, what was found. Checking runs all blocks of a launch,
counting the sample that it takes where nothing is said. The limits are for two cores, so no more are used. The rungs are run in turn, one run each,
then again, so that no slow moment of the machine falls on one of them alone; the first turn is kept apart, as what must be built is built in it.
`--first` times `rooftop simt` itself in an empty cache: the interpreter's start, the simulator, one rung to check and to count."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rooftop.core import registry, settings
from rooftop.core.spec import Case, Input, case
from rooftop.lab import candidates
from rooftop.lab.ending import Parser, ended
from rooftop.lab.records import store
from rooftop.lab.records.store import Record

if TYPE_CHECKING:
    from rooftop.lab.candidates import Subject
    from rooftop.lab.simt.launching import Mode

SUBJECT = "simulator speed"
FIRST, FIRST_RUNG, FIRST_LIMIT, FIRST_RUNS = "rooftop simt, a first run in an empty cache", "softmax_cuda/04", 15.0, 3
CORES = 2
RUNS = 7  # after the first: the fastest and the slowest of seven enclose the true median with 98 %
MODES: tuple[Mode, ...] = ("check", "count")
BUSY = 0.5  # processes that ran or waited over the last minute, above which others are at work here


@dataclass(frozen=True)
class Goal:
    """Of each rung of a ladder: the case, by name where the op has it, and for each mode the seconds that the median must be under."""

    case: str | Case
    limits: Mapping[Mode, float]


GOALS: Mapping[str, Goal] = {
    "sgemm_cuda": Goal("512 cubed f32", {"check": 3.0, "count": 6.0}),
    "softmax_cuda": Goal(case("rows 1024x1024", x=Input((1024, 1024), "f32"), dim=1), {"check": 0.5, "count": 0.5}),
}


class FaultError(RuntimeError):
    """A run whose time says nothing: it found a fault, or left blocks out that it must run."""


@dataclass(frozen=True)
class Run:
    """One run. `seconds` is all of it, `built` what of that was spent building: 0 where the build was in the cache."""

    seconds: float
    built: float
    blocks: int  # that were run
    grid_blocks: int


@dataclass(frozen=True)
class Row:
    """A rung in one mode. Seconds: the median, the fastest and the slowest of `n` runs; `first` and `built` are those of the run before them."""

    subject: str
    case: str
    mode: Mode
    seconds: float
    low: float
    high: float
    n: int
    limit: float
    first: float
    built: float
    blocks: int
    grid_blocks: int

    @property
    def holds(self) -> bool:
        return self.seconds < self.limit

    def __str__(self) -> str:
        built = f", {self.built:.1f} s of it building" if self.built else ""
        took = f"{self.seconds:6.2f} s ({self.low:.2f} to {self.high:.2f}), under {self.limit:g} s allowed; first {self.first:.2f} s{built}"
        return f"{self.subject:35s} {self.case:20s} {self.mode:5s} {took}{'' if self.holds else '  ABOVE ITS LIMIT'}"


def row(subject: str, case_id: str, mode: Mode, limit: float, runs: Sequence[Run]) -> Row:
    """The row of a first run and those that count. Raises ValueError where there is no run but the first."""
    first, counted = runs[0], [r.seconds for r in runs[1:]]
    if not counted:
        raise ValueError(f"{subject}: one run was made; its first is kept apart, so at least two are needed")
    return Row(
        subject, case_id, mode, median(counted), min(counted), max(counted), len(counted), limit, first.seconds, first.built, first.blocks, first.grid_blocks
    )


def above(rows: Sequence[Row]) -> list[Row]:
    """Those whose median is not under their limit."""
    return [r for r in rows if not r.holds]


def timed(subject: Subject, at: Case, mode: Mode) -> Run:
    """One run of a rung. Raises FaultError where its time would say nothing."""
    from rooftop.lab import simt

    began = time.perf_counter()
    report = simt.run_rung(subject, at, mode=mode)
    seconds = time.perf_counter() - began
    if report.findings:
        raise FaultError(f"{subject.name}, {at.id}: {report.findings[0]}")
    if not report.blocks or (mode == "check" and report.blocks != report.grid_blocks):
        raise FaultError(f"{subject.name}, {at.id}: {report.blocks} of {report.grid_blocks} blocks were run in mode {mode}")
    return Run(seconds, report.build_seconds, report.blocks, report.grid_blocks)


def measure(ladders: Sequence[str] = (), runs: int = RUNS, say: Callable[[str], None] = print) -> list[Row]:
    """Every rung of the ladders (all of GOALS where none is named) in both modes, `runs` times after a first.

    Raises RegistryError for a ladder without a limit, FaultError for a run whose time says nothing."""
    jobs: list[tuple[Subject, Case, Mode, float]] = []
    for name in ladders or GOALS:
        if name not in GOALS:
            raise registry.unknown("ladder with a limit", name, list(GOALS))
        for subject in candidates.rungs(registry.ladder(name)):
            wanted = GOALS[name].case
            at = subject.op.case(wanted) if isinstance(wanted, str) else wanted
            jobs += [(subject, at, mode, GOALS[name].limits[mode]) for mode in MODES]
    found: list[list[Run]] = [[] for _ in jobs]
    for turn in range(runs + 1):
        say(f"run {turn} of {runs} of each rung" if turn else "a first run of each rung, which may have to build")
        for (subject, at, mode, _), mine in zip(jobs, found, strict=True):
            mine.append(timed(subject, at, mode))
    return [row(subject.name, at.id, mode, limit, mine) for (subject, at, mode, limit), mine in zip(jobs, found, strict=True)]


def first_runs(runs: int = FIRST_RUNS) -> list[float]:
    """Seconds of `rooftop simt` with an empty cache each time. Raises FaultError where it does not come to its end."""
    seconds = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "rooftop", "simt", FIRST_RUNG]
            began = time.perf_counter()
            done = subprocess.run(command, env=settings.environment({"ROOFTOP_CACHE": cache}), capture_output=True, text=True)
            seconds.append(time.perf_counter() - began)
        if done.returncode or "building the simulator" not in done.stderr:
            raise FaultError(f"{' '.join(command[1:])} gave {done.returncode}: {done.stderr[-300:]}")
    return seconds


@contextmanager
def few_cores(cores: int = CORES) -> Iterator[int]:
    """This process on `cores` of the CPU's cores, or on those it may use where they are fewer; gives how many the simulator then uses."""
    import torch

    mine, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, sorted(mine)[:cores])
    try:
        used = min(settings.load().jobs, len(os.sched_getaffinity(0)))
        torch.set_num_threads(used)
        yield used
    finally:
        os.sched_setaffinity(0, mine)
        torch.set_num_threads(threads)


def describe() -> dict[str, str | int]:
    """The CPU as records name a device: its model, or its architecture where it tells no more."""
    about = store.host()
    return {"name": about["cpu"], "machine": platform.machine(), "cores": about["cores"]}


def record(rows: Sequence[Row], cores: int, load: float) -> Record:
    """The rows as data, of kind `clock`. `cores`: that were used; `load`: of the minute before."""
    from rooftop.lab.counters.compare import compilers

    return {
        "kind": "clock", "subject": SUBJECT, "device": describe(), "versions": {**store.versions(), **compilers()}, "cores": cores,
        "sensors": {"load_before": load}, "repeats": min(r.n for r in rows), "rows": [asdict(r) for r in rows],
    }  # fmt: skip


def first_record(seconds: Sequence[float], cores: int, load: float) -> Record:
    """Times of first runs as data, of kind `build`."""
    of_all = record([row("", "", "check", FIRST_LIMIT, [Run(s, s, 1, 1) for s in (0.0, *seconds)])], cores, load)
    made = {k: of_all[k] for k in ("device", "versions", "cores", "sensors")}
    return {**made, "kind": "build", "subject": FIRST, "seconds": median(seconds), "all": list(seconds), "n": len(seconds), "limit": FIRST_LIMIT}


def newest(found: Sequence[Record]) -> Record | None:
    """The newest record of these times, or None."""
    return max((r for r in found if r["kind"] == "clock" and r.get("subject") == SUBJECT), key=lambda r: str(r.get("at", "")), default=None)


def main(arguments: Sequence[str] | None = None) -> None:
    from rooftop.core.compile import CompileError
    from rooftop.lab import simt

    parser = Parser(
        prog="python -m rooftop.lab.counters.simulator_speed", description="The simulator's own speed, beside what it may take.",
        epilog="Exit code 1: a median is not under its limit, a run found a fault, or usage. 3: nothing can be simulated here.",
    )  # fmt: skip
    parser.add_argument("ladders", nargs="*", metavar="LADDER", help=f"of {', '.join(GOALS)}; none: all of them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write the record to, of kind `clock`; it holds all ladders")
    parser.add_argument("--first", action="store_true", help=f"time first runs of {FIRST_RUNG} instead, each in an empty cache")
    given = parser.parse_args(arguments)
    if given.first and given.ladders:
        parser.error("--first takes no ladder")
    for name in given.ladders:
        if name not in GOALS:
            parser.error(str(registry.unknown("ladder with a limit", name, list(GOALS))))
    if given.out and given.ladders and set(given.ladders) != set(GOALS):
        parser.error(f"--out writes one record of {' and '.join(GOALS)}, and the newest stands for those before it: name all of them, or none")
    if reason := simt.unavailable():
        parser.exit(3, f"{reason}\n")
    writer = store.Writer(given.out, str(describe()["name"])) if given.out else None
    if writer is not None:
        try:
            writer.ready()
        except OSError as error:
            parser.error(f"--out {given.out}: {error.strerror}: {error.filename}")
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"the load of the last minute was {load:.2f}: others are at work here, and times may be too long")
    try:
        with few_cores() as cores:
            first = first_runs() if given.first else []
            rows = [] if given.first else measure(list(dict.fromkeys(given.ladders)))
    except (FaultError, CompileError, ValueError) as error:  # a fault, no build, a rung that cannot take its case
        parser.exit(1, f"{error}\n")
    print(f"{describe()['name']}, {cores} cores, load before {load:.2f}")
    for one in rows:
        print(one)
    if first:
        print(f"{FIRST}: {median(first):.1f} s ({min(first):.1f} to {max(first):.1f}), under {FIRST_LIMIT:g} s allowed")
    if writer is not None:
        with writer:
            writer.write(first_record(first, cores, load) if first else record(rows, cores, load))
            print(f"the record is in {writer.path}")
    if first and median(first) >= FIRST_LIMIT:
        parser.exit(1, "a first run is not under its limit\n")
    if slow := above(rows):
        parser.exit(1, f"{len(slow)} of {len(rows)} are not under their limit: {', '.join(f'{r.subject} ({r.mode})' for r in slow)}\n")
    print("a first run is under its limit" if first else f"all {len(rows)} are under their limits")


if __name__ == "__main__":
    ended(main)
