"""What a training step of a model consists of, and what each part of `rooftop.patch` saves of it: predicted from bench records, measured on
a GPU."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in import patching
from rooftop.lab.timing import model_step
from rooftop.lab.timing.model_costs import Costs, group_of

HIT = 0.25  # a gain that is predicted within this of the measured one
LEAST = 0.01  # of the step: smaller gains are not judged, they are within the noise
WARM, TIMED = 3, 7  # steps
ALL = "all of them"


@dataclass(frozen=True)
class Row:
    """Ops of a kind in a step: how often, seconds predicted and at the roof, what bounds most of it, and seconds measured."""

    op: str
    times: int
    seconds: float
    roof: float
    bound: str
    measured: float | None = None


@dataclass(frozen=True)
class Gain:
    """Seconds of a step that a part saves alone; residual beside rms_norm, which it needs."""

    part: str
    predicted: float
    measured: float | None = None

    def hit(self, step: float) -> bool | None:
        """Whether it was predicted within HIT; None where nothing was measured, or hardly anything was saved."""
        if self.measured is None or max(abs(self.measured), abs(self.predicted)) < LEAST * step:
            return None
        return abs(self.predicted - self.measured) <= HIT * abs(self.measured)


@dataclass
class Profile:
    """`device`: whose records predicted; `measured`: seconds of a step, None where nothing was measured."""

    device: str
    eager: list[Row]
    patched: list[Row]
    gains: list[Gain]
    measured: float | None = None
    assumed: list[str] = field(default_factory=list)

    @property
    def predicted(self) -> float:
        return sum(r.seconds for r in self.eager)

    @property
    def step(self) -> float:
        return self.measured or self.predicted

    def to_json(self) -> dict[str, Any]:
        gains = [{**asdict(g), "hit": g.hit(self.step)} for g in self.gains]
        return {**asdict(self), "predicted": self.predicted, "gains": gains}

    def rows(self, of: str) -> list[dict[str, Any]]:
        """The record's rows of a model called `of`: milliseconds saved by each part."""
        return [
            {"what": "gains", "of": of, "variant": g.part, "figures": {"ms": g.measured * 1e3, "predicted ms": g.predicted * 1e3}}
            for g in self.gains if g.measured is not None
        ]


def profile(model: nn.Module, ids: Tensor, costs: Costs, real: Callable[[], nn.Module] | None = None) -> Profile:
    """`model` need have no values; `real` makes the one that is measured, on a GPU."""
    step = model_step.training(model, ids)
    found: dict[str, list[Row]] = {}
    assumed: dict[str, None] = {}

    def predicted() -> float:
        rows = list(_rows(step, costs, assumed))
        found["now"] = rows
        found.setdefault("eager", rows)
        return sum(r.seconds for r in rows)

    gains = [Gain(part, saved) for part, saved in _saved(model, predicted)]
    made = Profile(costs.device, found["eager"], found["now"], gains, assumed=list(assumed))
    if real is not None:
        there = real()
        run = _run(there, ids.to(next(there.parameters()).device))
        measured = dict(_saved(there, lambda: _seconds(run)))
        made.measured = _seconds(run)
        made.gains = [Gain(g.part, g.predicted, measured.get(g.part)) for g in made.gains]
        seen = _by_group(run)
        made.eager = [Row(r.op, r.times, r.seconds, r.roof, r.bound, seen.get(r.op, 0.0)) for r in made.eager]
    return made


def _saved(model: nn.Module, seconds: Callable[[], float]) -> Iterator[tuple[str, float]]:
    """(part, seconds that it saves) of those that the model has, and of all of them in the end. `seconds`: of a step of the model as it is
    then."""
    off = dict.fromkeys(patching.PARTS, False)
    for part in patching.PARTS:
        beside = {"rms_norm": True} if part == "residual" else {}
        before = seconds() if not beside else _patched(model, {**off, **beside}, "rms_norm", seconds)
        after = _patched(model, {**off, **beside, part: True}, part, seconds)
        if before is not None and after is not None:
            yield part, before - after
    before = seconds()
    after = _patched(model, {}, "", seconds)
    if after is not None:
        yield ALL, before - after


def _patched(model: nn.Module, parts: Mapping[str, bool], needed: str, seconds: Callable[[], float]) -> float | None:
    """Seconds of a step with these parts; None where the model has not the one that is needed."""
    try:
        report = patching.apply(model, parts)
    except ValueError:  # nothing of it can be replaced
        return None
    with report:
        return seconds() if not needed or report.replaced.get(needed) else None


def _rows(step: Callable[[], Any], costs: Costs, assumed: dict[str, None]) -> Iterator[Row]:
    times: Counter[str] = Counter()
    taken: defaultdict[str, float] = defaultdict(float)
    roofs: defaultdict[str, float] = defaultdict(float)
    bounds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for done, n in model_step.of_step(step):
        group, cost = done.op if done.ours else group_of(done.op), costs.of(done)
        times[group] += n
        taken[group] += n * cost.seconds
        roofs[group] += n * cost.roof.seconds
        bounds[group][cost.roof.bound] += n * cost.roof.seconds  # type: ignore[assignment]
        assumed.update(dict.fromkeys(cost.roof.assumed))
    for group in sorted(times, key=lambda g: -taken[g]):
        yield Row(group, times[group], taken[group], roofs[group], bounds[group].most_common(1)[0][0])


def _run(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    def run() -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)

    return run


def _seconds(run: Callable[[], None]) -> float:
    """The median of a step on the GPU."""
    found = []
    for i in range(WARM + TIMED):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if i >= WARM:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def _by_group(run: Callable[[], None]) -> dict[str, float]:
    """Seconds of a step on the GPU by kind of op, as torch.profiler sees it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as seen:
        run()
        torch.cuda.synchronize()
    found: defaultdict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        if event.key.startswith("aten::"):
            found[group_of(event.key.removeprefix("aten::"))] += event.self_device_time_total * 1e-6
    return found


def screen(p: Profile, of: str) -> str:
    """The tables."""
    how = (
        f"measured here, predicted from the records of {p.device}" if p.measured
        else f"predicted from the records of {p.device}; nothing was measured"
    )
    lines = [f"{of}: forward and backward, {how}"]
    totals = [f"predicted {p.predicted * 1e3:.1f} ms", *([f"measured {p.measured * 1e3:.1f} ms"] if p.measured else [])]
    for title, rows, total in (("as it is", p.eager, p.predicted), ("patched", p.patched, sum(r.seconds for r in p.patched))):
        heads = [title, "times", "ms", "share", "roof ms", "bound", *(["measured ms"] if p.measured and rows is p.eager else [])]
        table = [
            [r.op, str(r.times), f"{r.seconds * 1e3:.2f}", f"{r.seconds / total:.0%}", f"{r.roof * 1e3:.2f}", r.bound,
             *([f"{r.measured * 1e3:.2f}"] if r.measured is not None else [])] for r in rows if r.seconds >= 0.001 * total
        ]
        lines += ["", *_aligned([heads, *table])]
    heads = ["part of rooftop.patch", "saves ms", "of the step", *(["measured ms", "predicted / measured"] if p.measured else [])]
    table = [
        [g.part, f"{g.predicted * 1e3:.2f}", f"{g.predicted / p.predicted:.0%}",
         *([f"{g.measured * 1e3:.2f}", f"{g.predicted / g.measured:.2f}" if g.hit(p.step) is not None else ""] if g.measured is not None else [])]
        for g in p.gains
    ]
    lines += ["", *_aligned([heads, *table]), "", f"a step: {', '.join(totals)}"]
    judged = [g.hit(p.step) for g in p.gains if g.hit(p.step) is not None]
    if judged:
        lines.append(f"{sum(map(bool, judged))} of {len(judged)} gains of {LEAST:.0%} of the step or more predicted within {HIT:.0%}")
    if p.assumed:
        lines.append(f"not measured on this card: {'; '.join(p.assumed)}")
    return "\n".join(lines)


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in rows if i < len(r)) for i in range(max(map(len, rows)))]
    return ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=False))).rstrip() for r in rows]
