"""The codecs in the codec pipeline of Zarr's format 3, where they stand in place of "bytes". An entry point of the package names this
module; it needs zarr 3.

    zarr.create_array(store, shape=..., chunks=..., dtype="float32", serializer=rooftop.codecs.zarr3.Rooftop(abs=1e-3), compressors=None)"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.common import parse_named_configuration

from rooftop.codecs.api import decompress
from rooftop.codecs.chunks import How
from rooftop.formats.container import FormatError
from rooftop.formats.elements import element_of

NAME = "rooftop"


@dataclass(frozen=True)
class Rooftop(ArrayBytesCodec, How):  # type: ignore[misc]
    """`rooftop.codecs.compress` of the chunks of an array; its arguments are `compress`'s, one of abs, rel, psnr and lossless. Values come
    back in the byte order and memory order that the array asks for. Raises TypeError for an array of a dtype that `compress` does not
    take."""

    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Any) -> Rooftop:
        _, found = parse_named_configuration(data, NAME)
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        given = {k: v for k, v in self.__dict__.items() if v not in (None, False) and (k, v) != ("codec", "auto")}
        return {"name": NAME, "configuration": given}

    def validate(self, *, shape: Any, dtype: Any, chunk_grid: Any) -> None:
        native = dtype.to_native_dtype()
        e = element_of(native.newbyteorder("<"))
        if self.codec == "ratio" and e.kind != "float":
            raise ValueError(f"compress: codec 'ratio' is for floats; the array is {e.name}")

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        x = chunk_data.as_numpy_array()
        return chunk_spec.prototype.buffer.from_bytes(await asyncio.to_thread(self.container, x))

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        found = await asyncio.to_thread(decompress, memoryview(chunk_data.as_numpy_array()))
        wanted = chunk_spec.dtype.to_native_dtype()
        if found.dtype != wanted.newbyteorder("=") or found.size != int(np.prod(chunk_spec.shape)):
            raise FormatError(f"a chunk holds {found.dtype} {found.shape}; the array has {wanted} in chunks of {tuple(chunk_spec.shape)}")
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(found.reshape(chunk_spec.shape).astype(wanted, copy=False))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        raise NotImplementedError
