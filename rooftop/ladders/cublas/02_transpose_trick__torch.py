"""out = a b by cuBLAS on rows as they lie: outᵀ = bᵀ aᵀ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.blas import Operand, gemm

IDEA = (
    "A matrix in rows is its transpose in columns. So cuBLAS is asked for the transpose of the result, with b first and a second; nothing is copied, "
    "and an operand that lies in columns is named transposed."
)
PREDICT = {"speedup": 1.3}
LIMIT = "cuBLAS's own choice of kernel, which knows the sizes and not the clock."


def supports(p: Problem) -> str | None:
    a, out = p["a"], p["out"]
    if len(a.shape) != 2 or p.option("precision") != "ieee" or out.dtype != a.dtype:
        return "this ladder takes one product with a result of the operands' dtype"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this rung multiplies and does nothing after"
    if out.numel * a.shape[1] == 0:
        return "there is nothing to compute"
    return None


def _turned(x: Any) -> Operand:
    """The transpose of a torch matrix, in columns: the same memory."""
    rows, columns = x.shape
    if x.stride(1) == 1 or columns == 1:
        return Operand(x, columns, rows, max(x.stride(0), columns, 1))
    return Operand(x, rows, columns, max(x.stride(1), rows, 1), turned=True)


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    a, b, out = inputs["a"], inputs["b"], outputs["out"]
    m, n = out.shape
    gemm(_turned(b), _turned(a), Operand(out, n, m, max(out.stride(0), n)))
