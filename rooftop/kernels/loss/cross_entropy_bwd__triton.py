"""The gradient of cross-entropy over [R, C], given the rows' log-normalisers. Contract: rooftop/ops/cross_entropy.py

Bytes: each logit read once, each gradient written once, over the logits themselves where that is asked (every element is read and written by
the same thread): the floor. Rows that are ignored are not read. Prediction: 0.97 of a copy from 256 MiB."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.kernels._device.logits import capped
from rooftop.lab.spec import Launch, Problem


@triton.jit
def _grad(dloss, x, target, lse, divisor, dx, C, blocks, xs, gs, ds, ignore, smoothing, scale, cap,
          CAP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """BLOCK classes of one row. Row strides of x, dloss (0: one for all) and dx in elements; `smoothing` of one class alone."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(target + row)
    live = t != ignore
    z = tl.load(lse + row)
    g = tl.where((t >= 0) & (t < C), tl.load(dloss + row * gs).to(tl.float32) / tl.load(divisor), float("nan"))
    v = tl.load(x + row * xs + column, (column < C) & live, other=0).to(tl.float32)
    if CAP:
        v = capped(v, cap, x.dtype.element_ty == tl.float32)
    d = tl.exp(v - z) * (1 + 2 * scale * z) - smoothing / C
    d = g * tl.where(column == t, d - (1 - smoothing), d)
    if CAP:
        u = v / cap
        d *= 1 - u * u
    tl.store(dx + row * ds + column, tl.where(live, d, 0).to(dx.dtype.element_ty), column < C)


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
    return Config(min(8192 // p["input"].itemsize, 1 << (p["input"].shape[1] - 1).bit_length()), 4)


def configs(p: Problem) -> list[Config]:
    return [Config(block, warps) for block in (1024, 2048, 4096, 8192) for warps in (4, 8)]


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["input"].shape
    blocks = -(-columns // config.block)
    args = {"dloss": "dloss", "x": "input", "target": "target", "lse": "lse", "divisor": "divisor", "dx": "dinput", "C": columns, "blocks": blocks}
    step = p["dloss"].strides[0] if p["dloss"].shape else 0
    args |= {"xs": p["input"].strides[0], "gs": step, "ds": p["dinput"].strides[0], "ignore": int(p.option("ignore_index"))}
    args |= {"smoothing": float(p.option("label_smoothing")), "scale": float(p.option("lse_square_scale")), "cap": float(p.option("softcap"))}
    return [Launch(_grad, (rows * blocks,), {**args, "CAP": p.option("softcap") != 0, "BLOCK": config.block}, config.warps)]
