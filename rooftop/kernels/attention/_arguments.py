"""Shared by the launches of attention: the checks of what a kernel supports, and the arguments of the device code."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Meta, Problem
from rooftop.ops._attention import UNBOUNDED

EIGHT_BITS = "f8e4m3"


def option(p: Problem, name: str) -> int:
    return int(p.option(name))


def refused(p: Problem, names: tuple[str, ...], *, dropout: bool = False, eight: bool = False, ranges: bool = False) -> str | None:
    """None, or why a kernel does not support the tensors of a call: `names` are those (besides q, k and v) that it does not support.
    `dropout`: it supports
    dropout; `eight`: 8-bit elements, of keys and values or of all three; `ranges`: a mask of ranges."""
    q, k, v = p["q"], p["k"], p["v"]
    if not (eight and k.dtype == EIGHT_BITS) and (q.dtype not in ("f16", "bf16") or k.dtype != q.dtype or v.dtype != q.dtype):
        return f"takes f16 and bf16, alike for q, k and v; given {q.dtype}, {k.dtype}, {v.dtype}"
    if k.dtype == EIGHT_BITS and q.dtype not in ("f16", "bf16", EIGHT_BITS):
        return f"takes keys and values of 8 bits with queries of f16, bf16 and {EIGHT_BITS}; given {q.dtype}"
    if k.dtype == EIGHT_BITS and p.device.arch < 89:
        return f"Triton has {EIGHT_BITS} from sm_89 on"
    for name in names:
        if p.get(name) is not None:
            return f"takes no {name}"
    if p.get("key_begin") is not None and not ranges:
        return "takes no mask of ranges"
    if float(p.option("dropout_p")) and not dropout:
        return "takes no dropout"
    if q.numel == 0 or k.numel == 0:
        return "there is nothing to multiply"
    if max(q.shape[1], k.shape[1]) >= 2**30:
        return "takes fewer than 2^30 queries and keys"
    return None


def strides(p: Problem, letter: str, name: str) -> dict[str, int]:
    """Strides of batch, token and head by the names that the kernels use."""
    batch, token, head, _ = p[name].strides
    return {f"{letter}b": batch, f"{letter}s": token, f"{letter}h": head}


def broadcast(meta: Meta | None, letter: str = "z") -> dict[str, int]:
    """Strides of a bias (or mask) [B, H, Sq, Sk], 0 where it is broadcast."""
    found = (0, 0, 0, 0) if meta is None else tuple(0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True))
    return dict(zip((f"{letter}b", f"{letter}h", f"{letter}s", f"{letter}k"), found, strict=True))


def dropout(p: Problem) -> dict[str, Any]:
    """The arguments of dropout: its 16-bit threshold, the number of groups of eight elements in a row, and whether a call has fewer than
    2^32 of those."""
    q, probability = p["q"], float(p.option("dropout_p"))
    eighths = -(-p["k"].shape[1] // 8)
    said = {"limit": min(round(probability * 65536), 65535), "EIGHTHS": eighths, "DROP": probability != 0}
    return {**said, "SHORT": q.shape[0] * q.shape[1] * q.shape[2] * eighths < 2**32}


def room(p: Problem) -> int:
    """The largest number of keys of a sequence."""
    pages = p.get("page_table")
    return p["k"].shape[1] * (1 if pages is None else pages.shape[1])


def scale_strides(p: Problem) -> dict[str, int]:
    """Stride of the 8-bit scales over heads: 0 if all heads share one."""
    found = {letter: p.get(f"{letter}_scale") for letter in "qkv"}
    return {f"{letter}g": 1 if m is not None and m.shape[0] > 1 else 0 for letter, m in found.items()}


def split_cost(blocks: int, slots: int, tiles: int, parts: int) -> float:
    """Predicted time, in units of a block's time for a tile when all multiprocessors read: waves of blocks, each with the latency of its
    first tiles, and the second launch. `blocks`: with one part; `slots`: resident blocks of the card; `tiles`: of the keys."""
    return -(-blocks * parts // slots) * (-(-tiles // parts) + 1.5) + (1.0 + parts / 64 if parts > 1 else 0.0)


def softcap(p: Problem) -> float:
    """The soft cap, at most 2^120: scale / cap is then a normal float32, cap · log2(e) is finite, and no score below 2^107 notices."""
    return min(float(p.option("softcap")), 2.0**120)


def packed(p: Problem) -> bool:
    return p.get("cu_seqlens_q") is not None


def tiles(p: Problem, block: int, name: str = "q") -> int:
    """Tiles of queries (or keys) of one head of one batch; for packed sequences the most that any offsets can need."""
    total = p[name].shape[1]
    if not packed(p):
        return -(-total // block)
    sequences = p["cu_seqlens_q"].shape[0] + 1
    return total // block + min(sequences, total)


def windows(p: Problem) -> dict[str, Any]:
    left, right = option(p, "left"), option(p, "right")
    return {"LEFT": left if left != UNBOUNDED else -1, "RIGHT": right if right != UNBOUNDED else -1}


def width(columns: int) -> int:
    """Columns of a head on Hopper, padded to the tile."""
    return 64 if columns <= 64 else 128 if columns <= 128 else 256


def heads_first(p: Problem, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor [B, S, H, D] as [B, H, S, D]."""
    (b, s, h, d), (sb, ss, sh, sd) = p[name].shape, p[name].strides
    return (b, h, s, d), (sb, sh, ss, sd)


def rest(columns: int, wide: int) -> int:
    """Columns of a head behind the first 64, rounded up to 16 or 32, so that its products on Hopper have no more than these; 0: they have
    those of the tile. `wide`: columns of the widest tile."""
    return 0 if wide > 128 else 16 if 64 < columns <= 80 else 32 if 80 < columns <= 96 else 0
