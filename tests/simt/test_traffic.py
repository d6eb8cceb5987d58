"""The model of the caches: on kernels whose traffic is plain, and beside the counters of an H100."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _report import Made, Strict, make

from rooftop.core import settings
from rooftop.core.spec import TARGETS
from rooftop.lab import simt
from rooftop.lab.counters import traffic
from rooftop.lab.counters.jobs import Job, jobs_for
from rooftop.lab.counters.traffic import Comparison
from rooftop.lab.records import store
from rooftop.lab.report import site

H100 = TARGETS[90]
RESULTS = settings.CHECKOUT / "results" / "h100-80gb-hbm3"
needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
MIB = 1 << 20
HEAD = """/* rooftop
args = ["N: i32", "x: f32[N]", "y: f32[N]"]
[[launch]]
kernel = "k"
grid   = ["N // 256"]
block  = ["256"]
*/
__global__ void k(int n, const float* __restrict__ x, float* __restrict__ y) {
    const int i = blockIdx.x * 256 + threadIdx.x;
"""
KERNELS = {
    "copy": "y[i] = x[i];",
    "twice": "float s = 0; for (int k = 0; k < 2; ++k) s += x[(i + k * (n / 2)) % n]; y[i] = s;",
    "one_block": "y[i] = x[i % 256];",
    "apart": "const int j = i % (n / 256) * 256 + i / (n / 256); y[j] = x[j];",
}


def traffic_of(tmp_path: Path, name: str, n: int = MIB // 4, **changes: int) -> traffic.Traffic:
    path = tmp_path / f"{name}.cu"
    path.write_text(HEAD + KERNELS[name] + "\n}\n", encoding="utf-8")
    (found,) = traffic.of_job(Job(str(path), "traffic", 0, (("N", n),)), replace(H100, **changes))  # type: ignore[arg-type]
    return found


@needs_compiler
@pytest.mark.sampled("slow")
def test_what_fits_the_l2_is_read_once_and_not_written_back(tmp_path: Path) -> None:
    found = traffic_of(tmp_path, "copy")
    assert (found.read, found.written, found.l1, found.l2) == (MIB, 0, 2 * MIB, 2 * MIB)
    assert found.requests == 2 * MIB // 128


@needs_compiler
def test_what_does_not_fit_is_written_but_for_what_stays(tmp_path: Path) -> None:
    found = traffic_of(tmp_path, "copy", l2_bytes=MIB // 8)
    assert found.read == MIB
    assert MIB - MIB // 8 <= found.written < MIB


@needs_compiler
def test_a_second_reading_costs_where_the_l2_has_not_kept_it(tmp_path: Path) -> None:
    kept, lost = (traffic_of(tmp_path, "twice", l2_bytes=b) for b in (H100.l2_bytes, MIB // 8))
    assert kept.read == MIB
    assert 1.5 * MIB < lost.read <= 2 * MIB


@needs_compiler
def test_what_a_multiprocessor_has_read_its_l1_gives(tmp_path: Path) -> None:
    found = traffic_of(tmp_path, "one_block")
    assert (found.l1, found.read) == (2 * MIB, 1024)
    assert found.l2 == MIB + H100.sms * 1024  # each reads its first block's line once


@needs_compiler
def test_sectors_of_several_warps_are_gathered_before_they_are_written(tmp_path: Path) -> None:
    """Each thread of a warp touches a sector of its own, eight warps the same: the memory sees each sector once where the L2 holds them."""
    found = traffic_of(tmp_path, "apart")
    assert (found.l1, found.read, found.written) == (16 * MIB, MIB, 0)


@pytest.mark.parametrize(("shared", "taken"), [(0, 0), (1, 8 << 10), (8 << 10, 8 << 10), (200 << 10, 228 << 10), (300 << 10, 228 << 10)])
def test_shared_memory_takes_one_of_the_divisions(shared: int, taken: int) -> None:
    assert traffic.carveout(shared) == taken


# -- what is proven ------------------------------------------------------------------------------------------------------


def comparison(subject: str, share: float, case: str = "c") -> Comparison:
    return Comparison(subject, case, 0, 60.0 * share, 40.0 * share, 50.0, 50.0)


def test_the_model_is_proven_by_five_kernels_at_all_their_cases() -> None:
    five = [comparison(f"k{i}", s) for i, s in enumerate((0.86, 1.0, 1.14, 0.9, 1.1))]
    assert traffic.proven(five) == {"k0", "k1", "k2", "k3", "k4"}
    assert traffic.proven([*five, comparison("k5", 0.5)]) == {"k0", "k1", "k2", "k3", "k4"}
    assert not traffic.proven([*five, comparison("k0", 0.8, "another case")])
    assert not traffic.proven([*five[:4], comparison("k4", 1.16)])
    assert not traffic.proven(five[:4])


@cache
def known() -> dict[tuple[str, str, int], Any]:
    return dict(traffic.measured(store.read(RESULTS)))


def test_records_of_other_code_prove_nothing() -> None:
    some = [r for r in store.read(RESULTS) if r["kind"] == "counters" and r["tier"] == "traffic" and r["subject"].startswith("tests/simt/transpose")]
    fresh = traffic.measured(some)
    if not fresh:
        pytest.skip("no traffic of the transposes as they are is recorded: python -m rooftop.lab.counters.collect --tiers traffic on a GPU")
    key, r = next(iter(fresh.items()))
    assert key not in traffic.measured([{**r, "digest": "000000000000"}])
    assert not traffic.measured([{**r, "subject": "tests/simt/transpose/gone.cu"}])
    c = Comparison(*key, 1e6, 2e6, 3e6, 4e6)
    made = {**traffic.record(c, r), "at": r["at"], "run": "x"}
    assert traffic.compared([json.loads(json.dumps(made))]) == [c]
    assert not traffic.compared([{**made, "digest": "000000000000"}])
    assert traffic.measured([made]) == {}



@cache
def compared() -> list[Comparison]:
    return list(traffic.compared(store.read(RESULTS)))


FAST = ["tests/simt/transpose/padded.cu", "softmax_cuda/08_cluster"]


@needs_compiler
@pytest.mark.sampled("slow")
@pytest.mark.parametrize("subject", FAST)
def test_the_recorded_comparison_is_what_the_model_gives(subject: str) -> None:
    job = jobs_for([subject], ["traffic"])[0]
    found = [c for c in compared() if (c.subject, c.case) == (subject, job.title)]
    if not found:
        pytest.skip("not compared, or other code since: python -m rooftop.lab.counters.traffic --out results")
    again = traffic.compare(job, known())
    assert [c.share for c in again] == pytest.approx([c.share for c in found], rel=0.02)
    assert all(c.holds for c in again)


def test_the_records_prove_the_model() -> None:
    if not compared():
        pytest.skip("nothing is compared: python -m rooftop.lab.counters.traffic --out results")
    assert len(traffic.proven(compared())) >= traffic.NEEDED, "\n".join(map(str, compared()))


# -- on the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proven", [True, False])
def test_a_page_shows_the_model_only_where_it_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proven: bool) -> None:
    made: Made = make(tmp_path, monkeypatch)
    found = [comparison("steps/01_plain", 1.1), comparison("steps/02_wide", 0.7), *(comparison(f"k{i}", 1.0) for i in range(4 if proven else 3))]
    monkeypatch.setattr(traffic, "compared", lambda _: found)
    index = site.build(made.out, [], house=made.house)
    text = Strict(index.with_name("ladder-steps.html").read_text(encoding="utf-8")).text
    assert ("off by -30 %" in text, text.count("by the model of the caches")) == ((True, 2) if proven else (False, 0))
