"""How the chunks of an array are compressed: what the codecs of numcodecs and of Zarr have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooftop.codecs.api import compress


@dataclass(frozen=True)
class How:
    """Arguments of `compress`, one of abs, rel, psnr and lossless. Raises its errors for those that no chunk could take."""

    abs: float | None = None
    rel: float | None = None
    psnr: float | None = None
    lossless: bool = False
    codec: str = "auto"
    rank: int | None = None

    def __post_init__(self) -> None:
        compress(np.arange(2.0), **self.__dict__)

    def container(self, x: np.ndarray) -> bytes:
        """Of one chunk. More than 4 dimensions become one. With rel or psnr a chunk without a range is compressed without loss."""
        x = x if x.ndim <= 4 else x.reshape(-1)
        if self.abs is None and not self.lossless and _flat(x):
            return bytes(compress(x, lossless=True))
        return bytes(compress(x, **self.__dict__))


def _flat(x: np.ndarray) -> bool:
    """Whether the finite values have no range that an error could be a share of."""
    finite = x[np.isfinite(x)]
    return finite.size == 0 or bool(finite.min() == finite.max())
