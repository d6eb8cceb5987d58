"""Sampled dense-dense matrix product (SDDMM): the blocks of a dense product that a block-sparse pattern (BSR) names.

    out[i] = alpha · (rows of block row of i of a) · (rows of block columns[i] of b)ᵀ

Source: Gale et al., "MegaBlocks" (2023), where it is called SDD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.ops._sparse import LAYOUTS, UNITS, indices, validate
from rooftop.ops.spmm_bsr import AT_ONCE, BLOCKS, blocks_pattern
from rooftop.ops.spmm_csr import pattern_faults, rows_of, turned

if TYPE_CHECKING:
    from torch import Tensor


def sddmm_bsr(
    a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, block: tuple[int, int], *, alpha: float = 1.0, implementation: str | None = None
) -> Tensor:
    """The blocks of alpha · a bᵀ at the positions of a sparsity pattern: the values of a BSR matrix. It is the gradient of the values of
    `rooftop.spmm_bsr`.

    Args:
        a: [M, N] float32, float16 or bfloat16.
        b: [K, N] in the dtype of `a`: rows of both are multiplied.
        columns: int32 [blocks], the block column of each, 0 to ceil(K / W) - 1; others are clamped. `rooftop.debug()` reports them.
        offsets: int32 [ceil(M / H) + 1], non-decreasing, from 0 to blocks. A block that is in no row is zeros; for one that is in several
            it is unspecified which row counts.
        block: (H, W), rows and columns of a block, each 8, 16, 32, 64 or 128.
        alpha: scale.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns [blocks, H, W] in the dtype of `a`, zeros beyond M and K, summed in float32 (never TF32) and rounded once. Gradients flow to `a`
    and `b`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""
    from rooftop.core.argument_checks import shape

    op = "sddmm_bsr"
    validate(op, {"a": a, "b": b}, ("float32", "float16", "bfloat16"), 0, None, alpha, "none")
    indices(op, {"columns": columns, "offsets": offsets}, b.device)
    size = shape(op, "block", block)
    if len(size) != 2 or any(n not in (8, 16, 32, 64, 128) for n in size):
        raise ValueError(f"{op}: block is {block!r}; it must be two of 8, 16, 32, 64, 128")
    if a.dim() != 2 or a.shape[1] != b.shape[1] or offsets.shape[0] != -(-a.shape[0] // size[0]) + 1:
        given = f"a is {tuple(a.shape)}, b {tuple(b.shape)} and offsets {tuple(offsets.shape)}"
        raise ValueError(f"{op}: {given}; they must be [M, N], [K, N] and [ceil(M / {size[0]}) + 1]")
    if columns.shape[0] and (b.shape[0] == 0 or a.shape[0] == 0):
        raise ValueError(
            f"{op}: {columns.shape[0]} blocks with a {tuple(a.shape)} and b {tuple(b.shape)}; a matrix of {a.shape[0], b.shape[0]} has none"
        )
    return OP(a, b, columns, offsets, size[0], size[1], float(alpha), implementation=implementation)


def reference(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, high: int, wide: int, alpha: float = 1.0) -> Tensor:
    import torch

    (m, n), k, count = a.shape, b.shape[0], columns.shape[0]
    of, pad = rows_of(offsets, count), torch.nn.functional.pad
    tall, across = -(-m // high), -(-k // wide)
    if offsets.shape[0] != tall + 1:
        raise RuntimeError(f"offsets {tuple(offsets.shape)} for {tall} block rows")
    x, y = pad(a, (0, 0, 0, -m % high)).view(tall, high, n), pad(b, (0, 0, 0, -k % wide)).view(across, wide, n)
    if count == 0:
        return a.new_zeros(0, high, wide)
    there, of = of < x.shape[0], of.clamp(max=x.shape[0] - 1)
    each = max(1, AT_ONCE // max(1, n * max(high, wide)))
    found = torch.cat([torch.bmm(x[of[i : i + each]], y[columns[i : i + each]].transpose(1, 2)) for i in range(0, count, each)])
    return torch.where(there[:, None, None], alpha * found, 0)


def backward(
    dout: Tensor, a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, high: int, wide: int, alpha: float
) -> tuple[Tensor, Tensor]:
    """With D the sparse matrix of dout: da = alpha D b, db = alpha Dᵀ a."""
    from rooftop.ops import spmm_bsr

    order, across, ends = turned(columns, offsets, -(-b.shape[0] // wide))
    da = spmm_bsr.OP(dout, columns, offsets, b, None, a.shape[0], alpha, "none")
    return da, spmm_bsr.OP(dout[order].transpose(1, 2).contiguous(), across, ends, a, None, b.shape[0], alpha, "none")


def outputs(a: Meta, columns: Meta, high: int, wide: int, **_: Any) -> dict[str, Meta]:
    return {"out": Meta((columns.shape[0], high, wide), a.dtype)}


def canonical(p: Problem) -> Problem | None:
    near = all(
        any(n <= 1 or s == 1 for n, s in zip(m.shape, m.strides, strict=True)) and all(s >= 0 for s in m.strides) for m in (p["a"], p["b"])
    )
    return p if near and p["columns"].contiguous and p["offsets"].contiguous else None


def work(p: Problem) -> Work:
    """Each operand read once, of a and b as many rows as there can be; the result written once; one FMA for each element of a block and
    column."""
    a, b, out = p["a"], p["b"], p["out"]
    count, high, wide = out.shape
    rows = min(a.shape[0], count * high) + min(b.shape[0], count * wide)
    return Work(
        rows * a.shape[1] * a.itemsize + p["columns"].nbytes + p["offsets"].nbytes, out.nbytes,
        {UNITS[a.dtype]: float(out.numel) * a.shape[1]}
    )


def faults(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, high: int, wide: int, alpha: float) -> str | None:
    """What is wrong with the indices; they are read, so the device is waited for."""
    return pattern_faults(columns, offsets, -(-b.shape[0] // wide))


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (
        tensors["a"], tensors["b"], tensors["columns"], tensors["offsets"], (options["high"], options["wide"])
    ), {"alpha": options["alpha"]}


def _arrange(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    return blocks_pattern(tensors, generator, -(-tensors["b"].shape[0] // int(options["wide"])))


def _dense() -> Callable[..., Tensor]:
    """All of the product by cuBLAS."""
    import torch

    return lambda a, b, columns, offsets, high, wide, alpha: torch.mm(a, b.t())


def _next_row(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return reference(a, b.roll(1, 0), *rest)


def _tail(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return reference(a[:, :-1], b[:, :-1], *rest)


def _swept(dtype: str, M: int, K: int, N: int, side: int, percent: int) -> dict[str, Any]:
    tall = -(-M // side)
    columns = Input((max(1, tall * -(-K // side) * percent // 100),), "i32")
    return {"a": Input((M, N), dtype), "b": Input((K, N), dtype), "columns": columns, "offsets": Input((tall + 1,), "i32"), "high": side,
            "wide": side, "alpha": 1.0}


def _cases() -> list[Case]:
    def mm(m: int, n: int, k: int, count: int, high: int, wide: int, dtype: str = "bf16", a: str = "contiguous", b: str = "contiguous",
           alpha: float = 1.0) -> dict[str, Any]:
        return {"a": Input((m, n), dtype, layout=a), "b": Input((k, n), dtype, layout=b), "columns": Input((count,), "i32"),
                "offsets": Input((-(-m // high) + 1,), "i32"), "high": high, "wide": wide, "alpha": alpha}

    bench = [case(f"8192x8192 blocks of {s}, density {d} x 4096", tags="bench", **mm(8192, 4096, 8192, int(d * (8192 // s) ** 2), s, s))
             for s in (32, 64, 128) for d in (0.05, 0.2)]
    edge = []
    for dtype in ("bf16", "f16", "f32"):
        for s in (8, 16, 32, 64, 128):
            edge += [case(f"blocks of {s}", tags="edge", **mm(3 * s, 40, 4 * s, 7, s, s, dtype)),
                     case(f"blocks of {s}, cut", tags="edge", **mm(2 * s - 3, 33, 3 * s - 5, 4, s, s, dtype))]
        edge += [
            case("blocks of 16x64", tags="edge", **mm(70, 72, 300, 12, 16, 64, dtype)),
            case("blocks of 128x8", tags="edge", **mm(256, 40, 64, 9, 128, 8, dtype)),
            case("deep", tags="edge", **mm(60, 1000, 50, 12, 16, 16, dtype)),
            case("one column", tags="edge", **mm(64, 1, 96, 5, 16, 32, dtype)),
            case("no blocks", tags="edge", **mm(64, 24, 96, 0, 16, 16, dtype)),
            case("alpha", tags="edge", **mm(64, 24, 96, 9, 16, 16, dtype, alpha=-0.5)),
            case("N of zero", tags="edge", **mm(64, 0, 96, 3, 16, 16, dtype)),
        ]
        edge += [case(how, tags="edge", **mm(80, 40, 96, 12, 16, 32, dtype, how, how)) for how in LAYOUTS if how != "sliced"]
    return bench + edge


OP = Op(
    reference,
    outputs=outputs,
    judging=Judging(invariant={"batch": "how K is split follows from the number of blocks"}),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, **BLOCKS),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("a", "b"), saves=("a", "b", "columns", "offsets"), backward=backward),
    values=Values(fixup=_arrange),
    calls=Calls(faults=faults, public=_public),
    peers={"cublas, all blocks": _dense},
    wrong={"row before in b": _next_row, "last column dropped": _tail,
           "blocks transposed": lambda *args: reference(*args).transpose(1, 2).reshape(-1, args[4], args[5]),
           "alpha ignored": lambda a, b, c, o, high, wide, alpha: reference(a, b, c, o, high, wide, 1.0)},
)
