"""Lossless compression with the codec `planes` of `rooftop.codecs`: the 8 most informative bits of each value are coded by rANS, the others
are stored unchanged.

    frequencies = shares of 4096 of the symbols of all of x;  a chunk = 32 states, their 16-bit words, planes of the kept bits

docs/codecs.md has the chunks word by word, rooftop/formats/rans.py the coder to the bit. The size of the result is data: it goes to memory
for the worst case, and `total` says on the device how much of it is used. Nothing waits for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Sizes, Timed, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats.elements import ELEMENTS
from rooftop.ops import _codecs

if TYPE_CHECKING:
    from torch import Tensor


def compress_planes(x: Tensor, *, implementation: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The chunks of `x`, concatenated, and the frequency table of their coder.

    Args:
        x: contiguous, any shape, of a dtype that `rooftop.codecs` supports. At most 2^31 - 1 chunks of 8192 values.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports `x`.

    Returns (words, table, frequencies, total). words: int32 [maximum size]; only the first `total` are used. table: int32 [chunks, 2],
    number of words and checksum of each chunk. frequencies: int16 [256]. total: int64 [1].

    Raises TypeError for other dtypes, ValueError for a tensor that is not contiguous."""
    import torch

    from rooftop.formats.elements import element_of

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"compress_planes: x is a {type(x).__name__}; it must be a tensor")
    e = element_of(x.dtype)
    if not x.is_contiguous():
        raise ValueError(f"compress_planes: x has strides {x.stride()}; it must be contiguous")
    table, words, frequencies, total = OP(x.detach().reshape(-1).view(_codecs.torch_bits(e.bytes)), e.name, implementation=implementation)
    return words, table, frequencies, total


def reference(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    import numpy as np
    import torch

    from rooftop.formats import codec_planes
    from rooftop.formats.array_chunks import mapped, parts
    from rooftop.formats.container import Header, checksums

    h = Header("planes", ELEMENTS[element], tuple(x.shape), "lossless", 0.0, 0.0, 0)
    grid = _codecs.as_array(x, element).reshape(h.grid)
    frequencies = np.frombuffer(codec_planes.table(grid, h), "<u2")
    made = mapped(lambda part: codec_planes.encode(part.cut(grid), part, h, frequencies), parts(h, limit=codec_planes.BATCH))
    words = np.zeros(_codecs.room(grid.size, h.chunks, h.element.bytes), np.uint32)
    used = np.concatenate([w for w, _ in made]) if made else words[:0]
    sizes = np.concatenate([s for _, s in made]) if made else np.zeros(0, np.uint32)
    words[: len(used)] = used
    table = np.stack((sizes, checksums(used, sizes)), 1).view(np.int32)
    found = (table, words.view(np.int32), frequencies.view(np.int16).copy(), np.array([len(used)], np.int64))
    return tuple(torch.from_numpy(a).to(x.device) for a in found)


def outputs(x: Meta, **_: Any) -> dict[str, Meta]:
    chunks = -(-x.numel // _codecs.SYMBOLS)
    return {
        "table": Meta((chunks, 2), "i32"), "words": Meta((_codecs.room(x.numel, chunks, x.itemsize),), "i32"),
        "frequencies": Meta((256,), "i16"), "total": Meta((1,), "i64"),
    }


def work(p: Problem) -> Work:
    """The values read once; what is written is data: at least a word a chunk and the table."""
    return Work(p["x"].nbytes, 12 * p["table"].shape[0] + 520)


def measured_work(p: Problem, tensors: Any) -> Work:
    return Work(p["x"].nbytes, 4 * int(tensors["total"]) + p["table"].nbytes + 520)


KINDS = ("weights", "smooth", "special", "noise", "constant")


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    x = tensors["x"]
    return {"x": _codecs.filled(x, options["element"], KINDS[x.numel() % 5] if x.numel() < 1 << 20 else "weights", generator)}


def _case(name: str, tags: str, n: int, element: str) -> Case:
    return case(name, tags=tags, x=Input((n,), _codecs.BITS[ELEMENTS[element].bytes], "below 100"), element=element)


def _cases() -> list[Case]:
    found = []
    for element in ELEMENTS:
        wide = element in ("bf16", "f32")
        found += [
            _case(f"{element} {n}", "edge", n, element) for n in ((0, 1, 127, 8190, 8192, 8193, 16394, 24580) if wide else (8190, 16399))
        ]
    return [
        *found, _case("bf16 256 MiB", "bench model", 1 << 27, "bf16"), _case("f32 256 MiB", "bench", 1 << 26, "f32"),
        _case("e4m3 128 MiB", "bench", 1 << 27, "f8e4m3"), _case("bf16 16 MiB", "bench", 1 << 23, "bf16"),
    ]


def _changed(change: str) -> Any:
    def run(x: Tensor, element: str) -> Any:
        table, words, frequencies, total = reference(x, element)
        if change == "word" and int(total):
            words[int(total) // 2] ^= 1
        if change == "table":
            frequencies = frequencies.roll(1)
        if change == "checksum" and table.numel():
            table[-1, 1] ^= 1
        if change == "total":
            total = total + 1
        return table, words, frequencies, total

    return run


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=_codecs.canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, values: _case("", "", values, dtype).inputs, {"values": (1 << 20, 1 << 28)}, dtypes=("bf16", "f32", "f8e4m3"),
        axis="values"
    ),
    work=work,
    timed=Timed(measured_work=measured_work),
    values=Values(fixup=fixup),
    judging=Judging(sizes={"words": "total"}),
    tolerance=Tolerance(exact=True),
    wrong={
        "a word wrong": _changed("word"), "frequencies of other symbols": _changed("table"), "last checksum wrong": _changed("checksum"),
        "a word too many": _changed("total"),
    },
)
