"""After a time that is a record: fresh inputs, another tool, a second timer. What does not hold is refused, and the verdict says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rooftop.lab.judge.score import AGREE, clocks_agree
from rooftop.lab.judge.verdict import Verdict

Check = Callable[[], tuple[str, str]]  # kind of a verdict ("right" where it holds), and what was found


def audited(made: Verdict, best: float, checks: Mapping[str, Check]) -> Verdict:
    """The verdict after its audit, where its time is below that of the best rung; else as it is. `checks`: by name, in order; the first
    that does not hold gives the verdict, and there is no score then."""
    if made.seconds is None or made.seconds >= best:
        return made
    for name, check in checks.items():
        kind, said = check()
        if kind != "right":
            return replace(
                made, kind=kind, said=f"audit, {name}: {said}", score=None, notes=(*made.notes, "its time was a record, and was audited")
            )
    return replace(made, notes=(*made.notes, f"a record: audited by {', '.join(checks) or 'nothing that is here'}"))


def second_timer(first: float, second: float) -> tuple[str, str]:
    """Whether another clock says the same, within 5 %."""
    if clocks_agree(first, second):
        return "right", ""
    return "clocks differ", f"{first * 1e6:.2f} us by the judge's clock, {second * 1e6:.2f} us by another; {AGREE:.0%} apart are allowed"
