"""Shorter pages are the same pages: the tree of elements, attributes and texts is the same before and after."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _report import FACTS, H200, Made, Strict, make, ratio

from rooftop.lab.report import site
from rooftop.lab.report.markup import shorter

Node = tuple[str, object]
LINES = re.compile(r"(?:table|caption|thead|tbody|tr|td|th|div|section|header|main|footer|nav|figure|figcaption|h[1-6]|p|ul|ol|li|dl|dt|dd|details|summary|"
                   r"head|body|html|meta|link|title|option|script|pre|svg|select|top)$")


class Tree(Strict):
    """What a browser makes of a page: openings, endings and texts in order, those that HTML implies among them."""

    def __init__(self, text: str) -> None:
        self.found: list[Node] = []
        super().__init__(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        self.found.append((tag, tuple(attrs)))

    def ended(self, tag: str) -> None:
        self.found.append((f"/{tag}", ()))

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if self.found and self.found[-1][0] == "text":
            data = str(self.found.pop()[1]) + data
        self.found.append(("text", data if {"pre", "svg", "script"} & set(self.stack) else re.sub(r"[ \n\t]+", " ", data)))


class Closed(Tree):
    """A page whose every element is closed by its own tag."""

    ENDED_BY: dict[str, set[str]] = {}


def tree(parsed: Tree) -> list[Node]:
    """Without the white space at the begin and end of lines, which is not shown."""
    kept: list[Node] = []
    for i, (kind, text) in enumerate(parsed.found):
        if kind == "text" and isinstance(text, str) and not text.startswith("\n"):
            before, after = (parsed.found[j][0].lstrip("/") if 0 <= j < len(parsed.found) else "top" for j in (i - 1, i + 1))
            text = text.lstrip(" ") if LINES.match(before) and before != "pre" else text
            text = text.rstrip(" ") if LINES.match(after) and after != "pre" else text
        if text != "" or kind != "text":
            kept.append((kind, text))
    return kept


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


def test_pages_have_the_same_tree_in_fewer_bytes(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    versus = {"peer:torch": ratio(0.8, "faster"), "peer:a \"quoted\" 'one' > & <b>": ratio(0.5, "slower")}
    records = [*made.climb(), made.bench("steps/01_plain", 1e-3, "big bf16", versus=versus), made.bench("scale__cuda", 2e-4, versus=versus, device=H200)]
    facts = {("steps/01_plain", 80): FACTS}
    made.build(records, facts)
    short = {p.name: p.read_text(encoding="utf-8") for p in made.out.glob("*.html")}
    monkeypatch.setattr(site, "shorter", lambda page: page)
    made.build(records, facts)
    long = {p.name: p.read_text(encoding="utf-8") for p in made.out.glob("*.html")}
    assert set(short) == set(long) and len(long) > 4
    for name, page in long.items():
        assert tree(Tree(short[name])) == tree(Closed(page)), name
        assert len(short[name]) < 0.97 * len(page), name


CASES = {
    '<ul>\n<li>a <b>b</b>\n</li>\n<li>c</li>\n</ul>\n<p>d</p>\n': "<ul><li>a <b>b</b><li>c</ul><p>d</p>",
    '<p>a</p>\n<p>b</p>': "<p>a<p>b</p>",
    '<table class="x y"><tr><td class="n">1</td>\n<td title="a=b">2</td></tr></table>': '<table class="x y"><tr><td class=n>1<td title="a=b">2</table>',
    '<a href="#a"> x </a>\n <i title="">y</i>': '<a href=#a> x </a>\n<i title="">y</i>',
    '<a href="b/">x</a><i title="&#34;">&#34;&#39;&gt;&lt; &amp; &amp;amp;</i>': '<a href="b/">x</a><i title="&#34;">"\'>&lt; & &amp;amp;</i>',
    '<pre data-from="1">\n  a</td>  </li>\n\n &gt;  </pre>': "<pre data-from=1>\n  a</td>  </li>\n\n >  </pre>",
    '<svg width="3">\n<rect x="1"/><title>a &lt; b</title></svg>': "<svg width=3>\n<rect x=1 /><title>a &lt; b</title></svg>",
    '<p>a\u00a0\u202f</p>\n<div title="a > b">\u202fc</div>': '<p>a\u00a0\u202f<div title="a > b">\u202fc</div>',
}


@pytest.mark.parametrize("page", CASES)
def test_what_is_left_out(page: str) -> None:
    assert shorter(page) == CASES[page]
