"""Which numbers a `solve` is called with: the sizes of its tensors, by a rule that is found by trying. `kinds`: C types of its parameters
that are no pointers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import Any

from rooftop.lab.judge.tasks import Call

AT, AT_AND = "sizes at ", "sizes, and the call's numbers, at "


def sizes_of(call: Call, count: int) -> dict[str, tuple[int, ...]]:
    """Whole numbers that a `solve` with `count` of them may be meant to get, by the rule that they follow, likely ones first."""
    shapes = [tuple(t.shape) for t in call.tensors.values()]
    every = [n for s in shapes for n in s]
    first = shapes[0] if shapes else ()
    numbers = [int(v) for v in call.values.values() if isinstance(v, int)]
    rules: dict[str, Sequence[int]] = {
        "distinct sizes in order": [*dict.fromkeys(every), *numbers], "all sizes in order": [*every, *numbers],
        "sizes of the first": [*first, *numbers], "elements of the first": [prod(first), *numbers],
        "rows and columns": [prod(first[:-1]), *first[-1:], *numbers], "elements": [prod(first)],
        "distinct sizes": list(dict.fromkeys(every)),
    }
    distinct = list(dict.fromkeys(every))
    if 1 < len(distinct) <= 3:  # (M, N, K) of A [M, K] and B [K, N], as BLAS has them
        for order in list(permutations(range(len(distinct))))[1:]:
            rules[f"distinct sizes in the order {order}"] = [*(distinct[i] for i in order), *numbers]
    return {rule: tuple(found) for rule, found in rules.items() if len(found) == count}


def placed(rule: str, call: Call) -> str:
    """A rule over distinct sizes as one of their places, which holds where sizes coincide: `sizes at 0:0 1:1` are those of the first
    tensor's first dimension and of the second's second."""
    if not rule.startswith("distinct sizes"):
        return rule
    places: dict[int, str] = {}
    for i, t in enumerate(call.tensors.values()):
        for j, n in enumerate(t.shape):
            places.setdefault(int(n), f"{i}:{j}")
    order = [int(i) for i in re.findall(r"\d+", rule)] or range(len(places))
    return f"{AT if rule == 'distinct sizes' else AT_AND}{' '.join(list(places.values())[i] for i in order)}"


def numbers_by(kinds: Sequence[str], call: Call, rule: str) -> tuple[Any, ...] | None:
    """The numbers of a solve for a call by a rule that `of_solve` found; None where it gives none."""
    start = next((p for p in (AT, AT_AND) if rule.startswith(p)), None)
    if start is None:
        return numbers_of(kinds, call).get(rule)
    shapes = [tuple(map(int, t.shape)) for t in call.tensors.values()]
    try:
        sizes = [shapes[i][j] for i, j in (map(int, p.split(":")) for p in rule.removeprefix(start).split())]
    except IndexError:
        return None
    sizes += [int(v) for v in call.values.values() if isinstance(v, int)] if start == AT_AND else []
    return _numbers(kinds, sizes, call)


def _numbers(kinds: Sequence[str], sizes: Sequence[int], call: Call) -> tuple[Any, ...] | None:
    """Whole numbers and the call's others in the order of the solve's parameters."""
    whole = [t for t in kinds if t not in ("float", "double")]
    real = [v for v in call.values.values() if isinstance(v, float)]
    if len(whole) != len(sizes) or len(kinds) - len(whole) != len(real):
        return None
    numbers, reals = iter(sizes), iter(real)
    return tuple(next(reals) if t in ("float", "double") else next(numbers) for t in kinds)


def numbers_of(kinds: Sequence[str], call: Call) -> dict[str, tuple[Any, ...]]:
    """What the numbers of a solve may be, by rule."""
    whole = [t for t in kinds if t not in ("float", "double")]
    found = sizes_of(call, len(whole)) if whole else {"none": ()}
    return {r: n for r, sizes in found.items() if (n := _numbers(kinds, sizes, call)) is not None}
