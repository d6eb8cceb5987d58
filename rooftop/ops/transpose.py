"""Exchange two dimensions of a tensor in memory: a contiguous copy.

    out[.., i, .., j, ..] = x[.., j, .., i, ..]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Grad, Op, Sizes, Tolerance
from rooftop.core.spec import DTYPES, OF_TORCH, Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

WORDS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}  # what is moved: the bytes of an element, whatever they mean
BATCHES = 3  # dimensions besides rows and columns that the kernels take


def transpose(x: Tensor, dim0: int, dim1: int, *, implementation: str | None = None) -> Tensor:
    """`x` with `dim0` and `dim1` exchanged, as a new contiguous tensor. Every element keeps its bits.

    Args:
        x: elements of 1, 2, 4 or 8 bytes of any dtype, any shape and strides with at least one dimension.
        dim0, dim1: the two dimensions; negative values count from the last. They may be the same: then the result is a contiguous copy.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports `x`.

    Returns a contiguous tensor with the dtype and device of `x`. It never shares memory with `x`.

    Raises TypeError for anything but a tensor and whole numbers, for elements of another size, or if `x` requires a gradient and is
    complex; IndexError for a dimension out of range; ValueError for no dimensions or where a named implementation cannot take `x`."""
    first, second = _validate(x, dim0, dim1)
    if str(x.dtype).removeprefix("torch.") in OF_TORCH:
        return OP(x, first, second, implementation=implementation)
    import torch

    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"transpose: x is {x.dtype} and requires a gradient; gradients are for floating dtypes")
    words = getattr(torch, DTYPES[WORDS[x.element_size()]].torch)
    return OP(x.view(words), first, second, implementation=implementation).view(x.dtype)


def _validate(x: Tensor, dim0: int, dim1: int) -> tuple[int, int]:
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"transpose: x is a {type(x).__name__}; it must be a tensor")
    if x.element_size() not in WORDS:
        raise TypeError(f"transpose: x is {x.dtype}, of {x.element_size()} bytes; accepted are elements of 1, 2, 4 or 8 bytes")
    rank = x.dim()
    if rank == 0:
        raise ValueError("transpose: x has no dimensions; it must have at least one")
    for name, dim in (("dim0", dim0), ("dim1", dim1)):
        number("transpose", name, dim, "a whole number", whole=True)
        if not -rank <= dim < rank:
            raise IndexError(f"transpose: {name} is {dim}; x has {rank} dimensions, so it must be {-rank} to {rank - 1}")
    return dim0 % rank, dim1 % rank


def reference(x: Tensor, dim0: int, dim1: int) -> Tensor:
    import torch

    return x.transpose(dim0, dim1).clone(memory_format=torch.contiguous_format)


def backward(dout: Tensor, dim0: int, dim1: int) -> Tensor:
    """dx is dout with the two dimensions exchanged back."""
    return OP(dout, dim0, dim1)


def _exchanged(values: tuple[int, ...], dim0: int, dim1: int) -> tuple[int, ...]:
    found = list(values)
    found[dim0], found[dim1] = values[dim1], values[dim0]
    return tuple(found)


def outputs(x: Meta, dim0: int, dim1: int) -> dict[str, Meta]:
    return {"out": Meta(_exchanged(x.shape, dim0, dim1), x.dtype)}


def canonical(p: Problem) -> Problem | None:
    """x and out as [batch, batch, batch, rows, columns] of words, columns with stride 1 in x; None where that takes more dimensions or no
    dimension of x has stride 1.

    Where rows have stride 1 in out, it is a matrix transpose for each batch; where columns have, it is a copy of runs. A run of at most 8
    bytes is one word."""
    x, dims = p["x"], (int(p.option("dim0")), int(p.option("dim1")))
    merged: list[tuple[int, int]] = []  # (extent, stride in x), in the order of out
    for n, step in zip(_exchanged(x.shape, *dims), _exchanged(x.strides, *dims), strict=True):
        if n == 1:
            continue
        if merged and merged[-1][1] == step * n:
            merged[-1] = (merged[-1][0] * n, step)
        else:
            merged.append((n, step))
    size, align = x.itemsize, x.align
    if len(merged) > 1 and merged[-1][1] == 1:
        run = merged[-1][0]
        if run * size in WORDS and align % (run * size) == 0 and all(step % run == 0 for _, step in merged[:-1]):
            merged, size = [(n, step // run) for n, step in merged[:-1]], size * run
    merged = merged or [(1, 1)]
    to = [1] * len(merged)
    for i in reversed(range(len(merged) - 1)):
        to[i] = to[i + 1] * merged[i + 1][0]
    found = [(n, step, t) for (n, step), t in zip(merged, to, strict=True)]
    column = next((d for d in reversed(found) if d[1] == 1), None)
    if column is None:
        return None
    rest = [d for d in found if d is not column]
    while len(rest) < BATCHES + 1:
        rest.insert(0, (1, 0, 0))
    if len(rest) > BATCHES + 1:
        return None
    shape, steps, places = zip(*rest, column, strict=True)
    return p.replace(x=Meta(shape, WORDS[size], steps, align), out=Meta(shape, WORDS[size], places, p["out"].align))


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes, p["out"].nbytes)


def _last_not_written(x: Tensor, dim0: int, dim1: int) -> Tensor:
    out = reference(x, dim0, dim1)
    out.view(-1)[-1:] = 1
    return out


def _tiles_alone(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Whole tiles of 4 elements along `dim0` alone."""
    out = reference(x, dim0, dim1)
    n = x.shape[dim0]
    out.narrow(dim1, n // 4 * 4, n % 4).zero_()
    return out


def _rounded(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Through bfloat16, or one byte of an integer."""
    import torch

    return reference(
        x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float8_e4m3fn if x.is_floating_point() else torch.bool).to(x.dtype),
        dim0, dim1
    )


def _cases() -> list[Case]:
    def call(shape: tuple[int, ...], d: str, dim0: int, dim1: int, fill: str = "normal", layout: str = "contiguous") -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "dim0": dim0, "dim1": dim1}

    bench = [
        case(f"square {n}", tags="bench", **call((n, n), d, 0, 1)) for d,
        sizes in (("bf16", (16384, 8192, 2896)), ("f32", (8192, 2048))) for n in sizes
    ]
    bench += [
        case("odd 11585", tags="bench", why="no row starts on 16 bytes", **call((11585, 11585), "bf16", 0, 1)),
        case("odd 8191x8193", tags="bench", **call((8191, 8193), "f32", 0, 1)),
        case("tall 4194304x24", tags="bench", **call((4194304, 24), "bf16", 0, 1)),
        case("wide 3x33554432", tags="bench", why="planes to pixels", **call((3, 33554432), "u8", 0, 1)),
        case("bytes 16384", tags="bench", **call((16384, 16384), "u8", 0, 1)),
        case("words of 8 bytes 4096", tags="bench", **call((4096, 4096), "i64", 0, 1)),
        case("batch 64x2048x512", tags="bench", **call((64, 2048, 512), "bf16", 1, 2)),
        case("heads 8x4096x32x128", tags="bench model", **call((8, 4096, 32, 128), "bf16", 1, 2)),
        case("keys 8x4096x32x128", tags="bench model", **call((8, 4096, 32, 128), "bf16", 1, 3)),
    ]
    edges: dict[str, tuple[Any, ...]] = {
        "empty": ((0, 5), 0, 1),
        "no columns": ((3, 0), 0, 1),
        "one element": ((1,), 0, 0),
        "one row": ((1, 1003), 0, 1),
        "one column": ((1003, 1), 0, 1),
        "odd 3x7": ((3, 7), 0, 1),
        "odd 133x301": ((133, 301), 0, 1),
        "tile 128x128": ((128, 128), 0, 1),
        "multiples of 8 136x264": ((136, 264), 0, 1),
        "rows odd 129x256": ((129, 256), 0, 1),
        "columns odd 256x129": ((256, 129), 0, 1),
        "odd 301x303": ((301, 303), 0, 1),
        "odd 2x601x45": ((2, 601, 45), 1, 2),
        "two columns": ((2077, 2), 0, 1),
        "three columns": ((2077, 3), 0, 1),
        "three rows": ((3, 2077), 0, 1),
        "twenty rows": ((20, 601), 0, 1),
        "batch 5x33x65": ((5, 33, 65), 1, 2),
        "small matrices": ((67, 8, 8), 1, 2),
        "smaller matrices": ((67, 3, 5), 1, 2),
        "first and last": ((13, 6, 37), 0, 2),
        "runs 9x7x24": ((9, 7, 24), 0, 1),
        "odd runs 9x7x13": ((9, 7, 13), 0, 1),
        "pairs 33x40x2": ((33, 40, 2), 0, 1),
        "five dimensions": ((3, 5, 4, 7, 6), 1, 3),
        "the same dimension": ((6, 50), 1, 1),
        "transposed": ((40, 72), 0, 1, "normal", "transposed"),
        "rows padded": ((50, 100), 0, 1, "normal", "padded"),
        "rows misaligned": ((50, 100), 0, 1, "normal", "sliced"),
        "address misaligned": ((64, 64), 0, 1, "normal", "offset"),
        "runs misaligned": ((6, 5, 40), 0, 1, "normal", "offset"),
        "every second element": ((40, 72), 0, 1, "normal", "strided"),
        "expanded": ((40, 72), 0, 1, "normal", "expanded"),
        "denormals": ((30, 50), 0, 1, "tiny"),
        "NaN": ((30, 50), 0, 1, "nan"),
        "+inf": ((30, 50), 0, 1, "inf"),
        "-0.0": ((30, 50), 0, 1, "-0.0"),
    }
    values = ("denormals", "NaN", "+inf", "-0.0")
    edge = [
        case(name, tags="edge", **call(how[0], d, *how[1:]))
        for d in ("f32", "f16", "bf16", "u8", "i64")
        for name, how in edges.items()
        if not (name in values and d in ("u8", "i64"))
    ]
    edge += [case(f"odd 133x301 {d}", tags="edge", **call((133, 301), d, 0, 1)) for d in ("bool", "i16", "i32", "i8", "f64")]
    huge = [
        case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((65537, 32769), "bf16", 0, 1)),
        case("runs over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((1025, 16385, 129), "u8", 0, 1)),
    ]
    return bench + edge + huge


OP = Op(
    reference,
    calls=Calls(cpu=reference),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns: {"x": Input((rows, columns), dtype), "dim0": 0, "dim1": 1},
        {"rows": (1, 1 << 26), "columns": (8, 1 << 24)}, rows="rows", models={"columns": "inner"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    grad=Grad(wrt=("x",), saves=(), backward=backward),
    peers={"torch": lambda: reference, "torch.compile": compiled(reference, every=True)},
    wrong={"last element not written": _last_not_written, "whole tiles alone": _tiles_alone, "rounded": _rounded},
)
