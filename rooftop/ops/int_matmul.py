"""Matrix product of 8-bit integers.

    out = a b

Source: the integer tensor cores of NVIDIA (Turing and later); `torch._int_mm`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.core.sweeps import PRODUCT
from rooftop.ops._peers import of_torch

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 2**31 // 2**14 - 1  # K: (-128)² this often is less than 2^31


def int_matmul(a: Tensor, b: Tensor, *, implementation: str | None = None) -> Tensor:
    """a b of 8-bit integers, summed exactly in 32 bits.

    Fastest where both operands are contiguous along K: `b` a transposed [N, K] tensor. All other layouts are read in place too.

    Args:
        a: [M, K], int8, any strides.
        b: [K, N], int8, any strides.
        implementation: name of a kernel (`"gluon_sm90"`), which runs or raises. None selects the best one that supports the input.

    Returns [M, N] of int32, zeros where K is 0.

    Raises TypeError for other dtypes; ValueError for shapes that do not fit, tensors on different devices, or K above 131071, where a sum
    could leave 32 bits."""
    import torch

    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"int_matmul: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype != torch.int8:
            raise TypeError(f"int_matmul: {name} is {t.dtype}; accepted is torch.int8")
        if t.dim() != 2:
            raise ValueError(f"int_matmul: {name} has shape {tuple(t.shape)}; it must have two dimensions")
    if a.device != b.device:
        raise ValueError(f"int_matmul: a lies on {a.device} and b on {b.device}; they must be on one device")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"int_matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; a's columns must be as many as b's rows")
    if a.shape[1] > LONGEST:
        raise ValueError(f"int_matmul: K is {a.shape[1]}; sums of more than {LONGEST} products may not fit int32")
    return OP(a, b, implementation=implementation)


def reference(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return (a.double() @ b.double()).to(torch.int32)  # exact: below 2^53


def cpu(a: Tensor, b: Tensor) -> Any:
    import torch

    return torch._int_mm(_laid_out(a), _laid_out(b)) if a.shape[0] and a.shape[1] > 1 and b.shape[1] and _is_exact() else NotImplemented


@cache
def _is_exact() -> bool:
    """Without VNNI instructions oneDNN adds pairs of products in 16 bits, which saturate."""
    import torch

    a, b = (torch.full(shape, value, dtype=torch.int8) for shape, value in (((8, 64), 127), ((64, 8), -128)))
    return all(bool((torch._int_mm(x, y) == 64 * int(x[0, 0]) * int(y[0, 0])).all()) for x, y in ((a, b), (-a, b), (a, -b), (b.t(), b)))


def _laid_out(t: Tensor) -> Tensor:
    """In a layout that torch reads rightly on the CPU: not of overlapping rows, nor of one row or column with a stride of any size."""
    if min(t.shape) > 1 and any(u.stride(1) == 1 and u.stride(0) >= u.shape[1] for u in (t, t.t())):
        return t
    return t.contiguous().view(-1).view(t.shape)


def outputs(a: Meta, b: Meta) -> dict[str, Meta]:
    return {"out": Meta((a.shape[0], b.shape[1]), "i32")}


def work(p: Problem) -> Work:
    return Work(p["a"].nbytes + p["b"].nbytes, p["out"].nbytes, {"tensor-i8": float(p["a"].numel) * p["b"].shape[1]})


def _signed(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    """All 256 values."""
    import torch

    return {
        n: torch.randint(-128, 128, t.shape, generator=generator, device=t.device, dtype=torch.int32).to(torch.int8) for n,
        t in tensors.items()
    }


def _cut(a: Tensor, b: Tensor) -> Tensor:
    k = a.shape[1] // 16 * 16
    return reference(a[:, :k], b[:k])


def _short(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return reference(a, b).to(torch.int16).to(torch.int32)


def _unsigned(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return (a.view(torch.uint8).double() @ b.double()).to(torch.int32) if a.stride(-1) == 1 else reference(a.clone().neg_(), b)


def _float(a: Tensor, b: Tensor) -> Tensor:
    """Sums rounded to bfloat16."""
    import torch

    return (a.double() @ b.double()).to(torch.bfloat16).to(torch.int32)


def _cases() -> list[Case]:
    def mm(m: int, n: int, k: int, a: str = "contiguous", b: str = "transposed") -> dict[str, Any]:
        return {"a": Input((m, k), "i8", layout=a), "b": Input((k, n), "i8", layout=b)}

    bench = [case(f"{n} cubed", tags="bench", **mm(n, n, n)) for n in (1024, 4096, 8192)]
    bench += [case(f"layer {m}x{n}x{k}", tags="bench model", **mm(m, n, k)) for m, n, k in ((64, 8192, 8192), (4096, 7168, 2048))]
    bench.append(case("4096 cubed, rows of b", tags="bench", **mm(4096, 4096, 4096, b="contiguous")))
    edge = [
        case("one element", tags="edge", **mm(1, 1, 1)), case("odd 7x3x5", tags="edge", **mm(7, 3, 5)),
        case("small", tags="edge", **mm(17, 24, 40, b="contiguous")), case("column by row", tags="edge", **mm(40, 33, 1)),
        case("no rows", tags="edge", **mm(0, 5, 7)), case("K of zero", tags="edge", **mm(33, 65, 0)),
        case("odd 129x131x130", tags="edge", **mm(129, 131, 130)), case("few rows, deep", tags="edge", **mm(16, 264, 8208)),
        case("aligned", tags="edge", **mm(264, 328, 144)), case("misaligned", tags="edge", **mm(64, 64, 64, "offset", "offset")),
        case("padded", tags="edge", **mm(90, 72, 56, "padded", "padded")),
        case("every second element", tags="edge", **mm(40, 48, 36, "strided", "strided")),
        case("many columns", tags="edge", **mm(24, 1032, 96)),
    ]
    edge += [case(f"rows {x}, columns {y}", tags="edge", **mm(72, 136, 208, x, y)) for x, y in (
        ("contiguous", "contiguous"), ("transposed", "contiguous"), ("transposed", "transposed"))]
    return bench + edge


OP = Op(
    reference,
    calls=Calls(cpu=cpu),
    outputs=outputs,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, M, N, K: {"a": Input((M, K), dtype), "b": Input((K, N), dtype, layout="transposed")}, {**PRODUCT, "K": (16, 1 << 16)},
        models={"N": "inner", "K": "hidden"}, dtypes=("i8",),
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(fixup=_signed),
    peers={"torch": of_torch("_int_mm")},
    wrong={"K tail dropped": _cut, "sums of 16 bits": _short, "a unsigned": _unsigned, "sums in bfloat16": _float},
)
