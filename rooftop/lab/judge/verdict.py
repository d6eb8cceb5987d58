"""What a judgement comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rooftop.core.forms import formed

KINDS: Mapping[str, str] = {  # of a verdict -> what it means
    "right": "right at hidden shapes and seeds",
    "wrong": "an output differs from the reference by more than the contract allows",
    "unwritten": "an output is not wholly written, or is made of memory that nobody wrote",
    "replay": "an output is that of an earlier call",
    "shape": "an output has another shape or dtype than it must",
    "lazy": "a result is no plain tensor: its values would be computed when somebody looks",
    "input changed": "it writes into an input",
    "beyond": "it reads or writes outside its tensors",
    "race": "two threads meet at an address with nothing between to order them, or two runs differ",
    "fault": "it breaks another rule of the machine",
    "stuck": "it did not come to its end in the time",
    "memory": "it takes more memory than it may",
    "processes": "it starts more processes than it may",
    "ended": "it ends the process that it runs in",
    "forged": "it answers in the judge's place",
    "patched": "it replaces functions that the judge or torch needs",
    "left running": "threads or processes of it run on after it has answered",
    "denied": "it reaches for files, programs or the network",
    "printed": "it prints more than it may",
    "raises": "it raises, or refuses what the op takes",
    "broken": "it does not compile or load",
    "host work": "its result is computed by the host, or copied to it, not by a kernel",
    "impossible": "its time is below what the hardware can do",
    "clocks differ": "its own clock and the judge's differ by more than 5 %",
    "not judged": "what is here cannot run it",
}


@dataclass(frozen=True)
class Verdict:
    """A judgement, as the board keeps it and `--json` prints it.

    `kind`: one of KINDS; `said`: the first finding. `place`: simulator, interpreter, cpu or gpu. `isolation`: how it was kept apart, or
    "not isolated". `score`: 0 to 1 on `basis`: "time" (seconds on `device` at `case`, by `clock`), or "counts" (`cost`: cycles of a
    multiprocessor by counts of the simulator, without a GPU). `between`: the rungs next to it, the slower first; `lacking`: what the next
    one does differently; `bound`, `advice`: what limits it, and lines that cost; `lines`: (line, cycles) of
    the source by counts of the simulator, where it counted; `percentile`: of the local board at judging, by user."""

    file: str
    digest: str
    form: str
    op: str
    kind: str
    said: str = ""
    place: str = ""
    isolation: str = ""
    trials: int = 0
    device: str = ""
    case: str = ""
    basis: str = ""
    clock: str = ""
    seconds: float | None = None
    cost: float | None = None
    score: float | None = None
    peer: str = ""
    roof_seconds: float | None = None
    between: tuple[str, ...] = ()
    lacking: str = ""
    bound: str = ""
    advice: tuple[str, ...] = ()
    percentile: float | None = None
    notes: tuple[str, ...] = ()
    lines: tuple[tuple[int, float], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    took: float = 0.0

    @property
    def right(self) -> bool:
        return self.kind == "right"

    @staticmethod
    def of_json(said: Mapping[str, Any]) -> Verdict:
        """The verdict of what `to_json` gave. Raises FormError."""
        return formed({n: v for n, v in said.items() if n != "means"}, Verdict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "means": KINDS[self.kind]}

    def text(self) -> list[str]:
        """For a terminal, and for a page."""
        where = f"{self.trials} hidden calls, {self.place}; {self.isolation}" if self.place else "nothing ran"
        made = [f"{self.kind}: {self.file} ({self.form}), {self.op or 'no op'}: {self.said or KINDS[self.kind]}", f"  judged     {where}"]
        if self.seconds is not None:
            roof = f", {self.roof_seconds / self.seconds:.0%} of the roof" if self.roof_seconds else ""
            made.append(f"  time       {self.seconds * 1e6:.1f} us at {self.case} on {self.device} ({self.clock} clock){roof}")
        if self.cost is not None:
            made.append(f"  counts     {self.cost:,.0f} cycles of a multiprocessor by sectors, wavefronts and operations, at {self.case}")
        if self.score is not None:
            how = "by time" if self.basis == "time" else "by counts: not a time, and on a board of its own"
            made.append(f"  score      {self.score:.3f} ({how})" + (f"; 0.5 is {self.peer}" if self.peer else ""))
        if self.between:
            made.append(f"  place      {_between(self.between)}")
        made += [f"  next rung  {self.lacking}"] if self.lacking else []
        made += [f"  bound      {self.bound}"] if self.bound else []
        made += [f"             {line}" for line in self.advice]
        if self.percentile is not None:
            made.append(f"  board      better than {self.percentile:.1f} % of the local board")
        return made + [f"  note       {note}" for note in self.notes]


def _between(names: tuple[str, ...]) -> str:
    slower, faster = (*names, "")[:2]
    return (
        f"between {slower} and {faster}"
        if slower and faster
        else f"beyond {slower}, the last rung"
        if slower
        else f"before {faster}, the first rung"
    )
