"""The codecs in numcodecs, and so in Zarr: `numcodecs.get_codec({"id": "rooftop", "abs": 1e-3})`. An entry point of the package names this module; it needs
numcodecs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ndarray_copy

from rooftop.codecs.api import compress, decompress


class Rooftop(Codec):  # type: ignore[misc]
    """`rooftop.codecs.compress` of the chunks of an array; its arguments are `compress`'s, one of abs, rel, psnr and lossless."""

    codec_id = "rooftop"

    def __init__(
        self, abs: float | None = None, rel: float | None = None, psnr: float | None = None, lossless: bool = False, codec: str = "auto",
        rank: int | None = None,
    ) -> None:  # fmt: skip
        compress(np.arange(2.0), abs=abs, rel=rel, psnr=psnr, lossless=lossless, codec=codec, rank=rank)  # raises for arguments that no chunk could take
        self.abs, self.rel, self.psnr, self.lossless, self.codec, self.rank = abs, rel, psnr, lossless, codec, rank

    def encode(self, buf: Any) -> bytes:
        """The container. More than 4 dimensions become one. With rel or psnr a chunk without a range, as one of fill values, is compressed without loss."""
        x = np.asarray(buf)
        x = x if x.ndim <= 4 else x.reshape(-1)
        if self.abs is None and not self.lossless and _flat(x):
            return bytes(compress(x, lossless=True))
        return bytes(compress(x, abs=self.abs, rel=self.rel, psnr=self.psnr, lossless=self.lossless, codec=self.codec, rank=self.rank))

    def decode(self, buf: Any, out: Any = None) -> Any:
        found = decompress(memoryview(buf))
        return found if out is None else ndarray_copy(found, out)

    def get_config(self) -> dict[str, Any]:
        return {"id": self.codec_id, "abs": self.abs, "rel": self.rel, "psnr": self.psnr, "lossless": self.lossless, "codec": self.codec, "rank": self.rank}


def _flat(x: np.ndarray) -> bool:
    """Whether the finite values have no range that an error could be a share of."""
    finite = x[np.isfinite(x)]
    return finite.size == 0 or bool(finite.min() == finite.max())
