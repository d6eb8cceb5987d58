"""The fits of the codec `ratio`: right, and the same on every machine."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from rooftop.formats import least_squares


@pytest.mark.parametrize("scale", [1e-120, 1.0, 3e120])
def test_products_and_solution(scale: float) -> None:
    rng = np.random.default_rng(3)
    m = rng.standard_normal((5000, 24)) * np.geomspace(1, 1e-3, 24)
    target = m @ rng.standard_normal(24) + 1e-3 * rng.standard_normal(5000)
    gram, right = least_squares.products(m * scale, target * scale)
    found = least_squares.solve(gram, right)
    assert found is not None
    np.testing.assert_allclose(found, np.linalg.lstsq(m, target, rcond=None)[0], rtol=1e-4, atol=1e-6)


def test_the_order_of_samples_changes_no_bit() -> None:
    """A BLAS adds in another order on another machine: the sums are exact, so none matters."""
    rng = np.random.default_rng(4)
    m, target = rng.standard_normal((131072, 24)), rng.standard_normal(131072)
    turned = rng.permutation(len(m))
    for a, b in zip(least_squares.products(m, target), least_squares.products(m[turned], target[turned]), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("gram", [np.zeros((3, 3)), np.diag([1.0, -1.0]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.full((2, 2), np.nan)])
def test_what_has_no_solution(gram: np.ndarray) -> None:
    assert least_squares.solve(gram, np.ones(len(gram))) is None


SCRIPT = """
import hashlib
from rooftop.codecs import compress
from rooftop.lab.report.codec_fields import field
for rank in (2, 3):
    print(hashlib.sha256(bytes(compress(field("waves", 40), rel=1e-4, codec="ratio", rank=rank))).hexdigest())
"""


def test_other_kernels_of_the_blas_give_the_same_container() -> None:
    def bytes_with(**variables: str) -> str:
        return subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout

    assert bytes_with() == bytes_with(OPENBLAS_CORETYPE="Nehalem", OMP_NUM_THREADS="1")
