"""The arithmetic of attention in plain torch, any option: what rooftop/ops/attention.py and its backward are judged by.

One head of keys at a time, so that no more than its scores are held; sequences of one length together while they are short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooftop.formats.random_bits import halves

if TYPE_CHECKING:
    from torch import Tensor

UNBOUNDED = -1  # of `left` and `right`
TOGETHER = 1 << 22  # scores that are held at once, if a sequence alone has no more


@dataclass(frozen=True)
class Options:
    """What is the same for all of a call. The tensors are those of `rooftop.attention`; None where absent."""

    bias: Tensor | None
    mask: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    left: int
    right: int
    scale: float
    softcap: float
    dropout_p: float
    seed: int
    rows: int  # queries and keys of the tensors that were given: dropout counts its elements by them
    keys: int
    key_begin: Tensor | None = None
    key_end: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """One sequence, or some of the same extents: where the queries begin, how many there are, and the keys that they see."""

    batch: slice
    start: int
    count: int
    keys: Any  # of each sequence: a slice of k and v; or (pages, rows, whether there is such a page), one for each token
    length: int


def spans(bounds: Tensor, total: int) -> list[tuple[int, int]]:
    """(start, length) of each packed sequence. Bounds beyond the buffer, or below the one before, count as the nearest that fit."""
    found, start = [], 0
    for i, value in enumerate(bounds.tolist()):
        end = min(max(int(value), start), total)
        if i:
            found.append((start, end - start))
        start = end
    return found


def parts(q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, pages: Tensor | None, lengths: Tensor | None) -> Iterator[Part]:
    import torch

    if q.device.type == "meta":
        raise NotImplementedError("attention in plain torch takes the sequences one by one, and meta tensors have none")
    if cu_q is not None:
        assert cu_k is not None
        for (start, count), (first, length) in zip(spans(cu_q, q.shape[1]), spans(cu_k, k.shape[1]), strict=True):
            yield Part(slice(0, 1), start, count, slice(first, first + length), length)
        return
    batch, queries, heads = q.shape[:3]
    most = k.shape[1] if pages is None else pages.shape[1] * k.shape[1]
    if pages is None and lengths is None:
        step = max(1, TOGETHER // max(1, queries * most * heads // max(1, k.shape[2])))
        for b in range(0, batch, step):
            yield Part(slice(b, min(b + step, batch)), 0, queries, slice(0, most), most)
        return
    for b in range(batch):
        length = most if lengths is None else min(max(int(lengths[b]), 0), most)
        if pages is None:
            yield Part(slice(b, b + 1), 0, queries, slice(0, length), length)
        else:
            token = torch.arange(length, device=k.device)
            page = pages[b, token // k.shape[1]].long()
            real = (page >= 0) & (page < k.shape[0])
            yield Part(slice(b, b + 1), 0, queries, (torch.where(real, page, 0), token % k.shape[1], real), length)


def taken(x: Tensor, part: Part, head: int, missing: float) -> Tensor:
    """Keys or values [N, length, D] of one head. `missing`: what a token on a page that does not exist reads as. Keys read as NaN, which
    scores of queries that see them become; values as 0, so that it does not reach the others."""
    import torch

    if isinstance(part.keys, slice):
        return x[part.batch, part.keys, head]
    page, row, real = part.keys
    if x.shape[0] == 0:
        return x.new_full((1, part.length, x.shape[3]), missing)
    return torch.where(real[:, None], x[page, row, head], missing)[None]


def visible(part: Part, o: Options, device: Any) -> Tensor | None:
    """[count, length] bool: position i + length - count sees the keys from position - left to position + right; None: all of them."""
    import torch

    if o.left == UNBOUNDED and o.right == UNBOUNDED:
        return None
    ahead = torch.arange(part.length, device=device)[None] - torch.arange(part.count, device=device)[:, None] - (part.length - part.count)
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if o.left != UNBOUNDED:
        seen &= ahead >= -o.left
    if o.right != UNBOUNDED:
        seen &= ahead <= o.right
    return seen


def spread(x: Tensor, part: Part, heads: slice) -> Tensor:
    """A bias or mask that is broadcast over [B, H, Sq, Sk], for these sequences and heads."""
    x = x[part.batch] if x.shape[0] > 1 else x
    x = x[:, heads] if x.shape[1] > 1 else x
    return x[..., : part.length] if x.shape[-1] > 1 else x


def scores(q: Tensor, k: Tensor, part: Part, heads: slice, o: Options) -> tuple[Tensor, Tensor | None]:
    """(z, the capped scores before anything was added, or None): [N, G, count, length] of queries [N, G, count, D] and keys [N, length,
    D]."""
    import torch

    z = (q @ k.mT[:, None]) * o.scale
    capped = None
    if o.softcap:
        z = capped = o.softcap * (z / o.softcap).tanh()
    if o.bias is not None:
        z = z + spread(o.bias, part, heads).to(z.dtype)
    if o.alibi_slopes is not None:
        slopes = o.alibi_slopes[part.batch, heads] if o.alibi_slopes.dim() == 2 else o.alibi_slopes[heads]
        apart = (
            torch.arange(part.length, device=q.device)[None] - torch.arange(part.count, device=q.device)[:, None]
            - (part.length - part.count)
        )
        z = z - slopes.to(z.dtype)[..., None, None] * apart.abs()
    if (seen := visible(part, o, q.device)) is not None:
        z = z.where(seen, float("-inf"))
    if o.key_begin is not None and o.key_end is not None:
        key = torch.arange(part.length, device=q.device)
        begin, end = (x[part.batch, None, :, None] for x in (o.key_begin, o.key_end))
        z = z.where((key >= begin) & (key < end), float("-inf"))
    if o.mask is not None:
        z = z.where(spread(o.mask, part, heads), float("-inf"))
    return z, capped


def keep(part: Part, heads: slice, count: int, o: Options, device: Any) -> Tensor:
    """[N, G, count, length] bool: what dropout keeps. Element [b, h, i, j] has the number ((b H + h) Sq + i) · Sk' + j, Sk' the next
    multiple of 8 of Sk, and is dropped where its 16 bits are below 65536 · dropout_p."""
    import torch

    row = -(-o.keys // 8) * 8
    limit = min(round(o.dropout_p * 65536), 65535)

    def of_head(b: int, h: int) -> Tensor:
        start = ((b * count + h) * o.rows + part.start) * row
        return halves(o.seed, part.count * row, device, start).view(part.count, row)[:, : part.length] >= limit

    return torch.stack(
        [torch.stack([of_head(b, h) for h in range(heads.start, heads.stop)]) for b in range(part.batch.start, part.batch.stop)]
    )


def forward(q: Tensor, k: Tensor, v: Tensor, all_parts: list[Part], o: Options, rounded: Any = None) -> tuple[Tensor, Tensor]:
    """(out [B, S, H, Dv], lse [B, H, S]). `rounded`: the dtype in which the probabilities meet v, as in attention at that precision. In 8 bits
    the largest of a row is 2^8."""
    import torch

    out = q.new_zeros(*q.shape[:3], v.shape[3])
    lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
    group = q.shape[2] // max(k.shape[2], 1)
    for part in all_parts:
        rows = slice(part.start, part.start + part.count)
        for h in range(k.shape[2]):
            heads = slice(h * group, (h + 1) * group)
            z, _ = scores(q[part.batch, rows, heads].transpose(1, 2), taken(k, part, h, float("nan")), part, heads, o)
            if o.sinks is not None:
                z = torch.cat((z, o.sinks[heads].to(z.dtype)[:, None, None].expand(*z.shape[:3], 1)), -1)
            if z.shape[-1] == 0:
                continue
            most = z.detach().amax(-1, keepdim=True)
            most = most.where(most != float("-inf"), 0.0)
            e = (z - most).exp()
            total = e.sum(-1, keepdim=True)
            lse[part.batch, heads, rows] = (most + total.log())[..., 0]
            e, total = e[..., : part.length], total.where(total != 0, 1.0)
            if o.dropout_p:
                e = (e / (1 - o.dropout_p)).where(keep(part, heads, q.shape[2], o, q.device), 0.0)
            if rounded is not None:
                unit = 2.0**-8 if rounded.itemsize == 1 else 1.0
                e = (e / unit).to(rounded).to(e.dtype) * unit
            out[part.batch, rows, heads] = ((e @ taken(v, part, h, 0.0)[:, None]) / total).transpose(1, 2)
    return out, lse


def alone(q: Tensor, k: Tensor, v: Tensor, all_parts: list[Part], o: Options) -> tuple[Tensor, Tensor]:
    """`forward`, one query of the heads of a key head at a time: what torch is called for has the sizes of the keys that it sees, and no others."""
    import torch

    out = q.new_zeros(*q.shape[:3], v.shape[3])
    lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
    group = q.shape[2] // max(k.shape[2], 1)
    for part, h, b in ((p, h, b) for p in all_parts for h in range(k.shape[2]) for b in range(p.batch.start, p.batch.stop)):
        heads = slice(h * group, (h + 1) * group)
        one = Part(slice(b, b + 1), part.start, part.count, part.keys, part.length)
        keys, values = taken(k, one, h, float("nan"))[0], taken(v, one, h, 0.0)[0]
        for i in range(part.count):
            position = i + part.length - part.count
            first = 0 if o.left == UNBOUNDED else max(0, position - o.left)
            last = part.length if o.right == UNBOUNDED else min(part.length, max(position + o.right + 1, 0))
            if o.key_begin is not None and o.key_end is not None:
                first, last = max(first, int(o.key_begin[b, i])), min(last, int(o.key_end[b, i]))
            j = torch.arange(first, max(first, last), device=q.device)
            if o.mask is not None:  # of one head at a time, where heads see other keys
                seen = spread(o.mask, one, heads)[0, :, i if o.mask.shape[2] > 1 else 0].expand(group, part.length)
                alike = len(seen.unique(dim=0)) == 1
                sets = [(heads, j[seen[0][j]])] if alike else [(slice(heads.start + g, heads.start + g + 1), j[seen[g][j]]) for g in range(group)]
            else:
                sets = [(heads, j)]
            for of, at in sets:
                row, norm = _one(q[b, part.start + i, of].clone(), keys[at], values[at], at - position, i, one, of, o)
                out[b, part.start + i, of], lse[b, of, part.start + i] = row, norm
    return out, lse


def _one(q: Tensor, k: Tensor, v: Tensor, apart: Tensor, i: int, part: Part, heads: slice, o: Options) -> tuple[Tensor, Tensor]:
    """(out [G, Dv], lse [G]) of query i, q [G, D], with the keys that it sees, `apart` positions from it."""
    import torch

    z = (q @ k.T) * o.scale
    if o.softcap:
        z = o.softcap * (z / o.softcap).tanh()
    if o.bias is not None:
        of = spread(o.bias, part, heads)[0, :, i if o.bias.shape[2] > 1 else 0].to(z.dtype)
        z = z + (of[:, apart + i + part.length - part.count] if of.shape[1] > 1 else of)
    if o.alibi_slopes is not None:
        slopes = o.alibi_slopes[part.batch.start, heads] if o.alibi_slopes.dim() == 2 else o.alibi_slopes[heads]
        z = z - slopes.to(z.dtype)[:, None] * apart.abs()
    if o.sinks is not None:
        z = torch.cat((z, o.sinks[heads].to(z.dtype)[:, None]), -1)
    if z.shape[-1] == 0:
        return q.new_zeros(q.shape[0], v.shape[1]), q.new_full(q.shape[:1], float("-inf"))
    most = z.amax(-1, keepdim=True)
    most = most.where(most != float("-inf"), 0.0)
    e = (z - most).exp()
    total = e.sum(-1, keepdim=True)
    return (e[:, : k.shape[0]] @ v) / total.where(total != 0, 1.0), (most + total.log())[:, 0]


def _product(a: Tensor, b: Tensor, seen: Tensor | None) -> Tensor:
    """a @ b, where a pair that is not seen contributes nothing; a is 0 there, and b may be NaN or infinite. `seen` None: a @ b."""
    made = a @ b
    if seen is None or bool((bad := ~b.isfinite()).logical_not().all()):
        return made
    return made.where(seen.to(a.dtype) @ bad.to(a.dtype) > 0, a @ b.where(~bad, 0.0))


def backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, all_parts: list[Part], o: Options,
    plain: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(dq, dk, dv, dbias, dsinks), with P = exp(z - lse):

    dv = Pᵀ dout, dP = dout vᵀ, dz = P · (dP - sum_d dout · out + dlse), dq = scale · dz k, dk = scale · dzᵀ q, dsink = -sum_i exp(sink -
    lse_i) ...

    A pair of a query and a key that is hidden from it contributes nothing, NaN or not. `plain`: as arithmetic has it, in which 0 · NaN is
    NaN."""
    import torch

    dout, q, k, v, out = (x.to(lse.dtype) for x in (dout, q, k, v, out))
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dbias = None if o.bias is None else torch.zeros_like(o.bias, dtype=q.dtype)
    dsinks = None if o.sinks is None else torch.zeros_like(o.sinks, dtype=q.dtype)
    group = q.shape[2] // max(k.shape[2], 1)
    delta = (dout * out).sum(-1).transpose(1, 2)  # [B, H, S]
    if dlse is not None:
        delta = delta - dlse
    for part in all_parts:
        rows = slice(part.start, part.start + part.count)
        for h in range(k.shape[2]):
            heads = slice(h * group, (h + 1) * group)
            keys, values = taken(k, part, h, float("nan"))[:, None], taken(v, part, h, 0.0)[:, None]
            mine, flow = q[part.batch, rows, heads].transpose(1, 2), dout[part.batch, rows, heads].transpose(1, 2)
            z, capped = scores(mine, keys[:, 0], part, heads, o)
            norm = lse[part.batch, heads, rows, None].to(z.dtype)
            empty = norm == float("-inf")
            norm = norm.where(~empty, 0.0)
            p = (z - norm).exp()
            seen = None if plain else z != float("-inf")
            if seen is not None:
                p = p.where(seen, 0.0)
            kept, dp = p, flow @ values.mT
            if o.dropout_p:
                stays = keep(part, heads, q.shape[2], o, q.device)
                kept, dp = ((x / (1 - o.dropout_p)).where(stays, 0.0) for x in (p, dp))
            part_delta = delta[part.batch, heads, rows, None].where(~empty, 0.0)
            dz = p * (dp - part_delta)
            if seen is not None:
                dz = dz.where(seen, 0.0)
            if dbias is not None:
                like = spread(dbias, part, heads)
                like += dz.sum_to_size(like.shape)
            if dsinks is not None:
                assert o.sinks is not None
                dsinks[heads] -= ((o.sinks[heads].to(z.dtype)[:, None, None] - norm).exp() * part_delta).sum((0, 2, 3))
            if capped is not None:
                slope = 1 - (capped / o.softcap).square()
                dz = dz * (slope if seen is None else slope.where(seen, 0.0))
            dq[part.batch, rows, heads] = (_product(dz, keys, seen) * o.scale).transpose(1, 2)
            turned = None if seen is None else seen.mT
            for to, found in ((dk, _product(dz.mT, mine, turned).sum(1) * o.scale), (dv, _product(kept.mT, flow, turned).sum(1))):
                if isinstance(part.keys, slice):
                    to[part.batch, part.keys, h] += found
                else:
                    page, row, real = part.keys
                    to.index_put_((page[real], row[real], torch.tensor(h, device=to.device)), found[0][real], accumulate=True)
    return dq, dk, dv, dbias, dsinks
