"""The k largest or smallest elements of each row in order, with their indices.

    values_j = x[indices_j],  indices = the first k of the row ordered by value, equal values by index

Sources: Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units"; Johnson, Douze & Jégou 2017 (candidates kept behind
a threshold)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values, first_of
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops import _ordering

if TYPE_CHECKING:
    from torch import Tensor


def topk(
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    lengths: Tensor | None = None,
    tie: str = "lowest",
    nan: str = "largest",
    implementation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements of each row along `dim`, in order, and their indices. Exact; equal calls give equal bits.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        k: number of elements to return, from 0 to the extent of `dim`.
        dim: the dimension along which rows lie; negative values count from the last.
        largest: if True, the largest, else the smallest.
        sorted: False allows any order of the k. The present kernels sort them anyway.
        lengths: int32 or int64 of the shape of `x` without `dim`: the number of elements of each row that take part. None: all.
        tie: "lowest": among equal elements the one with the lowest index comes first. "any": unspecified; the present kernels give the
            lowest.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN within the lengths is a ValueError, and the call
            waits for the device to check it.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns a named tuple (values, indices): `values` of the dtype of `x`, `indices` int64, both of the shape of `x` with k along `dim`.
    -0.0 equals +0.0, and values are the elements as they stand. A row of fewer than k elements is padded with index -1 and the last value
    of the order:
    -infinity (integers: the least) for the largest, +infinity (the greatest) for the smallest. A length below 0 counts as 0, one above the
    extent of `dim` as that extent; `rooftop.debug()` raises IndexError for it. Gradients flow from `values` to `x`.

    Raises TypeError for other dtypes, ValueError for k, tie, nan or lengths that do not fit, or where a named implementation cannot take
    `x`; IndexError for a `dim` out of range."""
    d = _ordering.tensor("topk", x, dim)
    _ordering.count("topk", k, x.shape[d], 0)
    for name, value in (("largest", largest), ("sorted", sorted)):
        argument_checks.flag("topk", name, value)
    if tie not in ("lowest", "any"):
        raise ValueError(f"topk: tie is {tie!r}; it is one of lowest, any")
    _ordering.row_lengths("topk", x, d, lengths)
    nan = _ordering.nan_order("topk", x, nan, d, lengths)
    values, indices = OP(x.movedim(d, -1), lengths, k, largest, nan, implementation=implementation)
    return _ordering.Ordered(values.movedim(-1, d), indices.movedim(-1, d))


def reference(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> tuple[Tensor, Tensor]:
    """Along the last dimension."""
    import torch

    indices = _ordering.ordered(x, lengths, largest, nan)[..., :k].contiguous()
    values = x.gather(-1, indices)
    if lengths is not None:
        short = torch.arange(k, device=x.device) >= _ordering.clamped(lengths, x.shape[-1]).unsqueeze(-1)
        indices = indices.masked_fill(short, -1)
        values = values.masked_fill(short, _ordering.last_value(x, largest))
    return values, indices


def cpu(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Any:
    if k == 0 or not _ordering.as_torch(x, lengths, nan):
        return NotImplemented
    indices = _ordering.first_by_torch(x, k, largest)
    return NotImplemented if indices is None else (x.gather(-1, indices), indices)


def backward(dvalues: Tensor, dindices: Tensor | None, x: Tensor, indices: Tensor, k: int, largest: bool, nan: str) -> Tensor:
    """dx[indices_j] = dvalues_j, 0 elsewhere"""
    import torch

    dx = torch.zeros(x.shape, dtype=dvalues.dtype, device=x.device)
    if k == 0 or x.numel() == 0:
        return dx
    passed = dvalues.masked_fill(indices < 0, 0.0)  # padding is a constant: nothing of its gradient reaches x, be it infinite or NaN
    return dx.scatter_add(-1, indices.clamp(min=0), passed)


def outputs(x: Meta, lengths: Meta | None, k: int, largest: bool, nan: str) -> dict[str, Meta]:
    shape = (*x.shape[:-1], k)
    return {"values": Meta(shape, x.dtype), "indices": Meta(shape, "i64")}


def work(p: Problem) -> Work:
    """Read x once, write values and indices; one comparison an element."""
    lengths = p.get("lengths")
    read = p["x"].nbytes + (0 if lengths is None else lengths.nbytes)
    return Work(read, p["values"].nbytes + p["indices"].nbytes, {"fma32": float(p["x"].numel)})


def _torch() -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Any:
        if lengths is not None or (nan == "smallest" and x.is_floating_point()):
            raise ValueError("torch.topk takes no lengths, and NaN is its largest")
        return x.topk(k, -1, largest)

    return run


def _wrong(change: str) -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Any:
        import torch

        n = x.shape[-1]
        if change == "ties":  # of equal elements the last
            values, indices = reference(x.flip(-1), lengths, k, largest, nan)
            return values, torch.where(indices < 0, indices, n - 1 - indices)
        if change == "nan":
            return reference(x, lengths, k, largest, "smallest" if nan == "largest" else "largest")
        if change == "zeros":  # -0.0 before +0.0
            apart = torch.where(x == 0, torch.copysign(torch.tensor(1e-45), x), x) if x.dtype == torch.float32 else x
            return reference(apart, lengths, k, largest, nan)
        if change == "tail":
            return reference(torch.cat((x[..., : n // 4 * 4], x[..., :1].expand(*x.shape[:-1], n % 4)), -1), lengths, k, largest, nan)
        if change == "lengths":
            return reference(x, None, k, largest, nan)
        values, indices = reference(x, lengths, k, largest, nan)
        if change == "unsorted":
            return values.flip(-1), indices.flip(-1)
        return reference(x, lengths, k, not largest, nan)

    return run


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, k: int, fill: str = "normal", layout: str = "contiguous", largest: bool = True,
        nan: str = "largest", ragged: str = ""
    ) -> dict[str, Any]:
        lengths = Input(shape[:-1], ragged) if ragged else None
        return {"x": Input(shape, d, fill, layout), "lengths": lengths, "k": k, "largest": largest, "nan": nan}

    grid = [(1, 131072), (16, 131072), (128, 131072), (1024, 131072), (1, 1 << 24), (4096, 1024), (4096, 8192), (256, 1 << 20)]
    bench = [case(f"{r}x{n} k={k}", tags="bench", **call((r, n), "f32", k)) for r, n in grid for k in (1, 64, 2048) if k <= n]
    bench[0:0] = [case("1024x131072 k=64", tags="bench", **call((1024, 131072), d, 64)) for d in ("bf16", "i64")]
    bench += [
        case("vocabulary 256x128256 k=50", tags="bench model", **call((256, 128256), "bf16", 50)),
        case("experts 16384x256 k=8", tags="bench model", **call((16384, 256), "f32", 8)),
        case("odd rows 1000x99991 k=100", tags="bench", why="odd", **call((1000, 99991), "f32", 100)),
        case("a quarter 64x65536 k=16384", tags="bench", **call((64, 65536), "f32", 16384)),
    ]
    picks = {
        "one element": 1, "a warp 7x40": 3, "rows 5x200": 200, "odd rows 3x777": 9, "slices 2x3x1030": 64, "longer 2x5001": 300,
        "long row 1x40003": 130
    }
    edge = []
    for d in _ordering.DTYPES:
        edge += [
            case(name, tags="edge", **call(how[0], d, picks.get(name, 17), *how[1:])) for name,
            how in _ordering.cases_of(d, _ordering.SHAPES)
        ]
        if d not in _ordering.FULL:
            continue
        edge += [
            case("all of a row 2x1500", tags="edge", **call((2, 1500), d, 1500)),
            case("smallest 3x2000", tags="edge", **call((3, 2000), d, 33, largest=False)),
            case("smallest, a warp", tags="edge", **call((9, 100), d, 5, largest=False)),
            case("one 6x3000", tags="edge", **call((6, 3000), d, 1)),
            case("more than a block holds 2x9000", tags="edge", **call((2, 9000), d, 5000)),
            case("ragged 5x1200", tags="edge", **call((5, 1200), d, 40, ragged="i32")),
            case("ragged, a warp", tags="edge", **call((2, 5, 90), d, 12, largest=False, ragged="i64")),
            case("ragged, more than a block holds", tags="edge", **call((3, 9000), d, 4500, ragged="i64")),
            case("ragged long rows", tags="edge", **call((2, 50000), d, 70, ragged="i32")),
            case("several rounds 2x15000", tags="edge", **call((2, 15000), d, 2040)),
            case("k = 0", tags="edge", **call((3, 50), d, 0)),
            case("no rows", tags="edge", **call((0, 50), d, 5)),
            case("empty rows", tags="edge", **call((5, 0), d, 0)),
        ]
    for d in ("f32", "f16", "bf16"):
        for name, how in _ordering.cases_of(d, _ordering.VALUES):
            edge.append(case(name, tags="edge", **call(how[0], d, 40, *how[1:])))
            edge.append(case(f"smallest, {name}", tags="edge", **call(how[0], d, 40, how[1], largest=False, nan="smallest")))
        edge += [
            case("rising, several rounds 1x15000", tags="edge", why="each round is kept whole", **call((1, 15000), d, 2040, "rising")),
            case("equal, several rounds 1x15000", tags="edge", why="indices alone decide", **call((1, 15000), d, 2040, "equal")),
        ]
        edge.append(case("NaN smallest, a warp", tags="edge", **call((9, 120), d, 120, "nan", nan="smallest")))
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((17, 1 << 27), "bf16", 100))]
    return bench + edge + huge


def faults(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> str | None:
    return _ordering.length_faults(x, lengths)


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [tensors["x"], options["k"]], {"largest": options["largest"], "lengths": tensors["lengths"], "nan": options["nan"]}


SWEPT = Sizes(
    lambda dtype, rows, columns,
    k: {"x": Input((rows, columns), dtype), "lengths": None, "k": min(k, columns), "largest": True, "nan": "largest"},
    {"rows": (1, 1 << 26), "columns": (64, 1 << 22), "k": (1, 2048)}, rows="rows", models={"columns": "vocabulary"}, axis="columns",
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
    grad=Grad(wrt=("x",), saves=("x", "indices"), backward=backward, tolerance=Tolerance()),
    peers={"torch.topk": _torch},  # of equal elements it takes any, so that it is not what the reference is held to
    wrong={
        "of equals the last": _wrong("ties"), "NaN at the other end": _wrong("nan"), "-0.0 below +0.0": _wrong("zeros"),
        "tail dropped": _wrong("tail"), "lengths ignored": _wrong("lengths"), "not sorted": _wrong("unsorted"),
        "the other end": _wrong("end"),
    },
)
