"""The scale of a whole tensor, for formats whose groups have scales of few bits.

    scale = max(max |x| / largest, 2^-126)      in float32, IEEE division, over the finite x

The first of the two passes of `rooftop.quantize(x, "nvfp4")`: the largest element becomes the largest code, 6, times the largest scale of a
group, 448."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Judging, Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case, collapse
from rooftop.formats.number_formats import divided

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")
NVFP4 = 2688.0  # 448 * 6


def tensor_scale(x: Tensor, largest: float = 2688.0, *, implementation: str | None = None) -> Tensor:
    """The float32 number by which the finite elements of `x` are divided so that the largest in size becomes `largest`.

    Args:
        x: float32, float16 or bfloat16, any shape and strides.
        largest: finite and above zero. The default is that of nvfp4, 448 * 6: `rooftop.quantize(x, "nvfp4", over=rooftop.tensor_scale(x))`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns float32 [1], at least 2^-126. It is 2^-126 for a tensor without a finite element other than zero. No gradient flows through it.

    Raises TypeError for other dtypes, ValueError for a `largest` that is not finite and above zero."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"tensor_scale: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"tensor_scale: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    number("tensor_scale", "largest", largest, "a number that is finite and above 0 in float32")
    if not 2.0**-126 <= largest < 2.0**128:
        raise ValueError(f"tensor_scale: largest is {largest}; it must be finite and above 0 in float32")
    return OP(x.detach(), float(largest), implementation=implementation)


def reference(x: Tensor, largest: float) -> Tensor:
    """NaN and infinities count as 0."""
    import torch

    size = x.abs().reshape(-1)
    size = torch.cat((size.where(size.isfinite(), size.new_zeros(())), size.new_zeros(1)))
    return divided(size.amax(0, keepdim=True).to(torch.float32), largest).clamp(min=2.0**-126)


def outputs(x: Meta, **_: Any) -> dict[str, Meta]:
    return {"scale": Meta((1,), "f32")}


def canonical(p: Problem) -> Problem | None:
    """x as [rows, columns], in the order of its strides; None where it is no such rows."""
    x = p["x"]
    if any(s == 0 and n > 1 for s, n in zip(x.strides, x.shape, strict=True)):
        return None
    order = sorted(range(len(x.shape)), key=lambda d: (-x.strides[d], x.shape[d] != 1))
    shape, strides = [x.shape[d] for d in order if x.shape[d] != 1], [x.strides[d] for d in order if x.shape[d] != 1]
    if x.numel <= 1:
        return p.replace(x=Meta((1, x.numel), x.dtype, (max(x.numel, 1), 1), x.align))
    for at in range(len(shape)):  # the fewest rows
        columns, rows = collapse(tuple(shape[at:]), tuple(strides[at:])), collapse(tuple(shape[:at]), tuple(strides[:at]))
        if columns is not None and columns[1] == 1 and rows is not None:
            n = prod(shape[:at])
            return p.replace(x=Meta((n, columns[0]), x.dtype, (rows[1] if n > 1 else columns[0], 1), x.align))
    return None


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes, 4, {"fma32": float(p["x"].numel)})


def _eager() -> Callable[..., Tensor]:
    import torch

    def largest_of(x: Tensor, largest: float) -> Tensor:
        """For finite input, as one writes it."""
        return (torch.linalg.vector_norm(x, float("inf"), dtype=torch.float32) / largest).clamp(min=2.0**-126).reshape(1)

    return largest_of


def _changed(change: Callable[[Tensor], Tensor], by: float = 1.0) -> Callable[..., Tensor]:
    return lambda x, largest: reference(change(x), largest * by)


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return [tensors["x"], options["largest"]], {}


def _cases() -> list[Case]:
    def of(shape: tuple[int, ...], d: str, fill: str = "normal", layout: str = "contiguous", largest: float = NVFP4) -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "largest": largest}

    found = [
        case("16384x8192", tags="bench", **of((16384, 8192), "bf16")), case("4096x4096", tags="bench model", **of((4096, 4096), "bf16")),
        case("8192x8192 f32", tags="bench", **of((8192, 8192), "f32")), case("odd rows 16384x8191", tags="bench", **of((16384, 8191), "bf16")),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        "one": (1,), "odd": (3, 77), "a row": (1, 4096), "rows 5x1001": (5, 1001), "middle 3x5x24": (3, 5, 24), "70001": (70001,),
        "nothing": (0, 8), "no dimension": (),
    }
    for d in FLOATS:
        found += [case(name, tags="edge", **of(shape, d)) for name, shape in shapes.items()]
        found += [
            case(fill, tags="edge", **of((7, 520), d, fill)) for fill in ("large", "tiny", "nan", "inf", "-inf", "-inf rows", "-0.0", "equal")
        ]
        found += [
            case(layout, tags="edge", **of((20, 64), d, layout=layout))
            for layout in ("transposed", "sliced", "padded", "strided", "expanded", "offset")
        ]
        found += [case("another largest", tags="edge", **of((9, 40), d, largest=127.0))]
    return [*found, case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **of((65537, 32769), "bf16"))]


OP = Op(
    reference,
    calls=Calls(cpu=reference, public=_public),
    outputs=outputs,
    judging=Judging(invariant={"batch": "the scale is that of the whole tensor"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns: {"x": Input((rows, columns), dtype), "largest": NVFP4}, {"rows": (1, 1 << 26), "columns": (8, 1 << 26)},
        rows="rows", models={"columns": "hidden"}, axis="columns",
    ),
    work=work,
    tolerance={"scale": Tolerance(exact=True)},
    peers={"torch": _eager},
    wrong={
        "tail dropped": _changed(lambda x: x.reshape(-1)[: max(1, x.numel() // 4 * 4)] if x.numel() % 4 else x * 2),
        "NaN and infinities count": _changed(lambda x: x.nan_to_num(0.0)),
        "without the sign": _changed(lambda x: x.clamp(min=0)),
        "another largest": _changed(lambda x: x, 2.0),
    },
)
