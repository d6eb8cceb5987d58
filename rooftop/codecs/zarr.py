"""The codecs in numcodecs, and so in Zarr's format 2: `numcodecs.get_codec({"id": "rooftop", "abs": 1e-3})`. An entry point of the package
names this module; it needs numcodecs. For Zarr's format 3: rooftop.codecs.zarr3."""

from __future__ import annotations

from typing import Any

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_ndarray, ndarray_copy

from rooftop.codecs.api import decompress
from rooftop.codecs.chunks import How


class Rooftop(Codec):  # type: ignore[misc]
    """`rooftop.codecs.compress` of the chunks of an array; its arguments are `compress`'s, one of abs, rel, psnr and lossless.

    As numcodecs asks of a codec, what `decode` gives has the bytes of the buffer that `encode` was given, in the order of its memory: it is
    one-dimensional. Of an array that is not contiguous it has the values in C order."""

    codec_id = "rooftop"

    def __init__(
        self, abs: float | None = None, rel: float | None = None, psnr: float | None = None, lossless: bool = False, codec: str = "auto",
        rank: int | None = None,
    ) -> None:
        self.how = How(abs, rel, psnr, lossless, codec, rank)

    def encode(self, buf: Any) -> bytes:
        """The container. More than 4 dimensions become one. With rel or psnr a chunk without a range, as one of fill values, is compressed
        without loss.

        Raises TypeError for big-endian values, since a container does not say in which order their bytes were, for raw bytes with a bound,
        and for a dtype that `compress` does not take."""
        x = buf if isinstance(buf, np.ndarray) else ensure_ndarray(buf)
        if not x.dtype.isnative:
            raise TypeError(
                f"rooftop: values are {x.dtype.str}, big-endian, and the container does not store the byte order: use "
                f"{x.dtype.newbyteorder('<').str}"
            )
        if not isinstance(buf, np.ndarray) and not self.how.lossless:
            raise TypeError(
                f"rooftop: a {type(buf).__name__} holds bytes, not values that may change within a bound: give an array, or lossless=True"
            )
        return self.how.container(x.T if x.flags.f_contiguous else x)  # one-dimensional both ways

    def decode(self, buf: Any, out: Any = None) -> Any:
        """The values, one-dimensional; or `out`, filled in the order of its memory. Raises FormatError for a damaged container, ValueError
        for an `out` of another size, TypeError for one of another dtype that is not bytes."""
        found = decompress(memoryview(ensure_ndarray(buf))).reshape(-1)
        if out is None:
            return found
        held = ensure_ndarray(out)
        if held.dtype != found.dtype and held.dtype not in (np.uint8, np.int8):
            raise TypeError(f"rooftop: out is {held.dtype.str}; the chunk holds {found.dtype.str}")
        if held.nbytes != found.nbytes:
            raise ValueError(f"rooftop: out has {held.nbytes} bytes; the chunk holds {found.nbytes}")
        return ndarray_copy(found, out)

    def get_config(self) -> dict[str, Any]:
        return {"id": self.codec_id, **self.how.__dict__}
