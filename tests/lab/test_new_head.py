"""`rooftop new head`: the head for somebody's file, matched with an op and tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from _support import command, flat

from rooftop.lab import simt

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
NORM = """#include <cstdio>
#define THREADS 64
template <typename T>
__global__ void rmsnorm(T* out, const T* inp, const T* gamma, int N, int C, float epsilon) {
    extern __shared__ float partial[];
    const T* row = inp + (size_t) blockIdx.x * C;
    float s = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) s += (float) row[c] * (float) row[c];
    partial[threadIdx.x] = s;
    __syncthreads();
    for (int k = blockDim.x / 2; k; k /= 2) { if (threadIdx.x < k) partial[threadIdx.x] += partial[threadIdx.x + k]; __syncthreads(); }
    const float r = rsqrtf(partial[0] / C + epsilon);
    if (blockIdx.x < N) for (int c = threadIdx.x; c < C; c += blockDim.x) out[(size_t) blockIdx.x * C + c] = (T) ((float) row[c] * r * (float) gamma[c]);
}
int main() {
    float *o, *x, *w;
    cudaMalloc(&o, 4096); cudaMalloc(&x, 4096); cudaMalloc(&w, 512);
    rmsnorm<float><<<8, THREADS, THREADS * sizeof(float)>>>(o, x, w, 8, 128, 1e-5f);
    printf("done\\n");
}
"""
PRODUCT = """#include <iostream>
__global__ void mm(const float* A, const float* B, float* C, int M, int N, int K) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    float s = 0;
    if (i < M && j < N) { for (int k = 0; k < K; ++k) s += A[i * K + k] * B[k * N + j]; C[i * N + j] = s; }
}
int main() { std::cout << "x"; }
"""


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("text", "op", "case", "has"),
    [(NORM, "rms_norm", "odd 37x1001",
      ['"y: T[A, B]"', '"x: T[A, B]"', '"weight: T[B]"', '"N: i32 = A"', '"C: i32 = B"', '"epsilon: f32 = eps"', 'grid    = ["A"]', "rmsnorm<{T}>"]),
     (PRODUCT, "matmul", "odd 7x3x5",
      ['"a: T[A, B]"', '"b: T[B, D]"', '"out: T[A, D]"', '"M: i32 = A"', '"N: i32 = D"', '"K: i32 = B"', "ceil(D / 16)", "activation == 'none'"])],
    ids=["rms_norm", "matmul"],
)
def test_a_head_is_matched_by_names_and_tried(
    text: str, op: str, case: str, has: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(text, encoding="utf-8")
    assert command(monkeypatch, "new", "head", "mine.cu", "--op", op) == 0
    said = flat(capsys.readouterr().out)
    assert f"wrote mine_{op}.cu" in said and "right on" in said
    written = Path(f"mine_{op}.cu").read_text(encoding="utf-8")
    assert [h for h in has if h not in written] == [] and "main" not in written and "cstdio" not in written
    assert Path("mine.cu").read_text(encoding="utf-8") == text
    assert command(monkeypatch, "check", f"mine_{op}.cu", "--case", f"{case} f32") == 0
    assert command(monkeypatch, "new", "head", "mine.cu", "--op", op) == 1
    assert "is there already" in flat(capsys.readouterr().err)


def test_a_kernel_that_is_wrong_gets_a_head_and_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] + 1;"
    Path("mine.cu").write_text(f"__global__ void k(const float* x, float* y, int n) {{ {body} }}\n", encoding="utf-8")
    assert command(monkeypatch, "new", "head", "mine.cu", "--op", "square") == 0
    said = flat(capsys.readouterr().out)
    assert "to be mended: no head that was tried is right" in said and "largest error" in said
    for words, says in ((["mine.cu"], "a head is written by rooftop new head my.cu --op softmax"), (["mine.cu", "--op", "nosuch"], "nosuch"),
                        (["gone.cu", "--op", "add"], "gone.cu"), (["mine_square.cu", "--op", "add"], "has a head already")):
        assert command(monkeypatch, "new", "head", *words) == 1
        assert says in flat(capsys.readouterr().err)
    Path("other.cu").write_text("struct P { int a; };\n__global__ void k(const float* x, float* y, P p) {}\n")
    assert command(monkeypatch, "new", "head", "other.cu", "--op", "square") == 1
    assert "P p: a head has numbers and tensors alone" in flat(capsys.readouterr().err)
