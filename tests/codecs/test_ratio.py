"""The codec `ratio`: what its two ways of predicting keep to, and what its decoder refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rooftop import codecs
from rooftop.codecs import FormatError
from rooftop.formats import codec_ratio
from rooftop.formats.ratio_symbols import entropy_of
from rooftop.lab.report.codec_fields import field


@pytest.mark.parametrize("name", ["waves", "climate", "noise"])
def test_without_fitted_weights_the_bound_holds(name: str) -> None:
    x = field(name, 40)
    x.reshape(-1)[::333] = np.nan
    plain, fitted = (codecs.compress(x, rel=1e-3, codec="ratio", fitted=f, statistics=True) for f in (False, True))
    assert plain.statistics is not None and plain.statistics.violations == 0
    assert fitted.nbytes <= 1.02 * plain.nbytes  # what is fitted has to pay
    heads = codecs.Compressed.read(bytes(plain)).stream
    assert not any(heads.payload[start] & 10 for start in heads.starts[:-1])  # neither weights nor previous values


@pytest.mark.parametrize("rank", [2, 3])
def test_a_value_that_is_not_finite_is_refused(rank: int) -> None:
    """No encoder writes one: it would be stored exactly. By interpolation, and from previous values."""
    x = (100 * np.cumsum(np.cumsum(np.random.default_rng(0).normal(size=(1, 40, 40)), 1), 2)).astype(np.float32)
    c = codecs.compress(x, abs=1e-3, codec="ratio", rank=rank)
    h, places = c.header, c.header.place(0)
    shape = (places[1].stop, places[2].stop, places[3].stop)
    words = c.stream.payload[: c.stream.starts[1]]
    codec_ratio.decode([words], [shape], h, 0)
    with pytest.raises(FormatError, match="damaged chunk 7: a value is not finite"):
        codec_ratio.decode([words], [shape], replace(h, eb=1e38), 7)


def test_entropies_are_whole_numbers_near_the_true_ones() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        counts = rng.integers(0, rng.choice([2, 50, 5000]), 256)
        some = counts[counts > 0] / max(1, counts.sum())
        true = -(some * np.log2(some)).sum() * counts.sum()
        assert abs(entropy_of(counts) / 65536 - true) <= 1e-4 * counts.sum() + 1e-6
