"""A file without a head against a function of torch: `rooftop check my.cu --like torch.softmax`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rooftop.lab import simt
from rooftop.lab.check import like
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app

needs_simulator = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
SOFTMAX = """
__global__ void softmax(const float* x, float* y, int rows, int columns) {
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float most = x[r * columns], sum = 0;
    for (int c = 1; c < columns; ++c) most = fmaxf(most, x[r * columns + c]);
    for (int c = 0; c < columns; ++c) sum += expf(x[r * columns + c] - most);
    for (int c = 0; c < columns; ++c) y[r * columns + c] = expf(x[r * columns + c] - most) / sum;
}
extern "C" void solve(const float* x, float* y, int rows, int columns) {
    softmax<<<(rows + 31) / 32, 32>>>(x, y, rows, columns);
    cudaDeviceSynchronize();
}
"""
GIVEN = ["--arg", "x=f32:9x40", "--arg", "y=f32:9x40", "--arg", "rows=9", "--arg", "columns=40"]


def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> tuple[int, str]:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(text, encoding="utf-8")
    commands()
    monkeypatch.setattr("sys.argv", ["rooftop", "check", "own.cu", *words])  # what a process of its own is given, where words name Python
    done = CliRunner().invoke(app, ["check", "own.cu", *words])
    return done.exit_code, done.output


@needs_simulator
def test_a_right_one_is_right_and_a_wrong_one_is_told_by_its_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = command(tmp_path, monkeypatch, SOFTMAX, "--like", "torch.softmax", *GIVEN)
    assert (code, said[:6]) == (0, "right:"), said
    assert "solve(x: float32 9x40), y: error" in said.replace("\n", " "), said
    code, said = command(tmp_path, monkeypatch, SOFTMAX, "--like", "torch.softmax", "--shape", "rows=7,columns=33")
    assert code == 0 and "right: solve(x: float32 7x33), y: error" in said.replace("\n", " "), said
    wrong = SOFTMAX.replace("sum += expf(x[r * columns + c] - most)", "sum += expf(x[r * columns + c] - most) * 1.0001f")
    code, said = command(tmp_path, monkeypatch, wrong, "--like", "torch.softmax", *GIVEN)
    assert (code, said[:6]) == (1, "wrong:"), said
    assert "in place of" in said


@needs_simulator
def test_a_file_beside_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.cu").write_bytes(b"// caf\xe9\n__global__ void other() {}\n")
    code, said = command(tmp_path, monkeypatch, SOFTMAX, "--like", "torch.softmax", *GIVEN)
    assert (code, said[:6]) == (0, "right:"), said


@pytest.mark.sampled("slow")
@needs_simulator
def test_one_kernel_of_a_file_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(tmp_path / "own.py").write_text("import torch\n\n\ndef f(a, c):\n    return 2 * a + c\n", encoding="utf-8")
    text = "__global__ void k(const float* a, const float* c, float* out, int n) { int i = threadIdx.x; if (i < n) out[i] = 2 * a[i] + c[i]; }\n"
    given = ["--kernel", "k", "--grid", "1", "--block", "64", *[w for a in ("a=f32:50", "c=f32:50", "out=f32:50", "n=50") for w in ("--arg", a)]]
    code, said = command(tmp_path, monkeypatch, text, "--like", "own.py:f", *given)
    assert code == 0 and "\nright: " in said, said  # after the line that announces own.py
    code, said = command(tmp_path, monkeypatch, text.replace("i < n", "i < n - 1"), "--like", "own.py:f", *given)
    assert code == 1, said
    assert "at [49]" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [("numpy.exp", "it is a function of torch"), ("torch.nowhere", "there is no such function"), ("torch.nn.functional.nowhere", "there is no such function")],
)
def test_a_reference_that_is_none(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        like.reference_of(text)


def test_the_error_allowed_is_that_of_torch_in_the_same_precision() -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).half()
    right = torch.softmax(x.double(), -1).half()
    (one,) = like._judged("k", torch.softmax, "torch.softmax", {"x": x}, {"y": right})
    assert one.right
    off = right.clone()
    off[3, 7] += 0.01
    (one,) = like._judged("k", torch.softmax, "torch.softmax", {"x": x}, {"y": off})
    assert not one.right
    assert one.at == (3, 7)
    (one,) = like._judged("k", torch.softmax, "torch.softmax", {"x": x}, {"y": torch.full_like(right, float("nan"))})
    assert not one.right, "NaN is no number that is near"
    with pytest.raises(ValueError, match=r"y has 8 elements, .* gives 1024"):
        like._judged("k", torch.softmax, "torch.softmax", {"x": x}, {"y": right.reshape(-1)[:8]})


def test_what_a_program_prints_in_a_line_like_ours_is_no_result() -> None:
    forged = "0123 call f\n0123 before x float 1 00000000\n0123 after x float 1 0000803f\n"
    assert like._calls(forged, "another marker") == []
    ((name, before, after, outs),) = like._calls(forged, "0123")
    assert (name, before["x"].tolist(), after["x"].tolist(), outs) == ("f", [0.0], [1.0], {})


@pytest.mark.sampled("slow")
@needs_simulator
def test_shapes_that_nothing_says_are_found_among_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = command(tmp_path, monkeypatch, SOFTMAX, "--like", "torch.softmax")
    assert code == 0 and "right: solve(x: float32 47x39), y: error" in said.replace("\n", " "), said
    wrong = SOFTMAX.replace("sum += expf(x[r * columns + c] - most)", "sum += expf(x[r * columns + c] - most) * 1.001f")
    code, said = command(tmp_path, monkeypatch, wrong, "--like", "torch.softmax")
    assert code == 1 and "wrong: solve(x: float32 47x39), y: error" in said.replace("\n", " "), said
    product = """
__global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, float alpha, float beta) {
    const int i = blockIdx.x, j = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
    c[i * N + j] = alpha * sum + beta * c[i * N + j];
}
extern "C" void solve(const float* a, const float* b, float* c, int M, int N, int K, float alpha, float beta) { gemm<<<M, N>>>(a, b, c, M, N, K, alpha, beta); }
"""
    code, said = command(tmp_path, monkeypatch, product, "--like", "torch.matmul")
    assert code == 0 and "right: solve(a: float32 23x27, b: float32 27x19), c: error" in said.replace("\n", " "), said
    Path("own.py").write_text("def f(a, b, c, alpha, beta):\n    return alpha * a @ b + beta * c\n", encoding="utf-8")
    code, said = command(tmp_path, monkeypatch, product, "--like", "own.py:f", "--arg", "alpha=2", "--arg", "beta=-3")
    assert code == 0 and "c: float32 23x19), c: error" in said.replace("\n", " "), said
    code, said = command(tmp_path, monkeypatch, product.replace("k < K", "k + 1 < K"), "--like", "torch.matmul")
    assert code == 1 and "in place of" in said, said
