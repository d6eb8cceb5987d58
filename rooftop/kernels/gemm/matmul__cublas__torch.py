"""out = act(alpha · a b + beta · c + bias) · gate + residual by cuBLAS, through torch. Contract: rooftop/ops/matmul.py

It is chosen only for float32 in batches of more than 65535 matrices and 2^25 multiply-adds, where the only other kernel is the one in
Triton; `rooftop.explain` then names it. It counts for no goal: stated speeds are those of our own kernels, by name.
`implementation="cublas__torch"` selects it explicitly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem


def supports(p: Problem) -> str | None:
    if p.option("precision") not in ("ieee", "tf32"):
        return f"cuBLAS through torch has no {p.option('precision')}"
    if p["a"].dtype == "f32":
        return None
    if p.option("to"):
        return "gives the dtype of its operands"
    if p.option("activation") != "none" or p.get("gate") is not None or p.get("residual") is not None:
        return "would round to 16 bits before what follows the product"
    if p.get("bias") is not None and p.get("c") is not None and p.option("beta") != 0:
        return "would round to 16 bits between the addend and the bias"
    for name in ("c", "bias"):
        meta = p.get(name)
        if meta is not None and meta.dtype != p["a"].dtype:
            return f"adds tensors of the operands' dtype; {name} is {meta.dtype}"
    return None


def for_any_rows(p: Problem) -> str:
    return "cuBLAS chooses the order of sums by the number of rows"


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    import torch

    flags, wanted = torch.backends.cuda.matmul, inputs["precision"] == "tf32"
    before = flags.allow_tf32
    if before != wanted:
        flags.allow_tf32 = wanted
    try:
        _product(inputs, outputs["out"])
    finally:
        if before != wanted:
            flags.allow_tf32 = before


def _product(inputs: Mapping[str, Any], out: Any) -> None:
    import torch

    a, b, bias, alpha, beta = (inputs[n] for n in ("a", "b", "bias", "alpha", "beta"))
    addend = inputs["c"] if beta != 0 else None
    if addend is None and bias is not None:
        addend, beta, bias = bias.expand(out.shape), 1.0, None
    product = torch.addmm if a.dim() == 2 else torch.baddbmm
    # with beta 0 they are not read
    product(out if addend is None else addend, a, b, alpha=alpha, beta=0.0 if addend is None else beta, out=out)
    if bias is not None:
        out.add_(bias)
    _activate(out, inputs["activation"])
    if inputs["gate"] is not None:
        out.mul_(inputs["gate"])
    if inputs["residual"] is not None:
        out.add_(inputs["residual"])


def _activate(x: Any, activation: str) -> None:
    import torch

    if activation == "relu":
        x.relu_()
    elif activation == "silu":
        torch.nn.functional.silu(x, inplace=True)
    elif activation != "none":
        x.copy_(torch.nn.functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none"))
