"""A device whose true times are known, for the tests of what is timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooftop.lab.timing.timer import Call, Clock, NotCapturable, Program

L2 = 50 << 20
MIB = 1 << 20


@dataclass(eq=False)
class Kernel:
    """A simulated call: its true seconds, the scatter of one replay (sigma of the log), seconds of CPU to launch it."""

    name: str
    seconds: float
    scatter: float = 0.0
    host: float = 5e-6
    breaks_capture: str = ""
    ran: int = 0

    def __call__(self) -> None:
        self.ran += 1


@dataclass
class Simulated:
    """A device with a clock of its own. ``drift(now)`` slows everything that runs at that moment."""

    seed: int = 1
    drift: Callable[[float], float] = lambda now: 1.0
    l2_bytes: int = L2
    log: list[tuple[str, str, int]] = field(default_factory=list)
    clock: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def now(self) -> float:
        return self.clock

    def before(self, call: Callable[[], Any]) -> None:
        self.log.append(("before", "", 0))
        call()

    def pause(self, seconds: float) -> None:
        self.log.append(("pause", "", 0))
        self.clock += seconds

    def empty(self, clock: Clock) -> Call:
        return Kernel("nothing", 1e-6, host=1e-7)

    def describe(self) -> dict[str, Any]:
        return {"name": "simulated"}

    def captured(self, calls: Sequence[Call], *, cold: bool) -> Program:
        for call in calls:
            assert isinstance(call, Kernel)
            if call.breaks_capture:
                raise NotCapturable(call.breaks_capture)
        return SimulatedProgram(self, calls, "graph", cold)

    def eager(self, calls: Sequence[Call], *, cold: bool) -> Program:
        return SimulatedProgram(self, calls, "events", cold)

    def host(self, calls: Sequence[Call]) -> Program:
        return SimulatedProgram(self, calls, "cpu", False)


class SimulatedProgram:
    def __init__(self, device: Simulated, calls: Sequence[Call], method: str, cold: bool) -> None:
        self.device, self.method = device, method
        self.kernels = [c for c in calls if isinstance(c, Kernel)]
        self.calls = 1 if cold else len(calls)
        self.per_replay = self.kernels[:1] if cold else self.kernels

    def run(self, replays: int, lead: int) -> float:
        device, first = self.device, self.kernels[0]
        one = sum(k.host if self.method == "cpu" else k.seconds for k in self.per_replay)
        seconds = one * replays * device.drift(device.clock) * 2.718281828459045 ** device.rng.gauss(0, first.scatter)
        device.log.append(("run", first.name, replays))
        device.clock += seconds + lead * one + 20e-6
        return seconds
