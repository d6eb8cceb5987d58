"""How large the pages are, and what one more record, binary or line of source adds: the site stays below SITE as records and ops come.

A record that a newer one stands for is on no page, so a page grows with cases, cards, kernels and sources, not with the number of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _report import FACTS, Made, make, ratio
from _support import answers, committed

from rooftop.core import registry
from rooftop.lab.report import known, site, twins
from rooftop.lab.report.data import gather

# Bytes of all files with every record and binary of the tree, but for the Markdown twins, which no page loads or names, and the course, which records do not
# grow (test_learn_pages.py has its limit).
SITE = 6_900_000  # with rows of nearly every op on the H200, a ladder of lossless planes, and 16 rungs before shipped kernels
TWINS = 450_000  # bytes of those: tables and words, no sources and drawings, which are more than nine tenths of the pages
PAGE = 550_000  # of one page
RECORD = {"op": 1100, "card": 1000, "ladder": 2000}  # bytes that a measurement adds; on a ladder it is a bar, and a row of two tables
BINARY = 1400  # that the facts of one target add
LINE = 1.3  # bytes on the page of a byte of source
COUNTS = {"LDG.128": 41, "LDG.32": 13, "STG.128": 12, "LDS.128": 96, "STS.128": 24, "FFMA": 1024, "HMMA": 64, "BAR": 12, "SHFL": 20, "MUFU": 8}
LARGE = {**FACTS, "counts": COUNTS, "loop": COUNTS, "kernel": "gemm_pipelined<float, 128, 256, 32>"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


def sizes(made: Made, records: list[Any], facts: Any = None) -> dict[str, int]:
    """Bytes by kind of page."""
    made.build(records, facts)
    found: dict[str, int] = {}
    for path in made.out.glob("*-*.html"):
        found[path.name.partition("-")[0]] = found.get(path.name.partition("-")[0], 0) + path.stat().st_size
    return found


def test_a_measurement_adds_so_much_and_its_successor_nothing(made: Made) -> None:
    versus = {"peer:torch": ratio(0.8, "faster"), "peer:other": ratio(0.5, "faster"), "ceiling:copy": ratio(1.1, "slower")}
    base = [*made.climb(), made.bench("scale__cuda", 2e-4, versus=versus), made.bench("steps/01_plain", 1e-3, "big bf16", versus=versus)]
    kernel, rung = (made.bench(name, 2e-4, "odd f32", versus=versus) for name in ("scale__cuda", "steps/01_plain"))
    alone, op, ladder = sizes(made, base), sizes(made, [*base, kernel]), sizes(made, [*base, rung])
    grown = {"op": op["op"] - alone["op"], "card": op["card"] - alone["card"], "ladder": ladder["ladder"] - alone["ladder"]}
    assert all(grown[kind] > 0 for kind in grown)
    chart = 4500  # the first measurement of a case: a chart of all rungs, and a table
    assert {kind: n for kind, n in grown.items() if n > RECORD[kind] + chart * (kind == "ladder")} == {}
    again = sizes(made, [*base, rung, {**rung, "at": "2026-02-01T10:00:00+00:00"}])
    assert abs(again["ladder"] - ladder["ladder"]) < 40, "a newer record takes the place of the one before"


def test_a_binary_adds_so_much_and_the_same_on_another_target_its_name(made: Made) -> None:
    none = sizes(made, made.climb())["ladder"]
    one = sizes(made, made.climb(), {("steps/01_plain", 80): LARGE})["ladder"]
    two = sizes(made, made.climb(), {("steps/01_plain", 80): LARGE, ("steps/01_plain", 90): LARGE})["ladder"]
    assert 0 < one - none <= BINARY
    assert two < one + 60
    assert sizes(made, made.climb(), {("steps/01_plain", 80): LARGE, ("steps/01_plain", 90): {**LARGE, "registers": 40}})["ladder"] <= one + BINARY


def test_a_source_is_on_its_page_once(made: Made) -> None:
    before = sizes(made, [])["ladder"]
    more = "".join(f"// line {i} of many, as long as lines are that say what a kernel does and why it does so\n" for i in range(400))
    paths = [r.implementation.path for r in registry.ladder("steps", made.house).rungs]
    for path in paths:
        path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    for function in (registry.ladder, registry._implementation):
        function.cache_clear()
    assert len(more) * len(paths) < sizes(made, [])["ladder"] - before < LINE * len(more) * len(paths)


def test_the_site_of_the_tree_with_every_binary(tmp_path: Path) -> None:
    rungs = [(r.name, arch) for n in registry.ladder_names() for ladder in [registry.ladder(n)] for r in ladder.rungs for arch in ladder.targets]
    facts = {(name, arch): {**LARGE, "registers": 32 + arch % 7} for name, arch in rungs}
    pages = gather(committed(), facts, digests=answers())
    site.write(tmp_path, pages)
    known.save(answers())
    found = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    twins.write(tmp_path / "twins", pages)
    texts = {p.stem: p.stat().st_size for p in (tmp_path / "twins").iterdir() if p.suffix == ".md"}
    assert {Path(n).stem for n in found if n.endswith(".html")} == set(texts)
    assert sum(p.stat().st_size for p in (tmp_path / "twins").iterdir()) < TWINS
    assert sum(found.values()) < SITE, sum(found.values())
    assert {name: n for name, n in found.items() if n > PAGE} == {}
