"""What compress and decompress keep: every bit or the bound, of every dtype, shape and codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rooftop import codecs
from rooftop.formats import codec_fast, codec_planes, rans
from rooftop.formats.elements import ELEMENTS, Element
from rooftop.formats.error_bounded import dequantize, quantize

SHAPES = [(), (0,), (1,), (4097,), (3, 0, 5), (130, 33), (9, 17, 40), (2, 3, 17, 33)]
LOSSLESS = [{"lossless": True, "codec": "shuffle"}, {"lossless": True, "codec": "planes"}]


def waves(shape: tuple[int, ...], e: Element, seed: int = 0) -> np.ndarray:
    """Smooth, with specials strewn in where there is room."""
    rng = np.random.default_rng(seed)
    x = np.zeros(shape)
    for axis, n in enumerate(shape):
        x = x + np.sin(np.arange(n) * rng.uniform(0.02, 0.2)).reshape([n if a == axis else 1 for a in range(len(shape))])
    if e.kind != "float":
        return np.asarray((x > 0) if e.name == "bool" else (x * 20 + 60).astype(e.numpy)).reshape(shape)
    bits = np.array(x.astype(e.numpy)).reshape(-1).view(e.bits)
    top = 1 << (8 * e.bytes - 1)
    if len(bits) > 100:
        for i, mark in enumerate([top, 1, top | 1, top - (1 << e.mantissa), 2 * top - (1 << e.mantissa), top - 1, 2 * top - 1]):
            bits[7 + 13 * i] = mark
    return bits.view(e.numpy).reshape(shape)


def same(x: Any, y: Any) -> bool:
    return bool(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes())


def odd(x: np.ndarray, e: Element) -> np.ndarray:
    """NaN, infinities, -0.0 and denormals: where, by their bits."""
    bits = x.view(e.bits).astype(np.uint64)
    size = bits & np.uint64((1 << (8 * e.bytes - 1)) - 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(((size < np.uint64(1 << e.mantissa)) & (bits != 0)) | ~np.isfinite(x.astype(np.float64)))


@pytest.mark.parametrize("e", ELEMENTS.values(), ids=lambda e: e.name)
def test_lossless_keeps_every_bit(e: Element) -> None:
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        noise = rng.integers(0, 256, (max(int(np.prod(shape)), 1), e.bytes), dtype=np.uint8).view(e.bits).reshape(-1)[: int(np.prod(shape))].reshape(shape)
        for x in (waves(shape, e), (noise & 1).astype(bool) if e.name == "bool" else noise.view(e.numpy)):
            for how in LOSSLESS:
                x = np.asarray(x)
                assert same(codecs.decompress(bytes(codecs.compress(x, **how))), x), (shape, how)


@pytest.mark.parametrize("e", [e for e in ELEMENTS.values() if e.kind == "float"], ids=lambda e: e.name)
@pytest.mark.parametrize("codec", ["fast", "ratio"])
def test_the_bound_holds_for_every_value_and_specials_keep_their_bits(e: Element, codec: str) -> None:
    rng = np.random.default_rng(2)
    for shape in SHAPES:
        n = int(np.prod(shape))
        noise = rng.integers(0, 256, (n, e.bytes), dtype=np.uint8).view(e.bits).reshape(shape).view(e.numpy)
        for x in (waves(shape, e), noise):
            for bound in (0.02, 3.7):
                with np.errstate(all="ignore"):
                    c = codecs.compress(x, abs=bound, codec=codec, statistics=True)
                    y = codecs.decompress(bytes(c))
                    d = np.abs(x.astype(np.float64) - y.astype(np.float64))
                    kept = odd(x, e)
                assert y.dtype == x.dtype and y.shape == x.shape
                assert (d[~kept] <= bound).all() and (x.view(e.bits)[kept] == y.view(e.bits)[kept]).all()
                assert c.statistics is not None and c.statistics.violations == 0


@pytest.mark.parametrize("e", [e for e in ELEMENTS.values() if e.kind != "float" and e.name != "bool"], ids=lambda e: e.name)
def test_integers_keep_their_bound_to_the_ends_of_their_range(e: Element) -> None:
    rng = np.random.default_rng(3)
    info = np.iinfo(e.numpy)
    x = rng.integers(info.min, info.max, 5000, dtype=e.numpy, endpoint=True)
    x[:4] = [info.min, info.max, info.min + 1, info.max - 1]
    for bound in (0.5, 1.0, 5.9, 40.0, 1e30):
        y = codecs.decompress(bytes(codecs.compress(x, abs=bound)))
        assert max(abs(int(a) - int(b)) for a, b in zip(x, y, strict=True)) <= min(int(bound), 1 << 64)


def test_every_bfloat16() -> None:
    """All 65536, alone and by each codec; the lossy ones by a dozen bounds."""
    e = ELEMENTS["bf16"]
    x = np.arange(65536, dtype=np.uint16).view(e.numpy)
    kept = odd(x, e)
    for how in LOSSLESS:
        assert same(codecs.decompress(bytes(codecs.compress(x, **how))), x)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        for power in range(-130, 128, 20):
            k, exceptions = quantize(x.view(np.uint16), 1.3 * 2.0**power, e)
            y = dequantize(k, 1.3 * 2.0**power, e).view(e.numpy).astype(np.float64)
            assert (np.abs(wide - y)[~exceptions] <= 1.3 * 2.0**power).all() and not (kept & ~exceptions).any()


def test_bounds_at_the_limits_of_the_arithmetic() -> None:
    """Bounds near and below half a unit in the last place, where no grid of whole numbers can meet them; the largest and the smallest numbers."""
    rng = np.random.default_rng(4)
    for dtype, scale in ((np.float32, 1e5), (np.float32, 1e38), (np.float64, 1e5), (np.float64, 1e300)):
        x = (rng.normal(size=6000) * scale / 4 + scale).astype(dtype)
        for bound in (np.spacing(dtype(scale)) * f for f in (0.1, 0.5, 0.9, 4.0, 1e6)):
            c = codecs.compress(x, abs=float(bound), statistics=True)
            assert c.statistics is not None and c.statistics.violations == 0 and c.statistics.largest_error <= float(bound)
    x = np.array([0.5, 1.5, -0.5, 1.0], np.float32)  # on the edge of the bound: not one may be beyond it
    assert np.abs(codecs.decompress(codecs.compress(x, abs=0.5)).astype(np.float64) - x).max() <= 0.5


def test_a_bound_below_any_step_keeps_values_exactly() -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    for bound in (5e-324, 1e-60, 1e-40):
        assert same(codecs.decompress(codecs.compress(x, abs=bound)), x)
    assert np.abs(codecs.decompress(codecs.compress(x, abs=1e300))).max() < np.inf


def test_statistics_are_those_of_the_values() -> None:
    x = waves((64, 64), ELEMENTS["f32"])
    x = np.where(np.isfinite(x), x, 0).astype(np.float32)
    c = codecs.compress(x, rel=1e-3, statistics=True)
    y = codecs.decompress(c)
    d = np.abs(x.astype(np.float64) - y)
    s = c.statistics
    assert s is not None and s.largest_error == d.max() and s.ratio == x.nbytes / len(bytes(c)) == c.ratio
    assert s.psnr == pytest.approx(20 * np.log10((float(x.max()) - float(x.min())) / np.sqrt((d**2).mean())), abs=1e-9)
    assert codecs.compress(x, psnr=70, statistics=True).statistics.psnr >= 70  # type: ignore[union-attr]
    damaged = y.copy()
    damaged[3, 3] += 1
    assert codecs.measured(damaged, c).violations == 1, "a value that is not within the bound is counted"


@pytest.mark.parametrize("how", [{"abs": 0.01}, {"abs": 0.01, "codec": "ratio"}, *LOSSLESS], ids=str)
def test_a_chunk_alone_is_the_same_as_in_the_whole(how: dict[str, Any]) -> None:
    x = waves((3, 9, 140, 70), ELEMENTS["f32"])
    c = codecs.compress(x, **how)
    y = codecs.decompress(c).reshape(c.header.grid)
    for chunk in {0, 1, c.chunks // 2, c.chunks - 1}:
        place, values = codecs.decompress_chunk(bytes(c), chunk)
        assert same(values, y[place])
    with pytest.raises(IndexError, match=f"chunk is {c.chunks}; there are {c.chunks}"):
        codecs.decompress_chunk(c, c.chunks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int64, torch.bool, torch.uint16])
def test_tensors_come_back_as_tensors(dtype: torch.dtype) -> None:
    x = (torch.randn(70, 70, generator=torch.Generator().manual_seed(0)) * 3).to(dtype).T
    c = codecs.compress(x, lossless=True)
    y = codecs.decompress(c)
    assert y.dtype == x.dtype and torch.equal(y.view(torch.uint8), x.contiguous().view(torch.uint8))
    out = torch.empty_like(y)
    assert codecs.decompress(c, out=out) is out and torch.equal(out.view(torch.uint8), y.view(torch.uint8))


def test_big_endian_and_strided_arrays() -> None:
    x = np.arange(6000, dtype=">f8").reshape(60, 100)[::2, ::-3]
    assert (codecs.decompress(codecs.compress(x, lossless=True)) == x).all()


def test_bits_are_transposed() -> None:
    a = np.random.default_rng(0).integers(0, 1 << 32, (32, 5), dtype=np.uint32)
    want = np.array([[sum(int(a[i, m] >> p & 1) << i for i in range(32)) for m in range(5)] for p in range(32)], np.uint32)
    assert (codec_fast.transposed(a.copy()) == want).all()


def test_frequencies_add_up_and_keep_every_symbol() -> None:
    rng = np.random.default_rng(0)
    for counts in (np.ones(256), np.r_[10**9, np.ones(255)], np.r_[np.zeros(255), 7], rng.integers(0, 30, 256), rng.pareto(0.3, 256) * 10):
        f = rans.normalised(counts.astype(np.int64))
        assert f.sum() == 4096 and ((f > 0) == (counts.astype(np.int64) > 0)).all()


def test_normal_weights_reach_their_entropy() -> None:
    """bfloat16 of normal weights have exponents of about 2.6 bits, so that 10.7 of 16 bits are left."""
    w = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0)).mul(0.02).bfloat16()
    c = codecs.compress(w, lossless=True, codec="planes")
    bits = w.view(torch.int16).numpy().view(np.uint16)
    p = np.bincount(codec_planes._symbols(bits, ELEMENTS["bf16"]), minlength=256) / len(bits)
    best = 16 / (8 - (p[p > 0] * np.log2(p[p > 0])).sum())
    assert c.ratio > 0.98 * best and c.ratio > 1.45


@pytest.mark.parametrize(("shape", "dtype"), [((2, 16, 40, 50), np.float32), ((80, 90), np.float64)], ids=str)
def test_values_before_predict_where_that_is_smaller(shape: tuple[int, ...], dtype: Any) -> None:
    """Sums along two dimensions: a coarser grid tells little of them. Specials come back, whatever they do to their neighbours; a chunk alone is the same."""
    rng = np.random.default_rng(3)
    x = (0.05 * np.cumsum(np.cumsum(rng.normal(size=shape), -1), -2)).astype(dtype)
    flat, smallest = x.reshape(-1), np.finfo(dtype).smallest_subnormal
    flat[50::977], flat[60::991], flat[70::983] = np.nan, -0.0, smallest
    flat[80::997] = np.finfo(dtype).max
    c = codecs.compress(x, abs=0.01, codec="ratio", statistics=True)
    assert c.statistics is not None and c.statistics.violations == 0 and c.statistics.largest_error <= 0.01
    assert int(c.stream.payload[0]) & 8 and c.ratio > x.itemsize / 3
    y = codecs.decompress(bytes(c))
    for chunk in range(c.chunks):
        place, values = codecs.decompress_chunk(c, chunk)
        assert values.tobytes() == y.reshape(c.header.grid)[place].tobytes()


def test_what_a_spectrum_allows_is_nearly_reached() -> None:
    """A sheet of two exponential correlations, by the values before: its rate is that of its innovations, within 8 % (neighbours are quantised)."""
    rng = np.random.default_rng(5)
    n, rho, eb = 512, 0.97, 0.02
    x = rng.normal(size=(n, n))
    for axis in (0, 1):
        x = np.moveaxis(x, axis, 0)
        for i in range(1, n):
            x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * x[i]
        x = np.moveaxis(x, 0, axis)
    c = codecs.compress(x.astype(np.float32), abs=eb, codec="ratio")
    rate = 0.5 * np.log2(2 * np.pi * np.e * (1 - rho**2) ** 2) - np.log2(2 * eb)  # bits of a Gaussian innovation, by steps of 2 eb
    assert int(c.stream.payload[0]) & 8 and rate < 8 * c.nbytes / n**2 < rate * 1.08
