"""Products with tiles stored in another rank's memory, for the ladder gemm_comm: the tile, its store as it is or as codes, flags for the
kernel that copies it, and the sum of the received parts. If one device plays all ranks, it is the device's own memory; on several GPUs
`dst` is an address in a peer's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Descriptor, Launch, Meta, Problem

SMALLEST = tl.constexpr(1.1754943508222875e-38)  # 2^-126
WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23: added to a number, it leaves the nearest integer in the sum's low bits
LARGEST = tl.constexpr(3.4028234663852886e38)  # anything larger is infinite
WIRE = 128  # elements that share a scale
SUMMED = 1024  # elements of a program of the sum


@triton.jit
def tiles(a, b, dst, scales, flags, row_a, row_b, at, at_scales, at_flags, M, N, K, GROUP, programs, BM: tl.constexpr, BN: tl.constexpr,
          BK: tl.constexpr,
          CODES: tl.constexpr, FLAGGED: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiplies M rows of a from row_a on with K rows of b from row_b on and writes the result to dst [M, N] from element `at` on. CODES:
    as int8, with a scale for every SHARED elements of a row. FLAGGED: each tile increments the flag of its rows when it is in memory."""
    high, wide = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), high * wide, programs):
        first = tile // (GROUP * wide) * GROUP
        size = tl.minimum(high - first, GROUP)
        i = first + tile % (GROUP * wide) % size
        j = tile % (GROUP * wide) // size
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([row_a + i * BM, k]), b.load([row_b + k, j * BN]), total)
        rows = i * BM + tl.arange(0, BM)
        columns = j * BN + tl.arange(0, BN)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        places = at + rows.to(tl.int64)[:, None] * N + columns[None, :]
        short = total.to(a.dtype)
        if CODES:
            codes, stored = encoded(short.to(tl.float32), BM, BN, SHARED)
            tl.store(dst + places, codes, mask=inside)
            groups = j * (BN // SHARED) + tl.arange(0, BN // SHARED)
            held = (rows < M)[:, None] & (groups < N // SHARED)[None, :]
            tl.store(scales + at_scales + rows.to(tl.int64)[:, None] * (N // SHARED) + groups[None, :], stored, mask=held)
        else:
            tl.store(dst + places, short, mask=inside)
        if FLAGGED:
            tl.debug_barrier()
            tl.atomic_add(flags + at_flags + i, 1, sem="release")


@triton.jit
def encoded(x, BM: tl.constexpr, BN: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """(int8 codes [BM, BN], scales [BM, BN / SHARED]) of x in float32, as rooftop/formats/wire.py defines them."""
    g = x.reshape(BM, BN // SHARED, SHARED)
    finite = tl.abs(g) <= LARGEST
    size = tl.max(tl.where(finite, tl.abs(g), 0.0), 2)
    bad = tl.max(tl.where(finite, 0, 1), 2)
    most = tl.where(bad > 0, 126.0, 127.0)
    s = tl.maximum(tl.div_rn(size, most), SMALLEST)
    part = tl.div_rn(tl.full((BM, BN // SHARED), 1.0, tl.float32), s)
    t = tl.minimum(tl.maximum(tl.where(finite, g, 0.0) * part[:, :, None], -most[:, :, None]), most[:, :, None])
    code = (t + WHOLE).to(tl.int32, bitcast=True) & 255
    special = tl.where(g != g, -128, tl.where(g > 0, 127, -127))
    code = tl.where(finite, code, special)
    return code.to(tl.int8).reshape(BM, BN), tl.where(bad > 0, -s, s)


@triton.jit
def carry(  # type: ignore[no-untyped-def]
    made, dst, flags, at_made, at, at_flags, need, M, N, programs, BM: tl.constexpr, WIDE: tl.constexpr
):
    """Copies rows of `made`, BM at a time, to dst as soon as their flag has counted `need` tiles."""
    for i in range(tl.program_id(0), tl.cdiv(M, BM), programs):
        while tl.atomic_add(flags + at_flags + i, 0, sem="acquire") < need:
            pass
        for row in range(i * BM, tl.minimum(i * BM + BM, M)):
            for column in range(0, N, WIDE):
                columns = column + tl.arange(0, WIDE)
                x = tl.load(made + at_made + row.to(tl.int64) * N + columns, mask=columns < N)
                tl.store(dst + at + row.to(tl.int64) * N + columns, x, mask=columns < N)


@triton.jit
def total(  # type: ignore[no-untyped-def]
    parts, scales, out, at, at_out, count, ranks, CODES: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr
):
    """out: parts [ranks, count] added in the order of the ranks in float32."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    found = tl.zeros((BLOCK,), tl.float32)
    for p in range(ranks):
        begin = at + p.to(tl.int64) * count
        v = tl.load(parts + begin + places, mask=inside, other=0).to(tl.float32)
        if CODES:
            s = tl.load(scales + begin // SHARED + places // SHARED, mask=inside, other=1.0)
            x = v * tl.abs(s)
            x = tl.where((s < 0) & (tl.abs(v) == 127.0), v * float("inf"), x)
            v = tl.where((s < 0) & (v < -127.0), float("nan"), x)
        found = tl.where(p == 0, v, found + v)
    tl.store(out + at_out + places, found.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Config:
    """The tile, rows of tiles in a group, warps, pipeline stages; programs that multiply, and programs that copy, for rungs that have
    those."""

    BM: int
    BN: int
    BK: int = 64
    GROUP: int = 8
    warps: int = 8
    stages: int = 3
    programs: int = 1
    carriers: int = 0


def refusal(p: Problem, wires: Sequence[str]) -> str | None:
    """Why these rungs do not support a problem."""
    a, n = p["a"], p["b"].shape[2]
    if a.dtype == "f32":
        return "this rung takes operands of 16 bits"
    if p.device.arch < 90:
        return "TMA needs sm_90"
    if p["out"].numel == 0 or a.shape[0] == 1:
        return "nothing travels"
    if a.shape[2] == 0 or a.shape[2] % 64 or n % WIRE:
        return f"this rung takes K in multiples of 64 and N in multiples of {WIRE}; given {a.shape[2]} and {n}"
    if a.align % 16 or p["b"].align % 16:
        return "TMA reads rows that begin on multiples of 16 bytes"
    if p.option("wire") not in wires:
        return f"this rung sends {', '.join(wires)}; given {p.option('wire')}"
    if p.option("wire") != "none" and p.option("group") != WIRE:
        return f"this rung has a scale for {WIRE} elements"
    return None


def chosen(rows: int, n: int, sms: int, carriers: int = 0, codes: bool = False) -> Config:
    """128 x 256 if that gives every multiprocessor a tile, else smaller; with a quantising epilogue 128 x 128, whose accumulators leave it
    registers.
    `carriers`: multiprocessors reserved for the programs that copy tiles."""
    left = max(1, sms - carriers)
    for bm, bn, stages in ((128, 256, 3), (128, 128, 4))[codes:]:
        if -(-rows // bm) * -(-n // bn) >= left:
            return Config(bm, bn, stages=stages, programs=left, carriers=carriers)
    config = Config(64, 128, warps=4, programs=1, carriers=carriers)
    return Config(64, 128, warps=4, programs=min(left, -(-rows // 64) * -(-n // 128)), carriers=config.carriers)


def places(p: Problem) -> dict[str, Meta]:
    """The buffer of the parts that every reader gets from every rank: [reader, rank, element]."""
    (ranks, m, _), n = p["a"].shape, p["b"].shape[2]
    count = m // ranks * n
    if p.option("wire") == "none":
        return {"parts": Meta((ranks, ranks, count), p["a"].dtype)}
    return {"parts": Meta((ranks, ranks, count), "i8"), "scales": Meta((ranks, ranks, count // WIRE), "f32")}


def product(p: Problem, config: Config, rank: int, reader: int, dst: str = "parts", at: int | None = None, flags: int = -1) -> Launch:
    """The launch of one rank's product for one reader. `flags`: where the flags of its rows start; -1: none."""
    (ranks, m, k), n = p["a"].shape, p["b"].shape[2]
    rows, codes = m // ranks, p.option("wire") != "none"
    place = (reader * ranks + rank) * rows * n
    args = {
        "a": Descriptor("a", (config.BM, config.BK), shape=(ranks * m, k), strides=(k, 1)),
        "b": Descriptor("b", (config.BK, config.BN), shape=(ranks * k, n), strides=(n, 1)), "dst": dst,
        "scales": "scales" if codes else None, "flags": "flags" if flags >= 0 else None, "row_a": rank * m + reader * rows,
        "row_b": rank * k, "at": place if at is None else at, "at_scales": place // WIRE, "at_flags": max(flags, 0), "M": rows, "N": n,
        "K": k, "GROUP": config.GROUP, "programs": config.programs, "BM": config.BM,
        "BN": config.BN, "BK": config.BK, "CODES": codes, "FLAGGED": flags >= 0, "SHARED": WIRE,
    }
    return Launch(tiles, (config.programs,), args, config.warps, config.stages)


def totals(p: Problem) -> list[Launch]:
    """Each reader's sum."""
    ranks, rows, n = p["out"].shape
    count, codes = rows * n, p.option("wire") != "none"
    made = []
    for reader in range(ranks):
        args = {
            "parts": "parts", "scales": "scales" if codes else None, "out": "out", "at": reader * ranks * count, "at_out": reader * count,
            "count": count, "ranks": ranks, "CODES": codes, "SHARED": WIRE, "BLOCK": SUMMED,
        }
        made.append(Launch(total, (-(-count // SUMMED),), args, 4))
    return made


# -- as one rank of several GPUs


def described(x: Any, rows: int, columns: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


def run(a: Any, b: Any, dst: Any, config: Config, scales: Any = None, flags: Any = None) -> None:
    """Writes a [rows, K] @ b [K, N] to `dst`, in local or peer memory."""
    rows, k, n = a.shape[0], a.shape[1], b.shape[1]
    tiles[(config.programs,)](
        described(a, config.BM, config.BK), described(b, config.BK, config.BN), dst, scales, flags, 0, 0, 0, 0, 0, rows, n, k, config.GROUP,
        config.programs, BM=config.BM, BN=config.BN, BK=config.BK, CODES=scales is not None, FLAGGED=flags is not None, SHARED=WIRE,
        num_warps=config.warps, num_stages=config.stages,
    )


def on_ranks(tensors: Mapping[str, Any], group: Any, wire: str, send: Any, carriers: int = 0) -> dict[str, Any]:
    """The rows of one rank of several GPUs. `send(a, b, place, config)`: writes a product to `place`, a row of a peer's memory."""
    import torch
    import torch.distributed as dist

    from rooftop.formats import wire as wires
    from rooftop.ranks import products, symmetric
    from rooftop.ranks.steps import Options

    a, b = tensors["a"], tensors["b"]
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    m, n = a.shape[0] // ranks, b.shape[1]
    o = None if wire == "none" else Options(wires.WIRES[wire], WIRE)
    each, dtype = (m * n, a.dtype) if o is None else (o.bytes(m * n), torch.uint8)
    room, rooms = symmetric.table_of("scatter", (ranks, each), dtype, a.device, group)
    symmetric.follow(a.device.index)
    symmetric.meet(room, group, "gemm_comm")  # all ranks have added the previous contents
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    for i in range(1, ranks + 1):
        reader = (rank + i) % ranks
        send(
            a[reader * m : (reader + 1) * m], b, rooms[reader][rank], chosen(m, n, sms, carriers if reader != rank else 0, o is not None),
            reader == rank
        )
    symmetric.meet(room, group, "gemm_comm")
    return {"out": products.summed(rooms[rank], o, m * n, a.dtype).view(m, n)}
