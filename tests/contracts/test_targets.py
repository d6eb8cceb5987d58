"""What is kept of the sweep over all targets is what the compilers say, and no kernel that compiles loses its matrix instructions
silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rooftop.core import registry
from rooftop.core.child import ChildTimeout, Process
from rooftop.core.digests import digest
from rooftop.core.spec import TARGETS
from rooftop.lab.inspect import targets as cells
from rooftop.lab.inspect import targets_kept as kept

KEPT = kept.read()
SUBJECTS = {s.name: s for s in cells.subjects()}
FINE = sorted(k for k, row in KEPT.items() if "registers" in row and k.partition(" ")[0] in SUBJECTS)
LIMIT = 60.0  # seconds for a cell


@pytest.fixture(scope="session")
def compiler() -> Iterator[Process]:
    process = kept.compiler()
    yield process
    process.close()


@pytest.mark.sampled("targets", "{name}")
@pytest.mark.parametrize(("name", "target"), [tuple(k.split(" ")) for k in FINE])
def test_a_cell_is_what_the_compiler_says(name: str, target: str, compiler: Process) -> None:
    """Of a kernel as it is: the same registers, shared memory and instructions; of one that has changed since: that it compiles."""
    key, case, refused = cells.digest_of(SUBJECTS[name], target)
    assert not refused and case is not None
    cell = kept.Cell(SUBJECTS[name], target, case, digest(key)[:8], refused, KEPT[f"{name} {target}"])
    row = process_row(cell, compiler)
    if cell.current:
        assert row == cell.row
    else:
        assert "registers" in row, row


def process_row(cell: kept.Cell, compiler: Process) -> dict[str, object]:
    assert cell.case is not None
    answer = compiler.ask({"what": "compilation", "kernel": cell.subject.name, "case": cell.case.id, "target": cell.target}, LIMIT)
    return {"case": cell.case.id, "digest": cell.digest, **answer["row"]}


def test_how_far_the_kernels_reach() -> None:
    """Of the kernels that sm_80 compiles nearly all compile for NVIDIA's later targets, and most Triton kernels for AMD's data-centre
    cards."""
    found = list(kept.shown(list(SUBJECTS.values()), cells.COLUMNS, KEPT))
    state = {(c.subject.name, c.target): c.state for c in found}
    base = [n for n in SUBJECTS if state[n, "80"] == "compiles"]
    later = [state[n, t] for n in base for t in ("86", "90", "89", "100", "103", "120")]
    assert base and sum(s == "compiles" for s in later) >= 0.97 * len(later), sorted((n, t) for n, t in state if n in base and state[n, t] != "compiles")
    triton = [n for n, s in SUBJECTS.items() if s.implementation is not None and s.implementation.backend == "triton"]
    for target in ("gfx942", "gfx950"):
        assert sum(state[n, target] == "compiles" for n in triton) >= 0.9 * len(triton), [n for n in triton if state[n, target] != "compiles"]
    assert kept.lost(found) == []


def test_every_reason_is_a_line() -> None:
    for cell in kept.shown(list(SUBJECTS.values()), cells.COLUMNS, KEPT):
        assert "\n" not in cell.reason and len(cell.reason) <= 250
        assert bool(cell.reason) == (cell.state in ("refused", "failed", "too large")), cell


def test_what_is_not_for_a_target_says_so() -> None:
    reasons = {a: registry.implementation(n).foreign(TARGETS[a]) for n, a in (
        ("matmul__gluon_sm90", "80"), ("matmul__gluon_sm90", "100"), ("matmul__triton", "gfx942"), ("softmax__cuda_sm90", "120"), ("gelu__cuda_sm80", "gfx950"),
    )}
    assert reasons == {
        "80": "needs sm_90 or later; NVIDIA A800-SXM4-80GB is sm_80", "100": "uses instructions that only sm_90 has; NVIDIA B200 is sm_100",
        "gfx942": None, "120": None, "gfx950": "only Triton kernels run on AMD's cards; AMD Instinct MI350X is gfx950",
    }
    for wrong in ("77", "sm_900", "gfx90", ""):
        with pytest.raises(ValueError, match="it is one of sm_80, sm_86"):
            cells.target_of(wrong)
    assert [cells.target_of(w) for w in ("90", "sm_90a", "90a", "sm90", "gfx942")] == ["90"] * 4 + ["gfx942"]


def test_lost_matrix_instructions_are_found() -> None:
    subject = SUBJECTS["matmul__triton"]
    row = {"case": "c", "digest": "d", "registers": 9, "spills": 0, "shared": 0}
    found = [kept.Cell(subject, t, None, "d", "", {**row, "matrix": m}) for t, m in (("80", {"mma": 4}), ("90", {"wgmma": 2}), ("120", {}))]
    assert kept.lost(found) == ["matmul__triton has no matrix instruction on sm_120a, and has some on sm_80"]
    assert kept.lost(found[:2]) == []
    large = kept.Cell(subject, "120", None, "d", "", {**row, "shared": 200_000, "matrix": {}})
    assert large.state == "too large" and large.reason == "200,000 bytes of shared memory; a block has 101,376 there"


def test_a_compiler_that_ends_its_process_is_a_reason(compiler: Process) -> None:
    """LLVM aborts for instructions of another target; the next cell has a process again."""
    case = SUBJECTS["int_matmul__gluon_sm90"].op.cases[0]
    cell = kept.Cell(SUBJECTS["int_matmul__gluon_sm90"], "80", case, "d", "", None)
    row = kept.make(cell, compiler)
    assert "failed" in row and "\n" not in row["failed"]
    assert cells.reason_of("a\n/x/y.cu(3): error: no such thing\nb") == "y.cu(3): error: no such thing"


def test_no_answer_in_time_is_kept_of_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how busy the machine is."""
    class Slow:
        def ask(self, job: object, limit: float) -> None:
            raise ChildTimeout(f"no answer in {limit:.0f} s")

        def close(self) -> None:
            pass

    monkeypatch.setattr(kept, "compiler", Slow)
    said: list[str] = []
    kept.update([SUBJECTS["add__triton"]], ["80"], said.append, tmp_path / "targets.json")
    assert said == ["add__triton 80: not kept: no answer in 300 s"] and kept.read(tmp_path / "targets.json") == {}


def test_assembly_of_amd_is_read() -> None:
    text = "  v_mfma_f32_32x32x8_f16 a\n v_mfma_f32 b\n  v_wmma_f32 c\n    .vgpr_count:     40\n    .private_segment_fixed_size: 8\n"
    assert cells.of_amd(text) == {"registers": 40, "spills": 8, "static": 0, "matrix": {"mfma": 2, "wmma": 1}}
    with pytest.raises(ValueError, match="no vgpr_count"):
        cells.of_amd("    .private_segment_fixed_size: 8\n")
