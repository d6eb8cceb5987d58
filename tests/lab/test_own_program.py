"""Files without a head in `rooftop bench` and `rooftop diagnose`: what is launched, with which arguments, and what is said of it without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from _simulated_device import Simulated
from typer.testing import CliRunner

from rooftop.core import launch as launching
from rooftop.core.compile import CompileError
from rooftop.lab import simt
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.exit_codes import NoGpuError
from rooftop.lab.simt import program
from rooftop.lab.timing import own_program
from rooftop.lab.timing.timer import Timer

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
SUMS = """
#include <cstdio>
template <class T, int N> __global__ void scaled(const T* x, T* y, int n, float by, bool add, double more) {
    const int i = blockIdx.x * N + threadIdx.x;
    if (i < n) y[i] = x[i] * by + more + (add ? y[i] : T(0));
}
__global__ void plain(int* counts) { counts[threadIdx.x] += 1; }
int main(int argc, char** argv) {
    const int n = 1 << 20;
    float *x, *y;
    int* counts;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&y, n * sizeof(float));
    cudaMalloc(&counts, 256);
    constexpr int width = 64;
    for (int i = 0; i < 3; ++i) scaled<float, 2 * width><<<n / 2 / 128, 128>>>(x, y + n / 2, n / 2, 0.5f, i > 5, -2.0);
    plain<<<1, 32, 64>>>(counts);
    cudaFree(x), cudaFree(y), cudaFree(counts);
}
"""


def planned(tmp_path: Path, text: str) -> tuple[Any, own_program.Plan]:
    path = tmp_path / "own.cu"
    path.write_text(text, encoding="utf-8")
    source, _ = program.source_of(path)
    return source, own_program.plan(source)


def test_launches_are_listed_with_their_arguments_and_made_of_kernels_that_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, plan = planned(tmp_path, SUMS)
    first, second = plan.steps
    assert (first.launch.kernel, first.launch.grid, first.launch.block, first.times) == ("scaled<float, 128>", (4096, 1, 1), (128, 1, 1), 3)
    assert first.launch.types == ("ptr", "ptr", "u32", "f32", "bool", "f64") and second.launch.shared == 64
    x, y, *numbers = first.launch.args.values()
    assert numbers == [1 << 19, 0.5, False, -2.0] and x.endswith("+0") and y.endswith(f"+{2 << 20}")
    assert sorted(plan.memory.values()) == [256, 4 << 20, 4 << 20] and plan.order == (0, 0, 0, 1)
    binary = own_program.compiled(source, plan, "sm_90a")
    assert set(binary.names) == {"scaled<float, 128>", "plain"}

    made: list[tuple[str, int, list[int]]] = []  # of the GPU: which kernel, at which stream and addresses
    module = SimpleNamespace(prepare=lambda launch, names, device: lambda stream, addresses: made.append((launch.kernel, stream, addresses)))
    monkeypatch.setattr(launching, "Module", lambda binary: module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))

    def measure(field: list[Any], clock: str, bytes_per_call: int, budget_s: float) -> Any:
        Timer(Simulated())._validate(field, clock, bytes_per_call, "normal", (11, 1001), 0.002)  # type: ignore[arg-type]
        field[0].calls[0]()
        times = {c.name: SimpleNamespace(median=1e-6, low=1e-6, high=1e-6, method="graph") for c in field}
        return SimpleNamespace(timings=times, versus={c.name: SimpleNamespace(ratio=2.0) for c in field[1:]})

    count, peers = own_program.sets(plan, Simulated().l2_bytes), {"torch.add": (torch.add, [((4,), "float32")] * 2)}
    beside = own_program.on(peers, torch.device("cpu"), count)
    rows = own_program.measure(source, plan, SimpleNamespace(measure=measure), torch.device("cpu"), "sm_90a", beside, 1.0, count)
    assert [m[0] for m in made] == ["scaled<float, 128>", "plain", *["scaled<float, 128>"] * 3, "plain"]
    assert {m[1] for m in made} == {7} and made[0][2] == made[2][2] and made[0][2][0] != made[0][2][1]
    assert [(r["what"].rpartition(": ")[2], r["ratio"]) for r in rows[2:]] == [("all launches, in order", None), ("torch.add", 2.0)]


@pytest.mark.parametrize(
    ("kernel", "call", "says"),
    [
        ("struct P { float* p; int n; }; __global__ void k(P p) {}", "P p = {nullptr, 1}; k<<<1, 1>>>(p);", "argument 1 of k is a struct of 16 bytes"),
        ("__global__ void k(int* p) {}", "if (false) k<<<1, 1>>>(nullptr); return 4;", "it ended \\(returned, exit code 4\\) before any launch"),
    ],
)
def test_what_cannot_be_timed_is_said(kernel: str, call: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        planned(tmp_path, f"{kernel}\nint main() {{ {call} }}\n")


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    source, plan = planned(tmp_path, "#include <vector>\n__global__ void k(int* p) { std::vector<int> v; }\nint main() { k<<<1, 1>>>(nullptr); }\n")
    with pytest.raises(CompileError, match=r"k is not compiled: .*own.cu:2"):
        own_program.compiled(source, plan, "sm_90a")


SOFTMAX = """
__global__ void rows(const float* x, float* y, int rows, int columns) {
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float sum = 0;
    for (int c = 0; c < columns; ++c) sum += expf(x[r * columns + c]);
    for (int c = 0; c < columns; ++c) y[r * columns + c] = expf(x[r * columns + c]) / sum;
}
extern "C" void solve(const float* x, float* y, int rows_, int columns) { rows<<<(rows_ + 31) / 32, 32>>>(x, y, rows_, columns); }
"""


@pytest.mark.sampled("slow")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_commands_take_the_file_and_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(SOFTMAX, encoding="utf-8")
    commands()
    sizes = ["--arg", "rows_=64", "--arg", "columns=48"]
    done = CliRunner().invoke(app, ["bench", "own.cu", *sizes, "--like", "torch.softmax", "--arg", "x=f32:64x48", "--arg", "y=f32:64x48"])
    assert isinstance(done.exception, NoGpuError) and "timing this launch needs an NVIDIA GPU" in str(done.exception)
    assert "own.cu:9: rows<<<2, 32>>>" in done.output
    done = CliRunner().invoke(app, ["bench", "own.cu", *sizes, "--like", "torch.softmax"])
    assert "give that of x, as in --arg x=f32:4096x1024" in str(done.exception)
    done = CliRunner().invoke(app, ["bench", "softmax", "--arg", "n=1"])
    assert "it goes with a .cu without a head" in str(done.exception)
    done = CliRunner().invoke(app, ["diagnose", "own.cu", *sizes, "--json"])
    data = json.loads(done.output[done.output.index("{") :])
    assert done.exit_code == 0 and data["roof"]["bound"] == "memory" and data["kernels"][0]["registers"] > 0
    assert any("2 blocks on 132 SMs" in h for h in data["kernels"][0]["hints"])
    assert {(v["line"], v["text"].split(",")[0]) for v in data["verdict"]} >= {(6, "uncoalesced read"), (7, "uncoalesced write")}
    launch = ["--kernel", "rows", "--grid", "1", "--block", "32", "--arg", "x=f32:32x48", "--arg", "y=f32:32x48", "--arg", "rows=32", "--arg", "columns=48"]
    done = CliRunner().invoke(app, ["diagnose", "own.cu", *launch])
    assert done.exit_code == 0 and "rows<<<1, 32>>>(x, y, 32, 48)" in done.output, done.output
