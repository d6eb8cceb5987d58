"""The gradient of float32 logits in a slice of the classes, in Triton: like `slice_gradient` of linear_loss.py, with exponentials accurate to float32's last
digits. exp(v) computed as 2^(v · log2 e) has an error of v times float32's rounding, which 16-bit results do not show; classes of small probability have a
large |v|."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.kernels._device.logits import EXACT, capped


@triton.jit
def exact_gradient(z, bias, target, state, dloss, divisor, zo, zs, gs, columns, blocks, first, start, classes, ignore, smoothing, scale, cap,
                   CAP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Replaces BLOCK logits of one row in a slice of the classes by their gradient. `gs`: stride of dloss, 0 if there is one for all."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    z += zo + row * zs
    t = tl.load(target + row)
    live = t != ignore
    last = tl.where(live, columns, 0)  # nothing is read of an ignored row
    v = tl.load(z + at, at < last, other=0)
    if bias is not None:
        v += tl.load(bias + first + at, at < last, other=0).to(tl.float32)
    slope = tl.full((BLOCK,), 1.0, tl.float32)
    if CAP == EXACT:
        v = capped(v, cap)
        slope = 1 - (v / cap) * (v / cap)
    most = tl.load(state + 4 * row)
    sum_ = tl.load(state + 4 * row + 1)
    each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
    g = tl.where((t >= 0) & (t < classes), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
    d = libdevice.exp(v - most) * each - smoothing / classes
    d = tl.where(at == t - start - first, d - (1 - smoothing), d) * slope * g
    tl.store(z + at, tl.where(live, d, 0), at < columns)
