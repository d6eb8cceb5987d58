"""The container: header, parameters of the codec, chunk table, payload. docs/codecs.md has it byte by byte."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from math import prod

import numpy as np

from rooftop.formats.elements import OF_CODE, Element

MAGIC = b"\x89RFT\r\n\x1a\n"
VERSION = 1
CODECS = {1: "fast", 2: "shuffle", 3: "planes", 4: "ratio"}
CODEC_NUMBERS = {name: number for number, name in CODECS.items()}
BOUNDS = {0: "lossless", 1: "abs", 2: "rel", 3: "psnr"}
BOUND_NUMBERS = {name: number for number, name in BOUNDS.items()}
LOSSLESS = ("shuffle", "planes")
HEADER = struct.Struct("<8sHBBBBBBdd4QQQII")  # 88 bytes
TILES = {1: (1, 1, 4096), 2: (1, 128, 32), 3: (8, 16, 32)}  # values of a chunk of `fast` and `shuffle`, by rank
SYMBOLS = 8192  # values of a chunk of `planes`
BLOCKS = {1: (1, 1, 262144), 2: (1, 512, 512), 3: (64, 64, 64)}  # of `ratio`


class FormatError(ValueError):
    """The bytes are not a container, or it is damaged. The message says where."""


@dataclass(frozen=True)
class Header:
    codec: str
    element: Element
    shape: tuple[int, ...]
    bound: str  # "lossless", "abs", "rel", "psnr"
    asked: float  # as it was given
    eb: float  # the largest absolute error; 0: lossless
    rank: int  # dimensions of the predictor; 0 where the codec has none

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """The shape as [batch, Z, Y, X]: what the chunks are cut from."""
        return grid_of(self.shape, self.rank)

    @property
    def tile(self) -> tuple[int, int, int]:
        return (1, 1, SYMBOLS) if self.codec == "planes" else BLOCKS[self.rank] if self.codec == "ratio" else TILES[self.rank]

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """How many chunks there are along batch, Z, Y and X."""
        b, z, y, x = self.grid
        tz, ty, tx = self.tile
        return b, -(-z // tz), -(-y // ty), -(-x // tx)

    @property
    def chunks(self) -> int:
        return prod(self.tiles) if self.numel else 0

    def place(self, chunk: int) -> tuple[int, slice, slice, slice]:
        """Where in the grid the values of a chunk lie."""
        _, nz, ny, nx = self.tiles
        x, rest = chunk % nx, chunk // nx
        y, rest = rest % ny, rest // ny
        z, b = rest % nz, rest // nz
        at = [slice(i * t, min((i + 1) * t, n)) for i, t, n in zip((z, y, x), self.tile, self.grid[1:], strict=True)]
        return b, at[0], at[1], at[2]


def grid_of(shape: tuple[int, ...], rank: int) -> tuple[int, int, int, int]:
    shape = tuple(n for n in shape if n != 1) if prod(shape) else (0,)
    if rank <= 1:
        return 1, 1, 1, prod(shape)
    shape = (1,) * (rank - len(shape)) + shape
    inner = shape[len(shape) - rank :]
    return prod(shape[: len(shape) - rank]), *((1,) * (3 - rank)), *inner  # type: ignore[return-value]


def rank_of(shape: tuple[int, ...]) -> int:
    """The predictor's dimensions: as many as there are, up to 3; 1 where rows of 32 would be more than a quarter empty."""
    long = [n for n in shape if n != 1]
    if not long or 0 in long or 4 * long[-1] < 3 * 32 * -(-long[-1] // 32):
        return 1
    return min(len(long), 3)


@dataclass(frozen=True)
class Stream:
    """A container taken apart."""

    header: Header
    parameters: bytes
    words: np.ndarray  # u32 [chunks]: payload words of each chunk
    checks: np.ndarray  # u32 [chunks]
    payload: np.ndarray  # u32, all chunks one after the other

    @property
    def starts(self) -> np.ndarray:
        """i64 [chunks + 1]: where the words of each chunk begin."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.words, dtype=np.int64)))

    @property
    def nbytes(self) -> int:
        return HEADER.size + len(self.parameters) + 8 * len(self.words) + 4 * len(self.payload)


def mixed(words: np.ndarray, index: np.ndarray) -> np.ndarray:
    """What each word adds to its chunk's checksum: a bijection of the word, another for each place in the chunk. u32."""
    with np.errstate(over="ignore"):
        h = words + (index.astype(np.uint32) + np.uint32(1)) * np.uint32(0x9E3779B9)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x7FEB352D)
        h ^= h >> np.uint32(15)
        h *= np.uint32(0x846CA68B)
        h ^= h >> np.uint32(16)
    return h


def checksums(payload: np.ndarray, words: np.ndarray) -> np.ndarray:
    """u32 [chunks]: the sum, modulo 2^32, of the chunk's mixed words."""
    found = np.zeros(len(words), np.uint32)
    ends = np.cumsum(words, dtype=np.int64)
    starts = ends - words
    first, last = 0, 0
    while first < len(words):  # 4 Mi words at a time
        last = max(int(np.searchsorted(ends, starts[first] + (1 << 22), "right")), first + 1)
        a, b, counts = int(starts[first]), int(ends[last - 1]), words[first:last]
        index = np.arange(b - a, dtype=np.int64) - np.repeat(starts[first:last] - a, counts)
        some = np.flatnonzero(counts)
        if len(some):
            found[first + some] = np.add.reduceat(mixed(payload[a:b], index), (starts[first:last] - a)[some], dtype=np.uint32)
        first = last
    return found


def to_bytes(s: Stream) -> bytes:
    h = s.header
    shape = (*h.shape, *(0,) * (4 - len(h.shape)))
    front = (
        MAGIC, VERSION, CODEC_NUMBERS[h.codec], h.element.code, len(h.shape), BOUND_NUMBERS[h.bound], h.rank, 0, h.asked, h.eb, *shape,
        len(s.words), len(s.payload), len(s.parameters),
    )
    table = np.stack((s.words, s.checks), 1).astype("<u4").tobytes()
    head = HEADER.pack(*front, 0)[:-4]
    crc = zlib.crc32(table, zlib.crc32(s.parameters, zlib.crc32(head)))
    return b"".join((head, struct.pack("<I", crc), s.parameters, table, s.payload.astype("<u4", copy=False).tobytes()))


def from_bytes(data: bytes | bytearray | memoryview) -> Stream:
    """Take a container apart. Raises FormatError for anything that no compressor of this version writes, as far as it shows without
    decoding chunks: lengths that do not add up, a wrong checksum of header or table. The chunks' own checksums are compared when they are
    decoded (`verify`)."""
    view = memoryview(data).cast("B")
    if len(view) < HEADER.size:
        raise FormatError(f"not a container: {len(view)} bytes, a header has {HEADER.size}")
    magic, version, codec, dtype, ndim, bound, rank, zero, asked, eb, *rest = HEADER.unpack(view[: HEADER.size])
    shape4, (chunks, words, parameters, crc) = rest[:4], rest[4:]
    if magic != MAGIC:
        raise FormatError(f"not a container of rooftop: it begins with {bytes(magic)!r}, a container with {MAGIC!r}")
    if version != VERSION:
        raise FormatError(f"container of version {version}; this is a reader of version {VERSION}")
    if codec not in CODECS or dtype not in OF_CODE or ndim > 4 or bound not in BOUNDS or rank > 3 or zero:
        raise FormatError(f"damaged header: codec {codec}, dtype {dtype}, {ndim} dimensions, bound {bound}, rank {rank}, reserved {zero}")
    shape = tuple(shape4[:ndim])
    if any(shape4[ndim:]) or prod(max(n, 1) for n in shape) * OF_CODE[dtype].bytes >= 1 << 63:
        raise FormatError(f"damaged header: shape {tuple(shape4)} of {ndim} dimensions")
    name = CODECS[codec]
    lossless = name in LOSSLESS
    if (
        lossless != (bound == 0) or (rank == 0) != (name == "planes")
        or not (asked >= 0 and eb >= 0 and math.isfinite(asked) and math.isfinite(eb))
    ):
        raise FormatError(f"damaged header: codec {name!r}, bound {BOUNDS[bound]!r} {asked}, {eb}, rank {rank}")
    if (lossless and (asked or eb)) or (not lossless and (eb == 0 or asked == 0)) or (name == "ratio" and OF_CODE[dtype].kind != "float"):
        raise FormatError(f"damaged header: codec {name!r} of {OF_CODE[dtype].name} with the bounds {asked} and {eb}")
    h = Header(name, OF_CODE[dtype], shape, BOUNDS[bound], asked, eb, rank)
    at = HEADER.size + parameters
    if chunks != h.chunks or len(view) != at + 8 * chunks + 4 * words:
        raise FormatError(
            f"damaged or cut off: {len(view)} bytes with {chunks} chunks of {words} words; shape {shape} has {h.chunks} chunks, which with "
            f"the words would be "
            f"{at + 8 * h.chunks + 4 * words} bytes"
        )
    if zlib.crc32(view[HEADER.size : at + 8 * chunks], zlib.crc32(view[: HEADER.size - 4])) != crc:
        raise FormatError("wrong checksum of the header and the chunk table")
    table = np.frombuffer(view[HEADER.size + parameters : at + 8 * chunks], "<u4").reshape(-1, 2)
    stream = Stream(h, bytes(view[HEADER.size : at]), table[:, 0].copy(), table[:, 1].copy(), np.frombuffer(view[at + 8 * chunks :], "<u4"))
    if int(stream.words.sum(dtype=np.uint64)) != words or (chunks and not stream.words.all()):
        raise FormatError(
            f"damaged chunk table: its chunks have {int(stream.words.sum(dtype=np.uint64))} words, the payload {words}; none may be empty"
        )
    return stream


def verify(s: Stream, first: int = 0, last: int | None = None) -> None:
    """Compare the checksums of chunks `first` to `last` - 1. Raises FormatError that names the first that is wrong."""
    last = len(s.words) if last is None else last
    starts = s.starts
    got = checksums(s.payload[starts[first] : starts[last]], s.words[first:last])
    if len(wrong := np.flatnonzero(got != s.checks[first:last])):
        c = first + int(wrong[0])
        raise FormatError(f"wrong checksum of chunk {c}: {got[wrong[0]]:08x}, the table has {s.checks[c]:08x}")
