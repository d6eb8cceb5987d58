"""Expressions of heads: calculated exactly, refused where they are anything else or grow without end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest

from rooftop.core.expressions import ExpressionError, evaluate, integer
from rooftop.core.spec import Meta


def test_expressions_calculate_exactly() -> None:
    assert integer("ceil(N / 128) * 2", {"N": 129}) == 4
    assert integer("ceil(7 / 3 * 3)", {}) == 7
    assert evaluate("M % 4 == 0 and 1 < K <= 8", {"M": 8, "K": 8}) is True
    with pytest.raises(ExpressionError, match="5/2"):
        integer("5 / 2", {})
    with pytest.raises(ExpressionError, match="divides by zero"):
        evaluate("M // 0", {"M": 1})


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "x.shape", "[1 for _ in x]", "lambda: 1", "(y := 2)", "f'{x}'", "2 ** 9", "x[0]", "eval('1')", "min(*x)", "1 +", "a" * 600],
)
def test_expressions_refuse_everything_else(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {"x": 3, "y": 1})


def test_expressions_refuse_numbers_that_grow_without_end() -> None:
    with pytest.raises(ExpressionError, match="grows beyond"):
        evaluate("*".join(["99999999999"] * 20), {})


SCOPE = {"R": 4, "sms": 132, "x": Meta((4, 8), "f32"), "c": None}


@pytest.mark.parametrize(
    "text",
    [
        "10 ** 99999", "pow(2, 99)", "x.meta", "x.__class__", "().__class__", "[r for r in (1,)]", "{1: 2}", "lambda: 1", "R; R", "R if", "\0", "(" * 240,
        "'a' * 3", "'a' < 1", "max('a', 1)", "min(x, 1)", "pow2(1.5)", "gcd(1.5, 2)", "pow2(-1)",
        "aligned(x, 0)", "stride(x, 99)", "stride(R, 0)", "ceil()", "min(1)",
        "ceil(R, 2)", "1e400", "ceil(1e400)", "1e308 * 10", "0.0 / 0.0", "R % 0", "None", "b'a'", "...", "x", "R == 4", "R / 3", "r", "R\nR",
        "bytes(c)",
    ],
)
def test_an_expression_is_a_whole_number_or_an_error_in_one_line(text: str) -> None:
    with pytest.raises(ExpressionError):
        integer(text, SCOPE)


@pytest.mark.parametrize("text", ["-" * 490 + "1", "1" + "+1" * 249, "9" * 490, "pow2(" * 80 + "3" + ")" * 80, "not " * 120 + "1"])
def test_a_long_expression_is_calculated_or_refused_at_once(text: str) -> None:
    started = time.process_time()
    with contextlib.suppress(ExpressionError):  # how deep Python may go depends on who asks
        assert evaluate(text, SCOPE) is not None
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("strides", "aligned"),
    [((4, 1), True), ((3, 1), False), ((1, 4), True), ((1, 1), False), ((1, 0), True), ((0, 1), True)],
)
def test_a_window_that_slides_by_one_element_is_not_aligned(strides: tuple[int, int], aligned: bool) -> None:
    """Its rows begin at every element, although each stride is 1."""
    assert evaluate("aligned(x, 16)", {"x": Meta((6, 2), "f32", strides)}) is aligned


def started(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
