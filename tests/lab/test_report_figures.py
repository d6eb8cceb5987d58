"""Every figure of a page's tables of measurements is that of a record: read off the pages of the tree as it is, and looked for in its records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from _support import answers, committed

from rooftop.core import registry
from rooftop.lab.report import known, site
from rooftop.lab.report.data import gather

NUMBER = re.compile(r"(?<![\w.])\d[\d\u202f]*(?:\.\d+)?(?![\w.])")
CARDS = {"H200": "NVIDIA H200", "H100 80GB HBM3": "NVIDIA H100 80GB HBM3"}
Known = dict[tuple[str, str], list[Any]]  # (op, card) -> bench records


def rows(html: str) -> Iterator[list[str]]:
    """The cells of each row of the tables, as texts. Pages leave out what HTML lets be left out: the end of a cell and of a row."""
    for row in re.split(r"<tr\b", html)[1:]:
        body = re.split(r"</table|</tbody|</thead", row)[0].replace("<wbr>", "")
        cells = (re.sub(r"<[^>]*>", " ", cell.partition(">")[2]) for cell in re.split(r"<t[dh]\b", body)[1:])
        yield [unescape(re.sub(r"[ \n]+", " ", cell)).strip(" ") for cell in cells]  # a narrow space parts thousands and stays


def told(cell: str) -> list[tuple[float, float]]:
    """The numbers of a cell, each with half a unit of its last digit."""
    return [(float(n.replace("\u202f", "")), 0.50001 * 10.0 ** -len(n.partition(".")[2])) for n in NUMBER.findall(cell)]


def lacking(cell: str, values: list[float]) -> list[float]:
    """The numbers of a cell that are none of these, rounded as it shows them."""
    return [n for n, half in told(cell) if not any(abs(n - v) <= half for v in values)]


def times(r: Any) -> list[float]:
    return [c["median"] * 1e6 for c in r["clocks"].values() if c]


def speeds(r: Any, beside: list[Any]) -> list[float]:
    """Over peers: from paired samples, with their interval, or where there are none the ratio of two medians."""
    found = [1 / v[k] for table in (r.get("versus", {}), r.get("sustained_versus", {})) for v in table.values() for k in ("ratio", "low", "high") if v.get(k)]
    peers = [p["clocks"]["kernel"]["median"] for p in beside if p["subject"].startswith("peer:") and p["case"] == r["case"] and p["clocks"].get("kernel")]
    return found + [p / r["clocks"]["kernel"]["median"] for p in peers]


def errors(r: Any) -> list[float]:
    error = r.get("error") or {}
    return [max((error[k] for k in ("share", "max_share", "rms_share") if k in error), default=0.0)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = site.write(tmp_path_factory.mktemp("pages"), gather(committed(), digests=answers())).parent
    known.save(answers())
    return made


@pytest.fixture(scope="module")
def records() -> Known:
    found: Known = {}
    for r in committed():
        if r["kind"] == "bench":
            found.setdefault((r["op"], r["device"]["name"]), []).append(r)
    return found


def wrong(case: str, subject: str, cells: dict[str, str], beside: list[Any]) -> list[str]:
    """The figures of a row that no record of this subject at this case has. `cells`: by what they hold."""
    own = [r for r in beside if r["subject"] == subject and r["case"] == case and r["clocks"].get("kernel")]
    values = {
        "time": [v for r in own for v in times(r)], "speed": [v for r in own for v in speeds(r, beside)], "error": [v for r in own for v in errors(r)],
        "host": [v for r in beside if r["case"] == case and r["clocks"].get("host") for v in times(r)],
        "memory": [r["memory"] / 2**20 for r in beside if r["case"] == case and r.get("memory") is not None],
    }
    return [f"{subject} at {case}: {what} {n:g}" for what, cell in cells.items() for n in lacking(cell, values[what])]


def of_card(html: str, card: str, records: Known) -> tuple[int, list[str]]:
    count, faults, op = 0, [], ""
    for cells in rows(html[html.index("id=measured") :]):
        if len(cells) == 1:
            op = cells[0]
        elif op and len(cells) >= 6 and cells[0] != "Case":
            shown = {"time": cells[2], "error": cells[-1], **({"speed": cells[5]} if len(cells) == 7 else {})}
            count += sum(len(told(c)) for c in shown.values())
            faults += wrong(cells[0], cells[1], shown, records[op, card])
    return count, faults


def of_op(html: str, op: str, records: Known) -> tuple[int, list[str]]:
    count, faults = 0, []
    for part in re.split(r"<h2\b", html)[1:]:
        title = re.sub(r"<[^>]*>", "", part.partition(">")[2].partition("</h2>")[0]).strip()
        if title not in CARDS:
            continue
        head: list[str] = []
        case = ""
        for cells in rows(part):
            if cells[0] == "Case":
                head = cells
                continue
            if "not measured" in cells:
                continue
            if cells[0]:
                name, _, about = cells[0].rpartition(" ")
                name, _, dtype = name.rpartition(" ")
                case = f"{name} {dtype.rstrip(',')}"
                assert re.fullmatch(r"\d{4}-\d\d-\d\d", about), cells[0]
            subject = cells[1].partition(" ")[0]
            names = [next((key for word, key in (("Kernel time", "time"), ("Speed", "speed"), ("Host", "host"), ("Memory", "memory"), ("Error", "error"))
                           if h.startswith(word)), "") for h in head]
            if "no peer measured" in cells:  # one cell in the place of two
                cells = [*cells[: cells.index("no peer measured")], "", "", *cells[cells.index("no peer measured") + 1 :]]
            shown = {name: re.sub(r"[A-Za-z]\S*", "", cell) for name, cell in zip(names, cells, strict=True) if name}
            count += sum(len(told(c)) for c in shown.values())
            faults += wrong(case, subject, shown, records[op, CARDS[title]])
    return count, faults


@pytest.mark.parametrize("card", CARDS)
def test_the_figures_of_a_card_are_those_of_records(card: str, pages: Path, records: Known) -> None:
    html = (pages / f"card-{card.lower().replace(' ', '-')}.html").read_text(encoding="utf-8")
    count, faults = of_card(html, CARDS[card], records)
    assert count > 300 and not faults


@pytest.mark.parametrize("op", ["matmul", "attention", "softmax", "rms_norm", "topk", "reduce"])
def test_the_figures_of_an_op_are_those_of_records(op: str, pages: Path, records: Known) -> None:
    count, faults = of_op((pages / f"op-{op}.html").read_text(encoding="utf-8"), op, records)
    assert count > 100 and not faults


def test_the_times_of_a_ladder_are_those_of_records(pages: Path, records: Known) -> None:
    ladder = registry.ladder("sgemm_cuda")
    html = (pages / "ladder-sgemm_cuda.html").read_text(encoding="utf-8")
    names = {f"{r.number:02d}": {r.name, r.head.implementation if r.head and r.head.implementation else r.name} for r in ladder.rungs}
    count = 0
    for cells in rows(html):
        if len(cells) > 8 and (own := names.get(cells[0].partition(" ")[0])):
            times_of = [v for (op, _), found in records.items() if op == ladder.op for r in found if r["subject"] in own for v in times(r)]
            assert not lacking(cells[1], times_of), cells
            count += len(told(cells[1]))
    assert count >= len(ladder.rungs)


def test_a_figure_that_no_record_has_is_found(pages: Path, records: Known) -> None:
    html = (pages / "op-matmul.html").read_text(encoding="utf-8")
    shown = next(cells[2] for cells in rows(html) if cells[0].startswith("4096 cubed")).partition(" in ")[0]
    assert of_op(html.replace(shown, "1\u202f234.5"), "matmul", records)[1]
    card = (pages / "card-h200.html").read_text(encoding="utf-8")
    shown = next(cells[5] for cells in rows(card) if len(cells) == 7 and cells[5].count(".") == 3).partition(" ")[0]
    assert of_card(card.replace(f">{shown}<small>", ">77.77<small>"), CARDS["H200"], records)[1]
