"""Simulating a file of one's own: sizes that are missing, misspelt or too small, and loops that do not end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from _support import command, flat

from rooftop.core import registry, settings
from rooftop.lab import simt

needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
ALONE = """/* rooftop
args = ["n: i32", "x: f32[N]"]
[[launch]]
kernel = "k"
grid = ["G"]
block = [32]
*/
__global__ void k(int n, float* x) {
    for (unsigned r = 5; r >= 0; --r) x[(threadIdx.x + r) % n] += 1;
}
"""
FIXED = ALONE.replace("f32[N]", "f32[64]").replace('"n: i32", ', "").replace('["G"]', "[1]")
FIXED = FIXED[: FIXED.index("__global__")] + "__global__ void k(float* x) { x[threadIdx.x] = 1; }\n"


@needs_compiler
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give the sizes of its dimensions (N missing), as in --shape N=1024"),
        (("--shape", "N=64,Q=3,G=1,n=2"), "--shape names Q; the sizes in the head of mine.cu are G, N, n"),
        (("--shape", "N=64,N=3"), "--shape N=64,N=3: N is given twice"),
        (("--shape", "N=64x3"), "--shape N=64x3: mine.cu names no op, so N is one size, as in --shape N=64"),
        (("--shape", "N=64,G=2"), "give its numbers too (n missing), as in --shape N=64,G=2,n=1"),
        (("--shape", "N=64", "--case", "foo"), "--case foo: mine.cu names no op and so has no cases; its sizes are given by --shape"),
        (("--shape", "N=64", "--blocks", "0"), "--blocks 0: it must be 1 or more"),
        (("--shape", "N=64", "--blocks", "-3"), "--blocks -3: it must be 1 or more"),
        (("--shape", "N=64", "--schedules", "0"), "--schedules 0: it must be 1 or more"),
    ],
)
def test_what_a_file_without_an_op_is_simulated_with(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(ALONE, encoding="utf-8")
    assert command(monkeypatch, "simt", "mine.cu", *words) == 1
    assert says in flat(capsys.readouterr().err)


@pytest.mark.sampled("simulator")
@needs_compiler
def test_a_file_of_fixed_sizes_is_simulated_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(FIXED, encoding="utf-8")
    assert command(monkeypatch, "simt", "mine.cu") == 0
    assert "checked: no fault" in capsys.readouterr().out
    assert command(monkeypatch, "simt", "mine.cu", "--shape", "N=3") == 1
    assert "--shape names N; the sizes in the head of mine.cu are all fixed" in flat(capsys.readouterr().err)


@needs_compiler
def test_a_file_to_simulate_that_is_not_utf8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_bytes(FIXED.encode() + b"// \xe9\n")
    assert command(monkeypatch, "simt", "mine.cu") == 1
    assert f"mine.cu:{FIXED.count(chr(10)) + 1}: not UTF-8" in flat(capsys.readouterr().err)
    with pytest.raises(ValueError, match=r"mine\.cu:\d+: not UTF-8"):
        simt.simulate(Path("mine.cu"), "k", {"x": torch.zeros(64)}, grid=(1,), block=(32,), arguments=[("x", "ptr")])


@needs_compiler
@pytest.mark.parametrize("given", [{"schedules": 0}, {"blocks": 0}, {"blocks": -1}])
def test_less_than_one_run_or_block(given: dict[str, int]) -> None:
    (name, n), *_ = given.items()
    with pytest.raises(ValueError, match=f"{name} is {n}; it must be 1 or more"):
        simt.simulate(FIXED, "k", {"x": torch.zeros(64)}, grid=(1,), block=(32,), arguments=[("x", "ptr")], **given)


@needs_compiler
def test_sizes_that_an_op_cannot_take_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ladder = registry.ladder("softmax_cuda")
    case = next(c for c in registry.op("softmax").cases if c.inputs["dim"] == 1 and c.name in ladder.cases and c.dtype in ladder.dtypes)
    assert command(monkeypatch, "simt", "softmax_cuda/08", "--case", case.id, "--shape", "x=3") == 1
    assert "softmax cannot take x 3, dim=1: an option names a dimension that no input has" in flat(capsys.readouterr().err)
    assert command(monkeypatch, "simt", "sgemm_cuda/02", "--shape", "a=3x4,b=5x6") == 1
    assert "matmul cannot take a 3x4, b 5x6" in flat(capsys.readouterr().err)


@needs_compiler
def test_what_does_not_end_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "1")
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(ALONE, encoding="utf-8")
    ran: list[str] = []
    run = simt.run_launches

    def noted(*args: Any, mode: Any, **options: Any) -> simt.Report:
        ran.append(mode)
        return run(*args, mode=mode, **options)

    monkeypatch.setattr(simt, "run_launches", noted)
    assert command(monkeypatch, "simt", "mine.cu", "--shape", "N=64,G=1,n=64") == 1
    said = flat(capsys.readouterr().out)
    assert ran == ["check"]
    assert "an endless loop?" in said
    assert "not counted: the kernel does not end" in said


# -- an ordinary .cu, without a head ----------------------------------------------------------------------------------

ORDINARY = """#include <iostream>
#include <vector>
#include "own.cuh"
struct Pair { const float* x; int n; };
static std::vector<float> table(3);
template <class T>
__global__ void scale(T by, const T* x, T* y) { y[threadIdx.x] = by * x[threadIdx.x]; }
namespace mine {
__global__ void take(Pair p, double* y, unsigned long long more) {
    if (threadIdx.x < p.n) y[threadIdx.x] = twice(p.x[threadIdx.x]) + more;
}
}
int main(int argc, char** argv) {
    constexpr int n = 32;
    float *x, *y;
    cudaMalloc(&x, n * sizeof(float));
    scale<float><<<1, n>>>(2.0f, x, y);
    std::cout << cudaGetErrorString(cudaDeviceSynchronize()) << "\\n";
    return table.size();
}
"""
OWN = "#pragma once\n#define HD __host__ __device__\nHD inline float twice(float x) { return 2 * x; }\ninline void check(cudaError_t e) { std::exit(e); }\n"


def ordinary(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, text: str = ORDINARY) -> int:
    monkeypatch.chdir(folder)
    Path("any.cu").write_text(text, encoding="utf-8")
    Path("own.cuh").write_text(OWN, encoding="utf-8")
    return command(monkeypatch, "simt", "any.cu", *words)


LAUNCH = ("--grid", "1", "--block", "32")


@pytest.mark.sampled("simulator")
@needs_compiler
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (LAUNCH, "any.cu has 2 kernels; choose one by --kernel: scale<...>(T by, const T* x, T* y); mine::take(Pair p, double* y, unsigned long long more)"),
        (("--kernel", "scale", *LAUNCH), "scale is a template (any.cu:7): give its arguments, as in --kernel 'scale<float>'"),
        (("--kernel", "other", *LAUNCH), "--kernel other: any.cu has no such kernel; it has scale<...>"),
        (("--kernel", "scale<float>", "--block", "32"), "give its launch, as in --grid 4 --block 256 (--grid is missing)"),
        (("--kernel", "scale<float>", "--grid", "0", "--block", "32"), "--grid 0: it is one to three whole numbers of 1 or more, as in --grid 4x2"),
        (("--kernel", "scale<float>", "--grid", "1", "--block", "2000", "--arg", "by=1", "--arg", "x=f32:32", "--arg", "y=f32:32"), "a block of 2000 threads"),
        (("--kernel", "scale<float>", *LAUNCH), "wants more arguments: by, x, y, as in --arg by=1024 --arg x=f32:1024 --arg y=f32:1024"),
        (("--kernel", "scale<float>", *LAUNCH, "--arg", "z=1"), "has no such parameter"),
        (("--kernel", "scale<float>", *LAUNCH, "--arg", "by=a", "--arg", "x=f32:32", "--arg", "y=f32:32"), "--arg by=a: it is a T and takes a number"),
        (("--kernel", "scale<float>", *LAUNCH, "--arg", "by=1", "--arg", "x=f99:32", "--arg", "y=f32:32"), "a pointer takes TYPE:SIZE[xSIZE...][:CONTENTS]"),
        (("--kernel", "scale<float>", *LAUNCH, "--arg", "by=1", "--arg", "x=f32:32:odd", "--arg", "y=f32:32"), "the contents are 'odd'; they may be random"),
        (("--kernel", "scale<float>", *LAUNCH, "--arg", "by=1", "--arg", "x=no.npy", "--arg", "y=f32:32"), "--arg x: no.npy is no file"),
        (("--kernel", "take", *LAUNCH, "--arg", "p=3", "--arg", "y=f64:32", "--arg", "more=1"), "--arg p=3: it is a Pair, which is written in C++: p={...}"),
        (("--kernel", "take", *LAUNCH, "--arg", "p={x, 32}", "--arg", "x=f32:32", "--arg", "y=f64:32", "--arg", "more=-1"), "holds 0 to 18446744073709551615"),
    ],
)
def test_an_ordinary_file_and_what_is_wrong_with_its_launch(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ordinary(tmp_path, monkeypatch, *words) == 1
    said = capsys.readouterr().err
    assert says in flat(said)
    assert len([line for line in said.splitlines() if line.startswith("rooftop: ")]) == 1


@needs_compiler
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int main() { return 0; }\n", "any.cu has no kernel: no __global__ function is defined in it"),
        (ORDINARY.partition("    cudaMalloc")[0], "any.cu:13: the host's code cannot be read: what opens here is not closed by the end of the file"),
    ],
)
def test_a_file_without_kernels_and_one_that_cannot_be_read(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--kernel", "scale<float>", *LAUNCH, "--arg", "by=1", "--arg", "x=f32:32", "--arg", "y=f32:32")
    assert ordinary(tmp_path, monkeypatch, *arguments, text=text) == 1
    assert says in flat(capsys.readouterr().err)


@needs_compiler
@pytest.mark.sampled("simulator")
def test_an_ordinary_file_is_taken_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    np.save(tmp_path / "x.npy", np.arange(30, dtype=np.float32))
    words: tuple[str, ...] = ("--kernel", "take", *LAUNCH, "--arg", "p={x, 30}", "--arg", "x=x.npy", "--arg", "y=f64:32:empty", "--arg", "more=7")
    assert ordinary(tmp_path, monkeypatch, *words) == 0
    assert "checked: no fault" in capsys.readouterr().out
    words = ("--kernel", "scale<double>", *LAUNCH, "--arg", "by=2.5", "--arg", "x=f64:31:range", "--arg", "y=f64:32:empty")
    assert ordinary(tmp_path, monkeypatch, *words) == 1
    said = capsys.readouterr().out
    assert "any.cu:7: out-of-bounds: read of 8 bytes at 0 bytes past the end of x" in flat(said)
    assert said.rstrip().splitlines()[-1].startswith("checked: 1 fault (")


@needs_compiler
def test_what_is_not_simulated_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "__global__ void k(unsigned* y) {\n    y[0] = __vadd4(1u, 2u);\n}\n"
    assert ordinary(tmp_path, monkeypatch, *LAUNCH, "--arg", "y=u32:1", text=text) == 3
    said = flat(capsys.readouterr().out)
    assert "any.cu:2: not-simulated: __vadd4: SIMD within a word" in said
    assert "checked: no fault as far as it came; it came to what is not simulated" in said


@needs_compiler
def test_the_example_of_the_documents_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (settings.CHECKOUT / "docs" / "simulator.md").read_text(encoding="utf-8")
    (example,) = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    source = """__global__ void scale(int n, float by, const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}
int main() { scale<<<4, 256>>>(1000, 2.0f, nullptr, nullptr); }
"""
    (line,) = (line for line in text.splitlines() if line.startswith("rooftop simt any.cu "))
    assert ordinary(tmp_path, monkeypatch, *line.split()[3:], text=source) == 0
    exec(compile(example, "docs/simulator.md", "exec"), {})
    assert "checked: no fault" in capsys.readouterr().out


# -- ordinary files --------------------------------------------------------------------------------------------------------

ORDINARY = """#include <cooperative_groups.h>
#if 0
__global__ void off(float* y) { y[threadIdx.x] = 1; }
#endif
__global__ void wide(float* y) {
    y[0] = cooperative_groups::reduce(cooperative_groups::tiled_partition<64>(cooperative_groups::this_thread_block()), 1.f, cooperative_groups::plus<float>());
}
__global__ void dynamic(float* y) {
    extern __shared__ float held[];
    __shared__ float more[16];
    held[threadIdx.x] = 1, more[threadIdx.x % 16] = 2;
    __syncthreads();
    y[threadIdx.x] = held[threadIdx.x] + more[threadIdx.x % 16];
}
"""


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "more", "says"),
    [
        ("off", (), "the kernel off is not compiled"),
        ("wide", (), "any.cu:6: not-simulated: reduce of a tile of several warps"),
        ("dynamic", ("--shared", "232449"), "dynamic: 232449 bytes of dynamic shared memory; a block can have 0 to 232448"),
        ("dynamic", ("--shared", "-1"), "dynamic: -1 bytes of dynamic shared memory; a block can have 0 to 232448"),
    ],
)
def test_what_an_ordinary_file_cannot_be_simulated_for_is_one_sentence(
    kernel: str, more: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("any.cu").write_text(ORDINARY, encoding="utf-8")
    code = command(monkeypatch, "simt", "any.cu", "--kernel", kernel, "--grid", "1", "--block", "64", "--arg", "y=f32:64:empty", *more)
    done = capsys.readouterr()
    assert code == (3 if "not-simulated" in says else 1)
    assert says in flat(done.out + done.err)


@needs_compiler
@pytest.mark.parametrize(("shared", "fits"), [(232384, True), (232385, False)])
def test_all_of_a_blocks_shared_memory_may_be_used_and_no_byte_more(shared: int, fits: bool) -> None:
    report = simt.simulate(ORDINARY, "dynamic", {"y": torch.zeros(64)}, grid=(1,), block=(64,), arguments=[("y", "ptr")], shared=shared, uninitialised=["y"])
    assert [f.kind for f in report.findings] == ([] if fits else ["out-of-bounds"])
    assert fits or "64 bytes of variables and 232385 dynamic" in str(report.findings[0])
