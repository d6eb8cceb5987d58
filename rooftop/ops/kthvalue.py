"""The k-th smallest element of each row, and its index.

    value = x[index],  index = the k-th of the row ordered by value, equal values by index

Source: Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, first_of
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.core.sweeps import Sizes
from rooftop.ops import _ordering

if TYPE_CHECKING:
    from torch import Tensor


def kthvalue(
    x: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, nan: str = "largest", implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """The `k`-th smallest element of each row along `dim`, and its index. Among equal elements those with lower indices count as smaller.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        k: 1 to n, the number of elements of a row; (n + 1) // 2 is the lower median.
        dim: the dimension along which rows lie; negative values count from the last.
        keepdim: if True, `dim` is kept with extent 1.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN is a ValueError, and the call waits for the
            device to check it.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns a named tuple (values, indices), of the dtype of `x` and int64, of the shape of `x` without `dim`. -0.0 equals +0.0, and values
    are copied as they stand. Gradients flow from `values` to `x`.

    Raises TypeError for other dtypes, ValueError for a k out of range, or where a named implementation cannot take `x`; IndexError for a
    `dim` out of range."""
    d = _ordering.tensor("kthvalue", x, dim)
    _ordering.count("kthvalue", k, x.shape[d], 1)
    argument_checks.flag("kthvalue", "keepdim", keepdim)
    nan = _ordering.nan_order("kthvalue", x, nan)
    value, index = OP(x.movedim(d, -1), k, nan, implementation=implementation)
    return _ordering.Ordered(value.unsqueeze(d), index.unsqueeze(d)) if keepdim else _ordering.Ordered(value, index)


def reference(x: Tensor, k: int, nan: str) -> tuple[Tensor, Tensor]:
    """Along the last dimension."""
    index = _ordering.ordered(x, None, False, nan)[..., k - 1].contiguous()
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1), index


def cpu(x: Tensor, k: int, nan: str) -> Any:
    if not _ordering.as_torch(x, None, nan):
        return NotImplemented
    index = _ordering.kth_by_torch(x, k)
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1), index


def backward(dvalue: Tensor, dindex: Tensor | None, x: Tensor, index: Tensor, k: int, nan: str) -> Tensor:
    """dx[index] = dvalue, 0 elsewhere"""
    import torch

    dx = torch.zeros(x.shape, dtype=dvalue.dtype, device=x.device)
    return dx.scatter(-1, index.unsqueeze(-1), dvalue.unsqueeze(-1))


def outputs(x: Meta, k: int, nan: str) -> dict[str, Meta]:
    return {"value": Meta(x.shape[:-1], x.dtype), "index": Meta(x.shape[:-1], "i64")}


def work(p: Problem) -> Work:
    """Read x once, write a value and an index a row; one comparison an element."""
    return Work(p["x"].nbytes, p["value"].nbytes + p["index"].nbytes, {"fma32": float(p["x"].numel)})


def _torch() -> Callable[..., Any]:
    def run(x: Tensor, k: int, nan: str) -> Any:
        if nan == "smallest" and x.is_floating_point():
            raise ValueError("NaN is torch.kthvalue's largest")
        return x.kthvalue(k, -1)

    return run


def _wrong(change: str) -> Callable[..., Any]:
    def run(x: Tensor, k: int, nan: str) -> Any:
        if change == "ties":
            value, index = reference(x.flip(-1), k, nan)
            return value, x.shape[-1] - 1 - index
        if change == "nan":
            return reference(x, k, "smallest" if nan == "largest" else "largest")
        if change == "next":
            return reference(x, max(1, k - 1), nan)
        return reference(x, x.shape[-1] + 1 - k, nan)

    return run


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, k: int, fill: str = "normal", layout: str = "contiguous", nan: str = "largest"
    ) -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "k": k, "nan": nan}

    sizes = [(1, 131072), (128, 131072), (1024, 131072), (1, 1 << 24), (4096, 1024), (4096, 8192)]
    bench = [case(f"rows {r}x{n} k={k}", tags="bench", **call((r, n), "f32", k)) for r, n in sizes for k in (64, n // 2)]
    edge = []
    for d in _ordering.DTYPES:
        edge += [
            case(name, tags="edge", **call(how[0], d, -(-how[0][-1] // 3), *how[1:])) for name,
            how in _ordering.cases_of(d, _ordering.SHAPES)
        ]
        if d not in _ordering.FULL:
            continue
        edge += [
            case("the smallest 3x2500", tags="edge", **call((3, 2500), d, 1)),
            case("the largest 3x2500", tags="edge", **call((3, 2500), d, 2500)),
            case("near the largest 3x2500", tags="edge", **call((3, 2500), d, 2490)),
            case("near the largest, two blocks 1x12000", tags="edge", **call((1, 12000), d, 11990)),
            case("median 2x9001", tags="edge", **call((2, 9001), d, 4501)),
            case("no rows", tags="edge", **call((0, 50), d, 5)),
        ]
    for d in ("f32", "f16", "bf16"):
        for name, how in _ordering.cases_of(d, _ordering.VALUES):
            edge.append(case(name, tags="edge", **call(how[0], d, how[0][-1] - 3, *how[1:])))
            edge.append(case(f"NaN smallest, {name}", tags="edge", **call(how[0], d, 5, how[1], nan="smallest")))
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((17, 1 << 27), "bf16", 100))]
    return bench + edge + huge


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [tensors["x"], options["k"]], {"nan": options["nan"]}


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=_public),
    outputs=outputs,
    canonical=_ordering.canonical,
    cases=_cases(),
    judging=Judging(rows=first_of()),
    swept=Sizes(
        lambda dtype, rows, columns, k: {"x": Input((rows, columns), dtype), "k": min(k, columns), "nan": "largest"},
        {"rows": (1, 1 << 26), "columns": (64, 1 << 22), "k": (1, 2048)}, rows="rows", models={"columns": "vocabulary"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    grad=Grad(wrt=("x",), saves=("x", "index"), backward=backward, tolerance=Tolerance()),
    peers={"torch.kthvalue": _torch},  # of equal elements it takes any, so that it is not what the reference is held to
    wrong={
        "of equals the last": _wrong("ties"), "NaN at the other end": _wrong("nan"), "the one before": _wrong("next"),
        "from the other end": _wrong("end")
    },
)
