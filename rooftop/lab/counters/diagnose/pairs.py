"""The kernels of two reports, before and after a change, brought together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rooftop.lab.counters.diagnose.diagnosis import Diagnosis


@dataclass(frozen=True)
class Pair:
    """One kernel in both reports, or in one of them. Of several launches the one of the median time; `launches`: how many after, else
    before."""

    before: Diagnosis | None
    after: Diagnosis | None
    launches: int = 1

    @property
    def weight(self) -> float:
        return max((d.seconds or 0.0) * self.launches for d in (self.before, self.after) if d is not None)


def pair(before: Sequence[Diagnosis], after: Sequence[Diagnosis]) -> list[Pair]:
    """The kernels that take longest first. They are the same kernel by name and NVTX range; else by the name without template arguments and
    parameters, which a change may touch; else, where each report has but one, whatever its name."""
    left = [_groups(found) for found in (before, after)]
    pairs: list[Pair] = []
    keys: tuple[Callable[[Diagnosis], object], ...] = (lambda d: (d.name, d.case), lambda d: (base(d.name), d.case), lambda d: base(d.name))
    for key in keys:
        at = [_alone(groups, key) for groups in left]
        for k in [k for k in at[0] if k in at[1]]:
            one, other = at[0][k], at[1][k]
            left[0].remove(one)
            left[1].remove(other)
            pairs.append(Pair(_middle(one), _middle(other), len(other)))
    if not pairs and len(left[0]) == len(left[1]) == 1:
        pairs.append(Pair(_middle(left[0][0]), _middle(left[1][0]), len(left[1][0])))
    else:
        pairs += [Pair(_middle(g), None, len(g)) for g in left[0]] + [Pair(None, _middle(g), len(g)) for g in left[1]]
    return sorted(pairs, key=lambda p: -p.weight)


def base(name: str) -> str:
    """A kernel's name without return type, template arguments, parameters and namespaces' arguments: `void ns::k<128, T>(float *)` is
    `ns::k`."""
    flat, depth = "", 0
    for mark in name:
        depth += mark in "<(["
        flat += mark if depth == 0 else ""
        depth -= mark in ">)]" and depth > 0
    words = re.sub(r"\s+", " ", flat).strip().split(" ")
    return words[-1] or name


def _groups(found: Sequence[Diagnosis]) -> list[list[Diagnosis]]:
    """Launches of one kernel together."""
    by: dict[tuple[str, str], list[Diagnosis]] = {}
    for d in found:
        by.setdefault((d.name, d.case), []).append(d)
    return list(by.values())


def _alone(groups: Sequence[list[Diagnosis]], key: Callable[[Diagnosis], object]) -> dict[object, list[Diagnosis]]:
    """The groups whose key no other group of the report has."""
    by: dict[object, list[list[Diagnosis]]] = {}
    for group in groups:
        by.setdefault(key(group[0]), []).append(group)
    return {k: found[0] for k, found in by.items() if len(found) == 1}


def _middle(group: Sequence[Diagnosis]) -> Diagnosis:
    at = median(d.seconds or 0.0 for d in group)
    return min(group, key=lambda d: abs((d.seconds or 0.0) - at))
