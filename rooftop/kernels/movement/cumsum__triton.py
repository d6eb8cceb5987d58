"""Running sums along the middle dimension of x[O, N, I]. Contract: rooftop/ops/cumsum.py

Lanes are independent sums: rows if I is 1, positions of I otherwise. If they fit one tile, one program computes them. Longer ones are
divided into tiles along N, all in flight together and each read once: a program publishes the sum of its tile, waits for those before it,
and adds them up.

The decoupled look-back differs from Merrill & Garland's, which adds whatever has been published first and so rounds differently from run to
run. Here tiles form groups of GROUP. A tile adds the sums of the earlier tiles of its group, in one fixed tree, to the running sum at the
end of the group before, which the last tile of that group publishes. A word of 64 bits holds a sum together with a flag that it is valid.
Programs fetch their tiles from an atomic counter, so that a program only waits for programs that have already started."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2

# a word that is not there yet; a published one is never 0: it is the complement of a number's bits, with one NaN pattern
ABSENT = tl.constexpr(0)
NAN = tl.constexpr(0x7FF8000000000000)


@triton.jit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@triton.jit
def _whole(x, out, N, L, blocks, xo, xn, xl, oo, on, ol, ROWS: tl.constexpr, HEIGHT: tl.constexpr, LANES: tl.constexpr,
           REVERSE: tl.constexpr,
           PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """LANES whole lanes. ROWS: the tile is [LANES, HEIGHT], else [HEIGHT, LANES]. Strides of outer, along and lane, in elements."""
    if PDL:
        gdc_wait()
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * LANES
    if ROWS:
        lane += tl.arange(0, LANES)[:, None]
        n = tl.arange(0, HEIGHT)[None, :].to(tl.int64)
    else:
        lane += tl.arange(0, LANES)[None, :]
        n = tl.arange(0, HEIGHT)[:, None].to(tl.int64)
    inside = (n < N) & (lane < L)
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float32 else tl.float32
    v = tl.load(x + outer * xo + n * xn + lane * xl, inside, other=0).to(ACC)
    s = tl.associative_scan(v, 1 if ROWS else 0, _add, reverse=REVERSE)
    tl.store(out + outer * oo + n * on + lane * ol, s.to(out.dtype.element_ty), inside)


@triton.jit
def _clear(words, count, BLOCK: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    if PDL:
        gdc_wait()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(words + at, tl.zeros((BLOCK,), tl.int64), at < count)


@triton.jit
def _publish(words, value, inside):  # type: ignore[no-untyped-def]
    bits = value.to(tl.float64).to(tl.int64, bitcast=True)
    tl.atomic_xchg(words, ~tl.where(value != value, NAN, bits), inside, sem="relaxed")


@triton.jit
def _await(words, inside):  # type: ignore[no-untyped-def]
    """The numbers of the words, once all are there; 0 if not inside."""
    found = tl.load(words, inside, other=-1, volatile=True)
    while tl.max((found == ABSENT).to(tl.int32).ravel()) > 0:
        found = tl.load(words, inside, other=-1, volatile=True)
    return (~found).to(tl.float64, bitcast=True)


@triton.jit
def _tiles(words, x, out, N, L, blocks, chains, tiles, groups, xo, xn, xl, oo, on, ol, ROWS: tl.constexpr, HEIGHT: tl.constexpr,
           LANES: tl.constexpr,
           GROUP: tl.constexpr, REVERSE: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """One tile of HEIGHT along N × LANES lanes. A chain is the tiles of one block of lanes; tiles are counted from the start of the sums.
    words: the counter; then sums of tiles [chains, tiles, LANES]; then running sums at the ends of groups [chains, groups, LANES]."""
    if PDL:
        gdc_wait()
    ticket = tl.atomic_add(words, 1, sem="relaxed")
    chain = ticket % chains
    tile = ticket // chains
    outer = chain // blocks
    lane = chain % blocks * LANES
    k = tl.arange(0, LANES)
    begin = (tiles - 1 - tile) * HEIGHT if REVERSE else tile * HEIGHT
    if ROWS:
        n = begin + tl.arange(0, HEIGHT)[None, :]
        lanes = lane + k[:, None]
    else:
        n = begin + tl.arange(0, HEIGHT)[:, None]
        lanes = lane + k[None, :]
    AXIS: tl.constexpr = 1 if ROWS else 0
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float32 else tl.float32
    from_ = x + outer * xo + n * xn + lanes * xl
    if begin + HEIGHT <= N and lane + LANES <= L:
        v = tl.load(from_).to(ACC)
    else:
        v = tl.load(from_, (n < N) & (lanes < L), other=0).to(ACC)
    total = tl.sum(v, AXIS).to(tl.float64)
    every = k < LANES
    sums = words + 1 + (chain * tiles + tile) * LANES
    _publish(sums + k, total, every)

    group = tile // GROUP
    ends = words + 1 + chains * tiles * LANES + (chain * groups + group) * LANES
    before = tile - group * GROUP  # earlier tiles of the group
    g = tl.arange(0, GROUP)[:, None]
    carry = tl.sum(_await(sums + (g - before) * LANES + k[None, :], (g < before) & every[None, :]), 0)
    if group > 0:
        carry += _await(ends - LANES + k, every)
    if before == GROUP - 1:
        _publish(ends + k, carry + total, every)
    s = tl.associative_scan(v, AXIS, _add, reverse=REVERSE) + tl.expand_dims(carry.to(ACC), AXIS)
    to = out + outer * oo + n * on + lanes * ol
    if begin + HEIGHT <= N and lane + LANES <= L:
        tl.store(to, s.to(out.dtype.element_ty))
    else:
        tl.store(to, s.to(out.dtype.element_ty), (n < N) & (lanes < L))


@dataclass(frozen=True)
class Config:
    """A tile of `height` × `lanes` by `warps` warps; `whole`: it holds the whole of its lanes."""

    height: int
    lanes: int
    warps: int
    whole: bool


def _lanes(p: Problem) -> int:
    rows, _, inner = p["x"].shape
    return rows if inner == 1 else inner


def _grid(p: Problem, lanes: int) -> tuple[int, int]:
    """Blocks of lanes in all, and those with the same outer index."""
    rows, _, inner = p["x"].shape
    blocks = -(-_lanes(p) // lanes)
    return (blocks if inner == 1 else rows * blocks), blocks


def supports(p: Problem) -> str | None:
    x = p["x"]
    if x.dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 or bf16; given {x.dtype}"
    if x.numel == 0:
        return "there is nothing to add"
    config = choose(p)
    if _grid(p, config.lanes)[0] * -(-x.shape[1] // config.height) >= 2**31:
        return "more programs than one launch may have"
    return None


def choose(p: Problem) -> Config:
    """Rows of up to 8192 elements take one program, which takes several if they are short; columns likewise, at least a sector wide."""
    _, along, inner = p["x"].shape
    size = p["x"].itemsize
    if inner == 1:
        tile = 8192 if size == 2 else 4096
        if pow2(along) <= 2 * tile:
            lanes = max(1, min(pow2(_lanes(p)), 4096 // pow2(along)))
            while lanes > 1 and _grid(p, lanes)[0] < 4 * p.device.sms:
                lanes //= 2
            return Config(pow2(along), lanes, max(1, min(16, pow2(along) * lanes // 512)), True)
        return Config(tile, 1, 8, False)
    lanes = min(pow2(inner), 128 // size)
    height = (8192 if size == 2 else 4096) // lanes
    if pow2(along) <= height:
        return Config(pow2(along), lanes, max(1, min(8, pow2(along) * lanes // 512)), True)
    return Config(height, lanes, 8, False)


def configs(p: Problem) -> list[Config]:
    first = choose(p)
    found = [Config(first.height, first.lanes, w, first.whole) for w in (4, 8, 16)]
    if not first.whole:
        found += [Config(h, first.lanes, w, False) for h in (first.height // 2, first.height * 2) for w in (4, 8, 16)]
    return found


def _group(config: Config) -> int:
    """Tiles of a group: so many that a program waits for 256 words, at least 8 of each lane."""
    return max(8, 256 // config.lanes)


def _words(p: Problem, config: Config) -> tuple[int, int, int]:
    """Tiles of a chain, groups of a chain, words in all."""
    tiles = -(-p["x"].shape[1] // config.height)
    groups = -(-tiles // _group(config))
    return tiles, groups, 1 + _grid(p, config.lanes)[0] * (tiles + groups) * config.lanes


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {} if config.whole else {"words": Meta((_words(p, config)[2],), "i64")}


def launches(p: Problem, config: Config) -> list[Launch]:
    x, out = p["x"], p["out"]
    _, along, inner = x.shape
    programs, blocks = _grid(p, config.lanes)
    rows = inner == 1

    def strides(of: tuple[int, ...], name: str) -> dict[str, int]:
        """Strides of outer, along and lane: with one inner position the rows are the lanes."""
        return dict(zip((f"{name}o", f"{name}n", f"{name}l"), (0, of[1], of[0]) if rows else of, strict=True))

    early = p.device.pdl
    args = {"x": "x", "out": "out", "N": along, "L": _lanes(p), "blocks": blocks, **strides(x.strides, "x"), **strides(out.strides, "o")}
    args |= {"ROWS": rows, "HEIGHT": config.height, "LANES": config.lanes, "REVERSE": bool(p.option("reverse")), "PDL": early}
    if config.whole:
        return [Launch(_whole, (programs,), args, config.warps, pdl=early)]
    tiles, groups, count = _words(p, config)
    clear = Launch(_clear, (-(-count // 4096),), {"words": "words", "count": count, "BLOCK": 4096, "PDL": early}, 4, pdl=early)
    args |= {"words": "words", "chains": programs, "tiles": tiles, "groups": groups, "GROUP": _group(config)}
    return [clear, Launch(_tiles, (programs * tiles,), args, config.warps, pdl=early)]
