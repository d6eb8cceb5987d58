"""Matrix product (GEMM) with an addend, a bias, an activation, a gate and a residual.

    out = act(alpha · a b + beta · c + bias) · gate + residual

Source: the level-3 BLAS (Dongarra et al. 1990), row-major; the epilogue is that of cuBLASLt and CUTLASS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.invariance import ROWS
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Timed, Tolerance
from rooftop.core.spec import DTYPES, Meta, Problem, Work, dtype_of
from rooftop.core.sweeps import PRODUCT
from rooftop.ops._cublaslt import best
from rooftop.ops._gradient_layout import product_like
from rooftop.ops._matmul_calls import fused, has_vector, of_vectors
from rooftop.ops._matmul_cases import cases, swept

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")
UNITS = {"f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3")  # how float32 is multiplied
SPLIT_UNITS = {"tf32": ("tensor-tf32", 1.0), "tf32x3": ("tensor-tf32", 3.0), "bf16x3": ("tensor-bf16", 3.0)}  # unit, its products each


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Tensor | None = None,
    activation: str = "none",
    gate: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: Any = None,
    precision: str = "ieee",
    implementation: str | None = None,
) -> Tensor:
    """act(alpha · a b + beta · c + bias) · gate + residual, summed in float32 and rounded once.

    float32 is true float32 unless `precision` says otherwise: each product and each sum is an IEEE FMA, never TF32. Operands of 16 bits are
    multiplied exactly by tensor cores.

    Args:
        a: [M, K], or [B, M, K] for a batch; [..., M, K] with a `b` of two dimensions, as in a linear layer; float32, float16 or bfloat16. Rows or columns
            may be contiguous in memory; any other layout is copied into contiguous memory first.
        b: [K, N], or [B, K, N], in the dtype of `a`, likewise. An `a` or a `b` of one dimension, [K], is a row or a column, as in torch.matmul; the
            result, and what has its shape, is then without that dimension.
        c: of the shape of the result, or None.
        alpha, beta: scales. With beta = 0, c is not read: NaN in it does not matter.
        bias: [N], added to each row, or None.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", applied to alpha · a b + beta · c + bias.
        gate, residual: of the shape of the result, or None.
        out_dtype: torch.float32, torch.float16 or torch.bfloat16 with operands of 16 bits; None: the dtype of `a`.
        precision: of the multiplication of float32 operands; sums are float32 in every mode. The relative error of one product x y:
            "ieee" none beyond float32's;
            "tf32" under 2^-10: each operand is rounded to 10 bits of fraction, the part of a float32 that tensor cores read;
            "tf32x3" under 2^-19: x = x1 + x2 of 10 bits of fraction each, and x y = x1 y1 + x1 y2 + x2 y1 (Ootomo and Yokota 2022);
            "bf16x3" under 2^-15: the same with two bfloat16 numbers, at twice the speed of "tf32x3".
            The gradients are computed in the same mode. In the two split modes an infinite operand, or one whose rounding to bfloat16 overflows (over
            3.39e38), makes its row or column of the result NaN.
        implementation: name of a kernel (`"simt__cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    With a 16-bit `a`, c, bias, gate and residual are float32, float16 or bfloat16; with a float32 `a` they are float32.

    Returns a new tensor [M, N] or [..., M, N]. With K = 0 the product counts as zeros.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation or precision, a precision other than
    "ieee" with operands of 16 bits, or tensors on different devices."""
    if has_vector(a, b):
        more = {"alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "out_dtype": out_dtype, "precision": precision}
        return of_vectors(matmul, a, b, {"c": c, "gate": gate, "residual": residual}, {**more, "implementation": implementation})
    _validate(a, b, c, bias, gate, residual, activation, out_dtype)
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"matmul: precision is {precision!r}; it is one of {', '.join(PRECISIONS)}")
    if precision != "ieee" and a.itemsize == 2:
        raise ValueError(f"matmul: precision is {precision!r} with a of {a.dtype}; 16 bits are multiplied exactly: only 'ieee' is accepted")
    number("matmul", "alpha", alpha, "a number")
    number("matmul", "beta", beta, "a number")
    to = "" if out_dtype is None or out_dtype == a.dtype else dtype_of(out_dtype)
    if a.dim() > b.dim():  # the rows of all matrices, one below the other
        rows = a.shape[:-1].numel()
        c, gate, residual = (None if t is None else t.reshape(rows, t.shape[-1]) for t in (c, gate, residual))
        shape, a = (*a.shape[:-1], b.shape[-1]), a.reshape(rows, a.shape[-1])
    else:
        shape = None
    beta = float(beta) if c is not None else 0.0
    out = OP(a, b, c, bias, gate, residual, float(alpha), beta, activation, to, precision, implementation=implementation)
    return out if shape is None else out.view(shape)


def _validate(
    a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, activation: str,
    out_dtype: Any
) -> None:
    import torch

    floats = (torch.float32, torch.float16, torch.bfloat16)
    given = {"a": a, "b": b, "c": c, "bias": bias, "gate": gate, "residual": residual}
    for name, t in given.items():
        if t is None and name not in ("a", "b"):
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"matmul: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in floats or (a.dtype == torch.float32 and t.dtype != torch.float32):
            accepted = "torch.float32" if a.dtype == torch.float32 and name != "a" else "torch.float32, torch.float16 or torch.bfloat16"
            raise TypeError(f"matmul: {name} is {t.dtype}; accepted is {accepted}")
        if t.device != a.device:
            raise ValueError(f"matmul: a lies on {a.device} and {name} on {t.device}; they must be on one device")
    if b.dtype != a.dtype:
        raise TypeError(f"matmul: a is {a.dtype} and b is {b.dtype}; they must have one dtype")
    if a.dim() < 2 or not (b.dim() == 2 or b.dim() == a.dim() == 3):
        wrong = ("a", a) if a.dim() < 2 else ("b", b)
        three = ", or three" if a.dim() == 3 else ""
        accepted = "at least one dimension" if wrong[0] == "a" else f"two dimensions{three} for an a of {a.dim()}"
        raise ValueError(f"matmul: {wrong[0]} has shape {tuple(wrong[1].shape)}; it must have {accepted}")
    if a.shape[-1] != b.shape[-2] or (b.dim() == 3 and a.shape[0] != b.shape[0]):
        fit = "a's columns must be as many as b's rows, and their batches alike"
        raise ValueError(f"matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; {fit}")
    result = (*a.shape[:-1], b.shape[-1])
    for name, shape in (("c", result), ("gate", result), ("residual", result), ("bias", result[-1:])):
        t = given[name]
        if t is not None and tuple(t.shape) != shape:
            raise ValueError(f"matmul: {name} is {tuple(t.shape)}; it must be {shape}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"matmul: activation is {activation!r}; it is one of {', '.join(ACTIVATIONS)}")
    if out_dtype is not None and (out_dtype not in floats or (a.dtype == torch.float32 and out_dtype != torch.float32)):
        raise TypeError(f"matmul: out_dtype is {out_dtype} with a of {a.dtype}; float32 gives torch.float32, 16 bits give one of {', '.join(map(str, floats))}")


def activate(x: Tensor, activation: str) -> Tensor:
    from torch.nn import functional

    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    return x if activation == "none" else getattr(functional, activation)(x)


def reference(
    a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None = None, gate: Tensor | None = None, residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0, activation: str = "none", to: str = "", precision: str = "ieee",
) -> Tensor:
    """float32 is cut or split as the mode says; float64, which tells what is exact, never."""
    import torch

    out = alpha * (a @ b if precision == "ieee" or a.dtype != torch.float32 else _product(a, b, precision))
    out = out if c is None or beta == 0 else out + beta * c
    out = _followed(out, bias, gate, residual, activation)
    return out.to(getattr(torch, DTYPES[to].torch) if to else a.dtype) if a.itemsize == 2 else out


def cpu(
    a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, alpha: float, beta: float,
    activation: str,
    to: str, precision: str,
) -> Any:
    """Of 16 bits torch rounds the product before what follows it, float16 is slow, and oneDNN multiplies what lies beyond the end of a row
    (`without_onednn` of rooftop/lab/check/judgement.py): the float32 of the reference instead, but for products of whole tiles of bfloat16,
    plain or with a bias and an activation (`fused`)."""
    import torch

    if precision != "ieee":
        return NotImplemented
    scaled = alpha != 1 or (c is not None and beta != 0)
    plain = not scaled and bias is None and gate is None and residual is None and activation == "none" and not to
    if a.itemsize == 2:
        if scaled or a.dtype != torch.bfloat16 or a.shape[-1] % 32 or a.shape[-1] == 0:
            return NotImplemented
        return a @ b if plain else NotImplemented if to or gate is not None or residual is not None else fused(a, b, bias, activation)
    if plain:
        return a @ b
    if c is None and alpha == 1 and bias is not None and a.dim() == 2:
        return _followed(torch.addmm(bias, a, b), None, gate, residual, activation)
    out = a @ b
    out = out if alpha == 1 else alpha * out
    out = out if c is None or beta == 0 else out + beta * c
    return _followed(out, bias, gate, residual, activation)


def _followed(out: Tensor, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, activation: str) -> Tensor:
    out = activate(out if bias is None else out + bias, activation)
    out = out if gate is None else out * gate
    return out if residual is None else out + residual


def _product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    if precision == "tf32":
        return rounded(a) @ rounded(b)
    near: Callable[[Tensor], Tensor] = (lambda t: t.bfloat16().float()) if precision == "bf16x3" else cut
    a1, b1 = near(a), near(b)
    return near(a - a1) @ b1 + a1 @ near(b - b1) + a1 @ b1


def cut(t: Tensor) -> Tensor:
    """What tensor cores read of a float32: ten bits of its fraction."""
    import torch

    return (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def rounded(t: Tensor) -> Tensor:
    """The nearest TF32, of two as near the one farther from zero."""
    import torch

    return torch.where(t.isfinite(), cut((t.contiguous().view(torch.int32) + 0x1000).view(torch.float32)), t)


def backward(
    dout: Tensor, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, alpha: float,
    beta: float,
    activation: str, to: str, precision: str,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """With s the sum before the activation and ds = dout · gate · act'(s):

    da = alpha · ds bᵀ, db = alpha · aᵀ ds, dc = beta · ds, dbias = Σ ds over all rows, dgate = dout · act(s), dresidual = dout"""
    ds, dgate = dout, None
    if activation != "none" or gate is not None:
        s = OP(a, b, c, bias, None, None, alpha, beta, "none", "f32" if a.itemsize == 2 else "", precision)
        dgate = None if gate is None else (dout * activate(s, activation)).to(gate.dtype)
        ds = _slope(dout if gate is None else dout * gate, s, activation)
    near = ds.to(a.dtype)

    def product(x: Tensor, y: Tensor) -> Tensor:
        return OP(x, y, None, None, None, None, alpha, 0.0, "none", "", precision)

    da, db = product_like(a, near, b.transpose(-1, -2), product), product_like(b, a.transpose(-1, -2), near, product)
    dbias = None if bias is None else ds.sum(tuple(range(ds.dim() - 1)), dtype=None if ds.itemsize > 2 else _float32()).to(bias.dtype)
    return da, db, ds * beta if c is None else (ds * beta).to(c.dtype), dbias, dgate, dout if residual is None else dout.to(residual.dtype)


def _float32() -> Any:
    import torch

    return torch.float32


def _slope(d: Tensor, s: Tensor, activation: str) -> Tensor:
    """d · act'(s)"""
    import torch

    if activation == "none":
        return d
    d, aten = d.to(s.dtype), torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(d, s, 0)
    if activation == "silu":
        if torch.is_grad_enabled():  # as under create_graph=True: torch has no derivative of its kernel
            share = s.sigmoid()
            return d * share * (1 + s * (1 - share))
        return aten.silu_backward(d, s)
    return aten.gelu_backward(d, s, approximate="tanh" if activation == "gelu_tanh" else "none")


def outputs(a: Meta, b: Meta, to: str = "", **_: Any) -> dict[str, Meta]:
    return {"out": Meta((*a.shape[:-1], b.shape[-1]), to or a.dtype)}


def canonical(p: Problem) -> Problem | None:
    """Rows of neighbouring elements, at any distance (BLAS: leading dimension). Operands may be columns of neighbours as well."""
    if p["a"].dtype != "f32" or p.option("precision") != "ieee" or _columns(p["a"]) + _columns(p["b"]) > 0:
        for name, m in p.tensors:
            if m is not None and m.shape[-1] > 1 and m.strides[-1] != 1 and not (
                name in ("a", "b") and (m.shape[-2] == 1 or m.strides[-2] == 1)
            ):
                return None
        return p
    if any(m is not None and m.shape[-1] > 1 and m.strides[-1] != 1 for _, m in p.tensors):
        return None
    if len(p["a"].shape) == 3:
        return p
    rows = [n for n, m in p.tensors if m is not None and len(m.shape) == 2]
    if any(p[n].shape[0] > 1 and p[n].strides[0] < p[n].shape[1] for n in rows):
        return None
    found = {n: p[n] for n in rows}
    return p.replace(**{
        n: Meta(m.shape, m.dtype, (m.strides[0] if m.shape[0] > 1 else max(m.strides[0], m.shape[1]), 1), m.align) for n, m in found.items()
    })


def _columns(m: Meta | None) -> bool:
    return m is not None and m.shape[-1] > 1 and m.strides[-1] != 1


def rows(p: Problem) -> dict[str, dict[int, int]]:
    """For `Judging.rows`: those of all matrices of the batch."""
    of_a = {0: ROWS} if len(p["a"].shape) == 2 else {0: 1, 1: ROWS}
    found = dict.fromkeys(("a", "c", "gate", "residual", "out"), of_a)
    return found if len(p["b"].shape) == 2 else {**found, "b": {0: 1}}


def alone(a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None = None, gate: Tensor | None = None, residual: Tensor | None = None, *rest: Any) -> Tensor:
    """Row by row, each of them where memory begins."""
    import torch

    def at(i: int) -> list[Tensor | None]:
        return [None if t is None else t[i : i + 1].clone() for t in (a, c, gate, residual)]

    if a.dim() == 3 and len(a):
        given = zip(*([None] * len(a) if t is None else t for t in (a, b, c, gate, residual)), strict=True)
        return torch.stack([alone(x, y, z, bias, u, v, *rest) for x, y, z, u, v in given])
    found = [reference(x, b, z, bias, u, v, *rest) for x, z, u, v in map(at, range(a.shape[0]))]
    return torch.cat(found) if found else reference(a, b, c, bias, gate, residual, *rest)


def work(p: Problem) -> Work:
    """Each operand read once, the result written once; one FMA a product, three on the tensor cores in the split modes."""
    a, b, out = p["a"], p["b"], p["out"]
    read = sum(m.nbytes for n in ("a", "b", "bias", "gate", "residual") if (m := p.get(n)) is not None)
    addend = p.get("c")
    read += addend.nbytes if addend is not None and p.option("beta") != 0 else 0
    unit, products = SPLIT_UNITS.get(str(p.option("precision")), (UNITS[a.dtype], 1.0))
    return Work(read, out.nbytes, {unit: products * a.numel * b.shape[-1]})


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    dtype = options["to"]
    named = {n: tensors[n] for n in ("c", "bias", "gate", "residual")}
    named |= {n: options[n] for n in ("alpha", "beta", "activation", "precision")}
    return (tensors["a"], tensors["b"]), {**named, "out_dtype": getattr(torch, DTYPES[dtype].torch) if dtype else None}


def bucket(p: Problem) -> Problem:
    """What follows the product decides no tile."""
    return replace(p, options=tuple((n, v) for n, v in p.options if n not in ("activation", "to") and (n, v) != ("precision", "ieee")))


def _torch() -> Callable[..., Tensor]:
    import torch

    def cublas(
        a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, alpha: float,
        beta: float, activation: str,
        to: str, precision: str,
    ) -> Tensor:
        """torch eager, which calls cuBLAS, with TF32 where that is asked for. It has no split modes: beside them stands its float32."""
        if to:
            raise ValueError("torch's matmul gives the dtype of its operands")
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        try:
            return product(a, b, c, bias, gate, residual, alpha, beta, activation)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def product(
        a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, alpha: float,
        beta: float, activation: str
    ) -> Tensor:
        if c is None and bias is not None and alpha == 1 and a.dim() == 2:
            out = torch.addmm(bias, a, b)
            bias = None
        elif c is None:
            out = a @ b if alpha == 1 else torch.mul(a @ b, alpha)
        else:
            out = torch.addmm(c, a, b, alpha=alpha, beta=beta) if a.dim() == 2 else torch.baddbmm(c, a, b, alpha=alpha, beta=beta)
        out = activate(out if bias is None else out + bias, activation)
        out = out if gate is None else out * gate
        return out if residual is None else out + residual

    return cublas


def _half(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    """Accumulated in float16, chunk by chunk of 32 products."""
    import torch

    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float16, device=a.device)
    for k in range(0, a.shape[-1], 32):
        total += (a[..., k : k + 32].float() @ b[..., k : k + 32, :].float()).half()
    product = total.to(a.dtype)
    one = torch.eye(product.shape[-1], dtype=a.dtype, device=a.device)
    return reference(product, one.expand(*product.shape[:-2], *one.shape), *rest)


def _tf32(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    """Operands cut to TF32's ten bits of mantissa, those of 16 bits to four."""
    import torch

    def cut(t: Tensor) -> Tensor:
        mask = ~0x1FFF if t.itemsize > 2 else ~0x7FFFF
        return (t.float().view(torch.int32) & mask).view(torch.float32).to(t.dtype)

    return reference(cut(a.contiguous()), cut(b.contiguous()), *rest)


def _last_row_missing(*args: Any) -> Tensor:
    out = reference(*args)
    out[..., -1:, :] = 0
    return out


def _tail_dropped(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    k = a.shape[-1] // 8 * 8
    return reference(a[..., :k], b[..., :k, :], *rest)


def _changed(**changes: Any) -> Callable[..., Tensor]:
    """The reference with other values for some of its parameters."""

    def run(*args: Any) -> Tensor:
        names = ("a", "b", "c", "bias", "gate", "residual", "alpha", "beta", "activation", "to", "precision")
        return reference(**{**dict(zip(names, args, strict=True)), **changes})

    return run


def _first_term(*args: Any) -> Tensor:
    """A split mode without its small terms."""
    a, b, *rest = args
    return reference(cut(a), cut(b), *rest) if a.dtype == _float32() and rest[-1] != "ieee" else reference(*args)


def _short(*args: Any) -> Tensor:
    """Operands in bfloat16 where TF32 is asked for, and sums of both in it."""
    a, b, *rest = args
    wide = a.dtype
    return reference(a.bfloat16().to(wide), b.bfloat16().to(wide), *rest).bfloat16().to(wide) if rest[-1] == "tf32" else reference(*args)


def _late_activation(*args: Any) -> Tensor:
    return activate(_changed(activation="none")(*args), args[8])


def _reads_c(a: Tensor, b: Tensor, c: Tensor | None, *rest: Any) -> Tensor:
    out = reference(a, b, c, *rest)
    return out if c is None else out + 0 * c


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=cases(ACTIVATIONS, PRECISIONS),
    swept=Sizes(swept, {**PRODUCT, "order": (1, 2)}, models={"N": "inner", "K": "hidden"}, ways=("order",), dtypes=("f32", "bf16"), independent="M"),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    judging=Judging(rows=rows, alone=alone),
    grad=Grad(wrt=("a", "b", "c", "bias", "gate", "residual"), saves=("a", "b", "c", "bias", "gate", "residual"), backward=backward),
    timed=Timed(bucket=bucket),
    peers={"torch": _torch, "cublaslt-best": best},
    wrong={
        "beta ignored": _changed(beta=1.0),
        "alpha ignored": _changed(alpha=1.0),
        "K tail dropped": _tail_dropped,
        "accumulated in float16": _half,
        "c read when beta is 0": _reads_c,
        "operands in TF32": _tf32,
        "split, small terms dropped": _first_term,
        "bfloat16 where TF32 is asked for": _short,
        "last row missing": _last_row_missing,
        "bias ignored": _changed(bias=None),
        "activation last": _late_activation,
        "gate ignored": _changed(gate=None),
        "residual ignored": _changed(residual=None),
    },
)
