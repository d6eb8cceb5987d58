"""The gradient of cross-entropy over [R, C], given the rows' normalisers: a shift m and the sum of exp(logit - m). Contract:
rooftop/ops/cross_entropy.py

Bytes: each logit is read once, each gradient written once, in place if requested (every element is read and written by
the same thread): the lower bound. Ignored rows are not read. Prediction: 0.97 of a copy from 256 MiB on."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait, libdevice

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.loss._logits import EXACT, SHORT, capped, each, edges, exp, how, middle, raised


@triton.jit
def _slope(v, hit, most, each, smoothed, smoothing, cap, CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """d loss / d logit; `hit`: it is the target's; `most`: the row's shift; `each`: the factor of its exponentials; `smoothed`: the
    smoothing of one class."""
    if CAP == SHORT:
        part = libdevice.fast_dividef(2.0, raised(v, cap))  # tanh is 1 - part
        v = cap - cap * part
        slope = part * (2 - part)
    if CAP == EXACT:
        v = capped(v, cap)
        u = v / cap
        slope = 1 - u * u
    d = exp(v - most) * each - smoothed
    d = tl.where(hit, d - (1 - smoothing), d)
    return d * slope if CAP != 0 else d


@triton.jit
def _grad(dloss, x, target, normaliser, divisor, dx, C, blocks, xs, gs, ds, ignore, smoothing, scale, cap,
          CAP: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK classes of one row. Row strides of x, dloss (0: one for all) and dx in elements. EACH: x and dx have the same alignment."""
    if CHAINED:
        gdc_wait()
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(target + row)
    live = t != ignore
    most = tl.load(normaliser + 2 * row)
    sum_ = tl.load(normaliser + 2 * row + 1)
    each = (1 + 2 * scale * (most + tl.log(sum_))) / sum_
    g = tl.where((t >= 0) & (t < C), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
    start, before, within = middle(row, xs, C, EACH)
    v = tl.load(x + start + at, (at < within) & live, other=0).to(tl.float32)
    d = g * _slope(v, at + before == t, most, each, smoothing / C, smoothing, cap, CAP)
    to = dx + (row * ds if EACH == 0 else start)
    tl.store(to + at, tl.where(live, d, 0).to(dx.dtype.element_ty), at < within)
    if EACH > 0:
        column, there = edges(before, within, C, EACH)
        there = there & (tl.program_id(0) % blocks == 0)
        v = tl.load(x + row * xs + column, there & live, other=0).to(tl.float32)
        d = g * _slope(v, column == t, most, each, smoothing / C, smoothing, cap, CAP)
        tl.store(dx + row * ds + column, tl.where(live, d, 0).to(dx.dtype.element_ty), there)


@dataclass(frozen=True)
class Config:
    """Classes and warps of one program."""

    block: int
    warps: int


def supports(p: Problem) -> str | None:
    x = p["input"]
    if x.numel == 0:
        return "there is nothing to compute"
    if x.shape[1] >= 2**31 - 2**14 or x.shape[0] * -(-x.shape[1] // choose(p).block) >= 2**31:
        return f"takes fewer than 2**31 - 2**14 classes and 2**31 programs; given {x.shape}"
    return None


def choose(p: Problem) -> Config:
    return Config(min(2048, 1 << (p["input"].shape[1] - 1).bit_length()), 4)


def configs(p: Problem) -> list[Config]:
    return [Config(block, warps) for block in (512, 1024, 2048, 4096, 8192) for warps in (2, 4, 8) if 128 * warps <= block <= 1024 * warps]


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["input"].shape
    blocks = -(-columns // config.block)
    args = {"dloss": "dloss", "x": "input", "target": "target", "normaliser": "normaliser", "divisor": "divisor", "dx": "dinput"}
    args |= {"C": columns, "blocks": blocks}
    step = p["dloss"].strides[0] if p["dloss"].shape else 0
    args |= {"xs": p["input"].strides[0], "gs": step, "ds": p["dinput"].strides[0], "ignore": int(p.option("ignore_index"))}
    args |= {
        "smoothing": float(p.option("label_smoothing")), "scale": float(p.option("lse_square_scale")), "cap": float(p.option("softcap"))
    }
    args |= {"CAP": how(p), "EACH": each(p), "BLOCK": config.block, "CHAINED": p.device.pdl}
    return [Launch(_grad, (rows * blocks,), args, config.warps, chained=p.device.pdl)]
