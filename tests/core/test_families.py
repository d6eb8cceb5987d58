"""Plans from recipes: what they say of other sizes is what the whole computation says."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from rooftop.core import families, registry
from rooftop.core.call import Call, select
from rooftop.core.families import Family, family_of, metas_for, traced
from rooftop.core.op import Op
from rooftop.core.spec import TARGETS, Case
from rooftop.core.symbolic import Untraceable

CARD = TARGETS["h200"]
ROW_OPS = ("rms_norm", "layer_norm", "softmax", "cross_entropy", "gelu", "swiglu")
CANNOT = (Untraceable, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def ordinary(op: Op, family: Family, sizes: tuple[int, ...], options: dict[str, object]) -> Call | None:
    return select(op, op.problem_of(metas_for(family, sizes), options, CARD)).call  # type: ignore[arg-type]


def result_of(call: Call) -> tuple[object, ...]:
    return families._result(None, call, call)


def covered(op: Op, case: Case, r: random.Random, tries: int) -> tuple[int, int]:
    """(sizes tried, sizes that a recording covers); each covered one is compared with the whole computation."""
    options = op.options(case)
    family, sizes = family_of(op, op._metas(case), options, None, 0)
    call = ordinary(op, family, sizes, options)
    if call is None or call.idle or not sizes or call.implementation.backend not in families.BACKENDS:
        return 0, 0
    try:
        function, result = traced(family, op, options, None, CARD, sizes, call)
    except CANNOT:
        return 0, 0
    assert function(*sizes)[1] == result
    hits = 0
    for _ in range(tries):
        other = tuple(max(2, r.choice((n + r.randrange(-3, 4), r.randrange(n // 2, 2 * n), n + 16 * r.randrange(5), 4 * n))) for n in sizes)
        try:
            found = function(*other)
        except ArithmeticError:
            continue
        if found is None:
            continue
        mine = ordinary(op, family, other, options)
        if found[0] and (mine is None or choice(mine) != choice(call)):
            continue  # another choice was made for this row count: `Family.choices` has it
        hits += 1
        assert mine is not None and mine.implementation is call.implementation, (op.name, case.id, other)
        assert result_of(mine) == found[1], (op.name, case.id, other)
        assert [x.kernel for x in mine.launches] == [x.kernel for x in call.launches]
        assert [(x.block, x.cluster, x.shared, x.warps) for x in mine.launches] == [(x.block, x.cluster, x.shared, x.warps) for x in call.launches]
    return tries, hits


def choice(call: Call) -> tuple[str, str]:
    return call.implementation.name, repr(call.config)


@pytest.mark.parametrize("name", registry.op_names())
def test_what_a_recording_covers_comes_out_the_same(name: str) -> None:
    op = registry.op(name)
    r = random.Random(name)
    cases = [c for c in op.cases if "huge" not in c.tags]
    for case in r.sample(cases, min(3, len(cases))):
        covered(op, case, r, 12)


@pytest.mark.parametrize("name", ROW_OPS)
def test_row_ops_are_recorded(name: str) -> None:
    op = registry.op(name)
    for op_ in (op, *([op.bwd] if op.bwd is not None else [])):
        tried = hits = 0
        for case in islice((c for c in op_.cases if "bench" in c.tags or "model" in c.tags), 6):
            more = covered(op_, case, random.Random(3), 10)
            tried, hits = tried + more[0], hits + more[1]
        assert tried and hits > tried / 10, f"{op_.name}: {hits} of {tried}"
