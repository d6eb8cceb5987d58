"""Recorded computations: the function gives what the code gives, or None."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import random

import pytest

from rooftop.core.expressions import ExpressionError, Scope, evaluate
from rooftop.core.symbolic import Symbol, Trace, Untraceable


def choice(n: int, m: int) -> tuple[object, ...]:
    """Code of the kind that chooses configs."""
    blocks = min(-(-n // 8), 132)
    costs = {c: math.ceil(n / c) * (c + 3) + (m % c) / 7 for c in (8, 16, 24, 64)}
    best = min(costs, key=lambda c: (round(costs[c], 2), c))
    low = max(0, n.bit_length() - 5)
    return blocks, best, n >> low << low, math.prod((n, m, 3)), divmod(n, 7), abs(n - m), int(n / 7.0), [1, 2, 3][: m % 3 + 1], f"k<{blocks}>", 2**low


def recorded(n: int, m: int) -> tuple[object, object]:
    """The function of `choice`, recorded at (n, m)."""
    trace = Trace((n, m))
    *numbers, listed, text, power = choice(*trace.symbols)  # type: ignore[arg-type]
    assert isinstance(text, str)
    return trace, trace.function((*numbers, tuple(listed), trace.plain_text(text), power))  # type: ignore[arg-type]


def flat(found: tuple[object, ...]) -> tuple[object, ...]:
    *numbers, listed, text, power = found
    return (*numbers, tuple(listed), text, power)  # type: ignore[arg-type]


def test_the_function_gives_what_the_code_gives_or_none() -> None:
    r, hits = random.Random(5), 0
    for _ in range(40):
        n, m = r.randrange(1, 3000), r.randrange(1, 300)
        _, function = recorded(n, m)
        assert function(n, m) == ((), flat(choice(n, m)))  # type: ignore[operator]
        for _ in range(60):
            other = n + r.randrange(-9, 9), m + r.randrange(-3, 3)
            if min(other) > 0 and (found := function(*other)) is not None:  # type: ignore[operator]
                hits += other != (n, m)
                assert found == ((), flat(choice(*other)))
    assert hits > 20  # it does cover others


def test_a_number_cannot_be_read_without_a_guard() -> None:
    for read in (
        lambda n: list(range(n)), lambda n: [0] * n, lambda n: int(n), lambda n: float(n), lambda n: math.sqrt(n), lambda n: math.gcd(n, 12), lambda n: n == 12,
        lambda n: bool(n - 12), lambda n: n in (3, 12), lambda n: "x" * n, lambda n: (n,) == (12,), lambda n: sorted((n, 12, 13)),
    ):  # fmt: skip
        trace = Trace((12,))
        read(*trace.symbols)
        function = trace.function(())
        assert function(12) == ((), ())
        assert any(function(n) is None for n in (11, 13, 1000))


def test_texts_are_resolved_with_guards() -> None:
    trace = Trace((40, 7))
    n, m = trace.symbols
    text = f"<{n // 8}, {m:>3}, {n!r}>"
    assert trace.plain_text(text) == "<5,   7, 40>"
    function = trace.function(())
    assert function(40, 7) is not None
    assert function(41, 7) is None and function(40, 8) is None


def test_a_text_is_found_among_others() -> None:
    for n, found in ((40, "x[40]*"), (41, None)):
        trace = Trace((n,))
        assert trace.same_text(f"x[{trace.symbols[0]}]*", ["y[40]*", "x[40]*", "x[40]"]) == found
        function = trace.function(())
        assert (function(40) is not None) == (n == 40)
        assert (function(42) is not None) == (n == 41)


def test_what_cannot_be_recorded_is_refused() -> None:
    for what in (lambda n: {n: 1}, lambda n: hash((n, 1)), lambda n: n / 0 if n else 0):
        trace = Trace((5,))
        with pytest.raises((Untraceable, ZeroDivisionError)):
            what(*trace.symbols)
    trace = Trace((5,))
    with contextlib.suppress(Exception):  # code under a trace may catch it
        hash(trace.symbols[0])
    with pytest.raises(Untraceable):
        trace.function(())


def test_an_operation_that_fails_makes_the_trace_useless() -> None:
    trace = Trace((64,))
    with pytest.raises(ExpressionError, match="divides by zero"):
        evaluate("1000 // (R - 64) > 3", Scope({"R": trace.symbols[0]}))
    with pytest.raises(Untraceable):
        trace.function(())


def test_copies_and_powers_have_guards() -> None:
    for read in (copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n)), lambda n: 2 ** (n - 5), lambda n: f"{n:04d}"):
        trace = Trace((8,))
        read(*trace.symbols)
        function = trace.function(())
        assert function(8) is not None and function(3) is None


def test_infinity_is_a_number() -> None:
    trace = Trace((9,))
    least = min(trace.symbols[0] / 3, math.inf)
    assert trace.function((least,))(12) == ((), (4.0,))


def test_assumed_numbers_are_given() -> None:
    trace = Trace((1000,))
    (n,) = trace.symbols
    assert trace.assume(n >> 5 << 5) == 992
    function = trace.function((n + 1,))
    assert function(1001) == ((992,), (1002,))
    assert function(3) == ((0,), (4,))


def test_expressions_of_heads() -> None:
    for text in ("ceil(R / 8) * 4", "R % 16 == 0 and R > 100", "min(R, 264)", "2 if R // 4 < 100 else 3", "-R + 5", "max(1, R - 300)"):
        trace = Trace((320,))
        value = evaluate(text, Scope({"R": trace.symbols[0]}))
        function = trace.function((value,))
        hits = 0
        for r in range(1, 700):
            if (found := function(r)) is not None:
                hits += 1
                assert found == ((), (evaluate(text, Scope({"R": r})),))
        assert hits > 1


def test_afterwards_a_symbol_is_its_number() -> None:
    trace = Trace((12,))
    (n,) = trace.symbols
    trace.function(())
    assert n + 1 == 13 and type(n + 1) is int and str(n) == "12" and list(range(n)) == list(range(12)) and isinstance(n, int) and type(n) is Symbol
