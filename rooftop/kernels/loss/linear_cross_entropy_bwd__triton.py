"""The gradient of linear and cross-entropy. Contract: rooftop/ops/linear_cross_entropy.py

If the forward has computed the gradients (memory="fast"), they are multiplied by dloss in place, and not touched if dloss is 1.

Else the logits are recomputed, all tokens by a slice of the classes at a time, which with the forward's is four products, 1.33x of three.
By classes, because
lse is known: a slice of dW is then one product over all tokens, rounded once, and never summed over slices. Divided by tokens, dW would
have to be summed in float32, which alone needs 2 x dW. The slices add to dX in float32: 2 x dX. A slice's logits are stored in the part of
dW that later slices
will fill: the slice from class a to a + v needs N·v elements of the (V - a - v)·H behind it, so each is H / (N + H) of the rest, and only
the last uses 60 MiB of its own. So slices are long although the extra memory is small: nine instead of 31 at 8192 x 4096 x 128256, 37
instead of 256 at 32768 x 4096 x 262144, where dX in float32, 512 MiB, would otherwise be read and written 256 times. Peak: dW + 3 dX + 64
MiB. Predicted for an H200, 8192 x 4096 x 128256 bf16,
with the forward: 49.6 ms of products, 2 ms of passes over logits and 0.5 ms of dX, 1.40x three products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.core.spec import Launch, Meta, Problem, Step, View
from rooftop.kernels.loss import _linear_plan as plan
from rooftop.kernels.loss._linear_passes import slice_gradient, times_loss
from rooftop.kernels.loss._linear_rows import entropy_terms
from rooftop.kernels.loss._logits import EXACT, capped, scaled


# Of float32 logits, like `slice_gradient` of _linear_passes.py with exponentials accurate to float32's last digits. exp(v) computed as 2^(v
# · log2 e) has an error of v times float32's rounding, which 16-bit results do not show; classes of small probability have a large |v|.
@triton.jit
def exact_gradient(z, bias, target, state, dloss, divisor, zo, zs, gs, columns, blocks, first, start, classes, ignore, smoothing, scale,
                   cap,
                   CAP: tl.constexpr, BLOCK: tl.constexpr, ENTROPY: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
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
    if factor is not None:
        v = scaled(v, factor)
    slope = tl.full((BLOCK,), 1.0, tl.float32)
    if CAP == EXACT:
        v = capped(v, cap)
        slope = 1 - (v / cap) * (v / cap)
    to = state + (5 if ENTROPY else 4) * row
    most = tl.load(to)
    sum_ = tl.load(to + 1)
    each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
    g = tl.where((t >= 0) & (t < classes), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
    d = libdevice.exp(v - most) * each - smoothing / classes
    if factor is not None:
        slope *= factor
    if ENTROPY:
        level, share = entropy_terms(to, sum_, dloss + row * gs)
        e = libdevice.exp(v - most)
        d = tl.where(at == t - start - first, d - (1 - smoothing), d) * g - tl.where(e == 0, 0.0, e * (v - most + level)) * share
        d *= slope
    else:
        d = tl.where(at == t - start - first, d - (1 - smoothing), d) * slope * g
    tl.store(z + at, tl.where(live, d, 0), at < columns)


UNITS = (("dx", "unit_x"), ("dweight", "unit_weight"), ("dbias", "unit_bias"))


@dataclass(frozen=True)
class Config:
    """`columns`: classes of a slice whose logits have memory of their own. `inside`: slices may be in the memory of dW. `block`: elements
    of a program of the gradient, or of the multiplication."""

    columns: int
    inside: bool
    block: int


def _made(p: Problem) -> bool:
    """Whether the forward has computed the gradients."""
    return any(p.get(unit) is not None for _, unit in UNITS)


def supports(p: Problem) -> str | None:
    rows, width, columns = plan.sizes(p)
    if not rows or not width:
        return "there is nothing to compute"
    if _made(p):
        most = max(m.numel for out, _ in UNITS if (m := p.get(out)) is not None)
        return None if most < 2**42 else f"takes fewer than 2**42 numbers; given {most}"
    if columns >= 2**31 - 2**20 or rows >= 2**31 or rows * -(-columns // 2048) >= 2**31:
        return f"takes fewer than 2**31 - 2**20 classes, 2**31 tokens and 2**42 logits; given {columns} and {rows}"
    return None


def choose(p: Problem) -> Config:
    rows, _, columns = plan.sizes(p)
    if _made(p):
        return Config(0, False, 4096)
    weight, size = p.get("dweight"), p["x"].itemsize
    most = (plan.SMALL if p.option("memory") == "small" else plan.SPARE) // (rows * size)
    each = plan.in_waves(columns, most, rows, p.device.sms)
    return Config(each, weight is not None and weight.dtype == p["x"].dtype, min(2048, max(128, 1 << (each - 1).bit_length())))


def slices(p: Problem, config: Config) -> Iterator[tuple[int, int, int | None]]:
    """(first class, classes, element of dW at which the logits start, or None: they have memory of their own)."""
    rows, width, columns = plan.sizes(p)
    first = 0
    while first < columns:
        left = columns - first
        within = plan.in_tiles(left * width // (rows + width)) if config.inside else 0
        offset = (columns * width - rows * within) // 64 * 64
        if offset < (first + within) * width:  # rounding down leaves too little
            within -= 64
            offset = (columns * width - rows * within) // 64 * 64
        if left > config.columns and within > config.columns:
            yield first, within, offset
            first += within
        else:
            yield first, min(config.columns, left), None
            first += config.columns


def _summed_aside(p: Problem, config: Config) -> bool:
    """Whether dX is summed over slices, and not in its own memory."""
    x = p.get("dx")
    return x is not None and x.dtype != "f32" and len(list(slices(p, config))) > 1


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    if _made(p):
        return {}
    rows, width, _ = plan.sizes(p)
    found = {}
    longest = max((n for _, n, at in slices(p, config) if at is None), default=0)
    if longest:
        found["chunk"] = Meta((rows, plan.padded(longest)), p["x"].dtype)
    if _summed_aside(p, config):
        found["x_sum"] = Meta((rows, width), "f32")
    return found


def steps(p: Problem, config: Config) -> Sequence[Step]:
    return list(_multiplied(p, config) if _made(p) else _by_classes(p, config))


def _multiplied(p: Problem, config: Config) -> Iterator[Step]:
    for out, unit in UNITS:
        m = p.get(out)
        if m is not None:
            args = {"unit": unit, "dloss": "dloss", "out": out, "N": m.numel, "IN_PLACE": bool(p.option("inplace")), "BLOCK": config.block}
            yield Launch(times_loss, (-(-m.numel // config.block),), args, 4)


def _by_classes(p: Problem, config: Config) -> Iterator[Step]:
    rows, width, _ = plan.sizes(p)
    x_sum = "x_sum" if _summed_aside(p, config) else "dx"
    own = scratch(p, config).get("chunk")
    same = {**plan.numbers(p), **plan.entropy_of(p), "bias": plan.bias_of(p), "target": "target", "state": "state", "dloss": "dloss", "divisor": "divisor"}
    same |= {"gs": p["dloss"].strides[0] if p["dloss"].shape else 0, "classes": plan.classes(p), "start": int(p.option("start"))}
    same |= {"CAP": plan.cap_of(p), "BLOCK": config.block}
    for first, each, offset in slices(p, config):
        memory, stride, at = ("chunk", own.strides[0] if own else 0, 0) if offset is None else ("dweight", each, offset)
        chunk, weight = View(memory, (rows, each), (stride, 1), at), plan.matrix(p, "weight", first, each)
        yield plan.product(chunk, plan.matrix(p, "x"), plan.turned(weight))
        blocks = -(-each // config.block)
        args = {**same, "z": memory, "zo": at, "zs": stride, "columns": each, "blocks": blocks, "first": first}
        yield plan.taking(slice_gradient if p["x"].itemsize == 2 else exact_gradient, args, rows * blocks, max(1, config.block // 512))
        if p.get("dx") is not None:
            yield plan.product(plan.dense(x_sum, rows, width), chunk, weight, add=first > 0)
        if p.get("dweight") is not None:
            yield plan.product(plan.dense("dweight", each, width, first), plan.turned(chunk), plan.matrix(p, "x"))
        if p.get("dbias") is not None:
            yield plan.sums_of_columns(p, chunk, "dbias", first, False)
    if x_sum == "x_sum":
        yield plan.copied(plan.dense("dx", rows, width), plan.dense("x_sum", rows, width))
