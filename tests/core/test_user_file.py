"""A file of one's own: what it may hold, and what is said where it cannot be taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from _support import KERNEL, command, flat

import rooftop
from rooftop.core import registry
from rooftop.core.compile import CompileError
from rooftop.core.head import HeadError
from rooftop.core.implementation import UnsupportedError
from rooftop.core.spec import TARGETS, Device, Meta, Problem
from rooftop.lab import candidates
from rooftop.lab.check import checker, own_op, selection
from rooftop.lab.simt import SimulatedFault


def problem(rows: int = 4, columns: int = 8, device: Device = TARGETS[90]) -> Problem:
    m = Meta((rows, columns, 1), "f32")
    return Problem("softmax", (("x", m), ("y", m)), (("dim", 1),), device)


def test_a_kernel_for_hopper_says_so_on_an_older_card(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("dtypes", "arch = 90\ndtypes"))
    assert registry.user_file(path).supports(problem(device=TARGETS[89])) == "needs sm_90 or later; NVIDIA GeForce RTX 4090 is sm_89"
    assert registry.user_file(path).supports(problem()) is None


def test_a_kernel_that_the_file_does_not_have_is_named_as_the_heads(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace('"k<{T}>"', '"kernel<{T}>"'))
    with pytest.raises(CompileError, match=r"mine\.cu.*kernel<float>") as caught:
        registry.user_file(path).compile(["kernel<float>"], "sm_90a")  # type: ignore[attr-defined]
    assert "is not in the file: identifier \"kernel\" is undefined" in str(caught.value)
    assert "__nv_name_map" not in str(caught.value)
    path.write_text(KERNEL.replace("y[0] = x[0];", "y[0] = z[0];"))  # what is wrong in the file is said before what follows from it
    with pytest.raises(CompileError, match='identifier "z" is undefined') as caught:
        registry.user_file(path).compile(["kernel<float>", "k<float>"], "sm_90a")  # type: ignore[attr-defined]
    assert "__nv_name_map" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no head"),
        (b"__global__ void k() {}", "no head"),
        (KERNEL.replace('op      = "softmax"\n', "").encode(), "names no op"),
        (KERNEL.replace('"softmax"', '"softmx"').encode(), "did you mean 'softmax'"),
        (KERNEL.replace("[256]", "[256").encode(), r"mine\.cu:\d+: the head is not valid TOML"),
        (KERNEL.encode() + b"// \xe9\n", r"mine\.cu:13: not UTF-8"),
        (KERNEL.replace("T[R, C, 1]", "T[R C, 1]", 1).encode(), "'R C' is neither a shape name nor a whole number"),
        (KERNEL.replace('"k<{T}>"', "5").encode(), "kernel must be a text"),
        (KERNEL.replace("block ", "when = 5\nblock ").encode(), "when must be a condition, not 5"),
    ],
)
def test_a_file_whose_head_is_missing_or_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(content)
    assert command(monkeypatch, "check", str(path)) == 1
    assert re.search(says, flat(capsys.readouterr().err))
    with pytest.raises((ValueError, LookupError)):
        rooftop.load(path)


def test_load_takes_a_cu_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*mine\.cu"):
        rooftop.load(tmp_path / "mine.cu")
    with pytest.raises(OSError, match="is a folder; a file is needed"):
        rooftop.load(tmp_path)
    (tmp_path / "mine.cpp").write_text(KERNEL)
    with pytest.raises(registry.RegistryError, match=r"a kernel is a \.cu or a \.py file"):
        rooftop.load(tmp_path / "mine.cpp")
    with pytest.raises(ValueError, match="x is a Tensor on meta; all tensors must be on one GPU, or all on the CPU"):
        rooftop.load("mine.cu", source=KERNEL)(torch.ones(3, 4, device="meta"), dim=1)
    with pytest.raises(TypeError, match="lacks x"):
        rooftop.load("mine.cu", source=KERNEL)(dim=1)


def test_what_was_loaded_says_that_it_has_no_gradient() -> None:
    mine = rooftop.load("mine.cu", source=KERNEL)
    leaf = torch.ones(3, 4, requires_grad=True)
    for x in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(3, 4))):
        with pytest.raises(RuntimeError, match=r"x requires a gradient.*torch\.no_grad\(\), or with \.detach\(\)"):
            mine(x, dim=1)
    with pytest.raises(ValueError, match="on one GPU, or all on the CPU"):
        mine(leaf.detach().to("meta"), dim=1)
    with torch.no_grad(), pytest.raises(ValueError, match="on one GPU, or all on the CPU"):
        mine(leaf.to("meta"), dim=1)


NORM = """/* rooftop
op      = "rms_norm"
dtypes  = ["f32"]
WITHOUT
args    = ["C: i32", "x: T[R, C]", "y: T[R, C]", "eps: f32"]
[[launch]]
kernel  = "mine<{T}>"
grid    = ["R"]
block   = [32]
*/
template <typename T> __global__ void mine(int C, const T* x, T* y, float eps) {
    const T* row = x + blockIdx.x * (long long)C;
    float s = 0;
    for (int i = threadIdx.x; i < C; i += 32) s += row[i] * row[i];
    for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
    for (int i = threadIdx.x; i < C; i += 32) y[blockIdx.x * (long long)C + i] = row[i] * rsqrtf(s / C + eps);
}
"""


def norm(tmp_path: Path, without: str) -> Path:
    path = tmp_path / "mine.cu"
    path.write_text(NORM.replace("WITHOUT", without))
    return path


def test_a_head_says_of_each_optional_tensor_whether_it_is_taken(tmp_path: Path) -> None:
    says = r"does not mention weight and bias, which a call of rms_norm may have.*without = \[\"weight\", \"bias\"\]"
    with pytest.raises(HeadError, match=says):
        registry.user_file(norm(tmp_path, 'without = ["residual"]'))
    with pytest.raises(HeadError, match="without lists wheight; optional tensors of rms_norm are residual, weight, bias"):
        registry.user_file(norm(tmp_path, 'without = ["wheight"]'))
    with pytest.raises(HeadError, match="without lists x, which the kernel takes"):
        registry.user_file(norm(tmp_path, 'without = ["x"]'))


def test_a_kernel_that_leaves_out_optional_tensors_is_judged_on_calls_that_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = norm(tmp_path, 'without = ["residual", "weight", "bias"]')
    op, found = registry.op("rms_norm"), registry.user_file(path)
    reasons = {c.id: found.supports(op.problem(c)) for c in op.cases if c.dtype == "f32" and "edge" in c.tags}
    assert reasons["rows alone f32"] is None and reasons["odd 37x1001 f32"] == "the kernel does not support weight"
    assert reasons["tile 4x1024 f32"] == "the kernel does not support residual and weight"
    assert command(monkeypatch, "check", str(path)) == 0
    assert "skipped" in (text := flat(capsys.readouterr().out)) and "the kernel does not support weight" in text


def test_what_is_no_tensor_is_named() -> None:
    mine = rooftop.load("mine.cu", source=KERNEL)
    with pytest.raises(TypeError, match="x is a float; it must be a tensor"):
        mine(1.0, 1)
    with pytest.raises(TypeError, match="x is a NoneType; it must be a tensor"):
        mine(None, 1)


ROWS = """/* rooftop
op      = "OP"
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "x: T[M, N]", STRIDE"y: T[M, N]"]
[[launch]]
kernel  = "k"
grid    = ["M"]
block   = [32]
*/
__global__ void k(int M, int N, const float* x, PARAMETERfloat* y) {
    for (int c = threadIdx.x; c < N; c += 32) { float v = x[blockIdx.x * PITCH + c]; y[blockIdx.x * (long long) N + c] = VALUE; }
}
"""


def rows(folder: Path, *, strided: bool, op: str = "square", value: str = "v * v") -> Path:
    """A kernel that takes one row a block, with the pitch that it is given or without."""
    words = {"STRIDE": "", "PARAMETER": "", "PITCH": "(long long) N"}
    if strided:
        words = {"STRIDE": '"xs: i64 = stride(x, 0)", ', "PARAMETER": "long long xs, ", "PITCH": "xs"}
    text = ROWS.replace("OP", op).replace("VALUE", value)
    for name, word in words.items():
        text = text.replace(name, word)
    path = folder / f"{'pitched' if strided else 'dense'}.cu"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_head_without_strides_takes_contiguous_tensors_alone(tmp_path: Path) -> None:
    dense, pitched = (rooftop.load(rows(tmp_path, strided=s)) for s in (False, True))
    x = torch.randn(3, 40)
    assert torch.equal(dense(x), x * x) and torch.equal(pitched(x[:, :33]), x[:, :33] ** 2)
    with pytest.raises(UnsupportedError) as caught:
        dense(x[:, :33])
    assert 'x has shape [3, 33] and strides [40, 1]; a head that does not name stride(x, ...) takes it contiguous, with strides [33, 1]: ' in str(caught.value)
    assert 'pass x.contiguous(), or add "i64 = stride(x, 0)" to args' in str(caught.value)
    assert torch.equal(dense(x[:, :33].contiguous()), x[:, :33] ** 2)
    assert torch.equal(dense(x[:1, :33]), x[:1, :33] ** 2)  # the stride of one row is never used


def test_a_kernel_that_takes_the_wrong_strides_is_told_which_there_are(tmp_path: Path) -> None:
    subject = candidates.find([str(rows(tmp_path, strided=True))])[0]
    said = {name: checker.check(subject, subject.op.case(f"{name} f32"), backend="simt") for name in ("rows padded", "expanded", "odd")}
    assert {n: r.status for n, r in said.items()} == {"rows padded": "ok", "expanded": "ok", "odd": "ok"}
    path = tmp_path / "pitched.cu"
    path.write_text(path.read_text(encoding="utf-8").replace("stride(x, 0)", "stride(x, 1) * N"), encoding="utf-8")
    subject = candidates.find([str(path)])[0]
    wrong = checker.check(subject, subject.op.case("rows padded f32"), backend="simt")
    assert wrong.status == "wrong"
    assert "(x has shape [9, 96] and strides [160, 1] (contiguous: [96, 1]); what the kernel needs is written " in wrong.message
    assert 'under [requires], as "stride(x, 0) == 96" (96 by the head\'s names))' in wrong.message


def test_an_address_that_a_vector_cannot_have_is_told_with_what_to_write(tmp_path: Path) -> None:
    path = rows(tmp_path, strided=False, value="v + p.x + p.y")
    path.write_text(path.read_text(encoding="utf-8").replace("float v =", "float2 p = *(const float2*) x; float v ="), encoding="utf-8")
    with pytest.raises(SimulatedFault) as caught:
        rooftop.load(path)(torch.randn(41)[1:].view(2, 20))
    assert "misaligned" in str(caught.value) and 'x of shape [1, 40] starts at a multiple of 4 bytes, not of 16' in str(caught.value)
    assert 'written under [requires], as "aligned(x, 16)"' in str(caught.value)


def test_layouts_are_met_by_a_kernel_without_the_options_of_the_ops_cases(tmp_path: Path) -> None:
    """The op's transposed case may be one of an option that the kernel lacks."""
    path = rows(tmp_path, strided=True, op="rms_norm")
    path.write_text(path.read_text(encoding="utf-8").replace('"y: T[M, N]"]', '"y: T[M, N]"]\nwithout = ["weight", "bias", "residual"]'), encoding="utf-8")
    subject = candidates.find([str(path)])[0]
    takes = [c for c in subject.op.cases if subject.supports(c, TARGETS[90]) is None]
    laid = {i.layout for c in takes for _, i in c.tensors()}
    more = own_op.layouts(subject, TARGETS[90])
    assert {i.layout for c in more for _, i in c.tensors()} | laid >= {"contiguous", "offset", "sliced", "padded", "strided", "transposed", "expanded"}
    chosen, _ = selection.select([subject], selection.Choice("simt", 0, dtype="f32"), "mine")
    assert {c.id for c in more} <= {c.id for _, c in chosen}
    shipped = candidates.find(["rms_norm"])
    assert {c.id for _, c in selection.select(shipped, selection.Choice("simt", 0, dtype="f32"), "mine")[0]} <= {c.id for c in subject.op.cases}
