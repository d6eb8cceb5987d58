"""A performance model of a tile shape on Hopper, which chooses a config and prunes a search.

The cycles of one multiprocessor for one slice of K are the largest of: the matrix multiplies; wgmma's reads of shared memory (both
operands, so narrow tiles are bound by them); TMA's loads from the L2. A tile is its slices and an epilogue; a block computes tiles in turn;
device memory bandwidth is a lower bound. The rates were fitted on an H200 to 83 products from 16³ to 16384³, of model shapes and random
ones, with 3 to 9 configs each; START and the stores of results to 215 configs of 70 products, of which many have few tiles or few K."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

SHARED = 227 * 1024
BARRIERS = 1024  # bytes of shared memory for mbarriers, alignment and warp specialisation
CLOCK = 1.7e9  # Hz under tensor load
FMAS = 2048  # multiply-adds a cycle and multiprocessor, operands of 16 bits; 8 bits: twice
FROM_L2 = 64.0  # bytes a cycle that TMA loads to a multiprocessor
STRADDLING = 37.0  # the same if the row stride is no multiple of 128 bytes, so that 128 bytes of a row are in two cache lines
FILLED = 12.5  # cycles that TMA takes to fill one row of 128 bytes outside the tensor with zeros
SHARED_RATE = 128.0  # bytes a cycle that wgmma reads from shared memory
HANDSHAKE = 100.0  # cycles of a slice spent on its mbarriers
SHALLOW = (0.0, 0.0, 900.0, 80.0)  # cycles of a slice that 2 and 3 stages do not hide
START = 6850.0  # cycles from launch to the first multiply, with the first latency of device memory
EPILOGUE = 800.0  # cycles of latency of an epilogue
STORED, SCATTERED = 26.0, 4.1  # bytes of the result a cycle by TMA, and results a cycle that threads store
VECTOR = 0.5  # how much longer TMA's stores take for each vector of one value a column
SPILLS = 1.6  # times as long as threads take to store if a warp group has 128 rows
SECOND = 2.2e-6  # seconds that the launch of the reduction adds
PIECE = 0.4e-6  # seconds that each part after the second adds, if their number is not a compile-time constant
PARTS = 2.5e12  # bytes a second at which parts are written and read
MEMORY, WRITTEN = 4.2e12, 3.07e12  # bytes a second of device memory, and of results
ONE = 6.5e10  # bytes a second of device memory, the most for one multiprocessor
L2 = 50e6  # bytes of operands that stay in L2
LARGEST_SPLIT = 16


@dataclass(frozen=True)
class Config:
    """BM, BN, BK: the tile; GROUPS: consumer warp groups, each with BM / GROUPS rows; STAGES: slices in the ring buffer; GROUP: rows of
    tiles in a group
    (tile order); SPLIT: split-K, the tiles of the last, partial wave are cut into so many parts of K; STREAM: stream-K, the slices of those
    tiles (and of one wave before) are divided evenly among the blocks; SWAP: the kernel computes the transposed result, so that N is
    divided by BM and M by BN."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUPS: int = 2
    STAGES: int = 4
    GROUP: int = 16
    STREAM: bool = False
    SWAP: bool = False
    SPLIT: int = 1


class Cut(Config):
    """Every tile is cut into SPLIT parts of K, not those of the last wave alone."""


WIDE = ((128, 256, 64, 2), (256, 128, 64, 2), (128, 128, 64, 2), (64, 256, 64, 1), (64, 128, 64, 1), (64, 128, 128, 1), (128, 64, 128, 2))
NARROW = ((128, 64, 128, 2), (64, 64, 128, 1), (128, 32, 128, 2), (64, 32, 128, 1), (128, 16, 128, 2), (64, 16, 128, 1))

TALL = (192, 128, 64, 3)  # of fp8 whose slices are added in float32: two sums of 64 x 128 a warp group, and a sixth less from the L2


@dataclass(frozen=True)
class Facts:
    """A product as the model sees it: out [batch, m, n] = a [batch, m, k] b [batch, k, n]."""

    m: int
    n: int
    k: int
    batch: int = 1
    itemsize: int = 2  # bytes of one element of the operands
    out_bytes: int = 2  # of one element of the result if TMA stores it, else 0
    sms: int = 132
    vectors: int = 0  # of bias and column scales: each one value a column
    a_straddles: bool = False  # the row stride is no multiple of 128 bytes
    b_straddles: bool = False
    integer: bool = False

    @cached_property
    def swapped(self) -> Facts:
        return replace(self, m=self.n, n=self.m, a_straddles=self.b_straddles, b_straddles=self.a_straddles)


@dataclass(frozen=True)
class Plan:
    """How the work is divided: whole tiles, tiles whose slices are divided, blocks, slices of a tile, parts of a tile with split-K."""

    whole: int
    streamed: int
    blocks: int
    slices: int
    split: int = 1

    @cached_property
    def units(self) -> int:
        return self.streamed * self.slices

    @property
    def parts(self) -> int:
        """Parts that the scratch memory holds."""
        return 0 if not self.streamed else self.streamed * self.split if self.split > 1 else 2 * self.blocks


def plan(config: Config, m: int, n: int, k: int, batch: int, sms: int) -> Plan:
    if config.SWAP:
        m, n = n, m
    total = -(-m // config.BM) * -(-n // config.BN) * batch
    slices = max(1, -(-k // config.BK))
    if isinstance(config, Cut):
        return Plan(0, total, min(sms, total * config.SPLIT), slices, config.SPLIT)
    if config.SPLIT > 1 and total % sms:
        rest = total % sms
        split = min(config.SPLIT, slices)
        return (
            Plan(total - rest, rest, min(sms, total - rest + rest * split), slices, split) if split > 1
            else Plan(total, 0, min(total, sms), slices)
        )
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
    """Shared memory besides the ring buffer: staging of the result (a swapped one goes straight from registers; one that TMA cannot store,
    `out_bytes` 0, changes its layout there) and `vectors` (bias, scales) of one value a column."""
    staging = 0 if config.SWAP else 2 * config.BM * piece(config) * (out_bytes or 2) + (2048 if out_bytes == 0 else 0)
    return staging + 4 * vectors * config.GROUPS * config.BN + BARRIERS


def shared_bytes(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> int:
    return config.STAGES * ring_bytes(config, itemsize) + _beside(config, out_bytes, vectors)


def deepest(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> Config:
    """The config with as many stages as fit, at most 8."""
    return replace(config, STAGES=min(8, (SHARED - _beside(config, out_bytes, vectors)) // ring_bytes(config, itemsize)))


def valid(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> bool:
    rows = config.BM // config.GROUPS
    return (
        config.STAGES >= 2 and rows in (64, 128) and rows * config.BN <= 64 * 256
        and shared_bytes(config, itemsize, out_bytes, vectors) <= SHARED
    )


def seconds(config: Config, facts: Facts) -> float:
    """Predicted time."""
    p = plan(config, facts.m, facts.n, facts.k, facts.batch, facts.sms)
    f = facts.swapped if config.SWAP else facts
    bm, bn, bk, itemsize = config.BM, config.BN, config.BK, f.itemsize
    line = bk * itemsize
    products = bm * bn * line / 2 / FMAS * (1.1 if f.integer and bn > 128 else 1.0)  # integers: two instructions of 128 columns
    reads = line * (bm + bn * max(1, bm // 64)) / SHARED_RATE
    outside = (max(0, bm - f.m) + max(0, bn - f.n)) * line / 128
    spare = 2 - p.blocks / f.sms  # the L2 bandwidth that idle multiprocessors leave to the others
    brought = line / spare * (
        min(bm, f.m) / (STRADDLING if f.a_straddles else FROM_L2) + min(bn, f.n) / (STRADDLING if f.b_straddles else FROM_L2)
    )
    step = max(products, reads, brought + outside * FILLED) + HANDSHAKE + (SHALLOW[config.STAGES] if config.STAGES < 4 else 0)
    scattered = (SPILLS if bm > 64 * config.GROUPS else 1.0) / SCATTERED
    epilogue = EPILOGUE + bm * bn * (scattered if config.SWAP or not f.out_bytes else f.out_bytes * (1 + VECTOR * f.vectors) / STORED)
    turns = -(-p.whole // p.blocks)
    mine = -(-p.slices // p.split) if p.split > 1 else -(-p.units // p.blocks)
    shared = (mine if p.split == 1 else mine * -(-p.streamed * p.split // p.blocks)) * step / CLOCK
    if p.units and p.split == 1:
        shared = max(shared, _apart(config, f, p) / MEMORY)
    clocks = START + turns * (p.slices * step + epilogue) + (epilogue if p.units else 0)
    each = (f.m * f.k + f.k * f.n) * itemsize * f.batch / max(1, p.whole + p.streamed)
    memory = START / CLOCK
    full, rest = divmod(p.whole, p.blocks)
    memory += full * p.blocks * each / min(MEMORY, p.blocks * ONE)
    memory += p.streamed * each / min(MEMORY, min(p.blocks, p.streamed * p.split if p.split > 1 else p.blocks) * ONE)
    memory += rest * each / min(MEMORY, max(rest, 1) * ONE) + f.batch * f.m * f.n * (f.out_bytes or 2) / WRITTEN
    extra = 0.0
    if p.units:
        pieces = p.split if p.split > 1 else min(p.blocks * 2, p.streamed * 2) / p.streamed
        extra = SECOND + 2 * p.streamed * pieces * bm * bn * 4 / PARTS
        if p.split == 1:
            extra += PIECE * max(0.0, p.blocks / p.streamed - 1)
    return max(clocks / CLOCK + shared, memory) + extra


def _apart(config: Config, f: Facts, p: Plan) -> float:
    """Bytes of device memory that stream-K tiles read: their blocks process different parts of K at the same time, so what tiles share
    stays in the L2 only if all of it fits."""
    line = f.k * f.itemsize
    together = min(p.streamed, p.blocks)
    rows = min(config.GROUP * config.BM, -(-f.m // config.BM) * config.BM)
    panels = (rows + max(1.0, together * config.BM / rows) * config.BN) * line
    alone = p.streamed * (config.BM + config.BN) * line
    missed = max(0.0, 1 - L2 / panels)
    return missed * alone + (1 - missed) * min(alone, panels)


def group_of(config: Config, sms: int) -> int:
    """Rows of tiles in a group for which the concurrent tiles are a square of outputs, so that they share the most."""
    side = (sms * config.BM * config.BN) ** 0.5
    return max(1, round(side / config.BM))


@lru_cache(maxsize=256)
def _tiles(
    shapes: tuple[tuple[int, int, int, int], ...], swap: bool, itemsize: int, out_bytes: int, vectors: int, sms: int
) -> tuple[Config, ...]:
    """The valid tiles of these shapes, each with as many stages as fit."""
    found = []
    for bm, bn, bk, groups in shapes:
        base = Config(bm, bn, bk * 2 // itemsize, groups, SWAP=swap)
        base = replace(base, GROUP=group_of(base, sms))
        config = deepest(base, itemsize, out_bytes, vectors)
        if valid(config, itemsize, out_bytes, vectors):
            found.append(config)
    return tuple(found)


def candidates(facts: Facts, swaps: bool = True) -> Iterable[Config]:
    """All reasonable configs, in no order, each once."""
    few = -(-facts.m // 128) * -(-facts.n // 128) * facts.batch < facts.sms
    for swap in (False, True) if swaps else (False,):
        columns = facts.m if swap else facts.n
        shapes = dict.fromkeys((*(NARROW if columns <= 64 else NARROW[:4] if few and not swap else ()), *(() if swap else WIDE)))
        for config in _tiles(tuple(shapes), swap, facts.itemsize, facts.out_bytes, facts.vectors, facts.sms):
            yield config
            p = plan(config, facts.m, facts.n, facts.k, facts.batch, facts.sms)
            rest = p.whole % facts.sms
            if not rest or p.slices < 2:
                continue
            most = min(facts.sms // rest, p.slices // 2, LARGEST_SPLIT) if p.whole < 4 * facts.sms else 1
            for split in {most, -(-most // 2), -(-most // 4)}:
                if split > 1:
                    yield replace(config, SPLIT=split)
            if p.whole > facts.sms:
                streaming = replace(config, STREAM=True)
                if 0 < plan(streaming, facts.m, facts.n, facts.k, facts.batch, facts.sms).units < 2**31:
                    yield streaming


def tall_tile(facts: Facts) -> tuple[Config, ...]:
    """The tile of 192 rows, if it fits and a smaller one would not do."""
    return () if facts.m <= 128 else _tiles((TALL,), False, facts.itemsize, facts.out_bytes, facts.vectors, facts.sms)


@lru_cache(maxsize=256)
def ranked(facts: Facts, swaps: bool = True) -> tuple[Config, ...]:
    """The candidates, the best predicted first."""
    return tuple(sorted(candidates(facts, swaps), key=lambda c: (seconds(c, facts), c.SPLIT, c.BM, c.BN, c.BK, c.STREAM)))
