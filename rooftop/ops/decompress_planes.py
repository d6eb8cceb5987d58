"""Decompression for the codec `planes`: the inverse of `rooftop.compress_planes`, safe for any words.

    symbol of a state = the one whose share of 4096 the state's low 12 bits lie in;  value = symbol and kept bits put together

What the words are is not trusted: a chunk whose checksum, lengths or last states do not fit becomes zeros and a number in `damaged`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Op, Sizes, Timed, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats.elements import ELEMENTS
from rooftop.ops import _codecs
from rooftop.ops import compress_planes as compressing

if TYPE_CHECKING:
    from torch import Tensor

TOGETHER = 256  # chunks that the reference decodes at a time


def decompress_planes(
    words: Tensor, table: Tensor, frequencies: Tensor, shape: tuple[int, ...], dtype: Any, *, implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """Decompress the chunks that `rooftop.compress_planes` wrote.

    Args:
        words: int32 [n], contiguous.
        table: int32 [chunks, 2]: words and checksum of each chunk.
        frequencies: int16 [256]; if they do not add up to 4096, every coded chunk counts as damaged.
        shape, dtype: of the values.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports it.

    Returns (x, damaged): the values, and int32 [chunks]: 0, or why a chunk could not be decoded: 1 it is outside of `words`, 2 its checksum
    differs, 3 its lengths or states are inconsistent. The values of such a chunk are 0.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit."""
    from math import prod

    import torch

    from rooftop.formats.elements import element_of

    op, shape, e = "decompress_planes", tuple(shape), element_of(dtype)
    for name, t, wanted in (("words", words, torch.int32), ("table", table, torch.int32), ("frequencies", frequencies, torch.int16)):
        if not isinstance(t, torch.Tensor) or t.dtype != wanted or not t.is_contiguous():
            raise TypeError(f"{op}: {name} must be a contiguous tensor of {wanted}")
    chunks = -(-prod(shape) // _codecs.SYMBOLS)
    if words.dim() != 1 or tuple(table.shape) != (chunks, 2) or tuple(frequencies.shape) != (256,):
        given = f"words {tuple(words.shape)}, table {tuple(table.shape)}, frequencies {tuple(frequencies.shape)}"
        raise ValueError(f"{op}: {given}; they must be [n], [{chunks}, 2] and [256] for {shape}")
    _codecs.same_place(op, {"table": table, "frequencies": frequencies}, words.device)
    starts = torch.nn.functional.pad((table[:, 0].long() & 0xFFFFFFFF).cumsum(0), (1, 0))
    bits, damaged = OP(words, starts, table[:, 1].contiguous(), frequencies, prod(shape), e.name, implementation=implementation)
    return bits.view(dtype).reshape(shape), damaged


def reference(words: Tensor, starts: Tensor, checks: Tensor, frequencies: Tensor, n: int, element: str) -> tuple[Tensor, Tensor]:
    import numpy as np
    import torch

    from rooftop.formats import codec_planes
    from rooftop.formats.array_chunks import Part, mapped
    from rooftop.formats.container import FormatError, Header, checksums

    h = Header("planes", ELEMENTS[element], (n,), "lossless", 0.0, 0.0, 0)
    held, ends, wanted = _codecs.as_array(words, "u32"), starts.cpu().numpy(), _codecs.as_array(checks, "u32")
    table = frequencies.cpu().numpy().view(np.uint16)
    fits = int(table.sum(dtype=np.int64)) == 4096
    out, damaged = np.zeros(n, h.element.bits), np.zeros(h.chunks, np.int32)
    sizes = np.diff(ends)
    damaged[(ends[:-1] < 0) | (sizes < 1) | (sizes > 1 + 2048 * h.element.bytes) | (ends[1:] > len(held))] = 1

    def summed(run: np.ndarray) -> None:
        """Neighbouring chunks within the words."""
        a, b = int(run[0]), int(run[-1]) + 1
        damaged[a:b][checksums(held[int(ends[a]) : int(ends[b])], sizes[a:b].astype(np.uint32)) != wanted[a:b]] = 2

    def decode(a: int, b: int) -> None:
        """Chunks a to b - 1 together; where one of them is damaged, each half of them by itself."""
        values, words_of = min((b - a) * _codecs.SYMBOLS, n - a * _codecs.SYMBOLS), held[int(ends[a]) : int(ends[b])]
        part = Part(a, b, (slice(0, 1), slice(0, 1), slice(0, 1), slice(0, values)), (1, 1, 1, b - a), h.tile)
        try:
            found = codec_planes.decode(words_of, ends[a : b + 1] - ends[a], part, h, table)
            out[a * _codecs.SYMBOLS : a * _codecs.SYMBOLS + values] = found.reshape(-1)[:values]
        except FormatError:
            if b - a == 1:
                damaged[a] = 3
            else:
                decode(a, (a + b) // 2)
                decode((a + b) // 2, b)

    def runs() -> list[np.ndarray]:
        """Neighbouring chunks that nothing was found wrong with, TOGETHER at most."""
        good = np.flatnonzero(damaged == 0)
        found = np.split(good, np.flatnonzero(np.diff(good) > 1) + 1)
        return [run[i : i + TOGETHER] for run in found for i in range(0, len(run), TOGETHER)]

    mapped(summed, runs())
    if not fits:
        damaged[[c for run in runs() for c in run if held[int(ends[c])]]] = 3
    mapped(lambda run: decode(int(run[0]), int(run[-1]) + 1), runs())
    signed = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[h.element.bytes]
    return torch.from_numpy(out.view(signed)).to(words.device), torch.from_numpy(damaged).to(words.device)


def outputs(n: int, element: str, **_: Any) -> dict[str, Meta]:
    return {"y": Meta((n,), _codecs.BITS[ELEMENTS[element].bytes]), "damaged": Meta((-(-n // _codecs.SYMBOLS),), "i32")}


def work(p: Problem) -> Work:
    """The values written once; at least a word a chunk read."""
    return Work(4 * p["damaged"].numel + p["starts"].nbytes + p["checks"].nbytes + 512, p["y"].nbytes + p["damaged"].nbytes)


def measured_work(p: Problem, tensors: Any) -> Work:
    return Work(4 * int(tensors["starts"][-1]) + p["starts"].nbytes + p["checks"].nbytes + 512, p["y"].nbytes + p["damaged"].nbytes)


KINDS = ("weights", "special", "noise", "smooth", "bad words", "bad states", "bad starts", "bad frequencies")


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """A stream of `compress_planes`; in the cases of bad streams with words, states, places or frequencies changed."""
    import numpy as np
    import torch

    from rooftop.formats.container import checksums

    words, n, element = tensors["words"], options["n"], options["element"]
    size, chunks = ELEMENTS[element].bytes, -(-options["n"] // _codecs.SYMBOLS)
    kind = KINDS[int(words.numel() - _codecs.room(n, chunks, size))]
    x = torch.zeros(n, dtype=_codecs.torch_bits(size), device=words.device)
    x = _codecs.filled(x, element, kind if kind in ("special", "noise", "smooth") else "weights", generator)
    table, new, frequencies, total = compressing.reference(x, element)
    new = torch.nn.functional.pad(new, (0, words.numel() - new.numel()))
    ends = torch.nn.functional.pad((table[:, 0].long() & 0xFFFFFFFF).cumsum(0), (1, 0))
    if kind == "bad words" and int(total):
        new[torch.randint(0, int(total), (1,), generator=generator, device=words.device)] ^= 64
    if kind == "bad states":  # their checksums fit
        for c in range(chunks):
            first, last = int(ends[c]), int(ends[c + 1])
            new[first + int(torch.randint(0, min(40, last - first), (1,), generator=generator, device=words.device))] ^= 1 << 20
            table[c, 1] = int(checksums(_codecs.as_array(new[first:last], "u32"), np.array([last - first], np.uint32)).view(np.int32)[0])
    if kind == "bad starts" and chunks:
        ends[chunks // 2] += 3
        ends[-1] = 1 << 40
    if kind == "bad frequencies":
        frequencies[3] += 1
    return {"words": new, "starts": ends, "checks": table[:, 1].contiguous(), "frequencies": frequencies}


def _case(name: str, tags: str, n: int, element: str, kind: str = "weights") -> Case:
    chunks = -(-n // _codecs.SYMBOLS)
    words = _codecs.room(n, chunks, ELEMENTS[element].bytes) + KINDS.index(kind)
    return case(
        name, tags=tags, words=Input((words,), "i32", "below 100"), starts=Input((chunks + 1,), "i64", "below 100"),
        checks=Input((chunks,), "i32", "below 100"),
        frequencies=Input((256,), "i16", "below 100"), n=n, element=element,
    )


def _cases() -> list[Case]:
    found = []
    for element in ELEMENTS:
        kinds = KINDS if element in ("bf16", "f32") else ("weights", "noise")
        found += [_case(f"{element}, {kind}", "edge", 16399, element, kind) for kind in kinds]
    found += [_case(f"bf16 {n}", "edge", n, "bf16") for n in (0, 1, 127, 8190, 8193)]
    return [
        *found, _case("bf16 256 MiB", "bench model", 1 << 27, "bf16"), _case("f32 256 MiB", "bench", 1 << 26, "f32"),
        _case("e4m3 128 MiB", "bench", 1 << 27, "f8e4m3"), _case("bf16 16 MiB", "bench", 1 << 23, "bf16"),
    ]


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=_codecs.canonical,
    cases=_cases(),
    # The streams are the reference's, which the CPU makes: with more values a point would take a minute.
    swept=Sizes(
        lambda dtype, values: _case("", "", values, dtype).inputs, {"values": (1 << 18, 1 << 25)}, dtypes=("bf16", "f32", "f8e4m3"),
        axis="values"
    ),
    work=work,
    timed=Timed(measured_work=measured_work),
    values=Values(fixup=fixup),
    tolerance=Tolerance(exact=True),
    wrong={
        "damage not told": _codecs.wrong_decoder(reference, "damage"), "last value wrong": _codecs.wrong_decoder(reference, "values"),
    },
)
