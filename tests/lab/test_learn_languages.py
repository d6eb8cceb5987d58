"""The course in other languages: no text is missing, figures and code are those of the English, and pages in Chinese work in a browser."""

from __future__ import annotations

import ast
import gettext
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import _browser
import pytest
from _report import NOW, Strict, quoted
from _support import command, committed
from lab.test_learn_pages import Built, build

from rooftop.core import settings
from rooftop.lab.learn import judge, kinds, lessons, pages, puzzles, questions, words
from rooftop.lab.report import site
from rooftop.lab.report.data import SiteData

CHOSEN = 40  # sentences that docs/chinese.md shows
LANGUAGES = [n for n in words.languages() if n != words.ENGLISH]


def known(language: str) -> dict[str, str]:
    """English text -> what stands for it."""
    found = words.catalogue(language)
    assert isinstance(found, words.Catalogue)
    return {k: v for k, v in found.texts.items() if k}


def literals() -> set[str]:
    """The texts that the code and the templates of the course give to `_`."""
    found: set[str] = set()
    for path in [*(settings.PACKAGE / "lab" / "learn").glob("*.py"), settings.PACKAGE / "lab" / "cli" / "learn.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_", "html") and node.args:
                found |= {x.value for x in ends(node.args[0]) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
    for name in ("base", "learn", "course"):
        text = (site.TEMPLATES / f"{name}.html.j2").read_text(encoding="utf-8")
        found |= {ast.literal_eval(f'"{x}"') for x in re.findall(r'\b_\("((?:[^"\\]|\\.)*)"', text)}
    return found


def ends(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression may come to, its choices taken apart."""
    if isinstance(node, ast.IfExp):
        yield from ends(node.body)
        yield from ends(node.orelse)
    else:
        yield node


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("pages"), puzzles.ladders(), words.languages())


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_of_code_and_templates_is_missing(language: str) -> None:
    texts = known(language)
    there = literals() | {x for pair in questions.TEXTS.values() for x in pair} | {*kinds.UNITS.values(), *judge.KINDS.values(), *judge.COUNTED.values()}
    assert {x for x in there if x and x not in texts} == set()


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_of_the_pages_is_missing(made: Built, language: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ideas, limits, titles, questions and drawings; and the catalogue holds nothing that nobody says."""
    missing: list[str] = []

    class Noted(gettext.NullTranslations):
        def gettext(self, message: str) -> str:
            missing.append(message)
            return message

    asked = set[str]()
    found = words.Catalogue(words.FOLDER / f"{language}.po")
    found.add_fallback(Noted())
    say = found.gettext
    monkeypatch.setattr(found, "gettext", lambda text: (asked.add(text), say(text))[1])
    monkeypatch.setattr(words, "catalogue", lambda name: found)
    with words.speaking(language):
        for page in made[1].values():
            pages.lessons_of(page)
            for text in (page.title, page.intro, *(x for row in page.rungs for x in (row.title, row.idea, row.limit))):
                words._(text or "")
            for puzzle in puzzles.puzzles(page.name):
                puzzle.hints()
        for node in pages.course.graph().values():
            words._(node.title)
            words._(node.about if node.topic else "")
    assert set(missing) == set()
    said = asked | literals() | {x for pair in questions.TEXTS.values() for x in pair} | set(kinds.UNITS.values())
    also = {text for path in (settings.PACKAGE / "lab" / "learn").glob("*.py") for text in constants(path)}
    assert {x for x in known(language) if x not in said | also and not re.fullmatch(r"\w+ (read|write)", x)} == set()


def constants(path: Path) -> set[str]:
    return {n.value for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_figures_names_and_tags_are_those_of_the_english(language: str) -> None:
    """But for those that the language says otherwise, which are listed."""
    otherwise = {"137": "1370"}  # of a thousand million, and of a hundred
    for english, other in known(language).items():
        for pattern in (r"\{\w+\}", r"</?\w[^>]*>", r"`[^`]*`"):
            assert sorted(re.findall(pattern, english)) == sorted(re.findall(pattern, other)), english
        figures = {otherwise.get(x, x) for x in re.findall(r"\d[\d.,]*\d|\d", english)}
        assert figures <= set(re.findall(r"\d[\d.,]*\d|\d", other)) or english in ("tile 1d", "tile 2d"), english
        assert re.search("[\u4e00-\u9fff]", other) or (len(english) < 25 and not re.search(r"[a-z]{4,} [a-z]{4,}", english)), other


@pytest.mark.parametrize("line", ['"a text over two lines"', "msgctxt menu", 'msgstr "of nothing"', 'msgid "one"'])
def test_another_form_of_catalogue_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "xx.po"
    path.write_text(f'msgid "one"\nmsgstr "two"\n\n{line}\n')
    with pytest.raises(ValueError, match=r"xx\.po:4: (a line is msgid or msgstr with its whole text|this text stands twice)"):
        words.Catalogue(path)


def test_forty_sentences_are_reviewed() -> None:
    """docs/chinese.md shows those that their hashes choose, as the catalogue has them."""
    sentences = sorted((x for x in known("zh") if x.rstrip().endswith(".") and len(x) > 60 and "{" not in x), key=lambda x: sha256(x.encode()).digest())
    text = (settings.CHECKOUT / "docs" / "chinese.md").read_text(encoding="utf-8")
    rows = [f"| {i} | {cell(x)} | {cell(known('zh')[x])} |" for i, x in enumerate(sentences[:CHOSEN], 1)]
    assert [line for line in text.splitlines() if re.match(r"\| \d", line)] == rows


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


@pytest.mark.sampled("slow")
def test_questions_are_the_same_but_for_their_words() -> None:
    material = lessons.material("reduce_cuda", committed())
    english = kinds.questions(material)
    with words.speaking("zh"):
        other = kinds.questions(material)
    ours, theirs = ([(q.id, q.answer, len(q.choices), q.within, q.code) for q in asked] for asked in (english, other))
    assert english and ours == theirs
    assert all(re.search("[\u4e00-\u9fff]", q.text) for q in other) and words.spoken() == "en"


@pytest.mark.parametrize("line", [("learn", "--language", "xx"), ("report", "--language", "xx")])
def test_an_unknown_language_lists_those_that_exist(line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *line) == 1
    assert "no language 'xx'; there are en, zh" in capsys.readouterr().err


# -- pages -----------------------------------------------------------------------------------------------------------------------


def test_every_page_has_its_switch(made: Built) -> None:
    out, found = made
    for name in ("", *found):
        for language, other in (("en", "zh"), ("zh", "en")):
            path = out / pages.file_of(name, language)
            text = quoted(path)
            Strict(path.read_text(encoding="utf-8"))
            assert f'<html lang="{language}">' in text and f'<a lang="{other}" hreflang="{other}" href="{pages.file_of(name, other)}">' in text
    codes = [re.findall(r"<pre[ >].*?</pre>", (out / pages.file_of("sgemm_cuda", n)).read_text(encoding="utf-8"), re.S) for n in ("en", "zh")]
    assert codes[0] == codes[1]


def test_pages_of_a_language_that_is_not_asked_for_any_more_go(made: Built, tmp_path: Path) -> None:
    """And those of others that are called alike stay."""
    page = made[1]["reduce_cuda"]
    (tmp_path / "ladder-learn.html").write_text("a ladder's", encoding="utf-8")
    for languages, there in ((("en", "zh"), 4), (("en",), 2)):
        pages.write(tmp_path, SiteData((), (page,), (), 0, 0, NOW, course=True), languages=languages)
        assert len(list(tmp_path.glob("*learn*"))) == there + 1
    assert "hreflang" not in (tmp_path / pages.FILE).read_text(encoding="utf-8")


PROBE = """
window.addEventListener("load", function () {
  const puzzle = document.querySelector(".ask.puzzle"), items = Array.from(puzzle.querySelectorAll(":scope > ol > li")), right = Number(puzzle.dataset.right);
  items[right].click();
  setTimeout(function () {
    parent.postMessage(JSON.stringify({
      width: innerWidth, page: document.documentElement.scrollWidth, lang: document.documentElement.lang, good: items[right].className,
      said: puzzle.querySelectorAll("details li")[right].textContent, other: document.querySelector("[hreflang]").getAttribute("href"),
      input: document.querySelector(".ask input").placeholder,
      wide: Array.from(document.querySelectorAll(".ask, .ask p, .ask ol, h1, h2, .idea")).filter(function (x) {
        return x.getBoundingClientRect().right > innerWidth + 1;
      }).length,
    }), "*");
  }, 300);
});
"""


@pytest.mark.skipif(_browser.BROWSER is None, reason="there is no browser (chromium)")
@pytest.mark.sampled("slow")
@pytest.mark.parametrize("width", [390, 1440])
def test_a_lesson_in_chinese_in_a_browser(made: Built, tmp_path: Path, width: int) -> None:
    out = tmp_path / "site"
    shutil.copytree(made[0], out)
    said = _browser.said(out, pages.file_of("transpose_cuda", "zh"), PROBE, width)
    assert said["page"] <= said["width"] and said["wide"] == 0 and said["lang"] == "zh", said
    assert said["good"] == "good" and "正确" in said["said"] and said["other"] == "learn-transpose_cuda.html" and said["input"] == "你的数字", said
