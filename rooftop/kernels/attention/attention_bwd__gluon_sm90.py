"""FlashAttention backward on Hopper, deterministic: plain, causal, windowed, packed, with lengths, bias, dropout. Contract: rooftop/ops/attention.py

Three launches, no atomics. The first computes, for each query, log2 of its normaliser and delta = sum_d dout_d · out_d - dlse. In the
second a block has 128 keys and computes their dk and dv; in the third it has 128 queries and computes their dq. The third does not wait for
the second, so that both together have one last wave of blocks that is not full (some 12 waves each at 24,576 tokens of 8 heads). Both are warp-specialised:
one producer warp, which loads the tiles of the other side by TMA into a ring, and two consumer warp groups of 64 rows each, so that the
exponentials of one overlap with the products of the other. The second launch computes transposed scores: weights and their gradients stay
in registers, as the left operands of wgmma. The products that need them run while the scores of the next tile are computed: 0.93 to 0.97 of
the time of the third launch on an H200, with tiles of 64 keys (of 128, which leave few registers, it was slower), and 0.91 to 0.97 of the
second's with heads of 64 columns; wider ones lack the registers. Seven products of tiles; five would suffice if dq were summed by atomics.

Where key heads are few, several blocks of the second launch share a key head, each with some of its query heads. They write float32 parts
of dk and dv, which one more launch for each of the two adds in their order, last.

For heads of more than 128 columns the registers of a group hold one gradient of 64 keys: a block of the second launch has 64 keys, one
group computes dv and the other dk. That is an eighth product.

A bias comes through a tile for each group; its own gradient is a launch of the portable backward. Packed sequences: two small launches
beforehand list their tiles, of keys for the second launch and of queries for the third."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._bwd_keys_sm90 import load_queries, to_half, to_keys
from rooftop.kernels.attention._bwd_queries_sm90 import load_keys, to_queries
from rooftop.kernels.attention._bwd_sm90 import common_of
from rooftop.kernels.attention._bwd_tiles import arguments, bias_launch, bias_refused
from rooftop.kernels.attention._packed_sm90 import CHUNK, plan_tiles
from rooftop.kernels.attention._sinks import to_sinks

# ptxas keeps addresses that loops share in local memory; none of them is read in the loops without a mask. Of packed sequences bounds
# too, which are kernel arguments elsewhere; of a bias the addresses of its tile.
# The third launch reads nothing that the second writes.
DEMANDS = {"has": ["HGMMA", "UTMALDG"], "spills": 304, "waits_last": ["_queries"]}
ROWS = 64  # of a consumer warp group, and of a block of the first launch


@gluon.jit(do_not_specialize=("SQ", "SK", "PADDED", "tiles", "all_heads", "section", "H", "GROUP", "ab", "seed", "limit", "EIGHTHS"))
def _keys(q_desc, k_desc, v_desc, g_desc, norms, deltas, dk, dv, tiles, all_heads, section, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb,
          ws, wh, D: gl.constexpr, DV: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
          TILES: gl.constexpr, PARTS: gl.constexpr, softcap=None, slopes=None, ab=None, seed=None, limit=None, again=None, EIGHTHS=None,
          CAP: gl.constexpr = False, DROP: gl.constexpr = False, SHORT: gl.constexpr = True, plan=None, lengths=None, bias_desc=None,
          REST: gl.constexpr = 0, REST_V: gl.constexpr = 0):
    """dk and dv of TILES times 64 keys a block: with 2 tiles each warp group has 64 keys, with 1 one of the two gradients. Strides of
    batch, token and head: dk (y), dv (w). PARTS: so many blocks share a key head, with GROUP query heads each; dk and dv are then of
    parts of key heads. DROP: dropout; `again`: 1 / (1 - dropout_p). `plan`: the tiles of keys of packed sequences; each sequence has as many
    keys as `lengths` says. REST, REST_V: columns of a head, and of its values, behind the first 64, where products have no more."""
    gdc_launch_dependents()  # the third launch needs nothing of this one: its blocks start where the last of these leave a multiprocessor idle
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [TILES] + k_desc.block_type.shape, k_desc.layout)
    v_tiles = gl.allocate_shared_memory(v_desc.dtype, [TILES] + v_desc.block_type.shape, v_desc.layout)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    g_ring = gl.allocate_shared_memory(g_desc.dtype, [STAGES] + g_desc.block_type.shape, g_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    g_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    BIAS: gl.constexpr = bias_desc is not None
    z_tiles, z_full, z_empty = q_ring, empty, empty
    if BIAS:
        z_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        z_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        z_tiles = gl.allocate_shared_memory(bias_desc.dtype, [2] + bias_desc.block_type.shape, bias_desc.layout)
    mbarrier.init(kv_full.index(0), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(g_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    if BIAS:
        for i in gl.static_range(2):
            mbarrier.init(z_full.index(i), count=1)
            mbarrier.init(z_empty.index(i), count=1)
    fence_async_shared()
    if TILES == 2:
        gl.warp_specialize([
            (to_keys,
             (0, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full, z_empty, norms, deltas, dk, dv, tiles,
              all_heads, section, plan, lengths, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit,
              again, EIGHTHS, D, DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT, BIAS, REST, REST_V)),
            (to_keys,
             (1, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full, z_empty, norms, deltas, dk, dv, tiles,
              all_heads, section, plan, lengths, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit,
              again, EIGHTHS, D, DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT, BIAS, REST, REST_V)),
            (load_queries,
             (q_desc, k_desc, v_desc, g_desc, bias_desc, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full,
              z_empty, tiles, all_heads, section, plan, lengths, H, GROUP, SQ, SK, STAGES, BM, LEFT, RIGHT, TILES, PARTS, BIAS)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (to_half,
             (0, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full, z_empty, norms, deltas, dk, dv, tiles,
              all_heads, section, plan, lengths, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit,
              again, EIGHTHS, D, DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT, BIAS, REST, REST_V)),
            (to_half,
             (1, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full, z_empty, norms, deltas, dk, dv, tiles,
              all_heads, section, plan, lengths, H, GROUP, SQ, SK, PADDED, scale, yb, ys, yh, wb, ws, wh, softcap, slopes, ab, seed, limit,
              again, EIGHTHS, D, DV, STAGES, BM, LEFT, RIGHT, CAP, DROP, SHORT, BIAS, REST, REST_V)),
            (load_queries,
             (q_desc, k_desc, v_desc, g_desc, bias_desc, k_tiles, v_tiles, q_ring, g_ring, z_tiles, kv_full, q_full, g_full, empty, z_full,
              z_empty, tiles, all_heads, section, plan, lengths, H, GROUP, SQ, SK, STAGES, BM, LEFT, RIGHT, TILES, PARTS, BIAS)),
        ], [4, 1], [240, 24])


@triton.jit
def _sum_parts(x, out, N, H, ob, os, oh, S, D: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,  # type: ignore[no-untyped-def]
               ROWS_OF: tl.constexpr):
    """out [B, S, H, D] = the sum over the parts of x [B, S, H, PARTS, D], in their order. N rows of B, S and H."""
    row = tl.program_id(0).to(tl.int64) * ROWS_OF + tl.arange(0, ROWS_OF)
    d = tl.arange(0, SIZE)
    inside = (row < N)[:, None] & (d < D)[None, :]
    total = tl.zeros((ROWS_OF, SIZE), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(x + ((row * PARTS + part) * D)[:, None] + d[None, :], mask=inside, other=0.0)
    to = out + row // (S * H) * ob + row // H % S * os + row % H * oh
    tl.store(to[:, None] + d[None, :], total.to(out.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=("SQ", "SK", "PADDED", "tiles", "all_heads", "section", "H", "GROUP", "ab", "seed", "limit", "EIGHTHS"))
def _queries(q_desc, k_desc, v_desc, g_desc, norms, deltas, dq, tiles, all_heads, section, H, GROUP, SQ, SK, PADDED, scale, xb, xs, xh,
             D: gl.constexpr, STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, softcap=None, slopes=None,
             ab=None, seed=None, limit=None, again=None, EIGHTHS=None, CAP: gl.constexpr = False, DROP: gl.constexpr = False,
             SHORT: gl.constexpr = True, plan=None, lengths=None, bias_desc=None,
          REST: gl.constexpr = 0, REST_V: gl.constexpr = 0):
    """dq of 128 queries a block; those with the most keys start first. Strides of batch, token and head: dq (x). `plan`: their tiles, of packed
    sequences."""
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2] + q_desc.block_type.shape, q_desc.layout)
    g_tiles = gl.allocate_shared_memory(g_desc.dtype, [2] + g_desc.block_type.shape, g_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    qg_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    BIAS: gl.constexpr = bias_desc is not None
    z_tiles, z_full, z_empty = k_ring, empty, empty
    if BIAS:
        z_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        z_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        z_tiles = gl.allocate_shared_memory(bias_desc.dtype, [2] + bias_desc.block_type.shape, bias_desc.layout)
    mbarrier.init(qg_full.index(0), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    if BIAS:
        for i in gl.static_range(2):
            mbarrier.init(z_full.index(i), count=1)
            mbarrier.init(z_empty.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([
        (to_queries,
         (0, q_tiles, g_tiles, k_ring, v_ring, z_tiles, qg_full, k_full, v_full, empty, z_full, z_empty, norms, deltas, dq, tiles,
          all_heads, section, plan, lengths, H, SQ, SK, PADDED, scale, xb, xs, xh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D,
          STAGES, BN, LEFT, RIGHT, CAP, DROP, SHORT, BIAS, REST, REST_V)),
        (to_queries,
         (1, q_tiles, g_tiles, k_ring, v_ring, z_tiles, qg_full, k_full, v_full, empty, z_full, z_empty, norms, deltas, dq, tiles,
          all_heads, section, plan, lengths, H, SQ, SK, PADDED, scale, xb, xs, xh, softcap, slopes, ab, seed, limit, again, EIGHTHS, D,
          STAGES, BN, LEFT, RIGHT, CAP, DROP, SHORT, BIAS, REST, REST_V)),
        (load_keys,
         (q_desc, k_desc, v_desc, g_desc, bias_desc, q_tiles, g_tiles, k_ring, v_ring, z_tiles, qg_full, k_full, v_full, empty, z_full,
          z_empty, tiles, all_heads, section, plan, lengths, H, GROUP, SQ, SK, STAGES, BN, LEFT, RIGHT, BIAS)),
    ], [4, 1], [240, 24])


@dataclass(frozen=True)
class Config:
    """Queries of a tile and stages of the ring buffer in the second launch; keys and stages in the third. `parts`: blocks of the second
    launch that share a key head; with more than 1, two more launches add what they computed."""

    BM: int = 64
    KEY_STAGES: int = 3
    BN: int = 64
    QUERY_STAGES: int = 4
    parts: int = 1


def _wide(p: Problem) -> bool:
    """Whether the registers of a warp group hold only one gradient of 64 keys."""
    return max(p["q"].shape[3], p["v"].shape[3]) > 128


def supports(p: Problem) -> str | None:
    names = ("mask", "page_table", "q_scale", "k_scale", "v_scale")
    if reason := shared.refused(p, names, dropout=True):
        return reason
    if _wide(p) and (float(p.option("softcap")) or p.get("alibi_slopes") is not None):
        return "takes a soft cap and alibi_slopes with heads of at most 128 columns"
    if p.get("alibi_slopes") is not None and max(p["q"].shape[1], p["k"].shape[1]) > 2**22:
        return "takes alibi_slopes with at most 2^22 queries and keys"
    if (bias := p.get("bias")) is not None:
        if _wide(p):
            return "takes a bias with heads of at most 128 columns: wider ones have a loop of their own, without it"
        if bias.dtype != p["q"].dtype or bias.shape[2:] != (p["q"].shape[1], p["k"].shape[1]):
            return f"takes a bias of the dtype of q with all rows and columns; given {bias.dtype} {list(bias.shape)}"
        if reason := not_copied(bias):
            return f"TMA does not copy bias: {reason}"
        if reason := bias_refused(bias):
            return reason
    for name in ("q", "k", "v", "dout"):
        if reason := not_copied(p[name], *shared.heads_first(p, name)):
            return f"TMA does not copy {name}: {reason}"
    for name in ("dlse", "lse"):
        if (m := p.get(name)) is not None and not m.contiguous:
            return f"{name} must lie without gaps"
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    return None


def choose(p: Problem) -> Config:
    parts = _parts(p)
    if _wide(p):
        return Config(KEY_STAGES=2, BN=32, QUERY_STAGES=3, parts=parts)
    narrow = max(shared.width(p["q"].shape[3]), shared.width(p["v"].shape[3])) == 64
    return Config(KEY_STAGES=4 if narrow else 3, parts=parts)


def _group(p: Problem) -> int:
    return p["q"].shape[2] // max(p["k"].shape[2], 1)


def _parts(p: Problem) -> int:
    """Into how many blocks the query heads of a key head are divided: with few key heads most multiprocessors are idle, and the blocks of
    the first keys, which all queries see in causal order, run alone. In pairs of a block's keys and a tile of queries; such a step takes
    some 2 µs, in which the card adds some 2 MiB of parts. The third launch fills what the last wave of blocks leaves idle: 0.8 as many steps."""
    batch, queries, _, size = p["q"].shape
    keys, key_heads = p["k"].shape[1:3]
    group, owned = _group(p), _owned(p)
    sequences = max(1, p["cu_seqlens_q"].shape[0] - 1) if shared.packed(p) else 1  # packed ones as if all were of one length
    tiles, steps, causal = sequences * -(-keys // (owned * sequences)), -(-queries // (64 * sequences)), p.option("right") == 0
    added = batch * keys * key_heads * (size + p["v"].shape[3]) * 8 / (2 << 20)
    best, least = 1, float("inf")
    for n in range(1, group + 1):
        if group % n:
            continue
        longest, blocks = group // n * steps, tiles * batch * key_heads * n
        alone = longest if causal else -(-blocks // p.device.sms) * longest
        time = max(alone, 1.8 * blocks * longest / p.device.sms * (0.55 if causal else 1.0))
        if (time := time + (added * n if n > 1 else 0.0)) < least * 0.97:
            best, least = n, time
    return best


def configs(p: Problem) -> list[Config]:
    size = shared.width(p["q"].shape[3]) + shared.width(p["v"].shape[3])
    found = [Config(bm, ks, bn, qs, _parts(p)) for bm in (64, 128) for bn in (32, 64, 128) for ks in (2, 3, 4) for qs in (2, 3, 4)]
    most, keys = p.device.shared_per_block - 1024, _owned(p)
    bias = 0 if p.get("bias") is None else 2 * 64 * 2  # bytes a row or column of its two tiles
    return [
        c for c in found if (size == 128 or c.BM == 64)
        and 2 * size * max(keys + c.BM * c.KEY_STAGES, 128 + c.BN * c.QUERY_STAGES) + bias * max(c.BM, c.BN) <= most
    ]


def _owned(p: Problem) -> int:
    """Keys of a block of the second launch."""
    return 64 if _wide(p) else 128


def _padded(p: Problem, config: Config) -> int:
    """Queries of a head that the second launch loops over, and one more tile, which it prefetches; the last tile of a packed sequence may
    begin anywhere."""
    return (-(-p["q"].shape[1] // config.BM) + (2 if shared.packed(p) else 1)) * config.BM


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    batch, _, heads, _ = p["q"].shape
    found = {name: Meta((batch * heads, _padded(p, config)), "f32") for name in ("norms", "deltas")}
    if config.parts > 1:
        (_, keys, key_heads, size), size_v = p["k"].shape, p["v"].shape[3]
        found |= {n: Meta((batch, keys, key_heads * config.parts, d), "f32") for n, d in (("dk_parts", size), ("dv_parts", size_v))}
    if shared.packed(p):
        found |= {f"plan_{n}": Meta((8 * (1 + shared.tiles(p, block, n)),), "i32") for n, block in (("k", _owned(p)), ("q", 128))}
    return found


def launches(p: Problem, config: Config) -> list[Launch]:
    from triton.experimental.gluon.language import bfloat16, float16

    batch, queries, heads, size = p["q"].shape
    keys, key_heads = p["k"].shape[1:3]
    size_v, kind, padded = p["v"].shape[3], bfloat16 if p["q"].dtype == "bf16" else float16, _padded(p, config)

    def tiled(name: str, rows: int) -> Descriptor:
        block = (1, 1, rows, shared.width(p[name].shape[3]))
        shape, strides = shared.heads_first(p, name)
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), kind), shape=shape, strides=strides)

    def section(walked: int, together: int, heads: int) -> int:
        """Heads, `together` at a time, whose tensors that are read repeatedly fill at most half of the L2. All sections have as many: a short
        last one would begin with its longest tiles when the others end."""
        groups, most = heads // together, max(1, p.device.l2_bytes // 2 // (walked * (size + size_v) * 2))
        return -(-groups // -(-groups // most)) * together

    common = {
        "dout": "dout", "out": "out", "dlse": "dlse" if p.get("dlse") else None, "lse": "lse", "norms": "norms", "deltas": "deltas",
        "SQ": queries, "PADDED": padded, "H": heads, **shared.strides(p, "g", "dout"), **shared.strides(p, "o", "out"), "DV": size_v,
        "SIZE": shared.width(size_v),
    }
    parts = config.parts
    args = {"norms": "norms", "deltas": "deltas", "H": heads, "SQ": queries, "SK": keys, "PADDED": padded, "scale": "scale", "D": size,
            **shared.windows(p)}
    if shared.softcap(p):
        args |= {"softcap": shared.softcap(p), "CAP": True}
    if (slopes := p.get("alibi_slopes")) is not None:
        args |= {"slopes": "alibi_slopes", "ab": heads if len(slopes.shape) == 2 else 0}
    if float(p.option("dropout_p")):
        args |= {"seed": "seed", "again": 1.0 / (1.0 - float(p.option("dropout_p"))), **shared.dropout(p)}
    for name, columns in (("REST", size), ("REST_V", size_v)):
        if rest := shared.rest(columns, max(shared.width(size), shared.width(size_v))):
            args[name] = rest
    if p.get("cache_lengths") is not None:
        args["lengths"] = "cache_lengths"

    def biased(rows: int, columns: int) -> dict[str, Descriptor]:
        tile = (1, 1, rows, columns)
        return {"bias_desc": Descriptor("bias", tile, gl.NVMMASharedLayout.get_default_for(list(tile), kind))} if p.get("bias") else {}

    packed, owned = shared.packed(p), _owned(p)
    key_tiles, query_tiles = shared.tiles(p, owned, "k"), shared.tiles(p, 128)
    virtual = key_heads * parts  # key heads of the second launch
    if parts > 1:
        where = {"dk": "dk_parts", "dv": "dv_parts"}
        strides = {
            f"{letter}{n}": s
            for letter, d in (("y", size), ("w", size_v)) for n, s in (("b", keys * virtual * d), ("s", virtual * d), ("h", d))
        }
    else:
        where, strides = {"dk": "dk", "dv": "dv"}, {**shared.strides(p, "y", "dk"), **shared.strides(p, "w", "dv")}
    to_keys = {
        "q_desc": tiled("q", config.BM), "k_desc": tiled("k", ROWS), "v_desc": tiled("v", ROWS), "g_desc": tiled("dout", config.BM),
        **where, "tiles": key_tiles, "all_heads": batch * virtual, "GROUP": _group(p) // parts,
        "section": section(queries * _group(p) // parts, 1, batch * virtual), **strides, "DV": size_v, "STAGES": config.KEY_STAGES,
        "BM": config.BM, "TILES": owned // 64, "PARTS": parts, **({"plan": "plan_k"} if packed else {}), **biased(config.BM, ROWS),
    }
    to_queries = {
        "q_desc": tiled("q", ROWS), "k_desc": tiled("k", config.BN), "v_desc": tiled("v", config.BN), "g_desc": tiled("dout", ROWS),
        "dq": "dq", "tiles": query_tiles, "all_heads": batch * heads, "GROUP": _group(p),
        "section": section(keys, _group(p), batch * heads),
        **shared.strides(p, "x", "dq"), "STAGES": config.QUERY_STAGES, "BN": config.BN,
        **({"plan": "plan_q"} if packed else {}), **biased(ROWS, config.BN),
    }
    rows = batch * keys * key_heads
    sums = []
    for name, d in (("dk", size), ("dv", size_v)) if parts > 1 else ():
        ob, os, oh = (p[name].strides[i] for i in (0, 1, 2))
        of = max(1, 4096 // shared.width(d))
        given = {"x": f"{name}_parts", "out": name, "N": rows, "H": key_heads, "ob": ob, "os": os, "oh": oh, "S": keys, "D": d,
                 "SIZE": shared.width(d), "PARTS": parts, "ROWS_OF": of}
        sums.append(Launch(_sum_parts, (-(-rows // of),), given, 4))
    if (bias := p.get("bias")) is not None:
        sums.append(bias_launch(p, bias, {**arguments(p), "delta": "deltas", "PADDED": padded}, 64, 64))
    if p.get("sinks") is not None:
        given = {"sinks": "sinks", "lse": "lse", "delta": "deltas", "dsinks": "dsinks", "B": batch, "SQ": queries, "H": heads, "BLOCK": 1024}
        sums.append(Launch(to_sinks, (heads,), {**given, "PADDED": padded}, 4))
    plans = []
    for mine, other, block, count, others in (("k", "q", owned, keys, queries), ("q", "k", 128, queries, keys)) if packed else ():
        given = {"cu_q": f"cu_seqlens_{mine}", "cu_k": f"cu_seqlens_{other}", "plan": f"plan_{mine}", "N": p["cu_seqlens_q"].shape[0] - 1}
        plans.append(Launch(plan_tiles, (-(-count // block),), {**given, "TQ": count, "TK": others, "BM": block, "CHUNK": CHUNK}, 4))
    return [
        *plans,
        Launch(common_of, (-(-padded // ROWS), heads, batch), common, 4),
        Launch(_keys, (key_tiles * batch * virtual,), {**args, **to_keys}, 4),
        Launch(_queries, (query_tiles * batch * heads,), {**args, **to_queries}, 4, pdl=p.device.pdl),
        *sums,
    ]
