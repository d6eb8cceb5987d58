"""What is generated in README and docs is as the records have it, and says so when it is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from _support import answers
from typer.testing import CliRunner

from rooftop.core import registry, settings
from rooftop.core.texts import markdown
from rooftop.lab.check.proofs import device_of
from rooftop.lab.cli import app, commands
from rooftop.lab.records import store
from rooftop.lab.records.record import Record
from rooftop.lab.report import documents
from rooftop.lab.report.data import Gatherer, SiteData, gather
from rooftop.lab.report.ladder_cases import headline_of
from rooftop.lab.report.markup import number

RESULTS = settings.CHECKOUT / "results"
READ = store.read
OF_THE_TREE = {"docs/targets.md", "docs/persistent.md", "llms.txt"}  # not of the records: what is compiled, what runs, what documents there are
FILES = sorted({file for file, _ in documents.TABLES} | set(documents.PICTURES) | set(documents.DRAWN))


@cache
def committed() -> list[store.Record]:
    return READ(RESULTS)


@cache
def marked() -> list[store.Record]:
    """As `documents.pages` joins them."""
    return [Record(markdown(r.table)) for r in committed()]


@cache
def site() -> SiteData:
    return gather(marked(), digests=answers())


MADE: dict[Callable[..., str], str] = {}


def once(make: Callable[..., str]) -> Callable[..., str]:
    """What a table or picture of the committed records holds, made once; of other records, each time."""

    def made(found: list[store.Record], of: SiteData) -> str:
        if of is not site():
            return make(found, of)
        if make not in MADE:
            MADE[make] = make(found, of)
        return MADE[make]

    return made


@pytest.fixture(autouse=True)
def joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed records are read, and joined to the tree, once for all tests here: that takes seconds."""

    monkeypatch.setattr(store, "read", lambda folder, cut=None: list(committed()) if folder == RESULTS else READ(folder, cut))
    monkeypatch.setattr(documents, "gather", lambda found, **more: site() if found == marked() else gather(found, **more))
    for kind in ("TABLES", "DRAWN"):
        monkeypatch.setattr(documents, kind, {k: once(make) for k, make in getattr(documents, kind).items()})


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The generated files alone, as they are committed."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(settings.CHECKOUT / file, tmp_path / file)
    return tmp_path


def test_the_committed_files_are_as_the_committed_records_have_them() -> None:
    assert list(documents.outdated(folder=RESULTS)) == [], "rooftop report --docs writes them anew"


def test_a_changed_number_is_found_and_written_over(copied: Path) -> None:
    documents.update(copied, RESULTS)
    wanted = {file: (copied / file).read_text(encoding="utf-8") for file in FILES}
    assert documents.update(copied, RESULTS) == [], "what is right is not written again"
    for file in FILES:
        text = (copied / file).read_text(encoding="utf-8")
        marks = [text.index(f"<!-- generated: {n} -->") for f, n in documents.TABLES if f == file]
        at = text.index("<text") if file.endswith(".svg") else min(marks, default=0)
        begin = at + 20 if file.endswith(".svg") else text.index("\n", at) + 1
        end = text.index(documents.END, at) if marks else len(text)
        digit = next((i for i in range(begin, end) if text[i].isdigit()), None)
        if digit is None:  # nothing has been measured yet
            (copied / file).write_text(text[:begin] + "1" + text[begin:], encoding="utf-8")
        else:
            (copied / file).write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :], encoding="utf-8")
    assert sorted(documents.outdated(copied, RESULTS)) == FILES
    assert sorted(documents.update(copied, RESULTS)) == FILES
    assert {file: (copied / file).read_text(encoding="utf-8") for file in FILES} == wanted


def test_without_records_nothing_is_claimed(copied: Path, tmp_path: Path) -> None:
    def table_of(file: str, name: str) -> str:
        return (copied / file).read_text(encoding="utf-8").partition(f"<!-- generated: {name} -->")[2].partition(documents.END)[0]

    documents.update(copied, RESULTS)
    empty = {file for file, _ in documents.TABLES} - {file for file, name in documents.TABLES if "measured yet" not in table_of(file, name)}
    empty |= {file for file in documents.DRAWN if documents.NOTHING in (copied / file).read_text(encoding="utf-8")}
    empty |= OF_THE_TREE
    assert sorted(documents.update(copied, tmp_path / "none")) == [f for f in FILES if f not in empty]
    for file, name in (t for t in documents.TABLES if t[0] not in {*OF_THE_TREE, "docs/predictions.md"}):  # predictions: of cards that nobody measured too
        table = table_of(file, name)
        assert "measured" in table
        assert "|" not in table
    (copied / "docs/pictures/sgemm_cuda.svg").unlink()
    assert documents.update(copied, tmp_path / "none") == ["docs/pictures/sgemm_cuda.svg"], "a missing picture is made"


def test_every_picture_is_drawn_from_records_and_shown() -> None:
    drawn = {f for f in (*documents.PICTURES, *documents.DRAWN) if f.startswith("docs/pictures/")}
    kept = {path.relative_to(settings.CHECKOUT).as_posix() for path in (settings.CHECKOUT / "docs" / "pictures").iterdir()}
    assert kept == drawn, "one that no records draw would grow old unseen"
    texts = "".join(p.read_text(encoding="utf-8") for p in (settings.CHECKOUT / "README.md", *(settings.CHECKOUT / "docs").glob("*.md")))
    assert [f for f in drawn if f.removeprefix("docs/") not in texts] == []


def test_missing_markers_are_an_error(copied: Path) -> None:
    path = copied / "README.md"
    path.write_text(path.read_text(encoding="utf-8").replace(documents.END, ""), encoding="utf-8")
    with pytest.raises(ValueError, match="generated: figures"):
        documents.outdated(copied, RESULTS)


CARDS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")


def test_the_picture_holds_the_newest_record_that_holds_of_every_rung() -> None:
    """Worked out from the records alone: an FMA counts as two operations; of what is bound by memory bytes count."""
    every = store.read(RESULTS)
    gatherer = Gatherer(every)
    texts = documents.pages(settings.CHECKOUT, every)
    for file, (name, _) in documents.PICTURES.items():
        svg = texts[file]
        ladder = registry.ladder(name)
        title = svg[svg.index("<title>") : svg.index("</title>")]
        card = next(c for c in CARDS if c.removeprefix("NVIDIA ").split()[0] in title)
        shown = 0
        for rung in ladder.rungs:
            fresh = []
            for subject in (rung.name, rung.head.implementation if rung.head else None):  # the shipped kernel's record is the last rung's too
                mine = [r for r in every if r["kind"] == "bench" and r["subject"] == subject and r["case"] == headline_of(ladder, registry.op(ladder.op)).id]
                fresh = fresh or [r for r in mine if gatherer.stale(r) is None and device_of(r).name == card]
            if fresh:
                work, seconds = fresh[-1]["work"], fresh[-1]["clocks"]["kernel"]["median"]
                amount = 2e-12 * work["ops"]["fma32"] if ", TFLOP/s" in title else 1e-9 * (work["read"] + work["write"])
                assert f"{rung.number:02d} {rung.slug.replace('_', ' ')}: {number(amount / seconds, 3)}" in svg
                shown += 1
            else:
                assert f"{rung.number:02d} {rung.slug.replace('_', ' ')}: not measured" in svg
        assert svg.count('class="bar"') == shown
        assert shown > 1, "a picture of a climb that was not measured is none"


def test_check_writes_nothing_and_exits_1_where_a_file_would_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands()
    before = {file: (settings.CHECKOUT / file).read_bytes() for file in FILES}
    ran = CliRunner().invoke(app, ["report", "--docs", "--check", "--records", str(tmp_path)])
    assert ran.exit_code == 1
    assert "README.md" in ran.output
    assert {file: (settings.CHECKOUT / file).read_bytes() for file in FILES} == before
    monkeypatch.setattr(documents, "outdated", lambda **_: {})
    assert CliRunner().invoke(app, ["report", "--docs", "--check"]).exit_code == 0
    assert CliRunner().invoke(app, ["report", "--check"]).exit_code == 2


def test_a_table_names_no_stale_record(tmp_path: Path) -> None:
    every = [r for r in store.read(RESULTS) if r["kind"] == "bench" and r["op"] == "square"]
    gatherer = Gatherer(every)
    fresh = [r for r in every if gatherer.stale(r) is None and not r["subject"].startswith("peer:")]
    assert fresh
    assert f"| square | {fresh[-1]['case']} |" in documents.scores(every, gather(every))
    assert documents.scores(every, gather([r.but(digest="0") for r in every])).startswith("No fresh record")
