"""out = x + y. The smallest kernel of the library; read it first. Contract: rooftop/ops/add.py

A program adds `block` contiguous elements. Each element is read once and written once, in vectors of 16 bytes per thread: nothing
else matters for the speed of an elementwise kernel."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Problem


@triton.jit
def _add(x, y, out, n, rest, BLOCK: tl.constexpr, REST: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """n is a multiple of 16: with another mask every access would be one of single elements. REST: `rest` more elements follow."""
    if PDL:
        gdc_wait()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # 64 bits: n may be beyond 2**31
    inside = at < n
    total = tl.load(x + at, inside) + tl.load(y + at, inside)
    tl.store(out + at, total, inside)
    if REST and tl.program_id(0) == 0:
        last = tl.arange(0, 16)
        left = last < rest
        tl.store(out + n + last, tl.load(x + n + last, left) + tl.load(y + n + last, left), left)


@dataclass(frozen=True)
class Config:
    """Elements and warps of one program."""

    block: int
    warps: int


def supports(p: Problem) -> str | None:
    if p["x"].dtype != p["y"].dtype or p["x"].dtype != p["out"].dtype:
        return f"takes one dtype; given {p['x'].dtype}, {p['y'].dtype} and {p['out'].dtype}"
    if not 0 < p["x"].numel <= 2**31 * 1024:
        return f"takes 1 to 2**41 elements; given {p['x'].numel}"
    return None


def configs(p: Problem) -> list[Config]:
    return [Config(block, warps) for block in (1024, 2048, 4096) for warps in (4, 8)]


def choose(p: Problem) -> Config:
    return Config(block=1024, warps=4) if p["x"].itemsize >= 4 else Config(block=2048, warps=4)


def launches(p: Problem, config: Config) -> list[Launch]:
    n, rest = p["x"].numel // 16 * 16, p["x"].numel % 16
    args = {"x": "x", "y": "y", "out": "out", "n": n, "rest": rest, "BLOCK": config.block, "REST": rest > 0, "PDL": p.device.pdl}
    return [Launch(kernel=_add, grid=(max(1, -(-n // config.block)),), args=args, warps=config.warps, pdl=p.device.pdl)]
