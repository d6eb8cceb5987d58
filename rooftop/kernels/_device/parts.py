"""The sum of the parts that a product split along K leaves, in order, with the epilogue of the product."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.kernels._device.activations import gelu, gelu_tanh, silu


@triton.jit
def add_parts(parts, out, size, M, N, ldo, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr, SPLITS: tl.constexpr, ACT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = act(alpha Σ parts + beta c + bias) · gate + residual over [M, N]; parts: float32 [SPLITS, size] with size = M · N."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    row, column = at // N, at % N
    x = tl.load(parts + at, mask=inside, other=0.0)
    for s in tl.static_range(1, SPLITS):
        x += tl.load(parts + s * size.to(tl.int64) + at, mask=inside, other=0.0)
    x *= alpha
    if c is not None:
        x += beta * tl.load(c + row * ldc + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if ACT == "relu":
        x = tl.maximum(x, 0.0)
    elif ACT == "silu":
        x = silu(x)
    elif ACT == "gelu":
        x = gelu(x)
    elif ACT == "gelu_tanh":
        x = gelu_tanh(x)
    if gate is not None:
        x *= tl.load(gate + row * ldg + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        x += tl.load(residual + row * ldr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * ldo + column, x.to(out.dtype.element_ty), mask=inside)
