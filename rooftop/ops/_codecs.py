"""What the contracts of the codecs' kernels share: bits of a tensor, the sizes of streams, values that are worth compressing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import Problem, Work
from rooftop.formats.container import SYMBOLS, TILES, Header
from rooftop.formats.elements import ELEMENTS

if TYPE_CHECKING:
    from torch import Tensor

BITS = {1: "u8", 2: "i16", 4: "i32", 8: "i64"}  # the dtype that carries the bits of an element of so many bytes


def torch_bits(size: int) -> Any:
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]


def as_array(x: Tensor, element: str) -> Any:
    """The bits of a tensor as a NumPy array in the memory of the CPU."""
    return x.detach().cpu().contiguous().numpy().view(ELEMENTS[element].bits)


def chunks_of(shape: tuple[int, ...], rank: int) -> int:
    """Of x [B, Z, Y, X]."""
    if not prod(shape):
        return 0
    b, z, y, x = shape
    tz, ty, tx = TILES[rank]
    return b * -(-z // tz) * -(-y // ty) * -(-x // tx)


def room(values: int, chunks: int, size: int) -> int:
    """The most words that a stream of so many values of `size` bytes has: a chunk that does not get smaller is kept raw, in one word more
    than its values."""
    return 2 * chunks + -(-values * size // 4)


def header(x_shape: tuple[int, ...], element: str, rank: int, bound: float | None) -> Header:
    return Header(
        "shuffle" if bound is None else "fast", ELEMENTS[element], x_shape, "lossless" if bound is None else "abs", bound or 0.0,
        bound or 0.0, rank
    )


def filled(x: Tensor, element: str, fill: str, generator: Any) -> Tensor:
    """Values worth compressing, as bits, of the shape of `x`: "smooth", "weights" (normal, sigma 0.02), "noise" (any bits), "special"
    (smooth, with NaN, infinities, -0.0 and denormals strewn in), "zero", "constant"."""
    import torch

    e = ELEMENTS[element]
    n = x.numel()
    if n == 0:
        return x
    if fill == "noise":
        return torch.randint(0, 256, (n * e.bytes,), generator=generator, device=x.device, dtype=torch.uint8).view(x.dtype).view(x.shape)
    t = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    if fill in ("smooth", "special"):
        for axis, extent in enumerate(x.shape):
            shape = [1] * x.dim()
            shape[axis] = extent
            wave, phase = (torch.rand(1, generator=generator, device=x.device, dtype=torch.float64) for _ in range(2))
            t = t + torch.sin(torch.arange(extent, device=x.device, dtype=torch.float64) * (0.02 + 0.05 * wave) + 6 * phase).view(shape)
    elif fill == "weights":
        t = torch.randn(x.shape, generator=generator, device=x.device, dtype=torch.float64) * 0.02
    elif fill == "constant":
        t = t + 1.5
    if e.kind != "float":
        whole = (t * 30 + 64).round().to(torch.int64) if e.name != "bool" else (t > 0).to(torch.int64)
        return whole.to(x.dtype) if e.bytes < 8 else whole
    from rooftop.core.spec import DTYPES

    values = t.to(getattr(torch, DTYPES[element].torch)).reshape(-1).view(x.dtype)
    if fill == "special":
        top = 1 << (8 * e.bytes - 1)
        signed = 0 if e.bytes == 1 else 1 << (8 * e.bytes)
        exponent = top - (1 << e.mantissa)
        # -0.0, denormals, infinities, NaN (e4m3: its largest numbers and NaN)
        marks = [top, 1, top | 3, exponent, top | exponent, exponent | 1, top - 1]
        marks = [m - signed if signed and m >= top else m for m in marks]
        at = torch.randint(0, n, (max(1, n // 97),), generator=generator, device=x.device)
        which = torch.tensor(marks, dtype=x.dtype, device=x.device)
        values[at] = which[torch.arange(at.numel(), device=x.device) % len(marks)]
    return values.view(x.shape)


def same_place(op: str, tensors: Mapping[str, Tensor | None], device: Any) -> None:
    for name, t in tensors.items():
        if t is not None and t.device != device:
            raise ValueError(f"{op}: {name} lies on {t.device}; it must lie on {device}")


__all__ = ["BITS", "SYMBOLS", "as_array", "chunks_of", "filled", "header", "room", "same_place", "torch_bits"]


def canonical(p: Problem) -> Problem | None:
    return p if all(m is None or m.contiguous for _, m in p.tensors) else None


def work(p: Problem) -> Work:
    """The values read once; what is written is data: at least a word a chunk and the table."""
    return Work(p["x"].nbytes, 12 * p["table"].shape[0] + 8)


def measured_work(p: Problem, tensors: Any) -> Work:
    return Work(p["x"].nbytes, 4 * int(tensors["total"]) + p["table"].nbytes + 8)


def wrong_decoder(reference: Callable[..., Any], change: str) -> Callable[..., Any]:
    """One that decodes with another "bound", reports no "damage", or is wrong in the last of the "values"."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(reference).bind(*args, **kwargs).arguments
        if change == "bound" and given["bound"] is not None:
            given["bound"] = given["bound"] * (1 + 2.0**-20)
        values, damaged = reference(**given)
        if change == "damage":
            damaged = damaged * 0
        if change == "values":
            values = values.clone()
            values.reshape(-1)[-1:] += 1
        return values, damaged

    return run


def unpacking(p: Problem) -> Work:
    """Work of decompression: the values written once; at least a word a chunk read."""
    return Work(4 * p["damaged"].numel + p["starts"].nbytes + p["checks"].nbytes, p["y"].nbytes + p["damaged"].nbytes)


def unpacked(p: Problem, tensors: Any) -> Work:
    """The same, of what these chunks hold."""
    return Work(4 * int(tensors["starts"][-1]) + p["starts"].nbytes + p["checks"].nbytes, p["y"].nbytes + p["damaged"].nbytes)
