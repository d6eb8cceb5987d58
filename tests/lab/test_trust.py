"""docs/trust.md: each promise has a test, which is there and can be run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rooftop.core import settings

PAGE = settings.CHECKOUT / "docs" / "trust.md"
ROW = re.compile(r"^\| (?P<promise>[^|]+) \| (?P<by>[^|]+) \| (?P<test>[^|]*) \|$", re.M)
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def promises() -> list[tuple[str, str]]:
    """What the tables promise, and the cell of its test."""
    text = PAGE.read_text(encoding="utf-8")
    tables = [part.strip() for part in re.split(r"\n\n", text) if part.startswith("| promise | by | test |")]
    found = [(m["promise"].strip(), m["test"].strip()) for t in tables for m in ROW.finditer(t) if m["promise"].strip() not in ("promise", "---")]
    assert sum(t.count("\n") - 1 for t in tables) == len(found), "a row that cannot be read"
    return found


@pytest.mark.parametrize(("promise", "cell"), promises(), ids=lambda value: value[:40])
def test_each_promise_has_a_test(promise: str, cell: str) -> None:
    named = NAME.fullmatch(cell)
    assert named, f"{promise}: {cell!r} names no test"
    path = settings.CHECKOUT / Path(named[1])
    assert path.name.startswith("test_"), f"{named[1]} is not collected"
    there = [n.name for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)]
    assert there.count(named[2]) == 1, f"{named[1]} has no {named[2]}, or two, of which pytest runs one"


def test_the_page_has_its_tables() -> None:
    assert len(promises()) > 40
    assert len({promise for promise, _ in promises()}) == len(promises()), "a promise is made twice"
