"""Which kernels compute elementwise ops that have several: Triton's, whose tiles follow the layout. The CUDA C++ ones are their ladders'
last rungs, and take what Triton's index arithmetic does not."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem


def gelu(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, (("gelu__triton", "any layout"), ("gelu__cuda_sm80", "vectors of 16 bytes")))


def swiglu(p: Problem, named: str = "") -> Chosen | str:
    if p.extra:
        return in_order(p, named, (("swiglu__clamped__triton", "the only one that clamps"),))
    return in_order(p, named, (("swiglu__triton", "any layout"), ("swiglu__cuda_sm80", "vectors of 16 bytes")))
