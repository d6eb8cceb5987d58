"""Predictions from rung to rung, and a kernel's place on a ladder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooftop.core import registry, settings
from rooftop.core.spec import Case
from rooftop.lab import candidates
from rooftop.lab.counters.diagnose import reports, steps
from rooftop.lab.inspect import inspector
from rooftop.lab.records import store
from rooftop.lab.report import place
from rooftop.lab.simt import own_file


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


@pytest.mark.sampled("slow")
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
    }
    assert place.measured_by(reports.Kernel("k", metrics=metrics)) == {"sectors_read": 32.0, "conflicts": 4.0}


def test_a_kernel_of_another_op_has_no_place() -> None:
    with pytest.raises(ValueError, match="computes softmax; the ladder sgemm_cuda is of matmul"):
        place.place(candidates.rungs(registry.ladder("softmax_cuda"))[0], "sgemm_cuda", [])


def test_a_file_without_a_head_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "#include <iostream>\n__global__ void mm(int M, int N, int K, const float* a, const float* b, float* c) {\n"
        "    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;\n    if (x >= M || y >= N) return;\n"
        "    float s = 0;\n    for (int k = 0; k < K; ++k) s += a[x * K + k] * b[k * N + y];\n    c[x * N + y] = s;\n}\n"
        "int main() { mm<<<dim3(2, 2), dim3(32, 32)>>>(64, 64, 64, nullptr, nullptr, nullptr); }\n", encoding="utf-8",
    )
    (mm,) = own_file.facts(own_file.read(path), inspector.device_of("h200")).found
    (found,) = place.places({"kernels": [mm]}, "mm", ["sgemm_cuda"], [])
    assert found.nearest == ("sgemm_cuda/01_naive", "sgemm_cuda/02_coalesced")
    assert found.distance < 0.5
    assert {s.rung.partition("/")[2] for s in found.steps if s.gone is False} >= {"03_shared_tile", "06_vectorised"}
    with pytest.raises(ValueError, match="no rungs in CUDA C\\+\\+ to compare mm with"):
        place.places({"kernels": [mm]}, "mm", ["matmul_triton"], [])
    (other,) = place.places({"kernels": [mm]}, "mm", ["matmul_triton", "softmax_cuda", "sgemm_cuda"], [], case="4096 cubed f32")
    assert other.ladder == "sgemm_cuda", "ladders without such rungs, or such a case, are passed over"


def test_a_step_of_no_gain_is_not_missing() -> None:
    steps = tuple(place.Ahead(f"l/{gain}", "idea", ("global load",), False, gain, "case", "card") for gain in (0.9, 1.0, 1.5, None))
    text = place.screen(place.Placed("mine", "l", ("l/1",), 0.0, {"global load": 4.0}, steps, ""))
    assert "l/1.5" in text and "l/None" in text
    assert "l/0.9" not in text and "l/1.0" not in text


def test_the_cases_of_a_ladder_are_tried_before_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = candidates.rungs(registry.ladder("sgemm_cuda"))[0]
    true, asked = inspector.facts_of, []

    def facts_of(s: candidates.Subject, case: Case, target: int | str) -> inspector.Facts:
        if s is not subject:
            return true(s, case, target)
        asked.append(case.id)
        return {"refused": f"not {case.id}"} if len(asked) < wanted else true(s, case, target)

    monkeypatch.setattr(inspector, "facts_of", facts_of)
    wanted = 2
    assert place.place(subject, "sgemm_cuda", [], count=False).nearest
    assert len(set(asked)) >= 2
    asked.clear()
    wanted = 1000
    with pytest.raises(ValueError, match=r"not .*; .*not "):
        place.place(subject, "sgemm_cuda", [])
    with pytest.raises(ValueError, match="f64: no case of the ladder sgemm_cuda; it has 4096 cubed f32, 8192"):
        place.place(subject, "sgemm_cuda", [], dtype="f64")
