"""`Implementation.bind`: what one call runs, ready to be run again, without a GPU (the driver is stood in for)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rooftop.core import registry
from rooftop.core.backends import cuda
from rooftop.core.implementation import Launches
from rooftop.core.spec import TARGETS, Launch


class Module:
    """In the driver's place: what was loaded, and what each launch was given."""

    made: list[tuple[str, ...]] = []
    given: list[tuple[str, int, tuple[Any, ...]]] = []

    def __init__(self, code: Any) -> None:
        self.made.append(tuple(sorted(code.names)))

    def prepare(self, launch: Launch, names: Any, index: int) -> Any:
        return lambda stream, addresses: self.given.append((launch.kernel, stream, tuple(addresses)))


class Tensor:
    """What a runner asks of a tensor."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


SOURCE = '''/* rooftop
op     = "add"
dtypes = ["f32"]
args   = ["n: i32 = numel(x)", "x: f32[N]", "y: f32[N]", "out: f32[N]"]
[config]
threads = 128
[[choice]]
when    = "N > 2000"
threads = 256
[[launch]]
kernel = "first<{threads}>"
grid   = ["ceil(numel(x) / threads)"]
block  = ["threads"]
[[launch]]
when   = "N > 1"
kernel = "second"
grid   = [1]
block  = [32]
*/
template <int T> __global__ void first(int n, const float* x, const float* y, float* out) {
    int i = blockIdx.x * T + threadIdx.x; if (i < n) out[i] = x[i] + y[i];
}
__global__ void second(int n, const float* x, const float* y, float* out) {}
'''


def test_kernels_are_loaded_once_whatever_set_of_them_a_problem_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "Module", Module)
    monkeypatch.setattr(Module, "made", [])
    monkeypatch.setattr(Module, "given", [])
    path = tmp_path / "mine.cu"
    path.write_text(SOURCE)
    kernel, op = registry.user_file(path), registry.op("add")

    def run(case: str) -> None:
        problem = op.problem(op.case(case), TARGETS[90])
        names = ("x", "y", "out", "seed")
        runner = kernel.bind(problem, kernel.choose(problem), names, 0)
        runner(7, [Tensor(64), None, Tensor(128), 5])
        assert isinstance(runner, Launches)
        runner.addressed(9, [64, 0, 128, 5])

    run("odd f32")
    assert Module.given == [(kernel, stream, (64, 0, 128, 5)) for stream in (7, 9) for kernel in ("first<128>", "second")]
    run("address misaligned f32")
    run("one element f32")  # launches the first alone
    assert Module.made == [("first<128>", "second")], "kernels that were loaded were loaded again"
    run("one block f32")
    assert Module.made == [("first<128>", "second"), ("first<256>",)], "what was loaded was compiled again"
    assert Module.given[-2:] == [("first<256>", 9, (64, 0, 128, 5)), ("second", 9, (64, 0, 128, 5))]
