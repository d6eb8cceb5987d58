"""Decompression for the codec `ratio`, safe for any words.

    symbols by rANS, whole numbers k of them; x = p + k step, with p predicted from values that are known already (docs/codecs.md)

What the words are is not trusted: a chunk whose checksum, lengths, tables, states or values do not fit becomes zeros and a number in
`damaged`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Op, Sizes, Timed, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, case
from rooftop.formats.container import Header, grid_of, rank_of
from rooftop.formats.elements import ELEMENTS
from rooftop.ops import _codecs

if TYPE_CHECKING:
    from torch import Tensor


def decompress_ratio(
    words: Tensor, table: Tensor, bound: float, shape: tuple[int, ...], dtype: Any, *, rank: int | None = None,
    implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """Decompress the chunks that `rooftop.codecs.compress(..., codec="ratio")` wrote.

    Args:
        words: int32 [n], contiguous: the payload of the container.
        table: int32 [chunks, 2]: words and checksum of each chunk.
        bound: the largest absolute error, above 0.
        shape, dtype, rank: of the values; `rank` None: the default of `rooftop.codecs.compress`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports it.

    Returns (x, damaged): the values, and int32 [chunks]: 0, or why a chunk could not be decoded: 1 it is outside of `words`, 2 its checksum
    differs, 3 its parts are inconsistent or give a value that is not finite. The values of such a chunk are 0.

    Raises TypeError for other dtypes, ValueError for shapes, ranks, bounds or devices that do not fit."""
    import torch

    from rooftop.formats.elements import element_of

    op, shape, e = "decompress_ratio", tuple(shape), element_of(dtype)
    rank = rank_of(shape) if rank is None else rank
    if e.kind != "float":
        raise TypeError(f"{op}: dtype is {dtype}; the codec is for floats")
    if rank not in (1, 2, 3) or len(shape) > 4 or not bound > 0:
        raise ValueError(f"{op}: rank is {rank!r}, bound {bound!r}, the shape {shape}; ranks are 1 to 3, bounds above 0, dimensions at most 4")
    for name, t in (("words", words), ("table", table)):
        if not isinstance(t, torch.Tensor) or t.dtype != torch.int32 or not t.is_contiguous():
            raise TypeError(f"{op}: {name} must be a contiguous int32 tensor")
    grid = grid_of(shape, rank)
    chunks = _header(grid, e.name, rank, bound).chunks
    if words.dim() != 1 or tuple(table.shape) != (chunks, 2):
        raise ValueError(
            f"{op}: words has shape {tuple(words.shape)}, table {tuple(table.shape)}; they must be [n] and [{chunks}, 2] for {shape}"
        )
    _codecs.same_place(op, {"table": table}, words.device)
    starts = torch.nn.functional.pad((table[:, 0].long() & 0xFFFFFFFF).cumsum(0), (1, 0))
    step = torch.full((1,), bound, dtype=torch.float64, device=words.device)
    b, z, y, x = grid
    bits, damaged = OP(words, starts, table[:, 1].contiguous(), step, b, z, y, x, e.name, rank, implementation=implementation)
    return bits.reshape(-1).view(dtype).reshape(shape), damaged


def _header(grid: tuple[int, ...], element: str, rank: int, bound: float) -> Header:
    return Header("ratio", ELEMENTS[element], grid, "abs", bound, bound, rank)


def reference(
    words: Tensor, starts: Tensor, checks: Tensor, bound: Tensor, b: int, z: int, y: int, x: int, element: str, rank: int
) -> tuple[Tensor, Tensor]:
    import numpy as np
    import torch

    from rooftop.formats import codec_ratio
    from rooftop.formats.array_chunks import mapped
    from rooftop.formats.container import FormatError, checksums

    h = _header((b, z, y, x), element, rank, float(bound))
    held, ends, wanted = _codecs.as_array(words, "u32"), starts.cpu().numpy(), _codecs.as_array(checks, "u32")
    grid, damaged = np.zeros((b, z, y, x), h.element.bits), np.zeros(h.chunks, np.int32)
    laid = grid.reshape(h.grid)

    def one(c: int) -> None:
        first, last, place = int(ends[c]), int(ends[c + 1]), h.place(c)
        shape = (place[1].stop - place[1].start, place[2].stop - place[2].start, place[3].stop - place[3].start)
        most = 1 + -(-shape[0] * shape[1] * shape[2] * h.element.bytes // 4)
        if first < 0 or not 1 <= last - first <= most or last > len(held):
            damaged[c] = 1
        elif checksums(held[first:last], np.array([last - first], np.uint32))[0] != wanted[c]:
            damaged[c] = 2
        else:
            try:
                laid[place] = codec_ratio.decode([held[first:last]], [shape], h, c)[0]
            except FormatError:
                damaged[c] = 3

    mapped(one, list(range(h.chunks)))
    return torch.from_numpy(grid.view(f"i{h.element.bytes}" if h.element.bytes > 1 else "u1")).to(words.device), torch.from_numpy(
        damaged
    ).to(words.device)


def outputs(b: int, z: int, y: int, x: int, element: str, rank: int, **_: Any) -> dict[str, Meta]:
    chunks = _header((b, z, y, x), element, rank, 1.0).chunks
    return {"y": Meta((b, z, y, x), _codecs.BITS[ELEMENTS[element].bytes]), "damaged": Meta((chunks,), "i32")}


KINDS = ("smooth", "rough", "special", "noise", "constant", "bad words", "bad heads", "bad starts")


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """A stream of the codec: of smooth values, which interpolation predicts, of rough ones (sums of noise), which the values before do
    better; in the cases of bad streams with words, lengths or places changed, their checksums made to fit or not."""
    import numpy as np
    import torch

    from rooftop.formats import codec_ratio
    from rooftop.formats.container import checksums
    from rooftop.ops.decompress_blocks import _bent

    words, element, rank = tensors["words"], options["element"], options["rank"]
    shape, e = tuple(options[n] for n in "bzyx"), ELEMENTS[options["element"]]
    kind = KINDS[int(words.numel() - _room(shape, element, rank))]
    device = words.device
    x = torch.zeros(shape, dtype=_codecs.torch_bits(e.bytes), device=device)
    if kind in ("rough", "bad words"):
        rough = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        for axis in range(1, 4):
            rough = rough.cumsum(axis)
        x = (0.1 * rough).to(getattr(torch, {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}[element])).view(x.dtype)
    else:
        x = _codecs.filled(x, element, {"bad heads": "special", "bad starts": "smooth"}.get(kind, kind), generator)
    eb = {"f64": 1e-6, "f32": 1e-3, "f16": 0.01, "bf16": 0.05}.get(element, 0.1)
    h = _header(shape, element, rank, eb)
    grid = _codecs.as_array(x, element).reshape(h.grid)
    made = codec_ratio.encode([np.ascontiguousarray(grid[h.place(c)]) for c in range(h.chunks)], h) if h.chunks else []
    sizes, used = np.array([len(w) for w in made], np.uint32), np.concatenate(made) if made else np.zeros(0, np.uint32)
    held = np.zeros(words.numel(), np.uint32)
    held[: len(used)] = used
    new = torch.from_numpy(held.view(np.int32)).to(device)
    table = torch.from_numpy(np.stack((sizes, checksums(used, sizes)), 1).view(np.int32)).to(device)
    ends = torch.nn.functional.pad((table[:, 0].long() & 0xFFFFFFFF).cumsum(0), (1, 0))
    if kind == "bad words" and len(used):
        new[torch.randint(0, len(used), (max(1, len(made) // 2),), generator=generator, device=device)] ^= 64
    if kind == "bad heads":
        _bent(new, ends, table, generator)
    if kind == "bad starts" and len(ends) > 1:
        ends[len(ends) // 2] += 3
        ends[-1] = 1 << 40
    bound = tensors["bound"].new_full((1,), eb)
    return {"words": new, "starts": ends, "checks": table[:, 1].contiguous(), "bound": bound}


def _room(shape: tuple[int, ...], element: str, rank: int) -> int:
    b, z, y, x = shape
    return _codecs.room(b * z * y * x, _header(shape, element, rank, 1.0).chunks, ELEMENTS[element].bytes)


def _case(name: str, tags: str, shape: tuple[int, ...], element: str, rank: int, kind: str = "smooth") -> Case:
    chunks = _header(shape, element, rank, 1.0).chunks
    b, z, y, x = shape
    return case(
        name, tags=tags, words=Input((_room(shape, element, rank) + KINDS.index(kind),), "i32", "below 100"),
        starts=Input((chunks + 1,), "i64", "below 100"), checks=Input((chunks,), "i32", "below 100"), bound=Input((1,), "f64"), b=b, z=z,
        y=y, x=x, element=element, rank=rank,
    )


def _cases() -> list[Case]:
    found = [_case(f"{e} line, {kind}", "edge", (1, 1, 1, 4099), e, 1, kind) for e in ("f32", "f64", "bf16") for kind in ("smooth", "special")]
    found += [_case(f"f32 image, {kind}", "edge", (2, 1, 67, 90), "f32", 2, kind) for kind in KINDS]
    found += [_case(f"f32 volume, {kind}", "edge", (1, 19, 23, 38), "f32", 3, kind) for kind in KINDS]
    found += [
        _case("f16 volume", "edge", (1, 9, 17, 35), "f16", 3), _case("f32 weights", "edge", (1, 31, 34, 33), "f32", 3, "special"),
        _case("f32 four chunks", "edge", (1, 66, 3, 70), "f32", 3, "rough"), _case("no values", "edge", (1, 1, 1, 0), "f32", 1),
        _case("one value", "edge", (1, 1, 1, 1), "f32", 1, "constant"), _case("f32 line of two chunks", "edge", (1, 1, 1, 262400), "f32", 1),
        _case("volume 64 MiB", "bench", (1, 256, 256, 256), "f32", 3), _case("rough volume 16 MiB", "bench", (1, 64, 256, 256), "f32", 3, "rough"),
    ]
    return found


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
    work=_codecs.unpacking,
    timed=Timed(measured_work=_codecs.unpacked),
    values=Values(fixup=fixup),
    tolerance=Tolerance(exact=True),
    wrong={
        "another bound": _codecs.wrong_decoder(reference, "bound"), "damage not told": _codecs.wrong_decoder(reference, "damage"),
        "last value wrong": _codecs.wrong_decoder(reference, "values"),
    },
)
