"""The tables of docs/profiling.md: how often the diagnosis is right, its levers against experiments, and the ladders' steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from rooftop.lab.counters.diagnose import experiments, steps
from rooftop.lab.counters.diagnose.diagnosis import Diagnosis
from rooftop.lab.records.store import Record
from rooftop.lab.report.data import SiteData
from rooftop.lab.report.markup import table

LADDERS_CARD = "NVIDIA H100 80GB HBM3"
NOTHING = "Nothing has been measured yet."


def right(found: list[Record], _site: SiteData) -> str:
    """Of the kernels whose bound an experiment settled, how many are diagnosed as it says, and the others."""
    diagnosed = _diagnosed(found)
    if diagnosed is None:
        return NOTHING
    rows = []
    for title, groups in (
        ("kernels that the limits were set on", experiments.SEEN),
        ("held out: counters first read after the limits were frozen", experiments.HELD),
    ):
        settled = sum(bool(label.bounds) for label in experiments.labels(*groups).values())
        missed = experiments.misses(diagnosed, *groups)
        rows.append((title, settled, settled - len(missed), ", ".join(f"`{n}`" for n in missed)))
    return "\n".join(table(" | settled | right | missed", rows))


def levers(found: list[Record], _site: SiteData) -> str:
    """Each lever's predicted gain beside that of the variant that pulled it."""
    diagnosed = _diagnosed(found)
    if diagnosed is None:
        return NOTHING
    rows, errors, still, inside = [], [], [], 0
    for lever, pulled in experiments.LEVERS.items():
        for name, variant in pulled:
            us = experiments.experiments()[name]["us"]
            came = us["main"] / us[variant]
            x = next(x for x in diagnosed[name].levers if x.key == lever)
            if x.low is None or x.high is None:
                rows.append((f"`{lever}`", name, "unknown", _figure(came)))
                continue
            low, high = _figure(x.low), _figure(x.high)
            rows.append((f"`{lever}`", name, low if low == high else f"{low} to {high}", _figure(came)))
            errors.append(abs(math.log2(math.sqrt(x.low * x.high) / came)))
            still.append(abs(math.log2(came)))
            inside += x.low <= came <= x.high
    off, none = 2 ** median(errors) - 1, 2 ** median(still) - 1
    said = (
        f"The median error is {100 * off:.0f} %, and {100 * none:.0f} % for predicting no change; {inside} of {len(errors)} came inside "
        f"their range."
    )
    return "\n".join([*table("lever | kernel | predicted | came", rows), "", said])


def ladders(found: list[Record], _site: SiteData) -> str:
    """The steps of the recorded ladders: the median error of the predicted time of the next rung."""
    predicted = steps.predict(steps.steps(r for r in found if r.kind != "bench" or r.card == LADDERS_CARD))
    if not predicted:
        return NOTHING
    groups = {f"`{n}`": [p for p in predicted if p.step.ladder == n] for n in sorted({p.step.ladder for p in predicted})}
    rows = [
        (title, len(mine), _median(p.error for p in mine), _median(p.step.seconds / p.step.came - 1 for p in mine))
        for title, mine in ({"all": predicted} | groups).items()
    ]
    return "\n".join(table("ladder, on an H100 | steps | median error | predicting no change", rows))


def _median(errors: Iterable[float]) -> str:
    return f"{100 * median(map(abs, errors)):.0f} %"


def _figure(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 2.5 else f"{ratio:.2f}"


def _diagnosed(found: list[Record]) -> Mapping[str, Diagnosis] | None:
    """The profiled kernels by the ceilings of the records; None where those of the card were not measured."""
    from rooftop.core.devices import lookup
    from rooftop.lab.timing.roofline import Ceilings

    if not any(r.kind == "ceiling" and r.card == experiments.CARD for r in found) or not experiments.FOLDER.is_dir():
        return None
    ceilings = Ceilings.from_records(found, experiments.CARD, lookup(experiments.CARD))
    return experiments.diagnosed(ceilings, *experiments.SEEN, *experiments.HELD)
