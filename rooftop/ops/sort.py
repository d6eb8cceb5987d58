"""Sort each row, stable, and return the indices too.

    values_j = x[indices_j],  indices = all of the row ordered by value, equal values by index

Sources: Merrill & Grimshaw 2011, "High performance and scalable radix sorting"; Adinets & Merrill 2022, "Onesweep" (ranks within a
tile)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values, first_of
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops import _ordering

if TYPE_CHECKING:
    from torch import Tensor


def sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True, lengths: Tensor | None = None,
    nan: str = "largest", implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """The elements of each row along `dim` in order, and their indices. Always stable: among equal elements the one with the lower index
    comes first.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        dim: the dimension along which rows lie; negative values count from the last.
        descending: if True, the largest come first.
        stable: as torch's; the order is stable if it is False too.
        lengths: int32 or int64 of the shape of `x` without `dim`: the number of elements of each row that are sorted. None: all.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN within the lengths is a ValueError, and the call
            waits for the device to check it.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns a named tuple (values, indices) of the shape of `x`; `indices` is int64. -0.0 equals +0.0, and values are copied unchanged.
    Elements beyond a row's length stay where they are. A length below 0 counts as 0, one above the extent of `dim` as that extent;
    `rooftop.debug()` raises IndexError for it. Gradients flow from `values` to `x`.

    Raises TypeError for other dtypes, ValueError for nan or lengths that do not fit, or where a named implementation cannot take `x`;
    IndexError for a `dim` out of range."""
    d, nan = _ordering.sorting("sort", x, dim, descending, stable, lengths, nan)
    values, indices = OP(x.movedim(d, -1), lengths, descending, nan, implementation=implementation)
    return _ordering.Ordered(values.movedim(-1, d), indices.movedim(-1, d))


def reference(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> tuple[Tensor, Tensor]:
    """Along the last dimension."""
    indices = _ordering.ordered(x, lengths, descending, nan)
    return x.gather(-1, indices), indices


def cpu(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Any:
    return tuple(x.sort(dim=-1, descending=descending, stable=True)) if _ordering.as_torch(x, lengths, nan) else NotImplemented


def backward(dvalues: Tensor, dindices: Tensor | None, indices: Tensor, descending: bool, nan: str) -> Tensor:
    """dx[indices_j] = dvalues_j"""
    import torch

    return torch.zeros_like(dvalues).scatter(-1, indices, dvalues)


def outputs(x: Meta, lengths: Meta | None, descending: bool, nan: str) -> dict[str, Meta]:
    return {"values": Meta(x.shape, x.dtype), "indices": Meta(x.shape, "i64")}


def work(p: Problem) -> Work:
    """Read x once, write values and indices; an operation an element and digit of 8 bits."""
    lengths = p.get("lengths")
    read = p["x"].nbytes + (0 if lengths is None else lengths.nbytes)
    return Work(read, p["values"].nbytes + p["indices"].nbytes, {"fma32": float(p["x"].nbytes)})


def _torch() -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Any:
        if lengths is not None or (nan == "smallest" and x.is_floating_point()):
            raise ValueError("torch.sort takes no lengths, and NaN is its largest")
        return x.sort(dim=-1, descending=descending, stable=True)

    return run


def _wrong(change: str) -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Any:
        if change == "unstable":
            values, indices = reference(x.flip(-1), lengths, descending, nan)
            return values, x.shape[-1] - 1 - indices
        if change == "nan":
            return reference(x, lengths, descending, "smallest" if nan == "largest" else "largest")
        if change == "lengths":
            return reference(x, None, descending, nan)
        if change == "tail":
            values, indices = reference(x, lengths, descending, nan)
            n = x.shape[-1] // 2
            values[..., n:], indices[..., n:] = values[..., n:].flip(-1), indices[..., n:].flip(-1)
            return values, indices
        return reference(x, lengths, not descending, nan)

    return run


WRONG = {
    "of equals the last": _wrong("unstable"), "NaN at the other end": _wrong("nan"), "lengths ignored": _wrong("lengths"),
    "second half the other way": _wrong("tail"), "the other end first": _wrong("end"),
}


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, fill: str = "normal", layout: str = "contiguous", descending: bool = False, nan: str = "largest",
        ragged: str = ""
    ) -> dict[str, Any]:
        return {
            "x": Input(shape, d, fill, layout), "lengths": Input(shape[:-1], ragged) if ragged else None, "descending": descending,
            "nan": nan,
        }

    sizes = [
        (4096, 1024, "f32"), (16384, 256, "f32"), (4096, 8192, "f32"), (256, 131072, "f32"), (16, 1 << 20, "f32"), (1, 131072, "f32"),
        (1, 1 << 24, "f32")
    ]
    sizes += [(256, 128256, "bf16"), (1, 1 << 24, "i64"), (1000, 9999, "f16")]
    bench = [case(f"rows {r}x{n}", tags="bench", **call((r, n), d)) for r, n, d in sizes]
    edge = []
    for d in _ordering.DTYPES:
        edge += [case(name, tags="edge", **call(how[0], d, *how[1:])) for name, how in _ordering.cases_of(d, _ordering.SHAPES)]
        if d not in _ordering.FULL:
            continue
        edge += [
            case("descending 3x2000", tags="edge", **call((3, 2000), d, descending=True)),
            case("a tile and more 2x9000", tags="edge", **call((2, 9000), d, descending=True)),
            case("descending, a warp", tags="edge", **call((9, 100), d, descending=True)),
            case("ragged 5x1200", tags="edge", **call((5, 1200), d, ragged="i32")),
            case("ragged, a warp", tags="edge", **call((2, 5, 90), d, descending=True, ragged="i64")),
            case("ragged, more than a block", tags="edge", **call((3, 9000), d, ragged="i64")),
            case("no rows", tags="edge", **call((0, 50), d)),
            case("empty rows", tags="edge", **call((5, 0), d)),
        ]
    for d in ("f32", "f16", "bf16"):
        for name, how in _ordering.cases_of(d, _ordering.VALUES):
            edge.append(case(name, tags="edge", **call(how[0], d, *how[1:])))
        edge += [
            case("NaN smallest", tags="edge", **call((5, 300), d, "nan", descending=True, nan="smallest")),
            case("NaN smallest, tiles", tags="edge", **call((2, 9000), d, "nan", nan="smallest")),
            case("NaN smallest, a warp", tags="edge", **call((9, 120), d, "nan", nan="smallest")),
        ]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((65537, 32769), "bf16"))]
    return bench + edge + huge


def faults(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> str | None:
    return _ordering.length_faults(x, lengths)


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [tensors["x"]], {"descending": options["descending"], "lengths": tensors["lengths"], "nan": options["nan"]}


SWEPT = Sizes(
    lambda dtype, rows, columns: {"x": Input((rows, columns), dtype), "lengths": None, "descending": False, "nan": "largest"},
    {"rows": (1, 1 << 24), "columns": (16, 1 << 24)}, rows="rows", models={"columns": "vocabulary"}, dtypes=("f32", "bf16"),
    axis="columns",
)
OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, public=public),
    outputs=outputs,
    canonical=_ordering.canonical,
    cases=_cases(),
    judging=Judging(rows=first_of()),
    swept=SWEPT,
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(fixup=_ordering.fixup),
    grad=Grad(wrt=("x",), saves=("indices",), backward=backward, tolerance=Tolerance()),
    peers={"torch": _torch},
    wrong=WRONG,
)
