"""A sparse matrix in compressed rows (CSR) times a dense one.

    out = act(alpha · S b + bias),   (S b)[m, n] = Σ_{offsets[m] <= i < offsets[m + 1]} values[i] · b[columns[i], n]

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 3.4; Yang, Buluç and Owens, "Design Principles for Sparse Matrix
Multiplication on the GPU" (2018), for row split."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from rooftop.core.layouts import widen
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.ops._sparse import LAYOUTS, bias_gradient, finished, gelu_on_cpu, indices, slope, validate

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")
AT_ONCE = 1 << 25  # products that the reference holds at once


def spmm_csr(
    values: Tensor,
    columns: Tensor,
    offsets: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    activation: str = "none",
    implementation: str | None = None,
) -> Tensor:
    """act(alpha · S b + bias), S [M, K] in compressed rows, summed in float32 (never TF32), or float64 if b has few columns, and rounded
    once. Row m of S has the elements offsets[m] to offsets[m + 1] - 1 of `values`, in the columns `columns`. A row may contain a column
    several times, in
    any order: the products add up.

    Args:
        values: [nnz] float32, float16 or bfloat16.
        columns: int32 [nnz], 0 to K - 1; others are clamped. `rooftop.debug()` reports them.
        offsets: int32 [M + 1], non-decreasing, from 0 to nnz. Offsets out of range are clamped; which elements then belong to which row is
            unspecified.
        b: [K, N] in the dtype of `values`.
        bias: [M, 1] or [1, N] in the same dtype, added to each column or each row, or None.
        alpha: scale of the product.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    Elements that are not stored are not multiplied: infinities and NaN of b appear in the result only where S has an element. The order of
    the sums depends only on shapes and the card. Gradients flow to `values`, `b` and `bias`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation, or tensors on different devices."""
    import torch

    op = "spmm_csr"
    rows = offsets.shape[0] - 1 if isinstance(offsets, torch.Tensor) and offsets.dim() == 1 else -1
    validate(op, {"values": values, "b": b}, ("float32", "float16", "bfloat16"), rows, bias, alpha, activation)
    indices(op, {"columns": columns, "offsets": offsets}, b.device)
    if values.dim() != 1 or columns.shape != values.shape:
        raise ValueError(f"{op}: values is {tuple(values.shape)} and columns is {tuple(columns.shape)}; both must be [nnz]")
    if rows < 0:
        raise ValueError(f"{op}: offsets has no element; it must be [M + 1]")
    if values.shape[0] and (b.shape[0] == 0 or rows == 0):
        given = f"values is {tuple(values.shape)}, offsets {tuple(offsets.shape)} and b {tuple(b.shape)}"
        raise ValueError(f"{op}: {given}; a matrix of [{rows}, {b.shape[0]}] has no elements")
    return OP(values, columns, offsets, b, bias, float(alpha), activation, implementation=implementation)


def rows_of(offsets: Tensor, nnz: int) -> Tensor:
    """The row of each element; M for those past the last offset. All offsets are searched, not those from the second on: under
    torch.compile (2.11) on a GPU a search in a slice reads from the start of its memory."""
    import torch

    return (torch.searchsorted(offsets, torch.arange(nnz, device=offsets.device, dtype=offsets.dtype), right=True) - 1).clamp(min=0)


def counted(x: Tensor, extent: int) -> Tensor:
    """How often each of 0 to extent - 1 comes in x. (The length of `torch.bincount` is a matter of data, which torch.export and
    torch.compile do not take.)"""
    import torch

    return torch.zeros(extent, dtype=torch.int64, device=x.device).scatter_add_(0, x.long(), torch.ones_like(x, dtype=torch.int64))


def turned(columns: Tensor, offsets: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed pattern [K, M]: which element comes where, its columns, its offsets. Elements of a row keep their order."""
    import torch

    columns = columns.clamp(0, max(0, k - 1))
    order = torch.argsort(columns, stable=True)
    ends = torch.zeros(k + 1, dtype=torch.int32, device=columns.device)
    ends[1:] = counted(columns, k).cumsum(0)
    rows = rows_of(offsets, columns.shape[0]).clamp(max=max(0, offsets.shape[0] - 2))
    return order, rows[order].to(torch.int32), ends


def reference(
    values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None = None, alpha: float = 1.0, activation: str = "none"
) -> Tensor:
    import torch

    m, n, nnz = offsets.shape[0] - 1, b.shape[1], values.shape[0]
    rows, wide = rows_of(offsets, nnz), max(1, AT_ONCE // max(nnz, 1))
    parts = [
        b.new_zeros(m + 1, min(wide, n - i)).index_add(0, rows, values[:, None] * b[:, i : i + wide][columns]) for i in range(0, n, wide)
    ]
    return finished(torch.cat(parts, 1)[:m] if parts else b.new_zeros(m, n), bias, alpha, activation)


def cpu(
    values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None = None, alpha: float = 1.0, activation: str = "none"
) -> Any:
    """torch.sparse in float32, without a gradient of its own."""
    import torch

    if activation == "gelu":
        return gelu_on_cpu(reference, values, columns, offsets, b, bias, alpha)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (values, b, bias))
    if wanted or not (values.numel() and b.numel()):
        return NotImplemented
    wide = values.float(), *clamped_pattern(columns, offsets, b.shape[0]), b.float(), widen(bias)
    return _torch()(*(t if t is None else t.contiguous() for t in wide), alpha, activation).to(b.dtype)  # torch misreads what lies with gaps


def clamped_pattern(columns: Tensor, offsets: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """A pattern that torch may be given: it reads what indices point at, and checks none."""
    _warned_of_csr()
    return columns.clamp(0, k - 1), offsets.clamp(0, columns.shape[0]).cummax(0)[0]


@cache
def _warned_of_csr() -> None:
    """Torch's warning, once a process, that its CSR tensors are in beta: nobody who calls this asks for one."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 1), check_invariants=False)


def backward(
    dout: Tensor, values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """ds = dout · act'(s); dvalues = alpha (ds bᵀ) at the places of S (SDDMM); db = alpha Sᵀ ds."""
    from rooftop.core import registry

    s = None if activation == "none" else OP(values, columns, offsets, b, bias, alpha, "none")
    ds = slope(dout, s, activation).to(values.dtype)
    order, rows, ends = turned(columns, offsets, b.shape[0])
    dvalues = registry.op("sddmm_csr")(ds, b, columns, offsets, alpha)
    return dvalues, OP(values[order], rows, ends, ds, None, alpha, "none"), bias_gradient(ds, bias)


def outputs(offsets: Meta, b: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": Meta((offsets.shape[0] - 1, b.shape[1]), b.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Rows of neighbours in b, at any distance; the rest contiguous."""
    b = p["b"]
    rows = (b.shape[1] <= 1 or b.strides[1] == 1) and (b.shape[0] <= 1 or b.strides[0] >= 0)
    return p if rows and all(p[n].contiguous for n in ("values", "columns", "offsets")) else None


def work(p: Problem) -> Work:
    """Each operand read once, of b as many rows as there can be; the result written once; one FMA for each element and column."""
    values, b, out = p["values"], p["b"], p["out"]
    rows = min(b.shape[0], values.numel)
    read = sum(m.nbytes for name, m in p.tensors if m is not None and name not in ("out", "b")) + rows * b.shape[1] * b.itemsize
    return Work(read, out.nbytes, {"fma32": float(values.numel) * b.shape[1]})


def faults(values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str) -> str | None:
    """What is wrong with the indices; they are read, so the device is waited for."""
    return pattern_faults(columns, offsets, b.shape[0])


def pattern_faults(columns: Tensor, offsets: Tensor, k: int) -> str | None:
    nnz = columns.shape[0]
    ends = offsets.tolist() if offsets.shape[0] <= 1 else [int(offsets[0]), int(offsets[-1])]
    if ends[0] != 0 or ends[-1] != nnz:
        return f"offsets run from {ends[0]} to {ends[-1]}; they must run from 0 to {nnz}, the number of elements"
    falls = (offsets[1:] < offsets[:-1]).nonzero()
    if falls.numel():
        m = int(falls[0])
        return f"offsets[{m + 1}] is {int(offsets[m + 1])}, less than the one before it, {int(offsets[m])}"
    bad = ((columns < 0) | (columns >= k)).nonzero()
    if bad.numel():
        return f"columns[{int(bad[0])}] is {int(columns[bad[0]])}; accepted are 0 to {k - 1}"
    return None


def pattern(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any, k: int) -> dict[str, Any]:
    """Elements at random places, in order within a row; where M is odd the rows' lengths follow a power law, and some rows are empty. From
    2^17 rows on there
    are other kinds, by M modulo 8: 2, 27 diagonals at random within 5000 of the middle; 4, the 27 neighbours in a cube of 64 x 64 x 64; 6,
    roads: two or three places nearby."""
    import torch

    columns, offsets = tensors["columns"], tensors["offsets"]
    nnz, m, device = columns.shape[0], offsets.shape[0] - 1, columns.device
    if m == 0:
        return {"offsets": torch.zeros_like(offsets), "columns": torch.zeros_like(columns)}
    if m >= 2**17 and m % 8 in (2, 4, 6):
        i = torch.arange(nnz, device=device)
        each = -(-nnz // m)
        if m % 8 == 6:
            near = torch.randint(-300, 300, (nnz,), generator=generator, device=device)
        elif m % 8 == 2:
            near = torch.randint(-5000, 5000, (each,), generator=generator, device=device)[i // m]
        else:
            one = torch.arange(-1, 2, device=device)
            near = (one[:, None, None] * 4096 + one[:, None] * 64 + one).flatten()[i // m % 27]
        return _packed(i % m, (i % m + near).clamp(0, k - 1), k, offsets)
    weights = torch.rand(m, generator=generator, device=device, dtype=torch.float64)
    if m % 2:
        weights = (weights + 1e-6) ** -1.2 * (weights < 0.8)
        weights[:1] += 1e-9
        drawn = torch.rand(nnz, generator=generator, device=device, dtype=torch.float64)
        rows = torch.searchsorted((weights / weights.sum()).cumsum(0), drawn).clamp_(max=m - 1)
    else:
        rows = torch.randint(0, m, (nnz,), generator=generator, device=device)
    return _packed(rows, torch.randint(0, max(k, 1), (nnz,), generator=generator, device=device), k, offsets)


def _packed(rows: Tensor, columns: Tensor, k: int, offsets: Tensor) -> dict[str, Any]:
    """In order."""
    import torch

    keys = (rows * max(k, 1) + columns).sort().values
    found = torch.zeros_like(offsets)
    found[1:] = torch.bincount(keys // max(k, 1), minlength=offsets.shape[0] - 1).cumsum(0)
    return {"columns": (keys % max(k, 1)).to(torch.int32), "offsets": found}


def _arrange(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    return pattern(tensors, options, generator, tensors["b"].shape[0])


def _torch() -> Callable[..., Tensor]:
    """torch.sparse, which calls cuSPARSE."""
    import torch

    def cusparse(values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str) -> Tensor:
        out = torch.sparse_csr_tensor(offsets, columns, values, (offsets.shape[0] - 1, b.shape[0]), check_invariants=False) @ b
        return out if bias is None and alpha == 1.0 and activation == "none" else finished(out, bias, alpha, activation)

    return cusparse


def _dense() -> Callable[..., Tensor]:
    """The dense product by cuBLAS, without TF32, the sparse matrix expanded outside what is timed."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    held: Any = WeakTensorKeyDictionary()

    def cublas(values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str) -> Tensor:
        m, k = offsets.shape[0] - 1, b.shape[0]
        if m * k > 2**28:
            raise ValueError(f"a dense matrix of {m} x {k} is too large beside the sparse one")
        if values not in held:
            dense = values.new_zeros(m, k)
            held[values] = dense.index_put_((rows_of(offsets, values.shape[0]), columns.long()), values, accumulate=True)
        out = torch.mm(held[values], b)
        return out if bias is None and alpha == 1.0 and activation == "none" else finished(out, bias, alpha, activation)

    return cublas


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        given = dict(zip(("values", "columns", "offsets", "b", "bias", "alpha", "activation"), args, strict=True))
        change(given)
        return reference(**given)

    return run


def _next_row(given: dict[str, Any]) -> None:
    given["b"] = given["b"].roll(1, 0)


def _row_later(given: dict[str, Any]) -> None:
    given["offsets"] = given["offsets"].clone()
    given["offsets"][1:-1] -= (given["offsets"][1:-1] > given["offsets"][:-2]).to(given["offsets"].dtype)


def _last(given: dict[str, Any]) -> None:
    given["values"] = given["values"].clone()
    given["values"][-1:] = 0


def _low(*args: Any) -> Tensor:
    """Operands cut to eight bits of fraction."""
    import torch

    values, b = (t.to(torch.float8_e4m3fn).to(t.dtype) for t in (args[0], args[3]))
    return reference(values, args[1], args[2], b, *args[4:])


# sizes of a square matrix of 8 · eights rows and of the dense one; of a multiple of 8 rows, `pattern` makes none but random ones
ROWS: dict[str, Any] = {"ranges": {"eights": (8, 1 << 18), "N": (1, 2048), "each": (1, 1024)}, "dtypes": ("f32", "bf16")}


def _swept(dtype: str, eights: int, N: int, each: int) -> dict[str, Any]:
    """`each`: elements of a row, on average."""
    m = 8 * eights
    nnz = m * min(each, m)
    return {"values": Input((nnz,), dtype), "columns": Input((nnz,), "i32"), "offsets": Input((m + 1,), "i32"), "b": Input((m, N), dtype),
            "alpha": 1.0, "activation": "none"}


def _cases() -> list[Case]:
    def mm(
        m: int, n: int, k: int, nnz: int, dtype: str = "f32", b: str = "contiguous", bias: str = "", alpha: float = 1.0,
        activation: str = "none", fill: str = "normal",
    ) -> dict[str, Any]:
        shape = {"": None, "rows": (m, 1), "columns": (1, n)}[bias]
        return {
            "values": Input((nnz,), dtype), "columns": Input((nnz,), "i32"), "offsets": Input((m + 1,), "i32"),
            "b": Input((k, n), dtype, fill, b), "bias": Input(shape, dtype) if shape else None, "alpha": alpha, "activation": activation,
        }

    bench = [
        case(f"8192x8192 density {d} x {n}", tags="bench", **mm(8192, n, 8192, int(d * 8192 * 8192)))
        for d,
        columns in ((0.001, (1, 16, 128, 1024, 4096)), (0.01, (1, 16, 128, 1024, 4096)), (0.1, (1, 16, 128, 1024)), (0.5, (1, 16, 128)))
        for n in columns
    ]
    bench += [case(f"power law 262143 x {n}", tags="bench", **mm(262143, n, 262144, 4 * 2**20)) for n in (1, 8, 32, 128)]
    kinds = {"banded": (262146, 262146 * 27), "mesh": (262148, 262148 * 27), "roads": (2097158, 5 * 2**20)}
    bench += [case(f"{kind} {m} x {n}", tags="bench", **mm(m, n, m, nnz)) for kind, (m, nnz) in kinds.items() for n in (1, 32, 128)]
    bench += [case("8192x8192 density 0.01 x 1024", tags="bench", **mm(8192, 1024, 8192, 671088, "bf16"))]
    edge = []
    for dtype in FLOATS:
        shapes = {
            "one element": (1, 1, 1, 1), "no elements": (20, 8, 30, 0), "one row": (1, 33, 300, 700), "one column": (60, 1, 50, 300),
            "two columns": (62, 2, 50, 900), "three columns": (40, 3, 64, 500), "8 columns": (50, 8, 70, 800), "odd": (37, 41, 53, 400),
            "short rows": (300, 16, 64, 500), "power law": (101, 64, 200, 3000), "power law, one column": (301, 1, 400, 6000),
            "long row": (3, 40, 500, 4000), "wide": (20, 520, 60, 200), "wide, power law": (9, 264, 60, 3000),
            "one row of b": (20, 24, 1, 60), "no columns": (20, 0, 30, 50), "no rows": (0, 20, 30, 0), "K of zero": (20, 12, 0, 0),
        }
        edge += [case(name, tags="edge", **mm(*s, dtype)) for name, s in shapes.items()]
        edge += [
            case("bias of rows, relu", tags="edge", **mm(36, 32, 40, 200, dtype, bias="rows", activation="relu")),
            case("bias of columns, alpha, silu", tags="edge", **mm(35, 48, 40, 900, dtype, bias="columns", alpha=0.5, activation="silu")),
            case("gelu, one long row", tags="edge", **mm(1, 48, 40, 900, dtype, bias="rows", activation="gelu")),
            case("gelu_tanh", tags="edge", **mm(36, 4, 40, 200, dtype, activation="gelu_tanh")),
        ]
        edge += [case(f"b {how}", tags="edge", **mm(40, 48, 64, 300, dtype, how)) for how in LAYOUTS]
        edge += [case(f"b of {fill}", tags="edge", **mm(40, 48, 64, 300, dtype, fill=fill)) for fill in ("nan", "inf", "-0.0", "tiny")]
    return bench + edge


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults),
    outputs=outputs,
    judging=Judging(invariant={"batch": "how a row is split follows from the sizes of both matrices"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, **ROWS),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("values", "b", "bias"), saves=("values", "columns", "offsets", "b", "bias"), backward=backward),
    values=Values(fixup=_arrange),
    peers={"cusparse": _torch, "cublas": _dense},
    wrong={
        "row before in b": _with(_next_row),
        "first element to the row before": _with(_row_later),
        "last element dropped": _with(_last),
        "one precision lower": _low,
        "bias ignored": _with(lambda given: given.update(bias=None)),
        "alpha ignored": _with(lambda given: given.update(alpha=1.0)),
        "activation ignored": _with(lambda given: given.update(activation="none")),
    },
)
