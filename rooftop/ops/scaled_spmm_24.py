"""A 2:4 sparse matrix of 8 bits (fp8, int8) times a dense one, with scales.

    out = act(scale_a · scale_b · S b + bias)

Source: Mishra et al., "Accelerating Sparse Deep Neural Networks" (2021); Micikevicius et al., "FP8 formats for deep learning" (2022)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import DTYPES, Case, Input, Meta, Option, Problem, Work, case, dtype_of
from rooftop.core.sweeps import PRODUCT
from rooftop.ops._sparse import ACTIVATIONS, finished

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = 32  # columns of the matrix: what TMA reads begins at multiples of 16 bytes
LONGEST = 2**31 // 2**14 - 1  # K of int8: (-128)² this often is less than 2^31


def scaled_spmm_24(
    values: Tensor,
    meta: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str = "none",
    fast: bool = False,
    transposed: bool = False,
    out_dtype: Any = None,
    implementation: str | None = None,
) -> Tensor:
    """act(scale_a · scale_b · S b + bias), S a 2:4 sparse [M, K] of fp8 or int8, rounded once. `rooftop.sparse.SparseTensor` holds `values`
    and `meta`.

    Fastest if b's columns are contiguous along K (a linear layer's transposed input) and K is a multiple of 32; else b, or both operands,
    are copied first.

    Args:
        values: [M, 2 ceil(K / 4)] float8_e4m3fn, float8_e5m2 or int8: the two stored elements of each group of four, in their order.
        meta: int32 [ceil(M / 16), ceil(K / 256), 32, 4]: their positions, as in `rooftop.spmm_24`.
        b: [K, N], an fp8 dtype if `values` has one, else int8; any strides.
        scale_a: float32, [1], or [M]: a scale for each row of S.
        scale_b: float32, [1], or [N]: a scale for each column of b.
        bias: [M, 1] or [1, N] in the result's dtype, added to each column or each row, or None.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        fast: lets tensor cores accumulate fp8 products in fewer than 24 bits along all of K. If False, at most 128 products are accumulated
            this way, and these sums are added in float32. int8 is summed exactly in 32 bits.
        transposed: return the transposed result, [N, M], contiguous.
        out_dtype: torch.bfloat16 (None) or torch.float16.
        implementation: name of a kernel (`"cuda_sm90"`), which runs or raises. None selects the best one that supports the input.

    Where b holds infinities or NaN, it is unspecified whether the zeros of S are multiplied with them. No gradient flows through it.

    Raises TypeError for other dtypes; ValueError for shapes that do not fit, an unknown activation, tensors on different devices, or int8
    with K above 131071, where a sum could leave 32 bits."""
    import torch

    to = _validate(values, meta, b, scale_a, scale_b, bias, activation, fast, transposed, out_dtype)
    k = b.shape[0]
    if k % WHOLE:
        more = -k % WHOLE
        wide = torch.int8 if values.dtype == torch.int8 else torch.uint8
        values = torch.nn.functional.pad(values.view(wide), (0, 2 * ((k + more) // 4) - values.shape[1])).view(values.dtype)
        b = torch.nn.functional.pad(b.t().view(wide) if b.stride(0) == 1 else b.t().contiguous().view(wide), (0, more)).view(b.dtype).t()
    elif b.stride(0) != 1:
        b = b.t().contiguous().t()
    return OP(
        values, meta, b, scale_a.reshape(-1), scale_b.reshape(-1), bias, activation, fast, transposed, to, implementation=implementation
    )


def _validate(
    values: Any, meta: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, activation: Any, fast: Any, transposed: Any, out_dtype: Any
) -> str:
    """The result's dtype."""
    import torch

    op, fp8, floats = "scaled_spmm_24", (torch.float8_e4m3fn, torch.float8_e5m2), (torch.bfloat16, torch.float16)
    if out_dtype is not None and out_dtype not in floats:
        raise TypeError(f"{op}: out_dtype is {out_dtype}; accepted are {', '.join(map(str, floats))}")
    to = torch.bfloat16 if out_dtype is None else out_dtype
    given = {"values": values, "meta": meta, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    accepted = {"meta": (torch.int32,), "scale_a": (torch.float32,), "scale_b": (torch.float32,), "bias": (to,)}
    for name, t in given.items():
        if t is None and name == "bias":
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in accepted.get(name, (*fp8, torch.int8)):
            raise TypeError(f"{op}: {name} is {t.dtype}; accepted is {', '.join(map(str, accepted.get(name, (*fp8, torch.int8))))}")
        if t.device != values.device:
            raise ValueError(f"{op}: values lies on {values.device} and {name} on {t.device}; they must be on one device")
    if (values.dtype == torch.int8) != (b.dtype == torch.int8):
        raise TypeError(f"{op}: values is {values.dtype} and b is {b.dtype}; both must be fp8 or both int8")
    if values.dim() != 2 or b.dim() != 2 or values.shape[1] != 2 * -(-b.shape[0] // 4):
        wanted = f"[M, {2 * -(-b.shape[0] // 4)}]" if b.dim() == 2 else "[M, 2 ceil(K / 4)]"
        raise ValueError(f"{op}: values is {tuple(values.shape)} and b is {tuple(b.shape)}; they must be {wanted} and [K, N]")
    m, (k, n) = values.shape[0], b.shape
    if values.dtype == torch.int8 and k > LONGEST:
        raise ValueError(f"{op}: K is {k}; sums of more than {LONGEST} products of int8 may not fit int32")
    if tuple(meta.shape) != (-(-m // 16), -(-k // 256), 32, 4):
        raise ValueError(f"{op}: meta is {tuple(meta.shape)}; it must be {(-(-m // 16), -(-k // 256), 32, 4)}")
    for name, scale, extent in (("scale_a", scale_a, m), ("scale_b", scale_b, n)):
        if tuple(scale.shape) not in ((), (1,), (extent,)):
            raise ValueError(f"{op}: {name} is {tuple(scale.shape)}; it must be (1,) or {(extent,)}")
    if bias is not None and tuple(bias.shape) not in ((m, 1), (1, n)):
        raise ValueError(
            f"{op}: bias is {tuple(bias.shape)}; it must be {(m, 1)}, a number for each row of S, or {(1, n)}, for each column of b"
        )
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"{op}: activation is {activation!r}; it is one of {', '.join(ACTIVATIONS)}")
    for name, flag in (("fast", fast), ("transposed", transposed)):
        if not isinstance(flag, bool):
            raise TypeError(f"{op}: {name} is {flag!r}; it must be True or False")
    return dtype_of(to)


def in_float32(
    values: Tensor, meta: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, activation: str, fast: bool,
    transposed: bool, to: str
) -> Tensor:
    import torch

    from rooftop.formats.two_four import expand, meta_shape

    k = b.shape[0]
    if tuple(meta.shape) != meta_shape(values.shape[0], k):
        raise RuntimeError(f"metadata {tuple(meta.shape)} for {values.shape[0]} x {k}")
    kind = torch.promote_types(scale_a.dtype, torch.float32)
    out = (expand(values.to(kind), meta, k) @ b.to(kind)) * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    out = finished(out, bias, 1.0, activation)
    out = out.t().contiguous() if transposed else out
    return out if kind == torch.float64 else out.to(getattr(torch, DTYPES[to].torch))


def reference(
    values: Tensor, meta: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, activation: str, fast: bool,
    transposed: bool, to: str
) -> Tensor:
    """`in_float32`, with int8 in float64: float32 holds the sums of no more than 1024 products exactly."""
    import torch

    rest = (bias, activation, fast, transposed, to)
    if values.dtype != torch.int8 or scale_a.dtype == torch.float64:
        return in_float32(values, meta, b, scale_a, scale_b, *rest)
    return in_float32(values, meta, b, scale_a.double(), scale_b, *rest).to(getattr(torch, DTYPES[to].torch))


def outputs(values: Meta, b: Meta, transposed: bool, to: str, **_: Any) -> dict[str, Meta]:
    m, n = values.shape[0], b.shape[1]
    return {"out": Meta((n, m) if transposed else (m, n), to)}


def canonical(p: Problem) -> Problem | None:
    """Columns of b at any distance, or all contiguous."""
    b = p["b"]
    near = (b.shape[0] <= 1 or b.strides[0] == 1) and (b.shape[1] <= 1 or b.strides[1] > 0)
    return p if (near or b.contiguous) and all(m is None or m.contiguous for name, m in p.tensors if name not in ("b", "bias")) else None


def work(p: Problem) -> Work:
    """Each operand read once, the result written once; the products that are not known to be zero, at the dense rate."""
    b, values = p["b"], p["values"]
    read = sum(m.nbytes for name, m in p.tensors if m is not None and name != "out")
    return Work(read, p["out"].nbytes, {"tensor-i8" if b.dtype == "i8" else "tensor-f8": 0.5 * float(values.numel) * b.shape[1]})


def _arrange(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    """Every code, at random; all 256 values of int8; scales between 0.5 and 1.5, of int8 a 2048th of that, so that activations bend."""
    import torch

    from rooftop.ops.spmm_24 import _codes

    found = _codes(tensors, options, generator)
    for name, t in tensors.items():
        if name.startswith("scale"):
            found[name] = (
                torch.rand(t.shape, generator=generator, device=t.device) + 0.5
            ) * (2.0**-7 if tensors["b"].dtype == torch.int8 else 1.0)
        elif name in ("values", "b") and t.dtype == torch.int8:
            extent = 1 + sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
            drawn = torch.randint(-128, 128, (extent,), generator=generator, device=t.device, dtype=torch.int32).to(torch.int8)
            found[name] = drawn.as_strided(t.shape, t.stride()) if extent else t
    return found


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    named = {n: options[n] for n in ("activation", "fast", "transposed")}
    first = tuple(tensors[n] for n in ("values", "meta", "b", "scale_a", "scale_b"))
    return first, {"bias": tensors["bias"], **named, "out_dtype": getattr(torch, DTYPES[options["to"]].torch)}


def _peer(sparse: bool) -> Callable[[], Callable[..., Tensor]]:
    """Of the expanded (or compressed) matrix, made outside what is timed."""

    def load() -> Callable[..., Tensor]:
        import torch
        from torch.utils.weak import WeakTensorKeyDictionary

        from rooftop.formats.two_four import expand

        if sparse and not torch.backends.cusparselt.is_available():
            raise ImportError("this torch has no cuSPARSELt")
        held: Any = WeakTensorKeyDictionary()

        def run(
            values: Tensor, meta: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, activation: str, fast: bool,
            transposed: bool, to: str,
        ) -> Tensor:
            """One scale each, as both libraries take them in one call; int8 by cuBLAS is scaled after it."""
            if scale_a.numel() != 1 or scale_b.numel() != 1 or bias is not None or activation != "none":
                raise ValueError("timed with one scale each, without a bias and an activation")
            if values not in held:
                dense = expand(values.float(), meta, b.shape[0]).to(values.dtype).contiguous()
                held[values] = torch._cslt_compress(dense) if sparse else dense
            kind = getattr(torch, DTYPES[to].torch)
            if sparse:
                return torch._cslt_sparse_mm(
                    held[values], b, alpha=(scale_a * scale_b).reshape(1), out_dtype=kind, transpose_result=transposed
                )
            x, y = (b.t(), held[values].t()) if transposed else (held[values], b)
            if values.dtype == torch.int8:
                return (torch._int_mm(x, y) * (scale_a * scale_b)).to(kind)
            one, two = (scale_b, scale_a) if transposed else (scale_a, scale_b)
            return torch._scaled_mm(x, y, one.reshape(()), two.reshape(()), out_dtype=kind, use_fast_accum=fast)

        return run

    return load


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        names = ("values", "meta", "b", "scale_a", "scale_b", "bias", "activation", "fast", "transposed", "to")
        given = dict(zip(names, args, strict=True))
        change(given)
        return in_float32(**given)

    return run


def _ones(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update({name: given[name] * 0 + 1})


def _halves(given: dict[str, Any]) -> None:
    """Rows g and g + 8 change their codes."""
    given["meta"] = (given["meta"] << 16) | ((given["meta"] >> 16) & 0xFFFF)


def _tail(given: dict[str, Any]) -> None:
    """The last row of b that a value meets for sure: the last whole group of four."""
    import torch

    b = given["b"]
    keep = torch.arange(b.shape[0], device=b.device) < (b.shape[0] - 1) // 4 * 4
    given["b"] = (b.float() * keep[:, None]).to(b.dtype)


def _swept(dtype: str, M: int, N: int, K: int) -> dict[str, Any]:
    """A linear layer, with one scale each, as its peers take them."""
    values, meta = Input((M, 2 * -(-K // 4)), dtype), Input((-(-M // 16), -(-K // 256), 32, 4), "i32")
    return {"values": values, "meta": meta, "b": Input((K, N), dtype, layout="transposed"), "scale_a": Input((1,)), "scale_b": Input((1,)),
            "activation": "none", "fast": False, "transposed": True, "to": "bf16"}


def _cases() -> list[Case]:
    def mm(
        dtype: str, m: int, n: int, k: int, scales: str = "rows", b: str = "transposed", bias: str = "", activation: str = "none",
        fast: bool = False, transposed: bool = False, to: str = "bf16", of_b: str = "",
    ) -> dict[str, Any]:
        shape = {"": None, "rows": (m, 1), "columns": (1, n)}[bias]
        return {
            "values": Input((m, 2 * -(-k // 4)), dtype), "meta": Input((-(-m // 16), -(-k // 256), 32, 4), "i32"),
            "b": Input((k, n), of_b or dtype, layout=b), "scale_a": Input((m if scales == "rows" else 1,)),
            "scale_b": Input((n if scales == "rows" else 1,)), "bias": Input(shape, to) if shape else None, "activation": activation,
            "fast": fast, "transposed": transposed, "to": to,
        }

    bench = [
        case(f"{n} cubed{' fast' if fast else ''}", tags="bench", **mm("f8e4m3", n, n, n, "one", fast=fast)) for n in (4096, 8192)
        for fast in (True, False)
    ]
    bench += [case(f"{n} cubed", tags="bench", **mm("i8", n, n, n, "one")) for n in (4096, 8192)]
    bench += [
        case(f"linear {m}x{n}x{k} fast", tags="bench model", **mm("f8e4m3", m, n, k, "one", fast=True, transposed=True))
        for m, k in ((14336, 4096), (4096, 14336)) for n in (16, 1024)
    ]
    edge = []
    for dtype in ("f8e4m3", "f8e5m2", "i8"):
        edge += [
            case("one tile", tags="edge", **mm(dtype, 16, 8, 64)),
            case("small", tags="edge", **mm(dtype, 48, 40, 96, "one")),
            case("odd", tags="edge", **mm(dtype, 37, 43, 160)),
            case("odd, transposed", tags="edge", **mm(dtype, 37, 43, 160, transposed=True)),
            case("K of 54", tags="edge", **mm(dtype, 40, 24, 54)),
            case("one column", tags="edge", **mm(dtype, 70, 1, 320)),
            case("one row", tags="edge", **mm(dtype, 1, 72, 320)),
            case("several tiles", tags="edge", **mm(dtype, 280, 264, 544)),
            case("several tiles, transposed", tags="edge", **mm(dtype, 520, 136, 1056, transposed=True)),
            case("bias of rows, relu", tags="edge", **mm(dtype, 72, 64, 128, bias="rows", activation="relu")),
            case("bias of columns, silu, f16", tags="edge", **mm(dtype, 64, 80, 128, bias="columns", activation="silu", to="f16")),
            case("linear, bias, gelu", tags="edge", **mm(dtype, 64, 40, 96, bias="rows", activation="gelu", transposed=True)),
            case("gelu_tanh", tags="edge", **mm(dtype, 40, 48, 64, activation="gelu_tanh")),
            case("rows of b", tags="edge", **mm(dtype, 40, 48, 64, b="contiguous")),
            case("no columns", tags="edge", **mm(dtype, 40, 0, 64)),
            case("no rows", tags="edge", **mm(dtype, 0, 24, 64)),
            case("K of zero", tags="edge", **mm(dtype, 40, 24, 0, bias="rows")),
        ]
    edge += [
        case("e4m3 by e5m2", tags="edge", **mm("f8e4m3", 72, 136, 288, of_b="f8e5m2")),
        case("e5m2 by e4m3", tags="edge", **mm("f8e5m2", 72, 136, 288, of_b="f8e4m3")),
        case("fast", tags="edge", **mm("f8e4m3", 136, 272, 288, fast=True)),
    ]
    return bench + edge


OP = Op(
    reference,
    judging=Judging(invariant={"batch": "how K is split follows from the sizes of both matrices"}, same=in_float32),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, {**PRODUCT, "K": (64, 1 << 16)}, models={"M": "inner", "K": "hidden"}, dtypes=("f8e4m3", "i8")),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    values=Values(fixup=_arrange),
    calls=Calls(public=_public),
    peers={"cublas": _peer(False), "cusparselt": _peer(True)},
    wrong={
        "codes of other rows": _with(_halves),
        "scale of a ignored": _with(_ones("scale_a")),
        "scale of b ignored": _with(_ones("scale_b")),
        "bias ignored": _with(lambda given: given.update(bias=None)),
        "activation ignored": _with(lambda given: given.update(activation="none")),
        "K tail dropped": _with(_tail),
    },
)
