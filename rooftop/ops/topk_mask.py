"""A mask of the k largest or smallest elements of each row.

    out_i = (i is one of the indices of rooftop.topk(x, k))"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Judging, Op, Tolerance, Values, first_of
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops import _ordering, topk

if TYPE_CHECKING:
    from torch import Tensor


def topk_mask(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, *, lengths: Tensor | None = None, nan: str = "largest",
    implementation: str | None = None
) -> Tensor:
    """True at the `k` largest (or smallest) elements of each row along `dim`, False elsewhere. Exactly k are True in a row: among equal
    elements those with the lowest indices.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        k: number of elements to mark, from 0 to the extent of `dim`.
        dim: the dimension along which rows lie; negative values count from the last.
        largest: if True, the largest are marked, else the smallest.
        lengths: int32 or int64 of the shape of `x` without `dim`: the number of elements of each row that take part; the others are False.
        None: all.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN within the lengths is a ValueError, and the call
            waits for the device to check it.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns bool of the shape of `x`. A row of fewer than k elements is True up to its length. -0.0 equals +0.0. A length below 0 counts as
    0, one above the length of the row as that length; `rooftop.debug()` raises IndexError for it.

    Raises TypeError for other dtypes, ValueError for k, nan or lengths that do not fit, or where a named implementation cannot take `x`;
    IndexError for a `dim` out of range."""
    d = _ordering.tensor("topk_mask", x, dim)
    _ordering.count("topk_mask", k, x.shape[d], 0)
    argument_checks.flag("topk_mask", "largest", largest)
    _ordering.row_lengths("topk_mask", x, d, lengths)
    nan = _ordering.nan_order("topk_mask", x, nan, d, lengths)
    out: Tensor = OP(x.movedim(d, -1), lengths, k, largest, nan, implementation=implementation)
    return out.movedim(-1, d)


def reference(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Tensor:
    """Along the last dimension."""
    import torch

    mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    mask.scatter_(-1, _ordering.ordered(x, lengths, largest, nan)[..., :k], True)
    if lengths is not None:
        mask &= torch.arange(x.shape[-1], device=x.device) < _ordering.clamped(lengths, x.shape[-1]).unsqueeze(-1)
    return mask


def cpu(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Any:
    import torch

    if k == 0 or not _ordering.as_torch(x, lengths, nan):
        return NotImplemented
    indices = _ordering.first_by_torch(x, k, largest)
    return NotImplemented if indices is None else torch.zeros(x.shape, dtype=torch.bool).scatter_(-1, indices, True)


def outputs(x: Meta, lengths: Meta | None, k: int, largest: bool, nan: str) -> dict[str, Meta]:
    return {"out": Meta(x.shape, "bool")}


def work(p: Problem) -> Work:
    """Read x once, write the mask; one comparison an element."""
    lengths = p.get("lengths")
    return Work(p["x"].nbytes + (0 if lengths is None else lengths.nbytes), p["out"].nbytes, {"fma32": float(p["x"].numel)})


def _torch() -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Any:
        import torch

        if lengths is not None or (nan == "smallest" and x.is_floating_point()):
            raise ValueError("torch.topk takes no lengths, and NaN is its largest")
        return torch.zeros(x.shape, dtype=torch.bool, device=x.device).scatter_(-1, x.topk(k, -1, largest).indices, True)

    return run


def _wrong(change: str) -> Callable[..., Any]:
    def run(x: Tensor, lengths: Tensor | None, k: int, largest: bool, nan: str) -> Any:
        if change == "ties":
            return reference(x.flip(-1), lengths, k, largest, nan).flip(-1)
        if change == "all ties":  # all that equal the k-th
            if k == 0:
                return reference(x, lengths, k, largest, nan)
            mask = reference(x, lengths, k, largest, nan)
            found = _ordering.keys(x, nan)
            last = found.where(mask, 2**63 - 1).amin(-1, keepdim=True) if largest else found.where(mask, -(2**63)).amax(-1, keepdim=True)
            return mask | (found == last)
        if change == "nan":
            return reference(x, lengths, k, largest, "smallest" if nan == "largest" else "largest")
        if change == "lengths":
            return reference(x, None, k, largest, nan)
        return reference(x, lengths, k, not largest, nan)

    return run


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, k: int, fill: str = "normal", layout: str = "contiguous", largest: bool = True,
        nan: str = "largest", ragged: str = ""
    ) -> dict[str, Any]:
        return {
            "x": Input(shape, d, fill, layout), "lengths": Input(shape[:-1], ragged) if ragged else None, "k": k, "largest": largest,
            "nan": nan
        }

    sizes = [(1, 131072), (128, 131072), (1024, 131072), (4096, 8192)]
    bench = [case(f"rows {r}x{n} k={k}", tags="bench", **call((r, n), "f32", k)) for r, n in sizes for k in (64, 2048)]
    edge = []
    for d in _ordering.DTYPES:
        edge += [
            case(name, tags="edge", **call(how[0], d, -(-how[0][-1] // 3), *how[1:])) for name,
            how in _ordering.cases_of(d, _ordering.SHAPES)
        ]
        if d not in _ordering.FULL:
            continue
        edge += [
            case("all of a row 2x1500", tags="edge", **call((2, 1500), d, 1500)),
            case("nearly all 3x2500", tags="edge", **call((3, 2500), d, 2490)),
            case("nearly all, two blocks 1x12000", tags="edge", **call((1, 12000), d, 11980, largest=False)),
            case("half 2x9000", tags="edge", **call((2, 9000), d, 4500)),
            case("ragged 5x1200", tags="edge", **call((5, 1200), d, 40, ragged="i32")),
            case("ragged, nearly all", tags="edge", **call((4, 1300), d, 1290, largest=False, ragged="i32")),
            case("ragged, a warp", tags="edge", **call((2, 5, 90), d, 12, largest=False, ragged="i64")),
            case("ragged, half", tags="edge", **call((3, 9000), d, 4500, ragged="i64")),
            case("k = 0", tags="edge", **call((3, 50), d, 0)),
            case("no rows", tags="edge", **call((0, 50), d, 5)),
            case("empty rows", tags="edge", **call((5, 0), d, 0)),
        ]
    for d in ("f32", "f16", "bf16"):
        for name, how in _ordering.cases_of(d, _ordering.VALUES):
            edge.append(case(name, tags="edge", **call(how[0], d, 40, *how[1:])))
            edge.append(case(f"smallest, {name}", tags="edge", **call(how[0], d, how[0][-1] - 9, how[1], largest=False, nan="smallest")))
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((17, 1 << 27), "bf16", 100))]
    return bench + edge + huge


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=topk.faults, public=topk.public),
    outputs=outputs,
    canonical=_ordering.canonical,
    cases=_cases(),
    judging=Judging(rows=first_of()),
    swept=topk.SWEPT,
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(fixup=_ordering.fixup),
    peers={"torch": _torch},
    wrong={
        "of equals the last": _wrong("ties"), "all equals": _wrong("all ties"), "NaN at the other end": _wrong("nan"),
        "lengths ignored": _wrong("lengths"), "the other end": _wrong("end"),
    },
)
