"""A matrix times a few vectors, as in a decoding step.

    y_r = a x_r,   y[r, m] = Σ_k a[m, k] · x[r, k]

Source: the level-2 BLAS (Dongarra et al. 1988)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")
MOST = 16  # vectors
LARGE, FAINT = 1e6, 1e-20  # magnitudes of x below the first; of results above the second


def gemv(a: Tensor, x: Tensor, *, implementation: str | None = None) -> Tensor:
    """`a` times at most 16 vectors, summed in float32 (true float32 products, never TF32) and rounded once.

    Args:
        a: [..., M, K] float32, float16 or bfloat16. Rows or columns must be contiguous in memory (`a.t()` of a contiguous matrix is as good
            as a contiguous one); any other matrix is copied first.
        x: [..., K], one vector, or [..., R, K], R vectors, at most 16; dtype and leading dimensions as those of `a`.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns [..., M] or [..., R, M], contiguous. With K = 0 it is zeros. The order of the sums depends only on the shapes.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, more than 16 vectors, or tensors on different devices."""
    single = _validate(a, x)
    batch = a.shape[:-2]
    rows = x.unsqueeze(-2) if single else x
    if not batch:
        a, rows = a.unsqueeze(0), rows.unsqueeze(0)
    elif len(batch) > 1:
        count = prod(batch)  # not -1, which is ambiguous where there are no elements
        a, rows = a.reshape(count, *a.shape[-2:]), rows.reshape(count, *rows.shape[-2:])
    y = OP(a, rows, implementation=implementation)
    return y.view(*batch, a.shape[-2]) if single else y.view(*batch, *y.shape[1:])


def _validate(a: Tensor, x: Tensor) -> bool:
    """Whether x is one vector for each matrix."""
    import torch

    for name, t in (("a", a), ("x", x)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"gemv: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"gemv: {name} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if a.dtype != x.dtype:
        raise TypeError(f"gemv: a is {a.dtype} and x is {x.dtype}; they must be the same")
    if a.device != x.device:
        raise ValueError(f"gemv: a lies on {a.device} and x on {x.device}; they must be on one device")
    single = x.dim() == a.dim() - 1
    if a.dim() < 2 or not (single or x.dim() == a.dim()):
        raise ValueError(f"gemv: a is {tuple(a.shape)} and x is {tuple(x.shape)}; a must be [..., M, K] and x [..., K] or [..., R, K]")
    if x.shape[-1] != a.shape[-1] or x.shape[: a.dim() - 2] != a.shape[:-2]:
        raise ValueError(f"gemv: a is {tuple(a.shape)} and x is {tuple(x.shape)}; K and the leading dimensions must be the same")
    if not single and x.shape[-2] > MOST:
        raise ValueError(f"gemv: x is {tuple(x.shape)}, {x.shape[-2]} vectors; it must be at most {MOST}")
    return single


def reference(a: Tensor, x: Tensor) -> Tensor:
    return x @ a.transpose(-1, -2)


def cpu(a: Tensor, x: Tensor) -> Tensor:
    """A product of one vector by torch's own of a matrix and a vector. Of 16 bits its NaN may be those of other rows, and denormals of
    bfloat16 are 0 (torch 2.13): where there may be such, in float32."""
    import torch

    alone = a.shape[0] == 1 and x.shape[1] == 1
    followed = torch.is_grad_enabled() and (a.requires_grad or x.requires_grad)
    if a.element_size() == 2 and alone and followed:
        return _differentiable()(a, x)
    if a.element_size() == 2 and alone and a.numel() and sums_in_float32(a.dtype):
        found = a.squeeze(0) @ x.view(-1)
        # denormals of a add less than K times LARGE times the smallest normal number
        if found.abs().amin().item() > FAINT and _normal(x):
            return found.view(1, 1, -1)
    wide, rows = (a, x) if a.element_size() > 2 else (a.float(), x.float())
    if a.shape[0] == 1:
        matrix = wide.squeeze(0)  # whose gradient is a view, as that of an index is not
        found = (matrix @ rows.view(-1)).view(1, 1, -1) if alone else (rows.squeeze(0) @ matrix.t()).unsqueeze(0)
    else:
        found = rows @ wide.transpose(1, 2)
    return found if wide is a else found.to(a.dtype)


@cache
def _differentiable() -> Callable[[Tensor, Tensor], Tensor]:
    """Of one vector and 16 bits: the gradient of the matrix is one product an element, that of the vector another of these."""
    import torch

    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(a, x)
        return cpu(a, x)

    def of(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, x = ctx.saved_tensors
        return dy.mT * x if ctx.needs_input_grad[0] else None, cpu(a.mT, dy) if ctx.needs_input_grad[1] else None

    made = type("gemv", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(of)})
    apply = super(torch.autograd.Function, made).apply  # what `Function.apply` does without a transform
    return lambda a, x: apply(a, x)


def _normal(x: Tensor) -> bool:
    """Whether all are zeros or normal numbers of bfloat16 below LARGE."""
    import torch

    size, tiny = x.abs(), torch.finfo(torch.bfloat16).tiny
    least, most = size.aminmax()
    return most.item() < LARGE and (least.item() >= tiny or bool(((size >= tiny) | (size == 0)).all()))


@cache
def sums_in_float32(dtype: Any) -> bool:
    """Whether torch's product of a matrix of 16 bits and a vector adds up in float32 on this CPU: of ones, of which bfloat16 counts up to 256
    and float16 up to 2048. Of few rows and many, with rows or columns of neighbours."""
    import torch

    with torch.no_grad():
        x = torch.ones(4096, dtype=dtype)
        made = [torch.ones(shape, dtype=dtype) for m in (1, 8, 512) for shape in ((m, 4096), (4096, m))]
        return all(bool(((a if a.shape[1] == 4096 else a.t()) @ x == 4096).all()) for a in made)


def backward(dy: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """da = dyᵀ x, dx = dy a"""
    from rooftop.ops import matmul

    da = matmul.OP(dy.transpose(-1, -2), x, None, None, None, None, 1.0, 0.0, "none", "", "ieee")
    return da, OP(a.transpose(-1, -2), dy)


def outputs(a: Meta, x: Meta) -> dict[str, Meta]:
    return {"y": Meta((a.shape[0], x.shape[1], a.shape[1]), a.dtype)}


def canonical(p: Problem) -> Problem | None:
    """a as [batch, M, K] with rows or columns of neighbours; None where it has neither."""
    _, m, k = p["a"].shape
    _, down, along = p["a"].strides
    return p if along == 1 or down == 1 or m * k == 1 or (k == 1 or m == 1) else None


UNITS = {"f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}


def work(p: Problem) -> Work:
    """Each operand read once, the result written once; one product of tensor cores, of float32 one FMA."""
    a, x, y = p["a"], p["x"], p["y"]
    return Work(a.nbytes + x.nbytes, y.nbytes, {UNITS[a.dtype]: float(a.numel) * x.shape[1]})


def _torch() -> Callable[..., Tensor]:
    import torch

    def cublas(a: Tensor, x: Tensor) -> Tensor:
        """torch eager, which calls cuBLAS; TF32 stays off, as torch has it by default."""
        if a.shape[0] == 1:
            return (torch.mv(a[0], x[0, 0]) if x.shape[1] == 1 else x[0] @ a[0].t()).view(1, x.shape[1], a.shape[1])
        return torch.bmm(x, a.transpose(1, 2))

    return cublas


def _tail_dropped(a: Tensor, x: Tensor) -> Tensor:
    k = a.shape[-1] // 8 * 8
    return reference(a[..., :k], x[..., :k])


def _low(a: Tensor, x: Tensor) -> Tensor:
    """Operands of float32 in TF32, of 16 bits with sums of 32 products in 16 bits."""
    import torch

    if a.dtype == torch.float32:
        return reference(*((t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, x)))
    low = torch.float16 if a.dtype == torch.float16 else torch.bfloat16
    total = torch.zeros(x.shape[0], x.shape[1], a.shape[1], dtype=low, device=a.device)
    for k in range(0, a.shape[-1], 32):
        total += reference(a[..., k : k + 32].float(), x[..., k : k + 32].float()).to(low)
    return total.to(a.dtype)


def _first_vector_alone(a: Tensor, x: Tensor) -> Tensor:
    return reference(a, x[:, :1]).expand(-1, x.shape[1], -1)


def _last_row_missing(a: Tensor, x: Tensor) -> Tensor:
    y = reference(a, x)
    y[..., -1:] = 0
    return y


def _cases() -> list[Case]:
    def mv(
        m: int, k: int, d: str, r: int = 1, b: int = 1, fill: str = "normal", layout: str = "contiguous", xlayout: str = "contiguous"
    ) -> dict[str, Any]:
        return {"a": Input((b, m, k), d, fill, layout), "x": Input((b, r, k), d, "normal" if fill != "integers" else fill, xlayout)}

    bench = []
    for d, n in (("bf16", 8192), ("f32", 8192), ("bf16", 16384)):
        bench += [case(f"{n}x{n}", tags="bench", **mv(n, n, d)), case(f"{n}x{n} columns", tags="bench", **mv(n, n, d, layout="transposed"))]
    bench += [case(f"{r} vectors 8192x8192", tags="bench", **mv(8192, 8192, d, r)) for d in ("bf16", "f32") for r in (2, 4, 8, 16)]
    bench += [
        case("16 vectors 8192x8192 columns", tags="bench", **mv(8192, 8192, "bf16", 16, layout="transposed")),
        case("projection 14336x4096", tags="bench model", **mv(14336, 4096, "bf16")),
        case("projection 4096x14336", tags="bench model", **mv(4096, 14336, "bf16")),
        case("projection 4 vectors 14336x4096", tags="bench model", **mv(14336, 4096, "bf16", 4)),
        case("head 128256x4096", tags="bench model", **mv(128256, 4096, "bf16")),
        case("odd 8191x8193", tags="bench", **mv(8191, 8193, "bf16")),
        case("deep 16x4194304", tags="bench", **mv(16, 4194304, "bf16")),
        case("32 matrices 1024x4096", tags="bench", **mv(1024, 4096, "bf16", 1, 32)),
    ]
    edges: dict[str, dict[str, Any]] = {
        "one element": {"m": 1, "k": 1},
        "odd 7x5": {"m": 7, "k": 5},
        "odd 37x1001": {"m": 37, "k": 1001},
        "tile 64x512": {"m": 64, "k": 512},
        "one row 1x3000": {"m": 1, "k": 3000},
        "one column 300x1": {"m": 300, "k": 1},
        "deep 3x20000": {"m": 3, "k": 20000},
        "columns 130x70": {"m": 130, "k": 70, "layout": "transposed"},
        "columns, odd 131x1003": {"m": 131, "k": 1003, "layout": "transposed"},
        "columns, deep 5x9000": {"m": 5, "k": 9000, "layout": "transposed"},
        "columns 128x512": {"m": 128, "k": 512, "layout": "transposed"},
        "rows padded": {"m": 40, "k": 96, "layout": "padded"},
        "rows misaligned": {"m": 40, "k": 96, "layout": "sliced"},
        "address misaligned": {"m": 40, "k": 96, "layout": "offset"},
        "every second element": {"m": 20, "k": 36, "layout": "strided"},
        "expanded": {"m": 20, "k": 36, "b": 3, "layout": "expanded"},
        "x strided": {"m": 20, "k": 36, "xlayout": "strided"},
        "batch 5": {"m": 33, "k": 130, "b": 5},
        "batch 3, columns": {"m": 33, "k": 130, "b": 3, "layout": "transposed"},
        "2 vectors": {"m": 70, "k": 130, "r": 2},
        "3 vectors, columns": {"m": 70, "k": 130, "r": 3, "layout": "transposed"},
        "7 vectors, odd": {"m": 37, "k": 1001, "r": 7},
        "16 vectors": {"m": 130, "k": 256, "r": 16},
        "16 vectors, deep": {"m": 20, "k": 5000, "r": 16},
        "9 vectors, odd 131x1027": {"m": 131, "k": 1027, "r": 9},
        "6 vectors 300x1028, batch 2": {"m": 300, "k": 1028, "r": 6, "b": 2},
        "8 vectors, batch 3": {"m": 20, "k": 50, "r": 8, "b": 3},
        "NaN": {"m": 65, "k": 65, "fill": "nan"},
        "+inf": {"m": 65, "k": 65, "fill": "inf"},
        "-0.0": {"m": 65, "k": 65, "fill": "-0.0"},
        "denormals": {"m": 65, "k": 65, "fill": "tiny"},
        "4 vectors, NaN": {"m": 65, "k": 65, "r": 4, "fill": "nan"},
    }
    edge = [case(name, tags="edge", **mv(d=d, **how)) for d in FLOATS for name, how in edges.items()]
    edge += [case("no rows", tags="edge", **mv(0, 7, d)) for d in FLOATS] + [case("K of zero", tags="edge", **mv(7, 0, d)) for d in FLOATS]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **mv(65537, 32769, "bf16"))]
    return bench + edge + huge


OP = Op(
    reference,
    calls=Calls(cpu=cpu),
    outputs=outputs,
    judging=Judging(invariant={"batch": "how a row is divided among threads follows from the number of vectors; rooftop.matmul takes them as rows"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns, vectors: {"a": Input((1, rows, columns), dtype), "x": Input((1, vectors, columns), dtype)},
        {"rows": (1, 1 << 26), "columns": (64, 1 << 22), "vectors": (1, 16)}, rows="rows", models={"columns": "hidden"}, axis="columns",
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("a", "x"), saves=("a", "x"), backward=backward),
    peers={"torch": _torch, "torch.compile": compiled(reference, every=True)},
    wrong={
        "K tail dropped": _tail_dropped, "one precision lower": _low, "first vector alone": _first_vector_alone,
        "last row missing": _last_row_missing
    },
)
