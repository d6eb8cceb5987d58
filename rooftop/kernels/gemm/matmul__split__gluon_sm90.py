"""float32 operands split into two parts each and multiplied by tensor cores on Hopper, as TF32 or bfloat16. Contract: rooftop/ops/matmul.py

Two launches split a and b (rooftop/kernels/gemm/_product_launches.py), a third multiplies. Reason for a split beforehand and not in
registers: wgmma reads b from shared memory, so a block would have to read each slice, split it and write it back, once for every tile
that uses it; a split beforehand does it once. Bytes: TMA loads two bfloat16 parts of 2 bytes, the same 4 bytes as one float32; the split
adds 8 bytes of device memory for each element of a and b (12 for TF32), at 4096³ 256 MiB or about 65 µs, next to 600 µs of products. It
also makes rows a multiple of 16 bytes and contiguous along K, whatever the operands' strides. With few rows the product is memory-bound:
matmul__precision__triton.py splits in registers.

The third computes a b = a1 b1 + a1 b2 + a2 b1, the smallest terms first. A block is one producer warp and one or two consumer warp
groups, as in `_product_gluon`, from which the tile scheduler comes. A stage of the ring buffer holds a slice of all four parts: 4 boxes
for 3 multiplies, while one long product of [a2 a1 a1] and [b1 b2 b1] would load 6. Tensor cores truncate when they accumulate, by up to
one unit in the last place of the sum each time: over all of K that would be a larger error than the split leaves, so each slice is
accumulated separately and added in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels.gemm import _model, _product_launches
from rooftop.kernels.gemm._product_gluon import finish, item, keep, place, put, share, vector

DEMANDS = {"has": ["HGMMA", "UTMALDG"]}
KIND = {"tf32x3": "tf32", "bf16x3": "bf16"}
MOST_SPLIT = 16
FEW = 64  # rows or columns; with fewer, the split beforehand moves more bytes than the product


@gluon.jit
def load_parts(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, batch, whole, streamed, group, BM: gl.constexpr, BN: gl.constexpr,
               BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr):
    """The producer warp. Part p of matrix z is matrix p · batch + z of a descriptor."""
    RM: gl.constexpr = BM // GROUPS
    BYTES: gl.constexpr = 2 * (GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    slices = gl.cdiv(K, BK)
    turns, begin, end, _ = share(whole, streamed, slices, SPLIT)
    n = 0
    for i in range(turns):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, False, SPLIT)
        pm, pn, z = place(tile, M, N, group, BM, BN)
        for k in range(first, last):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for part in gl.static_range(2):
                for g in gl.static_range(GROUPS):
                    tma.async_copy_global_to_shared(a_desc, [z + part * batch, pm * BM + g * RM, k * BK], full.index(stage),
                                                    a_ring.index((stage * GROUPS + g) * 2 + part))
                tma.async_copy_global_to_shared(
                    b_desc, [z + part * batch, pn * BN, k * BK], full.index(stage), b_ring.index(stage * 2 + part)
                )
            n += 1
    if SPLIT > 1:
        gdc_launch_dependents()  # the reduction of the parts: its blocks start while the last tiles are computed, and wait


@gluon.jit
def matrix(x, TURNED: gl.constexpr):
    """A box [1, rows, K] as the matrix that wgmma reads."""
    x = x.reshape([x.shape[1], x.shape[2]])
    if TURNED:
        x = x.permute((1, 0))
    return x


@gluon.jit
def consume_parts(GROUP_INDEX: gl.constexpr, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha,
                  beta, c, ldc, zc, bias, gate, ldg, zg, residual, ldr, zr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
                  GROUPS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr, ACT: gl.constexpr):
    """One consumer warp group: rows from GROUP_INDEX · RM on of each tile. Results are stored straight from registers: four lanes write a
    sector of 32 bytes."""
    RM: gl.constexpr = BM // GROUPS
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 256 // a_ring.dtype.primitive_bitwidth]
    )
    slices = gl.cdiv(K, BK)
    turns, begin, end, _ = share(whole, streamed, slices, SPLIT)
    n = 0
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    for i in range(turns):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, False, SPLIT)
        pm, pn, z = place(tile, M, N, group, BM, BN)
        total = gl.zeros((RM, BN), gl.float32, MMA)
        for _ in range(first, last):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            at = (stage * GROUPS + GROUP_INDEX) * 2
            a1, a2 = matrix(a_ring.index(at), False), matrix(a_ring.index(at + 1), False)
            b1, b2 = matrix(b_ring.index(stage * 2), True), matrix(b_ring.index(stage * 2 + 1), True)
            acc = warpgroup_mma(a2, b1, acc, use_acc=False, is_async=True)
            acc = warpgroup_mma(a1, b2, acc, is_async=True)
            acc = warpgroup_mma(a1, b1, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.arrive(empty.index(stage), count=1)
            total += acc
            n += 1
        row, column = pm * BM + GROUP_INDEX * RM, pn * BN
        if SPLIT > 1 and last - first < slices:
            keep(total, pieces_at, gl.program_id(0) + i * gl.num_programs(0) - whole, GROUP_INDEX * RM, BM, BN)
        else:
            rows, columns = row + gl.arange(0, RM, gl.SliceLayout(1, MMA)), column + gl.arange(0, BN, gl.SliceLayout(0, MMA))
            x = finish(total, rows, columns, z, M, N, alpha, beta, rows, columns, c, ldc, zc, rows, vector(bias, columns, N), gate, ldg, zg,
                       residual, ldr, zr, False, False, bias is not None, False, ACT, False)
            put(x, rows, columns, z, M, N, out, ldo, zo, False)


@gluon.jit(do_not_specialize=("M", "K", "whole", "streamed", "group", "batch"))
def product_of_parts(a_desc, b_desc, out, ldo, zo, pieces_at, M, N, K, batch, whole, streamed, group, alpha, beta, c, ldc, zc, bias, gate,
                     ldg, zg, residual, ldr, zr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr,
                     STAGES: gl.constexpr, SPLIT: gl.constexpr, ACT: gl.constexpr):
    """out = act(alpha · (a1 b1 + a1 b2 + a2 b1) + beta c + bias) · gate + residual. a_desc: boxes [1, BM / GROUPS, BK] of [2 batch, M, K];
    b_desc: boxes [1, BN, BK] of [2 batch, N, K]. Both are contiguous along K, the only layout that wgmma supports for TF32."""
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS * 2] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES * 2] + b_desc.block_type.shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 1:
        gl.warp_specialize([
            (consume_parts,
                             (0, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc,
                             zc, bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, SPLIT, ACT)),
            (
                load_parts,
                (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, batch, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, SPLIT)
            ),
        ], [1], [40])
    else:
        gl.warp_specialize([
            (consume_parts,
                             (0, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc,
                             zc, bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, SPLIT, ACT)),
            (consume_parts,
                             (1, a_ring, b_ring, full, empty, out, ldo, zo, pieces_at, M, N, K, whole, streamed, group, alpha, beta, c, ldc,
                             zc, bias, gate, ldg, zg, residual, ldr, zr, BM, BN, BK, GROUPS, STAGES, SPLIT, ACT)),
            (
                load_parts,
                (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, batch, whole, streamed, group, BM, BN, BK, GROUPS, STAGES, SPLIT)
            ),
        ], [4, 1], [232, 40])


@dataclass(frozen=True)
class Config:
    """BM, BN, BK: the tile; GROUPS: consumer warp groups; STAGES: slices in the ring buffer; GROUP: rows of tiles in a group; SPLIT:
    split-K, the tiles of the last, partial wave are cut into so many parts of K."""

    BM: int = 128
    BN: int = 128
    BK: int = 64
    GROUPS: int = 2
    STAGES: int = 3
    GROUP: int = 11
    SPLIT: int = 1


def _sizes(p: Problem) -> tuple[int, int, int, int]:
    a, b = p["a"], p["b"]
    return a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0] if len(a.shape) == 3 else 1


def supports(p: Problem) -> str | None:
    if p["a"].dtype != "f32" or p.option("precision") not in KIND:
        return "takes float32 with the precision tf32x3 or bf16x3"
    m, n, k, batch = _sizes(p)
    if m * n * k * batch == 0:
        return "M, N, K and the batch must be at least 1"
    if max(m, n, k) >= 2**31 - 512 or batch >= 2**15:
        return f"takes fewer than 2^31 rows and columns and 2^15 matrices; given {batch} of {m} x {n} x {k}"
    for name in ("c", "gate", "residual", "out"):
        meta = p.get(name)
        if meta is not None and meta.strides[-1] != 1 and meta.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def _plan(c: Config, p: Problem) -> _model.Plan:
    return _model.plan(_model.Config(c.BM, c.BN, c.BK, c.GROUPS, c.STAGES, c.GROUP, SPLIT=c.SPLIT), *_sizes(p), p.device.sms)


def seconds(p: Problem, c: Config) -> float:
    """Predicted time, by the rates of `_model`. A slice takes the longest of the multiplies, wgmma's reads and TMA's loads, plus the
    float32 addition; then the split beforehand and the reduction of split-K."""
    m, n, k, batch = _sizes(p)
    size = 2 if p.option("precision") == "bf16x3" else 4
    plan, line = _plan(c, p), c.BK * size
    products = 3 * c.BM * c.BN * line / 2 / _model.FMAS
    reads = 3 * line * (c.BM + c.BN * c.GROUPS) / _model.SHARED_RATE
    brought = 2 * line * (c.BM + c.BN) / _model.FROM_L2
    adds = c.BM * c.BN / 128 if c.GROUPS == 1 else 0.0  # a second warp group multiplies meanwhile
    step = max(products, reads, brought) + adds + _model.HANDSHAKE
    turns = -(-plan.whole // plan.blocks) * plan.slices + (-(-plan.slices // plan.split) if plan.units else 0)
    clocks = _model.START + turns * step + (1 + plan.whole // plan.blocks) * (_model.EPILOGUE + c.BM * c.BN * 4 / 64)
    split = (m + n) * k * batch * (4 + 2 * size) / _model.MEMORY + 2 * _model.SECOND
    pieces = _model.SECOND + 2 * plan.parts * c.BM * c.BN * 4 / _model.PARTS if plan.units else 0.0
    return clocks / _model.CLOCK + split + pieces


def _candidates(p: Problem) -> Iterator[Config]:
    deep = 64 if p.option("precision") == "bf16x3" else 32  # 128 bytes of K
    for bm, bn, groups in ((128, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1)):
        ring = 2 * (bm + bn) * 128
        base = Config(bm, bn, deep, groups, min(6, (_model.SHARED - _model.BARRIERS) // ring))
        base = replace(base, GROUP=_model.group_of(_model.Config(bm, bn), p.device.sms))
        yield base
        plan = _plan(base, p)
        rest = plan.whole % p.device.sms
        most = min(p.device.sms // rest, plan.slices // 2, MOST_SPLIT) if rest and plan.whole < 4 * p.device.sms else 1
        for split in {most, -(-most // 2)}:
            if split > 1:
                yield replace(base, SPLIT=split)


def configs(p: Problem) -> list[Config]:
    return sorted(set(_candidates(p)), key=lambda c: (seconds(p, c), c.SPLIT, c.BM, c.BN))


def choose(p: Problem) -> Config:
    return configs(p)[0]


def for_any_rows(p: Problem) -> Config:
    """Every slice is a sum of its own, of one length whatever the tile; none are divided among blocks."""
    return next(c for c in configs(p) if c.SPLIT == 1)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    m, n, k, batch = _sizes(p)
    kind = KIND[str(p.option("precision"))]
    plan = _plan(config, p)
    made = {"a_parts": _product_launches.operand_room(m, k, batch, kind), "b_parts": _product_launches.operand_room(n, k, batch, kind)}
    return {**made, "pieces": Meta((plan.parts, config.BM * config.BN), "f32")} if plan.units else made


def _apart(meta: Meta | None) -> tuple[int, int]:
    return (0, 0) if meta is None else (meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 and meta.shape[0] > 1 else 0)


def launches(p: Problem, config: Config) -> list[Launch]:
    m, n, k, batch = _sizes(p)
    kind = KIND[str(p.option("precision"))]
    plan, room = _plan(config, p), scratch(p, config)
    (ldo, zo), (ldc, zc), (ldg, zg), (ldr, zr) = (_apart(p.get(name)) for name in ("out", "c", "gate", "residual"))
    there = {name: name if p.get(name) is not None else None for name in ("bias", "gate", "residual")}

    def boxes(name: str, rows: int) -> Descriptor:
        block, dtype = (1, rows, config.BK), gl.bfloat16 if kind == "bf16" else gl.float32
        meta = room[name]
        return Descriptor(
            name, block, gl.NVMMASharedLayout.get_default_for(list(block), dtype), shape=(*meta.shape[:2], k), strides=meta.strides
        )

    after: dict[str, Any] = {
        "ldo": ldo, "zo": zo, "M": m, "N": n, "whole": plan.whole, "streamed": plan.streamed, "group": config.GROUP,
        "alpha": float(p.option("alpha")), "beta": float(p.option("beta")),
        "c": "c" if p.option("beta") != 0 and p.get("c") is not None else None, "ldc": ldc, "zc": zc,
        **there, "ldg": ldg, "zg": zg, "ldr": ldr, "zr": zr, "BM": config.BM, "BN": config.BN, "SPLIT": plan.split,
        "ACT": gemm_epilogue.ACTIVATIONS.index(str(p.option("activation"))),
    }
    args = {
        **after, "a_desc": boxes("a_parts", config.BM // config.GROUPS), "b_desc": boxes("b_parts", config.BN), "out": "out",
        "pieces_at": "pieces" if plan.units else None, "K": k, "batch": batch, "BK": config.BK, "GROUPS": config.GROUPS,
        "STAGES": config.STAGES,
    }
    made = [
        _product_launches.operand_launch("a", p["a"], "a_parts", kind, columns=False),
        _product_launches.operand_launch("b", p["b"], "b_parts", kind, columns=True),
        Launch(kernel=product_of_parts, grid=(plan.blocks,), args=args, warps=4),
    ]
    if plan.units:
        elements = max(512, min(2048, plan.streamed * config.BM * config.BN // (2 * p.device.sms) // 512 * 512))
        rows = max(1, min(config.BM, 1 << (max(1, elements // config.BN).bit_length() - 1)))
        early = p.device.pdl
        args = {
            **after, "parts": "pieces", "out": "out", "scale_a": None, "scale_b": None, "ROWS": rows, "SWAP": False, "SHORT": False,
            "RAW": False, "SCALES": 0, "PDL": early,
        }
        made.append(Launch(kernel=gemm_epilogue.add_split, grid=(plan.streamed, config.BM // rows), args=args, warps=4, pdl=early))
    return made


def explains(p: Problem, config: Config) -> str:
    plan = _plan(config, p)
    pieces = (
        f"; {plan.streamed} tiles that fill no turn are cut into {plan.split} pieces of K each, added by a fourth launch" if plan.units
        else ""
    )
    return (
        f"a and b are split by a launch each; tile {config.BM} x {config.BN}, slices of {config.BK} of K, {config.STAGES} in flight, 3 "
        f"products each; "
        f"{plan.whole + plan.streamed} tiles on {plan.blocks} blocks{pieces}; predicted {seconds(p, config) * 1e6:.1f} µs"
    )
