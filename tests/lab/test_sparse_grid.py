"""The heat maps of docs/sparse.md."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rooftop.lab import candidates
from rooftop.lab.report.sparse_grid import NOTHING, border, drawing, grids, table


def site(speeds: dict[tuple[str, str], float]) -> Any:
    """As `rooftop.lab.report.data` gives it: one card, the best kernel of each case beside cuBLAS."""
    device = SimpleNamespace(name="Card 9000", short="C9")

    def row(case: str, speed: float) -> Any:
        versus = (SimpleNamespace(label="other", speed=9.0), SimpleNamespace(label="cublas", speed=speed))
        return SimpleNamespace(best=SimpleNamespace(case=case, kernel=object(), versus=versus))

    ops = [
        SimpleNamespace(name=op, scores=[SimpleNamespace(device=device, rows=[row(case, v) for (o, case), v in speeds.items() if o == op])])
        for op in ("spmm_bsr", "spmm_csr")
    ]
    return SimpleNamespace(cards=[SimpleNamespace(device=device)], ops=ops)


def test_rows_are_blocks_and_the_line_parts_what_is_faster() -> None:
    found = site({
        ("spmm_bsr", f"8192x8192 blocks of {s}, density {d} x 512 bf16"): v
        for (s, d), v in {(128, 0.1): 4.0, (128, 0.5): 1.2, (16, 0.1): 1.1, (16, 0.5): 0.25}.items()
    })
    (grid,) = grids(found)
    assert grid.rows == ("blocks of 16", "blocks of 128") and grid.densities == (0.1, 0.5) and "512 columns" in grid.title
    assert border(grid) == [(1, 0, 1, 1), (1, 1, 2, 1)]  # left of the slow cell, and below it
    svg = drawing(found)
    assert svg.count('class="line"') == 2 and ">0.25<" in svg and svg.count("<rect") == 5
    assert "| blocks of 16 | 1.10 | 0.25 |" in table([], found)


def test_elements_have_a_map_of_their_own_and_others_none() -> None:
    found = site({("spmm_csr", "8192x8192 density 0.01 x 16 f32"): 3.0, ("spmm_csr", "power law 262143 x 16 f32"): 2.0,
                  ("spmm_csr", "8192x8192 density 0.01 x 1024 bf16"): 0.5})
    (grid,) = grids(found)
    assert grid.rows == ("16 columns",) and dict(grid.speeds) == {("16 columns", 0.01): 3.0} and not border(grid)


def test_without_records_it_says_so() -> None:
    assert grids(site({})) == [] and table([], site({})) == NOTHING and NOTHING in drawing(site({}))


def test_a_word_that_is_an_op_and_a_ladder_means_both() -> None:
    for word in ("spmm_24", "spmm_bsr"):
        names = {s.name for s in candidates.find([word])}
        assert f"{word}__cuda_sm90" in names and any(n.startswith(f"{word}/") for n in names)
