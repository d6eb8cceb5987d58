"""Nothing that users of `rooftop serve` say is markup on its pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from _serve import VERDICT, Place, made

from rooftop.lab.judge.board import OWN, Entry
from rooftop.lab.judge.serve.queue import Limits, Queue

CORES = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "</textarea><b>", "</pre></span><h1>",
    "</title><x>", "\"><a href=javascript:alert(1)>", "' onmouseover='x", "{{ 7 * 7 }}", "{% raw %}", "&lt;b&gt;&amp;", "</script><!--",
    "<!-- x -->", "]]><![CDATA[x", "javascript:alert(1)", "%3Cscript%3E", "\u202e<b>", "\x1b[31m<i>", "<\u200bscript>",
    '"/></form><form action=//evil>',
)
PAYLOADS = [p.replace("%s", core) for core in CORES for p in ("%s", "a%sb", "%s%s", '"%s"', "k.cu:1: %s")]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *sorted(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.found.append(("declaration", decl.lower()))


def kept_in(place: Place, texts: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """The elements of every page on which kept texts of users stand: in a source, in names of users, files and functions, in verdicts."""
    at, limits = "2026-11-29T10:00:00+00:00", Limits(1000, 1000, 1000)
    plain = ["".join(c for c in text if c.isprintable()) for text in texts]
    with Queue(place.path) as queue:
        queue.hand_in("ann", op="add", file="k.cu", source="\n".join(texts), target="cpu", limits=limits)
        for name, text in zip(plain, texts, strict=True):
            queue.hand_in("ann", op="add", file=name, source="x", target="cpu", function=text, limits=limits)
        told = zip(plain, texts, strict=True)
        queue.add(Entry(f"e{n}", at, n, OWN, "counts", "counts", "add", text, text, "", "right", 0.5, 1.0) for n, text in told)
    every = " ".join(texts)
    told_all = {"said": every, "bound": every, "advice": tuple(texts), "notes": tuple(texts)}
    name = place.judged(replace(VERDICT, kind="wrong", score=None, lines=((1, 1.0),), **told_all))  # type: ignore[arg-type]
    with Queue(place.path) as queue:
        refused = queue.take("cpu")
        assert refused is not None
        queue.refuse(refused, every)
    answers = [place.ann.get(path) for path in (f"/job/{name}", f"/job/{refused.id}", "/user?name=ann", "/board?op=add")]
    assert all(a.status_code == 200 and not re.search("[\x1b\u202e]", a.text) for a in answers)
    return [Tags(a.text).found for a in answers]


def said_of(place: Place, text: str) -> list[list[tuple[str, ...]]]:
    """The elements of the pages that say what is wrong with a text."""
    answers = [place.client.get("/user", params={"name": f"{text}."}), place.client.get("/board", params={"op": text}),
               place.hand_in(target=text, source=text, function=text)]
    assert [a.status_code for a in answers] == [404, 404, 422]
    return [Tags(a.text).found for a in answers]


def test_nothing_from_users_is_markup(tmp_path: Path) -> None:
    assert len(set(PAYLOADS)) == 100
    place, plain = made(tmp_path / "one"), made(tmp_path / "other")
    assert kept_in(place, PAYLOADS) == kept_in(plain, [f"plain{i}" for i in range(100)])
    expected = said_of(plain, "plain")
    assert all(("declaration", "doctype html") in tags for tags in expected)
    for payload in CORES:
        assert said_of(place, payload) == expected, payload
