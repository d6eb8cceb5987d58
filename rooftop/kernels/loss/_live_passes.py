"""The launches of linear_cross_entropy over the tokens that are not ignored, in Triton. Logits, state and losses: as in _linear_passes.py.

`order` [N] lists the tokens that count, in order; `place` [N] is the index of each token in that list, -1 if it is ignored; `live` [1] is the
length of the list. Row j of a chunk of logits is token order[first + j]; rows from live - first on are not read or written. `state` and
losses are indexed by token."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.kernels.loss._linear_rows import _loss, _moved, _picked, _replace_row, _slopes, _statistics, entropy_terms
from rooftop.kernels.loss._logits import exp


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
def gather_rows(x, order, live, out, xs, H, first, BLOCK: tl.constexpr, pitch=None):  # type: ignore[no-untyped-def]
    """Gathers out [., H] (stride `pitch`; None: H): the rows of x (stride xs) of a chunk from `first` on."""
    j = tl.program_id(0)
    if first + j < tl.load(live):
        row = tl.load(order + first + j).to(tl.int64)
        for k in tl.range(0, tl.cdiv(H, BLOCK)):
            at = k * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + j.to(tl.int64) * (H if pitch is None else pitch) + at, tl.load(x + row * xs + at, at < H), at < H)


@triton.jit
def copy_rows(x, out, xo, xs, oo, pitch, H, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out [., H] (from element oo on, stride pitch) = x (from element xo on, stride xs)."""
    row = tl.program_id(0).to(tl.int64)
    x += xo
    out += oo
    for k in tl.range(0, tl.cdiv(H, BLOCK)):
        at = k * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + row * pitch + at, tl.load(x + row * xs + at, at < H), at < H)


@triton.jit
def spread_rows(  # type: ignore[no-untyped-def]
    source, place, out, H, first, height, FIRST: tl.constexpr, BLOCK: tl.constexpr, pitch=None, PARTS: tl.constexpr = 1
):
    """Scatters the rows of a chunk (stride `pitch`; None: H) to their tokens, rounded to the dtype of `out`: the sums of PARTS, which lie `height`
    rows apart. FIRST: also writes zeros for ignored tokens."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.load(place + row)
    here = (j >= first) & (j < first + height)
    if here | (FIRST & (j < 0)):
        for k in tl.range(0, tl.cdiv(H, BLOCK)):
            at = k * BLOCK + tl.arange(0, BLOCK)
            v = tl.load(source + (j - first).to(tl.int64) * (H if pitch is None else pitch) + at, here & (at < H), other=0).to(tl.float32)
            for part in tl.static_range(1, PARTS):
                at_part = ((j - first).to(tl.int64) + part * height) * (H if pitch is None else pitch) + at
                v += tl.load(source + at_part, here & (at < H), other=0)
            tl.store(out + row * H + at, v.to(out.dtype.element_ty), at < H)


@triton.jit
def live_rows(z, bias, order, live, target, state, losses, divisor, zs, columns, first, smoothing, scale, cap,
              SMOOTH: tl.constexpr, CAP: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
              RAGGED: tl.constexpr = False, factor=None):  # type: ignore[no-untyped-def]
    """One whole row of logits, read for its loss and, while it is still in the L2, again for its gradient, which replaces the logits."""
    j = tl.program_id(0)
    if first + j < tl.load(live):
        row = tl.load(order + first + j).to(tl.int64)
        z += j.to(tl.int64) * zs
        t = tl.load(target + row)
        to = state + 4 * row
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
