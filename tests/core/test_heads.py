"""Heads: what they become, what is wrong with one that cannot be read, and that nothing in one is run."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _support import KERNEL as HEAD

from rooftop.core import head, head_text, registry
from rooftop.core.expressions import ExpressionError
from rooftop.core.head import HeadError
from rooftop.core.spec import TARGETS, Meta, Problem
from rooftop.lab import candidates


def problem(rows: int = 4, columns: int = 8, dtype: str = "f32") -> Problem:
    m = Meta((rows, columns, 1), dtype)
    return Problem("softmax", (("x", m), ("y", m)), (("dim", 1),))


def test_a_head_becomes_launches() -> None:
    launch = head_text.parse(HEAD, "my.cu").launches_for(problem(), {})[0]
    assert (launch.kernel, launch.grid, launch.block, dict(launch.args)) == ("k<float>", (4,), (256,), {"C": 8, "x": "x", "y": "y"})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("/* rooftop", "/* kernel", "no head"),
        ("*/", "", "not closed"),
        ("args    = [", "args    = [[", "my.cu:.*not valid TOML"), ("args    = [", "args    = [" + "[" * 100_000, "my.cu:.*not valid TOML"),
        ("args    = [", "x = " + "9" * 5000 + "\nargs    = [", "my.cu:.*not valid TOML"),
        ("dtypes", "dtyps", "did you mean 'dtypes'"),
        ('"C: i32"', '"C: int"', "'int' is not one of"),
        ('grid    = ["R"]', 'grid    = ["R; import os"]', "not an expression"),
        ('grid    = ["R"]', 'grid    = ["open(\'x\')"]', "may be called"),
        ('block   = [256]', "blocks  = [256]", "lacks block|has blocks"),
    ],
)
def test_a_malformed_head_says_what_is_wrong(old: str, new: str, says: str) -> None:
    with pytest.raises(head.HeadError, match=says):
        head_text.parse(HEAD.replace(old, new), "my.cu")


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        (("[256]", '["C * 512"]'), problem(), "must be 1 to 1024"),
        (('["R"]', '["R / 3"]'), problem(), "whole number"),
        (("C: i32", "C: i32 = C * 1000000000"), problem(), "does not fit i32"),
        (("[256]", "[256]"), problem(dtype="bf16"), "takes f32"),
    ],
)
def test_a_problem_that_does_not_fit_is_refused_with_the_reason(change: tuple[str, str], given: Problem, says: str) -> None:
    reason = head_text.parse(HEAD.replace(*change), "my.cu").supports(given)
    assert reason is not None
    assert re.search(says, reason)


LET = """/* rooftop
args    = ["n: i32 = count", "x: f32[N]", "y: f32[N]"]
[let]
count   = "N * each"
doubled = "2 * count"
[config]
each = 3
[[launch]]
kernel = "k<{doubled}>"
grid   = ["doubled // 4"]
block  = ["each"]
*/
"""


def test_a_name_of_let_stands_for_its_expression_wherever_it_is_used() -> None:
    read = head_text.parse(LET, "let.cu")
    problem = Problem("any", (("x", Meta((10,), "f32")), ("y", Meta((10,), "f32"))), (), TARGETS[80])
    (launch,) = read.launches_for(problem, {"each": 6})
    assert (launch.kernel, launch.grid, launch.block, launch.args["n"]) == ("k<120>", (30,), (6,), 60)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('count   = "N * each"', 'count   = "N * (each"', "is not an expression"),
        ('count   = "N * each"', 'each    = "N"', "a constant of \\[config\\] has this name"),
        ('count   = "N * each"', "count   = 3", "must be a condition"),
    ],
)
def test_a_let_that_cannot_be_read_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(head.HeadError, match=says):
        head_text.parse(LET.replace(old, new), "let.cu")


def test_a_formula_that_does_not_come_out_says_where_it_stands() -> None:
    read = head_text.parse(LET.replace('count   = "N * each"', 'count   = "N // (each - 6)"'), "let.cu")
    problem = Problem("any", (("x", Meta((10,), "f32")), ("y", Meta((10,), "f32"))), (), TARGETS[80])
    with pytest.raises(ExpressionError, match=r"^let\.count: .*divides by zero"):
        read.launches_for(problem, {"each": 6})


def test_names_of_let_that_name_each_other_in_a_circle_are_an_error() -> None:
    with pytest.raises(HeadError, match=r"^let\.cu: let\.count: 'doubled' refers to 'count' itself"):
        head_text.parse(LET.replace('count   = "N * each"', 'count   = "doubled"'), "let.cu")


ADDS = """/* rooftop
op      = "add"
args    = ["n: i64 = numel(x)", "x: f32[N]", "y: f32[N]", "out: f32[N]"]
[[launch]]
kernel = "k"
grid   = ["ceil(N / 256)"]
block  = [256]
*/
__global__ void k(long long n, const float* x, const float* y, float* out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("ceil(N / 256)", "Q", "names 'Q'"),
        ("ceil(N / 256)", "ceil(N / smss)", "did you mean 'sms'"),
        ("y: f32[N]", "z: f32[N]", "args name a tensor 'z'"),
        ("[256]", "[2048]", "out of range"),
        ("ceil(N / 256)", "0", "out of range"),
    ],
)
def test_a_head_that_no_problem_fits_is_wrong_and_never_just_not_supported(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(ADDS.replace(old, new))
    with pytest.raises(head.HeadError, match=says):
        (subject,) = candidates.find([str(path)])
        subject.supports(registry.op("add").case("odd f32"), TARGETS[90])


def test_a_problem_that_does_not_fit_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(ADDS)
    (subject,) = candidates.find([str(path)])
    assert "takes f32" in str(subject.supports(registry.op("add").case("odd bf16"), TARGETS[90]))
    assert subject.supports(registry.op("add").case("odd f32"), TARGETS[90]) is None


@pytest.mark.parametrize(
    "line", ['demands = { has = "LDG" }', 'demands = { spills = "0" }', "predict = { speedup = nan }", 'requires = { "N > 0" = 3 }']
)
def test_demands_predictions_and_reasons_of_the_wrong_kind_are_refused(line: str) -> None:
    with pytest.raises(head.HeadError):
        head_text.parse(ADDS.replace('op      = "add"', 'op      = "add"\n' + line), "mine.cu")


CALLS_PYTHON = "__import__('os').system('true')"
PLACES = {  # where a head holds an expression: what is replaced, by what
    "grid": ('["R"]', f'["{CALLS_PYTHON}"]'),
    "block": ("[256]", f'["{CALLS_PYTHON}"]'),
    "cluster": ("block ", f'cluster = ["{CALLS_PYTHON}"]\nblock '),
    "shared": ("block ", f'shared = "{CALLS_PYTHON}"\nblock '),
    "when": ("block ", f'when = "{CALLS_PYTHON}"\nblock '),
    "a number": ("C: i32", f"C: i32 = {CALLS_PYTHON}"),
    "a launch's number": ("block ", f'args = ["C: i32 = {CALLS_PYTHON}"]\nblock '),
    "requires": ("[[launch]]", f'[requires]\n"{CALLS_PYTHON}" = "why"\n[[launch]]'),
    "a choice": ("[[launch]]", f'[config]\na = 1\n[[choice]]\nwhen = "{CALLS_PYTHON}"\na = 2\n[[launch]]'),
    "a dimension": ("x: T[R, C, 1]", f"x: T[{CALLS_PYTHON}, C, 1]"),
    "a template argument": ("{T}", "{" + CALLS_PYTHON + "}"),
    "scratch": ("[[launch]]", f'[scratch]\ns = "f32[{CALLS_PYTHON}]"\n[[launch]]'),
    "valid": ("[[launch]]", f'valid = "{CALLS_PYTHON}"\n[[launch]]'),
}


@pytest.mark.parametrize("place", PLACES)
def test_python_in_a_head_is_refused_when_the_file_is_read(place: str) -> None:
    text = HEAD.replace(*PLACES[place], 1)
    assert text != HEAD
    with pytest.raises(head.HeadError, match=r"^my\.cu: .*"):
        head_text.parse(text, "my.cu")


def test_nothing_of_a_head_is_run_even_where_it_was_not_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was made without being read: what it holds is calculated by the same rules."""
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", ran.append)
    plain = head_text.parse(HEAD, "my.cu")
    for other in (
        replace(plain, launches=(replace(plain.launches[0], kernel="k<{" + CALLS_PYTHON + "}>"),)),
        replace(plain, scratch={"s": head.TensorArg("s", "f32", (CALLS_PYTHON,))}),
    ):
        with pytest.raises(head.HeadError, match=r"^my\.cu: .*may be called"):
            other.supports(problem())
    with pytest.raises(head.HeadError, match=r"^my\.cu: valid: .*may be called"):
        replace(plain, valid=CALLS_PYTHON).is_valid(problem(), {})
    assert ran == []


def test_a_condition_on_a_name_that_is_not_there_names_file_and_key() -> None:
    found = head_text.parse(HEAD.replace("[[launch]]", 'valid = "Q > 3"\n[[launch]]'), "my.cu")
    with pytest.raises(head.HeadError, match=r"^my\.cu: valid: 'Q > 3' names 'Q'"):
        found.is_valid(problem(), {})


def test_a_grid_of_absurd_size_is_refused() -> None:
    for grid in ("R * 2147483647", "-R", "R * sms * 999999999"):
        reason = head_text.parse(HEAD.replace('["R"]', f'["{grid}"]'), "my.cu").supports(problem())
        assert reason is not None and "it must be 1 to 2147483647" in reason
    for grid in ("9" * 490, "0"):  # whatever the problem
        with pytest.raises(head.HeadError, match="it must be 1 to 2147483647"):
            head_text.parse(HEAD.replace('["R"]', f'["{grid}"]'), "my.cu")
