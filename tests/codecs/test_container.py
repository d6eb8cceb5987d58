"""The container: what stands where, and what is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from rooftop import codecs
from rooftop.codecs import FormatError
from rooftop.formats.container import BLOCKS, CODEC_NUMBERS, HEADER, MAGIC, SYMBOLS, TILES, checksums
from rooftop.lab.fuzz import containers as fuzz


def made(**how: object) -> bytes:
    x = np.sin(np.arange(9000) / 50).astype(np.float32).reshape(90, 100)
    return bytes(codecs.compress(x, **(how or {"abs": 1e-3})))  # type: ignore[arg-type]


def test_the_header_byte_by_byte() -> None:
    """As docs/codecs.md says it, read without the reader."""
    b = made(rel=1e-3)
    assert b[:8] == b"\x89RFT\r\n\x1a\n" and struct.unpack("<H", b[8:10]) == (1,)
    assert (b[10], b[11], b[12], b[13], b[14], b[15]) == (1, 2, 2, 2, 2, 0)  # fast, f32, two dimensions, rel, rank 2
    asked, eb = struct.unpack("<dd", b[16:32])
    assert asked == 1e-3 and 0.0019 < eb < 0.0021
    assert struct.unpack("<4Q", b[32:64]) == (90, 100, 0, 0)
    chunks, words, parameters, crc = struct.unpack("<QQII", b[64:88])
    assert chunks == 4 and parameters == 0 and len(b) == 88 + 8 * chunks + 4 * words
    assert crc == zlib.crc32(b[88 : 88 + 8 * chunks], zlib.crc32(b[:84]))
    table = np.frombuffer(b[88 : 88 + 8 * chunks], "<u4").reshape(-1, 2)
    assert table[:, 0].sum() == words


def test_the_checksum_word_by_word() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 50, dtype=np.uint32)

    def mix(word: int, index: int) -> int:
        h = (word + (index + 1) * 0x9E3779B9) % 2**32
        h = (h ^ h >> 16) * 0x7FEB352D % 2**32
        h = (h ^ h >> 15) * 0x846CA68B % 2**32
        return h ^ h >> 16

    want = [sum(mix(int(w), i) for i, w in enumerate(part)) % 2**32 for part in (words[:20], words[20:21], words[21:])]
    assert checksums(words, np.array([20, 1, 29], np.uint32)).tolist() == want


def test_a_wrong_checksum_says_which_chunk() -> None:
    b = bytearray(made())
    b[-5] ^= 1
    with pytest.raises(FormatError, match=r"wrong checksum of chunk 3: [0-9a-f]{8}, the table has"):
        codecs.decompress(bytes(b))
    _, values = codecs.decompress_chunk(bytes(b), 0)  # the others can be read
    assert values.shape == (1, 90, 32)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (0, 0, "not a container of rooftop"), (8, 2, "container of version 2; this is a reader of version 1"), (10, 9, "damaged header: codec 9"),
        (11, 99, "damaged header.*dtype 99"), (12, 5, "5 dimensions"), (13, 7, "bound 7"), (14, 4, "rank 4"), (15, 1, "reserved 1"), (32, 91, "wrong checksum"),
        (33, 1, "damaged or cut off"), (48, 1, "damaged header: shape"), (64, 5, "damaged or cut off"), (84, 1, "wrong checksum of the header"),
        (88, 1, "wrong checksum of the header"),
    ],
)
def test_a_changed_header_is_refused(at: int, value: int, what: str) -> None:
    b = bytearray(made())
    b[at] = value if b[at] != value else value + 1
    with pytest.raises(FormatError, match=what):
        codecs.decompress(bytes(b))


@pytest.mark.parametrize("codec", ["ratio", "planes", "fast", "shuffle"])
def test_a_small_file_that_names_a_large_array_is_refused_before_memory_is_taken(codec: str) -> None:
    """Its header, table and checksums fit: a word for each chunk of an array of up to 105 GB."""
    chunks = 50_000
    bound = (0, 0.0, 0.0) if codec in ("planes", "shuffle") else (1, 1.0, 1.0)
    rank, tile = (0, SYMBOLS) if codec == "planes" else (1, (BLOCKS if codec == "ratio" else TILES)[1][2])
    words, parameters = np.ones(chunks, np.uint32), bytes(rans_table()) if codec == "planes" else b""
    table = np.stack((words, checksums(words, words)), 1).tobytes()
    shape = (tile * chunks, 0, 0, 0)
    head = HEADER.pack(MAGIC, 1, CODEC_NUMBERS[codec], 1, 1, bound[0], rank, 0, *bound[1:], *shape, chunks, chunks, len(parameters), 0)[:-4]
    data = head + struct.pack("<I", zlib.crc32(parameters + table, zlib.crc32(head))) + parameters + table + words.tobytes()
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"damaged chunk 0: 1 words are too few for \d+ values"):
        codecs.decompress(data)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def rans_table() -> bytes:
    f = np.zeros(256, "<u2")
    f[0] = 4096
    return f.tobytes()


def test_every_cut_is_refused() -> None:
    b = made()
    for length in [*range(200), *range(200, len(b), 97), len(b) - 1]:
        with pytest.raises(FormatError):
            codecs.decompress(b[:length])
    with pytest.raises(FormatError):
        codecs.decompress(b + b"\0")


def test_every_bit_counts() -> None:
    """Of a small container each single bit, changed, is refused: none decides nothing, none decides anything unseen."""
    b = bytes(codecs.compress(np.sin(np.arange(60) / 9).astype(np.float32), abs=1e-2))
    for at in range(8 * len(b)):
        changed = bytearray(b)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(FormatError):
            codecs.decompress(bytes(changed))


@pytest.mark.parametrize("piece", range(10))
def test_changed_streams_are_refused_or_right(request: pytest.FixtureRequest, piece: int) -> None:
    """With --all a million, in ten pieces."""
    kinds, findings = fuzz.run(100_000 if request.config.getoption("--all") else 50, seed=5 + piece)
    assert findings == [] and kinds["refused"] > kinds.total() // 2 and kinds["decoded"] > 0


def test_changed_models_are_refused_or_read(request: pytest.FixtureRequest) -> None:
    kinds, findings = fuzz.run(10_000 if request.config.getoption("--all") else 120, seed=7, of_models=True)
    assert findings == [] and kinds["refused"] > kinds.total() // 2 and kinds["decoded"] > 0


def test_the_fuzz_of_models_sees_an_error_that_is_none_of_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise KeyError("shape")

    monkeypatch.setattr("rooftop.codecs.model.Compressed.read", broken)
    _, findings = fuzz.run(40, seed=7, of_models=True)
    assert any("KeyError: 'shape'" in f for f in findings)


def test_the_fuzz_sees_a_decoder_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooftop.codecs.api.verify", lambda *args: None)
    _, findings = fuzz.run(300, seed=5)
    assert any("other values" in f for f in findings)
    assert HEADER.size == 88


def test_it_is_small_where_nothing_changes() -> None:
    assert codecs.compress(np.zeros((512, 512), np.float32), abs=1e-3).ratio > 900
