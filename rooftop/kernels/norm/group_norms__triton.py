"""Group normalisation of x[N, C, S] and its backward, in any layout. Contract: rooftop/ops/group_norm.py

A tile is some channels of some positions of a sample. The first launch writes the moments of each channel of each tile (the mean, and the
sum of squares about it; for the backward also the sums of dy and dy (x - mean)); the second joins them (Chan et al. 1979) to four numbers
a channel; the third computes the results from these and x, from the end backwards, because the data read last are still in the L2.

Bytes: x twice, and dy, where they do not stay in the L2. The moments are 1 to 3 % of them."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels._device.column_sums import column_sums

OPS = ("group_norm", "group_norm_bwd")


@triton.jit
def _place(pid, S, across, chunks, CH: tl.constexpr, SP: tl.constexpr, C):  # type: ignore[no-untyped-def]
    """Sample, chunk, channels [CH, 1], positions [1, SP] and which of them there are."""
    block, rest = pid % across, pid // across
    sample, chunk = (rest // chunks).to(tl.int64), rest % chunks
    channel = block * CH + tl.arange(0, CH)[:, None]
    position = chunk * SP + tl.arange(0, SP)[None, :]
    return sample, chunk, channel, position, (channel < C) & (position < S)


@triton.jit
def _at(pointer, sample, channel, position, sn, sc, ss):  # type: ignore[no-untyped-def]
    return pointer + sample * sn + channel.to(tl.int64) * sc + position.to(tl.int64) * ss


@triton.jit
def _moments(x, dy, parts, C, S, across, chunks, xn, xc, xs, gn, gc, gs,
             CH: tl.constexpr, SP: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """parts[N, chunks, 2 or 4, C]: of each channel of a tile."""
    if PDL:
        gdc_wait()
    sample, chunk, channel, position, inside = _place(tl.program_id(0), S, across, chunks, CH, SP, C)
    v = tl.load(_at(x, sample, channel, position, xn, xc, xs), inside, other=0).to(tl.float32)
    count = tl.minimum(S - chunk * SP, SP).to(tl.float32)
    first = tl.load(_at(x, sample, channel, chunk * SP, xn, xc, xs), channel < C, other=0).to(tl.float32)
    mean = first + tl.sum(tl.where(inside, v - first, 0), 1, keep_dims=True) / count  # exact where all are equal
    off = tl.where(inside, v - mean, 0)
    kinds: tl.constexpr = 2 if dy is None else 4
    to = parts + (sample * chunks + chunk) * (kinds * C) + channel
    tl.store(to, mean, channel < C)
    tl.store(to + C, tl.sum(off * off, 1, keep_dims=True), channel < C)
    if dy is not None:
        g = tl.load(_at(dy, sample, channel, position, gn, gc, gs), inside, other=0).to(tl.float32)
        tl.store(to + 2 * C, tl.sum(g, 1, keep_dims=True), channel < C)
        tl.store(to + 3 * C, tl.sum(g * off, 1, keep_dims=True), channel < C)


@triton.jit
def _part(parts, sample, chunk, chunks, channel, C, kind, inside, KINDS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(parts + (sample * chunks + chunk) * (KINDS * C) + kind * C + channel, inside, other=0)


@triton.jit
def _join(parts, weight, numbers, dw, db, C, K, S, size, chunks, eps,
          SP: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, KINDS: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """One group of a sample, of `size` elements, LONG chunks of WIDE channels at a time. numbers[N, 4, C]: the mean, 1 / sqrt(var + eps) · weight
    and, for the backward, what the gradients of a group have in common, and their factor of x - mean; dw, db[N, C]: the sample's part of
    dweight and dbias."""
    if PDL:
        gdc_wait()
    groups = C // K
    sample, first = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups * K
    shift = tl.load(parts + sample * chunks * (KINDS * C) + first)  # the mean of one channel of the first tile
    total = tl.zeros((LONG, WIDE), tl.float32)
    for j in range(0, chunks, LONG):
        chunk = j + tl.arange(0, LONG)[:, None]
        count = tl.minimum(S - chunk * SP, SP).to(tl.float32)
        for k in range(0, K, WIDE):
            channel = k + tl.arange(0, WIDE)[None, :]
            inside = (chunk < chunks) & (channel < K)
            total += tl.where(inside, count * (_part(parts, sample, chunk, chunks, first + channel, C, 0, inside, KINDS) - shift), 0)
    mean = shift + tl.sum(total) / size
    total = tl.zeros((LONG, WIDE), tl.float32)
    for j in range(0, chunks, LONG):
        chunk = j + tl.arange(0, LONG)[:, None]
        count = tl.minimum(S - chunk * SP, SP).to(tl.float32)
        for k in range(0, K, WIDE):
            channel = k + tl.arange(0, WIDE)[None, :]
            inside = (chunk < chunks) & (channel < K)
            off = _part(parts, sample, chunk, chunks, first + channel, C, 0, inside, KINDS) - mean
            squares = _part(parts, sample, chunk, chunks, first + channel, C, 1, inside, KINDS)
            total += tl.where(inside, squares + count * off * off, 0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(total) / size + eps))

    flow, turn = tl.zeros((1, WIDE), tl.float32), tl.zeros((1, WIDE), tl.float32)
    to = numbers + sample * (4 * C) + first
    for k in range(0, K, WIDE):
        channel = k + tl.arange(0, WIDE)[None, :]
        factor = tl.full((1, WIDE), 1.0, tl.float32)
        if weight is not None:
            factor = tl.load(weight + first + channel, channel < K, other=0).to(tl.float32)
        tl.store(to + channel, mean + tl.zeros((1, WIDE), tl.float32), channel < K)
        tl.store(to + C + channel, scale * factor, channel < K)
        if KINDS == 4:
            sums, products = tl.zeros((LONG, WIDE), tl.float32), tl.zeros((LONG, WIDE), tl.float32)
            for j in range(0, chunks, LONG):
                chunk = j + tl.arange(0, LONG)[:, None]
                inside = (chunk < chunks) & (channel < K)
                off = tl.where(inside, _part(parts, sample, chunk, chunks, first + channel, C, 0, inside, KINDS) - mean, 0)
                g = _part(parts, sample, chunk, chunks, first + channel, C, 2, inside, KINDS)
                sums += g
                products += _part(parts, sample, chunk, chunks, first + channel, C, 3, inside, KINDS) + g * off
            of_dy, of_product = tl.sum(sums, 0, keep_dims=True), tl.sum(products, 0, keep_dims=True)
            if dw is not None:
                tl.store(dw + sample * C + first + channel, of_product * scale, channel < K)
            if db is not None:
                tl.store(db + sample * C + first + channel, of_dy, channel < K)
            flow += of_dy * factor
            turn += of_product * factor
    if KINDS == 4:
        common, slope = tl.sum(flow) * scale / size, tl.sum(turn) * scale * scale * scale / size
        for k in range(0, K, WIDE):
            channel = k + tl.arange(0, WIDE)[None, :]
            tl.store(to + 2 * C + channel, common + tl.zeros((1, WIDE), tl.float32), channel < K)
            tl.store(to + 3 * C + channel, slope + tl.zeros((1, WIDE), tl.float32), channel < K)


@triton.jit
def _apply(x, dy, bias, numbers, to, C, S, across, chunks, xn, xc, xs, gn, gc, gs, tn, tc, ts,
           CH: tl.constexpr, SP: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """y, or dx where dy is given."""
    if PDL:
        gdc_wait()
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    sample, _, channel, position, inside = _place(pid, S, across, chunks, CH, SP, C)
    own = numbers + sample * (4 * C) + channel
    mean, scale = tl.load(own, channel < C, other=0), tl.load(own + C, channel < C, other=0)
    v = tl.load(_at(x, sample, channel, position, xn, xc, xs), inside, other=0).to(tl.float32) - mean
    if dy is None:
        v *= scale
        if bias is not None:
            v += tl.load(bias + channel, channel < C, other=0).to(tl.float32)
    else:
        g = tl.load(_at(dy, sample, channel, position, gn, gc, gs), inside, other=0).to(tl.float32)
        v = g * scale - tl.load(own + 2 * C, channel < C, other=0) - v * tl.load(own + 3 * C, channel < C, other=0)
    tl.store(_at(to, sample, channel, position, tn, tc, ts), v.to(to.dtype.element_ty), inside)


@dataclass(frozen=True)
class Config:
    """Channels, positions and warps of a tile."""

    channels: int
    positions: int
    warps: int


def _backward(p: Problem) -> bool:
    return p.op == "group_norm_bwd"


def _grid(p: Problem, config: Config) -> tuple[int, int, int]:
    """Programs, blocks of channels, chunks of positions."""
    n, c, s = p["x"].shape
    across, chunks = -(-c // config.channels), -(-s // config.positions)
    return n * across * chunks, across, chunks


def supports(p: Problem) -> str | None:
    dtypes = {m.dtype for name, m in p.tensors if m is not None and len(m.shape) == 3}
    if len(dtypes) != 1 or not dtypes <= {"f32", "f16", "bf16"}:
        return f"takes f32, f16 or bf16, the same for x and the results; given {', '.join(sorted(dtypes))}"
    n, c, s = p["x"].shape
    if n * c * s == 0:
        return "there is nothing to compute"
    if max(c, s) >= 2**31 - 2**14 or _grid(p, choose(p))[0] >= 2**31:
        return f"counts channels, positions and tiles in 32 bits; given {n}x{c}x{s}"
    return None


def _config(p: Problem, elements: int, narrow: int) -> Config:
    """A tile along the neighbours in memory: positions, or channels where these come last. `narrow`: the fewest of them, of many."""
    _, c, s = p["x"].shape
    if p["x"].strides[2] == 1 or s == 1 or p["x"].strides[1] != 1:
        positions = min(pow2(s), narrow)
        channels = min(pow2(c), max(elements // positions, 1))
    else:
        channels = min(pow2(c), narrow // 16)
        positions = min(pow2(s), max(elements // channels, 1))
    return Config(channels, positions, max(1, min(8, channels * positions // 512)))


def choose(p: Problem) -> Config:
    """Tiles of 8192 elements, of two tensors half as many: 32 values a thread. The moments of a channel of 512 positions are 1.5 % of its
    bytes."""
    return _config(p, 4096 if _backward(p) else 8192, 512)


def configs(p: Problem) -> list[Config]:
    return sorted({_config(p, elements, narrow) for elements in (2048, 4096, 8192, 16384) for narrow in (256, 512, 1024, 2048)}, key=str)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    n, c, _ = p["x"].shape
    found = {"parts": Meta((n, _grid(p, config)[2], 4 if _backward(p) else 2, c), "f32"), "numbers": Meta((n, 4, c), "f32")}
    return found | {f"parts_{name}": Meta((n, c), "f32") for name in ("dweight", "dbias") if p.get(name) is not None}


def launches(p: Problem, config: Config) -> list[Launch]:
    (n, c, s), groups, backward = p["x"].shape, int(p.option("groups")), _backward(p)
    programs, across, chunks = _grid(p, config)
    k = c // groups
    dy, to, pdl = "dy" if backward else None, "dx" if backward else "y", p.device.pdl

    def strides(letter: str, name: str | None) -> dict[str, int]:
        return dict(zip((f"{letter}n", f"{letter}c", f"{letter}s"), p[name].strides if name else (0, 0, 0), strict=True))

    tile = {"C": c, "S": s, "across": across, "chunks": chunks, "CH": config.channels, "SP": config.positions, "PDL": pdl}
    tile |= {"x": "x", "dy": dy, **strides("x", "x"), **strides("g", dy)}
    wide = min(pow2(k), 64)
    join = {"parts": "parts", "weight": "weight" if p.get("weight") is not None else None, "numbers": "numbers", "C": c, "K": k, "S": s, "size": float(k * s)}
    join |= {short: f"parts_{name}" if p.get(name) is not None else None for short, name in (("dw", "dweight"), ("db", "dbias"))}
    join |= {"chunks": chunks, "eps": float(p.option("eps")), "SP": config.positions, "WIDE": wide, "LONG": min(pow2(chunks), 2048 // wide)}
    join |= {"KINDS": 4 if backward else 2, "PDL": pdl}
    apply = {**tile, "numbers": "numbers", "bias": None if backward or p.get("bias") is None else "bias", "to": to, **strides("t", to)}
    sums = [(f"parts_{name}", name) for name in ("dweight", "dbias") if p.get(name) is not None]
    return [
        Launch(_moments, (programs,), {**tile, "parts": "parts"}, config.warps, pdl=pdl),
        Launch(_join, (n * groups,), join, 4, pdl=pdl),
        Launch(_apply, (programs,), apply, config.warps, pdl=pdl),
        *column_sums(sums, n, c, p.device),
    ]
