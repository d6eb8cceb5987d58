"""The launches of the forward and the backward of linear_cross_entropy between their matrix products, in Triton.

Logits are in a chunk: some rows (tokens) by some columns (classes from `first` on), with row stride `zs`, from element `zo` of its memory
on. They are x · wᵀ as rounded by the product; bias, `factor` (None: 1) and soft cap are applied when they are read. `state` [N, 4] holds for
each token the shift (its largest logit so far), the sum of exp(logit - shift), the sum of the logits (for label smoothing) and the target's logit. Ignored
tokens are never read. ENTROPY: `state` [N, 5] holds last the sum of exp(d) · d with d = logit - shift, the moment, which `row_losses`
replaces by the entropy of the row's distribution; losses [N, 2] and their gradients are each a loss and an entropy."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.kernels.loss._logits import EXACT, SHORT, capped, exp, raised, scaled

# The identity of the maximum: with -inf, -inf - -inf would be NaN where only a part of a row is -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)
INF = tl.constexpr(float("inf"))


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
    share=0.0
):
    """d loss / d (x · wᵀ) of one row's logits at `at`. `each`: the factor of the exponentials; `evenly`: the smoothing term of each class;
    `hit`: the target's column; `g`: the row's share of the loss. ENTROPY: `level` and `share` as `entropy_terms` gives them."""
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
def entropy_terms(to, sum_, of):  # type: ignore[no-untyped-def]
    """(level, share) of the row with the state at `to`: with d = logit - shift, its entropy's gradient by the logit is -exp(d) · (d +
    level) · share. `of`: where the gradient of the loss is, which that of the entropy follows."""
    return tl.load(to + 4) - tl.log(sum_), tl.load(of + 1).to(tl.float32) / sum_


@triton.jit(do_not_specialize=["R"])
def count_live(target, divisor, R, ignore, MEAN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The divisor of the losses: the number of tokens that are not ignored, or 1."""
    if MEAN:
        found = tl.zeros((BLOCK,), tl.float32)
        for k in range(tl.cdiv(R, BLOCK)):
            row = k * BLOCK + tl.arange(0, BLOCK)
            found += (tl.load(target + row, row < R, other=ignore) != ignore).to(tl.float32)
        tl.store(divisor, tl.sum(found, 0))
    else:
        tl.store(divisor, 1.0)


@triton.jit
def slice_statistics(z, bias, target, state, zo, zs, columns, first, start, ignore, cap,
                     FIRST: tl.constexpr, SMOOTH: tl.constexpr, CAP: tl.constexpr, COLUMNS: tl.constexpr,
                     STAGES: tl.constexpr, ENTROPY: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
    """Adds one row's logits of a slice of the classes, those of the weight from `first` on, to its state. The weight's class 0 is class
    `start` of the vocabulary. FIRST: the first slice."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.load(target + row)
    if t != ignore:
        z += zo + row * zs
        if bias is not None:
            bias += first
        most, sum_, total, moment = _statistics(z, bias, columns, factor, cap, SMOOTH, CAP, ENTROPY, COLUMNS, STAGES)
        hit = t - start - first
        there = (hit >= 0) & (hit < columns)
        picked = _picked(z, bias, hit, there, factor, cap, CAP)
        to = state + (5 if ENTROPY else 4) * row
        if not FIRST:
            before = tl.load(to)
            new = tl.maximum(most, before)
            if ENTROPY:
                moment = _moved(moment, sum_, most - new) + _moved(tl.load(to + 4), tl.load(to + 1), before - new)
            sum_ = sum_ * exp(most - new) + tl.load(to + 1) * exp(before - new)
            total += tl.load(to + 2)
            picked += tl.load(to + 3)
            most = new
        tl.store(to, most)
        tl.store(to + 1, sum_)
        tl.store(to + 2, total)
        tl.store(to + 3, picked)
        if ENTROPY:
            tl.store(to + 4, moment)


@triton.jit
def whole_rows(z, bias, target, state, losses, divisor, zo, zs, columns, row0, ignore, smoothing, scale, cap,
               SMOOTH: tl.constexpr, CAP: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
               factor=None):  # type: ignore[no-untyped-def]
    """One whole row of logits, read for its loss and, while it is still in the L2, again for its gradient, which replaces the logits. The
    chunk's row 0 is token `row0`."""
    row = row0 + tl.program_id(0).to(tl.int64)
    z += zo + tl.program_id(0).to(tl.int64) * zs
    t = tl.load(target + row)
    to = state + 4 * row
    step = tl.arange(0, COLUMNS)
    if t == ignore:
        for k in tl.range(0, tl.cdiv(columns, COLUMNS)):
            at = k * COLUMNS + step
            tl.store(z + at, tl.zeros((COLUMNS,), z.dtype.element_ty), at < columns)
        tl.store(losses + row, 0.0)
        tl.store(to, 0.0)
        tl.store(to + 1, 1.0)
        tl.store(to + 2, 0.0)
        tl.store(to + 3, 0.0)
    else:
        most, sum_, total, _ = _statistics(z, bias, columns, factor, cap, SMOOTH, CAP, False, COLUMNS, STAGES)
        known = (t >= 0) & (t < columns)
        picked = _picked(z, bias, t, known, factor, cap, CAP)
        found = _loss(most, sum_, picked, total, tl.full((), columns, tl.float32), smoothing, scale, SMOOTH)
        tl.store(losses + row, tl.where(known, found, float("nan")))
        tl.store(to, most)
        tl.store(to + 1, sum_)
        tl.store(to + 2, total)
        tl.store(to + 3, picked)
        each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
        evenly = smoothing / columns
        g = tl.where(known, 1.0 / tl.load(divisor), float("nan"))
        tl.debug_barrier()  # all threads have read the row for its statistics before any thread writes
        for k in tl.range(0, tl.cdiv(columns, 4 * COLUMNS), num_stages=STAGES):
            at = k * (4 * COLUMNS) + step
            a = _slopes(z, bias, at, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            b = _slopes(z, bias, at + COLUMNS, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            c = _slopes(z, bias, at + 2 * COLUMNS, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            d = _slopes(z, bias, at + 3 * COLUMNS, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            tl.store(z + at, a.to(z.dtype.element_ty), at < columns)
            tl.store(z + (at + COLUMNS), b.to(z.dtype.element_ty), at + COLUMNS < columns)
            tl.store(z + (at + 2 * COLUMNS), c.to(z.dtype.element_ty), at + 2 * COLUMNS < columns)
            tl.store(z + (at + 3 * COLUMNS), d.to(z.dtype.element_ty), at + 3 * COLUMNS < columns)


@triton.jit(do_not_specialize=["R"])
def row_losses(  # type: ignore[no-untyped-def]
    state, target, losses, R, classes, ignore, smoothing, scale, SMOOTH: tl.constexpr, BLOCK: tl.constexpr, ENTROPY: tl.constexpr = False
):
    """The losses and entropies of rows whose state is complete. Ignored rows get the state (0, 1, 0, 0) and the entropy 0."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < R
    t = tl.load(target + row, there, other=ignore)
    live = t != ignore
    to = state + (5 if ENTROPY else 4) * row.to(tl.int64)
    most = tl.load(to, live, other=0)
    sum_ = tl.load(to + 1, live, other=1)
    total = tl.load(to + 2, live, other=0)
    picked = tl.load(to + 3, live, other=0)
    known = (t >= 0) & (t < classes)
    found = _loss(most, sum_, picked, total, tl.full((BLOCK,), classes, tl.float32), smoothing, scale, SMOOTH)
    if ENTROPY:
        spread = tl.log(sum_) - tl.div_rn(tl.load(to + 4, live, other=0), sum_)
        losses += row.to(tl.int64)
        tl.store(losses + row + 1, spread, there)
        tl.store(to + 4, spread, there)
    tl.store(losses + row, tl.where(live, tl.where(known, found, float("nan")), 0), there)
    tl.store(to, most, there)
    tl.store(to + 1, sum_, there)
    tl.store(to + 2, total, there)
    tl.store(to + 3, picked, there)


@triton.jit(do_not_specialize=["R"])
def total_loss(losses, divisor, loss, R, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the rows' losses over the divisor, in a fixed order."""
    found = tl.zeros((BLOCK,), tl.float32)
    for k in range(tl.cdiv(R, BLOCK)):
        row = k * BLOCK + tl.arange(0, BLOCK)
        found += tl.load(losses + row, row < R, other=0)
    tl.store(loss, tl.div_rn(tl.sum(found, 0), tl.load(divisor)))


@triton.jit
def slice_gradient(z, bias, target, state, dloss, divisor, zo, zs, gs, columns, blocks, first, start, classes, ignore, smoothing, scale,
                   cap,
                   CAP: tl.constexpr, BLOCK: tl.constexpr, ENTROPY: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
    """Replaces BLOCK logits of one row in a slice of the classes by their gradient. `gs`: stride of dloss, 0 if there is one for all."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    z += zo + row * zs
    if bias is not None:
        bias += first
    t = tl.load(target + row)
    live = t != ignore
    to = state + (5 if ENTROPY else 4) * row
    most = tl.load(to)
    sum_ = tl.load(to + 1)
    each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
    g = tl.where((t >= 0) & (t < classes), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
    last = tl.where(live, columns, 0)  # nothing is read of an ignored row
    if ENTROPY:
        level, share = entropy_terms(to, sum_, dloss + row * gs)
        d = _slopes(
            z, bias, at, last, t - start - first, most, each, smoothing / classes, smoothing, g, factor, cap, CAP, True, level, share
        )
    else:
        d = _slopes(z, bias, at, last, t - start - first, most, each, smoothing / classes, smoothing, g, factor, cap, CAP)
    tl.store(z + at, tl.where(live, d, 0).to(z.dtype.element_ty), at < columns)


@triton.jit
def column_sums(  # type: ignore[no-untyped-def]
    z, out, zo, zs, rows, columns, first, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The float32 sums over the rows of a chunk, written (ADD: added) to elements of `out` from `first` on: the bias's gradient."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < columns
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(tl.cdiv(rows, ROWS)):
        row = (k * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        found += tl.load(z + (zo + row * zs)[:, None] + column[None, :], (row < rows)[:, None] & there[None, :], other=0).to(tl.float32)
    sums = tl.sum(found, 0)
    if ADD:
        sums += tl.load(out + first + column, there, other=0)
    tl.store(out + first + column, sums.to(out.dtype.element_ty), there)


@triton.jit
def times_loss(unit, dloss, out, N, IN_PLACE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = unit · dloss. IN_PLACE: if dloss is 1, as with `loss.backward()`, nothing is read or written."""
    g = tl.load(dloss).to(tl.float32)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < N
    if IN_PLACE:
        there = there & (g != 1.0)
    v = tl.load(unit + at, there, other=0).to(tl.float32)
    tl.store(out + at, (v * g).to(out.dtype.element_ty), there)


# -- over the tokens that are not ignored ------------------------------------------------------------------------------
#
# `order` [N] lists the tokens that count, in order; `place` [N] is the index of each token in that list, -1 if it is ignored; `live` [1] is
# the length of the list. Row j of a chunk of logits is token order[first + j]; rows from live - first on are not read or written. `state`
# and losses are indexed by token.


@triton.jit(do_not_specialize=["R"])
def sort_out(  # type: ignore[no-untyped-def]
    target, order, place, live, divisor, state, losses, R, ignore, MEAN: tl.constexpr, BLOCK: tl.constexpr
):
    """One program. Ignored tokens get the loss 0 and the state (0, 1, 0, 0). `losses`: None in a backward."""
    count = tl.zeros((), tl.int32)
    for k in range(tl.cdiv(R, BLOCK)):
        row = k * BLOCK + tl.arange(0, BLOCK)
        there = row < R
        alive = there & (tl.load(target + row, there, other=ignore) != ignore)
        one = alive.to(tl.int32)
        at = count + tl.cumsum(one, 0) - one
        tl.store(order + at, row, alive)
        tl.store(place + row, tl.where(alive, at, -1), there)
        if losses is not None:
            dead = there & (one == 0)
            to = state + 4 * row.to(tl.int64)
            tl.store(losses + row, 0.0, dead)
            tl.store(to, 0.0, dead)
            tl.store(to + 1, 1.0, dead)
            tl.store(to + 2, 0.0, dead)
            tl.store(to + 3, 0.0, dead)
        count += tl.sum(one, 0)
    tl.store(live, count)
    if divisor is not None:
        if MEAN:
            tl.store(divisor, count.to(tl.float32))
        else:
            tl.store(divisor, 1.0)


@triton.jit
def gather_rows(x, order, live, out, xs, H, first, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gathers out [., H]: the rows of x (stride xs) of a chunk from `first` on."""
    j = tl.program_id(0)
    if first + j < tl.load(live):
        row = tl.load(order + first + j).to(tl.int64)
        for k in tl.range(0, tl.cdiv(H, BLOCK)):
            at = k * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + j.to(tl.int64) * H + at, tl.load(x + row * xs + at, at < H), at < H)


@triton.jit
def spread_rows(source, place, out, H, first, height, FIRST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scatters the rows of a chunk to their tokens, rounded to the dtype of `out`. FIRST: also writes zeros for ignored tokens."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.load(place + row)
    here = (j >= first) & (j < first + height)
    if here | (FIRST & (j < 0)):
        for k in tl.range(0, tl.cdiv(H, BLOCK)):
            at = k * BLOCK + tl.arange(0, BLOCK)
            v = tl.load(source + (j - first).to(tl.int64) * H + at, here & (at < H), other=0).to(tl.float32)
            tl.store(out + row * H + at, v.to(out.dtype.element_ty), at < H)


@triton.jit
def live_rows(z, bias, order, live, target, state, losses, divisor, zs, columns, first, smoothing, scale, cap,
              SMOOTH: tl.constexpr, CAP: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
              factor=None):  # type: ignore[no-untyped-def]
    """One whole row of logits, read for its loss and, while it is still in the L2, again for its gradient, which replaces the logits."""
    j = tl.program_id(0)
    if first + j < tl.load(live):
        row = tl.load(order + first + j).to(tl.int64)
        z += j.to(tl.int64) * zs
        t = tl.load(target + row)
        to = state + 4 * row
        step = tl.arange(0, COLUMNS)
        most, sum_, total, _ = _statistics(z, bias, columns, factor, cap, SMOOTH, CAP, False, COLUMNS, STAGES)
        known = (t >= 0) & (t < columns)
        picked = _picked(z, bias, t, known, factor, cap, CAP)
        found = _loss(most, sum_, picked, total, tl.full((), columns, tl.float32), smoothing, scale, SMOOTH)
        tl.store(losses + row, tl.where(known, found, float("nan")))
        tl.store(to, most)
        tl.store(to + 1, sum_)
        tl.store(to + 2, total)
        tl.store(to + 3, picked)
        each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
        evenly = smoothing / columns
        g = tl.where(known, 1.0 / tl.load(divisor), float("nan"))
        tl.debug_barrier()  # all threads have read the row for its statistics before any thread writes
        for k in tl.range(0, tl.cdiv(columns, 4 * COLUMNS), num_stages=STAGES):
            at = k * (4 * COLUMNS) + step
            a = _slopes(z, bias, at, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            b = _slopes(z, bias, at + COLUMNS, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            c = _slopes(z, bias, at + 2 * COLUMNS, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            d = _slopes(z, bias, at + 3 * COLUMNS, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP)
            tl.store(z + at, a.to(z.dtype.element_ty), at < columns)
            tl.store(z + (at + COLUMNS), b.to(z.dtype.element_ty), at + COLUMNS < columns)
            tl.store(z + (at + 2 * COLUMNS), c.to(z.dtype.element_ty), at + 2 * COLUMNS < columns)
            tl.store(z + (at + 3 * COLUMNS), d.to(z.dtype.element_ty), at + 3 * COLUMNS < columns)


@triton.jit
def live_statistics(z, bias, order, live, target, state, zs, columns, first, start, cap,
                    FIRST: tl.constexpr, SMOOTH: tl.constexpr, CAP: tl.constexpr, COLUMNS: tl.constexpr,
                    STAGES: tl.constexpr, ENTROPY: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
    """Adds one row's logits of a slice of the classes, those of the weight from `first` on, to its state. The weight's class 0 is class
    `start` of the vocabulary. FIRST: the first slice."""
    j = tl.program_id(0)
    if j < tl.load(live):
        row = tl.load(order + j).to(tl.int64)
        z += j.to(tl.int64) * zs
        if bias is not None:
            bias += first
        most, sum_, total, moment = _statistics(z, bias, columns, factor, cap, SMOOTH, CAP, ENTROPY, COLUMNS, STAGES)
        hit = tl.load(target + row) - start - first
        picked = _picked(z, bias, hit, (hit >= 0) & (hit < columns), factor, cap, CAP)
        to = state + (5 if ENTROPY else 4) * row
        if not FIRST:
            before = tl.load(to)
            new = tl.maximum(most, before)
            if ENTROPY:
                moment = _moved(moment, sum_, most - new) + _moved(tl.load(to + 4), tl.load(to + 1), before - new)
            sum_ = sum_ * exp(most - new) + tl.load(to + 1) * exp(before - new)
            total += tl.load(to + 2)
            picked += tl.load(to + 3)
            most = new
        tl.store(to, most)
        tl.store(to + 1, sum_)
        tl.store(to + 2, total)
        tl.store(to + 3, picked)
        if ENTROPY:
            tl.store(to + 4, moment)


@triton.jit
def live_gradient(z, bias, order, live, target, state, dloss, divisor, zo, zs, gs, columns, blocks, first, start, classes, smoothing, scale,
                  cap,
                  CAP: tl.constexpr, BLOCK: tl.constexpr, ENTROPY: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
    """Replaces BLOCK logits of one row in a slice of the classes by their gradient. `gs`: stride of dloss, 0 if there is one for all."""
    j = tl.program_id(0) // blocks
    if j < tl.load(live):
        row = tl.load(order + j).to(tl.int64)
        at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
        z += zo + j.to(tl.int64) * zs
        if bias is not None:
            bias += first
        t = tl.load(target + row)
        to = state + (5 if ENTROPY else 4) * row
        most = tl.load(to)
        sum_ = tl.load(to + 1)
        each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
        g = tl.where((t >= 0) & (t < classes), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
        if ENTROPY:
            level, share = entropy_terms(to, sum_, dloss + row * gs)
            d = _slopes(
                z, bias, at, columns, t - start - first, most, each, smoothing / classes, smoothing, g, factor, cap, CAP, True, level, share
            )
        else:
            d = _slopes(z, bias, at, columns, t - start - first, most, each, smoothing / classes, smoothing, g, factor, cap, CAP)
        tl.store(z + at, d.to(z.dtype.element_ty), at < columns)


@triton.jit
def live_column_sums(  # type: ignore[no-untyped-def]
    z, live, out, zo, zs, rows, columns, first, chunk, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The float32 sums over the rows that count of a chunk, from token `chunk` of the list on, written (ADD: added) to elements of `out`
    from `first` on."""
    rows = tl.minimum(tl.maximum(tl.load(live) - chunk, 0), rows)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < columns
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(tl.cdiv(rows, ROWS)):
        row = (k * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        found += tl.load(z + (zo + row * zs)[:, None] + column[None, :], (row < rows)[:, None] & there[None, :], other=0).to(tl.float32)
    sums = tl.sum(found, 0)
    if ADD:
        sums += tl.load(out + first + column, there, other=0)
    tl.store(out + first + column, sums.to(out.dtype.element_ty), there)
