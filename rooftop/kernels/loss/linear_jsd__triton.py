"""Generalised Jensen-Shannon divergence between the logits x · weightᵀ and a teacher's, and its gradients. Contract:
rooftop/ops/linear_jsd.py

As linear_cross_entropy by tokens: two products compute a chunk of the student's and of the teacher's logits, one Triton pass reads both
rows for their normalisers, again for the loss, and overwrites the student's logits with the gradient, then dX and dW += . Four products.
With several chunks, the student's logits are stored in the memory of dW, which is written at the end, and dW is summed in float32: dX + 4
dW at most, or dX + 3 dW + 512 MiB if dW is small. Without gradients: two chunks of 256 MiB.
H200, 8192 x 4096 x 128256 bf16, teacher as wide: predicted 49.6 ms of products, two chunks of 4096 tokens, 5 ms of passes (14 GiB, and
eight special functions a class and token) and 2.2 ms of sums of dW, 1.15x; measured 54.4 ms at beta 0, 59.3 ms at beta 0.5, 4072 MiB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.core.spec import Launch, Meta, Problem, Step, View
from rooftop.kernels.loss import _linear_plan as plan
from rooftop.kernels.loss._logits import exp as short_exp

LOWEST = tl.constexpr(-3.4028234663852886e38)
FORWARD = tl.constexpr(0)  # KL(teacher || student), beta 0
REVERSE = tl.constexpr(1)  # KL(student || teacher), beta 1
MIXED = tl.constexpr(2)


@triton.jit(do_not_specialize=["R"])
def _divisor(mask, divisor, R, MEAN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number of tokens that count, or 1."""
    if MEAN:
        found = tl.zeros((BLOCK,), tl.float32)
        for k in range(tl.cdiv(R, BLOCK)):
            row = k * BLOCK + tl.arange(0, BLOCK)
            live = row < R
            if mask is not None:
                live = live & (tl.load(mask + row, live, other=0) != 0)
            found += live.to(tl.float32)
        tl.store(divisor, tl.sum(found, 0))
    else:
        tl.store(divisor, 1.0)


@triton.jit
def _exp(v, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """WIDE: to float32's last digits, which float32 gradients show."""
    return libdevice.exp(v) if WIDE else short_exp(v)


@triton.jit
def _log(v, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    return libdevice.log(v) if WIDE else tl.log(v)


@triton.jit
def _shifted(z, at, columns, cool, most):  # type: ignore[no-untyped-def]
    """Logits less the row's largest, divided by the temperature; -1e30 past the row, whose probability is 0. Less the logarithm of the
    row's sum they are
    log-probabilities: lse as one number would be rounded at the magnitude of the logits."""
    v = tl.load(z + at, at < columns, other=0).to(tl.float32)
    # the difference first: v * cool - most would be fused, and not 0 for the largest
    return tl.where(at < columns, (v - most) * cool, -1e30)


@triton.jit
def _against_mixture(own, other, share, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """log p - log m, with m = share · p + (1 - share) · q, from log p and log q: only their difference is needed, and no exponential
    overflows."""
    more = other - own
    if WIDE:  # log(1 + x) of a small x: if p and q are nearly equal, tl.log of their mixture loses all digits
        return -(tl.maximum(more, 0) + libdevice.log1p(tl.where(more > 0, share, 1 - share) * libdevice.expm1(-tl.abs(more))))
    less = _exp(-tl.abs(more), WIDE)
    return -(tl.maximum(more, 0) + tl.log(tl.where(more > 0, share * less + (1 - share), share + (1 - share) * less)))


@triton.jit
def _rows(z, teacher, mask, losses, divisor, zs, ts, columns, row0, cool, beta,
          MODE: tl.constexpr, WRITE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The loss of one token and, with WRITE, its gradient, which replaces the student's logits. `cool`: 1 / temperature."""
    row = row0 + tl.program_id(0).to(tl.int64)
    z += tl.program_id(0).to(tl.int64) * zs
    teacher += tl.program_id(0).to(tl.int64) * ts
    step = tl.arange(0, COLUMNS)
    pieces = tl.cdiv(columns, COLUMNS)
    WIDE: tl.constexpr = z.dtype.element_ty == tl.float32
    live = True
    if mask is not None:
        live = tl.load(mask + row) != 0
    if live:
        m, s = tl.full((COLUMNS,), LOWEST, tl.float32), tl.zeros((COLUMNS,), tl.float32)
        n, t = tl.full((COLUMNS,), LOWEST, tl.float32), tl.zeros((COLUMNS,), tl.float32)
        for k in tl.range(0, pieces):
            at = k * COLUMNS + step
            a = tl.load(z + at, at < columns, other=-float("inf")).to(tl.float32)
            b = tl.load(teacher + at, at < columns, other=-float("inf")).to(tl.float32)
            more, most = tl.maximum(m, a), tl.maximum(n, b)
            s = s * _exp((m - more) * cool, WIDE) + _exp((a - more) * cool, WIDE)
            t = t * _exp((n - most) * cool, WIDE) + _exp((b - most) * cool, WIDE)
            m, n = more, most
        more, most = tl.max(m, 0), tl.max(n, 0)
        s, t = tl.sum(s * _exp((m - more) * cool, WIDE), 0), tl.sum(t * _exp((n - most) * cool, WIDE), 0)
        above, over = _log(s, WIDE), _log(t, WIDE)
        g = cool / tl.load(divisor)
        first, second = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
        tl.debug_barrier()  # all threads have read the row for its normaliser before any thread writes
        for k in tl.range(0, pieces):
            at = k * COLUMNS + step
            a, b = _shifted(z, at, columns, cool, more), _shifted(teacher, at, columns, cool, most)
            own, other = a - above, b - over
            p, q = _exp(a, WIDE) / s, _exp(b, WIDE) / t  # with fewer roundings than those of own and other
            if MODE == FORWARD:
                first += q * (other - own)
                if WRITE:
                    tl.store(z + at, ((p - q) * g).to(z.dtype.element_ty), at < columns)
            if MODE == REVERSE:
                second += p * (own - other)
            if MODE == MIXED:
                first += q * _against_mixture(other, own, beta, WIDE)
                second += p * _against_mixture(own, other, 1 - beta, WIDE)
        found = tl.sum(second, 0)  # KL(student || mixture), or || teacher
        if MODE == FORWARD:
            loss = tl.sum(first, 0)
        if MODE == REVERSE:
            loss = found
        if MODE == MIXED:
            loss = beta * tl.sum(first, 0) + (1 - beta) * found
        tl.store(losses + row, loss)
        if WRITE and MODE != FORWARD:
            for k in tl.range(0, pieces):
                at = k * COLUMNS + step
                a = _shifted(z, at, columns, cool, more)
                own, other = a - above, _shifted(teacher, at, columns, cool, most) - over
                off = own - other if MODE == REVERSE else _against_mixture(own, other, 1 - beta, WIDE)
                d = _exp(a, WIDE) / s * (off - found) * g
                if MODE == MIXED:
                    d *= 1 - beta
                tl.store(z + at, d.to(z.dtype.element_ty), at < columns)
    else:
        tl.store(losses + row, 0.0)
        if WRITE:
            for k in tl.range(0, pieces):
                at = k * COLUMNS + step
                tl.store(z + at, tl.zeros((COLUMNS,), z.dtype.element_ty), at < columns)


@dataclass(frozen=True)
class Config:
    """`rows` tokens of a chunk; `inside`: the student's logits are in the memory of dW; `warps` of a program."""

    rows: int
    inside: bool = False
    warps: int = 16


def supports(p: Problem) -> str | None:
    rows, _, columns = plan.sizes(p)
    if not rows:
        return "there is nothing to compute"
    if columns >= 2**31 - 2**20 or rows >= 2**31:
        return f"takes fewer than 2**31 - 2**20 classes and 2**31 tokens; given {columns} and {rows}"
    return None


def choose(p: Problem) -> Config:
    rows, width, columns = plan.sizes(p)
    size, stride, weight = p["x"].itemsize, plan.padded(columns), p.get("unit_weight")
    aside = plan.SPARE // (stride * size)
    if not plan.wanted(p) or weight is None or aside >= rows:
        return Config(plan.evenly(rows, max(64, plan.in_tiles(aside))))
    inside = columns * width // stride
    return Config(plan.evenly(rows, max(64, plan.in_tiles(max(inside, aside)))), size == 2 and inside >= max(64, aside))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, columns = plan.sizes(p)
    chunk = Meta((min(rows, config.rows), plan.padded(columns)), p["x"].dtype)
    found = {"losses": Meta((rows,), "f32"), "divisor": Meta((), "f32"), "teacher": chunk}
    if not config.inside:
        found["student"] = chunk
    if plan.summed_aside(p, config):
        found["weight_sum"] = Meta((columns, width), "f32")
    return found


def steps(p: Problem, config: Config) -> Sequence[Step]:
    rows, width, columns = plan.sizes(p)
    mask = "mask" if p.get("mask") is not None else None
    beta, stride = float(p.option("beta")), plan.padded(columns)
    piece, warps = plan.row_shape(columns, p["x"].itemsize, config.warps)
    memory, weight = "unit_weight" if config.inside else "student", plan.matrix(p, "weight")
    sums = plan.dense("weight_sum" if plan.summed_aside(p, config) else "unit_weight", columns, width)
    block = 512 if rows <= 512 else 8192
    counted = {"mask": mask, "divisor": "divisor", "R": rows, "MEAN": p.option("reduction") == "mean", "BLOCK": block}
    args = {
        "z": memory, "teacher": "teacher", "mask": mask, "losses": "losses", "divisor": "divisor", "zs": stride, "ts": stride,
        "columns": columns
    }
    args |= {"cool": 1 / float(p.option("temperature")), "beta": beta}
    args |= {"MODE": int(beta) if beta in (0, 1) else MIXED.value, "WRITE": plan.wanted(p), "COLUMNS": piece}
    found: list[Step] = [Launch(_divisor, (1,), counted, max(4, block // 256))]
    for first in range(0, rows, config.rows):
        height = min(config.rows, rows - first)
        chunk, teacher = (View(name, (height, columns), (stride, 1)) for name in (memory, "teacher"))
        x = plan.matrix(p, "x", first, height)
        found += [
            plan.product(chunk, x, plan.turned(weight)),
            plan.product(teacher, plan.matrix(p, "teacher_x", first, height), plan.turned(plan.matrix(p, "teacher_weight")))
        ]
        found.append(Launch(_rows, (height,), {**args, "row0": first}, warps))
        if p.get("unit_x") is not None:
            found.append(plan.product(plan.dense("unit_x", height, width, first), chunk, weight))
        if p.get("unit_weight") is not None:
            found.append(plan.product(sums, plan.turned(chunk), x, add=first > 0))
    if plan.summed_aside(p, config):
        found.append(plan.copied(plan.dense("unit_weight", columns, width), sums))
    return [*found, plan.total(p, "losses")]
