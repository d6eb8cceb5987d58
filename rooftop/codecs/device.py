"""Streams that lie on a GPU: what compress makes of a CUDA tensor, and the way back. The kernels are those of the ops compress_blocks and
compress_planes; of `ratio` those that a call of compress_ratio and decompress_ratio chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rooftop.formats.container import FormatError, Header, Stream


@dataclass(frozen=True)
class OnDevice:
    """A stream in tensors: `words` is as long as the worst case, `total` says on the device how much of it is used."""

    header: Header
    words: Any  # int32 [at most]
    table: Any  # int32 [chunks, 2]
    total: Any  # int64 [1]
    frequencies: Any = None  # int16 [256], of `planes`
    bound: Any = field(default=None)  # float64 [1], of `fast` and `ratio`

    def to_host(self) -> Stream:
        """Waits for the device."""
        table = self.table.cpu().numpy().view(np.uint32)
        payload = self.words[: int(self.total)].cpu().numpy().view(np.uint32)
        parameters = b"" if self.frequencies is None else self.frequencies.cpu().numpy().astype("<i2").tobytes()
        return Stream(self.header, parameters, table[:, 0].copy(), table[:, 1].copy(), payload)


def on_device(s: Stream, device: Any) -> OnDevice:
    """A container's stream, copied to a GPU."""
    import torch

    def to(a: np.ndarray, dtype: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(a).view(dtype).copy()).to(device)

    h = s.header
    frequencies = to(np.frombuffer(s.parameters, np.int16), np.int16) if h.codec == "planes" else None
    bound = None if h.eb == 0 else torch.full((1,), h.eb, dtype=torch.float64, device=device)
    total = torch.full((1,), len(s.payload), dtype=torch.int64, device=device)
    return OnDevice(h, to(s.payload, np.int32), to(np.stack((s.words, s.checks), 1), np.int32), total, frequencies, bound)


def compress(x: Any, h: Header) -> OnDevice:
    """Of a contiguous CUDA tensor. Nothing waits for the host."""
    import torch

    if h.codec == "planes":
        from rooftop.ops.compress_planes import compress_planes

        words, table, frequencies, total = compress_planes(x)
        return OnDevice(h, words, table, total, frequencies)
    bound = None if h.eb == 0 else torch.full((1,), h.eb, dtype=torch.float64, device=x.device)
    if h.codec == "ratio":
        from rooftop.ops.compress_ratio import compress_ratio

        assert bound is not None
        words, table, total = compress_ratio(x, bound, rank=h.rank)
        return OnDevice(h, words, table, total, None, bound)
    from rooftop.ops.compress_blocks import compress_blocks

    words, table, total = compress_blocks(x, bound, rank=h.rank)
    return OnDevice(h, words, table, total, None, bound)


def decompress(s: OnDevice) -> tuple[Any, Any]:
    """The values, and int32 [chunks]: 0 where a chunk is whole. Nothing waits for the host."""
    import torch

    from rooftop.core.spec import DTYPES

    h = s.header
    dtype = getattr(torch, DTYPES[h.element.name].torch)
    if h.codec == "planes":
        from rooftop.ops.decompress_planes import decompress_planes

        return decompress_planes(s.words, s.table, s.frequencies, h.shape, dtype)
    if h.codec == "ratio":
        from rooftop.ops.decompress_ratio import decompress_ratio

        return decompress_ratio(s.words, s.table, h.eb, h.shape, dtype, rank=h.rank)
    from rooftop.ops.decompress_blocks import decompress_blocks

    return decompress_blocks(s.words, s.table, s.bound, h.shape, dtype, rank=h.rank)


def checked(values: Any, damaged: Any) -> Any:
    """`values`, once no chunk is damaged. Waits for the device. Raises FormatError that names the first that is."""
    if bool(damaged.any()):
        from rooftop.ops.decompress_blocks import DAMAGE

        chunk = int(damaged.ne(0).byte().argmax())
        what = DAMAGE[int(damaged[chunk])]
        raise FormatError(f"{what} of chunk {chunk}" if what.startswith("wrong") else f"damaged chunk {chunk}: {what}")
    return values


def finite_range(x: Any) -> tuple[float, float]:
    """The least and largest finite value of a CUDA tensor; (0, 0) where there is none. Waits for the device."""
    import torch

    v = x.detach().reshape(-1)
    v = v.float() if v.is_floating_point() and v.element_size() < 4 else v
    if v.is_floating_point():
        v = v[v.isfinite()]
    if v.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return finite_range(v.to(torch.float64))
    return (float(v.min()), float(v.max())) if v.numel() else (0.0, 0.0)
