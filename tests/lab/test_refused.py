"""A check without a GPU says what no GPU would take, though the host's compiler does."""

from __future__ import annotations

from pathlib import Path

import pytest
from _support import flat

from rooftop.core import registry
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.compile import ToolchainError
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, compiled, many
from rooftop.lab.cli.check import _show_checks

TEXT = """/* rooftop
op     = "add"
idea   = "one element a thread"
dtypes = ["f32"]
args   = ["n: i32", "x: T[n]", "y: T[n]", "out: T[n]"]

[[launch]]
kernel = "add"
grid   = ["ceil(n / 128)"]
block  = [128]
shared = "0"
*/

__global__ void add(int n, const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ('shared = "0"', 'shared = "400000"', "no sm_80 can run it: add: "),
        ("\n\n__global__", "\n#include <algorithm>\n__global__", "no sm_80 can run it: mine.cu"),
        ("y[i];", "(y[i] < INFINITY ? y[i] : 0);", 'identifier "INFINITY" is undefined'),
    ],
)
def test_what_no_gpu_can_run_is_refused_before_it_is_simulated(old: str, new: str, says: str | None) -> None:
    text = TEXT.replace(old, new, 1) if old else TEXT
    subject = Subject("mine", registry.op("add"), CudaImplementation(Path("mine.cu"), "add", "mine", text=text))
    said = compiled.refused(subject, registry.op("add").case("odd f32"))
    assert said is None if says is None else says in str(said)


def test_what_could_not_be_compiled_for_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent(*args: object) -> None:
        raise ToolchainError("NVRTC cannot be loaded: pip install nvidia-cuda-nvrtc")

    for kept in ("_SAID", "_UNASKED"):
        monkeypatch.setattr(compiled, kept, {})
    monkeypatch.setattr("rooftop.lab.inspect.inspector.kernel_facts", absent)
    subject = Subject("mine", registry.op("add"), CudaImplementation(Path("mine.cu"), "add", "mine", text=TEXT))
    result = many.check_one(subject, registry.op("add").case("odd f32"), "cpu", 7)
    assert result.status == "ok" and "pip install nvidia-cuda-nvrtc" in result.unasked and result.to_json()["unasked"] == result.unasked
    _show_checks([result, result], 7, False, False)
    said = " ".join(capsys.readouterr().out.split())
    assert "not compiled for a GPU before they were simulated, so what a GPU refuses was not found: mine (NVRTC cannot be loaded: pip install" in said


def test_one_fault_in_many_cases_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def faulty(case: int, line: int, dtype: str) -> checker.Result:
        said = f"RaceBetweenPrograms: k, program ({case}, 0, 0), k.py:{line}: tl.store(y, {line * 'v'})\n  a race at element {case} of 'y' ({dtype})"
        return checker.Result("k", "square", f"case {case}", "error", "interpreter", said)

    _show_checks([faulty(1, 3, "float32"), faulty(22, 3, "bfloat16"), faulty(4, 5, "float32")], 7, False, False)
    said = flat(capsys.readouterr().out)
    assert "case 1 and 1 more" in said
    assert said.count("a race at element") == 2
    assert "k.py:5: tl.store(y, vvvvv)" in said


def test_where_nothing_was_right_there_is_no_worst_share(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _show_checks([checker.Result("k", "square", "odd f32", "skipped", "simt", "no C++ compiler")], 7, False, False)
    row = next(line for line in capsys.readouterr().out.splitlines() if "simt" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["k", "0", "0", "0", "1", "simt", ""]
