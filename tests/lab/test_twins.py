"""The Markdown twins of the pages say what the pages say, and llms.txt lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _report import H100, Made, make, ratio

from rooftop.core import settings
from rooftop.lab.records.record import Record
from rooftop.lab.report import document, documents, twins
from rooftop.lab.report.data import gather


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


def test_every_page_has_a_twin_with_its_figures(made: Made) -> None:
    records = [*made.climb(), made.bench("scale__cuda", 2e-4, versus={"peer:torch": ratio(0.8, "faster")})]
    made.build(records)
    site = gather(map(Record, records), house=made.house)
    twins.write(made.out, site)
    pages = {p.stem for p in made.out.glob("*.html")}
    assert {p.stem for p in made.out.glob("*.md")} == pages and "op-scale" in pages
    op = (made.out / "op-scale.md").read_text()
    assert re.search(rf"^\| big f32 \| {H100['name']} \| scale__cuda \| 200\.0 \| [\d.]* \| [\d.]+x torch \|$", op, re.M), op
    ladder = (made.out / "ladder-steps.md").read_text()
    assert "steps/01_plain" in ladder and "__global__" not in ladder
    listed = (made.out / twins.LIST).read_text()
    assert listed.startswith("# rooftop\n\n> ") and set(re.findall(r"\]\(([^)]+)\)", listed)) == {p.name for p in made.out.glob("*.md")} - {"index.md"}
    (made.out / "op-gone.md").write_text("x")
    twins.write(made.out, site)
    assert not (made.out / "op-gone.md").exists()


def test_llms_txt_lists_every_document() -> None:
    text = (settings.CHECKOUT / twins.LIST).read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", text, re.M)
    docs = {f"docs/{p.name}" for p in (settings.CHECKOUT / "docs").glob("*.md")}
    assert docs | {"README.md", "AGENTS.md"} <= set(listed) and all((settings.CHECKOUT / n).exists() for n in listed)
    assert text == documents.listed([], None)  # type: ignore[arg-type]


def test_the_page_for_agents_is_short_and_its_files_exist() -> None:
    text = (settings.CHECKOUT / "AGENTS.md").read_text(encoding="utf-8")
    assert text.count("\n") < 120
    for name in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (settings.CHECKOUT / name).exists(), name


def test_a_paragraph_is_plain() -> None:
    assert document.plain("a [b c](d.md) *e*\n`f`") == "a b c e f"
