"""Arrays of any dtype, byte order, memory order and rank through `compress`, numcodecs, Zarr's formats 2 and 3: equal, within the bound, or refused."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rooftop import codecs

numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed: pip install zarr")
zarr = pytest.importorskip("zarr", reason="zarr is not installed: pip install zarr")
FORMAT_3 = int(zarr.__version__.split(".")[0]) >= 3

from rooftop.codecs.zarr import Rooftop  # noqa: E402

numcodecs.register_codec(Rooftop)
TAKEN = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
REFUSED = ("c8", "c16", "M8[s]", "m8[ns]", "S3", "U2", "V4", "O", "g")


LONGEST = (200, 40, 14, 8, 5)  # of a dimension, by rank


def drawn(rng: np.random.Generator) -> np.ndarray:
    """An array of up to 5 dimensions in any memory order, some of them views."""
    kind = str(rng.choice(TAKEN if rng.random() < 0.85 else REFUSED))
    rank, least = int(rng.integers(0, 6)), 0 if rng.random() < 0.05 else 1
    shape = tuple(int(n) for n in rng.integers(least, LONGEST[rank - 1] + 1, rank)) if rank else ()
    x = np.asarray(rng.normal(size=shape) * 10.0 ** int(rng.integers(-3, 3)))
    if x.ndim and rng.random() < 0.3:
        x = np.cumsum(x, axis=-1)
    if kind in ("f8", "f4", "f2") and x.size and rng.random() < 0.3:
        x.reshape(-1)[rng.integers(0, x.size, 3)] = [np.nan, -np.inf, -0.0]
    with np.errstate(all="ignore"):
        x = np.ones(shape, "i8").astype(kind) if kind in REFUSED else (np.abs(x) % 120 if kind.startswith("u") else x).astype(kind)
    x = np.asarray(x)  # no scalar
    if rng.random() < 0.4 and x.dtype.itemsize > 1 and kind != "O":
        x = x.astype(x.dtype.newbyteorder(">"))
    match int(rng.integers(0, 5)):
        case 0:
            return np.asfortranarray(x)
        case 1 if x.ndim:
            return x[::-1]
        case 2 if x.ndim > 1:
            return np.moveaxis(x, 0, -1)
        case 3 if x.ndim:
            return np.repeat(x, 2, axis=-1)[..., ::2]
    return x


def how(rng: np.random.Generator) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"lossless": True, "codec": str(rng.choice(["auto", "planes", "shuffle"]))}
    return {str(rng.choice(["abs", "rel", "psnr"])): float(rng.choice([1e-3, 0.5, 2, 30])), "codec": str(rng.choice(["auto", "fast", "ratio"]))}


def expected(x: np.ndarray, way: str, error: Exception) -> bool:
    """Whether this refusal is one that the array deserves; one of ours is a plain line."""
    ours = str(error).startswith(("compress:", "rooftop:"))
    if ours and ("\n" in str(error) or len(str(error)) > 200):
        return False
    fits = x.dtype.kind in "fiub" and x.dtype.itemsize <= 8 and (x.dtype.isnative or way in ("compress", "format 3"))
    return not fits or (way == "compress" and x.ndim > 4) or str(error).startswith(("compress: codec 'ratio'", "compress: rel", "compress: psnr"))


def within(got: np.ndarray, x: np.ndarray, how: dict[str, Any]) -> bool:
    """Equal bit for bit without loss, else within the bound; NaN and infinities where they were. The range of a chunk is at most that of the array and of the
    value 0, with which Zarr fills chunks up."""
    if got.shape != x.shape or got.dtype.newbyteorder("=") != x.dtype.newbyteorder("="):
        return False
    if how.get("lossless") or x.dtype.kind not in "fiub":  # what no codec takes may pass one by, as a chunk that is not written
        return got.astype(x.dtype).tobytes() == x.tobytes()
    a, b = got.astype(np.float64), x.astype(np.float64)
    some = np.isfinite(b)
    if not np.array_equal(a[~some], b[~some], equal_nan=True):
        return False
    width = float(np.ptp([0.0, *b[some]]))
    eb = how["abs"] if "abs" in how else how["rel"] * width if "rel" in how else width * 10 ** (-how["psnr"] / 20)
    return bool(np.all(np.abs(a[some] - b[some]) <= eb * (1 + 1e-12)))


def through_compress(x: np.ndarray, how: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    return codecs.decompress(bytes(codecs.compress(x, **how)))


def through_numcodecs(x: np.ndarray, how: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """As numcodecs has it: a codec keeps the bytes of a contiguous buffer, in the order of memory."""
    codec, order = Rooftop(**how), "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    data = codec.encode(x)
    found = codec.decode(data).view(x.dtype).reshape(x.shape, order=order)
    out = np.empty(x.shape, x.dtype, order=order)  # type: ignore[call-overload]
    codec.decode(data, out=out)
    assert out.tobytes() == found.tobytes()
    return found


def through_zarr(x: np.ndarray, how: dict[str, Any], rng: np.random.Generator, version: int) -> np.ndarray:
    chunks = tuple(max(1, int(rng.integers(1, n + 1))) if n else 1 for n in x.shape)
    order, store = str(rng.choice(["C", "F"])), (zarr.storage.MemoryStore if FORMAT_3 else dict)()
    if version == 2 and FORMAT_3:
        a = zarr.create_array(store=store, shape=x.shape, chunks=chunks, dtype=x.dtype, order=order, zarr_format=2, compressors=Rooftop(**how), fill_value=0)
    elif version == 2:
        a = zarr.create(shape=x.shape, chunks=chunks, dtype=x.dtype, order=order, compressor=Rooftop(**how), store=store, fill_value=0)
    else:
        from rooftop.codecs.zarr3 import Rooftop as Serializer

        zarr.registry.register_codec("rooftop", Serializer)
        shards = {"shards": tuple(2 * c for c in chunks)} if x.ndim and rng.random() < 0.2 else {}
        config = {"order": order}
        a = zarr.create_array(
            store=store, shape=x.shape, chunks=chunks, dtype=x.dtype, config=config, serializer=Serializer(**how), fill_value=0, **shards,
            compressors=None if rng.random() < 0.5 else "auto",
        )
    a[...] = x
    found = zarr.open(store, mode="r")[...]
    return np.asarray(found)


WAYS = {
    "compress": through_compress, "numcodecs": through_numcodecs, "format 2": lambda *given: through_zarr(*given, 2),
    **({"format 3": lambda *given: through_zarr(*given, 3)} if FORMAT_3 else {}),
}


def campaign(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How many arrays came back right or were refused with a TypeError or ValueError, by way; and what else happened."""
    kinds: Counter[str] = Counter()
    findings = []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        x, asked = drawn(rng), how(rng)
        for name, through in WAYS.items():
            said = f"array {i} of seed {seed}, {name}: {x.dtype.str} {x.shape} strides {x.strides} {asked}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = through(x, asked, rng)
                except (TypeError, ValueError) as error:
                    kinds[f"{name}: refused"] += 1
                    if not expected(x, name, error):
                        findings.append(f"{said}: refused: {error}")
                    continue
                except Exception as error:
                    findings.append(f"{said}: {type(error).__name__}: {error}")
                    continue
            kinds[f"{name}: right"] += 1
            if not within(found, x, asked):
                findings.append(f"{said}: other values")
    return kinds, findings


def test_any_array_comes_back_or_is_refused(request: pytest.FixtureRequest) -> None:
    kinds, findings = campaign(10_000 if request.config.getoption("--all") else 24, seed=7)
    assert findings == [] and all(kinds[f"{name}: right"] and kinds[f"{name}: refused"] for name in WAYS)


def test_square_chunks_in_the_order_of_fortran() -> None:
    """Of a square chunk the shape does not tell that it was turned."""
    x = np.arange(400, dtype="f4").reshape(20, 20)
    codec = Rooftop(lossless=True)
    assert (codec.decode(codec.encode(np.asfortranarray(x))) == x.T.reshape(-1)).all()
    out = np.empty((20, 20), "f4", order="F")
    assert (codec.decode(codec.encode(np.asfortranarray(x)), out=out) == x).all() and (out == x).all()


def test_what_numcodecs_could_not_tell_is_refused() -> None:
    x = np.arange(12, dtype=">f4")
    with pytest.raises(TypeError, match="values are >f4, big-endian, and the container does not store the byte order: use <f4"):
        Rooftop(abs=1.0).encode(x)
    with pytest.raises(TypeError, match="a memoryview holds bytes, not values that may change within a bound: give an array, or lossless=True"):
        Rooftop(abs=1.0).encode(memoryview(b"12345678"))
    codec = Rooftop(lossless=True)
    assert bytes(codec.decode(codec.encode(b"12345678"))) == b"12345678"
    data = codec.encode(x.astype("<f4"))
    for out, error, said in (
        (np.empty(12, ">f4"), TypeError, "out is >f4; the chunk holds <f4"), (np.empty(12, "i4"), TypeError, "out is <i4"),
        (np.empty(11, "f4"), ValueError, "out has 44 bytes; the chunk holds 48"), (np.empty(13, "f4"), ValueError, "52 bytes"),
    ):
        with pytest.raises(error, match=said):
            codec.decode(data, out=out)
    raw = bytearray(48)
    codec.decode(data, out=raw)
    assert bytes(raw) == x.astype("<f4").tobytes()


@pytest.mark.skipif(not FORMAT_3, reason="this zarr has no format 3")
def test_format_3_says_what_it_does_not_take_before_anything_is_written() -> None:
    from rooftop.codecs.zarr3 import Rooftop as Serializer

    store = zarr.storage.MemoryStore()
    with pytest.raises(TypeError, match="dtype is complex64; accepted are f64"):
        zarr.create_array(store=store, shape=(4,), dtype="c8", serializer=Serializer(lossless=True))
    with pytest.raises(ValueError, match="'ratio' is for floats; the array is i32"):
        zarr.create_array(store=store, shape=(4,), dtype="i4", serializer=Serializer(abs=1.0, codec="ratio"))
    with pytest.raises(ValueError, match="exactly one"):
        Serializer()
    codec = Serializer(abs=1e-3, rank=1)
    assert codec.to_dict() == {"name": "rooftop", "configuration": {"abs": 1e-3, "rank": 1}} and Serializer.from_dict(codec.to_dict()) == codec
    a = zarr.create_array(store=store, shape=(9, 9), chunks=(9, 9), dtype="f4", serializer=Serializer(lossless=True), compressors=None, fill_value=0)
    a[...] = np.ones((9, 9), "f4")
    key = next(k for k in store._store_dict if k.startswith("c/"))
    data = bytearray(store._store_dict[key].to_bytes())
    data[-1] ^= 1
    store._store_dict[key] = type(store._store_dict[key]).from_bytes(bytes(data))
    with pytest.raises(codecs.FormatError, match="wrong checksum of chunk 0"):
        zarr.open_array(store, mode="r")[...]
