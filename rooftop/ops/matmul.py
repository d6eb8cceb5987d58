"""Matrix product with scaling and an addend.

    out = alpha · a b + beta · c

Source: the level-3 BLAS (Dongarra et al. 1990), row-major."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Grad, Op, Tolerance
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case

if TYPE_CHECKING:
    from torch import Tensor


def matmul(a: Tensor, b: Tensor, *, c: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0, implementation: str | None = None) -> Tensor:
    """alpha · a b + beta · c, in true float32: each product and each sum is an IEEE FMA, never TF32.

    Args:
        a: [M, K] float32. Rows may be any distance apart; other strides are copied into contiguous memory first.
        b: [K, N] float32, likewise.
        c: [M, N] float32, or None for no addend.
        alpha, beta: scales. With beta = 0, c is not read: NaN in it does not matter.
        implementation: a kernel by name (`"simt__cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    Returns a new tensor [M, N]. With K = 0 it is beta · c, or zeros.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""
    _validate(a, b, c)
    return OP(a, b, c, float(alpha), float(beta) if c is not None else 0.0, implementation=implementation)


def _validate(a: Tensor, b: Tensor, c: Tensor | None) -> None:
    import torch

    for name, t in (("a", a), ("b", b), ("c", c)):
        if t is None:
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"matmul: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype != torch.float32:
            raise TypeError(f"matmul: {name} is {t.dtype}; accepted is torch.float32")
        if t.dim() != 2:
            raise ValueError(f"matmul: {name} has shape {tuple(t.shape)}; it must have two dimensions")
        if t.device != a.device:
            raise ValueError(f"matmul: a lies on {a.device} and {name} on {t.device}; they must be on one device")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; a's columns must be as many as b's rows")
    if c is not None and c.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"matmul: c is {tuple(c.shape)}; it must be {(a.shape[0], b.shape[1])}")


def reference(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    out = alpha * (a @ b)
    return out if c is None or beta == 0 else out + beta * c


def backward(dout: Tensor, a: Tensor, b: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """da = alpha · dout bᵀ, db = alpha · aᵀ dout, dc = beta · dout"""
    return OP(dout, b.t(), None, alpha, 0.0), OP(a.t(), dout, None, alpha, 0.0), dout * beta


def outputs(a: Meta, b: Meta, c: Meta | None, alpha: float, beta: float) -> dict[str, Meta]:
    return {"out": Meta((a.shape[0], b.shape[1]), a.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Rows of neighbouring elements, at any distance: what BLAS calls a leading dimension."""
    for _, m in p.tensors:
        if m is not None and m.shape[1] > 1 and m.strides[1] != 1:
            return None
        if m is not None and m.shape[0] > 1 and m.strides[0] < m.shape[1]:
            return None
    return p.replace(**{n: m and Meta(m.shape, m.dtype, (m.strides[0] if m.shape[0] > 1 else max(m.strides[0], m.shape[1]), 1), m.align) for n, m in p.tensors})


def work(p: Problem) -> Work:
    """Each operand read once, the result written once; one FMA a product."""
    a, b, c, out = p["a"], p["b"], p.get("c"), p["out"]
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    addend = c.nbytes if c is not None and p.option("beta") != 0 else 0
    return Work(a.nbytes + b.nbytes + addend, out.nbytes, {"fma32": float(m) * n * k})


def _torch() -> Callable[..., Tensor]:
    import torch

    def cublas(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
        """torch eager, which calls cuBLAS; TF32 stays off, as torch has it by default."""
        if c is None:
            return a @ b if alpha == 1 else torch.mul(a @ b, alpha)
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)

    return cublas


def _wrong(change: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
        return change(a, b, c, alpha, beta)

    return run


def _half(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    """Accumulated in float16, chunk by chunk of 32 products."""
    import torch

    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16, device=a.device)
    for k in range(0, a.shape[1], 32):
        total += (a[:, k : k + 32].float() @ b[k : k + 32].float()).half()
    return reference_of(total.to(a.dtype), c, alpha, beta)


def reference_of(product: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    return alpha * product if c is None or beta == 0 else alpha * product + beta * c


def _tf32(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    """Operands cut to TF32's ten bits of mantissa."""
    import torch

    def cut(t: Tensor) -> Tensor:
        return (t.float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(t.dtype)

    return reference(cut(a.contiguous()), cut(b.contiguous()), c, alpha, beta)


def _last_row_missing(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    out = reference(a, b, c, alpha, beta)
    out[-1:] = 0
    return out


def _cases() -> list[Case]:
    def mm(m: int, n: int, k: int, **more: Input | Option | str | None) -> dict[str, Any]:
        layout, fill = str(more.pop("layout", "contiguous")), str(more.pop("fill", "normal"))
        inputs: dict[str, Any] = {"a": Input((m, k), "f32", fill, layout), "b": Input((k, n), "f32", fill, layout)}
        return {**inputs, "c": None, "alpha": 1.0, "beta": 0.0, **more}

    bench = [case(f"{n} cubed", tags="bench", **mm(n, n, n)) for n in (512, 1024, 2048, 4096, 8192)]
    bench += [
        case("odd K", tags="bench", why="rows of a start on no 16-byte boundary", **mm(4096, 4096, 4097)),
        case("with addend", tags="bench", **mm(4096, 4096, 4096, c=Input((4096, 4096)), alpha=0.5, beta=2.0)),
        case("tall 16384x128x4096", tags="bench", **mm(16384, 128, 4096)),
        case("deep 256x256x65536", tags="bench", **mm(256, 256, 65536)),
        case("projection 2048x11008x4096", tags="bench model", **mm(2048, 11008, 4096)),
    ]
    edge = [
        case("one element", tags="edge", **mm(1, 1, 1)),
        case("odd 7x3x5", tags="edge", **mm(7, 3, 5)),
        case("row by column", tags="edge", why="one sum, exact in any order", **mm(1, 1, 1000, fill="integers")),
        case("parts 33x65x1000", tags="precision", why="cuBLAS sums in parts here: one long chain errs over 4 times as much", **mm(33, 65, 1000)),
        case("column by row", tags="edge", **mm(130, 67, 1)),
        case("one more than a tile", tags="edge", **mm(129, 131, 130)),
        case("one less than a tile", tags="edge", **mm(255, 127, 63)),
        case("odd 255x1025x513", tags="edge", **mm(255, 1025, 513)),
        case("no rows", tags="edge", **mm(0, 5, 7)),
        case("K of zero", tags="edge", **mm(33, 65, 0)),
        case("K of zero with addend", tags="edge", **mm(33, 65, 0, c=Input((33, 65)), beta=0.5)),
        case("addend", tags="edge", **mm(70, 90, 50, c=Input((70, 90)), alpha=-1.5, beta=0.75)),
        case("alpha of zero", tags="edge", **mm(70, 90, 50, c=Input((70, 90)), alpha=0.0, beta=0.75)),
        case("beta of zero, c of NaN", tags="edge", **mm(70, 90, 50, c=Input((70, 90), fill="nan"), alpha=1.5, beta=0.0)),
        case("leading dimensions", tags="edge", **mm(90, 70, 50, layout="padded", c=Input((90, 70), layout="padded"), beta=1.0)),
        case("odd leading dimensions", tags="edge", **mm(90, 70, 50, layout="sliced", c=Input((90, 70), layout="sliced"), beta=1.0)),
        case("addresses misaligned", tags="edge", **mm(64, 64, 64, layout="offset")),
        case("transposed", tags="edge", **mm(64, 48, 80, layout="transposed")),
        case("expanded", tags="edge", why="equal rows are one sum in effect: exact in any order", **mm(64, 48, 80, layout="expanded", fill="integers")),
        case("every second element", tags="edge", **mm(40, 48, 36, layout="strided")),
        case("NaN", tags="edge", **mm(65, 65, 65, fill="nan")),
        case("+inf", tags="edge", **mm(65, 65, 65, fill="inf")),
        case("-0.0", tags="edge", **mm(65, 65, 65, fill="-0.0")),
        case("denormals", tags="edge", **mm(65, 65, 65, fill="tiny")),
    ]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **mm(65600, 32768, 16))]
    return bench + edge + huge


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("a", "b", "c"), saves=("a", "b"), backward=backward),
    peers={"torch": _torch},
    wrong={
        "beta ignored": _wrong(lambda a, b, c, alpha, beta: alpha * (a @ b) if c is None else alpha * (a @ b) + c),
        "alpha ignored": _wrong(lambda a, b, c, alpha, beta: reference(a, b, c, 1.0, beta)),
        "K tail dropped": _wrong(lambda a, b, c, alpha, beta: reference(a[:, : a.shape[1] // 8 * 8], b[: a.shape[1] // 8 * 8], c, alpha, beta)),
        "accumulated in float16": _half,
        "c read when beta is 0": _wrong(lambda a, b, c, alpha, beta: alpha * (a @ b) if c is None else alpha * (a @ b) + beta * c),
        "operands in TF32": _tf32,
        "last row missing": _last_row_missing,
    },
)
