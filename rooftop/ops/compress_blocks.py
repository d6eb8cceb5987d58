"""Compression with the codecs `fast` (error-bounded) and `shuffle` (lossless) of `rooftop.codecs`: differences, and one bit width for each
32 values.

    k = rint(x / (2 bound)), verified; differences along 0 to `rank` dimensions of a chunk; the bits of 32 of them as planes, as many as the
    widest needs

docs/codecs.md has the chunks word by word, rooftop/formats/error_bounded.py the arithmetic to the bit. The size of the result is data: it
goes to memory for the worst case (`room`: the values and two words a chunk), and `total` says on the device how much of it is used. Nothing
waits for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Sizes, Timed, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, case
from rooftop.formats.container import rank_of
from rooftop.formats.elements import ELEMENTS
from rooftop.ops import _codecs

if TYPE_CHECKING:
    from torch import Tensor


def compress_blocks(
    x: Tensor, bound: Tensor | None = None, *, rank: int | None = None, implementation: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The chunks of `x`, concatenated: the contents of the container of `rooftop.codecs.compress`, as tensors on the device.

    Args:
        x: contiguous, any shape of up to 4 dimensions, of a dtype that `rooftop.codecs` supports. At most 2^31 - 1 chunks.
        bound: float64, one element, on the device of `x`: the largest absolute error. None: lossless. A bound that is not above 0 keeps
            every value exactly.
        rank: 1, 2 or 3: the number of dimensions along which differences may be taken. None: the default of `rooftop.codecs.compress`.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports `x`.

    Returns (words, table, total). words: int32 [maximum size]; only the first `total` are used. table: int32 [chunks, 2], number of words
    and checksum of each chunk. total: int64 [1].

    Raises TypeError for other dtypes, ValueError for shapes, ranks or devices that do not fit."""
    import torch

    from rooftop.formats.container import grid_of
    from rooftop.formats.elements import element_of

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"compress_blocks: x is a {type(x).__name__}; it must be a tensor")
    e = element_of(x.dtype)
    if x.dim() > 4 or not x.is_contiguous():
        raise ValueError(f"compress_blocks: x has {x.dim()} dimensions, strides {x.stride()}; it must be contiguous, of at most 4")
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= 3):
        raise ValueError(f"compress_blocks: rank is {rank!r}; it must be 1, 2 or 3")
    if bound is not None and (
        not isinstance(bound, torch.Tensor) or bound.dtype != torch.float64 or bound.numel() != 1 or bound.device != x.device
    ):
        raise ValueError(f"compress_blocks: bound must be float64, one element, on {x.device}")
    rank = rank_of(tuple(x.shape)) if rank is None else rank
    bits = x.detach().reshape(-1).view(_codecs.torch_bits(e.bytes)).reshape(grid_of(tuple(x.shape), rank))
    table, words, total = OP(bits, None if bound is None else bound.reshape(1), e.name, rank, implementation=implementation)
    return words, table, total


def reference(x: Tensor, bound: Tensor | None, element: str, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    import numpy as np
    import torch

    from rooftop.formats.array_chunks import mapped, parts
    from rooftop.formats.codec_fast import encode
    from rooftop.formats.container import checksums

    h = _codecs.header(tuple(x.shape), element, rank, None if bound is None else float(bound))
    grid = _codecs.as_array(x, element)
    made = mapped(lambda part: encode(part.cut(grid), part, h), parts(h))
    words = np.zeros(_codecs.room(grid.size, h.chunks, h.element.bytes), np.uint32)
    used = np.concatenate([w for w, _ in made]) if made else words[:0]
    sizes = np.concatenate([s for _, s in made]) if made else np.zeros(0, np.uint32)
    words[: len(used)] = used
    table = np.stack((sizes, checksums(used, sizes)), 1)
    return tuple(torch.from_numpy(a).to(x.device) for a in (table.view(np.int32), words.view(np.int32), np.array([len(used)], np.int64)))


def outputs(x: Meta, element: str, rank: int, **_: Any) -> dict[str, Meta]:
    chunks = _codecs.chunks_of(x.shape, rank)
    return {
        "table": Meta((chunks, 2), "i32"), "words": Meta((_codecs.room(x.numel, chunks, x.itemsize),), "i32"), "total": Meta((1,), "i64")
    }


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Values by what the first of the random ones says: the case's kind stands in `bound`'s place or in its shape."""
    x, bound = tensors["x"], tensors["bound"]
    element, e = options["element"], ELEMENTS[options["element"]]
    kinds = ("smooth", "special", "noise", "smooth", "weights", "constant")
    kind = kinds[x.numel() % 6] if x.numel() < 1 << 20 else "smooth"
    found = {"x": _codecs.filled(x, element, kind, generator)}
    if bound is not None:
        steps = {"f8e4m3": 0.05, "f8e5m2": 0.1, "bf16": 0.01, "f16": 1e-3, "f32": 1e-4, "f64": 1e-9}
        found["bound"] = bound.new_full((1,), steps.get(e.name, 2.0))
    return found


def _case(name: str, tags: str, shape: tuple[int, ...], element: str, rank: int, lossy: bool, why: str = "") -> Case:
    bits = _codecs.BITS[ELEMENTS[element].bytes]
    return case(
        name, tags=tags, why=why, x=Input(shape, bits, "below 100"), bound=Input((1,), "f64") if lossy else None, element=element, rank=rank
    )


def _cases() -> list[Case]:
    found = []
    for element in ELEMENTS:
        for lossy in (True, False):
            way = "lossy" if lossy else "lossless"
            lines = (
                0, 1, 4095, 4099, 12288, 12289, 12290
            ) if element == "f32" else (4099, 12290) if element in ("f64", "bf16") or lossy else (8197,)
            found += [_case(f"{way} {element} line {n}", "edge", (1, 1, 1, n), element, 1, lossy) for n in lines]
            images = (
                (1, 1, 130, 33), (2, 1, 129, 64), (1, 1, 128, 95)
            ) if element == "f32" else ((2, 1, 129, 35),) if element in ("f64", "i32") else ()
            found += [_case(f"{way} {element} image {'x'.join(map(str, s))}", "edge", s, element, 2, lossy) for s in images]
            volumes = (
                (1, 9, 17, 33), (2, 8, 16, 64), (1, 1, 31, 95)
            ) if element == "f32" else ((2, 9, 17, 35),) if element in ("f64", "f16") else ()
            found += [_case(f"{way} {element} volume {'x'.join(map(str, s))}", "edge", s, element, 3, lossy) for s in volumes]
    found += [
        _case("volume 256 MiB", "bench", (1, 256, 512, 512), "f32", 3, True),
        _case("image 256 MiB", "bench", (1, 1, 8192, 8192), "f32", 2, True),
        _case("line 256 MiB", "bench", (1, 1, 1, 1 << 26), "f32", 1, True),
        _case("volume f64 256 MiB", "bench", (1, 128, 512, 512), "f64", 3, True),
        _case("volume lossless 256 MiB", "bench", (1, 256, 512, 512), "f32", 3, False),
        _case("line 16 MiB", "bench", (1, 1, 1, 1 << 22), "f32", 1, True),
    ]
    return found


def _swept(dtype: str, planes: int, rows: int, columns: int) -> dict[str, Any]:
    """With a bound: images and volumes of 2^20 values and more, which are smooth."""
    shape = (1, planes, rows, columns)
    return dict(_case("", "", shape, dtype, rank_of(shape), True).inputs)


def _changed(change: str) -> Any:
    def run(x: Tensor, bound: Tensor | None, element: str, rank: int) -> Any:
        if change == "bound" and bound is not None:
            bound = bound * 2
        if change == "rank":
            other = _padded(reference(x.reshape(1, 1, 1, -1), bound, element, 1))
            return tuple(t[: len(right)] for t, right in zip(other, reference(x, bound, element, rank), strict=True))
        table, words, total = reference(x, bound, element, rank)
        if change == "checksum" and table.numel():
            table[-1, 1] ^= 1
        if change == "word" and int(total):
            words[int(total) - 1] ^= 1 << 30
        if change == "total":
            total = total + 1
        return table, words, total

    return run


def _padded(found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    table, words, total = found
    more = 2 * words.numel() + 64
    return torch.nn.functional.pad(table, (0, 0, 0, more)), torch.nn.functional.pad(words, (0, more)), total


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=_codecs.canonical,
    cases=_cases(),
    swept=Sizes(_swept, {"planes": (1, 512), "rows": (1024, 8192), "columns": (1024, 8192)}, dtypes=("f32", "f64", "bf16")),
    work=_codecs.work,
    timed=Timed(measured_work=_codecs.measured_work),
    values=Values(fixup=fixup),
    judging=Judging(sizes={"words": "total"}),
    tolerance=Tolerance(exact=True),
    wrong={
        "twice the bound": _changed("bound"),
        "differences along one dimension": _changed("rank"),
        "last word wrong": _changed("word"),
        "last checksum wrong": _changed("checksum"),
        "a word too many": _changed("total"),
    },
)
