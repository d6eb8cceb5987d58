"""dx = scale · mask · dout over [R, C] and dbias, its sum over the rows. Contract: rooftop/ops/bias_mask_scale_add.py

Bytes: dout and mask read once, dx written once: the floor. dbias in two stages: each program adds a slab of rows in float32 in a fixed
order and leaves a partial row (2 / height of the traffic in bf16), a second launch adds those. A mask
from a seed takes 17 integer instructions an element at half rate: at 4 bytes an element that alone is 0.86 of the time of a copy.
Prediction: 0.95 of a copy with a mask that is given, 0.9 with one from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.kernels._device.columns import column_sums
from rooftop.kernels._device.random import kept
from rooftop.lab.spec import Launch, Meta, Problem
from rooftop.ops._random import threshold


@triton.jit
def _slab(dout, mask, dx, pb, R, C, blocks, height, ds, ms, xs, scale, seed,
          THRESHOLD: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """BLOCK columns of a slab of `height` rows, LANES at a time; the sums of its columns -> pb[slab, C] where that is given."""
    slab = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((LANES, BLOCK), tl.float32)
    for k in range(height // LANES):
        row = slab.to(tl.int64) * height + k * LANES + tl.arange(0, LANES)[:, None]
        inside = (row < R) & (column < C)
        v = tl.load(dout + row * ds + column, inside, other=0).to(tl.float32) * scale
        if mask is not None:
            v = tl.where(tl.load(mask + row * ms + column, inside, other=0) != 0, v, 0)
        elif THRESHOLD > 0:
            v = tl.where(kept(seed, row, column, C, THRESHOLD, SHORT), v, 0)
        tl.store(dx + row * xs + column, v.to(dx.dtype.element_ty), inside)
        total += v
    if pb is not None:
        at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
        tl.store(pb + slab.to(tl.int64) * C + at, tl.sum(total, 0), at < C)


@dataclass(frozen=True)
class Config:
    """Columns, rows at a time, rows of a slab and warps of one program."""

    block: int
    lanes: int
    height: int
    warps: int


def _grid(p: Problem, config: Config) -> tuple[int, int, int]:
    """Programs, blocks of columns, slabs."""
    rows, columns = p["dx"].shape
    blocks, slabs = -(-columns // config.block), -(-rows // config.height)
    return blocks * slabs, blocks, slabs


def supports(p: Problem) -> str | None:
    if p["dx"].numel == 0:
        return "there is nothing to compute"
    if p["dx"].shape[1] >= 2**31 - 2**14 or _grid(p, choose(p))[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**14 columns and 2**31 programs; given {p['dx'].shape}"
    return None


def choose(p: Problem) -> Config:
    """Slabs as high as leave sixteen programs a multiprocessor, where there is a bias to sum."""
    rows, columns = p["dx"].shape
    block = min(1024, 1 << (columns - 1).bit_length())
    lanes = max(1, min(2048 // block, 1 << (rows - 1).bit_length()))
    if p.get("dbias") is None:
        return Config(block, lanes, lanes, 4)
    height = rows * -(-columns // block) // (16 * p.device.sms)
    return Config(block, lanes, max(lanes, min(128, 1 << max(0, height.bit_length() - 1))), 4)


def configs(p: Problem) -> list[Config]:
    heights = (1, 4, 16, 32, 64, 128) if p.get("dbias") is not None else (1, 2, 4)
    return [
        Config(block, lanes, height, warps)
        for block in (512, 1024, 2048) for lanes in (1, 2, 4) for height in heights for warps in (4, 8)
        if height >= lanes and 1024 <= block * lanes <= 4096
    ]  # fmt: skip


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {} if p.get("dbias") is None else {"pb": Meta((_grid(p, config)[2], p["dx"].shape[1]), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["dx"].shape
    programs, blocks, slabs = _grid(p, config)
    summed = p.get("dbias") is not None
    strides = {short: m.strides[0] if (m := p.get(n)) is not None else 0 for short, n in (("ds", "dout"), ("ms", "mask"), ("xs", "dx"))}
    args = {"dout": "dout", "mask": "mask", "dx": "dx", "pb": "pb" if summed else None, "R": rows, "C": columns, "blocks": blocks}
    args |= {"height": config.height, **strides, "scale": float(p.option("scale")), "seed": "seed"}
    args |= {"THRESHOLD": threshold(float(p.option("p"))), "SHORT": rows * columns <= 2**32, "BLOCK": config.block, "LANES": config.lanes}
    found = [Launch(_slab, (programs,), args, config.warps)]
    return found + [column_sums("pb", "dbias", slabs, columns)] if summed else found
