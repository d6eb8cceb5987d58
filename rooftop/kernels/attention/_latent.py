"""Shared by the kernels of latent_attention: what they take, their common arguments, and the launch that joins the parts of a sequence."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E
from rooftop.ops._attention import UNBOUNDED

SPLITS = 128  # parts of a sequence, at most


@triton.jit
def _join(parts, norms, out, lse, SQ, H, ob, os, oh, V: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, COUNT: tl.constexpr,
          PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """COLUMNS of a row of one head: its parts, weighted by their normalisers. COUNT: the next power of two from PARTS."""
    if PDL:
        gdc_wait()
    query = tl.program_id(0) % SQ
    first = tl.program_id(0) // SQ * COLUMNS
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    number = (batch * H + head) * SQ + query
    i = tl.arange(0, COUNT)
    dv = first + tl.arange(0, COLUMNS)
    norm = tl.load(norms + number * PARTS + i, mask=i < PARTS, other=float("-inf"))
    acc = tl.load(parts + (number * PARTS + i)[:, None] * V + dv[None, :], mask=(i < PARTS)[:, None] & (dv < V)[None, :], other=0.0)
    top = tl.max(norm, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(norm - base)
    total = tl.sum(weight, 0)
    made = tl.sum(acc * weight[:, None], 0) / tl.where(total == 0, 1.0, total)
    o_at = out + batch * ob + tl.cast(query, tl.int64) * os + tl.cast(head, tl.int64) * oh
    tl.store(o_at + dv, made.to(out.dtype.element_ty), mask=dv < V)
    if first == 0:
        tl.store(lse + number, (base + tl.log2(total)) / LOG2E)


def refused(p: Problem) -> str | None:
    """None, or what no kernel of these takes."""
    if p["q"].numel == 0 or p["kv"].numel == 0:
        return "there is nothing to multiply"
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    if max(rows(p), room(p)) >= 2**30:
        return "takes fewer than 2^30 rows and tokens"
    return None


def rows(p: Problem) -> int:
    """Heads and queries of a key head."""
    return p["q"].shape[1] * (p["q"].shape[2] // max(p["kv"].shape[2], 1))


def room(p: Problem) -> int:
    """The largest number of tokens of a sequence."""
    pages = p.get("page_table")
    return p["kv"].shape[1] * (1 if pages is None else pages.shape[1])


def columns(p: Problem) -> tuple[int, int]:
    """Columns of a value, and of a key beyond those."""
    value = shared.option(p, "value_size")
    return value, p["q"].shape[3] - value


def parts(blocks: int, slots: int, tiles: int, least: int) -> int:
    """Into how many parts to split the tokens. `blocks`: with one part; `slots`: resident blocks of the card; `tiles`: of the tokens; `least`:
    tiles of a part, at least."""
    most = max(1, min(SPLITS, tiles // least))
    whole = {min(most, max(1, slots * waves // blocks)) for waves in range(1, 9)}  # parts that fill the card so many times
    return min({1, *whole}, key=lambda n: (shared.split_cost(blocks, slots, tiles, n), n))


def scratch(p: Problem, parts: int) -> dict[str, Meta]:
    if parts == 1:
        return {}
    batch, queries, heads, _ = p["q"].shape
    shape = (batch, heads, queries, parts)
    return {"parts": Meta((*shape, columns(p)[0]), "f32"), "norms": Meta(shape, "f32")}


def _result(p: Problem, parts: int) -> dict[str, Any]:
    several = parts > 1
    return {
        "out": "out", "lse": "lse", "parts": "parts" if several else None, "norms": "norms" if several else None, "SQ": p["q"].shape[1],
        "H": p["q"].shape[2], **shared.strides(p, "o", "out"), "V": columns(p)[0], "PARTS": parts,
    }


def arguments(p: Problem, parts: int) -> dict[str, Any]:
    """Of the launch that computes the parts."""
    kv, pages, scale = p["kv"], p.get("page_table"), p.get("kv_scale")
    given = {n: name if p.get(name) is not None else None for n, name in (("table", "page_table"), ("lengths", "cache_lengths"), ("kv_scale", "kv_scale"))}
    return {
        "q": "q", **given, "scale": "scale", "SK": room(p), "PAGES": kv.shape[0] if pages else 0, "GROUP": p["q"].shape[2] // kv.shape[2],
        **shared.strides(p, "q", "q"), "tb": pages.strides[0] if pages else 0, "kg": 1 if scale is not None and scale.shape[0] > 1 else 0,
        **_result(p, parts), "R": columns(p)[1], "PAGE": kv.shape[1] if pages else 0, "CAUSAL": shared.option(p, "right") != UNBOUNDED,
    }


def joined(p: Problem, parts: int) -> list[Launch]:
    """The launch that joins the parts, if there are several."""
    if parts == 1:
        return []
    batch, queries, heads, _ = p["q"].shape
    count, value = pow2(parts), columns(p)[0]
    wide = min(pow2(value), max(32, 8192 // count))  # 64 numbers a thread
    more = {**_result(p, parts), "COLUMNS": wide, "COUNT": count, "PDL": p.device.pdl}
    return [Launch(_join, (queries * -(-value // wide), heads, batch), more, 4, pdl=p.device.pdl)]
