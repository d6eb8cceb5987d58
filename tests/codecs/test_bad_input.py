"""What is given wrongly is said clearly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rooftop
from rooftop import codecs

X = np.linspace(0, 1, 100, dtype=np.float32)


@pytest.mark.parametrize(
    ("how", "error", "what"),
    [
        ({"abs": 0}, ValueError, "abs is 0.0; it must be above 0 and finite"), ({"abs": -1.0}, ValueError, "abs is -1.0"),
        ({"abs": float("nan")}, ValueError, "abs is nan"), ({"rel": float("inf")}, ValueError, "rel is inf"),
        ({"abs": "1e-3"}, TypeError, "abs is a str; it must be a number"), ({"abs": True}, TypeError, "bool"),
        ({}, ValueError, "exactly one of abs=, rel=, psnr=, lossless=True; given: none"),
        ({"abs": 1.0, "rel": 1.0}, ValueError, "given: abs=1.0, rel=1.0"), ({"abs": 1.0, "lossless": True}, ValueError, "exactly one"),
        ({"abs": 1.0, "codec": "zip"}, ValueError, "codec is 'zip'; accepted are 'auto', 'fast'"),
        ({"abs": 1.0, "codec": "planes"}, ValueError, "'planes' is lossless: give lossless=True"),
        ({"lossless": True, "codec": "fast"}, ValueError, "'fast' is lossy"), ({"abs": 1.0, "rank": 4}, ValueError, "rank is 4; it must be 1, 2, 3 or None"),
    ],
)
def test_bounds(how: dict[str, Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        codecs.compress(X, **how)


@pytest.mark.parametrize("x", [np.full(50, 3.0), np.full(50, np.nan), np.empty(0), np.array([np.inf, 1.0])])
@pytest.mark.parametrize("how", [{"rel": 1e-3}, {"psnr": 60.0}])
def test_a_range_of_nothing(x: np.ndarray, how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="whose values are all alike, or none is finite: give abs= or lossless=True"):
        codecs.compress(x, **how)  # type: ignore[arg-type]


def test_a_range_beyond_float64() -> None:
    with pytest.raises(ValueError, match="have a range beyond float64"):
        codecs.compress(np.array([-1.7e308, 1.7e308]), rel=1e-3)


def test_arrays() -> None:
    with pytest.raises(TypeError, match="x is a list; it must be a NumPy array or a torch tensor"):
        codecs.compress([1.0], abs=1.0)
    with pytest.raises(ValueError, match="x has 5 dimensions; at most 4"):
        codecs.compress(np.zeros((1, 1, 1, 1, 1)), abs=1.0)
    with pytest.raises(TypeError, match="dtype is complex128; accepted are f64, f32"):
        codecs.compress(np.zeros(3, complex), abs=1.0)
    with pytest.raises(ValueError, match="fitted is False of codec 'fast'"):
        codecs.compress(np.zeros(3, np.float32), abs=1.0, codec="fast", fitted=False)
    with pytest.raises(ValueError, match="codec 'ratio' is for floats; x is i32"):
        codecs.compress(np.zeros(3, np.int32), abs=1.0, codec="ratio")


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds() -> None:
    x = torch.ones(3, 4)
    others = [x.to_sparse(), x.to_sparse_csr(), torch.nested.nested_tensor([x, x[:2]]), torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), x.to_mkldnn()]
    for t in others:
        with pytest.raises(TypeError, match=r"^compress: x is a .*; it must be a dense tensor"):
            codecs.compress(t, abs=1.0)
    with pytest.raises(TypeError, match=r"dtype is torch\.complex64; accepted are f64"):
        codecs.compress(x.to(torch.complex64), abs=1.0)
    with pytest.raises(ValueError, match="x is on the meta device and has no values"):
        codecs.compress(x.to("meta"), abs=1.0)


def test_output_that_does_not_fit() -> None:
    c = codecs.compress(X, abs=1e-3)
    for out, what in (
        (np.empty(99, np.float32), r"out is f32 \(99,\); the container holds f32 \(100,\)"), (np.empty(100), "out is f64"),
        (np.empty(200, np.float32)[::2], "must be contiguous"),
    ):
        with pytest.raises(ValueError, match=what):
            codecs.decompress(c, out=out)
    with pytest.raises(TypeError, match="out is a list"):
        codecs.decompress(c, out=[0.0])
    with pytest.raises(TypeError, match="c is a str; it must be a Compressed or the bytes"):
        codecs.decompress("in.rft")  # type: ignore[arg-type]


def test_the_ops_that_run_on_a_gpu() -> None:
    x = torch.randn(40, 40)
    with pytest.raises(TypeError, match="x is a ndarray; it must be a tensor"):
        rooftop.compress_blocks(X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it must be contiguous"):
        rooftop.compress_blocks(x.T)
    with pytest.raises(ValueError, match="rank is 4; it must be 1, 2 or 3"):
        rooftop.compress_blocks(x, rank=4)
    with pytest.raises(ValueError, match="bound must be float64, one element"):
        rooftop.compress_blocks(x, torch.ones(2))
    with pytest.raises(ValueError, match="it must be contiguous"):
        rooftop.compress_planes(x.T)
    words, table, _ = rooftop.compress_blocks(x)
    with pytest.raises(ValueError, match=r"they must be \[n\] and \[1, 2\]"):
        rooftop.decompress_blocks(words, table[:0], None, (40, 40), torch.float32)
    with pytest.raises(TypeError, match="words must be a contiguous int32 tensor"):
        rooftop.decompress_blocks(words.float(), table, None, (40, 40), torch.float32)
    with pytest.raises(TypeError, match=r"frequencies must be a contiguous tensor of torch\.int16"):
        rooftop.decompress_planes(words, table, table, (40, 40), torch.float32)


def test_words_that_do_not_reach_are_told_and_not_read() -> None:
    """Output or input too small: the chunk's place in the words is what is asked, on a GPU as here."""
    x = torch.randn(20000)
    words, table, total = rooftop.compress_blocks(x, torch.tensor([1e-3], dtype=torch.float64))
    values, damaged = rooftop.decompress_blocks(words[: int(total) - 1].clone(), table, torch.tensor([1e-3], dtype=torch.float64), (20000,), torch.float32)
    assert damaged.tolist() == [0, 0, 0, 0, 1] and (values[16384:] == 0).all() and ((values - x)[:16384].abs() <= 1e-3).all()
