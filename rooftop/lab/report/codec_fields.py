"""Six synthetic fields, seeded, on which the lossy codecs are measured, and the sizes that cuSZp3's fixed-length format would have on them.

No field is data of an experiment: a ratio measured on one is to be called synthetic. Each follows from a formula and a seed:

    turbulence  Gaussian velocity of an isotropic spectrum, E(k) ~ k^(-5/3) exp(-5.2 k / kd) (Pao 1965's form of the dissipation), kd a
                quarter of the grid's
    waves       twelve plane waves of random directions, wavelengths and phases
    particles   x coordinates of particles in 4096 clusters, in the order of the clusters (1-D)
    climate     zonal mean, stationary waves and weather (spectrum k^-3) of a temperature on a sphere, kelvin (2-D slices)
    seismic     a damped Ricker wavelet that spreads in a layered medium; quiet before the first arrival
    noise       independent normal values: nothing to predict

cuSZp3's format (szcompressor/cuSZp): k = round(x / 2 eb), blocks of 32 values, 8 x 8 or 4 x 4 x 4; in each the differences to the
neighbours before within the block; a byte for the block's width w = bits of the largest |difference|; where w > 0 one sign bit and w bits a
value. In its outlier mode the block's first value is kept apart in 1 to 4 bytes where that makes it smaller; that is the mode counted
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

BLOCKS = {1: (32,), 2: (8, 8), 3: (4, 4, 4)}


def _spectrum(shape: tuple[int, ...], amplitude: Callable[[np.ndarray], np.ndarray], seed: int) -> np.ndarray:
    """A real Gaussian field whose Fourier coefficients have the size amplitude(k), k in periods across the grid."""
    rng = np.random.default_rng(seed)
    axes = tuple(range(len(shape)))
    frequencies = [*(np.fft.fftfreq(n) * n for n in shape[:-1]), np.fft.rfftfreq(shape[-1]) * shape[-1]]
    k = np.sqrt(sum(f**2 for f in np.meshgrid(*frequencies, indexing="ij", sparse=True)))
    k[(0,) * len(shape)] = 1.0
    held = np.fft.rfftn(rng.standard_normal(shape, dtype=np.float32)) * amplitude(k)
    held[(0,) * len(shape)] = 0
    found = np.fft.irfftn(held, s=shape, axes=axes)
    return found / found.std()


def _turbulence(n: int, seed: int) -> np.ndarray:
    return _spectrum((n, n, n), lambda k: k ** (-11 / 6) * np.exp(-2.6 * k / (n / 4)), seed)


def _waves(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*[np.arange(n) / n] * 3, indexing="ij", sparse=True)
    found = np.zeros((n, n, n))
    for _ in range(12):
        a, b, c = rng.normal(size=3) * 2 * np.pi * rng.uniform(1, 8)
        found += np.sin(a * z + b * y + c * x + rng.uniform(0, 2 * np.pi)) * rng.uniform(0.3, 1)
    return found


def _particles(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    count = n**3
    centres = np.sort(rng.uniform(0, 256, 4096))
    return centres[np.arange(count) * 4096 // count] + rng.normal(size=count) * 0.4


def _climate(n: int, seed: int) -> np.ndarray:
    shape = (4 * n, n * n // 4)  # latitude, longitude
    latitude = np.linspace(-np.pi / 2, np.pi / 2, shape[0])[:, None]
    longitude = np.linspace(0, 2 * np.pi, shape[1], endpoint=False)[None]
    mean = 250 + 50 * np.cos(latitude) ** 2
    waves = 6 * np.sin(3 * longitude + latitude) * np.cos(latitude) ** 2 + 3 * np.cos(5 * longitude) * np.cos(latitude) ** 4
    return mean + waves + 2.5 * _spectrum(shape, lambda k: (1 + k / 4) ** -2.5, seed)


def _seismic(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*[np.arange(n) / n] * 3, indexing="ij", sparse=True)
    slowness = 1 + 0.15 * np.cumsum(rng.normal(size=n))[:, None, None] / np.sqrt(n)
    found = np.zeros((n, n, n))
    for t0, size in ((0.55, 1.0), (0.35, 0.4)):
        distance = np.sqrt((z - 0.1) ** 2 + (y - 0.5) ** 2 + (x - 0.5) ** 2) * slowness
        phase = (np.pi * 9 * (distance - t0)) ** 2
        found += size * (1 - 2 * phase) * np.exp(-phase) / (0.1 + distance)
    return np.where(np.abs(found) < 1e-6, 0.0, found)


def _noise(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, n, n))


FIELDS: Mapping[str, Callable[[int, int], np.ndarray]] = {
    "turbulence": _turbulence, "waves": _waves, "particles": _particles, "climate": _climate, "seismic": _seismic, "noise": _noise,
}
SMOOTH = ("turbulence", "waves", "climate", "seismic")


def field(name: str, n: int = 256, seed: int = 1) -> np.ndarray:
    """float32, n^3 values."""
    return FIELDS[name](n, seed).astype(np.float32)


def cuszp_bytes(x: np.ndarray, eb: float, rank: int) -> int:
    """The size of cuSZp3's fixed-length format, differences along `rank` dimensions; what it does not store (header, bound) is not
    counted."""
    shape = x.shape if rank == x.ndim else (int(np.prod(x.shape[: x.ndim - rank + 1])), *x.shape[x.ndim - rank + 1 :])
    with np.errstate(all="ignore"):
        k = np.rint(x.reshape(shape).astype(np.float64) / (2 * eb)).astype(np.int64)
    block = BLOCKS[rank]
    k = np.pad(k, [(0, -n % b) for n, b in zip(shape, block, strict=True)], mode="edge")
    split: list[int] = [m for n, b in zip(k.shape, block, strict=True) for m in (n // b, b)]
    d = k.reshape(split)
    for axis in range(1, 2 * rank, 2):
        at: list[Any] = [slice(None)] * (2 * rank)
        at[axis] = slice(0, 1)
        d = np.diff(d, axis=axis, prepend=np.zeros_like(d[tuple(at)]))
    values = int(np.prod(block))
    d = np.abs(np.moveaxis(d, range(1, 2 * rank, 2), range(rank, 2 * rank))).reshape(-1, values)

    def coded(largest: np.ndarray) -> np.ndarray:
        widths = np.frexp(largest.astype(np.float64))[1].astype(np.int64)
        return np.where(widths > 0, (widths + 1) * values // 8, 0)

    first = np.maximum(1, -(-(np.frexp(d[:, 0].astype(np.float64))[1].astype(np.int64)) // 8))
    return len(d) + int(np.minimum(coded(d.max(1)), coded(d[:, 1:].max(1)) + first).sum())
