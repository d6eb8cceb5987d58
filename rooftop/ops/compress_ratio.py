"""Error-bounded compression with the codec `ratio` of `rooftop.codecs`, on the device: by interpolation, without fitted weights.

    k = rint((x - p) / step), p predicted from values that are known already; symbols of k by rANS (docs/codecs.md)

A chunk has exactly the words that `rooftop.codecs.compress(..., codec="ratio", fitted=False)` gives it on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Sizes, Timed, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, case
from rooftop.formats.container import Header, grid_of, rank_of
from rooftop.formats.elements import ELEMENTS
from rooftop.ops import _codecs

if TYPE_CHECKING:
    from torch import Tensor


def compress_ratio(
    x: Tensor, bound: Tensor, *, rank: int | None = None, implementation: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The chunks of `x`, concatenated: the contents of a container of the codec `ratio`, as tensors on the device.

    Args:
        x: contiguous, floating point, any shape of up to 4 dimensions. At most 2^31 - 1 chunks.
        bound: float64, one element, above 0, on the device of `x`: the largest absolute error.
        rank: 1, 2 or 3: dimensions of the predictor. None: the default of `rooftop.codecs.compress`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns (words, table, total). words: int32 [maximum size]; only the first `total` are used. table: int32 [chunks, 2], number of words
    and checksum of each chunk. total: int64 [1].

    Raises TypeError for other dtypes, ValueError for shapes, ranks or bounds that do not fit."""
    import torch

    from rooftop.formats.elements import element_of

    op, e = "compress_ratio", element_of(x.dtype)
    shape = tuple(x.shape)
    rank = rank_of(shape) if rank is None else rank
    if e.kind != "float":
        raise TypeError(f"{op}: x is {x.dtype}; the codec is for floats")
    if rank not in (1, 2, 3) or len(shape) > 4 or not x.is_contiguous():
        raise ValueError(f"{op}: rank is {rank!r} of the shape {shape}; it must be 1, 2 or 3, of at most 4 dimensions, contiguous")
    if not isinstance(bound, torch.Tensor) or bound.dtype != torch.float64 or bound.numel() != 1:
        raise ValueError(f"{op}: bound must be float64, one element")
    _codecs.same_place(op, {"bound": bound}, x.device)
    grid = x.view(_codecs.torch_bits(e.bytes)).reshape(grid_of(shape, rank))
    table, words, total = OP(grid, bound.reshape(1), e.name, rank, implementation=implementation)
    return words, table, total


def header(grid: tuple[int, ...], element: str, rank: int, bound: float) -> Header:
    return Header("ratio", ELEMENTS[element], grid, "abs", bound, bound, rank)


def reference(x: Tensor, bound: Tensor, element: str, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    import numpy as np
    import torch

    from rooftop.formats import codec_ratio
    from rooftop.formats.array_chunks import mapped
    from rooftop.formats.container import checksums

    h = header(tuple(x.shape), element, rank, float(bound))
    grid = _codecs.as_array(x, element).reshape(h.grid)
    made = mapped(lambda c: codec_ratio.encode([np.ascontiguousarray(grid[h.place(c)])], h, False)[0], list(range(h.chunks)))
    sizes = np.array([len(w) for w in made], np.uint32)
    used = np.concatenate(made) if made else np.zeros(0, np.uint32)
    words = np.zeros(_codecs.room(x.numel(), h.chunks, h.element.bytes), np.uint32)
    words[: len(used)] = used
    found = (np.stack((sizes, checksums(used, sizes)), 1).view(np.int32), words.view(np.int32), np.array([len(used)], np.int64))
    table, held, total = (torch.from_numpy(a).to(x.device) for a in found)
    return table, held, total


def outputs(x: Meta, element: str, rank: int, **_: Any) -> dict[str, Meta]:
    chunks = header(x.shape, element, rank, 1.0).chunks
    return {
        "table": Meta((chunks, 2), "i32"), "words": Meta((_codecs.room(x.numel, chunks, x.itemsize),), "i32"), "total": Meta((1,), "i64")
    }


KINDS = ("smooth", "special", "noise", "smooth", "constant")
BOUNDS = {"f64": 1e-6, "f32": 1e-3, "f16": 0.01, "bf16": 0.05}


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Values by the number of them."""
    x, element = tensors["x"], options["element"]
    kind = KINDS[x.numel() % 5] if x.numel() < 1 << 20 else "smooth"
    return {"x": _codecs.filled(x, element, kind, generator), "bound": tensors["bound"].new_full((1,), BOUNDS.get(element, 0.1))}


def _case(name: str, tags: str, shape: tuple[int, ...], element: str, rank: int) -> Case:
    return case(
        name, tags=tags, x=Input(shape, _codecs.BITS[ELEMENTS[element].bytes], "below 100"), bound=Input((1,), "f64"), element=element, rank=rank
    )


def _cases() -> list[Case]:
    found = [_case(f"{e} line {n}", "edge", (1, 1, 1, n), e, 1) for e in ("f32", "f64", "bf16") for n in (4095, 4096)]
    found += [_case(f"f32 line {n}", "edge", (1, 1, 1, n), "f32", 1) for n in (0, 1, 2, 65, 4097, 262400)]
    shapes = ((2, 2, 1, 67, 90), (2, 1, 1, 40, 47), (3, 1, 19, 23, 38), (3, 1, 66, 3, 71), (3, 2, 9, 17, 35), (3, 1, 33, 35, 31))
    found += [_case(f"f32 {'x'.join(map(str, s))} rank {rank}", "edge", s, "f32", rank) for rank, *s4 in shapes for s in (tuple(s4),)]
    return [
        *found, _case("volume 64 MiB", "bench", (1, 256, 256, 256), "f32", 3), _case("image 16 MiB", "bench", (1, 1, 2048, 2048), "f32", 2)
    ]


def _changed(change: str) -> Any:
    def run(x: Tensor, bound: Tensor, element: str, rank: int) -> Any:
        table, words, total = reference(x, bound * 2 if change == "bound" else bound, element, rank)
        if change == "word" and int(total):
            words[int(total) // 2] ^= 1
        if change == "checksum" and table.numel():
            table[-1, 1] ^= 1
        if change == "total":
            total = total + 1
        return table, words, total

    return run


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=_codecs.canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, planes, rows, columns: _case("", "", (1, planes, rows, columns), dtype, rank_of((1, planes, rows, columns))).inputs,
        {"planes": (1, 64), "rows": (64, 256), "columns": (64, 256)}, dtypes=("f32",)
    ),
    work=_codecs.work,
    timed=Timed(measured_work=_codecs.measured_work),
    values=Values(fixup=fixup),
    judging=Judging(sizes={"words": "total"}),
    tolerance=Tolerance(exact=True),
    wrong={
        "twice the bound": _changed("bound"), "a word wrong": _changed("word"), "last checksum wrong": _changed("checksum"),
        "a word too many": _changed("total"),
    },
)
