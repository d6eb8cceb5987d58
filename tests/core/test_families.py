"""Plans from recipes: what they say of other sizes is what the whole computation says."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest

from rooftop.core import families, registry
from rooftop.core.call import Call, select
from rooftop.core.families import Family, family_of, metas_for, record, traced
from rooftop.core.implementation import Launches
from rooftop.core.op import Op
from rooftop.core.spec import TARGETS, Case
from rooftop.core.symbolic import Untraceable
from rooftop.lab.timing import warm

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
    if family is None:
        return 0, 0
    call = ordinary(op, family, sizes, options)
    if call is None or call.idle or call.implementation.backend not in families.BACKENDS:
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


class FakePlan:
    """A plan whose copies are the arguments that they are made with."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.launches = Launches([FakePrepared() for _ in call.launches])  # type: ignore[misc]

    def resized(self, outputs: Any, scratch: Any, promised: Any, runner: Launches) -> Any:
        return outputs, scratch, promised, list(runner.prepared)


class FakePrepared:
    def again(self, grid: Any, args: Any, tensors: Any) -> Any:
        return grid, args, tensors


def served(op: Op, case: Case, heights: list[int]) -> tuple[Family, int]:
    """The family after calls with these row counts, and how many a recipe served; each of those is compared with the whole computation."""
    was = next(v.shape[0] for _, v in case.tensors())
    hits, family = 0, None
    op.families.clear()
    for rows in heights:
        sized = warm.resized(case, {was: rows})
        options = op.options(sized)
        family, sizes = family_of(op, op._metas(sized), options, None, 0)
        assert family is not None
        call = ordinary(op, family, sizes, options)
        assert call is not None
        found: Any = family.plan(sizes)
        if found is None:
            if family.missed():
                record(family, op, options, None, CARD, sizes, FakePlan(call))  # type: ignore[arg-type]
            continue
        hits += 1
        outputs, scratch, promised, launches = found
        want: Any = result_of(call)
        assert (outputs, scratch, promised) == want[:3], (case.id, rows)
        for (grid, args, _), (grid_, numbers, maps), launch in zip(launches, want[3], call.launches, strict=True):
            assert grid == grid_, (case.id, rows)
            assert {n: v for n, v in args.items() if n in dict(numbers)} == dict(numbers)
            assert all((args[n].shape, args[n].strides) == (shape, strides) for n, shape, strides, _ in maps), launch.kernel
    assert family is not None
    return family, hits


@pytest.mark.parametrize("name", ROW_OPS)
def test_a_family_serves_most_row_counts(name: str) -> None:
    op = registry.op(name)
    for op_ in (op, *([op.bwd] if op.bwd is not None else [])):
        for dtype in ("bf16", "f32"):
            case = warm.kinds(op, dtype)[0]
            for columns in (4096, 1003, 96):
                r = random.Random(columns)
                was = warm.rows_and_columns(case)
                assert was is not None
                sized = warm.resized(case, {was[1]: columns})
                heights = [n for n in r.sample(range(2, 9000), 120) if n != columns]
                family, hits = served(op_, sized, heights)
                assert family.failures == 0
                assert hits > 40, (op_.name, dtype, columns, hits, family.misses, len(family.recipes))


def test_two_choices_of_one_rounded_row_count_are_two_recipes() -> None:
    """Triton's lanes depend on the true row count: 1025 and 1088 rows, both rounded to 1024, take different ones."""
    op = registry.op("rms_norm")
    case = next(c for c in op.cases if "misaligned" in c.name and c.dtype == "f16")
    heights = [n for k in range(30) for n in (1025 + k, 1088 + k)]
    family, hits = served(op, case, heights)
    assert hits > 40 and len(family.recipes) < 8


def test_a_kernel_that_refuses_the_true_row_count_decides_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice for a rounded row count is the preferred kernel's. One that runs in its place, because that refuses the true count, is not kept for it."""
    op = registry.op("rms_norm")
    case = warm.kinds(op, "bf16")[0]
    first, other = (registry.implementation(n) for n in ("rms_norm__cuda_sm90", "rms_norm__triton"))
    for kind in {type(f) for f in registry.implementations("rms_norm")}:
        monkeypatch.setattr(kind, "prefers", lambda self, p: 9 if self is first and p["x"].shape[0] >= 2048 else 8 if self is other else 0)
    said = first.supports
    monkeypatch.setattr(first, "supports", lambda p: said(p) or ("rows" if p["x"].shape[0] % 16 else None))
    op.rankings.clear()
    _, hits = served(op, case, [1100, 1101, 1103, 2049, 2064, 2051, 2080, 2053, 2096, 2112, 3003, 3008, 3001])
    op.rankings.clear()
    assert hits > 0


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
