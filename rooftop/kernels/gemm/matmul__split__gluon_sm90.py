"""float32 operands split into two parts each and multiplied by tensor cores on Hopper, as TF32 or bfloat16. Contract: rooftop/ops/matmul.py

Two launches split a and b (rooftop/kernels/gemm/_operands.py), a third multiplies (rooftop/kernels/gemm/_split_gluon.py). Reason for a split beforehand
and not in registers: wgmma reads b from shared memory, so a block would have to read each slice, split it and write it back, once for every tile that uses it;
a split beforehand does it once. Bytes: TMA loads two bfloat16 parts of 2 bytes, the same 4 bytes as one float32; the split adds 8 bytes of device memory for
each element of a and b (12 for TF32), at 4096³ 256 MiB or about 65 µs, next to 600 µs of products. It also makes rows a multiple of 16 bytes and contiguous
along K, whatever the operands' strides. With few rows the product is memory-bound: matmul__precision__triton.py splits in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from triton.experimental.gluon import language as gl

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device import gemm_epilogue, gemm_model
from rooftop.kernels._device.column_sums import chained
from rooftop.kernels.gemm import _operands, _split_gluon

DEMANDS = {"has": ["HGMMA", "UTMALDG"]}
KIND = {"tf32x3": "tf32", "bf16x3": "bf16"}
MOST_SPLIT = 16
FEW = 64  # rows or columns; with fewer, the split beforehand moves more bytes than the product


@dataclass(frozen=True)
class Config:
    """BM, BN, BK: the tile; GROUPS: consumer warp groups; STAGES: slices in the ring buffer; GROUP: rows of tiles in a group; SPLIT: split-K, the tiles of
    the last, partial wave are cut into so many parts of K."""

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


def _plan(c: Config, p: Problem) -> gemm_model.Plan:
    return gemm_model.plan(gemm_model.Config(c.BM, c.BN, c.BK, c.GROUPS, c.STAGES, c.GROUP, SPLIT=c.SPLIT), *_sizes(p), p.device.sms)


def seconds(p: Problem, c: Config) -> float:
    """Predicted time, by the rates of `gemm_model`. A slice takes the longest of the multiplies, wgmma's reads and TMA's loads, plus the float32 addition;
    then the split beforehand and the reduction of split-K."""
    m, n, k, batch = _sizes(p)
    size = 2 if p.option("precision") == "bf16x3" else 4
    plan, line = _plan(c, p), c.BK * size
    products = 3 * c.BM * c.BN * line / 2 / gemm_model.FMAS
    reads = 3 * line * (c.BM + c.BN * c.GROUPS) / gemm_model.SHARED_RATE
    brought = 2 * line * (c.BM + c.BN) / gemm_model.FROM_L2
    adds = c.BM * c.BN / 128 if c.GROUPS == 1 else 0.0  # a second warp group multiplies meanwhile
    step = max(products, reads, brought) + adds + gemm_model.HANDSHAKE
    turns = -(-plan.whole // plan.blocks) * plan.slices + (-(-plan.slices // plan.split) if plan.units else 0)
    clocks = gemm_model.START + turns * step + (1 + plan.whole // plan.blocks) * (gemm_model.EPILOGUE + c.BM * c.BN * 4 / 64)
    split = (m + n) * k * batch * (4 + 2 * size) / gemm_model.MEMORY + 2 * gemm_model.SECOND
    pieces = gemm_model.SECOND + 2 * plan.parts * c.BM * c.BN * 4 / gemm_model.PARTS if plan.units else 0.0
    return clocks / gemm_model.CLOCK + split + pieces


def _candidates(p: Problem) -> Iterator[Config]:
    deep = 64 if p.option("precision") == "bf16x3" else 32  # 128 bytes of K
    for bm, bn, groups in ((128, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1)):
        ring = 2 * (bm + bn) * 128
        base = Config(bm, bn, deep, groups, min(6, (gemm_model.SHARED - gemm_model.BARRIERS) // ring))
        base = replace(base, GROUP=gemm_model.group_of(gemm_model.Config(bm, bn), p.device.sms))
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


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    m, n, k, batch = _sizes(p)
    kind = KIND[str(p.option("precision"))]
    plan = _plan(config, p)
    made = {"a_parts": _operands.room(m, k, batch, kind), "b_parts": _operands.room(n, k, batch, kind)}
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
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), dtype), shape=(*meta.shape[:2], k), strides=meta.strides)

    after: dict[str, Any] = {
        "ldo": ldo, "zo": zo, "M": m, "N": n, "whole": plan.whole, "streamed": plan.streamed, "group": config.GROUP, "alpha": float(p.option("alpha")),
        "beta": float(p.option("beta")), "c": "c" if p.option("beta") != 0 and p.get("c") is not None else None, "ldc": ldc, "zc": zc, **there, "ldg": ldg,
        "zg": zg, "ldr": ldr, "zr": zr, "BM": config.BM, "BN": config.BN, "SPLIT": plan.split,
        "ACT": gemm_epilogue.ACTIVATIONS.index(str(p.option("activation"))),
    }  # fmt: skip
    args = {
        **after, "a_desc": boxes("a_parts", config.BM // config.GROUPS), "b_desc": boxes("b_parts", config.BN), "out": "out",
        "pieces_at": "pieces" if plan.units else None, "K": k, "batch": batch, "BK": config.BK, "GROUPS": config.GROUPS, "STAGES": config.STAGES,
    }  # fmt: skip
    made = [
        _operands.launch("a", p["a"], "a_parts", kind, columns=False), _operands.launch("b", p["b"], "b_parts", kind, columns=True),
        Launch(kernel=_split_gluon.product_of_parts, grid=(plan.blocks,), args=args, warps=4),
    ]  # fmt: skip
    if plan.units:
        elements = max(512, min(2048, plan.streamed * config.BM * config.BN // (2 * p.device.sms) // 512 * 512))
        rows = max(1, min(config.BM, 1 << (max(1, elements // config.BN).bit_length() - 1)))
        early = chained(p.device)
        args = {
            **after, "parts": "pieces", "out": "out", "scale_a": None, "scale_b": None, "ROWS": rows, "SWAP": False, "SHORT": False, "RAW": False, "SCALES": 0,
            "CHAINED": early,
        }  # fmt: skip
        made.append(Launch(kernel=gemm_epilogue.add_split, grid=(plan.streamed, config.BM // rows), args=args, warps=4, chained=early))
    return made


def explains(p: Problem, config: Config) -> str:
    plan = _plan(config, p)
    pieces = f"; {plan.streamed} tiles that fill no turn are cut into {plan.split} pieces of K each, added by a fourth launch" if plan.units else ""
    return (
        f"a and b are split by a launch each; tile {config.BM} x {config.BN}, slices of {config.BK} of K, {config.STAGES} in flight, 3 products each; "
        f"{plan.whole + plan.streamed} tiles on {plan.blocks} blocks{pieces}; predicted {seconds(p, config) * 1e6:.1f} µs"
    )
