"""dx = scale · mask · dout over [R, C] and dbias, its sum over the rows. Contract: rooftop/ops/bias_mask_scale_add.py

Bytes: dout and mask are read once, dx is written once: the lower bound. dbias in two stages: each program adds a slab of rows in float32 in
a fixed order and writes a partial row (2 / height of the traffic in bf16), a second launch adds those; none if a slab is all rows. A mask
from a seed takes 17 integer instructions an element at half rate: at 4 bytes an element that alone is 0.86 of the time of a copy.
Prediction: 0.95 of a copy with a mask that is given, 0.9 with one from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.formats.random_bits import threshold
from rooftop.kernels._device.column_sums import column_sums
from rooftop.kernels._device.random import kept

LARGE = 1 << 24  # elements, from which the memory limits, not the launches
SECOND = 12 << 20  # bytes that an H200's memory moves while a second launch starts and adds the partial rows
TILE = 8 << 10  # bytes of dout of a program's rows at a time (2304627 x 75 float16, five in flight: 262 us with half as much, 244)
STAGED = 5 * TILE  # bytes of dout in flight on a multiprocessor (608 x 40589 bf16: 39.0 us with three programs of as much, 35.0 with as much of all three)
UNIT = 8  # elements that an access takes together: 16 bytes of 16-bit elements, 8 of a mask
SHORT_ROW = 2048  # elements
FLYING = 45 << 10  # bytes of programs without stages on a multiprocessor, read and written, that keep its memory busy


@triton.jit
def _some_rows(dout, mask, dx, first, count, column, C, limit, ds, ms, xs, scale, seed,
          THRESHOLD: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of the columns below `limit` of `count` rows, from row `first` on."""
    total = tl.zeros((LANES, BLOCK), tl.float32)
    for k in tl.range(0, tl.cdiv(count, LANES), num_stages=STAGES):
        step = k * LANES + tl.arange(0, LANES)[:, None]
        row = first + step
        inside = (step < count) & (column < limit)
        v = tl.load(dout + row * ds + column, inside, other=0).to(tl.float32) * scale
        if mask is not None:
            # declared contiguous only in groups of eight: 16 bytes of the mask a thread would be another layout than dout's, and need an
            # exchange
            flag = row * ms + column
            if BLOCK >= 16:  # Triton makes a tensor of one element a scalar, for which this declaration fails
                flag = tl.max_contiguous(flag, [1, 8])
            v = tl.where(tl.load(mask + flag, inside, other=0) != 0, v, 0)
        elif THRESHOLD > 0:
            v = tl.where(kept(seed, row, column, C, THRESHOLD, SHORT), v, 0)
        tl.store(dx + row * xs + column, v.to(dx.dtype.element_ty), inside)
        total += v
    return total


@triton.jit(do_not_specialize=["R", "height", "rest"])  # these follow the row kernels of a call
def _slab(dout, mask, dx, to, R, C, rest, blocks, height, ds, ms, xs, scale, seed,
          THRESHOLD: tl.constexpr, SHORT: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
          PDL: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK columns of a slab of `height` rows, LANES at a time; the sums of its columns are written to to[slab, C] if given. REST: after R rows
    comes one of `rest` columns, a slab of its own. C and the strides are in vectors of EACH elements. FIRST: the first of two launches."""
    if PDL:
        gdc_wait()
        if FIRST:
            gdc_launch_dependents()
    C *= EACH
    ds *= EACH
    ms *= EACH
    xs *= EACH
    slab = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    column = at[None, :]
    left = R - slab * height
    count = tl.minimum(height, left).to(tl.int32)
    total = _some_rows(dout, mask, dx, slab * height, count, column, C, C, ds, ms, xs, scale, seed, THRESHOLD, SHORT, BLOCK, LANES, STAGES)
    if REST and left <= 0:  # after the loop, which Triton pipelines at the top level only
        row = R + tl.zeros((1, 1), tl.int64)
        total += _some_rows(dout, mask, dx, row, 1, column, C, rest, ds, ms, xs, scale, seed, THRESHOLD, SHORT, BLOCK, LANES, 1)
    if to is not None:
        tl.store(to + slab * C + at, tl.sum(total, 0).to(to.dtype.element_ty), at < C)


@dataclass(frozen=True)
class Config:
    """Columns, rows at a time, rows of a slab and warps of one program; `stages` - 1 loads of rows in flight besides those in use."""

    block: int
    lanes: int
    height: int
    warps: int
    stages: int = 1


def _moved(p: Problem) -> int:
    """Bytes of the tensors of rows."""
    return sum([m.nbytes for n in ("dout", "mask", "dx") if (m := p.get(n)) is not None])


def _down_all_rows(p: Problem, c: Config) -> bool:
    """Whether programs of all rows take less time than slabs and a second launch: by the rows that they add to fill their lanes and the bytes
    that they keep in flight (10924 x 1296 float32, by 81 programs: 77 us; 66 x 140144 bf16, with lanes for 128 rows: 28 us)."""
    (rows, columns, _), moved = _extents(p), _moved(p)
    flying = min(-(-columns // c.block), 8 * p.device.sms) * c.block * c.lanes * moved // (rows * columns)
    slower = c.height / rows * max(1.0, FLYING * p.device.sms / flying)
    return moved <= 2 * SECOND or moved * slower <= 1.1 * moved + SECOND


def _fold(p: Problem) -> int:
    """How many rows are seen as one: so many that each starts on a vector, where there are no gaps between rows, and enough bytes to make up for
    a second launch: accesses of single elements take three to four times as long (130x61628 bf16: 58 us, folded 16). Each has its partial row,
    a small part of the traffic if rows are short: twice as many then, for longer pieces of them in a block."""
    rows, columns = p["dx"].shape
    dense = all(m.strides[0] == columns for _, m in p.tensors if m is not None and len(m.shape) == 2)
    unit = UNIT if columns >= SHORT_ROW else 2 * UNIT
    fold = unit // gcd(unit, columns)
    return fold if dense and rows >= fold and _moved(p) >= SECOND else 1


def _extents(p: Problem) -> tuple[int, int, int]:
    """Rows and columns as the programs see them, and the columns of a last row that is shorter."""
    rows, columns = p["dx"].shape
    fold = _fold(p)
    return rows // fold, columns * fold, rows % fold * columns


def _grid(p: Problem, config: Config) -> tuple[int, int, int]:
    """Programs, blocks of columns, slabs of whole rows."""
    rows, columns, rest = _extents(p)
    blocks, slabs = -(-columns // config.block), -(-rows // config.height)
    return blocks * slabs + -(-rest // config.block), blocks, slabs


def supports(p: Problem) -> str | None:
    if p["dx"].numel == 0:
        return "there is nothing to compute"
    if _extents(p)[1] >= 2**31 - 2**14 or _grid(p, choose(p))[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**14 columns and 2**31 programs; given {p['dx'].shape}"
    return None


def _block(columns: int, most: int) -> int:
    """The largest power of two, from 128 to `most`, that pads the columns by at most a sixteenth more than the best of them."""
    sizes = [size for size in (2048, 1024, 512, 256, 128) if size <= most]
    padded = {size: -(-columns // size) * size for size in sizes}
    return next(size for size in sizes if 16 * padded[size] <= 17 * min(padded.values()))


def choose(p: Problem) -> Config:
    """Measured on an H100 and an H200. If there is a bias to sum: few columns down all rows, which needs no second launch, if that makes enough
    programs and rows are few; else slabs, one program a multiprocessor, or eight if a mask from a seed keeps the arithmetic units busy. STAGED
    bytes are in flight on a multiprocessor, three steps of a program at least; five programs or more need no stages."""
    rows, columns, _ = _extents(p)
    wide, tall = (1 << (n - 1).bit_length() for n in (columns, rows))
    if p.get("dbias") is None:
        block = min(1024, wide)
        lanes = max(1, min(2048 // block, tall))
        return Config(block, lanes, lanes, 4)
    if columns >= 1024 and rows * columns < LARGE and _fold(p) == 1:
        block = 32 if columns >= 4096 else 16
        lanes = min(4096 // block, max(16, tall))
        found = Config(block, lanes, -(-rows // lanes) * lanes, max(1, min(8, block * lanes // 256)))
        if _down_all_rows(p, found):
            return found
    made, size = p.get("mask") is None and float(p.option("p")) > 0, p["dx"].itemsize
    tile, programs = (1024, 8) if made else (TILE // size, 1)
    block = wide if wide < 128 else _block(columns, min(tile, 2048, wide))
    least = max(1, 32 // block)  # not fewer elements than threads
    lanes, blocks = max(least, min(tile // block, tall)), -(-columns // block)
    slabs = _slabs(blocks, -(-rows // lanes), programs, p.device.sms)
    own = STAGED // -(-blocks * slabs // p.device.sms)  # bytes in flight of a program
    few = max(least, min(lanes, 1 << (own // (3 * block * size)).bit_length() >> 1))
    stages = 1 + (2 * own // (few * block * size) + 1) // 2
    if made or own < TILE or -(-rows // slabs) < 2 * stages * few:
        few, stages = lanes, 1
    return Config(block, few, -(-rows // (slabs * few)) * few, max(1, min(8, block * few // 256)), stages)


def _slabs(blocks: int, most: int, programs: int, sms: int) -> int:
    """The fewest slabs with which waves of programs occupy three of four multiprocessors, which saturate the memory; `programs` of one at once."""
    first = max(1, programs * sms // blocks)
    for slabs in range(first, min(most, 4 * first) + 1):
        if 4 * slabs * blocks >= 3 * -(-slabs * blocks // sms) * sms:
            return slabs
    return first


def configs(p: Problem) -> list[Config]:
    """A slab of all rows needs no second launch."""
    rows, columns, _ = _extents(p)
    summed, wide, found = p.get("dbias") is not None, 1 << (columns - 1).bit_length(), set()
    for block in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        for warps in (4, 8, 16):
            for each in (8, 16):
                lanes = 32 * warps * each // block
                if block > max(16, wide) or lanes < 1 or lanes > 1 << (rows - 1).bit_length():
                    continue
                blocks = -(-columns // block)
                for programs in (1, 4, 8) if summed and block >= 128 else ():  # a multiprocessor
                    slabs = max(1, programs * p.device.sms // blocks)
                    height = -(-rows // (slabs * lanes)) * lanes
                    found |= {Config(block, lanes, height, warps, stages) for stages in (1, 3, 6) if stages == 1 or height > lanes}
                found.add(Config(block, lanes, lanes if not summed else -(-rows // lanes) * lanes, warps))
    return sorted(found, key=str)


def _parts(p: Problem, config: Config) -> int:
    """Partial rows of dbias: of each slab, and those that do not fold."""
    return _grid(p, config)[2] * _fold(p) + _extents(p)[2] // p["dx"].shape[1]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    parts = _parts(p, config)
    held = parts if _extents(p)[2] == 0 else parts + _fold(p)  # the last program of those that do not fold writes zeros behind them
    return {} if p.get("dbias") is None or parts == 1 else {"pb": Meta((held, p["dx"].shape[1]), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    (rows, columns, rest), parts = _extents(p), _parts(p, config)
    programs, blocks, _ = _grid(p, config)
    summed, fold = p.get("dbias") is not None, _fold(p)
    strides = {
        short: m.strides[0] * fold if (m := p.get(n)) is not None else 0 for short, n in (("ds", "dout"), ("ms", "mask"), ("xs", "dx"))
    }
    to = None if not summed else "dbias" if parts == 1 else "pb"
    args = {"dout": "dout", "mask": "mask", "dx": "dx", "to": to, "R": rows, "rest": rest, "blocks": blocks}
    each = gcd(UNIT, columns, *strides.values())
    args |= {"C": columns // each, **{n: s // each for n, s in strides.items()}, "EACH": each}
    args |= {"height": config.height, "scale": float(p.option("scale")), "seed": "seed"}
    args |= {"THRESHOLD": threshold(float(p.option("p"))), "SHORT": p["dx"].numel <= 2**32, "REST": rest > 0, "BLOCK": config.block}
    args |= {"LANES": config.lanes, "STAGES": config.stages, "PDL": p.device.pdl, "FIRST": to == "pb"}
    found = [Launch(_slab, (programs,), args, config.warps, pdl=p.device.pdl)]
    return found + column_sums([("pb", "dbias")], parts, p["dx"].shape[1], p.device) if to == "pb" else found
