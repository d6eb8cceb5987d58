"""Predictions from rung to rung, and a kernel's place on a ladder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooftop.core import registry, settings
from rooftop.lab import candidates
from rooftop.lab.counters.diagnose import reports, steps
from rooftop.lab.records import store
from rooftop.lab.report import place


def step(ladder: str, idea: str, seconds: float, came: float, roof: float = 1.0) -> steps.Step:
    return steps.Step(ladder, f"{ladder}/01_a", f"{ladder}/02_b", idea, "c", "card", seconds, came, roof)


def test_a_step_is_predicted_by_other_ladders_alone() -> None:
    """On ladder a the idea goes half of the way (16 to 4, roof 1), so on ladder b 100 becomes 10, whatever b's own steps did."""
    found = [step("a", "wide", 16.0, 4.0), step("b", "wide", 100.0, 99.0), step("b", "tile", 9.0, 1.0)]
    predicted = {(p.step.ladder, p.step.idea): p for p in steps.predict(found)}
    assert predicted["b", "wide"].seconds == pytest.approx(10.0) and predicted["b", "wide"].samples == 1
    assert predicted["b", "tile"].seconds == pytest.approx(3.0) and predicted["b", "tile"].samples == 0  # of all ideas: no other ladder has a tile
    changed = steps.predict([found[0], step("b", "wide", 100.0, 2.0)])
    assert next(p for p in changed if p.step.ladder == "b").seconds == pytest.approx(10.0)


def test_no_prediction_passes_the_roof_or_the_time_of_now() -> None:
    slower = steps.predict([step("a", "wide", 4.0, 8.0), step("b", "wide", 4.0, 3.0)])
    assert next(p for p in slower if p.step.ladder == "b").seconds == 4.0
    beyond = steps.predict([step("a", "wide", 4.0, 0.5), step("b", "wide", 4.0, 3.0)])
    assert next(p for p in beyond if p.step.ladder == "b").seconds == 1.0


def test_the_recorded_ladders() -> None:
    """The median error that docs/profiling.md quotes, and that of predicting no change."""
    found = steps.predict(steps.steps(store.read(settings.CHECKOUT / "results" / "h100-80gb-hbm3")))
    whole = steps.summary(found)[-1]
    assert whole.idea == "all" and whole.steps >= 100 and len({p.step.ladder for p in found}) >= 6
    assert whole.error < 0.30 and whole.error < whole.no_change


@pytest.mark.parametrize("number", [2, 5, 6, 11])
def test_a_rung_stands_where_it_is(number: int) -> None:
    subject = candidates.rungs(registry.ladder("sgemm_cuda"))[number - 1]
    found = place.place(subject, "sgemm_cuda", [])
    assert subject.name in found.nearest and found.distance == 0
    assert all(s.gone in (True, None) for s in found.steps[: number - 1])


def test_a_kernel_between_the_rungs(tmp_path: Path) -> None:
    """Rung 5 with tiles of 64 is rung 5 still: it lacks wide global loads and asynchronous copies, and not the register tile."""
    source = (settings.PACKAGE / "ladders" / "sgemm_cuda" / "05_tile_2d.cu").read_text()
    mine = (
        source.replace("BM = 128", "BM = 64")
        .replace("BN = 128", "BN = 64")
        .replace("/* rooftop\n", '/* rooftop\nop = "matmul"\nwithout = ["bias", "gate", "residual"]\n')
    )
    path = tmp_path / "mine.cu"
    path.write_text(mine)
    (subject,) = candidates.find([str(path)])
    records = list(store.read(settings.CHECKOUT / "results" / "h100-80gb-hbm3"))
    found = place.place(subject, "sgemm_cuda", records)
    assert found.nearest == ("sgemm_cuda/05_tile_2d",)
    gone = {s.rung.partition("/")[2]: s for s in found.steps}
    assert gone["03_shared_tile"].gone and gone["05_tile_2d"].gone
    assert gone["06_vectorised"].gone is False and "global load" in gone["06_vectorised"].changes and gone["06_vectorised"].gain == pytest.approx(1.1, abs=0.1)
    assert gone["11_async_copies"].gone is False
    text = place.screen(found)
    assert "you are at  sgemm_cuda/05_tile_2d" in text and "missing" in text and "Loads and stores of 16 bytes" in text


def test_accesses_come_from_a_report() -> None:
    metrics = {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 320.0, "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 10.0,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 40.0, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 30.0,
    }  # fmt: skip
    assert place.measured_by(reports.Kernel("k", metrics=metrics)) == {"sectors_read": 32.0, "conflicts": 4.0}


def test_a_kernel_of_another_op_has_no_place() -> None:
    with pytest.raises(ValueError, match="computes softmax; the ladder sgemm_cuda is of matmul"):
        place.place(candidates.rungs(registry.ladder("softmax_cuda"))[0], "sgemm_cuda", [])
