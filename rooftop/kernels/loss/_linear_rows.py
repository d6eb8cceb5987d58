"""One row of logits in the launches of linear_cross_entropy, in Triton: read, its statistics, its loss, its gradient.

Logits are x · wᵀ as rounded by the product; bias, `factor` (None: 1) and soft cap are applied when they are read. ENTROPY: the moment, the sum
of exp(d) · d with d = logit - shift, is summed too."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.kernels.loss._logits import EXACT, SHORT, capped, exp, raised, scaled

# The identity of the maximum: with -inf, -inf - -inf would be NaN where only a part of a row is -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)
INF = tl.constexpr(float("inf"))


@triton.jit
def _write(z, at, last, v, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    if WHOLE:
        tl.store(z + at, v.to(z.dtype.element_ty))
    else:
        tl.store(z + at, v.to(z.dtype.element_ty), at < last)


@triton.jit
def _logits(z, bias, at, last, factor, cap, CAP: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of one row in float32; -inf past `last`. WHOLE: none are past it."""
    if WHOLE:
        v = tl.load(z + at).to(tl.float32)
        if bias is not None:
            v += tl.load(bias + at).to(tl.float32)
    else:
        v = tl.load(z + at, at < last, other=0).to(tl.float32)
        if bias is not None:
            v += tl.load(bias + at, at < last, other=0).to(tl.float32)
    if factor is not None:
        v = scaled(v, factor)
    if CAP == EXACT:
        v = capped(v, cap)
    if CAP == SHORT:
        v = cap - cap * libdevice.fast_dividef(2.0, raised(v, cap))
    return v if WHOLE else tl.where(at < last, v, -INF)


@triton.jit
def _moved(moment, s, d):  # type: ignore[no-untyped-def]
    """The moment about a shift that is -d higher; `s`: the sum about the old one. Where exp(d) is 0, so is the product."""
    return (moment + tl.maximum(d, -1e30) * s) * exp(d)


@triton.jit
def _moment(d):  # type: ignore[no-untyped-def]
    """exp(d) · d; 0 where exp(d) is, at d = -inf too."""
    e = exp(d)
    return tl.where(e == 0, 0.0, e * d)


@triton.jit
def _fold(  # type: ignore[no-untyped-def]
    m, s, total, moment, z, bias, now, last, factor, cap, SMOOTH: tl.constexpr, CAP: tl.constexpr, ENTROPY: tl.constexpr,
    WHOLE: tl.constexpr, COLUMNS: tl.constexpr
):
    """Online softmax: adds 4 · COLUMNS logits from column `now` on to maximum, sum, total and moment of each position, with 1.25
    exponentials a logit."""
    at = now + tl.arange(0, COLUMNS)
    a = _logits(z, bias, at, last, factor, cap, CAP, WHOLE)
    b = _logits(z, bias, at + COLUMNS, last, factor, cap, CAP, WHOLE)
    c = _logits(z, bias, at + 2 * COLUMNS, last, factor, cap, CAP, WHOLE)
    d = _logits(z, bias, at + 3 * COLUMNS, last, factor, cap, CAP, WHOLE)
    most = tl.maximum(m, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)))
    if ENTROPY:
        moment = _moved(moment, s, m - most) + ((_moment(a - most) + _moment(b - most)) + (_moment(c - most) + _moment(d - most)))
    s = s * exp(m - most) + ((exp(a - most) + exp(b - most)) + (exp(c - most) + exp(d - most)))
    if SMOOTH:
        if WHOLE:
            total += (a + b) + (c + d)
        else:
            total += tl.where(at < last, a, 0) + tl.where(at + COLUMNS < last, b, 0)
            total += tl.where(at + 2 * COLUMNS < last, c, 0) + tl.where(at + 3 * COLUMNS < last, d, 0)
    return most, s, total, moment


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    z, bias, columns, factor, cap, SMOOTH: tl.constexpr, CAP: tl.constexpr, ENTROPY: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr
):
    """Shift, sum, total and moment over `columns` logits of one row."""
    m = tl.full((COLUMNS,), LOWEST, tl.float32)
    s = tl.zeros((COLUMNS,), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    moment = tl.zeros((COLUMNS,), tl.float32)
    whole = columns // (4 * COLUMNS)
    for k in tl.range(0, whole, num_stages=STAGES):
        m, s, total, moment = _fold(
            m, s, total, moment, z, bias, k * (4 * COLUMNS), columns, factor, cap, SMOOTH, CAP, ENTROPY, True, COLUMNS
        )
    if whole * (4 * COLUMNS) < columns:
        m, s, total, moment = _fold(
            m, s, total, moment, z, bias, whole * (4 * COLUMNS), columns, factor, cap, SMOOTH, CAP, ENTROPY, False, COLUMNS
        )
    most = tl.max(m, 0)
    if ENTROPY:
        moment = _moved(moment, s, m - most)
    return most, tl.sum(s * exp(m - most), 0), tl.sum(total, 0), tl.sum(moment, 0)


@triton.jit
def _picked(z, bias, hit, there, factor, cap, CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The target's logit, 0 where it is not in this chunk."""
    v = tl.load(z + hit, there, other=0).to(tl.float32)
    if bias is not None:
        v += tl.load(bias + hit, there, other=0).to(tl.float32)
    if factor is not None:
        v = scaled(v, factor)
    if CAP == EXACT:
        v = capped(v, cap)
    if CAP == SHORT:
        v = cap - cap * libdevice.fast_dividef(2.0, raised(v, cap))
    return tl.where(there, v, 0)


@triton.jit
def _loss(most, sum_, picked, total, classes, smoothing, scale, SMOOTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Differences of logits first: lse is rounded at their magnitude."""
    above = tl.log(sum_)
    off = most - picked
    if SMOOTH:
        off = (1 - smoothing) * off + smoothing * (most - tl.div_rn(total, classes))
    lse = most + above
    return above + off + scale * lse * lse


@triton.jit
def _slopes(  # type: ignore[no-untyped-def]
    z, bias, at, last, hit, most, each, evenly, smoothing, g, factor, cap, CAP: tl.constexpr, ENTROPY: tl.constexpr = False, level=0.0,
    share=0.0, WHOLE: tl.constexpr = False
):
    """d loss / d (x · wᵀ) of one row's logits at `at`. `each`: the factor of the exponentials; `evenly`: the smoothing term of each class;
    `hit`: the target's column; `g`: the row's share of the loss. ENTROPY: `level` and `share` as `entropy_terms` gives them. WHOLE: none of
    the logits are past `last`."""
    if WHOLE:
        v = tl.load(z + at).to(tl.float32)
        if bias is not None:
            v += tl.load(bias + at).to(tl.float32)
    else:
        v = tl.load(z + at, at < last, other=0).to(tl.float32)
        if bias is not None:
            v += tl.load(bias + at, at < last, other=0).to(tl.float32)
    if factor is not None:
        v = scaled(v, factor)
        g *= factor
        share *= factor
    if CAP == EXACT:
        v = capped(v, cap)
        u = v / cap
        slope = 1 - u * u
    if CAP == SHORT:
        part = libdevice.fast_dividef(2.0, raised(v, cap))  # tanh is 1 - part
        v = cap - cap * part
        slope = part * (2 - part)
    d = exp(v - most) * each - evenly
    d = tl.where(at == hit, d - (1 - smoothing), d)
    if ENTROPY:
        e = exp(v - most)
        d = d * g - tl.where(e == 0, 0.0, e * (v - most + level)) * share
        return d * slope if CAP != 0 else d
    else:  # noqa: RET505
        if CAP != 0:
            d *= slope
        return d * g


@triton.jit
def _replace(  # type: ignore[no-untyped-def]
    z, bias, at, last, hit, most, each, evenly, smoothing, g, factor, cap, CAP: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr
):
    """Replaces 4 · COLUMNS logits of one row, from `at` on, by their gradient."""
    a = _slopes(z, bias, at, last, hit, most, each, evenly, smoothing, g, factor, cap, CAP, WHOLE=WHOLE)
    b = _slopes(z, bias, at + COLUMNS, last, hit, most, each, evenly, smoothing, g, factor, cap, CAP, WHOLE=WHOLE)
    c = _slopes(z, bias, at + 2 * COLUMNS, last, hit, most, each, evenly, smoothing, g, factor, cap, CAP, WHOLE=WHOLE)
    d = _slopes(z, bias, at + 3 * COLUMNS, last, hit, most, each, evenly, smoothing, g, factor, cap, CAP, WHOLE=WHOLE)
    _write(z, at, last, a, WHOLE)
    _write(z, at + COLUMNS, last, b, WHOLE)
    _write(z, at + 2 * COLUMNS, last, c, WHOLE)
    _write(z, at + 3 * COLUMNS, last, d, WHOLE)


@triton.jit
def _replace_row(  # type: ignore[no-untyped-def]
    z, bias, columns, hit, most, each, evenly, smoothing, g, factor, cap, CAP: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    RAGGED: tl.constexpr
):
    """Replaces the logits of one row by their gradient. RAGGED: `columns` is no multiple of 16. A mask then differs within 16 bytes, and
    masked accesses are by elements, so only the last ones have one."""
    step = tl.arange(0, COLUMNS)
    if RAGGED:
        whole = columns // (4 * COLUMNS)
        for k in tl.range(0, whole, num_stages=STAGES):
            at = k * (4 * COLUMNS) + step
            _replace(z, bias, at, columns, hit, most, each, evenly, smoothing, g, factor, cap, CAP, COLUMNS, True)
        if whole * (4 * COLUMNS) < columns:
            at = whole * (4 * COLUMNS) + step
            _replace(z, bias, at, columns, hit, most, each, evenly, smoothing, g, factor, cap, CAP, COLUMNS, False)
    else:
        for k in tl.range(0, tl.cdiv(columns, 4 * COLUMNS), num_stages=STAGES):
            at = k * (4 * COLUMNS) + step
            _replace(z, bias, at, columns, hit, most, each, evenly, smoothing, g, factor, cap, CAP, COLUMNS, False)


@triton.jit
def entropy_terms(to, sum_, of):  # type: ignore[no-untyped-def]
    """(level, share) of the row with the state at `to`: with d = logit - shift, its entropy's gradient by the logit is -exp(d) · (d +
    level) · share. `of`: where the gradient of the loss is, which that of the entropy follows."""
    return tl.load(to + 4) - tl.log(sum_), tl.load(of + 1).to(tl.float32) / sum_
