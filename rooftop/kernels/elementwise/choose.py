"""Which kernels compute elementwise ops: Triton's where its accesses are vectors of 16 bytes, the CUDA C++ one that shifts vectors in registers elsewhere.
gelu__cuda_sm80 is the last rung of its ladder."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem

VECTOR = 16  # what Triton knows of a number: whether it is a multiple of 16


def _in_vectors(p: Problem) -> bool:
    """Whether every row of every tensor, and of the halves of a packed one, starts on a vector. One row without gaps may end within one."""
    metas = [m for _, m in p.tensors if m is not None]
    if any(m.align < VECTOR for m in metas):
        return False
    if metas[0].shape[0] == 1 and len({m.shape for m in metas}) == 1:
        return True
    return all(m.strides[0] % VECTOR == 0 and m.shape[1] % VECTOR == 0 for m in metas) and _packed_half(p) % VECTOR == 0


def _packed_half(p: Problem) -> int:
    """Columns of the halves of a packed tensor; 0 where there is none."""
    a = p.get("a")
    return a.shape[1] // 2 if a is not None and p.get("b") is None else 0


def _pointwise(op: str, p: Problem, named: str, *more: tuple[str, str]) -> Chosen | str:
    triton, rows = (f"{op}__triton", "every access is a vector"), (f"{op}__rows__cuda_sm80", "rows start within vectors, which are shifted in registers")
    return in_order(p, named, () if named else (triton, rows, *more) if _in_vectors(p) else (rows, triton, *more))


def add(p: Problem, named: str = "") -> Chosen | str:
    """Of one dimension: only the addresses decide."""
    aligned = all(m.align >= VECTOR for _, m in p.tensors if m is not None)
    triton, rows = ("add__triton", "every access is a vector"), ("add__rows__cuda_sm80", "tensors start within vectors, which are shifted in registers")
    return in_order(p, named, (triton, rows) if aligned else (rows, triton))


def gelu(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("gelu", p, named, ("gelu__cuda_sm80", "a pack a thread"))


def gelu_bwd(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("gelu_bwd", p, named)


def silu(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("silu", p, named)


def silu_bwd(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("silu_bwd", p, named)


def square(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("square", p, named)


def square_bwd(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("square_bwd", p, named)


def geglu(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("geglu", p, named)


def geglu_bwd(p: Problem, named: str = "") -> Chosen | str:
    return _pointwise("geglu_bwd", p, named)


def swiglu(p: Problem, named: str = "") -> Chosen | str:
    if p.extra:
        return in_order(p, named, (("swiglu__clamped__triton", "the only one that clamps"),))
    return _pointwise("swiglu", p, named)


def swiglu_bwd(p: Problem, named: str = "") -> Chosen | str:
    if p.extra:
        return in_order(p, named, (("swiglu_bwd__clamped__triton", "the only one that clamps"),))
    return _pointwise("swiglu_bwd", p, named)
