"""A block-sparse matrix (dense blocks in compressed rows, BSR) times a dense one.

    out = act(alpha · S b + bias),   rows of block row r of S b = Σ_{offsets[r] <= i < offsets[r + 1]} values[i] · (rows of block columns[i] of b)

Source: Gray, Radford and Kingma, "GPU Kernels for Block-Sparse Weights" (2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.ops._sparse import LAYOUTS, UNITS, bias_gradient, finished, gelu_on_cpu, indices, slope, validate
from rooftop.ops.spmm_csr import pattern_faults, rows_of, turned

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 1 << 26  # elements of the blocks' products that the reference holds at once


def spmm_bsr(
    values: Tensor,
    columns: Tensor,
    offsets: Tensor,
    b: Tensor,
    *,
    rows: int | None = None,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    activation: str = "none",
    implementation: str | None = None,
) -> Tensor:
    """act(alpha · S b + bias), S [M, K] of blocks of H rows and W columns, summed in float32 (never TF32) and rounded once.

    Args:
        values: [blocks, H, W] float32, float16 or bfloat16, H and W powers of two from 8 to 128. The last block row and block column may
            extend beyond M and K; elements there are ignored.
        columns: int32 [blocks], the block column of each, 0 to ceil(K / W) - 1; others are clamped. `rooftop.debug()` reports them.
            Duplicates are allowed.
        offsets: int32 [ceil(M / H) + 1], non-decreasing, from 0 to blocks: block row r has the blocks offsets[r] to offsets[r + 1] - 1.
            Offsets out of range are clamped.
        b: [K, N] in the dtype of `values`, any strides.
        rows: M; None for all rows of the block rows.
        bias: [M, 1] or [1, N] in the same dtype, added to each column or each row, or None.
        alpha: scale of the product.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Blocks that are not stored are not multiplied: infinities and NaN of b appear in the result only where S has a block.
    Gradients flow to `values`, `b` and `bias`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation, or tensors on different devices."""
    import torch

    from rooftop.core.argument_checks import number

    op = "spmm_bsr"
    high = values.shape[1] if isinstance(values, torch.Tensor) and values.dim() == 3 else 0
    tall = offsets.shape[0] - 1 if isinstance(offsets, torch.Tensor) and offsets.dim() == 1 else 0
    if rows is not None:
        number(op, "rows", rows, "a whole number, or None", whole=True)
    m = tall * high if rows is None else rows
    validate(op, {"values": values, "b": b}, ("float32", "float16", "bfloat16"), m, bias, alpha, activation)
    indices(op, {"columns": columns, "offsets": offsets}, b.device)
    if values.dim() != 3 or any(n not in (8, 16, 32, 64, 128) for n in values.shape[1:]) or columns.shape[0] != values.shape[0]:
        given = f"values is {tuple(values.shape)} and columns is {tuple(columns.shape)}"
        raise ValueError(f"{op}: {given}; they must be [blocks, H, W] and [blocks], H and W one of 8, 16, 32, 64, 128")
    if offsets.shape[0] == 0 or -(-m // high) != tall or m < 0:
        raise ValueError(
            f"{op}: offsets is {tuple(offsets.shape)} and rows is {rows}; with blocks of {high} rows that is {tall} block rows"
        )
    if values.shape[0] and (b.shape[0] == 0 or m == 0):
        raise ValueError(f"{op}: {values.shape[0]} blocks, and a matrix of {(m, b.shape[0])}; it has none")
    return OP(values, columns, offsets, b, bias, m, float(alpha), activation, implementation=implementation)


def reference(
    values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, rows: int, alpha: float = 1.0,
    activation: str = "none"
) -> Tensor:
    import torch

    (count, high, wide), (k, n), tall = values.shape, b.shape, offsets.shape[0] - 1
    of = rows_of(offsets, count)
    blocks = torch.nn.functional.pad(b, (0, 0, 0, -k % wide)).view(-(-k // wide), wide, n)
    each = max(1, AT_ONCE // max(1, count * max(high, wide)))
    parts = []
    for i in range(0, n, each):
        out = b.new_zeros(tall + 1, high, min(each, n - i))
        parts.append(out.index_add(0, of, torch.bmm(values, blocks[:, :, i : i + each][columns])) if count else out)
    total = torch.cat(parts, 2)[:tall] if parts else b.new_zeros(tall, high, n)
    return finished(total.reshape(tall * high, n)[:rows], bias, alpha, activation)


def cpu(
    values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, rows: int, alpha: float = 1.0,
    activation: str = "none"
) -> Any:
    return gelu_on_cpu(reference, values, columns, offsets, b, bias, rows, alpha) if activation == "gelu" else NotImplemented


def backward(
    dout: Tensor, values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, rows: int, alpha: float, activation: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """ds = dout · act'(s); dvalues = alpha (ds bᵀ) in the blocks of S; db = alpha Sᵀ ds."""
    from rooftop.core import registry

    s = None if activation == "none" else OP(values, columns, offsets, b, bias, rows, alpha, "none")
    ds = slope(dout, s, activation).to(values.dtype)
    (_, high, wide), k = values.shape, b.shape[0]
    order, across, ends = turned(columns, offsets, -(-k // wide))
    dvalues = registry.op("sddmm_bsr")(ds, b, columns, offsets, high, wide, alpha)
    return dvalues, OP(values[order].transpose(1, 2).contiguous(), across, ends, ds, None, k, alpha, "none"), bias_gradient(ds, bias)


def outputs(b: Meta, rows: int, **_: Any) -> dict[str, Meta]:
    return {"out": Meta((rows, b.shape[1]), b.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Blocks by rows or by columns; b with rows or columns of neighbours."""
    values, b = p["values"], p["b"]
    count, high, wide = values.shape
    blocks = count <= 1 or values.strides[0] == high * wide
    inner = values.strides[1:] in ((wide, 1), (1, high))
    near = any(n <= 1 or s == 1 for n, s in zip(b.shape, b.strides, strict=True)) and all(s >= 0 for s in b.strides)
    return p if blocks and inner and near and p["columns"].contiguous and p["offsets"].contiguous else None


def work(p: Problem) -> Work:
    """Each operand read once, of b as many rows as there can be; the result written once; one FMA for each element of a block and
    column."""
    values, b, out = p["values"], p["b"], p["out"]
    rows = min(b.shape[0], values.shape[0] * values.shape[2])
    read = sum(m.nbytes for name, m in p.tensors if m is not None and name not in ("out", "b")) + rows * b.shape[1] * b.itemsize
    return Work(read, out.nbytes, {UNITS[b.dtype]: float(values.numel) * b.shape[1]})


def faults(
    values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, rows: int, alpha: float, activation: str
) -> str | None:
    """What is wrong with the indices; they are read, so the device is waited for."""
    return pattern_faults(columns, offsets, -(-b.shape[0] // values.shape[2]))


def blocks_pattern(tensors: Mapping[str, Any], generator: Any, across: int) -> dict[str, Any]:
    """Different blocks at random while there are enough, in order within a row."""
    import torch

    columns, offsets = tensors["columns"], tensors["offsets"]
    count, tall, device = columns.shape[0], offsets.shape[0] - 1, columns.device
    places = tall * across
    if count <= places:
        keys = torch.randperm(places, generator=generator, device=device)[:count].sort().values
    else:
        keys = torch.randint(0, max(1, places), (count,), generator=generator, device=device).sort().values
    found = torch.zeros_like(offsets)
    if tall:
        found[1:] = torch.bincount(keys // max(1, across), minlength=tall).cumsum(0)
    return {"columns": (keys % max(1, across)).to(torch.int32), "offsets": found}


def _arrange(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    return blocks_pattern(tensors, generator, -(-tensors["b"].shape[0] // tensors["values"].shape[2]))


def _torch() -> Callable[..., Tensor]:
    """torch's BSR tensors, which its Triton kernels multiply."""
    import torch

    def bsr(
        values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, rows: int, alpha: float, activation: str
    ) -> Tensor:
        out = torch.sparse_bsr_tensor(offsets, columns, values, (rows, b.shape[0]), check_invariants=False) @ b
        return out if bias is None and alpha == 1.0 and activation == "none" else finished(out, bias, alpha, activation)

    return bsr


def _dense() -> Callable[..., Tensor]:
    """The dense product by cuBLAS, the sparse matrix expanded outside what is timed."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    held: Any = WeakTensorKeyDictionary()

    def cublas(
        values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, bias: Tensor | None, rows: int, alpha: float, activation: str
    ) -> Tensor:
        if values not in held:
            held[values] = dense_of(values, columns, offsets, rows, b.shape[0])
        out = torch.mm(held[values], b)
        return out if bias is None and alpha == 1.0 and activation == "none" else finished(out, bias, alpha, activation)

    return cublas


def dense_of(values: Tensor, columns: Tensor, offsets: Tensor, rows: int, k: int) -> Tensor:
    """The dense matrix [rows, k]; blocks that come several times add up."""
    (count, high, wide), tall = values.shape, offsets.shape[0] - 1
    across = -(-k // wide)
    flat = values.new_zeros((tall + 1) * across, high, wide)
    flat = (flat.index_add(0, rows_of(offsets, count) * across + columns, values) if count else flat)[: tall * across]
    return flat.view(tall, across, high, wide).transpose(1, 2).reshape(tall * high, across * wide)[:rows, :k].contiguous()


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        given = dict(zip(("values", "columns", "offsets", "b", "bias", "rows", "alpha", "activation"), args, strict=True))
        change(given)
        return reference(**given)

    return run


def _tail(given: dict[str, Any]) -> None:
    b = given["b"].clone()
    b[-1:] = 0
    given["b"] = b


def _rolled(given: dict[str, Any]) -> None:
    given["values"] = given["values"].roll(1, 1)


def _other_block(given: dict[str, Any]) -> None:
    given["columns"] = given["columns"].clone()
    across = -(-given["b"].shape[0] // given["values"].shape[2])
    given["columns"][-1:] = (given["columns"][-1:] + 1) % max(1, across)


BLOCKS: dict[str, Any] = {  # sizes of a matrix of square blocks, of which `percent` of 100 are there, and of the dense one
    "ranges": {"M": (64, 1 << 16), "K": (64, 1 << 16), "N": (16, 1 << 14), "side": (8, 128), "percent": (1, 50)}, "powers": ("side",),
    "models": {"M": "inner", "K": "hidden"}, "dtypes": ("bf16",),
}


def _swept(dtype: str, M: int, K: int, N: int, side: int, percent: int) -> dict[str, Any]:
    tall = -(-M // side)
    count = max(1, tall * -(-K // side) * percent // 100)
    return {"values": Input((count, side, side), dtype), "columns": Input((count,), "i32"), "offsets": Input((tall + 1,), "i32"),
            "b": Input((K, N), dtype), "rows": M, "alpha": 1.0, "activation": "none"}


def _cases() -> list[Case]:
    def mm(
        m: int, n: int, k: int, count: int, high: int, wide: int, dtype: str = "bf16", b: str = "contiguous", bias: str = "",
        alpha: float = 1.0, activation: str = "none", fill: str = "normal",
    ) -> dict[str, Any]:
        shape = {"": None, "rows": (m, 1), "columns": (1, n)}[bias]
        return {
            "values": Input((count, high, wide), dtype), "columns": Input((count,), "i32"), "offsets": Input((-(-m // high) + 1,), "i32"),
            "b": Input((k, n), dtype, fill, b), "bias": Input(shape, dtype) if shape else None, "rows": m, "alpha": alpha,
            "activation": activation,
        }

    bench = [
        case(f"8192x8192 blocks of {s}, density {d} x {n}", tags="bench", **mm(8192, n, 8192, int(d * (8192 // s) ** 2), s, s))
        for n,
        densities in ((4096, (0.05, 0.1, 0.2, 0.5)), (512, (0.05, 0.2, 0.5)), (64, (0.05, 0.2, 0.5))) for s in (16, 32, 64, 128)
        for d in densities
    ]
    edge = []
    for dtype in ("bf16", "f16", "f32"):
        for s in (8, 16, 32, 64, 128):
            edge += [
                case(f"blocks of {s}", tags="edge", **mm(3 * s, 40, 4 * s, 7, s, s, dtype)),
                case(f"blocks of {s}, cut", tags="edge", **mm(2 * s - 3, 33, 3 * s - 5, 4, s, s, dtype)),
            ]
        edge += [
            case("blocks of 16x64", tags="edge", **mm(70, 72, 300, 12, 16, 64, dtype)),
            case("blocks of 64x16", tags="edge", **mm(190, 72, 100, 12, 64, 16, dtype)),
            case("blocks of 128x8", tags="edge", **mm(256, 40, 64, 9, 128, 8, dtype)),
            case("blocks of 8x128", tags="edge", **mm(30, 40, 512, 9, 8, 128, dtype)),
            case("several tiles", tags="edge", **mm(256, 300, 256, 20, 32, 32, dtype)),
            case("one column", tags="edge", **mm(64, 1, 96, 5, 16, 32, dtype)),
            case("no blocks", tags="edge", **mm(64, 24, 96, 0, 16, 16, dtype, bias="rows")),
            case("blocks that come again", tags="edge", **mm(32, 24, 32, 9, 16, 16, dtype)),
            case("bias of rows, relu", tags="edge", **mm(64, 40, 96, 9, 16, 16, dtype, bias="rows", activation="relu")),
            case(
                "bias of columns, alpha, silu", tags="edge",
                **mm(96, 40, 64, 5, 32, 16, dtype, bias="columns", alpha=0.5, activation="silu")
            ),
            case("gelu", tags="edge", **mm(128, 40, 64, 2, 64, 32, dtype, activation="gelu")),
            case("gelu_tanh", tags="edge", **mm(64, 40, 96, 9, 16, 16, dtype, activation="gelu_tanh")),
            case("no columns", tags="edge", **mm(32, 0, 64, 3, 16, 16, dtype)),
            case("no rows", tags="edge", **mm(0, 24, 64, 0, 16, 16, dtype)),
            case("b of nan", tags="edge", **mm(64, 40, 96, 9, 16, 16, dtype, fill="nan")),
        ]
        edge += [case(f"b {how}", tags="edge", **mm(80, 40, 96, 12, 16, 32, dtype, how)) for how in LAYOUTS]
    return bench + edge


OP = Op(
    reference,
    outputs=outputs,
    judging=Judging(invariant={"batch": "how a row of blocks is split follows from the sizes of both matrices"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, **BLOCKS),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("values", "b", "bias"), saves=("values", "columns", "offsets", "b", "bias"), backward=backward),
    values=Values(fixup=_arrange),
    calls=Calls(cpu=cpu, faults=faults),
    peers={"torch BSR": _torch, "cublas": _dense},
    wrong={
        "last row of b dropped": _with(_tail),
        "rows of blocks rolled": _with(_rolled),
        "last block elsewhere": _with(_other_block),
        "bias ignored": _with(lambda given: given.update(bias=None)),
        "alpha ignored": _with(lambda given: given.update(alpha=1.0)),
        "activation ignored": _with(lambda given: given.update(activation="none")),
    },
)
