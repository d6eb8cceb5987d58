"""docs/formats.md is what the code says, and what it says about order is true."""

from __future__ import annotations

import pytest
import torch

from rooftop.core import settings
from rooftop.formats.number_formats import ELEMENTS, decode
from rooftop.lab.report import code_tables, format_page

PAGE = "docs/formats.md"


def committed() -> str:
    return (settings.CHECKOUT / PAGE).read_text(encoding="utf-8")


def test_the_page_is_what_the_code_says() -> None:
    assert code_tables.page(PAGE, committed()) == committed(), "python -m rooftop.lab.report.code_tables writes it anew"


def test_a_page_with_another_number_is_found_and_one_without_markers_refused() -> None:
    wrong = committed().replace("| 448 |", "| 449 |", 1)
    assert wrong != committed() and code_tables.page(PAGE, wrong) == committed()
    with pytest.raises(ValueError, match="generated: codes"):
        code_tables.page(PAGE, committed().replace("<!-- generated: codes -->", ""))


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_table_of_codes_reads_back_as_the_values(name: str) -> None:
    """Each cell, parsed as a number, is the value of the code that its row and column name."""
    f = ELEMENTS[name]
    seen = {}
    for line in format_page.codes(f).splitlines()[2:]:
        first, *cells = [c.strip() for c in line.strip("|").split("|")]
        for i, cell in enumerate(cells):
            mantissa, _, power = cell.partition(" · 2^")
            seen[int(first, 16) + i] = float(mantissa) * 2.0 ** int(power or 0)
    values = decode(torch.arange(len(seen), dtype=torch.uint8), name)
    got = torch.tensor([seen[i] for i in range(len(seen))])
    assert len(seen) == 2 ** (f.bits - bool(f.exponent)) and torch.equal(got.view(torch.int32)[~got.isnan()], values.view(torch.int32)[~values.isnan()])
    assert torch.equal(got.isnan(), values.isnan())


def test_the_chances_of_the_page_are_those_of_a_fair_rounding() -> None:
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in format_page.chances().splitlines()[2:]]
    assert [r[0] for r in rows] == list(ELEMENTS)
    assert all(float(r[1]) < 26.1 and float(r[2]) < 4 and r[3] == "0" for r in rows), rows


def test_keys_order_as_floats_do() -> None:
    """All bfloat16 but NaN, by the formula of the page for 32 bits."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = x[~x.isnan()]
    bits = x.view(torch.int32).to(torch.int64)
    key = (bits ^ ((bits >> 31) | 0x80000000)) & 0xFFFFFFFF
    order = key.argsort()
    assert (x[order].diff().nan_to_num(0) >= 0).all() and key.unique().numel() == key.numel()
    zeros = x[order][x[order] == 0]
    assert zeros.signbit().tolist() == [True, False]
