"""The launches of the forward and the backward of linear_cross_entropy between their matrix products, in Triton. Those over the tokens that
count alone are in _live_passes.py.

Logits are in a chunk: some rows (tokens) by some columns (classes from `first` on), with row stride `zs`, from element `zo` of its memory
on. _linear_rows.py reads them. `state` [N, 4] holds for each token the shift (its largest logit so far), the sum of exp(logit - shift), the
sum of the logits (for label smoothing) and the target's logit. Ignored tokens are never read. ENTROPY: `state` [N, 5] holds last the moment,
which `row_losses` replaces by the entropy of the row's distribution; losses [N, 2] and their gradients are each a loss and an entropy."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.kernels.loss._linear_rows import _loss, _moved, _picked, _replace_row, _slopes, _statistics, entropy_terms
from rooftop.kernels.loss._logits import exp


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
               RAGGED: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
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
        _replace_row(z, bias, columns, t, most, each, evenly, smoothing, g, factor, cap, CAP, COLUMNS, STAGES, RAGGED)


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
