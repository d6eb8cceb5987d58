"""compress, decompress and what they return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rooftop.codecs import device
from rooftop.core import tensor_kinds, whole_file
from rooftop.formats import codec_fast, codec_planes, codec_ratio
from rooftop.formats.array_chunks import LIMIT, Part, mapped, parts
from rooftop.formats.container import CODEC_NUMBERS, LOSSLESS, FormatError, Header, Stream, checksums, from_bytes, rank_of, to_bytes, verify
from rooftop.formats.elements import bits_of, element_of, to_floats, to_numpy, to_torch
from rooftop.formats.ratio_symbols import plain_values


@dataclass(frozen=True)
class Statistics:
    """Errors of a compression, measured on the decompressed values, over the finite ones."""

    ratio: float  # bytes of the array over those of the container
    largest_error: float
    psnr: float  # 20 log10(range / root mean square error), dB; infinite where nothing changed
    violations: int  # values whose error is above the bound, and NaN, infinities, -0.0 and denormals whose bits changed


class Compressed:
    """A compressed array: `bytes(c)` is the container, `Compressed.read` reads one. `statistics` is set if `compress` measured them.

    The result for a CUDA tensor stays on its device until its bytes or sizes are needed, which synchronises with the host."""

    def __init__(self, stream: Stream | device.OnDevice, torch: bool = False, statistics: Statistics | None = None) -> None:
        self._stream, self.torch, self.statistics = stream, torch, statistics

    @property
    def header(self) -> Header:
        return self._stream.header

    @property
    def on_device(self) -> device.OnDevice | None:
        """The stream as tensors, where it lies on a GPU."""
        return self._stream if isinstance(self._stream, device.OnDevice) else None

    @cached_property
    def stream(self) -> Stream:
        """The stream in the memory of the CPU."""
        return self._stream if isinstance(self._stream, Stream) else self._stream.to_host()

    def __repr__(self) -> str:
        h = self.header
        return f"Compressed({h.codec}, {h.element.name} {h.shape}, {'lossless' if not h.eb else f'within {h.eb:g}'})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.shape

    @property
    def codec(self) -> str:
        return self.header.codec

    @property
    def eb(self) -> float:
        """The largest absolute error that a value may have; 0: lossless."""
        return self.header.eb

    @property
    def chunks(self) -> int:
        return self.header.chunks

    @property
    def nbytes(self) -> int:
        return self.stream.nbytes

    @property
    def ratio(self) -> float:
        return self.header.numel * self.header.element.bytes / self.nbytes

    def __bytes__(self) -> bytes:
        return to_bytes(self.stream)

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview, *, torch: bool = False) -> Compressed:
        """Of a container's bytes. Raises FormatError (a ValueError) where they are none, are cut off or damaged."""
        return cls(from_bytes(data), torch)

    def save(self, path: str | Path) -> None:
        """Write its bytes to a file."""
        whole_file.write(path, bytes(self))

    @classmethod
    def load(cls, path: str | Path, *, torch: bool = False) -> Compressed:
        """Of a file that `save`, or `rooftop compress`, wrote. `torch`: whether it decompresses to a torch tensor, else a NumPy array.

        Raises FormatError (a ValueError) for a file that is no container, is cut off or damaged; OSError where it cannot be read."""
        return cls.read(Path(path).read_bytes(), torch=torch)


def compress(
    x: Any,
    *,
    abs: float | None = None,
    rel: float | None = None,
    psnr: float | None = None,
    lossless: bool = False,
    codec: str = "auto",
    rank: int | None = None,
    fitted: bool = True,
    statistics: bool = False,
) -> Compressed:
    """Compress `x`. Exactly one of `abs`, `rel`, `psnr`, `lossless=True` must be given: the error bound of `decompress`.

    Args:
        x: a NumPy array or torch tensor of up to 4 dimensions: float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, integers of
            8 to 64 bits, bool.
        abs: |x - x'| <= abs for every value. For integers it is rounded down.
        rel: the same with rel * (largest - smallest finite value).
        psnr: the minimum PSNR in dB; the bound is range * 10^(-psnr / 20), which guarantees it in the worst case.
        lossless: every bit is kept.
        codec: lossy "fast" (differences, fixed width a block) or "ratio" (floats only: interpolation and entropy coding; slower, smaller;
            on the CPU but for `fitted=False`); lossless "planes" (entropy coding of exponents: weights) or "shuffle" (differences, bit
            planes: smooth fields, integers). "auto": "fast", or the smaller result of the two lossless codecs.
        rank: number of dimensions along which values are predicted, 1 to 3 ("planes" has none). None: as many as `x` has, up to 3; 1 if
            rows of 32 would be more than a quarter empty. 1 is the better choice if values change far more across rows than along them.
        fitted: of "ratio": whether prediction has weights fitted to each chunk, and chunks may be predicted from previous values. False:
            interpolation alone, less small and faster; a GPU then compresses float32 itself, with the CPU's bytes.
        statistics: also decompress and measure; the result is in `.statistics`.

    NaN, infinities, -0.0 and denormals keep their bits for any bound; a value that the codec cannot bring within the bound is stored
    exactly.

    A CUDA tensor is compressed on its device. With `abs`, and with a named lossless codec, the call does not synchronise with the host;
    computing the range, choosing between the lossless codecs and measuring statistics do.

    Raises TypeError for another dtype or a bound that is not a number; ValueError for more than 4 dimensions, a bound that is not above 0
    and finite, more or fewer than one of the four, a `codec` that does not support it, `rel` or `psnr` of an array whose values are all
    equal (their bound would be 0)."""
    kind, asked = _asked(abs, rel, psnr, lossless)
    if not isinstance(x, np.ndarray) and not _is_tensor(x):
        raise TypeError(f"compress: x is a {type(x).__name__}; it must be a NumPy array or a torch tensor")
    _fits(codec, kind)
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= 3):
        raise ValueError(f"compress: rank is {rank!r}; it must be 1, 2, 3 or None")
    torch = not isinstance(x, np.ndarray)
    if torch:
        tensor_kinds.refuse("compress", [("x", x)])
        if x.is_meta:
            raise ValueError("compress: x is on the meta device and has no values")
    if x.ndim > 4:
        raise ValueError(f"compress: x has {x.ndim} dimensions; at most 4 are taken")
    e = element_of(x.dtype.newbyteorder("<") if isinstance(x, np.ndarray) and x.dtype.byteorder == ">" else x.dtype)
    if codec == "ratio" and e.kind != "float":
        raise ValueError(f"compress: codec 'ratio' is for floats; x is {e.name}")
    if not isinstance(fitted, bool) or (not fitted and codec != "ratio"):
        raise ValueError(f"compress: fitted is {fitted!r} of codec {codec!r}; it is True, or of codec 'ratio' False")
    on_gpu = torch and x.is_cuda and (codec != "ratio" or (not fitted and e.name == "f32"))
    held = x.detach().contiguous() if on_gpu else bits_of(x if not torch else x.cpu())[0]
    eb = 0.0 if kind == "lossless" else _bound(held, e, kind, asked)

    def made(name: str) -> Compressed:
        h = _header(name, e, x.shape, kind, asked, eb, rank)
        return Compressed(device.compress(held, h) if on_gpu else _compressed(held, h, fitted), torch)

    c = made(codec if codec != "auto" else "fast" if kind != "lossless" else "planes")
    if codec == "auto" and kind == "lossless":
        c = min(c, made("shuffle"), key=lambda one: one.nbytes)
    if statistics:
        c.statistics = measured(x, c)
    return c


def _is_tensor(x: Any) -> bool:
    if type(x).__module__.partition(".")[0] != "torch":
        return False
    import torch

    return isinstance(x, torch.Tensor)


def _asked(abs: float | None, rel: float | None, psnr: float | None, lossless: bool) -> tuple[str, float]:
    given = {n: v for n, v in (("abs", abs), ("rel", rel), ("psnr", psnr)) if v is not None}
    if len(given) + bool(lossless) != 1:
        said = ", ".join([*(f"{n}={v}" for n, v in given.items()), *(["lossless=True"] if lossless else [])]) or "none"
        raise ValueError(f"compress: give exactly one of abs=, rel=, psnr=, lossless=True; given: {said}")
    if lossless:
        return "lossless", 0.0
    ((kind, value),) = given.items()
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"compress: {kind} is a {type(value).__name__}; it must be a number")
    value = float(value)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"compress: {kind} is {value}; it must be above 0 and finite (lossless=True keeps every bit)")
    return kind, value


def _fits(codec: str, kind: str) -> None:
    if codec != "auto" and codec not in CODEC_NUMBERS:
        raise ValueError(f"compress: codec is {codec!r}; accepted are 'auto', {', '.join(map(repr, CODEC_NUMBERS))}")
    if codec != "auto" and (codec in LOSSLESS) != (kind == "lossless"):
        raise ValueError(
            f"compress: codec {codec!r} is {'lossless: give lossless=True' if codec in LOSSLESS else 'lossy: give abs=, rel= or psnr='}"
        )


def _bound(held: Any, e: Any, kind: str, asked: float) -> float:
    if kind == "abs":
        return asked
    least, most = _range(held, e) if isinstance(held, np.ndarray) else device.finite_range(held)
    width = most - least
    if not width > 0 or not math.isfinite(width):
        what = "are all alike, or none is finite" if not width > 0 else "have a range beyond float64"
        raise ValueError(f"compress: {kind}={asked} is measured by the range of x, whose values {what}: give abs= or lossless=True")
    eb = asked * width if kind == "rel" else width * 10.0 ** (-asked / 20)
    if not (eb > 0 and math.isfinite(eb)):
        raise ValueError(f"compress: {kind}={asked} of a range of {width} is a bound of {eb}; it must be above 0 and finite")
    return eb


def _range(bits: np.ndarray, e: Any) -> tuple[float, float]:
    """The least and largest finite value; (0, 0) where there is none."""
    least, most = math.inf, -math.inf
    flat = bits.reshape(-1)
    for i in range(0, flat.size, LIMIT):
        v = to_floats(flat[i : i + LIMIT], e)
        v = v[np.isfinite(v)]
        if v.size:
            least, most = min(least, float(v.min())), max(most, float(v.max()))
    return (least, most) if least <= most else (0.0, 0.0)


def _header(codec: str, e: Any, shape: Any, kind: str, asked: float, eb: float, rank: int | None) -> Header:
    shape = tuple(int(n) for n in shape)
    return Header(codec, e, shape, kind, asked, eb, 0 if codec == "planes" else rank or rank_of(shape))


def _compressed(bits: np.ndarray, h: Header, fitted: bool = True) -> Stream:
    grid = bits.reshape(h.grid)
    parameters = codec_planes.table(grid, h) if h.codec == "planes" else b""
    made = mapped(lambda part: _encoded(grid, part, h, parameters, fitted), parts(h, limit=_limit(h)))
    payload = np.concatenate([w for w, _ in made]) if made else np.empty(0, np.uint32)
    sizes = np.concatenate([s for _, s in made]) if made else np.empty(0, np.uint32)
    return Stream(h, parameters, sizes, checksums(payload, sizes), payload)


def _limit(h: Header) -> int:
    return {"planes": codec_planes.BATCH, "ratio": codec_ratio.BATCH}.get(h.codec, LIMIT)


def _encoded(grid: np.ndarray, part: Part, h: Header, parameters: bytes, fitted: bool) -> tuple[np.ndarray, np.ndarray]:
    if h.codec == "ratio":
        words = codec_ratio.encode([np.ascontiguousarray(grid[h.place(c)]) for c in range(part.first, part.last)], h, fitted)
        return np.concatenate(words), np.array([len(w) for w in words], np.uint32)
    cut = part.cut(grid)
    return codec_planes.encode(cut, part, h, np.frombuffer(parameters, "<u2")) if h.codec == "planes" else codec_fast.encode(cut, part, h)


def _decoded(s: Stream, starts: np.ndarray, part: Part, frequencies: np.ndarray | None, grid: np.ndarray) -> None:
    h = s.header
    a = int(starts[part.first])
    words, mine = s.payload[a : starts[part.last]], starts[part.first : part.last + 1] - a
    if h.codec == "ratio":
        places = [h.place(c) for c in range(part.first, part.last)]
        shapes = [(z.stop - z.start, y.stop - y.start, x.stop - x.start) for _, z, y, x in places]
        found = codec_ratio.decode([words[mine[i] : mine[i + 1]] for i in range(len(places))], shapes, h, part.first)
        for place, values in zip(places, found, strict=True):
            grid[place] = values
        return
    part.join(
        codec_fast.decode(words, mine, part, h) if frequencies is None else codec_planes.decode(words, mine, part, h, frequencies), grid
    )


def _frequencies(s: Stream) -> np.ndarray | None:
    if s.header.codec == "planes":
        return codec_planes.frequencies_of(s.parameters, s.header)
    if s.parameters:
        raise FormatError(f"damaged parameters: {len(s.parameters)} bytes; {s.header.codec!r} has none")
    return None


def decompress(c: Compressed | bytes | bytearray | memoryview, *, out: Any = None, to: Any = None) -> Any:
    """The decompressed array: a torch tensor on the original device if `compress` was given a tensor, else a NumPy array.

    Args:
        c: a result of `compress`, or the bytes of a container.
        out: a NumPy array or CPU tensor to fill, C-contiguous, of the same shape and dtype. None: a new one.
        to: a device of torch ("cpu", "cuda", a torch.device): return a tensor there; a GPU decodes it itself; of codec "ratio" float32
            alone.
        None: as above.

    Raises FormatError (a ValueError) for bytes that are not a container, or for a damaged one: it names the chunk. ValueError for an `out`
    of another shape or dtype, TypeError for another `c`."""
    c = _given(c)
    h = c.header
    to = None if to is None else str(to)
    if out is not None:
        if to is not None:
            raise ValueError(f"decompress: out is given, and to={to!r}; one of them says where the values go")
        _fill(c.stream, _bits_of_out(out, h))
        return out
    held = c.on_device
    if held is None:
        _plausible(c.stream)
    if to is not None and held is None and to.startswith("cuda") and (h.codec != "ratio" or h.element.name == "f32"):
        _frequencies(c.stream)
        held = device.on_device(c.stream, to)
    if held is not None and to != "cpu":
        return device.checked(*device.decompress(held))
    bits = np.zeros(h.shape, h.element.bits)
    _fill(c.stream, bits)
    if to is None and not c.torch:
        return to_numpy(bits, h.element)
    found = to_torch(bits, h.element)
    return found if to in (None, "cpu") else found.to(to)


def _plausible(s: Stream) -> None:
    """Raises FormatError where a chunk has fewer words than any chunk of so many values: before memory is taken for them."""
    h = s.header
    least = {"planes": codec_planes.least_words, "ratio": codec_ratio.least_words}.get(h.codec, codec_fast.least_words)
    for part in parts(h, limit=1 << 32):
        counts = part.counts()
        short = np.flatnonzero(s.words[part.first : part.last] < np.minimum(least(counts, h), 1 + -(-counts * h.element.bytes // 4)))
        if len(short):
            c = int(short[0])
            raise FormatError(f"damaged chunk {part.first + c}: {s.words[part.first + c]} words are too few for {counts[c]} values")


def _given(c: Any) -> Compressed:
    if isinstance(c, (bytes, bytearray, memoryview)):
        return Compressed.read(c)
    if not isinstance(c, Compressed):
        raise TypeError(f"decompress: c is a {type(c).__name__}; it must be a Compressed or the bytes of a container")
    return c


def _bits_of_out(out: Any, h: Header) -> np.ndarray:
    if not isinstance(out, np.ndarray) and not _is_tensor(out):
        raise TypeError(f"decompress: out is a {type(out).__name__}; it must be a NumPy array or a torch tensor")
    contiguous = (
        out.flags.c_contiguous and out.flags.writeable if isinstance(out, np.ndarray) else out.is_contiguous() and out.device.type == "cpu"
    )
    if not contiguous:
        raise ValueError("decompress: out must be contiguous, writeable and in the memory of the CPU")
    if isinstance(out, np.ndarray) and not out.dtype.isnative:
        raise ValueError(f"decompress: out is {out.dtype.str}; its bytes must be in this machine's order")
    bits, e = bits_of(out)
    if e != h.element or bits.shape != h.shape:
        raise ValueError(f"decompress: out is {e.name} {tuple(bits.shape)}; the container holds {h.element.name} {h.shape}")
    return bits


def _fill(s: Stream, bits: np.ndarray) -> None:
    verify(s)
    frequencies, starts = _frequencies(s), s.starts
    grid = bits.reshape(s.header.grid)
    mapped(lambda part: _decoded(s, starts, part, frequencies, grid), parts(s.header, limit=_limit(s.header)))


def decompress_chunk(c: Compressed | bytes, chunk: int) -> tuple[tuple[int, slice, slice, slice], np.ndarray]:
    """Decompress one chunk: returns its position in the array viewed as [batch, Z, Y, X] (`c.header.grid`), and its values.

    Raises IndexError for a chunk number out of range, FormatError for a damaged chunk; the other chunks are not read."""
    c = _given(c)
    if not 0 <= chunk < c.chunks:
        raise IndexError(f"decompress_chunk: chunk is {chunk}; there are {c.chunks}")
    s = c.stream
    h = s.header
    starts = s.starts
    verify(s, chunk, chunk + 1)
    place = h.place(chunk)
    z, y, x = (slice(0, at.stop - at.start) for at in place[1:])
    part = Part(chunk, chunk + 1, (slice(0, 1), z, y, x), (1, 1, 1, 1), h.tile)
    grid = np.zeros(part.extents, h.element.bits)
    if h.codec == "ratio":
        _, z_n, y_n, x_n = part.extents
        grid[0] = codec_ratio.decode([s.payload[starts[chunk] : starts[chunk + 1]]], [(z_n, y_n, x_n)], h, chunk)[0]
    else:
        frequencies, mine = _frequencies(s), np.array([0, starts[chunk + 1] - starts[chunk]])
        words = s.payload[starts[chunk] : starts[chunk + 1]]
        part.join(
            codec_fast.decode(words, mine, part, h) if frequencies is None else codec_planes.decode(words, mine, part, h, frequencies), grid
        )
    return place, to_numpy(grid[0], h.element)


def measured(x: Any, c: Compressed) -> Statistics:
    """Decompress `c` and compare it with the original `x`. Raises ValueError if shape or dtype differ."""
    bits, e = bits_of(x if isinstance(x, np.ndarray) else x.cpu())
    if e != c.header.element or tuple(bits.shape) != c.shape:
        raise ValueError(f"measured: x is {e.name} {tuple(bits.shape)}; the container holds {c.header.element.name} {c.shape}")
    got = np.zeros(c.shape, e.bits)
    _fill(c.stream, got)
    worst, squares, violations, finite, one, two = 0.0, 0.0, 0, 0, bits.reshape(-1), got.reshape(-1)
    least, most = _range(bits, e)
    width = most - least or 1.0
    for i in range(0, one.size, LIMIT):
        a, b = one[i : i + LIMIT], two[i : i + LIMIT]
        if e.kind == "float":
            u, v = to_floats(a, e), to_floats(b, e)
            kept = ~plain_values(a, e)
            with np.errstate(all="ignore"):
                d = np.abs(u - v)
            d = np.where(kept & (a == b), 0.0, d)
            violations += int((kept & (a != b)).sum()) + int((~kept & ~(d <= c.eb)).sum())
            d = d[np.isfinite(u) & np.isfinite(v)]
        else:
            d = _distance(a, b, e)
            violations += int((d > np.uint64(min(int(c.eb), (1 << 64) - 1))).sum())
            d = d.astype(np.float64)
        worst, squares, finite = max(worst, float(d.max(initial=0.0))), squares + float(((d / width) ** 2).sum()), finite + d.size
    psnr = math.inf if squares == 0 else -10 * math.log10(squares / finite) if most > least else -math.inf
    return Statistics(c.ratio, worst, psnr, violations)


def _distance(a: np.ndarray, b: np.ndarray, e: Any) -> np.ndarray:
    """|a - b| of integers, exact."""
    u, v = (
        t.astype(np.uint64) if e.kind == "uint" else (t.view(f"<i{e.bytes}").astype(np.int64) ^ np.int64(-(1 << 63))).view(np.uint64)
        for t in (a, b)
    )
    return np.where(u > v, u - v, v - u)
