"""A 2:4 sparse matrix times a dense one: at most two of every four neighbours in a row are nonzero, and the tensor cores multiply them at
twice the rate.

    out = act(alpha · S b + bias)

Source: Mishra et al., "Accelerating Sparse Deep Neural Networks" (2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Option, Problem, Work, case
from rooftop.core.sweeps import PRODUCT
from rooftop.ops._sparse import UNITS, bias_gradient, finished, gelu_on_cpu, slope, validate

if TYPE_CHECKING:
    from torch import Tensor


def spmm_24(
    values: Tensor,
    meta: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    activation: str = "none",
    transposed: bool = False,
    implementation: str | None = None,
) -> Tensor:
    """act(alpha · S b + bias), S a 2:4 sparse [M, K], summed in float32 and rounded once. `rooftop.sparse.SparseTensor` holds `values` and
    `meta`.

    Args:
        values: [M, 2 ceil(K / 4)] float16 or bfloat16: the two stored elements of each group of four, in their order.
        meta: int32 [ceil(M / 16), ceil(K / 256), 32, 4]: their positions; rooftop/formats/two_four.py defines every bit. Words that contain
            a position twice, or two out of order, give an unspecified number in that row.
        b: [K, N] in the dtype of `values`; rows or columns may be contiguous in memory.
        bias: [M, 1] or [1, N] in the same dtype, added to each column or each row, or None.
        alpha: scale of the product.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        transposed: return the transposed result, [N, M], contiguous: the output of a linear layer if b is its transposed input.
        implementation: name of a kernel (`"cuda_sm90"`), which runs or raises. None selects the best one that supports the input.

    Where b holds infinities or NaN, it is unspecified whether the zeros of S are multiplied with them.
    Gradients flow to `values`, `b` and `bias`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation, or tensors on different devices."""
    import torch

    op = "spmm_24"
    rows = values.shape[0] if isinstance(values, torch.Tensor) and values.dim() == 2 else -1
    validate(op, {"values": values, "b": b}, ("float16", "bfloat16"), rows, bias, alpha, activation)
    k = b.shape[0]
    if values.dim() != 2 or values.shape[1] != 2 * -(-k // 4):
        raise ValueError(f"{op}: values is {tuple(values.shape)} and b is {tuple(b.shape)}; values must be [M, {2 * -(-k // 4)}]")
    if not isinstance(meta, torch.Tensor) or meta.dtype != torch.int32:
        raise TypeError(
            f"{op}: meta is {meta.dtype if isinstance(meta, torch.Tensor) else type(meta).__name__}; it must be a tensor of torch.int32"
        )
    wanted = (-(-rows // 16), -(-k // 256), 32, 4)
    if tuple(meta.shape) != wanted or meta.device != b.device:
        raise ValueError(f"{op}: meta is {tuple(meta.shape)} on {meta.device}; it must be {wanted} on {b.device}")
    if not isinstance(transposed, bool):
        raise TypeError(f"{op}: transposed is {transposed!r}; it must be True or False")
    return OP(values, meta, b, bias, float(alpha), activation, transposed, implementation=implementation)


def reference(
    values: Tensor, meta: Tensor, b: Tensor, bias: Tensor | None = None, alpha: float = 1.0, activation: str = "none",
    transposed: bool = False
) -> Tensor:
    from rooftop.formats.two_four import expand, meta_shape

    if tuple(meta.shape) != meta_shape(values.shape[0], b.shape[0]):
        raise RuntimeError(f"metadata {tuple(meta.shape)} for {values.shape[0]} x {b.shape[0]}")
    out = finished(expand(values, meta, b.shape[0]) @ b, bias, alpha, activation)
    return out.t().contiguous() if transposed else out


def cpu(
    values: Tensor, meta: Tensor, b: Tensor, bias: Tensor | None = None, alpha: float = 1.0, activation: str = "none",
    transposed: bool = False
) -> Any:
    return gelu_on_cpu(reference, values, meta, b, bias, alpha, transposed=transposed) if activation == "gelu" else NotImplemented


def backward(
    dout: Tensor, values: Tensor, meta: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str, transposed: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """ds = dout · act'(s); db = alpha Sᵀ ds; dvalues = alpha (ds bᵀ) at the kept places."""
    import torch

    from rooftop.formats.two_four import expand, places, unpack
    from rooftop.ops import matmul

    s = None if activation == "none" else OP(values, meta, b, bias, alpha, "none", False)
    ds = slope(dout.t() if transposed else dout, s, activation)

    def product(x: Tensor, y: Tensor) -> Tensor:
        return matmul.OP(x, y, None, None, None, None, alpha, 0.0, "none", "", "ieee")

    groups = values.shape[1] // 2
    at = places(unpack(meta, values.shape[0], groups))
    whole = torch.nn.functional.pad(product(ds, b.t()), (0, 4 * groups - b.shape[0]))
    return whole.gather(1, at), product(expand(values, meta, b.shape[0]).t(), ds), bias_gradient(ds, bias)


def outputs(values: Meta, b: Meta, transposed: bool = False, **_: Any) -> dict[str, Meta]:
    m, n = values.shape[0], b.shape[1]
    return {"out": Meta((n, m) if transposed else (m, n), b.dtype)}


def canonical(p: Problem) -> Problem | None:
    b = p["b"]
    near = any(
        n <= 1 or s == 1 for n, s in zip(b.shape, b.strides, strict=True)
    ) and all(s > 0 or n <= 1 for n, s in zip(b.shape, b.strides, strict=True))
    return p if near and p["values"].contiguous and p["meta"].contiguous else None


def work(p: Problem) -> Work:
    """Each operand read once, the result written once; the products that are not known to be zero, at the dense rate."""
    b, values, out = p["b"], p["values"], p["out"]
    read = sum(m.nbytes for name, m in p.tensors if m is not None and name != "out")
    return Work(read, out.nbytes, {UNITS[b.dtype]: 0.5 * float(values.numel) * b.shape[1]})


def _codes(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    """Every code, at random; past M and K too."""
    import torch

    from rooftop.formats.two_four import CODES, pack

    meta = tensors["meta"]
    m, groups = meta.shape[0] * 16, meta.shape[1] * 64
    drawn = torch.randint(0, 6, (m, groups), generator=generator, device=meta.device)
    return {"meta": pack(torch.tensor(CODES, device=meta.device, dtype=torch.int32)[drawn])}


def _torch() -> Callable[..., Tensor]:
    """The dense product by cuBLAS, the sparse matrix expanded outside what is timed."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    from rooftop.formats.two_four import expand

    held: Any = WeakTensorKeyDictionary()

    def cublas(values: Tensor, meta: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str, transposed: bool) -> Tensor:
        if values not in held:
            held[values] = expand(values, meta, b.shape[0]).contiguous()
        out = torch.mm(b.t(), held[values].t()) if transposed else torch.mm(held[values], b)
        if bias is None and alpha == 1.0 and activation == "none":
            return out
        return finished(out, bias.t() if transposed and bias is not None else bias, alpha, activation)

    return cublas


def _cusparselt() -> Callable[..., Tensor]:
    """cuSPARSELt through torch, compressed outside what is timed."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    from rooftop.formats.two_four import expand

    if not torch.backends.cusparselt.is_available():
        raise ImportError("this torch has no cuSPARSELt")
    held: Any = WeakTensorKeyDictionary()

    def cusparselt(values: Tensor, meta: Tensor, b: Tensor, bias: Tensor | None, alpha: float, activation: str, transposed: bool) -> Tensor:
        if values not in held:
            held[values] = torch._cslt_compress(expand(values, meta, b.shape[0]).contiguous())
        out = torch._cslt_sparse_mm(held[values], b, transpose_result=transposed)
        if bias is None and alpha == 1.0 and activation == "none":
            return out
        return finished(out, bias.t() if transposed and bias is not None else bias, alpha, activation)

    return cusparselt


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        given = dict(zip(("values", "meta", "b", "bias", "alpha", "activation", "transposed"), args, strict=True))
        change(given)
        return reference(**given)

    return run


def _halves(given: dict[str, Any]) -> None:
    """Rows g and g + 8 change their codes."""
    meta = given["meta"]
    given["meta"] = (meta << 16) | ((meta >> 16) & 0xFFFF)


def _pairs(given: dict[str, Any]) -> None:
    given["values"] = given["values"].unflatten(1, (-1, 2)).flip(-1).flatten(1)


def _tail(given: dict[str, Any]) -> None:
    b = given["b"].clone()
    b[-1:] = 0
    given["b"] = b


def _swept(dtype: str, M: int, N: int, K: int) -> dict[str, Any]:
    """A linear layer: b is the transposed input, and so is the result."""
    values, meta = Input((M, 2 * -(-K // 4)), dtype), Input((-(-M // 16), -(-K // 256), 32, 4), "i32")
    return {
        "values": values, "meta": meta, "b": Input((K, N), dtype, layout="transposed"), "alpha": 1.0, "activation": "none",
        "transposed": True
    }


def _cases() -> list[Case]:
    def mm(
        m: int, n: int, k: int, dtype: str = "bf16", b: str = "contiguous", bias: str = "", alpha: float = 1.0, activation: str = "none",
        transposed: bool = False,
    ) -> dict[str, Any]:
        shape = {"": None, "rows": (m, 1), "columns": (1, n)}[bias]
        return {
            "values": Input((m, 2 * -(-k // 4)), dtype), "meta": Input((-(-m // 16), -(-k // 256), 32, 4), "i32"),
            "b": Input((k, n), dtype, layout=b), "bias": Input(shape, dtype) if shape else None, "alpha": alpha, "activation": activation,
            "transposed": transposed,
        }

    bench = [case(f"{n}x{n}x{n}", tags="bench", **mm(n, n, n)) for n in (4096, 8192, 16384)]
    bench += [
        case(f"linear {m}x{n}x{k}", tags="bench model", **mm(m, n, k, b="transposed", transposed=True))
        for m, k in ((14336, 4096), (4096, 14336), (8192, 8192)) for n in (16, 1024, 8192)
    ]
    edge = []
    for dtype in ("bf16", "f16"):
        edge += [
            case("one tile", tags="edge", **mm(16, 8, 32, dtype)),
            case("small", tags="edge", **mm(48, 40, 64, dtype)),
            case("small, columns", tags="edge", **mm(48, 40, 96, dtype, "transposed", transposed=True)),
            case("odd", tags="edge", **mm(37, 43, 54, dtype)),
            case("odd, columns", tags="edge", **mm(37, 43, 53, dtype, "transposed", transposed=True)),
            case("K of 6", tags="edge", **mm(20, 8, 6, dtype)),
            case("one column", tags="edge", **mm(70, 1, 160, dtype)),
            case("one row", tags="edge", **mm(1, 72, 160, dtype)),
            case("several tiles", tags="edge", **mm(280, 264, 544, dtype)),
            case("several tiles, columns", tags="edge", **mm(520, 136, 1040, dtype, "transposed", transposed=True)),
            case("bias of rows, relu", tags="edge", **mm(72, 64, 128, dtype, bias="rows", activation="relu")),
            case("bias of columns, alpha, silu", tags="edge", **mm(64, 80, 128, dtype, bias="columns", alpha=0.5, activation="silu")),
            case("linear, bias, gelu", tags="edge", **mm(64, 40, 96, dtype, "transposed", "rows", activation="gelu", transposed=True)),
            case("gelu_tanh", tags="edge", **mm(40, 48, 64, dtype, activation="gelu_tanh", transposed=True)),
            case("b padded", tags="edge", **mm(40, 48, 64, dtype, "padded")),
            case("b sliced", tags="edge", **mm(40, 48, 64, dtype, "sliced")),
            case("b offset", tags="edge", **mm(40, 48, 64, dtype, "offset")),
            case("b strided", tags="edge", **mm(40, 48, 64, dtype, "strided")),
            case("no columns", tags="edge", **mm(40, 0, 64, dtype)),
            case("no rows", tags="edge", **mm(0, 24, 64, dtype)),
            case("K of zero", tags="edge", **mm(40, 24, 0, dtype, bias="rows")),
        ]
    return bench + edge


OP = Op(
    reference,
    outputs=outputs,
    judging=Judging(invariant={"batch": "how K is split follows from the sizes of both matrices"}),
    calls=Calls(cpu=cpu),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, {**PRODUCT, "K": (64, 1 << 18)}, models={"M": "inner", "K": "hidden"}, dtypes=("bf16", "f16")),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("values", "b", "bias"), saves=("values", "meta", "b", "bias"), backward=backward),
    values=Values(fixup=_codes),
    peers={"cublas": _torch, "cusparselt": _cusparselt},
    wrong={
        "codes of other rows": _with(_halves),
        "values of a pair swapped": _with(_pairs),
        "last row of b dropped": _with(_tail),
        "bias ignored": _with(lambda given: given.update(bias=None)),
        "alpha ignored": _with(lambda given: given.update(alpha=1.0)),
        "activation ignored": _with(lambda given: given.update(activation="none")),
    },
)
