"""Elementwise sum of two tensors: the hello world.

    out_i = x_i + y_i"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, each_element, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import of_torch

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")


def add(x: Tensor, y: Tensor | float, *, alpha: float = 1, implementation: str | None = None) -> Tensor:
    """x + alpha · y, element by element, rounded once.

    Args:
        x, y: float32, float16 or bfloat16, of one dtype, and of one shape or of shapes that torch broadcasts; any strides. `y` may be a number.
        alpha: a number. If it is not 1, or if `y` is a number, torch's own function runs.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of their shape (broadcast) and dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not broadcast or different devices, or for a
    named implementation if torch's own function runs."""
    if alpha != 1 or isinstance(y, (int, float)):
        return _by_torch(x, y, alpha, implementation)
    x, y = _validate(x, y)
    return OP(x, y, implementation=implementation)


def _by_torch(x: Tensor, y: Tensor | float, alpha: float, implementation: str | None) -> Tensor:
    import torch

    number("add", "alpha", alpha, "a number")
    if isinstance(y, (int, float)):
        number("add", "y", y, "a tensor or a number")
        _validate(x, x)
    else:
        x, y = _validate(x, y)
    if implementation is not None:
        raise ValueError(f"add: implementation is {implementation!r}, and y is a number or alpha not 1: torch's own function adds these")
    return torch.add(x, y, alpha=alpha)


def _validate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the shape of the result."""
    import torch

    for name, t in (("x", x), ("y", y)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"add: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"add: {name} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if x.dtype != y.dtype:
        raise TypeError(f"add: x is {x.dtype} and y is {y.dtype}; they must be the same")
    if x.device != y.device:
        raise ValueError(f"add: x lies on {x.device} and y on {y.device}; they must be on one device")
    if x.shape == y.shape:
        return x, y
    if any(m != n and 1 not in (m, n) for m, n in zip(reversed(x.shape), reversed(y.shape), strict=False)):
        raise ValueError(f"add: x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be alike, or broadcast as torch's do")
    wide_x, wide_y = torch.broadcast_tensors(x, y)
    return wide_x, wide_y


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def outputs(x: Meta, y: Meta) -> dict[str, Meta]:
    return {"out": like(x) if x.strides == y.strides else Meta(x.shape, x.dtype)}


def canonical(p: Problem) -> Problem | None:
    """All three as one dimension [n], where they lie alike and without gaps."""
    x, y, out = p["x"], p["y"], p["out"]
    if not x.strides == y.strides == out.strides or like(x).strides != x.strides:
        return None
    return p.replace(**{n: Meta((m.numel,), m.dtype, (1,), m.align) for n, m in p.tensors if m is not None})


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes + p["y"].nbytes, p["out"].nbytes, {"fma32": float(p["out"].numel)})


def _cases() -> list[Case]:
    def both(d: str, shape: tuple[int, ...], fill: str = "normal", layout: str = "contiguous") -> dict[str, Any]:
        return {"x": Input(shape, d, fill, layout), "y": Input(shape, d, fill if fill != "inf" else "-inf", layout)}

    bench = [case(f"{n >> 20} Mi elements", tags="bench", **both(d, (n,))) for n in (1 << 20, 1 << 26) for d in ("bf16", "f32")]
    edges: dict[str, tuple[Any, ...]] = {
        "empty": ((0,),),
        "one element": ((1,),),
        "odd": ((1003,),),
        "one block": ((4096,),),
        "three dimensions": ((3, 5, 7),),
        "transposed": ((20, 36), "normal", "transposed"),
        "rows padded": ((9, 100), "normal", "sliced"),
        "address misaligned": ((1003,), "normal", "offset"),
        "expanded": ((6, 64), "normal", "expanded"),
        "overflow": ((500,), "large"),
        "denormals": ((500,), "tiny"),
        "NaN": ((5, 300), "nan"),
        "inf - inf": ((5, 300), "inf"),
        "-0.0": ((5, 300), "-0.0"),
    }
    edge = [case(name, tags="edge", **both(d, *how)) for d in FLOATS for name, how in edges.items()]
    huge = [case("over 2^31 elements", tags="edge huge", **both("bf16", ((1 << 31) + 4097,)))]
    return bench + edge + huge


def _low_bits_lost(x: Tensor, y: Tensor) -> Tensor:
    import torch

    return (x.to(torch.float8_e4m3fn).to(x.dtype) + y) if x.element_size() == 2 else (x.bfloat16() + y.bfloat16()).to(x.dtype)


def _tail_not_added(x: Tensor, y: Tensor) -> Tensor:
    out = (x + y).reshape(-1)
    n = out.numel() // 4 * 4
    out[n:] = x.reshape(-1)[n:]
    return out.view(x.shape)


OP = Op(
    reference,
    calls=Calls(cpu=reference),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    judging=Judging(rows=each_element),
    swept=Sizes(
        lambda dtype, rows, columns: dict.fromkeys("xy", Input((rows, columns), dtype)), {"rows": (1, 1 << 26), "columns": (64, 1 << 20)},
        rows="rows", models={"columns": "hidden"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(multiple=1.0),
    grad=Grad(wrt=("x", "y"), saves=(), backward=lambda dout: (dout.clone(), dout.clone())),
    peers={"torch": of_torch("add")},
    wrong={"low bits lost": _low_bits_lost, "tail not added": _tail_not_added},
)
