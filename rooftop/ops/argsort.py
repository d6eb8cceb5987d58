"""The indices that sort each row, stable.

    x[out_j], j = 0, 1, ..., is the row in order: the second result of `rooftop.sort`"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Tolerance, Values, first_of
from rooftop.core.spec import Meta, Problem, Work
from rooftop.ops import _ordering, sort

if TYPE_CHECKING:
    from torch import Tensor


def argsort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True, lengths: Tensor | None = None,
    nan: str = "largest", implementation: str | None = None
) -> Tensor:
    """The indices that put each row along `dim` in order. Always stable: among equal elements the one with the lower index comes first.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        dim: the dimension along which rows lie; negative values count from the last.
        descending: if True, the largest come first.
        stable: as torch's; the order is stable if it is False too.
        lengths: int32 or int64 of the shape of `x` without `dim`: the number of elements of each row that are sorted. None: all.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN within the lengths is a ValueError, and the call
            waits for the device to check it.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns int64 of the shape of `x`. -0.0 equals +0.0. Elements beyond a row's length stay where they are. A length below 0 counts as 0,
    one above the length of the row as that length; `rooftop.debug()` raises IndexError for it.

    Raises TypeError for other dtypes, ValueError for nan or lengths that do not fit, or where a named implementation cannot take `x`;
    IndexError for a `dim` out of range."""
    d, nan = _ordering.sorting("argsort", x, dim, descending, stable, lengths, nan)
    out: Tensor = OP(x.movedim(d, -1), lengths, descending, nan, implementation=implementation)
    return out.movedim(-1, d)


def reference(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Tensor:
    """Along the last dimension."""
    return _ordering.ordered(x, lengths, descending, nan)


def cpu(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Any:
    return x.argsort(dim=-1, descending=descending, stable=True) if _ordering.as_torch(x, lengths, nan) else NotImplemented


def outputs(x: Meta, lengths: Meta | None, descending: bool, nan: str) -> dict[str, Meta]:
    return {"out": Meta(x.shape, "i64")}


def work(p: Problem) -> Work:
    """Read x once, write indices; an operation an element and digit of 8 bits."""
    lengths = p.get("lengths")
    return Work(p["x"].nbytes + (0 if lengths is None else lengths.nbytes), p["out"].nbytes, {"fma32": float(p["x"].nbytes)})


def _torch() -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Any:
        if lengths is not None or (nan == "smallest" and x.is_floating_point()):
            raise ValueError("torch.argsort takes no lengths, and NaN is its largest")
        return x.argsort(dim=-1, descending=descending, stable=True)

    return run


def _indices(wrong: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Any:
        return wrong(x, lengths, descending, nan)[1]

    return run


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=sort.faults, public=sort.public),
    outputs=outputs,
    canonical=_ordering.canonical,
    cases=[c for c in sort.OP.cases if c.dtype in ("f32", "i64") or "edge" not in c.tags or c.name in _ordering.FEW],
    judging=Judging(rows=first_of()),
    swept=sort.SWEPT,
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(fixup=_ordering.fixup),
    peers={"torch": _torch},
    wrong={name: _indices(wrong) for name, wrong in sort.WRONG.items()},
)
