"""The course's pages: they ask before they show, read without a script, weigh little, and work in a browser at a phone's and a desk's width."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import _browser
import pytest
from _report import FACTS, NOW, Strict, quoted
from _support import answers, committed

from rooftop.core import registry
from rooftop.lab.learn import course, pages, puzzles
from rooftop.lab.report import known, site
from rooftop.lab.report.data import Gatherer, LadderPage, SiteData
from rooftop.lab.report.rung_counts import Access, Line, RungCounts

# Bytes. The site's own limit (test_report_size.py) is for what grows with records; these pages do not. They grow with rungs, each of which has two puzzles at
# most, two questions, three predictions and the first lines of a change. Whole sources and tables are on the ladder's page alone.
A_RUNG, BESIDE = 7_300, 12_000  # of a page for each rung, and for the rest
COURSE = 620_000  # of all of them, with counts and binaries of every rung
COUNTS = {"LDG.128": 41, "LDG.32": 13, "STG.128": 12, "LDS.128": 96, "STS.128": 24, "FFMA": 1024, "BAR": 12, "SHFL": 20}


def counts_of(rung: registry.Rung, number: int) -> RungCounts:
    """As many counts and accesses as are kept, made up. The pages of transpose_cuda, sgemm_cuda, sgemv_cuda and reduce_cuda have 259 kB with real
    ones, and 262 with these."""
    text = " ".join(next(x for x in rung.implementation.path.read_text(encoding="utf-8").splitlines() if "[" in x).split())
    walk = 130, (1, 0, 2, 12) * 2, 4096 * number, 64
    accesses = tuple(Access(40 + i, w, 4 << i % 3, 4 * (i + number), 4.0 * (1 + i), 4.0, *walk) for i, w in enumerate(("global read", "shared write") * 4))
    line = Line(str(rung.path), 40, text, "shared read", 32.0, 1.0, True)
    values = {"sectors_read": 4.0, "sectors_written": 32.0, "wavefronts": 16.5, "conflicts": 32.0}
    return RungCounts("x[2048, 2048] f32", 8, 4096, values, {"sectors_read": 4.0, "sectors_written": 4.0, "wavefronts": 1.0}, (line,), accesses=accesses)


FEW = ("transpose_cuda", "norm_triton")
Built = tuple[Path, dict[str, LadderPage]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("pages"), FEW)


def build(out: Path, ladders: tuple[str, ...], languages: tuple[str, ...] = ("en",)) -> Built:
    """The pages of these ladders, from the tree's records, with made-up counts and binaries of every rung."""
    found: dict[str, LadderPage] = {}
    for name in ladders:
        ladder = registry.ladder(name)
        large = {**FACTS, "counts": COUNTS, "loop": COUNTS}
        facts = {(r.name, arch): {**large, "registers": 32 + r.number, "threads": 256} for r in ladder.rungs for arch in ladder.targets}
        counts = {r.name: counts_of(r, r.number) for r in ladder.rungs if r.implementation.backend == "cuda"}
        records = [r for r in committed() if r["kind"] != "bench" or r.get("op") == ladder.op]
        found[name] = Gatherer(records, digests=answers(), facts=facts, counts=counts).ladder_page(ladder)
    known.save(answers())
    data = SiteData((), tuple(found.values()), (), 0, 0, NOW, course=True)
    for name in site.SHARED:
        shutil.copy(site.TEMPLATES / name, out / name)
    pages.write(out, data, languages=languages)
    return out, found


def test_there_is_a_page_for_every_ladder_with_puzzles_and_one_of_the_graph(made: Built) -> None:
    out, found = made
    assert {p.name for p in out.glob("*.html")} == {pages.FILE, *(pages.file_of(n) for n in found)}
    text = quoted(out / pages.FILE)
    assert all(n.name in text for n in course.graph().values()) and "<svg" in text
    assert all(f'href="{pages.file_of(n)}"' in text for n in found)
    assert set(pages.texts(list(found.values()))) == {"learn.md", *(f"learn-{n}.md" for n in found)}


def test_every_answer_is_folded_away_and_every_puzzle_is_there(made: Built) -> None:
    out, found = made
    for name, page in found.items():
        text = quoted(out / pages.file_of(name))
        Strict((out / pages.file_of(name)).read_text(encoding="utf-8"))
        open_text = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
        lessons, _ = pages.lessons_of(page)
        for lesson in lessons:
            for _, prediction in lesson.asks:
                assert f"({prediction.source})" not in open_text
            if lesson.row.limit:
                assert str(lesson.row.limit)[:40] not in open_text or lesson.row.limit[:40] in lesson.row.idea
        assert "The judge" not in open_text and "points" not in open_text
        assert [f"Puzzle {p.name}." in text for p in puzzles.puzzles(name)] == [True] * len(puzzles.puzzles(name))
        assert text.count("<details") == text.count("</details>") and "<details open" not in text


def test_a_lesson_shows_what_its_rung_changes_and_a_gap_for_each_puzzle(made: Built) -> None:
    """Of a long change the first lines and those around gaps. What is missing in a gap stands on the page among the choices alone."""
    out, found = made
    gaps = 0
    for name, page in found.items():
        text = quoted(out / pages.file_of(name))
        assert all(f'href="{page.file}#{row.anchor}"' in text for row in page.rungs)
        lessons, _ = pages.lessons_of(page)
        for before, lesson in zip((None, *page.rungs), lessons, strict=False):
            whole = [x for x in site.listing(before, lesson.row, pages.AROUND).lines if x.kind != "far"]
            shown = [line.expandtabs(4) for _, _, stretch in lesson.changed for line in stretch.split("\n")]
            hidden = {n for p in lesson.puzzles for n in range(p.puzzle.blank.first, p.puzzle.blank.last + 1)}
            told = [line for line in shown if not line.startswith("? ")]
            assert set(told) <= {x.text for x in whole if x.kind != "added" or x.number not in hidden}
            assert len(told) + lesson.more + sum(x.kind == "added" and x.number in hidden for x in whole) >= len(whole)
            assert sorted(line for line in shown if line.startswith("? ")) == [f"? {p.short}" for p in lesson.puzzles]
            assert all(f'id="gap-{p.short}"' in text and f'href="#gap-{p.short}"' in text for p in lesson.puzzles)
            gaps += len(lesson.puzzles)
    assert gaps == sum(len(puzzles.puzzles(n)) for n in found)


def test_a_lesson_draws_the_walk_and_the_phases_of_a_warp_where_they_were_counted(made: Built) -> None:
    out, found = made
    text = quoted(out / pages.file_of("transpose_cuda"))
    assert text.count('class="nums phases"') == len(found["transpose_cuda"].rungs) and "phases" not in quoted(out / pages.file_of("norm_triton"))
    assert "until phase 130, from one to the next mostly 4,096 B on" in text
    assert "phase" not in re.sub(r"<details>.*?</details>|<pre.*?</pre>", "", text, flags=re.S).partition("<main")[2]


def test_a_lesson_links_to_the_drawings_of_its_rung(made: Built) -> None:
    out, found = made
    whole = 0
    for name, page in found.items():
        text = quoted(out / pages.file_of(name))
        wanted = [f"step-{i}" for i, step in enumerate(page.derivation, 1) if step.rung and step.picture]
        assert sorted(re.findall(rf'href="{page.file}#(step-\d+)"', text)) == wanted, name
        assert "#step-" not in re.sub(r"<details>.*?</details>", "", text, flags=re.S), "a drawing may tell what is asked"
        whole += len(wanted)
    assert whole


@pytest.mark.sampled("slow")
def test_what_the_pages_of_all_ladders_weigh(tmp_path: Path) -> None:
    out, found = build(tmp_path, puzzles.ladders())
    assert len(found) >= 8
    size = {n: (out / pages.file_of(n)).stat().st_size for n in found}
    assert {n: s for n, s in size.items() if s > A_RUNG * len(found[n].rungs) + BESIDE} == {}
    assert sum(size.values()) + (out / pages.FILE).stat().st_size < COURSE, size


def test_a_page_of_a_ladder_that_has_no_puzzles_any_more_goes(made: Built, tmp_path: Path) -> None:
    _, found = made
    (tmp_path / "learn-gone.html").write_text("old", encoding="utf-8")
    pages.write(tmp_path, SiteData((), (next(iter(found.values())),), (), 0, 0, NOW, course=True))
    assert sorted(p.name for p in tmp_path.glob("learn-*.html")) == [pages.file_of(next(iter(found)))]


# -- in a browser -------------------------------------------------------------------------------------------------------------

PROBE = """
window.addEventListener("load", function () {
  const asks = Array.from(document.querySelectorAll(".ask"));
  const number = asks.find(function (x) { return x.dataset.found; });
  const input = number.querySelector("input");
  input.value = "soon"; input.dispatchEvent(new Event("change"));
  const refused = number.querySelector("[role=status]").textContent, shut = !number.querySelector("details").open;
  input.value = String(2 * Number(number.dataset.found)); input.dispatchEvent(new Event("change"));
  const puzzle = asks.find(function (x) { return x.classList.contains("puzzle"); });
  const items = Array.from(puzzle.querySelectorAll(":scope > ol > li")), right = Number(puzzle.dataset.right);
  items[(right + 1) % 4].click();
  const said = items[(right + 1) % 4].querySelector("small");
  const before = puzzle.querySelector("details").open;
  const codes = Array.from(document.querySelectorAll("pre.code"));
  items[right].click();
  setTimeout(function () {
    parent.postMessage(JSON.stringify({
      width: innerWidth, page: document.documentElement.scrollWidth, refused: refused, shut: shut,
      points: number.querySelector("[role=status]").textContent, unfolded: number.querySelector("details").open,
      bad: items[(right + 1) % 4].className, good: items[right].className, said: said ? said.textContent.length : 0, before: before,
      after: puzzle.querySelector("details").open,
      numbered: codes[0].querySelectorAll("b").length, tabs: codes[0].textContent.includes("\\t"),
      gap: document.querySelector(puzzle.querySelector("a").getAttribute("href")).textContent,
      wide: Array.from(document.querySelectorAll(".ask, .ask p, .ask ol, h1, h2, .idea")).filter(function (x) {
        return x.getBoundingClientRect().right > innerWidth + 1;
      }).length,
    }), "*");
  }, 500);
});
"""


@pytest.mark.skipif(_browser.BROWSER is None, reason="there is no browser (chromium)")
@pytest.mark.sampled("slow")
@pytest.mark.parametrize("width", [390, 1440])
def test_a_lesson_in_a_browser(made: Built, tmp_path: Path, width: int) -> None:
    """A number is judged and unfolds what came; a wrong filling has its verdict; nothing is wider than the screen but what scrolls by itself."""
    out = tmp_path / "site"
    shutil.copytree(made[0], out)
    said = _browser.said(out, pages.file_of("transpose_cuda"), PROBE, width)
    assert said["page"] <= said["width"] and said["wide"] == 0, said
    assert said["refused"] == "that is no number" and said["shut"] and said["unfolded"] and said["points"] == "50 points of 100", said
    assert said["bad"] == "bad" and said["good"] == "good" and said["said"] > 20 and not said["before"] and said["after"], said
    assert said["numbered"] > 3 and not said["tabs"] and said["gap"].strip().endswith("? 02a"), said
