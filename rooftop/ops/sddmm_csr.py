"""Sampled dense-dense matrix product (SDDMM): the elements of a dense product that a sparse pattern in compressed rows (CSR) names.

    out[i] = alpha · Σ_n a[row of i, n] · b[columns[i], n]

Source: Gale et al., "Sparse GPU Kernels for Deep Learning" (2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.ops._sparse import LAYOUTS, indices, validate
from rooftop.ops.spmm_csr import AT_ONCE, ROWS, clamped_pattern, pattern, pattern_faults, rows_of, turned

if TYPE_CHECKING:
    from torch import Tensor


def sddmm_csr(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, *, alpha: float = 1.0, implementation: str | None = None) -> Tensor:
    """The elements of alpha · a bᵀ at the positions of a sparsity pattern: the values of a CSR matrix. It is the gradient of the values of
    `rooftop.spmm_csr`.

    Args:
        a: [M, N] float32, float16 or bfloat16.
        b: [K, N] in the dtype of `a`: rows of both are multiplied.
        columns: int32 [nnz], 0 to K - 1; others are clamped. `rooftop.debug()` reports them.
        offsets: int32 [M + 1], non-decreasing, from 0 to nnz: row m has the elements offsets[m] to offsets[m + 1] - 1. An element that is
            in no row is 0; for one that is in several it is unspecified which row counts.
        alpha: scale.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    Returns [nnz] in the dtype of `a`, summed in float32 (never TF32) and rounded once. Gradients flow to `a` and `b`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""
    op = "sddmm_csr"
    validate(op, {"a": a, "b": b}, ("float32", "float16", "bfloat16"), 0, None, alpha, "none")
    indices(op, {"columns": columns, "offsets": offsets}, b.device)
    if a.dim() != 2 or a.shape[1] != b.shape[1] or offsets.shape[0] != a.shape[0] + 1:
        raise ValueError(
            f"{op}: a is {tuple(a.shape)}, b {tuple(b.shape)} and offsets {tuple(offsets.shape)}; they must be [M, N], [K, N] and [M + 1]"
        )
    if columns.shape[0] and (b.shape[0] == 0 or a.shape[0] == 0):
        raise ValueError(
            f"{op}: {columns.shape[0]} columns with a {tuple(a.shape)} and b {tuple(b.shape)}; a matrix of {a.shape[0], b.shape[0]} has "
            f"none"
        )
    return OP(a, b, columns, offsets, float(alpha), implementation=implementation)


def reference(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float = 1.0) -> Tensor:
    import torch

    nnz, n = columns.shape[0], a.shape[1]
    if offsets.shape[0] != a.shape[0] + 1:
        raise RuntimeError(f"offsets {tuple(offsets.shape)} for {a.shape[0]} rows")
    rows, wide = rows_of(offsets, nnz), max(1, AT_ONCE // max(n, 1))
    there, rows = rows < a.shape[0], rows.clamp(max=a.shape[0] - 1)
    parts = [torch.where(there[i : i + wide], (a[rows[i : i + wide]] * b[columns[i : i + wide]]).sum(1), 0) for i in range(0, nnz, wide)]
    return alpha * (torch.cat(parts) if parts else a.new_zeros(nnz))


def cpu(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float = 1.0) -> Any:
    """torch.sparse in float32, without a gradient of its own. It takes no more elements than the matrix has."""
    import torch

    wanted = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if wanted or not (columns.numel() and a.numel()) or columns.numel() > a.shape[0] * b.shape[0]:
        return NotImplemented
    columns, offsets = clamped_pattern(columns.contiguous(), offsets.contiguous(), b.shape[0])
    return _torch()(a.float().contiguous(), b.float().contiguous(), columns, offsets, alpha).to(a.dtype)


def backward(dout: Tensor, a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """With D the sparse matrix of dout: da = alpha D b, db = alpha Dᵀ a."""
    from rooftop.ops import spmm_csr

    order, rows, ends = turned(columns, offsets, b.shape[0])
    return spmm_csr.OP(dout, columns, offsets, b, None, alpha, "none"), spmm_csr.OP(dout[order], rows, ends, a, None, alpha, "none")


def outputs(a: Meta, columns: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": Meta(columns.shape, a.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Rows of neighbours in a and b, at any distance; the rest contiguous."""
    rows = all((m.shape[1] <= 1 or m.strides[1] == 1) and (m.shape[0] <= 1 or m.strides[0] >= 0) for m in (p["a"], p["b"]))
    return p if rows and all(p[n].contiguous for n in ("columns", "offsets")) else None


def work(p: Problem) -> Work:
    """Each operand read once, of a and b as many rows as there can be; the result written once; one FMA for each element and column."""
    a, b, out = p["a"], p["b"], p["out"]
    read = sum(min(m.shape[0], out.numel) * m.shape[1] * m.itemsize for m in (a, b)) + p["columns"].nbytes + p["offsets"].nbytes
    return Work(read, out.nbytes, {"fma32": float(out.numel) * a.shape[1]})


def faults(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> str | None:
    """What is wrong with the indices; they are read, so the device is waited for."""
    return pattern_faults(columns, offsets, b.shape[0])


def _arrange(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    return pattern(tensors, options, generator, tensors["b"].shape[0])


def _dense() -> Callable[..., Tensor]:
    """All of the product by cuBLAS, then the elements."""
    import torch

    def cublas(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> Tensor:
        if a.shape[0] * b.shape[0] > 2**28:
            raise ValueError(f"a dense product of {a.shape[0]} x {b.shape[0]} is too large beside its elements")
        return (torch.mm(a, b.t()))[rows_of(offsets, columns.shape[0]), columns] * alpha

    return cublas


def _torch() -> Callable[..., Tensor]:
    """torch.sparse.sampled_addmm, which calls cuSPARSE."""
    import torch

    def cusparse(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> Tensor:
        held = torch.sparse_csr_tensor(offsets, columns, a.new_zeros(columns.shape[0]), (a.shape[0], b.shape[0]), check_invariants=False)
        return torch.sparse.sampled_addmm(held, a, b.t(), beta=0.0, alpha=alpha).values()

    return cusparse


def _next_row(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> Tensor:
    return reference(a, b.roll(1, 0), columns, offsets, alpha)


def _row_before(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> Tensor:
    return reference(a.roll(1, 0), b, columns, offsets, alpha)


def _tail(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> Tensor:
    return reference(a[:, :-1], b[:, :-1], columns, offsets, alpha)


def _low(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, alpha: float) -> Tensor:
    import torch

    x, y = (t.to(torch.float8_e4m3fn).to(t.dtype) for t in (a, b))
    return reference(x, y, columns, offsets, alpha)


def _swept(dtype: str, eights: int, N: int, each: int) -> dict[str, Any]:
    """`each`: elements of a row, on average."""
    m = 8 * eights
    x = Input((m, N), dtype)
    return {"a": x, "b": x, "columns": Input((m * min(each, m),), "i32"), "offsets": Input((m + 1,), "i32"), "alpha": 1.0}


def _cases() -> list[Case]:
    def mm(m: int, n: int, k: int, nnz: int, dtype: str = "f32", a: str = "contiguous", b: str = "contiguous", fill: str = "normal",
           alpha: float = 1.0) -> dict[str, Any]:
        return {"a": Input((m, n), dtype, layout=a), "b": Input((k, n), dtype, fill, b), "columns": Input((nnz,), "i32"),
                "offsets": Input((m + 1,), "i32"), "alpha": alpha}

    bench = [
        case(f"8192x8192 density {d} x {n}", tags="bench", **mm(8192, n, 8192, int(d * 8192 * 8192))) for d in (0.001, 0.01, 0.1)
        for n in (64, 512)
    ]
    bench += [case(f"power law 262143 x {n}", tags="bench", **mm(262143, n, 262144, 4 * 2**20)) for n in (32, 128)]
    edge = []
    for dtype in ("f32", "f16", "bf16"):
        shapes = {
            "one element": (1, 1, 1, 1), "no elements": (20, 8, 30, 0), "one row": (1, 33, 300, 700), "one column": (60, 1, 50, 300),
            "odd": (37, 41, 53, 400), "short rows": (300, 16, 64, 500), "power law": (101, 64, 200, 3000), "wide": (20, 520, 60, 200),
            "very wide": (5, 1290, 6, 20), "one row of b": (20, 24, 1, 60), "N of zero": (20, 0, 30, 50), "no rows": (0, 20, 30, 0),
        }
        edge += [case(name, tags="edge", **mm(*s, dtype)) for name, s in shapes.items()]
        edge += [case("alpha", tags="edge", **mm(40, 48, 64, 300, dtype, alpha=-2.5))]
        edge += [case(how, tags="edge", **mm(40, 48, 64, 300, dtype, how, how)) for how in LAYOUTS]
        edge += [case(f"b of {fill}", tags="edge", **mm(40, 48, 64, 300, dtype, fill=fill)) for fill in ("nan", "inf", "-0.0", "tiny")]
    return bench + edge


OP = Op(
    reference,
    outputs=outputs,
    judging=Judging(invariant={"batch": "how a product is divided among threads follows from the number of elements"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, **ROWS),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("a", "b"), saves=("a", "b", "columns", "offsets"), backward=backward),
    values=Values(fixup=_arrange),
    calls=Calls(cpu=cpu, faults=faults),
    peers={"cublas": _dense, "cusparse": _torch},
    wrong={"row before in b": _next_row, "row before in a": _row_before, "last column dropped": _tail, "one precision lower": _low,
           "alpha ignored": lambda a, b, columns, offsets, alpha: reference(a, b, columns, offsets, 1.0)},
)
