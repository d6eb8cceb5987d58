"""Which rows cross_entropy_bwd__stretch__cuda_sm80.cu takes, and how it divides them among blocks.

A block has 256 threads with `vectors` vectors of 16 bytes each: with four, 16 KiB, of which six blocks keep 96 KiB of a multiprocessor in
flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, typed

BLOCK, VECTORS, N = 256, 4, 8  # threads; vectors a thread; elements of a vector
LEAST, MOST = N, 1 << 14  # classes: a vector has elements of at most two rows; places in a piece are divided with 32 bits
MANY = 1 << 25  # bytes of all logits from which it is preferred


def supports(p: Problem, head: Head) -> str | None:
    x = p["input"]
    columns = x.shape[1]
    if not x.numel:
        return "there is nothing to compute"
    if not LEAST <= columns <= MOST:
        return f"takes {LEAST} to {MOST} classes; given {columns}"
    if float(p.option("softcap")):
        return "does not soft-cap: a tanh a logit costs more than what this kernel saves"
    if not all(_one_after_another(m) for m in (x, p["dinput"])):
        return "rows of the input and of its gradient must lie one after another, the first on 16 bytes"
    if x.numel >= 2**42:
        return f"takes fewer than 2**42 logits; given {x.shape}"
    return None


def _one_after_another(m: Meta) -> bool:
    rows, columns = m.shape
    return m.align >= 16 and (columns == 1 or m.strides[1] == 1) and (rows == 1 or m.strides[0] == columns)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return {"vectors": VECTORS}


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return [{"vectors": n} for n in (2, 3, 4, 6, 8)]


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, dloss, columns = p["input"], p["dloss"], p["input"].shape[1]
    piece, smoothing = BLOCK * config["vectors"] * N, float(p.option("label_smoothing"))
    args: dict[str, tuple[str, Any]] = {
        "C": ("i32", columns), "x": ("ptr", "input"), "elements": ("i64", x.numel), "part": ("u32", -(-(2**32) // columns)),
        "part_long": ("u64", -(-(2**64) // columns)), "dloss": ("ptr", "dloss"), "gs": ("i64", dloss.strides[0] if dloss.shape else 0),
        "targets": ("ptr", "target"), "normalisers": ("ptr", "normaliser"), "divisor": ("ptr", "divisor"), "dx": ("ptr", "dinput"),
        "ignore": ("i64", int(p.option("ignore_index"))), "smoothed": ("f32", smoothing / columns), "hit": ("f32", 1 - smoothing),
        "scale": ("f32", float(p.option("lse_square_scale"))),
    }
    rows = min(x.shape[0], (piece + columns - 2) // columns + 1)  # of a piece, at most
    kernel = f"cross_entropy_bwd_stretch<{DTYPES[x.dtype].cuda}, {config['vectors']}>"
    return [
        Launch(
            kernel,
            (-(-x.numel // piece),),
            **typed(args),
            block=(BLOCK,),
            shared=16 * rows,
            pdl=p.device.arch >= 90,
        )
    ]
