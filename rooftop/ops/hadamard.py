"""Rotation of groups of neighbouring elements by a Hadamard matrix.

    y = x H / sqrt(size) for each `size` neighbours along the last dimension;  H(1) = 1, H(2 n) = [[H(n), H(n)], [H(n), -H(n)]]  (Sylvester's)

Symmetric and its own inverse. Computed in float32 by sums and differences at distances 1, 2, 4, ..., size / 2, each rounded, and one
product with
1 / sqrt(size): the fast Walsh-Hadamard transform (Fino & Algazi 1976), log2(size) additions an element in place of `size`
multiplications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, first_of
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.core.sweeps import Sizes
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (16, 32, 64, 128, 256)


def hadamard(x: Tensor, size: int = 128, *, implementation: str | None = None) -> Tensor:
    """Each group of `size` consecutive elements along the last dimension times the Hadamard matrix over sqrt(size), in float32, rounded
    once.

    Args:
        x: float32, float16 or bfloat16, any strides; its last dimension is a multiple of `size`.
        size: 16, 32, 64, 128 or 256.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape and dtype of `x`. Applying it twice is the identity, except for rounding.

    Raises TypeError for other dtypes, ValueError for another size or a last dimension that is not a multiple of it."""
    rows.validate("hadamard", "x", x)
    check_size("hadamard", x, size)
    return OP(x.reshape(x.shape[:-1].numel(), x.shape[-1]), size, implementation=implementation).reshape(x.shape)


def check_size(op: str, x: Tensor, size: int) -> None:
    number(op, "size", size, f"one of {', '.join(map(str, SIZES))}", whole=True)
    if size not in SIZES:
        raise ValueError(f"{op}: size is {size}; accepted are {', '.join(map(str, SIZES))}")
    if x.shape[-1] % size:
        raise ValueError(f"{op}: the last dimension of x is {x.shape[-1]}; it must be a multiple of size, {size}")


def rotated(x: Tensor, size: int) -> Tensor:
    """By sums and differences, in the dtype of `x`."""
    import torch

    y, step = x, 1
    while step < size:
        pairs = y.unflatten(-1, (y.shape[-1] // (2 * step), 2, step))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((a + b, a - b), -2).flatten(-3)
        step *= 2
    return y * size**-0.5


def matrix(size: int, like: Tensor) -> Tensor:
    """H / sqrt(size) [size, size]."""
    import torch

    return rotated(torch.eye(size, dtype=torch.float32, device=like.device), size).to(like.dtype)


def reference(x: Tensor, size: int) -> Tensor:
    return rotated(x, size)


def backward(dy: Tensor, size: int) -> Tensor:
    return rotated(dy, size)


def outputs(x: Meta, **_: Any) -> dict[str, Meta]:
    return {"y": Meta(x.shape, x.dtype)}


def work(p: Problem) -> Work:
    return Work(p["x"].nbytes, p["y"].nbytes, {"fma32": float(int(p.option("size")).bit_length()) * p["x"].numel})


def _eager(x: Tensor, size: int) -> Tensor:
    return (x.unflatten(-1, (-1, size)) @ matrix(size, x)).flatten(-2)


def _public(tensors: Any, options: Any) -> Any:
    return (tensors["x"], options["size"]), {}


def _cases() -> list[Case]:
    found = [case(f"size {size} 16384x8192", tags="bench", x=Input((16384, 8192), "bf16"), size=size) for size in (16, 128, 256)]
    for d in rows.FLOATS:
        for size in SIZES:
            found.append(case(f"size {size} 5x{3 * size}", tags="edge", x=Input((5, 3 * size), d), size=size))
        for fill in ("nan", "inf", "-0.0", "tiny"):
            found.append(case(f"{fill} 6x96", tags="edge", x=Input((6, 96), d, fill), size=32))
        for layout in ("transposed", "sliced", "padded", "strided", "expanded", "offset"):
            found.append(case(f"{layout} 20x64", tags="edge", x=Input((20, 64), d, layout=layout), size=16))
    return [
        *found,
        case("no rows", tags="edge", x=Input((0, 64), "bf16"), size=64),
        case("over 2^31 elements", tags="edge huge", x=Input((65537, 32768), "bf16"), size=128, why="offsets need 64 bits"),
    ]


OP = Op(
    reference,
    outputs=outputs,
    canonical=rows.canonical("x"),
    cases=_cases(),
    judging=Judging(rows=first_of()),
    swept=Sizes(
        lambda dtype, rows, groups: {"x": Input((rows, 128 * groups), dtype), "size": 128},
        {"rows": (1, 1 << 26), "groups": (1, 1 << 13)}, rows="rows", axis="groups",
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    calls=Calls(public=_public),
    grad=Grad(wrt=("x",), saves=(), backward=backward),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong={
        "not divided by the root": lambda x, size: rotated(x, size) * size**0.5,
        "half the size": lambda x, size: rotated(x, size // 2),
        "in the order of bits turned round": lambda x, size: rotated(x, size).unflatten(-1, (-1, size)).flip(-1).flatten(-2),
    },
)
