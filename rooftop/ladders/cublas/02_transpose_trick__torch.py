"""out = a b by cuBLAS on rows as they lie: outᵀ = bᵀ aᵀ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.ops._cublas import Operand, gemm

IDEA = (
    "A row-major matrix is its transpose in column-major order. So cuBLAS computes the transpose of the result, with b first and a second; nothing is copied, "
    "and a column-major operand is passed as transposed."
)
PREDICT = {"speedup": 1.3}
LIMIT = "cuBLAS's own heuristic choice of kernel: it knows the sizes but measures no times."


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
