"""The order that topk, sort, argsort, kthvalue and topk_mask share, in plain torch; what their arguments must be; inputs that are hard to
order.

Elements are ordered by value, equal ones by index, the lowest first. -0.0 equals +0.0. All NaN are equal, and above +infinity
(`nan="largest"`) or below
-infinity (`nan="smallest"`). So each order is one alone, and every kernel gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from rooftop.core import argument_checks
from rooftop.core.spec import Meta, Problem, collapse

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("f32", "f16", "bf16", "i32", "i64")
TORCH = ("float32", "float16", "bfloat16", "int32", "int64")
NAN = ("largest", "smallest", "error")
PART = 1 << 16  # elements: of a row that 16 bits number, and of rows that a core's cache holds
LONGEST = 2**31 - 2**16  # elements of a row: an index and a block's last round fit 31 bits


class Ordered(NamedTuple):
    """What sort, topk and kthvalue return, as torch's do: elements, and the places that they came from."""

    values: Tensor
    indices: Tensor


def keys(x: Tensor, nan: str) -> Tensor:
    """int64 of the same shape, in the order of the elements."""
    import torch

    if not x.is_floating_point():
        return x.to(torch.int64)
    bits = (x.double() + 0.0).view(torch.int64)  # -0.0 + 0.0 is +0.0
    found = torch.where(bits < 0, bits ^ (2**63 - 1), bits)
    return torch.where(x.isnan(), 2**63 - 1 if nan == "largest" else -(2**63), found)


def clamped(lengths: Tensor, n: int) -> Tensor:
    """Elements of each row that take part, int64."""
    import torch

    return lengths.to(torch.int64).clamp(0, n)


def ordered(x: Tensor, lengths: Tensor | None, descending: bool, nan: str) -> Tensor:
    """The indices of the elements in order, int64; those beyond a row's length come last and in place."""
    import torch

    found = keys(x, nan).sort(dim=-1, descending=descending, stable=True).indices
    if lengths is not None:
        beyond = found >= clamped(lengths, x.shape[-1]).unsqueeze(-1)
        found = found.gather(-1, beyond.to(torch.int8).sort(dim=-1, stable=True).indices)
        place = torch.arange(x.shape[-1], device=x.device)
        found = torch.where(place >= clamped(lengths, x.shape[-1]).unsqueeze(-1), place, found)
    return found


def last_value(x: Tensor, largest: bool) -> float | int:
    """What fills places that a row is too short for: the last value of the order."""
    import torch

    if x.is_floating_point():
        return float("-inf") if largest else float("inf")
    info = torch.iinfo(x.dtype)
    return info.min if largest else info.max


# -- with torch's own functions, on the CPU ------------------------------------------------------------------------


def as_torch(x: Tensor, lengths: Tensor | None, nan: str) -> bool:
    """Whether torch has the same order of values: its NaN is the largest."""
    return lengths is None and x.numel() > 0 and (nan == "largest" or not x.is_floating_point() or not bool(x.isnan().any()))


def first_by_torch(x: Tensor, k: int, largest: bool) -> Tensor | None:
    """The indices of the k first of each row; None where a row of int64 has equal values among them. torch.topk gives any of several equal
    values, so that rows in which two of the k + 1 first are equal are ordered by value and index in one number."""
    import torch

    x = x.detach()
    if x.element_size() == 2:  # most rows of these dtypes have equal values
        return _first_of_many_equal(x, k, largest)
    values, found = x.topk(min(k + 1, x.shape[-1]), -1, largest)
    a, b = values[..., 1:], values[..., :-1]
    tied = (a == b).any(-1)
    if x.is_floating_point():
        tied = tied | (a.isnan() & b.isnan()).any(-1)
    found = found[..., :k]
    if bool(tied.any()):
        if x.dtype == torch.int64:
            return None
        found = found.clone()
        found[tied] = _first_by_number(x[tied], k, largest)
    return found.contiguous()


def _first_of_many_equal(x: Tensor, k: int, largest: bool) -> Tensor:
    """The same where most rows have equal values, of 16 bits: value and index in one number of 32, some rows at a time, which a core's cache
    holds. Of rows longer than 2^16 each part has its first ones."""
    import torch

    n = x.shape[-1]
    flat = x.reshape(-1, n)
    if n > PART:
        found = torch.cat([_first_of_many_equal(p, min(k, p.shape[1]), largest) + i * PART for i, p in enumerate(flat.split(PART, 1))], 1)
        return _first_by_number(flat.gather(-1, found), k, largest, found).view(*x.shape[:-1], k)
    place = torch.arange(n, dtype=torch.int32)
    place = n - 1 - place if largest else place
    infinity = torch.full((), float("inf"), dtype=x.dtype).view(torch.int16).item()
    firsts = []
    for rows in flat.split(PART // n):
        bits = rows.view(torch.int16)
        sign, number = bits >> 15, bits & 0x7FFF
        if number.amax().item() > infinity:
            firsts.append(_first_by_number(rows, k, largest))
            continue
        number = number.bitwise_xor_(sign).sub_(sign).to(torch.int32).bitwise_left_shift_(16).bitwise_or_(place)  # of both zeros 0
        last = number.topk(k, -1, largest).values.bitwise_and_(PART - 1)
        firsts.append((n - 1 - last if largest else last).long())
    return torch.cat(firsts).view(*x.shape[:-1], k)


def _first_by_number(x: Tensor, k: int, largest: bool, place: Tensor | None = None) -> Tensor:
    """The same of dtypes of at most 32 bits, by numbers that no two elements of a row share: the value's place among all, then the
    index. `place`: the indices of the elements, 0, 1, ... if None."""
    import torch

    n = x.shape[-1] if place is None else LONGEST
    short = x.element_size() == 2 and n <= 1 << 16
    bits = (x + 0.0 if short else x.float() + 0.0).contiguous().view(torch.int16 if short else torch.int32) if x.is_floating_point() else x
    if x.is_floating_point():  # -0.0 + 0.0 is +0.0
        bits = torch.where(bits < 0, bits ^ (2**15 - 1 if short else 2**31 - 1), bits)
        bits = bits.masked_fill_(x.isnan(), 2**15 - 1 if short else 2**31 - 1)
    if place is None:
        place = torch.arange(n, dtype=torch.int32 if short else torch.int64)
    last = (1 << 16) - 1 if short else (1 << 31) - 1
    number = bits.to(place.dtype) << (16 if short else 31)
    number |= last - place if largest else place
    found = number.topk(k, -1, largest).values & last
    return (last - found if largest else found).to(torch.int64)


def kth_by_torch(x: Tensor, k: int) -> Tensor:
    """The index of the k-th smallest of each row: torch.kthvalue gives that of any element of this value."""
    import torch

    x = x.detach()
    value, found = x.kthvalue(k, -1)
    equal = _equal(x, value)
    several = equal.sum(-1, dtype=torch.int32) > 1
    if bool(several.any()):
        x, value, equal = x[several], value[several], equal[several]
        before = (x < value.unsqueeze(-1)).sum(-1).where(value == value, (x == x).sum(-1))
        found = found.clone()
        found[several] = (equal.cumsum(-1) == (k - before).unsqueeze(-1)).byte().argmax(-1)
    return found


def _equal(x: Tensor, value: Tensor) -> Tensor:
    equal = x == value.unsqueeze(-1)
    lost = value != value
    return equal | ((x != x) & lost.unsqueeze(-1)) if bool(lost.any()) else equal


# -- arguments ---------------------------------------------------------------------------------------------------


def tensor(op: str, x: Tensor, dim: int) -> int:
    """`dim` counted from 0. Raises as the public functions say."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: x is a {type(x).__name__}; it must be a tensor")
    if str(x.dtype).removeprefix("torch.") not in TORCH:
        raise TypeError(f"{op}: x is {x.dtype}; accepted are {', '.join(f'torch.{n}' for n in TORCH)}")
    argument_checks.number(op, "dim", dim, "a whole number", whole=True)
    rank = x.dim()
    if rank == 0:
        raise ValueError(f"{op}: x has no dimensions; it must have at least one")
    if not -rank <= dim < rank:
        raise IndexError(f"{op}: dim is {dim}; x has {rank} dimensions, so it must be {-rank} to {rank - 1}")
    if x.shape[dim] >= 2**31:
        raise ValueError(f"{op}: x has {x.shape[dim]} elements along dim {dim}; a row may have fewer than 2^31")
    return dim % rank


def count(op: str, k: int, n: int, least: int) -> None:
    argument_checks.number(op, "k", k, f"a whole number, {least} to the row's {n} elements", whole=True)
    if not least <= k <= n:
        raise ValueError(f"{op}: k is {k}; it must be {least} to the row's {n} elements")


def nan_order(op: str, x: Tensor, nan: str, dim: int = -1, lengths: Tensor | None = None) -> str:
    """What a kernel is told of NaN. `error` looks for one among the elements that take part, which waits for the device."""
    if not isinstance(nan, str) or nan not in NAN:
        raise ValueError(f"{op}: nan is {nan!r}; it is one of {', '.join(NAN)}")
    if not x.is_floating_point():
        return "largest"
    if nan == "error":
        if not x.is_meta and bool(_takes_part(x.isnan(), dim, lengths).any()):
            raise ValueError(f"{op}: x has a NaN, which nan='error' refuses; 'largest' and 'smallest' order it")
        return "largest"
    return nan


def _takes_part(found: Tensor, dim: int, lengths: Tensor | None) -> Tensor:
    """`found`, False beyond the rows' lengths."""
    import torch

    if lengths is None:
        return found
    n = found.shape[dim]
    return found.movedim(dim, -1) & (torch.arange(n, device=found.device) < clamped(lengths, n).unsqueeze(-1))


def row_lengths(op: str, x: Tensor, dim: int, lengths: Tensor | None) -> None:
    import torch

    if lengths is None:
        return
    if not isinstance(lengths, torch.Tensor):
        raise TypeError(f"{op}: lengths is a {type(lengths).__name__}; it must be a tensor of int32 or int64, or None")
    if lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: lengths is {lengths.dtype}; accepted are torch.int32, torch.int64")
    expected = tuple(x.shape[:dim]) + tuple(x.shape[dim + 1 :])
    if tuple(lengths.shape) != expected:
        raise ValueError(f"{op}: lengths has shape {tuple(lengths.shape)}; it must have that of x without dim {dim}, {expected}")
    if lengths.device != x.device:
        raise ValueError(f"{op}: lengths lies on {lengths.device}, x on {x.device}; they must lie on one device")


def sorting(op: str, x: Tensor, dim: int, descending: bool, stable: bool, lengths: Tensor | None, nan: str) -> tuple[int, str]:
    """The arguments of sort and argsort: `dim` counted from 0, and what a kernel is told of NaN."""
    d = tensor(op, x, dim)
    argument_checks.flag(op, "descending", descending)
    argument_checks.flag(op, "stable", stable)
    row_lengths(op, x, d, lengths)
    return d, nan_order(op, x, nan, d, lengths)


def length_faults(x: Tensor, lengths: Tensor | None) -> str | None:
    """Under `rooftop.debug()`."""
    if lengths is None or lengths.numel() == 0:
        return None
    low, high = int(lengths.min()), int(lengths.max())
    return (
        None if low >= 0 and high <= x.shape[-1] else f"lengths go from {low} to {high}; each must be 0 to the row's {x.shape[-1]} elements"
    )


# -- problems ----------------------------------------------------------------------------------------------------


def rows(p: Problem, x: str) -> Problem | None:
    """Every tensor as [R, its last dimension], those of a number a row as [R]. None where the dimensions before do not collapse."""
    many, rank = prod(p[x].shape[:-1]), len(p[x].shape)
    found: dict[str, Meta | None] = {}
    for name, m in p.tensors:
        if m is None:
            continue
        alone = name == "lengths" or len(m.shape) < rank
        outer = collapse(m.shape if alone else m.shape[:-1], m.strides if alone else m.strides[:-1])
        if outer is None:
            return None
        step = outer[1] if many > 1 else 0
        if alone and many > 1 and step != 1:
            return None
        shape, strides = ((many,), (step,)) if alone else ((many, m.shape[-1]), (step, m.strides[-1]))
        found[name] = Meta(shape, m.dtype, strides, m.align)
    return p.replace(**found)


def canonical(p: Problem) -> Problem | None:
    return rows(p, "x")


def fixup(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """Lengths from 0 to the whole row, both among them."""
    import torch

    lengths = tensors.get("lengths")
    if lengths is None or 0 in lengths.stride():  # one length for several rows is right as well
        return {}
    n = tensors["x"].shape[-1]
    found = torch.randint(0, n + 1, lengths.shape, generator=generator, device=lengths.device, dtype=torch.int64)
    flat = found.view(-1)
    flat[:1], flat[1:2] = n, 0
    return {"lengths": found.to(lengths.dtype)}


SHAPES: Mapping[str, tuple[Any, ...]] = {  # name -> shape, fill, layout
    "one element": ((1, 1),),
    "a warp 7x40": ((7, 40),),
    "rows 5x200": ((5, 200),),
    "odd rows 3x777": ((3, 777),),
    "slices 2x3x1030": ((2, 3, 1030),),
    "longer 2x5001": ((2, 5001),),
    "long row 1x40003": ((1, 40003),),
    "transposed": ((30, 44), "normal", "transposed"),
    "rows padded": ((9, 256), "normal", "padded"),
    "rows misaligned": ((9, 260), "normal", "sliced"),
    "address misaligned": ((3, 1024), "normal", "offset"),
    "every second element": ((6, 64), "normal", "strided"),
    "expanded": ((6, 320), "normal", "expanded"),
}
VALUES: Mapping[str, tuple[Any, ...]] = {
    "denormals": ((4, 300), "tiny"),
    "NaN": ((5, 300), "nan"),
    "+inf": ((5, 300), "inf"),
    "-inf": ((5, 300), "-inf"),
    "rows of -inf": ((4, 1100), "-inf rows"),
    "-0.0": ((5, 300), "-0.0"),
    "all equal": ((2, 9001), "equal"),
    "few values": ((3, 5000), "integers"),
    "equal leading bits": ((3, 3000), "far"),
}


FULL = ("f32", "bf16", "i64")  # the dtypes of all cases; the others share their code but for the bits of an infinity or a sign
FEW = ("a warp 7x40", "rows 5x200", "odd rows 3x777", "longer 2x5001", "long row 1x40003", "transposed", "denormals", "NaN", "-inf", "-0.0")


def cases_of(d: str, table: Mapping[str, tuple[Any, ...]]) -> list[tuple[str, tuple[Any, ...]]]:
    """Those of SHAPES or VALUES that a dtype has."""
    return [(name, how) for name, how in table.items() if d in FULL or name in FEW]
