"""A kernel of one's own: judged by a function of Python, called on CPU tensors, begun from a skeleton of any op."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from _support import command, flat

import rooftop
from rooftop.core import registry
from rooftop.core.backends.table import BACKENDS
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates
from rooftop.lab.check import checker, contracts, own_op
from rooftop.lab.scaffold import kernel as scaffold_kernel

KERNEL = """/* rooftop
idea    = "y = a x + 1, and the sum of each row"
dtypes  = ["f32", "f16"]
args    = ["R: i32", "C: i32", "a: f32", "x: T[R, C]", "y: T[R, C]", "s: f32[R]"]
[[launch]]
kernel  = "k<{T}>"
grid    = ["R"]
block   = [32]
*/
#include <cuda_fp16.h>
template <typename T> __global__ void k(int R, int C, float a, const T* x, T* y, float* s) {
    float sum = 0;
    for (int i = threadIdx.x; i < C; i += 32) {
        const float v = float(x[blockIdx.x * C + i]);
        y[blockIdx.x * C + i] = T(a * v + 1);
        sum += v;
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x == 0) s[blockIdx.x] = sum;
}
"""
REFERENCE = """
import torch

def mine(x, a=2.0):
    return a * x + 1, x.sum(-1).to(torch.float64 if x.dtype == torch.float64 else torch.float32)

def off(x, a=2.0):
    return a * x + 1.01, x.sum(-1)

def strange(z):
    return z
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.cu").write_text(KERNEL, encoding="utf-8")
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sampled("slow")
def test_a_file_of_no_op_is_judged_by_a_function(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", "mine.cu", "--reference", "ref.py:mine", "--shape", "R=3,C=70", "--dtype", "f16") == 0
    assert command(monkeypatch, "check", "mine.cu", "--reference", "ref.py", "--dtype", "f32", "--case", "odd") == 0  # the function of the file's name
    capsys.readouterr()
    assert command(monkeypatch, "check", "mine.cu", "--reference", "ref.py:off", "--shape", "R=2,C=5", "--dtype", "f32") == 1
    assert "y: largest error" in flat(capsys.readouterr().out)


SCALE = """/* rooftop
args   = ["N: i32", "K: i32", "x: f32[N, K]", "y: f32[N, K]", "s: f32[N]"]
[[launch]]
kernel = "k"
grid   = ["N"]
block  = [64]
*/
__global__ void k(int N, int K, const float* x, float* y, float* s) {{
    float sum = {start};
    for (int i = threadIdx.x; i < K; i += 64) {{
        const float v = x[blockIdx.x * K + i];
        y[blockIdx.x * K + i] = {value};
    }}
    if (threadIdx.x == 0) {{ for (int i = 0; i < K; ++i) sum += x[blockIdx.x * K + i]; s[blockIdx.x] = sum; }}
}}
"""
TWICE = "def twice(x):\n    return x * 2, x.sum(-1)\n"


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("value", "start", "caught"),
    [
        ("v * 2", "0", set()),
        ("v != v ? 0 : v * 2", "0", {"NaN in x"}),
        ("fminf(v * 2, 3e38f)", "0", {"NaN in x", "an infinity in x"}),
        ("v < -1e38f ? -1e38f : v * 2", "0", {"a negative infinity in x"}),
        ("fabsf(v) > 1e30f ? 0 : v * 2", "0", {"an infinity in x", "a negative infinity in x", "vast numbers"}),
        ("fabsf(v) < 1e-38f ? 0 : v * 2", "0", {"denormals"}),
        ("v * 2", "K == 0 ? 1 : 0", {"without K"}),
        ("i % 4 ? v * 2 : 2 * __ldg(reinterpret_cast<const float4*>(x + blockIdx.x * K) + i / 4).x", "0", {"at odd addresses"}),
    ],
)
def test_an_own_reference_judges_by_what_an_op_is_judged_by(value: str, start: str, caught: set[str], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(SCALE.format(value=value, start=start), encoding="utf-8")
    (tmp_path / "ref.py").write_text(TWICE, encoding="utf-8")
    subject = own_op.subject(tmp_path / "k.cu", f"{tmp_path}/ref.py:twice", [{"N": 2, "K": 68}])
    found = {c.name.removeprefix("2x68").strip(): checker.check(subject, c, backend="simt", seed=5) for c in subject.op.cases}
    assert len(found) == 10 and not {name for name, r in found.items() if r.status == "error"}
    assert {name for name, r in found.items() if r.status == "wrong"} == caught


def test_strides_are_drawn_where_the_head_speaks_of_them(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text("def twice(x):\n    return x * 2\n", encoding="utf-8")
    text = SCALE.format(value="x[blockIdx.x * S + i] * 2", start="0").replace('"s: f32[N]"', '"S: i32 = stride(x, 0)"').replace("float* s)", "int S)")
    text = text.partition("    if (threadIdx.x == 0)")[0] + "}\n"
    seen = {}
    for name, required in (("some", '"stride(x, 1) == 1" = "rows"'), ("every", "")):
        (tmp_path / f"{name}.cu").write_text(text.replace("[[launch]]", f"[requires]\n{required}\n[[launch]]"), encoding="utf-8")
        subject = own_op.subject(tmp_path / f"{name}.cu", f"{tmp_path}/ref.py:twice", [{"N": 3, "K": 20}])
        strided = [c for c in subject.op.cases if c.inputs["x"].layout in ("sliced", "strided", "transposed")]
        seen[name] = {c.name.removeprefix("3x20 "): checker.check(subject, c, backend="simt").status for c in strided}
    assert seen["some"] == {"rows apart": "ok", "every second element": "skipped", "transposed": "skipped"}
    assert seen["every"] == {"rows apart": "ok", "every second element": "wrong", "transposed": "wrong"}


def test_a_case_that_the_reference_has_no_result_for_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(SCALE.format(value="v", start="0"), encoding="utf-8")
    (tmp_path / "ref.py").write_text("def largest(x):\n    return x, x.max(-1).values\n", encoding="utf-8")
    names = [c.name for c in own_op.subject(tmp_path / "k.cu", f"{tmp_path}/ref.py:largest", [{"N": 2, "K": 68}]).op.cases]
    assert "2x68 without N" in names and "2x68 without K" not in names


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mine.cu"], "names no op .* rooftop check mine.cu --reference my.py:mine"),
        (["mine.cu", "--reference", "ref.py:min"], "has no function 'min'; did you mean 'mine'"),
        (["mine.cu", "--reference", "gone.py:mine"], "gone.py is no file"),
        (["mine.cu", "--reference", "ref.py:strange"], r"z is no tensor of the head's args \(x, y, s\)"),
        (["mine.cu", "--reference", "ref.py:mine", "--shape", "R=3"], "the size C is missing"),
        (["mine.cu", "--reference", "ref.py:mine", "--shape", "R=3,C=4,Z=5"], "--shape Z=5: the head's inputs have the sizes R, C"),
        (["mine.cu", "--reference", "ref.py:mine", "--shape", "R=x"], "it is written N=1000,M=3"),
        (["add", "--reference", "ref.py:mine"], "--reference judges one .cu file"),
        (["mine.cu", "add", "--reference", "ref.py:mine"], "2 things are named"),
        (["add", "--shape", "N=3"], "--shape goes with --reference"),
    ],
)
def test_what_does_not_fit_together_is_said(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert command(monkeypatch, "check", *words) == 1
    assert pytest.importorskip("re").search(says, flat(capsys.readouterr().err))


def test_a_function_that_writes_into_its_parameter_is_a_kernel_in_place(files: Path) -> None:
    (files / "twice.cu").write_text(
        '/* rooftop\nargs = ["N: i64", "x: f32[N]"]\n[[launch]]\nkernel = "twice"\ngrid = ["ceil(N / 64)"]\nblock = [64]\n*/\n'
        "__global__ void twice(long long n, float* x) { const long long i = blockIdx.x * 64 + threadIdx.x; if (i < n) x[i] = 2 * x[i]; }\n",
        encoding="utf-8",
    )
    (files / "twice.py").write_text("def twice(x):\n    x.mul_(2)\n", encoding="utf-8")
    subject = own_op.subject(files / "twice.cu", "twice.py")
    assert subject.op.mutates == ("x",)
    assert checker.check(subject, subject.op.case("odd"), backend="simt").status == "ok"


SOFTMAX = """/* rooftop
op      = "softmax"
dtypes  = ["f32"]
args    = ["C: i32", "x: T[R, C, 1]", "y: T[R, C, 1]"]
[requires]
"stride(x, 1) == 1 and stride(x, 0) == C" = "contiguous"
[[launch]]
kernel  = "k"
grid    = ["R"]
block   = [32]
*/
__global__ void k(int C, const float* x, float* y) {
    float sum = 0;
    for (int i = 0; i < C; ++i) sum += expf(x[blockIdx.x * C + i]);
    for (int i = threadIdx.x; i < C; i += 32) y[blockIdx.x * C + i] = expf(x[blockIdx.x * C + i]) / sum;
    FAULT
}
"""


def test_a_loaded_kernel_takes_cpu_tensors_and_the_defaults_of_the_public_function(tmp_path: Path) -> None:
    from rooftop.lab.simt import SimulatedFault

    k = rooftop.load(tmp_path / "k.cu", source=SOFTMAX.replace("FAULT", ""))
    x = torch.randn(3, 40)
    torch.testing.assert_close(k(x), rooftop.softmax(x))
    torch.testing.assert_close(k(x, dim=-1), rooftop.softmax(x))
    with pytest.raises(ValueError, match="k cannot take this input"):
        k(x.half())
    wrong = rooftop.load(tmp_path / "w.cu", source=SOFTMAX.replace("FAULT", "if (C > 3) y[-1] = 0;"))
    with pytest.raises(SimulatedFault, match=r"w\.cu:\d+: out-of-bounds"):
        wrong(x)


def test_a_contract_without_kernel_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    op = registry.op("square")
    assert [wrong for _, wrong in contracts.judged(op)] == [None] * len(list(contracts.judged(op)))
    monkeypatch.setitem(op.wrong, "not wrong at all", op.reference)
    broken = {rule: wrong for rule, wrong in contracts.judged(op) if wrong}
    assert broken == {"wrong: not wrong at all": "square: not wrong at all passes every case"}


@pytest.mark.parametrize("name", ["matmul", "rms_norm", "append_kv", "cross_entropy_bwd", "topk"])
@pytest.mark.parametrize("kind", ["triton", "cuda"])
def test_a_skeleton_of_any_op_runs_and_is_judged(tmp_path: Path, name: str, kind: str) -> None:
    op = registry.op(name)
    path = tmp_path / f"{name}__{kind}{'.cu' if kind == 'cuda' else '.py'}"
    path.write_text(getattr(scaffold_kernel, kind)(path.stem, op), encoding="utf-8")
    found = candidates.Subject(path.stem, op, registry._made(BACKENDS[kind], path, name, path.stem, 0, registry.HOUSE))
    taken = [c for c in contracts.small(op) if found.supports(c, TARGETS[90]) is None and not op.idle(op.problem(c))]
    assert len(taken) > 20
    statuses = [checker.check(found, c, backend="simt" if kind == "cuda" else "interpreter").status for c in taken[-1:]]
    assert statuses == ["wrong"]


def test_a_file_without_an_op_is_inspected(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Registers, spills and occupancy need no op: sizes and numbers are 1024 and 1 where `--shape` says nothing."""
    assert command(monkeypatch, "inspect", "mine.cu", "--arch", "90", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["kernel"] == "k<float>" and row["registers"] > 0 and row["spills"] == 0
    assert command(monkeypatch, "inspect", "mine.cu", "add__triton", "--arch", "90", "--shape", "R=3,a=2", "--json") == 0
    assert [r["subject"] for r in json.loads(capsys.readouterr().out)] == ["mine", "add__triton"]
    assert command(monkeypatch, "inspect", "mine.cu", "--arch", "90", "--sass") == 0
    assert "LDG" in capsys.readouterr().out
    for words, says in (
        (("mine.cu", "--shape", "K=3"), "--shape K: the head has the sizes R, C, a"),
        (("mine.cu", "--shape", "R"), "'R' has no size"),
        (("add__triton", "--shape", "R=3"), "--shape is for a .cu whose head names no op"),
        (("absent.cu",), "no file absent.cu"),
    ):
        assert command(monkeypatch, "inspect", *words) == 1
        assert says in flat(capsys.readouterr().err)


@pytest.mark.sampled("slow")
def test_a_file_without_an_op_is_placed_as_one_of_the_ladder_s(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (registry.HOUSE.ladders / "softmax_cuda" / "03_online.cu").read_text(encoding="utf-8")
    assert "\nop " not in text.partition("*/")[0]
    (files / "own.cu").write_text(text, encoding="utf-8")
    assert command(monkeypatch, "place", "own.cu", "--ladder", "softmax_cuda", "--json") == 0
    assert "softmax_cuda/03_online" in json.loads(capsys.readouterr().out)["nearest"]
    assert command(monkeypatch, "place", "mine.cu", "--ladder", "sgemm_cuda") == 1
    assert 'write without = ["c"]' in flat(capsys.readouterr().err), "what is missing is written as it is to be added"
