"""What one may expect of a card that nobody has measured: the time of a case from the card's datasheet and six constants, fitted on the
H100's records alone.

    t = launch + (m^p + u^p)^(1/p)
    m = bytes / (memory · bandwidth),   u = max over units of operations / (share of the unit · rate)

Bytes and operations are the least that the case requires (`Work`), bandwidth and rates the datasheet's. So the model knows nothing of a
kernel but that it is as close to the roof as those of the H100 that it was fitted on: elementwise ops, norms, losses and products in
float32. Kernels that are far from it, by their algorithm (sorting, sparse and compressed data), take longer than it says;
docs/predictions.md has its error by family, on the H200."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from rooftop.core import registry
from rooftop.core.devices import Datasheet, lookup
from rooftop.core.spec import Work
from rooftop.lab.records.record import Record

FITTED_ON, JUDGED_ON = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


@dataclass(frozen=True)
class Model:
    """The constants. Shares are of the datasheet's figures, at most 1."""

    launch: float = 2e-6  # seconds
    memory: float = 0.9
    tensor: float = 0.7  # no record of an H100 is bound by tensor cores: as assumed, not fitted
    exp: float = 0.5
    fma: float = 0.7
    p: float = 4.0  # how sharply the longer of both times counts alone

    def seconds(self, sheet: Datasheet, work: Work) -> float | None:
        """The expected time; None if the card has no unit for an operation."""
        units = [0.0]
        for unit, count in work.ops.items():
            if unit not in sheet.rates:
                return None
            share = self.tensor if unit.startswith("tensor") else self.exp if unit in ("exp", "mufu") else self.fma
            units.append(count / (sheet.per_second(unit) * share))
        parts = [work.bytes / (sheet.dram_bytes_per_second * self.memory), max(units)]
        longest = max(parts)
        return self.launch + (longest * sum((x / longest) ** self.p for x in parts) ** (1 / self.p) if longest else 0.0)


MODEL = Model(launch=1.344e-06, memory=0.9009, exp=0.75, fma=0.7967, p=13.5)  # `fit` of the committed records; a test compares


@dataclass(frozen=True)
class Timed:
    """The fastest of rooftop's kernels for a case on a card, of the newest record of each; or a peer."""

    device: str
    op: str
    case: str
    family: str
    seconds: float
    work: Work
    peer: str = ""

    def error(self, model: Model) -> float | None:
        """|expected / measured - 1|, or None where nothing is expected."""
        sheet = lookup(self.device)
        found = None if sheet is None else model.seconds(sheet, self.work)
        return None if found is None else abs(found / self.seconds - 1)


def timed(records: Iterable[Record], *, every: bool = False) -> list[Timed]:
    """What bench records say of shipped kernels, whether or not they are stale: a time is one of the kernel as it was. `every`: of peers
    too, and of rungs where an op's kernels have no record."""
    families = {f.op: f.path.parent.name for f in registry.kernel_files()}
    newest: dict[tuple[str, ...], dict[str, tuple[str, Timed]]] = {}
    for r in records:
        if r.kind != "bench" or "kernel" not in r.clocks or r.op not in families or lookup(r.card) is None:
            continue
        subject = r.subject
        peer = subject.removeprefix("peer:") if subject.startswith("peer") else ""
        if (peer or "/" in subject) and not every:
            continue
        made = Timed(r.card, r.op, r.case, families[r.op], r.clocks["kernel"].median, r.work, peer)
        by = newest.setdefault((made.device, made.op, made.case, made.peer, "rung" if "/" in subject else ""), {})
        if subject not in by or r.at > by[subject][0]:
            by[subject] = (r.at, made)
    shipped = {(device, op) for device, op, _, peer, rung in newest if not peer and not rung}
    kept = [by for (device, op, _, _, rung), by in newest.items() if not rung or (device, op) not in shipped]
    return [min((t for _, t in by.values()), key=lambda t: t.seconds) for by in kept]


def median_error(found: Sequence[Timed], model: Model = MODEL) -> float | None:
    """The median of their errors; None without any."""
    errors = [e for t in found if (e := t.error(model)) is not None]
    return median(errors) if errors else None


def fit(found: Sequence[Timed], start: Model | None = None) -> Model:
    """The constants with the least mean of |log(expected / measured)|, each moved in turn by ever smaller factors. What moves nothing
    stays as it was."""
    mine = [t for t in found if t.device == FITTED_ON]
    sheet = lookup(FITTED_ON)
    assert sheet is not None

    def loss(model: Model) -> float:
        expected = [(model.seconds(sheet, t.work), t.seconds) for t in mine]
        return sum(abs(math.log(e / s)) for e, s in expected if e) / max(1, len(expected))

    best = start or Model()
    least = loss(best)
    for step in (1.5, 1.2, 1.05, 1.02, 1.005, 1.001):
        moved = True
        while moved:
            moved = False
            for name, value in asdict(best).items():
                for factor in (step, 1 / step):
                    tried = replace(best, **{name: value * factor if name in ("launch", "p") else min(1.0, value * factor)})
                    if (now := loss(tried)) < least - 1e-9:
                        best, least, moved = tried, now, True
                        break
    return best
