"""How long a tile shape takes on Hopper: the model that the choice of config and the pruning of a search go by.

Clocks of one multiprocessor, for one slice of K: the products, what wgmma reads from shared memory (both operands, so narrow tiles are bound by that),
or what TMA brings from L2, whichever is most. A tile is its slices and an epilogue; a block takes tiles in turn; device memory bounds it all from
below. The rates were fitted on an H200: 27 products of 1024³ to 16384³ and of model shapes, 4 to 9 configs each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SHARED = 227 * 1024
BARRIERS = 1024  # bytes of shared memory for mbarriers, alignment and what warp specialisation keeps
CLOCK = 1.7e9  # Hz under tensor load
FMAS = 2048  # a clock and multiprocessor, operands of 16 bits; 8 bits: twice
FROM_L2 = 64.0  # bytes a clock that TMA brings a multiprocessor
FILLED = 12.5  # clocks that TMA takes to fill one row of 128 bytes outside the tensor with zeros
SHARED_RATE = 128.0  # bytes a clock that wgmma reads from shared memory
HANDSHAKE = 100.0  # clocks of a slice spent on its barriers
START = 5000.0  # clocks from launch to the first product, with the first latency of device memory
EPILOGUE = 800.0  # clocks of latency of an epilogue
SECOND = 1.5e-6  # seconds that the launch of the sum of pieces adds
PARTS = 2.5e12  # bytes a second at which pieces are written and read again
MEMORY = 4.2e12  # bytes a second of device memory; what it is exactly decides little here
ONE = 5.0e10  # bytes a second of device memory that one multiprocessor takes at most


@dataclass(frozen=True)
class Config:
    """BM, BN, BK: the tile; GROUPS: consumer warp groups, each with BM / GROUPS rows; STAGES: slices in the ring; GROUP: rows of tiles walked
    together; STREAM: the slices of the tiles that do not fill a turn (and of one turn before) are dealt out evenly over the blocks; SWAP: the kernel
    makes the transposed result, so that N is cut by BM and M by BN."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUPS: int = 2
    STAGES: int = 4
    GROUP: int = 16
    STREAM: bool = False
    SWAP: bool = False


WIDE = ((128, 256, 64, 2), (256, 128, 64, 2), (128, 128, 64, 2), (64, 256, 64, 1), (64, 128, 64, 1), (64, 128, 128, 1), (128, 64, 128, 2))
NARROW = ((128, 64, 128, 2), (64, 64, 128, 1), (128, 32, 128, 2), (64, 32, 128, 1), (128, 16, 128, 2), (64, 16, 128, 1))


@dataclass(frozen=True)
class Plan:
    """How a product is shared out: tiles taken whole, tiles whose slices are dealt out, blocks, slices of a tile."""

    whole: int
    streamed: int
    blocks: int
    slices: int

    @property
    def units(self) -> int:
        return self.streamed * self.slices


def plan(config: Config, m: int, n: int, k: int, batch: int, sms: int) -> Plan:
    if config.SWAP:
        m, n = n, m
    total = -(-m // config.BM) * -(-n // config.BN) * batch
    slices = max(1, -(-k // config.BK))
    if not config.STREAM or total % sms == 0:
        return Plan(total, 0, min(total, sms), slices)
    blocks = min(sms, max(1, total * slices // 2))
    streamed = total % blocks + (blocks if total > blocks else 0)
    return Plan(total - streamed, streamed, blocks, slices)


def piece(config: Config) -> int:
    """Columns that the epilogue stores at once."""
    return min(config.BN, 64)


def ring_bytes(config: Config, itemsize: int) -> int:
    return (config.BM + config.BN) * config.BK * itemsize


def _beside(config: Config, out_bytes: int, vectors: int) -> int:
    """Shared memory beside the ring: the result on its way out (a swapped or unaligned one, `out_bytes` 0, goes straight from registers) and `vectors`
    (bias, scales) of one value a column."""
    staging = 0 if config.SWAP else 2 * config.BM * piece(config) * out_bytes
    return staging + 4 * vectors * config.GROUPS * config.BN + BARRIERS


def shared_bytes(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> int:
    return config.STAGES * ring_bytes(config, itemsize) + _beside(config, out_bytes, vectors)


def deepest(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> Config:
    """The config with as many stages as there is room for, at most 8."""
    return replace(config, STAGES=min(8, (SHARED - _beside(config, out_bytes, vectors)) // ring_bytes(config, itemsize)))


def valid(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> bool:
    rows = config.BM // config.GROUPS
    return config.STAGES >= 2 and rows in (64, 128) and rows * config.BN <= 64 * 256 and shared_bytes(config, itemsize, out_bytes, vectors) <= SHARED


def seconds(config: Config, m: int, n: int, k: int, batch: int, itemsize: int, out_bytes: int, sms: int) -> float:
    """Predicted time. `out_bytes`: of one element of the result."""
    p = plan(config, m, n, k, batch, sms)
    if config.SWAP:
        m, n = n, m
    bm, bn, bk = config.BM, config.BN, config.BK
    products = bm * bn * bk * itemsize / 2 / FMAS
    reads = bk * itemsize * (bm + bn * max(1, bm // 64)) / SHARED_RATE
    outside = (max(0, bm - m) + max(0, bn - n)) * bk * itemsize / 128
    brought = (min(bm, m) + min(bn, n)) * bk * itemsize
    step = max(products, reads, brought / FROM_L2 + outside * FILLED) + HANDSHAKE + (60 if config.STAGES < 4 else 0)
    epilogue = EPILOGUE + (bm * bn / 8 if config.SWAP else bm * bn * out_bytes / 64)
    turns = -(-p.whole // p.blocks)
    mine = -(-p.units // p.blocks)
    clocks = START + (turns * p.slices + mine) * step + (turns + (1 if p.units else 0)) * epilogue
    each = (m * k + k * n) * itemsize * batch / max(1, p.whole + p.streamed)
    memory = START / CLOCK
    full, rest = divmod(p.whole, p.blocks)
    memory += (full * p.blocks + p.streamed) * each / min(MEMORY, p.blocks * ONE)
    memory += rest * each / min(MEMORY, max(rest, 1) * ONE) + batch * m * n * out_bytes / MEMORY
    extra = SECOND + 2 * min(p.blocks * 2, p.streamed * 2) * bm * bn * 4 / PARTS if p.units else 0.0
    return max(clocks / CLOCK, memory) + extra


def group_of(config: Config, sms: int) -> int:
    """Rows of tiles that make the tiles in flight a square of outputs, so that they share the most."""
    side = (sms * config.BM * config.BN) ** 0.5
    return max(1, round(side / config.BM))


def candidates(m: int, n: int, k: int, batch: int, itemsize: int, out_bytes: int, sms: int, swaps: bool = True, vectors: int = 0) -> Iterable[Config]:
    """Every config worth a thought, in no order."""
    for swap in (False, True) if swaps else (False,):
        columns = m if swap else n
        for bm, bn, bk, groups in ((*(NARROW if columns <= 64 else ()), *(() if swap else WIDE))):
            base = Config(bm, bn, bk * 2 // itemsize, groups, SWAP=swap)
            base = replace(base, GROUP=group_of(base, sms))
            config = deepest(base, itemsize, out_bytes, vectors)
            if not valid(config, itemsize, out_bytes, vectors):
                continue
            yield config
            streaming = replace(config, STREAM=True)
            p = plan(streaming, m, n, k, batch, sms)
            if p.units and p.units < 2**31 and p.slices > 1:
                yield streaming


def ranked(m: int, n: int, k: int, batch: int, itemsize: int, out_bytes: int, sms: int, swaps: bool = True, vectors: int = 0) -> list[Config]:
    """The candidates, the best predicted first."""
    return sorted(set(candidates(m, n, k, batch, itemsize, out_bytes, sms, swaps, vectors)), key=lambda c: seconds(c, m, n, k, batch, itemsize, out_bytes, sms))
