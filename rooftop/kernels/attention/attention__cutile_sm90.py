"""FlashAttention-2 forward in cuTile, for 16 bits, causal or whole. Contract: rooftop/ops/attention.py

A block computes a tile of queries of one head and loops over the keys that they see: first the tiles that all of its queries see whole,
then those at the edges, which are masked. The longest tiles of a causal call start first."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Problem, View
from rooftop.kernels._device.cutile import ct

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
INF = float("inf")
PLAIN = ("bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "page_table", "cache_lengths", "alibi_slopes", "q_scale", "k_scale", "v_scale",
         "sinks", "key_begin", "key_end")


def _step(acc, top, total, q, k, v, batch, head, j, first, factor, position, BM, BN, D, DV, MASKED, CAUSAL):
    """The tile j of keys. Maximum and sum of a row are in base 2, with factor = scale · log2(e)."""
    kt = ct.load(k, (batch, head, 0, j), (1, 1, D, BN), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO).reshape((D, BN))
    z = ct.mma(q, kt, ct.zeros((BM, BN), ct.float32))
    if MASKED:
        columns = j * BN + ct.arange(BN, dtype=ct.int32).reshape((1, BN))
        seen = columns < k.shape[2]
        if CAUSAL:
            seen = seen & (columns <= first + position + ct.arange(BM, dtype=ct.int32).reshape((BM, 1)))
        z = ct.where(seen, z, -INF)
    new = ct.maximum(top, ct.max(z, axis=1, keepdims=True) * factor)  # a NaN passes through the exponentials
    base = new
    if MASKED:
        base = ct.where(new == -INF, 0.0, new)
    p = ct.exp2(z * factor - base)
    shrink = ct.exp2(top - base)
    total = total * shrink + ct.sum(p, axis=1, keepdims=True)
    vt = ct.load(v, (batch, head, j, 0), (1, 1, BN, DV), padding_mode=ct.PaddingMode.ZERO).reshape((BN, DV))
    return ct.mma(p.astype(q.dtype), vt, acc * shrink), new, total


def forward(
    q, k, v, out, lse, scale, GROUP: ct.Constant[int], BM: ct.Constant[int], BN: ct.Constant[int], D: ct.Constant[int],
    DV: ct.Constant[int], CAUSAL: ct.Constant[bool],
):
    """q, k, v, out [B, H, S, D], lse [B, H, S]."""
    factor = scale * LOG2E
    heads, tiles = q.shape[1], ct.cdiv(q.shape[2], BM)
    i, head, batch = ct.bid(0) // heads, ct.bid(0) % heads, ct.bid(1)
    if CAUSAL:
        i = tiles - 1 - i
    first, position, keys = i * BM, k.shape[2] - q.shape[2], k.shape[2]
    whole, end = keys // BN, ct.cdiv(keys, BN)
    if CAUSAL:
        whole = min(whole, max(first + position + 1, 0) // BN)
        end = min(end, ct.cdiv(max(first + BM + position, 0), BN))
    tile = ct.load(q, (batch, head, i, 0), (1, 1, BM, D), padding_mode=ct.PaddingMode.ZERO).reshape((BM, D))
    acc = ct.zeros((BM, DV), ct.float32)
    top = ct.full((BM, 1), -INF, ct.float32)
    total = ct.zeros((BM, 1), ct.float32)
    for j in range(whole):
        acc, top, total = _step(acc, top, total, tile, k, v, batch, head // GROUP, j, first, factor, position, BM, BN, D, DV, False, CAUSAL)
    for j in range(whole, end):
        acc, top, total = _step(acc, top, total, tile, k, v, batch, head // GROUP, j, first, factor, position, BM, BN, D, DV, True, CAUSAL)
    some = ct.where(total == 0.0, 1.0, total)
    ct.store(out, (batch, head, i, 0), (acc / some).astype(out.dtype).reshape((1, 1, BM, DV)))
    ct.store(lse, (batch, head, i), ((top + ct.log2(total)) * LN2).reshape((1, 1, BM)))


@dataclass(frozen=True)
class Config:
    """Tiles of `rows` queries and `keys` keys, `warps` warps that compute."""

    rows: int
    keys: int
    warps: int
    occupancy: int = 0


def supports(p: Problem) -> str | None:
    q, v = p["q"], p["v"]
    if q.dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {q.dtype}"
    if given := [n for n in PLAIN if p.get(n) is not None]:
        return f"takes q, k and v alone; given {', '.join(given)}"
    if p.option("softcap") or p.option("dropout_p"):
        return "takes neither a soft cap nor dropout"
    if (p.option("left"), p.option("right")) not in ((-1, -1), (-1, 0)):
        return f"takes causal or whole attention; given the window {p.option('left')}, {p.option('right')}"
    if q.shape[3] != v.shape[3] or q.shape[3] > 128:
        return f"takes heads of up to 128, the same for k and v; given {q.shape[3]} and {v.shape[3]}"
    if 0 in (*q.shape, *p["k"].shape):
        return "there is nothing to compute"
    if any(p[n].strides[3] != 1 for n in ("q", "k", "v", "out")):
        return "the elements of a head must be neighbours"
    if q.shape[0] > 65535:
        return f"takes a batch of up to 65535; given {q.shape[0]}"
    return None


def choose(p: Problem) -> Config:
    return Config(128, 128, 8) if p["q"].shape[1] > 64 else Config(64, 64, 4)


def configs(p: Problem) -> list[Config]:
    return [
        Config(128, 128, 8), Config(128, 64, 8), Config(128, 64, 4), Config(64, 64, 4), Config(64, 128, 4), Config(128, 128, 4),
        Config(256, 64, 8)
    ]


def for_any_rows(p: Problem) -> str:
    return "its tiles follow from the numbers of queries and keys"


def launches(p: Problem, config: Config) -> list[Launch]:
    q = p["q"]
    size = max(16, 1 << (q.shape[3] - 1).bit_length())
    turned = {
        n: View(n, tuple(p[n].shape[i] for i in (0, 2, 1, 3)), tuple(p[n].strides[i] for i in (0, 2, 1, 3))) for n in ("q", "k", "v", "out")
    }
    args = {
        **turned, "lse": "lse", "scale": "scale", "GROUP": q.shape[2] // p["k"].shape[2], "BM": config.rows, "BN": config.keys,
        "D": size, "DV": size, "CAUSAL": p.option("right") == 0,
    }
    options = {"num_worker_warps": config.warps, **({"occupancy": config.occupancy} if config.occupancy else {})}
    return [Launch(forward, (-(-q.shape[1] // config.rows) * q.shape[2], q.shape[0]), args, options=options)]
