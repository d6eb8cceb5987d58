"""`rooftop judge`: what is recognised, what is right, the score, and wrong input in one line."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from _support import command, flat

from rooftop.core.spec import Input
from rooftop.lab import simt
from rooftop.lab.judge import counts, cuda, forms, judging, python, score, sizes, tasks
from rooftop.lab.judge.verdict import Verdict

needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
SOFTMAX = """
#include <cuda_runtime.h>
__global__ void rows(const float* x, float* y, int n) {
    __shared__ float s[256];
    const float* in = x + (size_t)blockIdx.x * n;
    float m = -INFINITY, t = 0;
    for (int i = threadIdx.x; i < n; i += 256) m = fmaxf(m, in[i]);
    s[threadIdx.x] = m; __syncthreads();
    for (int d = 128; d; d /= 2) { if (threadIdx.x < d) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + d]); __syncthreads(); }
    m = s[0]; __syncthreads();
    for (int i = threadIdx.x; i < n; i += 256) t += expf(in[i] - m);
    s[threadIdx.x] = t; __syncthreads();
    for (int d = 128; d; d /= 2) { if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; __syncthreads(); }
    for (int i = threadIdx.x; i < n; i += 256) y[(size_t)blockIdx.x * n + i] = expf(in[i] - m) / s[0];
}
extern "C" void solve(const float* input, float* output, int M, int N) {
    rows<<<M, 256>>>(input, output, N);
    cudaDeviceSynchronize();
}
"""
TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + r * n + i, v / tl.sum(v, 0), mask=i < n)

def softmax(x):
    y = torch.empty_like(x)
    kernel[(x.numel() // x.shape[-1],)](x, y, x.shape[-1], triton.next_power_of_2(x.shape[-1]))
    return y
"""
MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.layer = torch.nn.Linear(wide, 8)
    def forward(self, x):
        return torch.relu(self.layer(x))
rows, wide = 64, 4096
def get_inputs():
    return [torch.randn(rows, wide)]
def get_init_inputs():
    return [wide]
"""
NEW = (
    MODEL.replace("Model(", "ModelNew(")
    .replace("torch.relu(self.layer(x))", "self.layer(x).clamp(min=0)")
    .replace("super().__init__()", "super().__init__()")
)


def _write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


# -- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "form", "called"),
    [
        ("a.cu", '/* rooftop\nop = "softmax"\n*/\n__global__ void k() {}\n', "head", ""),
        ("b.cu", SOFTMAX, "solve", "solve"),
        ("c.py", TRITON, "function", "softmax"),
        ("d.py", NEW, "model", "ModelNew"),
        ("e.py", "def supports(p): ...\ndef launches(p, config): ...\n", "module", "e"),
        (
            "f.py", "from torch.utils.cpp_extension import load_inline\nm = load_inline('m', '', '__global__ void k() {}')\n",
            "load_inline", "",
        ),
    ],
)
def test_a_form_is_recognised_by_its_text(tmp_path: Path, name: str, text: str, form: str, called: str) -> None:
    found = forms.recognise(_write(tmp_path, name, text), "softmax")
    assert (found.form, found.name) == (form, called) and len(found.digest) == 64
    assert found.form != "function" or found.language == "triton"


BAD = {
    "empty.cu": (b"", "is empty"),
    "binary.py": (b"\x7fELF\0\0", "is binary"),
    "large.cu": (b"//" + b"x" * (10 << 20), "has 10,485,762 bytes; a submission has at most"),
    "latin.py": ("def f(x):\n    return x  # \xe9\n".encode("latin-1"), r"is not UTF-8 \(byte 26\)"),
    "text.txt": (b"hello", "is no submission"),
    "plain.cu": (
        b"__global__ void k() {}\nvoid run(float* a) {}\n", r'neither a head nor extern "C" void solve\(\.\.\.\); its host functions: run',
    ),
    "sizes.cu": (b'__global__ void k() {}\nextern "C" void solve(int n) {}\n', "has another signature"),
    "struct.cu": (
        b'struct S { int n; };\n__global__ void k() {}\nextern "C" void solve(float* a, S s) { k<<<1, 1>>>(); }\n',
        "solve takes S s; pointers and numbers",
    ),
    "host.cu": (b'extern "C" void solve(float* a, int n) {}\n', "no __global__ kernel"),
    "syntax.py": (b"def f(:\n", r"syntax\.py:1 is not Python"),
    "two.py": (b"def f(x): return x\ndef g(x): return x\n", "has 2 functions; name one"),
    "none.py": (b"x = 1\n", "no function of tensors and no class ModelNew"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_submission_is_one_line_and_nothing_runs(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, says = BAD[name]
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(python, "run", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(ValueError, match=says) as error:
        judging.judge(str(tmp_path / name), "add", target="cpu")
    assert len(str(error.value).splitlines()) == 1


def test_wrong_options_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_BOARD", str(tmp_path / "board.sqlite"))
    square = _write(tmp_path, "k.py", "def square(x):\n    return x * x\n")
    for words, code, says in (
        ([square, "--op", "sofmax"], 1, "softmax"), ([square], 1, "--op NAME or by --reference"),
        ([square, "--op", "square", "--target", "h200"], 3, "no GPU here"),
        ([square, "--op", "square", "--reference", "r.py"], 1, "not both"), ([square, "--reference", "nothing.py"], 1, "no such file"),
        ([square, "--op", "square", "--target", "h2000"], 1, "h2000"), ([str(tmp_path / "no.cu"), "--op", "add"], 1, "there is no file"),
        ([square, "--op", "adamw_8bit"], 1, "plain tensors"),
    ):
        ended = command(monkeypatch, "judge", *words)
        said = capsys.readouterr().err.strip()
        assert ended == code and says in flat(said) and len(said.splitlines()) == 1, (words, ended, said)
    assert not (tmp_path / "board.sqlite").exists(), "what was not judged is no entry"


# -- verdicts --------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.sampled("exploits")
def test_a_solve_is_judged_scored_and_placed(tmp_path: Path) -> None:
    found = judging.judge(_write(tmp_path, "mine.cu", SOFTMAX), "softmax", target="cpu")
    assert found.right and found.trials >= 6 and found.place == "simulator" and "no file, network" in found.isolation
    assert found.basis == "counts" and found.score is not None and 0 < found.score < 1 and found.cost
    assert sum(cycles for _, cycles in found.lines) == pytest.approx(found.cost, rel=0.01) and {n for n, _ in found.lines} <= set(range(4, 16))
    assert Verdict.of_json(json.loads(json.dumps(found.to_json()))) == found
    slower, faster = found.between
    assert slower.startswith("softmax_cuda/") and faster.startswith("softmax_cuda/") and found.lacking.startswith(f"{faster}: ")
    assert "% of its cycles" in found.bound
    assert json.loads(json.dumps(found.to_json()))["means"]


@needs_compiler
@pytest.mark.sampled("exploits")
@pytest.mark.parametrize("order", ["int M, int N, int K", "int N, int K, int M"])
def test_sizes_of_a_product_in_any_order(tmp_path: Path, order: str) -> None:
    text = f"""__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {{
    const int i = blockIdx.x, j = threadIdx.x;
    if (j >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}}
extern "C" void solve(const float* A, const float* B, float* C, {order}) {{ product<<<M, (N + 31) / 32 * 32>>>(A, B, C, M, N, K); }}"""
    task = tasks.OpTask("matmul")
    outcome, made, rule = cuda.of_solve(forms.recognise(_write(tmp_path, "product.cu", text)), task)
    base = task.plain("f32", 2)[0]
    square = replace(base, name="square", inputs={n: Input((64, 64), "f32") if isinstance(v, Input) else v for n, v in base.inputs.items()})
    assert outcome.kind == "right" and sizes.numbers_by(made.numbers, task.group(square)[0], rule) == (64, 64, 64)


@needs_compiler
@pytest.mark.sampled("exploits")
def test_sizes_that_a_solve_takes_are_found_by_trying(tmp_path: Path) -> None:
    text = SOFTMAX.replace("int M, int N", "int N").replace("rows<<<M, 256>>>", "rows<<<1, 256>>>")
    one = forms.recognise(_write(tmp_path, "one.cu", text))
    assert cuda.of_solve(one, tasks.OpTask("softmax"))[0].kind == "right", "a row alone"
    wrong = forms.recognise(_write(tmp_path, "wrong.cu", text.replace("/ s[0]", "/ (s[0] + 1e-3f)")))
    outcome = cuda.of_solve(wrong, tasks.OpTask("softmax"))[0]
    assert outcome.kind == "wrong" and "is allowed" in outcome.said and outcome.said.startswith("hidden ")


@needs_compiler
@pytest.mark.sampled("exploits")
def test_a_number_that_a_vector_alone_leaves_open_is_decided_by_a_matrix(tmp_path: Path) -> None:
    text = """__global__ void k(const float* x, float* y, int n) { int i = blockIdx.x * 64 + threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }
extern "C" void solve(const float* x, float* y, int N) { k<<<(N + 63) / 64, 64>>>(x, y, N); }"""
    task = tasks.OpTask("square")
    outcome, made, rule = cuda.of_solve(forms.recognise(_write(tmp_path, "square.cu", text)), task)
    matrix = replace(task.plain("f32")[0], name="matrix", inputs={"x": Input((64, 64), "f32")})
    assert outcome.kind == "right" and sizes.numbers_by(made.numbers, task.group(matrix)[0], rule) == (64 * 64,)


@pytest.mark.sampled("exploits")
def test_a_triton_function_is_judged_apart_and_scored(tmp_path: Path) -> None:
    found = judging.judge(_write(tmp_path, "mine.py", TRITON), "softmax", target="cpu")
    assert found.right and found.trials == 9 and found.place == "interpreter"
    assert found.isolation in ("kept from files and network", "not isolated: a plain process")
    assert found.score is not None and found.basis == "counts" and "bytes of its lanes" in " ".join(found.notes)


@pytest.mark.sampled("exploits")
def test_a_model_of_kernelbench_is_judged_by_its_reference(tmp_path: Path) -> None:
    problem = _write(tmp_path, "problem.py", MODEL)
    found = judging.judge(_write(tmp_path, "new.py", NEW), reference=problem, target="cpu")
    assert found.right and found.trials == 9 and found.op == "problem" and found.score is None
    found = judging.judge(_write(tmp_path, "bad.py", NEW.replace(".clamp(min=0)", ".clamp(min=-1)")), reference=problem, target="cpu")
    assert found.kind == "wrong" and "wide=" in found.said, "sizes are made smaller, and said"


@pytest.mark.sampled("exploits")
def test_a_reference_that_raises_is_named(tmp_path: Path) -> None:
    problem = _write(tmp_path, "problem.py", MODEL.replace("torch.relu", "torch.nothing"))
    with pytest.raises(Exception, match="the reference raises AttributeError"):
        judging.judge(_write(tmp_path, "new.py", NEW), reference=problem, target="cpu")


def test_a_submission_in_python_is_kept_from_files_or_the_verdict_says_so(tmp_path: Path) -> None:
    from rooftop.core import sandbox

    reads = "from pathlib import Path\ndef square(x):\n    Path('/etc/hostname').read_text()\n    return x * x\n"
    found = judging.judge(_write(tmp_path, "reads.py", reads), "square", target="cpu")
    if sandbox.landlock_version():
        assert (found.kind, found.isolation) == ("denied", "kept from files and network") and "reads.py:3" in found.said
    else:
        assert found.isolation.startswith("not isolated")


def test_hidden_calls_differ_each_time_and_a_kept_result_shows() -> None:
    task = tasks.OpTask("softmax")
    first, second = (next(iter(task.groups(None, 1))) for _ in range(2))
    assert [c.name for c in first] != [c.name for c in second] or not first[0].tensors["x"].equal(second[0].tensors["x"])
    a, b, swapped = (c.tensors["x"] for c in first)
    assert (
        a.shape == b.shape == swapped.shape
        and int((a != swapped).sum()) == 2
        and math.isclose(float(a.double().sum()), float(swapped.double().sum()))
    )
    right = a.softmax(-1)
    assert first[0].wrong({"y": right}) == "" and first[1].wrong({"y": right}) and first[2].wrong({"y": right})
    assert python.wrongly(first[1], {"y": right}, first[:1]) == "replay" and python.wrongly(first[1], {"y": b}, first[:1]) == "wrong"


REDUCE = """
template <int B> __global__ void sum(const float* x, float* y, int n, float by) {
    float s = 0;
    for (int i = blockIdx.x * B + threadIdx.x; i < n; i += gridDim.x * B) s += x[i];
    atomicAdd(y, s * by);
}
extern "C" void solve(const float* input, float* output, int N) {
    float* own;
    cudaMemset(output, 0, 4);
    cudaMalloc(&own, 128);
    cudaMemsetAsync(own + 8, 1, 64);
    for (int i = 0; i < 2; ++i) sum<256><<<32, 256>>>(input, output, N, 0.1f);
    sum<128><<<dim3(4, 2), 128, 64>>>(input + 16, own, N / 2, -1.0f / 3);
    cudaFree(own);
}
"""


@needs_compiler
@pytest.mark.sampled("exploits")
def test_what_a_solve_launches_is_recorded_whole_and_compiles_for_a_card(tmp_path: Path) -> None:
    from rooftop.lab.judge.timed import Fill, NotReplayedError, compiled, recorded

    made = cuda.solve_of(forms.recognise(_write(tmp_path, "reduce.cu", REDUCE)))
    steps, scratch = recorded(made, {"input": 1 << 30, "output": 4}, [1 << 28])
    one, two = (struct.unpack("f", struct.pack("f", v))[0] for v in (0.1, -1 / 3))
    assert scratch == {"scratch0": 128} and steps[:2] == [Fill("output", 0, 4, 0), Fill("scratch0", 32, 64, 1)]
    first, again, last = steps[2:]
    assert first == again and first.kernel == "sum<256>" and (first.grid, first.block, first.shared) == ((32, 1, 1), (256, 1, 1), 0)
    assert list(first.args.values()) == ["input", "output", 1 << 28, one] and first.types == ("ptr", "ptr", "i32", "f32")
    assert list(last.args.values()) == ["input+64", "scratch0", 1 << 27, two] and (last.grid, last.shared) == ((4, 2, 1), 64)
    assert set(compiled(made, steps, "sm_90a").names) == {"sum<256>", "sum<128>"}
    copies = REDUCE.replace("cudaFree(own);", "cudaMemcpy(output, own, 4, cudaMemcpyDeviceToDevice); cudaFree(own);")
    with pytest.raises(NotReplayedError, match="it copies 4 bytes between its launches"):
        recorded(cuda.solve_of(forms.recognise(_write(tmp_path, "copies.cu", copies))), {"input": 64, "output": 4}, [16])


# -- the score -------------------------------------------------------------------------------------------------------


def test_the_score_is_piecewise_linear_in_log_time() -> None:
    assert [score.score(t, 16.0, 4.0, 1.0) for t in (16.0, 8.0, 4.0, 2.0, 1.0)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert (score.score(40.0, 16.0, 4.0, 1.0), score.score(0.5, 16.0, 4.0, 1.0)) == (0.0, 1.0)
    for peer in (None, 1.02, 1.03, 0.9, 16.0, 20.0):  # no middle: near the roof, or slower than the first rung
        assert score.score(4.0, 16.0, peer, 1.0) == pytest.approx(0.5), peer
    assert score.score(4.0, 16.0, 1.04, 1.0) == pytest.approx(0.5 * math.log(16 / 4) / math.log(16 / 1.04))
    times = [score.score(1 + i / 10, 16.0, 3.0, 1.0) for i in range(160)]
    assert times == sorted(times, reverse=True)
    for given in ((0.0, 16.0, 4.0, 1.0), (math.nan, 16.0, None, 1.0), (1.0, 1.0, None, 1.0), (1.0, 16.0, -1.0, 1.0)):
        with pytest.raises(ValueError, match="positive times"):
            score.score(*given)


def test_a_place_is_between_two_rungs() -> None:
    scale = score.Scale(
        "softmax_cuda", "c", (("softmax_cuda/01_naive", 8.0), ("softmax_cuda/02_shared_reduction", 4.0), ("softmax_cuda/03_online", 5.0)),
        1.0,
    )
    assert scale.between(9.0) == ("", "softmax_cuda/01_naive") and scale.between(4.5) == (
        "softmax_cuda/03_online", "softmax_cuda/02_shared_reduction",
    )
    assert scale.between(2.0) == ("softmax_cuda/02_shared_reduction", "") and scale.lacking(2.0) == ""
    assert scale.lacking(9.0).startswith("softmax_cuda/01_naive: ")


@needs_compiler
@pytest.mark.parametrize("name", counts.shipped())
def test_the_shipped_counts_are_those_of_the_rungs(name: str) -> None:
    """Of each ladder what is kept has the rungs of the tree."""
    from rooftop.core import registry

    kept = counts.shipped()[name]
    assert kept["rungs"].keys() <= {r.name for r in registry.ladder(name).rungs} and kept["op"] == registry.ladder(name).op
    case = counts.case_of(kept)
    assert case.id == kept["case"] and counts.floor(kept["op"], case) > 0


@needs_compiler
@pytest.mark.sampled("counters", "softmax_cuda/04_warp_shuffle")
def test_a_rung_counted_again_has_its_shipped_counts() -> None:
    from rooftop.core import registry
    from rooftop.lab import candidates

    kept = counts.shipped()["softmax_cuda"]
    rung = next(s for s in candidates.rungs(registry.ladder("softmax_cuda")) if s.name == "softmax_cuda/04_warp_shuffle")
    found = counts.of_subject(rung, counts.case_of(kept))[0]
    assert list(vars(found).values()) == kept["rungs"][rung.name], "python scripts/count_rungs.py softmax_cuda"
