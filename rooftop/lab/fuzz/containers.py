"""Mutated and truncated containers: the decoder must refuse them or give the right values; it may never crash, hang, or give other values
without a word.

    python -m rooftop.lab.fuzz.containers --streams 100000
    python -m rooftop.lab.fuzz.containers --streams 10000 --models
    compute-sanitizer --tool memcheck python -m rooftop.lab.fuzz.containers --streams 10000 --to cuda

Half of the streams are changed anywhere. Of the other half the checksums are made to fit again, so that the changes reach the decoders
behind them; what these give then cannot be told from data, so of them only a refusal or an array of the shape that the header says is
asked. With --models the files are compressed models (safetensors), of which every weight is read, and each alone: what is not refused must
have the dtype and shape that the file says, since names and copied weights have no checksum."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rooftop.codecs.api import compress, decompress
from rooftop.codecs.model import compress_model, weight, weights
from rooftop.formats.container import HEADER, FormatError, checksums, from_bytes
from rooftop.formats.elements import ELEMENTS
from rooftop.lab.exit_codes import Parser, device, ended, positive
from rooftop.lab.records import trials

PATIENCE = 20.0  # seconds of CPU time that one stream may take


def originals(seed: int = 0) -> list[tuple[bytes, np.ndarray]]:
    """Containers of every codec and of several types and shapes, with what they hold."""
    rng = np.random.default_rng(seed)
    found = []

    def add(x: np.ndarray, **how: object) -> None:
        c = bytes(compress(x, **how))  # type: ignore[arg-type]
        found.append((c, decompress(c)))

    line = np.cumsum(rng.normal(size=5000)).astype(np.float32)
    rough = line.copy()
    rough[::50] = [np.nan, np.inf, -0.0, 1e-40] * 25
    image = (np.sin(np.arange(130)[:, None] / 9) * np.cos(np.arange(67) / 5)).astype(np.float32)
    volume = (np.sin(np.arange(9)[:, None, None]) + np.cos(np.arange(18)[:, None] / 3) + np.arange(35) / 9).astype(np.float64)
    # the values before tell more than a coarser grid
    causal = (0.1 * np.cumsum(np.cumsum(rng.normal(size=(80, 90)), 0), 1)).astype(np.float32)
    weights = rng.normal(size=9000).astype(np.float32) * 0.02
    add(line, abs=0.01)
    add(rough, abs=0.01)
    add(image, rel=1e-3)
    add(volume, abs=1e-6)
    add(rng.normal(size=4500).astype(np.float32), abs=1e-12)  # raw chunks
    add(np.arange(5000, dtype=np.int32) ** 2, lossless=True, codec="shuffle")
    add(volume, lossless=True, codec="shuffle")
    add(weights.astype(ELEMENTS["bf16"].numpy), lossless=True, codec="planes")
    add(weights, lossless=True, codec="planes")
    add(rng.integers(0, 256, 9000, dtype=np.uint8), lossless=True, codec="planes")
    add(line, abs=0.05, codec="ratio")
    add(image, abs=1e-4, codec="ratio")
    add(causal, abs=2e-3, codec="ratio")
    add(np.zeros((3, 0, 4), np.float32), abs=1.0)
    return found


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes: bits, bytes, words of the header, runs, pieces exchanged, cut off, longer."""
    b = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, max(len(b), 1)))
        match int(rng.integers(0, 8)):
            case 0 | 1 if b:
                b[at] ^= 1 << int(rng.integers(0, 8))
            case 2 if b:
                b[at] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(0, 256))]))
            case 3 if len(b) >= HEADER.size:
                field = int(rng.integers(0, HEADER.size - 8))
                value = (0, 1, 2**31, 2**32, 2**62, 2**64 - 1)[int(rng.integers(0, 6))] if rng.integers(2) else int(rng.integers(0, 70))
                b[field : field + 8] = value.to_bytes(8, "little")
            case 4:
                del b[at:]
            case 5:
                length = int(rng.integers(1, 65))
                b[at : at + length] = rng.bytes(length)
            case 6:
                length = int(rng.integers(1, 40))
                piece = bytes(b[at : at + length])
                to = int(rng.integers(0, max(len(b) - length, 1)))
                b[to : to + length] = piece
            case _:
                b += rng.bytes(int(rng.integers(1, 9)))
    return bytes(b)


def mended(data: bytes) -> bytes:
    """The same with the checksums of its chunks, header and table made to fit, as far as its lengths allow."""
    if len(data) < HEADER.size:
        return data
    b = bytearray(data)
    fields = HEADER.unpack(b[: HEADER.size])
    chunks, words, parameters = fields[-4], fields[-3], fields[-2]
    table = HEADER.size + parameters
    if table + 8 * chunks + 4 * words == len(b):
        entries = np.frombuffer(bytes(b[table : table + 8 * chunks]), "<u4").reshape(-1, 2).copy()
        if int(entries[:, 0].sum(dtype=np.uint64)) == words:
            entries[:, 1] = checksums(np.frombuffer(bytes(b[table + 8 * chunks :]), "<u4"), entries[:, 0])
            b[table : table + 8 * chunks] = entries.tobytes()
    end = min(table + 8 * chunks, len(b))
    crc = zlib.crc32(bytes(b[HEADER.size : end]), zlib.crc32(bytes(b[: HEADER.size - 4])))
    b[HEADER.size - 4 : HEADER.size] = crc.to_bytes(4, "little")
    return bytes(b)


def streams(count: int, seed: int) -> Iterator[tuple[bytes, np.ndarray | None]]:
    """Changed containers; with what each must hold if it is not refused, None where its checksums fit again."""
    rng = np.random.default_rng(seed)
    held = originals()
    for i in range(count):
        data, x = held[i % len(held)]
        changed = mutated(data, rng)
        yield (changed, x) if i // len(held) % 2 else (mended(changed), None if changed != data else x)


def _contents(got: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of an array, or of a tensor on any device."""
    if isinstance(got, np.ndarray):
        return got.dtype.name, got.shape, got.tobytes()
    import torch

    return str(got.dtype).removeprefix("torch."), tuple(got.shape), got.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def judged(data: bytes, x: np.ndarray | None, to: str | None = None) -> tuple[str, str]:
    """What decompressing on the device `to` did: "refused", "right", "decoded" (checksums fit), or "finding" and what."""
    started = time.process_time()
    try:
        dtype, shape, values = _contents(decompress(data, to=to))
    except FormatError as error:
        kind, what = "refused", str(error).split(":")[0][:40]
    except Exception as error:
        kind, what = "finding", f"{type(error).__name__}: {error}"
    else:
        h = from_bytes(data).header
        if x is not None:
            right = (dtype, shape, values) == (x.dtype.name, x.shape, x.tobytes())
            kind, what = ("right", "") if right else ("finding", "other values than were compressed, and no error")
        else:
            kind, what = ("decoded", "") if shape == h.shape else ("finding", f"an array of {shape} of a container of {h.shape}")
    if (took := time.process_time() - started) > PATIENCE:
        return "finding", f"took {took:.0f} s"
    return kind, what


def model() -> bytes:
    """A compressed model: weights that are containers, and some that are copied."""
    rng = np.random.default_rng(3)
    held = {
        "a.weight": ("BF16", (rng.normal(size=9000) * 0.02).astype(ELEMENTS["bf16"].numpy)), "b.ids": ("I64", np.arange(5)),
        "c.weight": ("F32", rng.normal(size=(3, 700)).astype(np.float32)), "d.none": ("F16", np.empty((0, 3), np.float16)),
    }
    entries, data = {}, b""
    for name, (dtype, x) in held.items():
        entries[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "m.safetensors", Path(folder) / "c.safetensors"
        source.write_bytes(struct.pack("<Q", len(text)) + text + data)
        compress_model(source, target)
        return target.read_bytes()


def models(count: int, seed: int) -> Iterator[tuple[bytes, None]]:
    """Changed files of a model; half of the changes are in the header."""
    rng = np.random.default_rng(seed)
    data = model()
    end = 8 + int.from_bytes(data[:8], "little")
    for i in range(count):
        yield (mutated(data[:end], rng) + data[end:] if i % 2 else mutated(data, rng)), None


def judged_model(data: bytes, _: None, to: str | None = None) -> tuple[str, str]:
    """What reading the weights of a file did: "refused", "decoded", or "finding" and what."""
    started = time.process_time()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        path.write_bytes(data)
        try:
            found = dict(weights(path, device=to or "cpu"))
            kind, what = "decoded", ""
            for name, values in found.items():
                if _contents(weight(path, name, device=to or "cpu")) != _contents(values):
                    kind, what = "finding", f"weight {name[:40]!r} alone has other values"
        except FormatError as error:
            kind, what = "refused", str(error).split(":")[0][:40]
        except Exception as error:
            kind, what = "finding", f"{type(error).__name__}: {error}"
    if (took := time.process_time() - started) > PATIENCE:
        return "finding", f"took {took:.0f} s"
    return kind, what


def run(count: int, seed: int, to: str | None = None, of_models: bool = False) -> tuple[Counter[str], list[str]]:
    """How many streams did what, and the findings."""
    kinds: Counter[str] = Counter()
    findings = []
    made: Iterator[tuple[bytes, Any]] = models(count, seed) if of_models else streams(count, seed)
    for i, (data, x) in enumerate(made):
        kind, what = judged_model(data, x, to) if of_models else judged(data, x, to)
        kinds[kind] += 1
        if kind == "finding":
            findings.append(f"stream {i} of seed {seed}: {what}")
    return kinds, findings


def main() -> None:
    parser = Parser(prog="python -m rooftop.lab.fuzz.containers", description="Mutated and truncated containers.")
    parser.add_argument("--streams", type=positive, default=100_000)
    trials.options(parser)
    parser.add_argument("--to", type=device, help="decompress to tensors on this device: cpu, cuda")
    parser.add_argument("--models", action="store_true", help="files of compressed models, instead of containers")
    given = parser.parse_args()
    what = "mutated models" if given.models else "mutated containers"
    trials.ended(what, given, lambda: run(given.streams, given.seed, given.to, given.models))


if __name__ == "__main__":
    ended(main)
