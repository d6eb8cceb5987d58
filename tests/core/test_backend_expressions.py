"""Expressions as code give what walking their tree gives, values and errors alike; a name of `let` is evaluated once."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from rooftop.core import expressions, head_text
from rooftop.core.expressions import ExpressionError, Scope, evaluate, walked
from rooftop.core.head import HeadError
from rooftop.core.spec import TARGETS, Meta, Problem

VALUES: dict[str, Any] = {
    "a": 0, "b": 1, "c": -7, "d": 4096, "big": 1 << 70, "t": True, "f": False, "half": 0.5, "nan": float("nan"), "word": "bf16",
    "third": Fraction(1, 3), "x": Meta((5, 64), "f32", (72, 1), 8), "none": None, "card": TARGETS[90],
}
LEAVES = [*VALUES, "3", "16", "0", "1.5", "'f32'", "absent"]
CALLS = ["ceil({0})", "ceil({0} / {1})", "min({0}, {1})", "max({0}, {1}, {2})", "pow2({0})", "gcd({0}, {1})", "stride({0}, {1})", "aligned({0}, {1})",
         "starts({0}, 16)", "bytes({0})", "numel({0})", "present({0})", "resident(card, {0})", "resident({0}, {1})", "min({0})"]
FORMS = [f"({{0}}) {op} ({{1}})" for op in ["+", "-", "*", "//", "%", "/", "==", "!=", "<", "<=", ">", ">=", "and", "or"]]
FORMS += ["-({0})", "+({0})", "not ({0})", "({0}) if ({1}) else ({2})", "({0}) < ({1}) <= ({2})", *CALLS, *CALLS]


def written(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES)
    return rng.choice(FORMS).format(*(written(rng, depth - 1) for _ in range(3)))


def outcome(function: Any, text: str, scope: Any) -> tuple[Any, ...]:
    try:
        value = function(text, scope)
    except ExpressionError as error:
        return "error", str(error)
    return type(value), repr(value)


def test_code_gives_what_the_tree_gives() -> None:
    rng = random.Random(20)
    values = errors = plain = 0
    for _ in range(6000):
        text = written(rng, rng.randint(1, 3))
        if len(text) > expressions.MAX_TEXT:
            continue
        wanted = outcome(walked, text, VALUES)
        assert outcome(evaluate, text, VALUES) == wanted, text
        values, errors = values + (wanted[0] != "error"), errors + (wanted[0] == "error")
        code = expressions.compiled(text)
        if wanted[0] != "error" and code is not None:
            try:
                code(VALUES)
            except Exception:
                continue
            plain += 1
    assert values > 1000 and errors > 1000
    assert plain > values / 2, f"{plain} of {values} values come from code: it should be most"


@pytest.mark.parametrize("text", ["__import__('os')", "a.__class__", "(lambda: 1)()", "[a for a in b]", "a[0]", "eval('1')", "_bounded(1)", "{a}", "a := 1"])
def test_what_is_no_arithmetic_never_becomes_code(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {"a": 1, "b": 2})


def test_code_sees_no_names_but_the_scopes() -> None:
    for name in ("len", "open", "_scope", "_bounded", "__builtins__", "ceil"):
        with pytest.raises(ExpressionError, match="which is none of"):
            evaluate(f"{name} + 1", {"a": 1})


def test_a_name_of_let_is_evaluated_once_in_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    inner = expressions.evaluate
    monkeypatch.setattr(expressions, "evaluate", lambda text, scope: (asked.append(text), inner(text, scope))[1])
    lets = {"twice": "n * 2", "sum": "twice + twice + n", "odd": "n // 0", "far": "odd + 1"}
    scope = Scope({"n": 12}, {name: (text, f"let.{name}") for name, text in lets.items()})
    assert [evaluate(text, scope) for text in ("sum + twice", "sum", "twice - n")] == [84, 60, 12]
    assert sorted(asked) == ["n * 2", "twice + twice + n"]
    for _ in range(3):
        with pytest.raises(ExpressionError, match=r"^let\.odd: 'n // 0' divides by zero$"):
            evaluate("far + far", scope)
    assert sorted(asked[2:]) == ["n // 0", "odd + 1"], "an error is found once too"
    wider = scope.with_({"more": 1})
    assert evaluate("sum + more", wider) == 61 and len(asked) == 4


HEAD = '''/* rooftop
op   = "add"
args = ["n: i32 = packs", "x: f32[R, C]", "y: f32[R, C]", "out: f32[R, C]"]
[requires]
"packs % each == 0" = "whole packs"
[let]
packs = "R * lanes"
lanes = "ceil(C / 4)"
[config]
each = 2
[[choice]]
when = "lanes > 4"
each = 4
[[launch]]
kernel = "k<{each}>"
grid   = ["packs // each"]
block  = [32]
*/
'''


def problem(rows: int = 8, columns: int = 20) -> Problem:
    tensor = Meta((rows, columns), "f32")
    return Problem("add", (("x", tensor), ("y", tensor), ("out", tensor)), (), TARGETS[80])


def test_one_problem_is_settled_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_text.parse(HEAD, "my.cu")
    built: list[int] = []
    inner = head_text.Head._launch
    monkeypatch.setattr(head_text.Head, "_launch", lambda self, *rest: (built.append(1), inner(self, *rest))[1])
    asked = problem()
    for _ in range(3):
        assert head.supports(asked) is None
        assert dict(head.choose(asked)) == {"each": 4}
        (launch,) = head.launches_for(asked, head.choose(asked))
    assert len(built) == 1
    assert (launch.kernel, launch.grid) == ("k<4>", (10,))
    again = problem()
    assert head.launches_for(again, head.choose(again)) == [launch] and len(built) == 2, "another problem, though equal, is settled anew"
    assert head.launches_for(again, {"each": 1})[0].grid == (40,) and head.launches_for(again, {"each": True})[0].kernel == "k<true>"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('lanes = "ceil(C / 4)"', 'lanes = "packs + 1"', r"^my\.cu: let\.lanes: 'packs \+ 1' refers to 'lanes' itself"),
        ('lanes = "ceil(C / 4)"', 'lanes = "4"\nR = "3"', r"^my\.cu: let\.R: a name of its own is needed; a dimension has this one"),
        ('lanes = "ceil(C / 4)"', 'lanes = "4"\nsms = "3"', r"^my\.cu: let\.sms: a name of its own is needed; every expression has this one"),
    ],
)
def test_a_name_of_let_that_cannot_be_is_refused_when_the_file_is_read(old: str, new: str, says: str) -> None:
    assert old in HEAD
    with pytest.raises(HeadError, match=says):
        head_text.parse(HEAD.replace(old, new), "my.cu")
