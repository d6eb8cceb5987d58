"""gate · sigmoid(alpha · gate) · (up + offset) with gate clamped from above and up on both sides, forward and backward, in Triton.

Bytes: each input read once, each output written once. Gate and up are two tensors, the halves of one, or the even and odd elements of one
(TURNS), which are read and written as whole runs of memory and parted in registers. Every tensor is [R, C] with contiguous rows; tiles are
those of _pointwise.py."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device.activations import sigmoid
from rooftop.kernels.elementwise._pointwise import Config, gated


@triton.jit
def _tile(C, BLOCK: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row and column of each element of a program; programs are along the columns first."""
    across = tl.cdiv(C, BLOCK)
    row = (tl.program_id(0) // across).to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
    column = (tl.program_id(0) % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return row, column


@triton.jit
def _run(C, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Columns of both elements of each pair of a program, [1, 2 BLOCK], as they lie in memory."""
    return (tl.program_id(0) % tl.cdiv(C, BLOCK)).to(tl.int64) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)[None, :]


@triton.jit
def _load(pointer, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer) if inside is None else tl.load(pointer, inside, other=0)


@triton.jit
def _whole(R, C, BLOCK: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether all elements of a program are inside; then it takes no mask, which would make every access one of single elements, unless C is a multiple of
    a vector."""
    across = tl.cdiv(C, BLOCK)
    row, column = (tl.program_id(0) // across).to(tl.int64), (tl.program_id(0) % across).to(tl.int64)
    return ((row + 1) * LANES <= R) & ((column + 1) * BLOCK <= C)


@triton.jit
def _pair(a, b, row, sa, sb, bo, column, C, inside, around, TURNS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gate and up. `sa`, `sb`: strides of rows; `bo`: where the rows of b begin; `inside`, `around`: which elements there are, of a tile and of a run; None:
    all."""
    if TURNS:
        both = _load(a + row * sa + _run(C, BLOCK), around)
        gate, up = tl.split(tl.reshape(both, (LANES, BLOCK, 2)))
    else:
        gate = _load(a + row * sa + column, inside)
        up = _load(b + bo + row * sb + column, inside)
    return gate.to(tl.float32), up.to(tl.float32)


@triton.jit
def _clamped(gate, up, limit):  # type: ignore[no-untyped-def]
    """A NaN stays."""
    return tl.where(gate > limit, limit, gate), tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))


@triton.jit
def _forward_tile(a, b, y, row, column, C, sa, sb, sy, bo, limit, alpha, offset, inside, around,
                  TURNS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    gate, up = _pair(a, b, row, sa, sb, bo, column, C, inside, around, TURNS, BLOCK, LANES)
    gate, up = _clamped(gate, up, limit)
    found = gate * sigmoid(alpha * gate) * (up + offset)
    tl.store(y + row * sy + column, found.to(y.dtype.element_ty), inside)


@triton.jit
def _forward(a, b, y, R, C, sa, sb, sy, bo, limit, alpha, offset,
             TURNS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    if PDL:
        gdc_wait()
    row, column = _tile(C, BLOCK, LANES)
    if _whole(R, C, BLOCK, LANES):
        _forward_tile(a, b, y, row, column, C, sa, sb, sy, bo, limit, alpha, offset, None, None, TURNS, BLOCK, LANES)
    else:
        inside, around = (row < R) & (column < C), (row < R) & (_run(C, BLOCK) < 2 * C)
        _forward_tile(a, b, y, row, column, C, sa, sb, sy, bo, limit, alpha, offset, inside, around, TURNS, BLOCK, LANES)


@triton.jit
def _backward_tile(dy, a, b, da, db, row, column, C, sg, sa, sb, su, sv, bo, vo, limit, alpha, offset, inside, around,
                   TURNS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """A gradient is 0 where its value was clamped. NaN lies within no limit, but without one nothing is clamped."""
    flow = _load(dy + row * sg + column, inside).to(tl.float32)
    given, raised = _pair(a, b, row, sa, sb, bo, column, C, inside, around, TURNS, BLOCK, LANES)
    gate, up = _clamped(given, raised, limit)
    s = sigmoid(alpha * gate)
    free = limit == float("inf")
    u = tl.where(free | (given <= limit), flow * (up + offset) * (s * (1 + alpha * gate * (1 - s))), 0.0)
    v = tl.where(free | (tl.abs(raised) <= limit), flow * (gate * s), 0.0)
    if TURNS:
        both = tl.reshape(tl.join(u, v), (LANES, 2 * BLOCK))
        tl.store(da + row * su + _run(C, BLOCK), both.to(da.dtype.element_ty), around)
    else:
        tl.store(da + row * su + column, u.to(da.dtype.element_ty), inside)
        tl.store(db + vo + row * sv + column, v.to(da.dtype.element_ty), inside)


@triton.jit
def _backward(dy, a, b, da, db, R, C, sg, sa, sb, su, sv, bo, vo, limit, alpha, offset,
              TURNS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    if PDL:
        gdc_wait()
    row, column = _tile(C, BLOCK, LANES)
    if _whole(R, C, BLOCK, LANES):
        _backward_tile(dy, a, b, da, db, row, column, C, sg, sa, sb, su, sv, bo, vo, limit, alpha, offset, None, None, TURNS, BLOCK, LANES)
    else:
        inside, around = (row < R) & (column < C), (row < R) & (_run(C, BLOCK) < 2 * C)
        _backward_tile(dy, a, b, da, db, row, column, C, sg, sa, sb, su, sv, bo, vo, limit, alpha, offset, inside, around, TURNS, BLOCK, LANES)


def clamped(backward: bool) -> tuple[Any, ...]:
    """supports, choose, configs and launches of the forward or the backward."""
    inputs, outputs = (("dy", "a", "b"), ("da", "db")) if backward else (("a", "b"), ("y",))
    takes, choose_of, configs_of, _ = gated(inputs, outputs, lambda p: None)
    flow = inputs[0] if backward else outputs[0]

    def flat(p: Problem) -> Problem:
        """As one row where gate and up are in turns and no tensor has gaps: its columns do not matter."""
        metas = {n: m for n, m in p.tensors if m is not None}
        if not p.option("interleaved") or any(m.strides[0] != m.shape[1] for m in metas.values()):
            return p
        return p.replace(**{n: Meta((1, m.numel), m.dtype, (m.numel, 1), m.align) for n, m in metas.items()})

    def choose(p: Problem) -> Config:
        return choose_of(flat(p))

    def configs(p: Problem) -> list[Config]:
        return list(configs_of(flat(p)))

    def programs(p: Problem, config: Config) -> int:
        rows, columns = flat(p)[flow].shape
        return -(-columns // config.block) * -(-rows // config.lanes)

    def supports(p: Problem) -> str | None:
        if not p.extra:
            return "is for calls with a limit, alpha, an offset, or gate and up in turns"
        if found := takes(replace(p, extra=())):
            return str(found)
        return "more programs than one launch may have" if programs(p, choose(p)) >= 2**31 else None

    def launches(p: Problem, config: Config) -> list[Launch]:
        p = flat(p)
        rows, columns = p[flow].shape
        apart = p.get("b") is not None
        half = 0 if apart else columns

        def stride(name: str) -> int:
            """Of rows; 0 where there is one: a multiple of a vector, whatever the columns."""
            return p[name].strides[0] if rows > 1 else 0

        args: dict[str, Any] = {"a": "a", "b": "b" if apart else "a", "R": rows, "C": columns, "sa": stride("a"), "bo": half}
        args |= {"sb": stride("b" if apart else "a"), "TURNS": bool(p.option("interleaved"))}
        args |= {"limit": float(p.option("limit")) or inf, "alpha": float(p.option("alpha")), "offset": float(p.option("offset"))}
        args |= {"BLOCK": config.block, "LANES": config.lanes, "PDL": p.device.pdl}
        if backward:
            db = "db" if apart else "da"
            args |= {"dy": "dy", "da": "da", "db": db, "sg": stride("dy"), "su": stride("da"), "sv": stride(db), "vo": half}
        else:
            args |= {"y": "y", "sy": stride("y")}
        return [Launch(_backward if backward else _forward, (programs(p, config),), args, config.warps, pdl=p.device.pdl)]

    return supports, choose, configs, launches
