"""The time of a ladder's next rung, predicted from this one: the idea of the step, as it paid on other ladders, up to the roof of the op's
work.

A step's idea closes a part of the way from the rung's time to the roof, in logarithms: `part` = log(t / t') / log(t / roof), with t before
and t' after the step. A ladder's steps are predicted with the median part that the same idea closed on all other ladders (of all their
steps where no other ladder has the idea), so that none of its own times is used beyond that of the rung before. No prediction lies below
the roof, and none above the time of
now: an idea that costs time on the other ladders is predicted to change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from rooftop.lab.records.store import Record

IDEAS: Mapping[str, str] = {  # slug of a rung -> the idea of the step to it; a rung that is not here is left out
    "coalesced": "neighbours", "block": "neighbours", "shared_reduction": "neighbours", "warp_a_row": "neighbours",
    "rows_out": "neighbours", "shared_tile": "shared tile", "tiled": "shared tile",
    "tile_1d": "register tile", "tile_2d": "register tile", "rows_a_warp": "register tile",
    "vectorised": "wide accesses", "wide": "wide accesses", "pairs": "wide accesses", "wide_loads": "wide accesses",
    "conflict_free": "no conflicts", "padded": "no conflicts", "swizzle": "no conflicts", "halves": "no conflicts",
    "transposed_a": "layout", "warp_tile": "layout", "swizzled": "layout",
    "double_buffer": "overlap", "async_copies": "overlap", "multistage": "overlap", "async_tiles": "overlap",
    "online": "fewer passes", "one_pass": "fewer passes", "fused": "fewer passes", "backwards": "fewer passes",
    "warp_shuffle": "shuffles", "shuffles": "shuffles",
    "registers": "row stays on chip", "whole_row": "row stays on chip",
    "short": "fewer instructions", "positions": "fewer instructions",
    "cluster": "shipped", "tuned": "shipped", "every_length": "shipped",
}
SAME = 1.02  # a rung this near the roof has no way left: its steps do not calibrate


@dataclass(frozen=True)
class Step:
    """From one measured rung to the next, at a case, on a card. Times and roof in seconds."""

    ladder: str
    before: str
    after: str
    idea: str
    case: str
    card: str
    seconds: float
    came: float
    roof: float

    @property
    def part(self) -> float | None:
        """Of the way to the roof that the step went; None where there was no way."""
        return math.log(self.seconds / self.came) / math.log(self.seconds / self.roof) if self.seconds > SAME * self.roof else None


@dataclass(frozen=True)
class Predicted:
    step: Step
    seconds: float
    samples: int  # steps of other ladders with the same idea; 0: the median of all of them

    @property
    def error(self) -> float:
        """Of the predicted time, as a part of the measured."""
        return self.seconds / self.step.came - 1


def steps(records: Iterable[Record]) -> list[Step]:
    """Every step between neighbouring rungs that were timed at the same case on the same card, by the newest records of the kernel
    clock."""
    from rooftop.core import registry
    from rooftop.core.devices import lookup
    from rooftop.lab import candidates
    from rooftop.lab.timing.roofline import Ceilings

    records = list(records)
    newest: dict[tuple[str, str, str], Record] = {}
    for r in records:
        if r.kind == "bench" and "kernel" in r.clocks:
            key = (r.card, r.subject, r.case)
            if key not in newest or r.at > newest[key].at:
                newest[key] = r
    cards = sorted({card for card, _, _ in newest if lookup(card) is not None})
    ceilings = {card: Ceilings.from_records(records, card, lookup(card)) for card in cards}
    found = []
    for name in registry.ladder_names():
        subjects = candidates.rungs(registry.ladder(name))
        for one, other in pairwise(subjects):
            idea = IDEAS.get(other.rung.slug) if other.rung else None
            for card in cards if idea else ():
                for case in one.op.cases:
                    a, b = (newest.get((card, s.name, case.id)) for s in (one, other))
                    if a is None or b is None:
                        continue
                    work = one.op.work(one.op.problem(case))
                    roof = ceilings[card].roof(work.read, work.write, work.ops).seconds
                    times = (a.clocks["kernel"].median, b.clocks["kernel"].median)
                    found.append(Step(name, one.name, other.name, str(idea), case.id, card, *times, roof))
    return found


def predict(found: Sequence[Step]) -> list[Predicted]:
    """Each step by the steps of the other ladders alone; one that no other ladder can tell of is left out."""
    made = []
    for step in found:
        others = [(s.idea, s.part) for s in found if s.ladder != step.ladder and s.part is not None]
        same = [part for idea, part in others if idea == step.idea]
        if not others:
            continue
        part = median(same or [p for _, p in others])
        way = max(1.0, step.seconds / step.roof)
        made.append(Predicted(step, step.seconds / way ** min(1.0, max(0.0, part)), len(same)))
    return made


@dataclass(frozen=True)
class Summary:
    idea: str
    steps: int
    error: float  # median of the predicted time's, without its sign
    bias: float  # median with its sign: above 0, the step came out faster than predicted
    no_change: float  # median error of predicting the time of now


def summary(predicted: Sequence[Predicted]) -> list[Summary]:
    """By idea, and all of them together as `all`."""
    by: dict[str, list[Predicted]] = {}
    for p in predicted:
        by.setdefault(p.step.idea, []).append(p)
    groups = [*sorted(by.items()), ("all", list(predicted))] if predicted else []
    return [
        Summary(
            idea, len(ps), median(abs(p.error) for p in ps), median(p.error for p in ps),
            median(abs(p.step.seconds / p.step.came - 1) for p in ps)
        )
        for idea, ps in groups
    ]
