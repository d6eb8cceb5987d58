"""Shared by the kernels of `quantized_matmul`: the numbers of formats in _unpack.cuh, and the relation of groups to blocks of 128 columns.
How quantized_matmul__gluon_sm90 divides a product into tiles, and its predicted time, which decides the config and the choice between it
and the kernel for few rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rooftop.core.spec import Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.gemm._model import BARRIERS, EPILOGUE, FMAS, FROM_L2, MEMORY, ONE, SECOND, SHARED
from rooftop.ops.quantized_matmul import BITS

FORMATS = ("int8", "int4", "int2", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
assert set(FORMATS) == set(BITS)
CLOCK = 1.7e9
START = 5000  # cycles from launch to the first multiply
WAIT = 760  # cycles of a step for the latency of its codes and for its mbarriers
BESIDE = 0.35  # share of the shorter that is not hidden where products and unpacking take equally long
PARTS = 4e12  # bytes a second at which pieces are written and read, mostly in the L2
SPLITS = (1, 2, 3, 4, 6, 8)
TILES = (  # BN, BM (one power of two, or two: 160 is 128 and 32), GROUPS
    (128, 256, 2), (128, 192, 2), (128, 160, 2), (256, 128, 2), (192, 128, 3), (128, 128, 2),
    (256, 64, 4), (256, 64, 2), (128, 64, 2), (256, 32, 4), (128, 32, 2),
)


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
    """BN rows of the weight by BM rows of x; STAGES of 128 columns in the ring buffer; GROUP tiles of the weight in a group; SPLIT:
    split-K, pieces of K in different blocks, which a second launch adds in order, of every tile, or with TAIL of those past the last
    full wave; GROUPS of consumer warps, each with BN / GROUPS rows."""

    BN: int = 256
    BM: int = 128
    STAGES: int = 3
    GROUP: int = 8
    SPLIT: int = 1
    GROUPS: int = 2
    TAIL: bool = False


def bits_of(p: Problem) -> int:
    return BITS[str(p.option("format"))]


def pieces(config: Config, p: Problem) -> tuple[int, int, int, int]:
    """Tiles computed in one piece; tiles past them; the blocks of 128 columns of a piece of these, and the number of pieces."""
    m, n, _ = sizes(p)
    blocks, tiles = p["codes"].shape[1], -(-m // config.BM) * -(-n // config.BN)
    each = -(-blocks // config.SPLIT)
    count = -(-blocks // each)
    whole = tiles if count == 1 else tiles - tiles % p.device.sms if config.TAIL else 0
    return whole, tiles - whole, each, count


def _stage(bn: int, bm: int, bits: int) -> int:
    return bm * 256 + bn * 16 * bits


def _step(bn: int, bm: int, format: str) -> float:
    """Predicted cycles of 128 columns of a tile: the longer of the products and the unpacking, and the more of the shorter the closer the
    two are; or TMA's loads. Fitted on an H200 to int4 and int8, 128 to 2048 rows."""
    products, bits = bn * bm * 128 / FMAS, BITS[format]
    unpack = bn / 16 * 8 * (24 if bits != 6 and format != "e2m1" else 40) / 4
    longer, shorter = sorted((products, WAIT + unpack), reverse=True)
    return max(longer + BESIDE * shorter * shorter / longer, _stage(bn, bm, bits) / FROM_L2 + 150)


@lru_cache(maxsize=32)
def ranked(p: Problem) -> tuple[tuple[float, Config], ...]:
    """Configs with their predicted times, the fastest first."""
    bits, (m, n, _), blocks, sms, found = bits_of(p), sizes(p), p["codes"].shape[1], p.device.sms, []
    size, short, zero = p["codes"].numel + p["scale"].nbytes, grouping(p)[0] == 32, p.get("zero") is not None
    for bn, bm, groups in TILES:
        free = SHARED - BARRIERS - 2 * bn * bm
        stages = min(6, free // _stage(bn, bm, bits))
        side, tiles = (sms * bn * bm) ** 0.5, -(-m // bm) * -(-n // bn)
        past = tiles % sms if tiles > sms else 0  # tiles past the last full wave
        # scales of groups of 32, and zero points, do not fit the registers
        wide = bn == 256 and (bm == 128 or groups == 4)
        if stages < 2 or (short and (wide or (bn > 128 and zero))) or (bm < 128 and m > 8 * bm):  # codes are not unpacked nine times
            continue
        group, step, area = max(1, round(side / bn)), _step(bn, bm, str(p.option("format"))), bm * bn
        epilogue = EPILOGUE + area * 2 / 64
        for split in SPLITS:
            each = -(-blocks // split)
            if split > 1 and (-(-blocks // each) != split or each < 4):
                continue
            for tail, split_tiles in ((False, tiles), (True, past)):
                if (split == 1 and not tail) or (split > 1 and 0 < split_tiles * split <= sms):
                    whole, cut = (tiles, 0) if split == 1 else (tiles - past, past * split) if tail else (0, tiles * split)
                    cycles = -(-whole // sms) * (blocks * step + epilogue) + -(-cut // sms) * (each * step + epilogue)
                    memory = size / min(MEMORY, min(whole + cut, sms) * ONE)
                    seconds = START / CLOCK + max(cycles / CLOCK, memory) + (SECOND + 2 * cut * area * 4 / PARTS if cut else 0.0)
                    found.append((seconds, Config(bn, bm, stages, group, split, groups, tail)))
    return tuple(sorted(found, key=lambda one: (one[0], one[1].SPLIT)))
