"""Triton kernels that nothing launches, and wrappers that assert shapes: arguments from their own code and names."""

from __future__ import annotations

from pathlib import Path

import pytest
from _support import COPIED as COPY
from _support import TRITON as HEAD
from _support import command

from rooftop.lab.inspect import triton_file
from rooftop.lab.interpret.host import Ran, Watch

SOFTMAX = f"""{HEAD}
@triton.jit
def rows(out, inp, out_row_stride, in_row_stride, n_cols, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    v = tl.load(inp + tl.program_id(0) * in_row_stride + c, mask=c < n_cols, other=-float("inf"))
    tl.store(out + tl.program_id(0) * out_row_stride + c, tl.exp(v - tl.max(v, axis=0)), mask=c < n_cols)
"""
PRODUCT = f"""{HEAD}
@triton.jit
def part(a, m, k, stride_am, stride_ak, M, K):
    return tl.load(a + m[:, None] * stride_am + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)

@triton.autotune([triton.Config({{"BM": 16, "BN": b}}, num_warps=4) for b in (16, 32)], key=["M"])
@triton.jit
def product(a_ptr, b_ptr, c_ptr, bias, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BM: tl.constexpr, BN: tl.constexpr,
            BK: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr):
    pid, across = tl.program_id(0), tl.cdiv(N, BN)
    m, n = pid // across * BM + tl.arange(0, BM), pid % across * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        k = at + tl.arange(0, BK)
        acc += tl.dot(part(a_ptr, m, k, stride_am, stride_ak, M, K), part(b_ptr, k, n, stride_bk, stride_bn, K, N))
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=n < N)[None, :]
    if ACTIVATION == "relu":
        acc = tl.maximum(acc, 0)
    tl.store(c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn, acc, mask=(m[:, None] < M) & (n[None, :] < N))
"""
GATHER = f"""{HEAD}
@triton.jit
def gathered(x_ptr, where, y_ptr, n_rows, scale, D: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, D)
    if row >= n_rows:
        return
    tl.store(y_ptr + row * D + at, tl.load(x_ptr + tl.load(where + row) * D + at) * scale)
"""


def launched(folder: Path, text: str, word: str = "", **given: object) -> Ran:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return triton_file.launches(folder / "mine.py", word, given, (), Watch(seconds=2.0))


def test_rows_get_a_stride_and_a_block_that_covers_them(tmp_path: Path) -> None:
    found = launched(tmp_path, SOFTMAX)
    (launch,) = found.launches
    assert found.assumed and found.findings == () and launch.grid == (8,)
    assert {n: launch.values[n] for n in ("out_row_stride", "in_row_stride", "n_cols", "BLOCK")} == {
        "out_row_stride": 1000, "in_row_stride": 1000, "n_cols": 1000, "BLOCK": 1024}
    (given,) = launched(tmp_path, SOFTMAX, "rows", n_cols=7).launches
    assert given.values["n_cols"] == 7


def test_strides_are_those_of_sizes_by_their_letters_and_configs_cover_them(tmp_path: Path) -> None:
    found = launched(tmp_path, PRODUCT)
    assert found.findings == () and {x.grid for x in found.launches} == {(9,), (6,)}, "the function that it calls is not launched"
    values = found.launches[0].values
    assert [values[n] for n in ("M", "N", "K")] == [48, 40, 56] and values["HAS_BIAS"] is True and values["ACTIVATION"] == "relu"
    assert [values[f"stride_{n}"] for n in ("am", "ak", "bk", "bn", "cm", "cn")] == [56, 1, 40, 1, 40, 1]
    assert values["a_ptr"].numel() == 48 * 56 and all(x.programs == x.whole for x in found.launches)


def test_what_addresses_are_made_of_holds_indices(tmp_path: Path) -> None:
    (launch,) = launched(tmp_path, GATHER).launches
    assert str(launch.values["where"].dtype) == "torch.int64" and launch.values["scale"] == 0.5 and launch.grid == (48,)


@pytest.mark.parametrize(
    ("text", "says"),
    [(COPY.format(bound="n + 1"), "its launch is assumed, and what is found may come of that (--arg): copied, program"),
     (GATHER.replace("row * D + at", "row * D * 2 + at"), "may come of that"),
     (COPY.format(bound="n").replace("mask=at < n)", "mask=at < n - n)"), "it reads and writes nothing")],
)
def test_what_is_found_with_an_assumed_launch_is_no_fault(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = launched(tmp_path, text)
    assert [f.kind for f in found.findings] == ["refused"] and says in found.findings[0].text
    assert command(monkeypatch, "simt", str(tmp_path / "mine.py")) == 3
    said = capsys.readouterr().out
    assert "its kernels alone were launched, as is assumed from their code" in said and "no fault as far as it came" in said


def test_a_clean_kernel_alone_ends_with_0_and_says_what_was_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(SOFTMAX, encoding="utf-8")
    assert command(monkeypatch, "simt", str(tmp_path / "mine.py")) == 0
    assert "assumed from their code (--arg gives others):\nrows[8](out=float32" in capsys.readouterr().out


ASSERTS = COPY.format(bound="n") + """
def attend(q, k, v, rows):
    assert q.dim() == 3 and k.ndim == 3
    b, t, d = q.shape
    b2, s, d2 = k.shape
    assert (b, d) == (b2, d2) and v.shape == (b, s, d) and rows.shape[0] == t
    if d not in (16, 32, 128):
        raise ValueError(d)
    copied[(q.numel() // 64,)](q, torch.empty_like(q), q.numel(), B=64)
"""


def test_shapes_are_those_that_a_function_unpacks_and_asserts(tmp_path: Path) -> None:
    found = launched(tmp_path, ASSERTS, "attend")
    assert found.findings == () and not found.assumed and list(found.launches[0].values["x"].shape) == [2, 64, 32]
    never = launched(tmp_path, ASSERTS.replace("(16, 32, 128)", "()"), "attend")
    assert never.launches == [] and never.findings[0].kind == "refused"


def test_a_block_that_is_larger_than_the_tensors_is_no_fault_of_a_function_nor_is_a_number_without_a_type_a_tensor(tmp_path: Path) -> None:
    heads = f"""{HEAD}
@triton.jit
def numbered(y, dim, n, total, B: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, B)
    tl.store(y + at, at - at + tl.program_id(0), mask=at < total)
def number(x: torch.Tensor, dim):
    b, h, s, d = x.shape
    numbered[(b * h,)](x, dim, s * d, x.numel(), B=8192)
"""
    found = launched(tmp_path, heads)
    (launch,) = found.launches
    assert [f.kind for f in found.findings] == ["refused"] and list(launch.values["y"].shape)[2:] == [256, 64] and launch.values["dim"] == -1
    assert "a race" in found.findings[0].text and "with larger tensors of ours there is none" in found.findings[0].text


def test_of_several_ways_to_unpack_a_tensor_the_last_is_tried_too_and_a_tensor_of_which_nothing_is_said_is_as_the_one_before(tmp_path: Path) -> None:
    ways = """
def attend(q, k, v, weight):
    if q.shape[0] == 7:
        a, b = k.shape
    else:
        h, s, e, d = k.shape
    assert v.ndim == len(weight.shape) + 3
    copied[(k.numel() // 64,)](k, v, k.numel(), B=64)
"""
    (launch,) = launched(tmp_path, COPY.format(bound="n") + ways, "attend").launches
    assert list(launch.values["x"].shape) == list(launch.values["y"].shape) == [2, 2, 32, 64]
