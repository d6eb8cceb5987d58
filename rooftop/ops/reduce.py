"""Sum, mean, variance, maximum and its index (argmax) over any dimensions.

    sum   out = Σ x          mean  out = Σ x / n          var  out = Σ (x - mean)² / max(n - correction, 0)
    max   out = max x        argmax  out = the first place in the reduced dimensions, counted in their order, where x is max x"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

OPS = ("sum", "max", "argmax", "mean", "var")
FLOATS = ("f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
SLOTS = "KRKRK"  # what the canonical dimensions are: kept or reduced


def reduce(
    x: Tensor, op: str, dim: int | Sequence[int] | None = None, *, keepdim: bool = False, correction: int = 1,
    implementation: str | None = None
) -> Tensor:
    """`x` reduced over `dim`. Sums are computed in float32 (integers: int64) and rounded once; the order is fixed, so that equal calls give
    equal bits.

    Args:
        x: float32, float16 or bfloat16; for "sum", "max" and "argmax" also int64, int32, int16, int8 or uint8. Any shape and strides.
        op: "sum", "max", "argmax", "mean" or "var".
        dim: a dimension, several, or None for all; negative values count from the last.
        keepdim: if True, reduced dimensions are kept with extent 1.
        correction: for "var", subtracted from the number of elements: 1 gives the unbiased estimate.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports `x`.

    Returns a tensor of the kept dimensions, of the dtype of `x`; int64 for "argmax" and for the "sum" of integers. Maxima propagate NaN;
    among equal maxima "argmax" returns the first. Over no elements the mean and the variance are NaN, the sum is 0.

    Raises TypeError for other dtypes, ValueError for another op, a dimension given twice, or a maximum of no elements; IndexError for a
    dimension out of range."""
    dims = _validate(x, op, dim, correction, keepdim)
    kept = [1 if i in dims else n for i, n in enumerate(x.shape)] if keepdim else []
    if len(dims) > 2 and _groups(x, dims) > 2:  # one more pass, for what alternates more often than the kernels follow
        order = [i for i in range(x.dim()) if i not in dims] + list(dims)
        x = x.permute(order).contiguous()
        dims = tuple(range(x.dim() - len(dims), x.dim()))
    out = OP(x, op, " ".join(map(str, dims)), correction if op == "var" else 0, implementation=implementation)
    return out.view(kept) if keepdim else out


def _validate(x: Tensor, op: str, dim: int | Sequence[int] | None, correction: int, keepdim: bool) -> tuple[int, ...]:
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"reduce: x is a {type(x).__name__}; it must be a tensor")
    if op not in OPS:
        raise ValueError(f"reduce: op is {op!r}; it is one of {', '.join(OPS)}")
    floats = (torch.float32, torch.float16, torch.bfloat16)
    if x.dtype not in floats and (op in ("mean", "var") or x.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)):
        accepted = floats if op in ("mean", "var") else (*floats, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        raise TypeError(f"reduce: x is {x.dtype}; accepted for {op!r} are {', '.join(map(str, accepted))}")
    if correction != 1 or type(correction) is not int:
        argument_checks.number("reduce", "correction", correction, "a whole number", whole=True)
    argument_checks.flag("reduce", "keepdim", keepdim)
    rank = x.dim()
    given = tuple(range(rank)) if dim is None else argument_checks.shape("reduce", "dim", dim)
    for d in given:
        argument_checks.number("reduce", "dim", d, "a dimension of x", whole=True)
        if not -rank <= d < rank:
            accepted_dims = f"each must be {-rank} to {rank - 1}" if rank else "it must be None or ()"
            raise IndexError(f"reduce: dim is {dim}; x has {rank} dimensions, so {accepted_dims}")
    dims = argument_checks.in_order([d % rank for d in given], rank)
    if len(dims) < len(given):
        raise ValueError(f"reduce: dim is {dim}, which names a dimension twice")
    if op in ("max", "argmax") and any(x.shape[d] == 0 for d in dims) and all(n > 0 for i, n in enumerate(x.shape) if i not in dims):
        raise ValueError(f"reduce: x has shape {tuple(x.shape)}: there is no {op} over no elements")
    return dims


def _groups(x: Tensor, dims: tuple[int, ...]) -> int:
    """How often a reduced dimension follows one that is kept, or comes first."""
    found, before = 0, False
    for i, n in enumerate(x.shape):
        if n > 1:
            now = i in dims
            found, before = found + (now and not before), now
    return found


def _dims(dims: str) -> tuple[int, ...]:
    return tuple(map(int, dims.split()))


def reference(x: Tensor, op: str, dims: str, correction: int) -> Tensor:
    over = _dims(dims)
    if not over:  # torch takes no dimensions for all of them
        x, over = x.unsqueeze(-1), (x.dim(),)
    if op == "sum":
        return x.sum(over)
    if op == "mean":
        return x.mean(over)
    if op == "var":
        return x.var(over, correction=correction)
    if op == "max":
        return x.amax(over)
    order = [i for i in range(x.dim()) if i not in over]
    return x.permute(*order, *over).flatten(len(order)).argmax(-1)


def cpu(x: Tensor, op: str, dims: str, correction: int) -> Any:
    """Torch's gradient of a maximum is NaN in all of a row with a NaN; that of a variance takes a mean of 16 bits."""
    import torch

    spoilt = op == "max" or (op == "var" and x.element_size() == 2)
    return NotImplemented if spoilt and torch.is_grad_enabled() and x.requires_grad else reference(x, op, dims, correction)


def backward(dout: Tensor, x: Tensor, out: Tensor, op: str, dims: str, correction: int) -> Tensor:
    """sum: dout. mean: dout / n. max: dout where x is the maximum, shared out among equals. var: dout · 2 (x - mean) / (n - correction)"""
    over = _dims(dims)
    n = prod(x.shape[d] for d in over)
    wide, top = dout, out
    for d in over:
        wide, top = wide.unsqueeze(d), top.unsqueeze(d)
    if op == "sum":
        return wide.expand(x.shape).clone()
    if op == "mean":
        return (wide / n).expand(x.shape).clone()
    import torch

    if op == "max":
        hit = (x == top) | x.isnan()  # which makes the maximum NaN too
        count = hit.sum(over, keepdim=True, dtype=torch.int64 if n >= 2**31 else torch.int32) if over else 1
        return torch.where(hit, (wide / count).to(x.dtype), 0.0)
    x32 = x.to(torch.promote_types(x.dtype, torch.float32))  # a mean of 16 bits would be off by more than the spread of values far from 0
    mean = x32.mean(over, keepdim=True) if over else x32
    return (wide * (2 / max(n - correction, 0) if n > correction else float("nan")) * (x32 - mean)).to(x.dtype)


def outputs(x: Meta, op: str, dims: str, correction: int) -> dict[str, Meta]:
    over = _dims(dims)
    whole = op == "argmax" or (op == "sum" and x.dtype in INTEGERS)
    return {"out": Meta(tuple(n for i, n in enumerate(x.shape) if i not in over), "i64" if whole else x.dtype)}


def canonical(p: Problem) -> Problem | None:
    """x as [kept, reduced, kept, reduced, kept], its dimensions in the order of their strides, and out as [kept, 1, kept, 1, kept]; None
    where that is too few. Where places count, the reduced dimensions keep their order."""
    x, out, over = p["x"], p["out"], _dims(str(p.option("dims")))
    places = iter(out.strides)
    found = [(i in over, n, step, 0 if i in over else next(places)) for i, (n, step) in enumerate(zip(x.shape, x.strides, strict=True))]
    if x.numel == 0:  # nothing is read: the reduced dimensions as one, the others as they lie in out
        others = [(False, n, place, place) for reduced, n, _, place in found if not reduced] if out.numel else [(False, 0, 1, 1)]
        found = [*others, (True, prod(x.shape[i] for i in over), 0, 0)]
    found = [d for d in found if d[1] != 1]
    if p.option("op") != "argmax" or sum(d[0] for d in found) < 2:
        found.sort(key=lambda d: -d[2])
    merged: list[tuple[bool, int, int, int]] = []
    for d in found:
        if merged and merged[-1][0] == d[0] and merged[-1][2] == d[1] * d[2] and (d[0] or merged[-1][3] == d[1] * d[3]):
            merged[-1] = (d[0], merged[-1][1] * d[1], d[2], d[3])
        else:
            merged.append(d)
    slots = [(1, 0, 0)] * len(SLOTS)
    at = len(SLOTS)
    for reduced, n, step, place in reversed(merged):
        at = SLOTS.rfind("R" if reduced else "K", 0, at)
        if at < 0:
            return None
        slots[at] = (n, step, place)
    shape, steps, to = zip(*slots, strict=True)
    kept = tuple(1 if kind == "R" else n for kind, n in zip(SLOTS, shape, strict=True))
    return p.replace(x=Meta(shape, x.dtype, steps, x.align), out=Meta(kept, out.dtype, to, out.align))


def work(p: Problem) -> Work:
    """Read x once, write the result; one FMA an element, three of a variance."""
    x = p["x"]
    return Work(x.nbytes, p["out"].nbytes, {"fma32": (3.0 if p.option("op") == "var" else 1.0) * x.numel})


def _tail_dropped(x: Tensor, op: str, dims: str, correction: int) -> Tensor:
    """Whole chunks of 4 along the last reduced dimension alone."""
    over = _dims(dims)
    d = over[-1]
    return reference(x.narrow(d, 0, max(1, x.shape[d] // 4 * 4)), op, dims, correction)


def _bfloat16(x: Tensor, op: str, dims: str, correction: int) -> Tensor:
    """Elements, and what is made of them, in bfloat16."""
    import torch

    found = reference(x.to(torch.bfloat16), op, dims, correction)
    return found if found.dtype == torch.int64 else found.to(x.dtype)


def _nan_lost(x: Tensor, op: str, dims: str, correction: int) -> Tensor:
    return reference(x.nan_to_num(0.0) if x.is_floating_point() else x, op, dims, correction)


def _last_of_equals(x: Tensor, op: str, dims: str, correction: int) -> Tensor:
    over = _dims(dims)
    if op != "argmax":
        return reference(x, op, dims, correction)
    n = prod(x.shape[d] for d in over)
    return n - 1 - reference(x.flip(over), op, dims, correction)


def _squares(x: Tensor, op: str, dims: str, correction: int) -> Tensor:
    """var as the mean of squares less the square of the mean."""
    over = _dims(dims)
    if op != "var":
        return reference(x, op, dims, correction)
    n = prod(x.shape[d] for d in over)
    return ((x.float() ** 2).mean(over) - x.float().mean(over) ** 2).to(x.dtype) * (n / max(n - correction, 1))


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, op: str, dims: str, fill: str = "normal", layout: str = "contiguous", correction: int = 1
    ) -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "op": op, "dims": dims, "correction": correction if op == "var" else 0}

    sizes = [(op, n, d) for op in ("sum", "var") for n in (1 << 24, 1 << 28) for d in ("f32", "bf16")]
    bench = [case(f"{op} of all {n >> 20} Mi", tags="bench", **call((n,), d, op, "0")) for op, n, d in sizes]
    bench += [
        case("max of all 256 Mi", tags="bench", **call((1 << 28,), "bf16", "max", "0")),
        case("argmax of all 256 Mi", tags="bench", **call((1 << 28,), "bf16", "argmax", "0")),
        case("mean of all, odd", tags="bench", **call((16381, 16383), "bf16", "mean", "0 1")),
        case("sum of rows 16384x8192", tags="bench", **call((16384, 8192), "bf16", "sum", "1")),
        case("sum of rows 65536x769", tags="bench", why="odd", **call((65536, 769), "f32", "sum", "1")),
        case("argmax of rows 2048x128256", tags="bench model", **call((2048, 128256), "bf16", "argmax", "1")),
        case("sum of columns 16384x8192", tags="bench", **call((16384, 8192), "bf16", "sum", "0")),
        case("var of channels 256x64x56x56", tags="bench model", **call((256, 64, 56, 56), "f32", "var", "0 2 3")),
        case("mean of pixels 256x2048x49", tags="bench model", **call((256, 2048, 49), "bf16", "mean", "2")),
        case("sum of short rows 8388608x12", tags="bench", **call((8388608, 12), "f32", "sum", "1")),
    ]
    shapes: dict[str, tuple[Any, ...]] = {
        "one element": ((1,), "0"),
        "one column": ((5, 1), "1"),
        "odd rows 37x1001": ((37, 1001), "1"),
        "rows 5x4096": ((5, 4096), "1"),
        "long row 1x70001": ((1, 70001), "1"),
        "two long rows 2x33000": ((2, 33000), "1"),
        "short rows 515x3": ((515, 3), "1"),
        "columns 300x37": ((300, 37), "0"),
        "columns 2051x3": ((2051, 3), "0"),
        "middle 3x50x24": ((3, 50, 24), "1"),
        "all of 40x50": ((40, 50), "0 1"),
        "channels 6x5x7x9": ((6, 5, 7, 9), "0 2 3"),
        "first and third 3x4x5x6": ((3, 4, 5, 6), "0 2"),
        "second and last 3x4x5x6": ((3, 4, 5, 6), "1 3"),
        "no dimension": ((3, 7), ""),
        "transposed": ((40, 72), "1", "normal", "transposed"),
        "rows padded": ((9, 256), "1", "normal", "padded"),
        "rows misaligned": ((9, 256), "0", "normal", "sliced"),
        "all, misaligned": ((9, 250), "0 1", "normal", "sliced"),
        "address misaligned": ((9, 256), "1", "normal", "offset"),
        "every second element": ((6, 64), "1", "normal", "strided"),
        "expanded": ((6, 64), "0", "normal", "expanded"),
        "slices do not collapse": ((3, 4, 5, 30), "1", "normal", "sliced"),
    }
    values: dict[str, tuple[Any, ...]] = {
        "denormals": ((4, 300), "1", "tiny"),
        "NaN": ((5, 300), "1", "nan"),
        "+inf": ((5, 300), "1", "inf"),
        "-inf": ((5, 300), "1", "-inf"),
        "rows of -inf": ((5, 300), "1", "-inf rows"),
        "-0.0": ((5, 300), "1", "-0.0"),
        "all equal": ((5, 300), "1", "equal"),
        "far from zero": ((5, 3000), "1", "far"),
    }
    whole = ("sum", "max", "argmax")
    made = [
        (d, op, name, how) for d in FLOATS for op in OPS for name, how in (shapes | values).items() if (name, op) != ("all equal", "var")
    ]
    made += [(d, op, name, how) for d in ("i32", "u8", "i64") for op in whole for name, how in shapes.items()]
    made += [(d, op, "columns", ((130, 33), "0")) for d in ("i16", "i8") for op in whole]
    edge = [case(f"{op}, {name}", tags="edge", **call(how[0], d, op, *how[1:])) for d, op, name, how in made]
    for d in FLOATS:
        edge += [case(f"{op} of nothing", tags="edge", **call((4, 0), d, op, "1")) for op in ("sum", "mean")]
        edge += [case(f"{op} of no rows", tags="edge", **call((0, 4), d, op, "1")) for op in OPS]
        edge += [
            case("var, correction 0", tags="edge", **call((6, 90), d, "var", "1", correction=0)),
            case("var of no freedom", tags="edge", **call((6, 3), d, "var", "1", correction=3)),
        ]
    why = "offsets and places need 64 bits"
    huge = [
        case(f"{op} over 2^31 elements", tags="edge huge", why=why, **call((65537, 32769), "bf16", op, "0 1")) for op in ("sum", "argmax")
    ]
    huge += [case("columns over 2^31 elements", tags="edge huge", why=why, **call((65537, 32769), "bf16", "sum", "0"))]
    return bench + edge + huge


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [tensors["x"], options["op"], _dims(str(options["dims"]))], {"correction": options["correction"]}


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=_public),
    outputs=outputs,
    judging=Judging(invariant={"batch": "how many blocks share a sum follows from the sizes of the whole tensor"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns: {"x": Input((rows, columns), dtype), "op": "sum", "dims": "1", "correction": 0},
        {"rows": (1, 1 << 26), "columns": (8, 1 << 26)}, rows="rows", models={"columns": "hidden"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("x",), saves=("x", "out"), backward=backward),
    peers={"torch": lambda: reference, "torch.compile": compiled(reference, every=True)},
    wrong={
        "tail dropped": _tail_dropped, "in bfloat16": _bfloat16, "NaN lost": _nan_lost, "last of equals": _last_of_equals,
        "mean of squares": _squares
    },
)
