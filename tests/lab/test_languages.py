"""The page of the same ops in each language."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rooftop.core import registry
from rooftop.core.backends.table import BACKENDS
from rooftop.core.registry import House
from rooftop.core.spec import TARGETS
from rooftop.lab.records.record import Clock, Versus
from rooftop.lab.report import language_page
from rooftop.lab.report.language_page import InLanguage, LanguageRow
from rooftop.lab.timing import languages


@pytest.mark.parametrize("row", languages.ROWS, ids=lambda r: f"{r.op} {r.case}")
def test_every_kernel_that_is_shown_takes_its_case_in_its_language(row: languages.Row) -> None:
    assert set(row.kernels) <= set(languages.LANGUAGES) <= set(BACKENDS)
    for language, name in row.kernels.items():
        found = languages.subject_of(row.op, name)
        assert found is not None and found.implementation is not None and found.implementation.backend == language
        assert found.supports(found.op.case(row.case), TARGETS[languages.CARD]) is None


def test_what_another_house_has_not_is_left_out(tmp_path: Any) -> None:
    assert languages.subject_of("softmax", "softmax__triton", House(tmp_path, tmp_path, tmp_path)) is None
    assert language_page.rows([], {}, lambda r: None) == ()
    assert language_page.table(()) == language_page.NOTHING


def test_lines_are_those_of_code_and_helpers_are_counted_apart() -> None:
    own, shared = language_page.lines_of(registry.implementation("swiglu__triton"))
    text = registry.implementation("swiglu__triton").path.read_text(encoding="utf-8")
    assert 5 < own < len(text.splitlines()) and shared > own
    assert language_page.lines_of(registry.implementation("transpose__triton"))[1] == 0
    assert language_page.lines_of(registry.implementation("softmax__cuda_sm90"))[1] > 0


def test_a_cell_says_time_share_peer_and_cost() -> None:
    m = SimpleNamespace(seconds=133.9e-6, share=0.954, best_peer=Versus("peer:liger", 0.96, None, "slower"), kernel=Clock(1, 1, 1))
    cell = InLanguage("softmax__cutile_sm90", "a.py", "", 104, 6, m, 2.74, "tileiras", 0.0009, (64, 71), (0, 16))  # type: ignore[arg-type]
    none = InLanguage("softmax__triton", "b.py", "", 9, 0, None, None, "", None, (), ())
    site = SimpleNamespace(languages=(LanguageRow("softmax", "rows", "NVIDIA H200", (none, None, None, cell, None)),))
    lines = language_page.table(site.languages).splitlines()
    assert "| softmax rows | not measured |  |  | 133.9, 0.95, 0.96x liger |  |" in lines
    assert "| softmax rows | 9 |  |  | 104 (+6), 2.7 s, 0.9 ms, 64/71 regs, 16 B spilled |  |" in lines
