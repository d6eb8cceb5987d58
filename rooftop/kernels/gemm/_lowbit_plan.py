"""Shared by the kernels of `quantized_matmul`: the numbers of formats in _unpack.cuh, and the relation of groups to blocks of 128 columns.
How quantized_matmul__gluon_sm90 divides a product into tiles, and its predicted time, which decides the config and the choice between it
and the kernel for few rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rooftop.core.spec import Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.gemm._model import BARRIERS, FMAS, FROM_L2, MEMORY, ONE, SHARED
from rooftop.ops.quantized_matmul import BITS

FORMATS = ("int8", "int4", "int2", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
assert set(FORMATS) == set(BITS)
CLOCK, POWER = 1.8e9, 0.14  # Hz; by how much longer steps take when all multiprocessors multiply: the clock falls
START = 5400  # cycles from launch to the first multiply
WAIT = {2: 610, 4: 555}  # cycles of a step for the latency of its codes and for its mbarriers, by groups of consumers
EASY, HARD = 26, 40  # instructions of a warp that unpack 16 rows by 16 columns
BESIDE = 0.355  # share of the shorter that is not hidden where products and unpacking take equally long
PARTS, ADDED = 1.54e12, 3.1e10  # bytes a second: at which parts are written by all, and read by one
ZERO, LATE = 1.8e-6, 2600  # seconds of the launch that clears the flags of stream-K; cycles from a part's stores to its loads
LEAST = 4  # blocks of 128 columns that a multiprocessor has at least
TILES = ((128, 256, 2), (256, 128, 2), (128, 128, 2), (256, 64, 4), (256, 64, 2), (128, 64, 2), (256, 32, 4), (128, 32, 2))


def sizes(p: Problem) -> tuple[int, int, int]:
    """M, N, K."""
    return p["x"].shape[0], int(p.option("n")), p["x"].shape[1]


def grouping(p: Problem) -> tuple[int, int]:
    """Columns of a group that kernels are compiled for (32, 64 or 128), and how many blocks of 128 columns share a scale if that is 128."""
    group, k, blocks = int(p.option("group")), p["x"].shape[1], p["codes"].shape[1]
    if group == k:
        return 128, max(1, blocks)
    return (group, 1) if group < 128 else (128, group // 128)


def supports(p: Problem) -> str | None:
    """What the kernels of Hopper do not take."""
    m, n, k = sizes(p)
    x, scale, zero, out = p["x"], p["scale"], p.get("zero"), p["out"]
    if m * n * k == 0:
        return "there is nothing to compute"
    if x.dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {x.dtype}"
    if max(m, n, k) >= 2**31 - 512 or scale.numel >= 2**31:
        return f"takes fewer than 2^31 rows, columns and scales; given {m} x {n} x {k}"
    for name, meta in (("x", x), ("codes", p["codes"]), ("out", out)):
        if reason := not_copied(meta, stored=name == "out"):
            return f"TMA does not copy {name}: {reason}"
    if int(p.option("group")) == k:
        if zero is not None:
            return "zero points go with groups here: one scale a row is multiplied to the sums"
        return None
    if zero is not None and zero.dtype != "u8":
        return f"takes whole zero points; given {zero.dtype}"
    if x.dtype == "f16" and scale.dtype != "f16":
        return f"takes scales of groups in f16 with f16, whose range others leave; given {scale.dtype}"
    return None


@dataclass(frozen=True)
class Config:
    """BN rows of the weight by BM rows of x; STAGES of 128 columns in the ring buffer; GROUP tiles of the weight in a group;
    STREAM: the blocks among which tiles that would leave multiprocessors idle are divided along K, 0 to divide none; GROUPS of consumer
    warps, each with BN / GROUPS rows."""

    BN: int = 256
    BM: int = 128
    STAGES: int = 3
    GROUP: int = 8
    STREAM: int = 0
    GROUPS: int = 2


def bits_of(p: Problem) -> int:
    return BITS[str(p.option("format"))]


def divided(config: Config, p: Problem) -> tuple[int, int, int]:
    """Tiles that a block computes whole, tiles that are divided along K, and blocks of the grid. Divided are those of the last, partial
    wave, and one wave more."""
    m, n, _ = sizes(p)
    return _divided(config, -(-m // config.BM) * -(-n // config.BN), p.device.sms)


def _divided(config: Config, tiles: int, sms: int) -> tuple[int, int, int]:
    if not config.STREAM:
        return tiles, 0, min(tiles, sms)
    streamed = tiles % config.STREAM + (config.STREAM if tiles > config.STREAM else 0)
    return tiles - streamed, streamed, config.STREAM


def _streams(tiles: int, blocks: int, sms: int) -> set[int]:
    """Blocks for stream-K: all, and the most of which each has a part of one tile alone."""
    most = min(sms, max(1, tiles * blocks // LEAST))
    return {grid for grid in (most, most // tiles * tiles) if grid and tiles % grid}


def _stage(bn: int, bm: int, bits: int) -> int:
    return bm * 256 + bn * 16 * bits


@dataclass(frozen=True)
class Facts:
    """What the model sees: x [m, k], codes of n rows and `blocks` of 128 columns, if they are hard to unpack, bytes with scales."""

    m: int
    n: int
    blocks: int
    bits: int
    hard: bool
    bytes_of_weight: int
    sms: int


def facts(p: Problem) -> Facts:
    (m, n, _), format, codes = sizes(p), str(p.option("format")), p["codes"]
    bits = BITS[format]
    return Facts(m, n, codes.shape[1], bits, bits == 6 or format == "e2m1", codes.numel + p["scale"].nbytes, p.device.sms)


def seconds(config: Config, f: Facts) -> float:
    """Predicted time. A step of 128 columns takes the longer of the products and the unpacking, and the more of the shorter the closer the
    two are; or TMA's loads. Fitted on an H200 to int4 and int8, 16 to 4096 rows."""
    bn, bm = config.BN, config.BM
    whole, streamed, grid = _divided(config, -(-f.m // bm) * -(-f.n // bn), f.sms)
    products = bm * bn * 128 / FMAS
    unpack = WAIT[config.GROUPS] + bn / 16 * 8 * (HARD if f.hard else EASY) / 4
    longer, shorter = (products, unpack) if products > unpack else (unpack, products)
    step = max(longer + BESIDE * shorter * shorter / longer, _stage(bn, bm, f.bits) / FROM_L2 + 150)
    epilogue, turns = bm * bn * 2 / 64, -(-whole // grid)
    made = turns * (f.blocks * step + epilogue)
    memory = f.bytes_of_weight / min(MEMORY, grid * ONE)
    if not streamed:
        return START / CLOCK + max(made / CLOCK * (1 + POWER * whole / (turns * f.sms)), memory)
    made += -(-streamed * f.blocks // grid) * step + epilogue
    others = max(1, -(-grid // streamed) - 1)  # parts that a block adds
    parts = bm * bn * 4 * (grid / PARTS + others / ADDED) + LATE / CLOCK
    return START / CLOCK + max(made / CLOCK * (1 + POWER * grid / f.sms), memory) + parts + ZERO


@lru_cache(maxsize=32)
def ranked(p: Problem) -> tuple[tuple[float, Config], ...]:
    """Configs with their predicted times, the fastest first."""
    f, small, zero, found = facts(p), grouping(p)[0] == 32, p.get("zero") is not None, []
    grouped = int(p.option("group")) != p["x"].shape[1]
    for bn, bm, groups in TILES:
        free = SHARED - BARRIERS - 2 * bn * bm
        stages = min(6, free // _stage(bn, bm, f.bits))
        side = (f.sms * bn * bm) ** 0.5
        crowded = bn == 256 and ((bm == 128 and zero) or (small and (bm == 128 or groups == 4 or zero)))  # no registers left
        if stages < 2 or crowded:
            continue
        full = (bm == 256 and small and zero) or (groups == 4 and bm == 64 and f.bits == 8 and grouped)  # of registers, with parts
        streams = set() if full else _streams(-(-f.m // bm) * -(-f.n // bn), f.blocks, f.sms)
        for grid in (0, *streams):
            config = Config(bn, bm, stages, max(1, round(side / bn)), grid, groups)
            found.append((seconds(config, f), config))
    return tuple(sorted(found, key=lambda one: (one[0], one[1].STREAM)))
