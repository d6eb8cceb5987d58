"""Decompression for the codecs `fast` and `shuffle`: the inverse of `rooftop.compress_blocks`, safe for any words.

    numbers = sums of the differences that the bit planes hold;  x = number * 2 bound

What the words are is not trusted: every chunk's checksum and lengths are compared before it is decoded, and a chunk in which they do not
fit becomes zeros and a number in `damaged`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Op, Sizes, Timed, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, case
from rooftop.formats.container import rank_of
from rooftop.formats.elements import ELEMENTS
from rooftop.ops import _codecs
from rooftop.ops import compress_blocks as compressing

if TYPE_CHECKING:
    from torch import Tensor

DAMAGE = {1: "it lies outside of the words", 2: "wrong checksum", 3: "its lengths do not fit"}  # what `damaged` says of a chunk


def decompress_blocks(
    words: Tensor, table: Tensor, bound: Tensor | None, shape: tuple[int, ...], dtype: Any, *, rank: int | None = None,
    implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """Decompress the chunks that `rooftop.compress_blocks` wrote.

    Args:
        words: int32 [n], contiguous.
        table: int32 [chunks, 2]: words and checksum of each chunk.
        bound: float64 [1], the one given to `compress_blocks`; None: lossless.
        shape, dtype, rank: of the values; `rank` None: the default of `rooftop.codecs.compress`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports it.

    Returns (x, damaged): the values, and int32 [chunks]: 0, or why a chunk could not be decoded: 1 it is outside of `words`, 2 its checksum
    differs, 3 its lengths are inconsistent. The values of such a chunk are 0.

    Raises TypeError for other dtypes, ValueError for shapes, ranks or devices that do not fit."""
    import torch

    from rooftop.formats.container import grid_of
    from rooftop.formats.elements import element_of

    op, shape = "decompress_blocks", tuple(shape)
    e = element_of(dtype)
    rank = rank_of(shape) if rank is None else rank
    if rank not in (1, 2, 3) or len(shape) > 4:
        raise ValueError(f"{op}: rank is {rank!r} of the shape {shape}; it must be 1, 2 or 3, of at most 4 dimensions")
    grid = grid_of(shape, rank)
    for name, t in (("words", words), ("table", table)):
        if not isinstance(t, torch.Tensor) or t.dtype != torch.int32 or not t.is_contiguous():
            raise TypeError(f"{op}: {name} must be a contiguous int32 tensor")
    chunks = _codecs.chunks_of(grid, rank)
    if words.dim() != 1 or tuple(table.shape) != (chunks, 2):
        raise ValueError(
            f"{op}: words has shape {tuple(words.shape)}, table {tuple(table.shape)}; they must be [n] and [{chunks}, 2] for {shape}"
        )
    if bound is not None and (not isinstance(bound, torch.Tensor) or bound.dtype != torch.float64 or bound.numel() != 1):
        raise ValueError(f"{op}: bound must be float64, one element")
    _codecs.same_place(op, {"table": table, "bound": bound}, words.device)
    starts = torch.nn.functional.pad((table[:, 0].long() & 0xFFFFFFFF).cumsum(0), (1, 0))
    b, z, y, x = grid
    given = (words, starts, table[:, 1].contiguous(), None if bound is None else bound.reshape(1))
    bits, damaged = OP(*given, b, z, y, x, e.name, rank, implementation=implementation)
    return bits.reshape(-1).view(dtype).reshape(shape), damaged


def reference(
    words: Tensor, starts: Tensor, checks: Tensor, bound: Tensor | None, b: int, z: int, y: int, x: int, element: str, rank: int
) -> tuple[Tensor, Tensor]:
    import numpy as np
    import torch

    from rooftop.formats.array_chunks import Part, mapped, parts
    from rooftop.formats.codec_fast import decode
    from rooftop.formats.container import FormatError, checksums

    h = _codecs.header((b, z, y, x), element, rank, None if bound is None else float(bound))
    held, ends, wanted = _codecs.as_array(words, "u32"), starts.cpu().numpy(), _codecs.as_array(checks, "u32")
    grid, damaged = np.zeros(h.grid, h.element.bits), np.zeros(h.chunks, np.int32)
    sizes = np.diff(ends)
    outside = (ends[:-1] < 0) | (sizes < 1) | (sizes > 1 + 1024 * h.element.bytes) | (ends[1:] > len(held))

    def one(c: int) -> None:
        mine, place = held[int(ends[c]) : int(ends[c + 1])], h.place(c)
        if outside[c]:
            damaged[c] = 1
            return
        zz, yy, xx = (slice(0, s.stop - s.start) for s in place[1:])
        part = Part(c, c + 1, (slice(0, 1), zz, yy, xx), (1, 1, 1, 1), h.tile)
        if checksums(mine, np.array([len(mine)], np.uint32))[0] != wanted[c]:
            damaged[c] = 2
            return
        try:
            values = np.zeros(part.extents, h.element.bits)
            part.join(decode(mine, np.array([0, len(mine)]), part, h), values)
            grid[place] = values[0]
        except FormatError:
            damaged[c] = 3

    def together(part: Part) -> None:
        """Chunk by chunk where not all of them are whole."""
        a, b = part.first, part.last
        if not outside[a:b].any():
            mine = held[int(ends[a]) : int(ends[b])]
            try:
                if (checksums(mine, sizes[a:b].astype(np.uint32)) == wanted[a:b]).all():
                    part.join(decode(mine, ends[a : b + 1] - ends[a], part, h), grid)
                    return
            except FormatError:
                pass
        for c in range(a, b):
            one(c)

    mapped(together, parts(h))
    signed = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[h.element.bytes]
    return torch.from_numpy(grid.view(signed)).to(words.device), torch.from_numpy(damaged).to(words.device)


def outputs(b: int, z: int, y: int, x: int, element: str, rank: int, **_: Any) -> dict[str, Meta]:
    shape = (b, z, y, x)
    return {"y": Meta(shape, _codecs.BITS[ELEMENTS[element].bytes]), "damaged": Meta((_codecs.chunks_of(shape, rank),), "i32")}


KINDS = ("smooth", "special", "noise", "constant", "bad words", "bad heads", "bad starts")


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """A stream of `compress_blocks`; in the cases of bad streams with words, lengths or places changed, their checksums made to fit or
    not."""
    import torch

    words, bound = tensors["words"], tensors["bound"]
    shape, element, rank = tuple(options[n] for n in "bzyx"), options["element"], options["rank"]
    e = ELEMENTS[element]
    x = torch.zeros(shape, dtype=_codecs.torch_bits(e.bytes), device=words.device)
    kind = KINDS[int(words.numel() - _codecs.room(x.numel(), _codecs.chunks_of(shape, rank), e.bytes))]
    made = {"x": x, "bound": bound}
    x = _codecs.filled(x, element, kind if kind in ("smooth", "noise", "constant") else "special", generator)
    made |= {n: v for n, v in compressing.fixup(made, options, generator).items() if n == "bound"}
    table, new, total = compressing.reference(x, made["bound"], element, rank)
    new = torch.nn.functional.pad(new, (0, words.numel() - new.numel()))
    ends = torch.nn.functional.pad((table[:, 0].long() & 0xFFFFFFFF).cumsum(0), (1, 0))
    if kind == "bad words" and int(total):
        new[torch.randint(0, int(total), (max(1, len(table) // 2),), generator=generator, device=words.device)] ^= 64
    if kind == "bad heads":
        _bent(new, ends, table, generator)
    if kind == "bad starts" and len(ends) > 1:
        ends[len(ends) // 2] += 3
        ends[-1] = 1 << 40
    found = {"words": new, "starts": ends, "checks": table[:, 1].contiguous()}
    return found if bound is None else {**found, "bound": made["bound"]}


def _bent(words: Tensor, ends: Tensor, table: Tensor, generator: Any) -> None:
    """Chunks whose first words were changed and whose checksums fit: only their lengths tell."""
    import numpy as np
    import torch

    from rooftop.formats.container import checksums

    for c in range(len(table)):
        first, last = int(ends[c]), int(ends[c + 1])
        at = first + int(torch.randint(0, min(last - first, 8), (1,), generator=generator, device=words.device))
        bit = int(torch.randint(0, 31, (1,), generator=generator, device=words.device))
        words[at] ^= 1 << bit
        fitting = checksums(_codecs.as_array(words[first:last], "u32"), np.array([last - first], np.uint32))
        table[c, 1] = int(fitting.view(np.int32)[0])


def _case(name: str, tags: str, shape: tuple[int, ...], element: str, rank: int, lossy: bool, kind: str = "smooth") -> Case:
    chunks = _codecs.chunks_of(shape, rank)
    words = _codecs.room(shape[0] * shape[1] * shape[2] * shape[3], chunks, ELEMENTS[element].bytes) + KINDS.index(kind)
    b, z, y, x = shape
    return case(
        name, tags=tags, words=Input((words,), "i32", "below 100"), starts=Input((chunks + 1,), "i64", "below 100"),
        checks=Input((chunks,), "i32", "below 100"),
        bound=Input((1,), "f64") if lossy else None, b=b, z=z, y=y, x=x, element=element, rank=rank,
    )


def _cases() -> list[Case]:
    found = []
    for element in ELEMENTS:
        for lossy in (True, False):
            way = "lossy" if lossy else "lossless"
            kinds = KINDS if element in ("f32", "f64", "bf16") else ("special", "noise")
            found += [_case(f"{way} {element} line, {kind}", "edge", (1, 1, 1, 12290), element, 1, lossy, kind) for kind in kinds]
            if element in ("f32", "f64", "i32"):
                found += [_case(f"{way} {element} image, {kind}", "edge", (2, 1, 129, 67), element, 2, lossy, kind) for kind in KINDS[:2]]
            if element in ("f32", "f64", "f16"):
                found += [
                    _case(f"{way} {element} volume, {kind}", "edge", (2, 9, 17, 67), element, 3, lossy, kind)
                    for kind in (*KINDS[:2], "bad heads")
                ]
    found += [
        _case("no values", "edge", (1, 1, 1, 0), "f32", 1, True), _case("one value", "edge", (1, 1, 1, 1), "f32", 1, True, "constant")
    ]
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
    """With a bound: smooth images and volumes. The streams are the reference's, which the CPU makes: with more values a point would take a
    minute."""
    shape = (1, planes, rows, columns)
    return dict(_case("", "", shape, dtype, rank_of(shape), True).inputs)


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    canonical=_codecs.canonical,
    cases=_cases(),
    swept=Sizes(_swept, {"planes": (1, 32), "rows": (64, 1024), "columns": (64, 1024)}, dtypes=("f32", "f64", "bf16")),
    work=_codecs.unpacking,
    timed=Timed(measured_work=_codecs.unpacked),
    values=Values(fixup=fixup),
    tolerance=Tolerance(exact=True),
    wrong={
        "another bound": _codecs.wrong_decoder(reference, "bound"), "damage not told": _codecs.wrong_decoder(reference, "damage"),
        "last value wrong": _codecs.wrong_decoder(reference, "values"),
    },
)
