"""What another process answers is read as a type, or refused with its place."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rooftop.core import settings
from rooftop.core.child import ChildError, Process
from rooftop.core.forms import FormError, formed


@dataclass(frozen=True)
class Point:
    at: tuple[int, int]
    name: str | None = None


@dataclass(frozen=True)
class Answer:
    kind: Literal["a", "b"]
    share: float
    points: list[Point] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


def test_a_value_of_the_form_is_read() -> None:
    said = {"kind": "a", "share": 1, "points": [{"at": [1, 2]}, {"at": [3, 4], "name": "x"}], "more": {"n": [None, True]}}
    assert formed(said, Answer) == Answer("a", 1, [Point((1, 2)), Point((3, 4), "x")], {"n": [None, True]})
    assert formed([1, 2, 3], tuple[int, ...]) == (1, 2, 3) and formed(None, int | None) is None and formed({"a": ["b"]}, dict[str, list[str]]) == {"a": ["b"]}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "says"),
    [([], r"it is \[\], not an object"), ({"kind": "a"}, "it lacks share"), ({"kind": "c", "share": 1.0}, "kind is 'c', not Literal"),
     ({"kind": "a", "share": True}, "share is True, not float"), ({"kind": "a", "share": "1"}, "share is '1', not float"),
     ({"kind": "a", "share": 1, "x": 2}, "it has 'x', which is none of kind, share, points, more"),
     ({"kind": "a", "share": 1, "points": {}}, r"points is \{\}, not list"), ({"kind": "a", "share": 1, "points": [3]}, r"points\[0\] is 3, not an object"),
     ({"kind": "a", "share": 1, "points": [{"at": [1]}]}, r"points\[0\].at is \[1\], not tuple"),
     ({"kind": "a", "share": 1, "points": [{"at": [1, 2.0]}]}, r"points\[0\].at\[1\] is 2.0, not int"),
     ({"kind": "a", "share": 1, "points": [{"at": [1, 2], "name": 3}]}, r"points\[0\].name is 3, not str"), ({"kind": ["a"], "share": 1}, "kind is")],
)
def test_another_is_refused_with_its_place(said: Any, says: str) -> None:
    with pytest.raises(FormError, match=says):
        formed(said, Answer)


def test_a_process_is_asked_for_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = '{"kind": "b", "share": 0.5}', '{"kind": "b", "share": "x"}', '{"at": [0, 1]}', '{"error": "no"}'
    loop = f"for job, said in zip(jobs, {answers!r}):\n    print('{{}}')\n    jobs.answer(json.loads(said))\n"
    text = f"import json\nfrom rooftop.core.child import Jobs\njobs = Jobs()\n{loop}"
    (tmp_path / "says.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = Process(Path(sys.executable), "says", {}, what="somebody")
    try:
        assert process.ask({"what": "x"}, 30, Answer, Point) == Answer("b", 0.5)
        with pytest.raises(ChildError, match="somebody answers what cannot be read: share is 'x', not float / it lacks at"):
            process.ask({"what": "x"}, 30, Answer, Point)
        assert process.ask({"what": "x"}, 30, Answer, Point) == Point((0, 1))
        with pytest.raises(ChildError, match=r"^no$"):
            process.ask({"what": "x"}, 30, Answer)
    finally:
        process.end()
    assert settings.python_path().split(":")[1] == str(tmp_path)
