"""The one timer: candidates interleaved sample by sample, on one of four clocks, with an A/A run that gives the noise.

| clock | what is timed |
|---|---|
| kernel | replay of a CUDA graph whose calls rotate through more input sets than L2 holds; the launch is not in it |
| cold | one call right after L2 was emptied by *reading* a large buffer |
| hot | replay of a CUDA graph that calls one input set again and again |
| host | what one eager call costs the CPU |

Nothing is subtracted anywhere; what an empty call shows on the same clock is recorded beside the result. docs/timing.md
says what each clock means, and what naive ways to time would have reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, get_args

from rooftop.lab.timing.statistics import FEWEST, Comparison, compare, estimate, paired_ratio, spread

Clock: TypeAlias = Literal["kernel", "cold", "hot", "host"]
Duty: TypeAlias = Literal["normal", "burst", "sustained", "sweep"]
Call: TypeAlias = Callable[[], object]

ROTATION = 3  # the rotated input sets hold more than this many times L2
MOST_SETS = 1024  # making more takes longer than timing them
REPLAY_S = 1e-3  # a graph lasts at least this long: starting one took 2.2 us on an H100, in no kernel's time
# warm-up replay: a shorter sample follows an untimed one, so that it does not pay for the lines that the one before left dirty in L2
LEAD_BELOW_S = 5e-3
MOST_NODES = 4096  # calls in one graph, at most
COLD_SETS = 4  # input sets that the cold clock goes through
HOST_BATCH = 24  # eager calls between two synchronisations: far fewer than the launch queue holds (about a thousand)
AGAIN = " (again)"


class ImpossibleTime(RuntimeError):
    """A time below what the hardware could do at its datasheet's best: the measurement is wrong, and is no record."""

    def __init__(self, text: str, measurement: Measurement) -> None:
        super().__init__(text)
        self.measurement = measurement


class NotCapturable(RuntimeError):
    """A call cannot be captured in a CUDA graph; the text says why."""


@dataclass(frozen=True)
class Candidate:
    """What is timed. ``calls[i]`` runs it once on input set i, on the current stream of torch; what it returns is kept alive
    until every set has been used once, so that outputs it allocates rotate through memory as its inputs do.

    ``uncapturable``: the reason why it cannot go into a CUDA graph, where that is known. ``restore`` puts back every input set
    that a call writes to; it is run before each sample, outside the time. ``floor``: seconds below which no time of its own is true, where
    that is less than the field's; a copy of a product's bytes multiplies nothing."""

    name: str
    calls: Sequence[Call]
    uncapturable: str | None = None
    restore: Call | None = None
    floor: float | None = None


@dataclass(frozen=True)
class Pace:
    """How samples follow each other. ``pause_s``: idle time before each; ``lead_s``: the same work, untimed, right before each;
    ``warm_s``: all candidates in turn before the first; ``sample_s``: the least that a timed sample lasts."""

    pause_s: float
    lead_s: float
    warm_s: float
    sample_s: float


PACES: Mapping[Duty, Pace] = {
    "normal": Pace(0.0, 0.0, 0.05, REPLAY_S),
    "burst": Pace(0.1, 0.0, 0.05, 5e-3),
    "sustained": Pace(0.0, 10e-3, 3.0, 10e-3),
    "sweep": Pace(0.0, 0.0, 0.0, 3e-4),  # many sizes, briefly each
}


class Program(Protocol):
    """Calls made ready to be timed. ``calls`` is how many one replay makes."""

    calls: int
    method: str  # "graph", "events" (launched call by call between two events) or "cpu"

    def run(self, replays: int, lead: int) -> float:
        """Seconds of ``replays`` replays in a row, after ``lead`` untimed ones."""
        ...


class Backend(Protocol):
    """What touches the device and the clock on the wall; tests put a simulated one here."""

    l2_bytes: int

    def captured(self, calls: Sequence[Call], *, cold: bool) -> Program:
        """Raises NotCapturable. With ``cold``, one replay makes one call after L2 was emptied, the calls in turn."""
        ...

    def eager(self, calls: Sequence[Call], *, cold: bool) -> Program: ...
    def host(self, calls: Sequence[Call]) -> Program: ...
    def before(self, call: Call) -> None:
        """Runs `call` so that what is timed next begins when it has ended."""
        ...

    def empty(self, clock: Clock) -> Call: ...
    def now(self) -> float: ...
    def pause(self, seconds: float) -> None: ...
    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Timing:
    """One candidate on one clock. Times are seconds a call; ``low`` and ``high`` bound the median with 95 %; ``spread`` is the
    distance between the quartiles over the median."""

    name: str
    median: float
    low: float
    high: float
    spread: float
    n: int
    calls: int  # calls in one replay
    replays: int  # replays in one sample
    sets: int  # input sets that the calls go through
    method: str
    why: str = ""  # why it was not captured
    samples: tuple[float, ...] = field(default=(), repr=False)

    def json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k != "samples"}


@dataclass(frozen=True)
class Measurement:
    """What one run of the timer found on one clock. ``noise`` is how far from 1 the interval of the A/A ratio reaches."""

    clock: Clock
    duty: Duty
    base: str
    timings: Mapping[str, Timing]
    again: Timing
    versus: Mapping[str, Comparison]  # every other candidate against the first
    noise: float
    empty_s: float  # what an empty call shows on this clock; contained in every time, never subtracted
    target: float  # the relative error that was asked for
    error: float  # and the one reached: the worst half interval of a paired ratio
    budget_s: float
    elapsed_s: float  # of sampling, which the budget bounds
    setup_s: float  # of capturing, estimating and warming up before it
    busy: float  # share of the sampling time in which a candidate ran
    pace: Pace
    rotated_bytes: int
    sensors: Mapping[str, Any]
    device: Mapping[str, Any]

    @property
    def reached(self) -> bool:
        return self.error <= self.target

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def compare(self, name: str, base: str) -> Comparison:
        """Any two candidates of this run, from their paired samples."""
        return compare(self.timings[name].samples, self.timings[base].samples, self.noise)


def sets_needed(bytes_per_call: int, l2_bytes: int) -> int:
    """The fewest input sets whose bytes, one call each, exceed three times L2; at most MOST_SETS, so that the inputs of a call on a few KiB
    stay in L2. Raises ValueError for no bytes."""
    if bytes_per_call < 1:
        raise ValueError(f"bytes_per_call is {bytes_per_call}; a call that touches no memory has nothing to rotate")
    return min(ROTATION * l2_bytes // bytes_per_call + 1, MOST_SETS)


@dataclass
class _Entry:
    """One candidate in the field, made ready."""

    candidate: Candidate
    program: Program
    replays: int
    lead: int
    sets: int
    why: str
    samples: list[float] = field(default_factory=list)
    busy_s: float = 0.0

    def sample(self, backend: Backend, pause_s: float) -> float:
        """Seconds a call."""
        if self.candidate.restore:
            backend.before(self.candidate.restore)
        if pause_s:
            backend.pause(pause_s)
        seconds = self.program.run(self.replays, self.lead)
        self.busy_s += seconds * (1 + self.lead / self.replays)
        return seconds / (self.replays * self.program.calls)


class Timer:
    """Times candidates side by side on ``backend`` (a `rooftop.lab.timing.timer_cuda.CudaBackend`); ``sensors`` reads clocks, power and
    temperature before and after each measurement."""

    def __init__(self, backend: Backend, *, sensors: Callable[[], dict[str, Any]] | None = None) -> None:
        self.backend = backend
        self.read_sensors = sensors or dict
        self._empty: dict[Clock, float] = {}

    def measure(
        self,
        candidates: Sequence[Candidate],
        clock: Clock = "kernel",
        *,
        bytes_per_call: int = 0,
        floor_seconds: float = 0.0,
        target: float = 0.002,
        budget_s: float = 2.0,
        duty: Duty = "normal",
        samples: tuple[int, int] = (11, 1001),
    ) -> Measurement:
        """Times ``candidates`` on ``clock``, the first of them twice.

        Rounds of one sample each are taken until the interval of every paired ratio is narrower than ``target`` each way, or
        ``budget_s`` seconds of sampling or the most ``samples`` are spent; at least six are taken, as fewer give no interval.
        Every other round runs backwards, so that none always follows the same neighbour. ``bytes_per_call`` is what a call
        touches (kernel clock). ``floor_seconds`` is the time that no hardware could beat for this clock's traffic.

        Raises ImpossibleTime below the floor (not on the host clock, which no device bounds), ValueError for a field that
        cannot be timed fairly."""
        self._validate(candidates, clock, bytes_per_call, duty, samples, target)
        names = [c.name for c in candidates]
        before, pace, start = self.read_sensors(), PACES[duty], self.backend.now()
        twin = replace(candidates[0], name=candidates[0].name + AGAIN)
        entries = [self._ready(c, clock, pace) for c in (*candidates, twin)]
        base, again = entries[0], entries[-1]
        empty_s = self.empty_seconds(clock)
        self._warm(entries, pace)
        for entry in entries:
            entry.busy_s = 0.0
        sampling = self.backend.now()
        rounds, check, error = 0, samples[0], math.inf
        while True:
            for entry in entries if rounds % 2 == 0 else reversed(entries):
                entry.samples.append(entry.sample(self.backend, pace.pause_s))
            rounds += 1
            spent = self.backend.now() - sampling > budget_s and rounds >= FEWEST
            if rounds >= check or rounds >= samples[1] or spent:
                # Looked at only as the count grows by a quarter: stopping at the first lucky look would narrow the interval falsely.
                check = math.ceil(rounds * 1.25)
                error = max(paired_ratio(e.samples, base.samples).error for e in entries[1:])
                if error <= target or rounds >= samples[1] or spent:
                    break
        end = self.backend.now()
        noise = paired_ratio(again.samples, base.samples).off_one
        found = Measurement(
            clock, duty, names[0],
            {e.candidate.name: _timing(e) for e in entries[:-1]}, _timing(again),
            {e.candidate.name: compare(e.samples, base.samples, noise) for e in entries[1:-1]},
            noise, empty_s, target, error, budget_s, end - sampling, sampling - start,
            sum(e.busy_s for e in entries) / (end - sampling) if end > sampling else 0.0,
            pace, bytes_per_call * min(len(c.calls) for c in candidates) if clock == "kernel" else 0,
            {"before": before, "after": self.read_sensors()}, self.backend.describe(),
        )
        _refuse_impossible(found, floor_seconds, {c.name: c.floor for c in candidates if c.floor is not None})
        return found

    def _validate(
        self, candidates: Sequence[Candidate], clock: Clock, size: int, duty: Duty, samples: tuple[int, int], target: float
    ) -> None:
        if clock not in get_args(Clock):
            raise ValueError(f"clock {clock!r} is not one of {', '.join(get_args(Clock))}")
        if duty not in PACES:
            raise ValueError(f"duty {duty!r} is not one of {', '.join(PACES)}")
        if duty != "normal" and clock not in ("kernel", "hot"):
            raise ValueError(f"duty {duty!r} goes with the kernel and hot clocks; {clock} has only 'normal'")
        if not FEWEST <= samples[0] <= samples[1]:
            raise ValueError(f"samples is {samples}; (fewest, most) with at least {FEWEST} are needed for a 95 % interval")
        if not target > 0:
            raise ValueError(f"target is {target}; a positive relative error is needed, as 0.002")
        names = [c.name for c in candidates]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"candidates {names}: at least one, each with a name of its own, is needed")
        for c in candidates:
            if len({id(call) for call in c.calls}) < max(len(c.calls), 1):
                raise ValueError(f"{c.name}: no calls, or one call given twice; each input set needs a call of its own")
            if c.restore and duty != "normal":
                raise ValueError(f"{c.name} writes to its inputs, which a {duty} run cannot put back between calls")
            if clock == "kernel" and len(c.calls) < sets_needed(size, self.backend.l2_bytes):
                raise ValueError(
                    f"{c.name}: {len(c.calls)} input sets of {size} bytes stay in an L2 of {self.backend.l2_bytes} bytes; "
                    f"the kernel clock needs {sets_needed(size, self.backend.l2_bytes)}"
                )

    def _ready(self, c: Candidate, clock: Clock, pace: Pace) -> _Entry:
        """Captures the candidate, with as many calls a replay and replays a sample as the pace asks for."""
        if clock == "host":
            batch = [c.calls[i % len(c.calls)] for i in range(1 if c.restore else HOST_BATCH)]
            return _Entry(c, self.backend.host(batch), 1, 0, min(len(c.calls), len(batch)), "")
        cold = clock == "cold"
        calls = list(c.calls) if clock == "kernel" else list(c.calls[: COLD_SETS if cold else 1])
        program, why = self._program(c, calls, cold)
        entry = _Entry(c, program, 1, 0, len(calls), why)
        if cold or c.restore:
            return entry
        seconds = min(entry.sample(self.backend, 0.0) for _ in range(3)) * program.calls
        passes = min(math.ceil(min(REPLAY_S, pace.sample_s) / max(seconds, 1e-9)), max(1, MOST_NODES // len(calls)))
        if passes > 1 and program.method == "graph":
            program, why = self._program(c, calls * passes, cold)
            entry = _Entry(c, program, 1, 0, len(calls), why)
            seconds = min(entry.sample(self.backend, 0.0) for _ in range(3)) * program.calls
        entry.replays = max(1, math.ceil(pace.sample_s * 0.9 / max(seconds, 1e-9)))
        if pace.lead_s:
            entry.lead = math.ceil(pace.lead_s / max(seconds, 1e-9))
        else:
            entry.lead = 1 if seconds < LEAD_BELOW_S else 0
        return entry

    def _program(self, c: Candidate, calls: Sequence[Call], cold: bool) -> tuple[Program, str]:
        if c.uncapturable is None:
            try:
                return self.backend.captured(calls, cold=cold), ""
            except NotCapturable as error:
                return self.backend.eager(calls, cold=cold), str(error)
        return self.backend.eager(calls, cold=cold), c.uncapturable

    def _warm(self, entries: Sequence[_Entry], pace: Pace) -> None:
        """Everything in turn, at least once, until the card has left its idle clocks (or, sustained, has heated up)."""
        start = self.backend.now()
        while True:
            for entry in entries:
                entry.sample(self.backend, 0.0)
            if self.backend.now() - start >= pace.warm_s:
                return

    def empty_seconds(self, clock: Clock) -> float:
        """What a call that does nothing shows on this clock: measured once."""
        if clock not in self._empty:
            nothing = Candidate("nothing", [self.backend.empty(clock)])
            entry = self._ready(nothing, "hot" if clock == "kernel" else clock, PACES["normal"])
            self._warm([entry], PACES["normal"])
            self._empty[clock] = estimate([entry.sample(self.backend, 0.0) for _ in range(31)]).median
        return self._empty[clock]


def _timing(entry: _Entry) -> Timing:
    e = estimate(entry.samples)
    return Timing(
        entry.candidate.name, e.median, e.low, e.high, spread(entry.samples), e.n, entry.program.calls, entry.replays,
        entry.sets, entry.program.method, entry.why, tuple(entry.samples),
    )


def _refuse_impossible(found: Measurement, floor_seconds: float, own: Mapping[str, float]) -> None:
    if found.clock == "host":
        return
    for t in (*found.timings.values(), found.again):
        least = min(floor_seconds, own.get(t.name, floor_seconds))
        if t.median < least:
            raise ImpossibleTime(
                f"{t.name}: {t.median * 1e6:.3f} us a call on the {found.clock} clock, but no card of this kind could do it under "
                f"{least * 1e6:.3f} us; the work is not done, or is counted wrongly",
                found,
            )
