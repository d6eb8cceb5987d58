"""out = a b by cuBLAS as its manual reads: matrices in columns, so rows are first made columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.ops._cublas import Operand, gemm

IDEA = (
    "cuBLAS is column-major. For row-major matrices the obvious way is to copy a and b to column-major, multiply, and copy the result back to row-major."
)
PREDICT = {}
LIMIT = "Three transposes in addition to the product: at 4096 cubed 192 MiB of traffic for 96 MiB of matrices, 50 µs or more in addition to 190."


def supports(p: Problem) -> str | None:
    a, out = p["a"], p["out"]
    if len(a.shape) != 2 or p.option("precision") != "ieee" or out.dtype != a.dtype:
        return "this ladder takes one product with a result of the operands' dtype"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this rung multiplies and does nothing after"
    if out.numel * a.shape[1] == 0:
        return "there is nothing to compute"
    return None


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    a, b, out = inputs["a"], inputs["b"], outputs["out"]
    (m, k), n = a.shape, b.shape[1]
    x, y, z = a.t().contiguous(), b.t().contiguous(), out.new_empty(n, m)  # the memory of the transpose in rows is the matrix in columns
    gemm(Operand(x, m, k, m), Operand(y, k, n, k), Operand(z, m, n, m))
    out.copy_(z.t())
