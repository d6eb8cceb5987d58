"""The table of regimes of norms and softmax: each line of it is reached."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from rooftop.core import registry
from rooftop.core.call import problem_for_kernels
from rooftop.core.choice import Chosen
from rooftop.core.spec import TARGETS, Case, Input, Problem

CHOOSE = registry.chooser("softmax")[0].__globals__  # type: ignore[index]
# (rows, columns, dtype, layout) that a draw seldom meets: padding of a second warp, powers of two, odd rows in a ring, the longest row of a cluster
SELDOM = (
    (1 << 19, 528, "f32", "contiguous"), (1 << 16, 4096, "bf16", "offset"), (1 << 16, 2048, "bf16", "contiguous"),
    (1 << 16, 2501, "bf16", "contiguous"), (1, 780000, "bf16", "contiguous"),
)
PLACES = ("contiguous", "contiguous", "contiguous", "offset", "sliced")


def inputs(op: str, rows: int, columns: int, dtype: str, layout: str) -> dict[str, Any]:
    x = Input((rows, columns), dtype, layout=layout)
    if "softmax" in op:
        return {"x": x, "dim": 1}
    given = {"weight": Input((columns,), dtype), "bias": Input((columns,), dtype)}
    return {"x": x, "residual": None, **given, "dims": 1, "eps": 1e-5}


def drawn(count: int) -> Iterator[tuple[int, int, str, str]]:
    chance = random.Random(54)
    yield from SELDOM
    for _ in range(count):
        columns = round(math.exp(chance.uniform(math.log(8), math.log(1 << 21))))
        columns = (columns, columns, columns // 16 * 16 or 16, 1 << columns.bit_length() - 1)[chance.randrange(4)]
        rows = max(1, round(math.exp(chance.uniform(0, math.log(1 << 29)))) // columns)
        yield rows, columns, chance.choice(("f32", "bf16")), chance.choice(PLACES)


def problems(name: str, shapes: Iterable[tuple[int, int, str, str]]) -> Iterator[Problem]:
    op = registry.op(name)
    forward = name.removesuffix("_bwd")
    for card in ("a800", "h200"):
        for case in (*op.cases, *(Case("drawn", inputs(forward, *shape)) for shape in shapes)):
            if not op.idle(problem := op.problem(case, TARGETS[card])):
                yield problem_for_kernels(op, problem)[0]


@pytest.mark.parametrize("name", sorted(CHOOSE["OF_OP"]))
def test_each_line_of_the_table_is_reached(name: str) -> None:
    reached: Counter[tuple[str, str]] = Counter()
    for problem in problems(name, list(drawn(400))):
        found = registry.choose(name, problem)
        if isinstance(found, Chosen):
            reached[found.kernel, found.why] += 1
    assert len({(line.kernel, line.why) for line in CHOOSE["OF_OP"][name]}) == len(CHOOSE["OF_OP"][name]), "a line is told by its reason"
    assert [line for line in CHOOSE["OF_OP"][name] if not reached[f"{name}__{line.kernel}", line.why]] == []
