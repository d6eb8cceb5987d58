"""A bf16 product with a transposed second matrix, in a house of its own: every backend has a kernel of it.

    c = a bᵀ"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.op import Op
from rooftop.core.spec import Input, Meta, Problem, Work, case

if TYPE_CHECKING:
    from torch import Tensor

SHAPES = {"tile": (64, 64, 64), "tiles": (128, 192, 256), "ragged": (100, 72, 136), "odd": (37, 50, 33), "one": (1, 1, 1)}


def reference(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.T


def outputs(a: Meta, b: Meta) -> dict[str, Meta]:
    return {"c": Meta((a.shape[0], b.shape[0]), a.dtype)}


def work(p: Problem) -> Work:
    return Work(p["a"].nbytes + p["b"].nbytes, p["c"].nbytes, {"tensor-bf16": float(p["c"].numel * p["a"].shape[1])})


OP = Op(
    reference, outputs=outputs, work=work, wrong={"a half": lambda a, b: (a.float() @ b.float().T * 0.5).to(a.dtype)},
    cases=[case(name, tags="edge bench", a=Input((m, k), "bf16"), b=Input((n, k), "bf16")) for name, (m, n, k) in SHAPES.items()],
)
