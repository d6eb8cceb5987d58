"""The time of a tile shape on Hopper: the performance model that chooses a config and prunes a search.

Clocks of one multiprocessor, for one slice of K: the products, what wgmma reads from shared memory (both operands, so narrow tiles are bound by that),
or what TMA loads from L2, whichever is most. A tile is its slices and an epilogue; a block computes tiles in turn; device memory bandwidth is a lower
bound. The rates were fitted on an H200 to 83 products of 16³ to 16384³, of model shapes and of random ones, 3 to 9 configs each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SHARED = 227 * 1024
BARRIERS = 1024  # bytes of shared memory for mbarriers, alignment and what warp specialisation keeps
CLOCK = 1.7e9  # Hz under tensor load
FMAS = 2048  # a clock and multiprocessor, operands of 16 bits; 8 bits: twice
FROM_L2 = 64.0  # bytes a clock that TMA brings a multiprocessor
STRADDLING = 37.0  # the same where rows are no multiple of 128 bytes apart, so that each 128 bytes lie in two lines
FILLED = 12.5  # clocks that TMA takes to fill one row of 128 bytes outside the tensor with zeros
SHARED_RATE = 128.0  # bytes a clock that wgmma reads from shared memory
HANDSHAKE = 100.0  # clocks of a slice spent on its barriers
SHALLOW = (0.0, 0.0, 900.0, 80.0)  # clocks of a slice that 2 and 3 stages leave uncovered
START = 5000.0  # clocks from launch to the first product, with the first latency of device memory
EPILOGUE = 800.0  # clocks of latency of an epilogue
SECOND = 2.2e-6  # seconds that the launch of the sum of pieces adds
PIECE = 0.4e-6  # seconds that each piece after the second adds, where their number is known only to the kernel
PARTS = 2.5e12  # bytes a second at which pieces are written and read again
MEMORY = 4.2e12  # bytes a second of device memory; what it is exactly decides little here
ONE = 6.5e10  # bytes a second of device memory that one multiprocessor takes at most
L2 = 50e6  # bytes of operands that stay in L2
LARGEST_SPLIT = 16


@dataclass(frozen=True)
class Config:
    """BM, BN, BK: the tile; GROUPS: consumer warp groups, each with BM / GROUPS rows; STAGES: slices in the ring; GROUP: rows of tiles walked
    together; SPLIT: the tiles that do not fill a turn are cut into so many pieces of K; STREAM: the slices of those tiles (and of one turn before) are
    dealt out evenly over the blocks; SWAP: the kernel makes the transposed result, so that N is cut by BM and M by BN."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUPS: int = 2
    STAGES: int = 4
    GROUP: int = 16
    STREAM: bool = False
    SWAP: bool = False
    SPLIT: int = 1


WIDE = ((128, 256, 64, 2), (256, 128, 64, 2), (128, 128, 64, 2), (64, 256, 64, 1), (64, 128, 64, 1), (64, 128, 128, 1), (128, 64, 128, 2))
NARROW = ((128, 64, 128, 2), (64, 64, 128, 1), (128, 32, 128, 2), (64, 32, 128, 1), (128, 16, 128, 2), (64, 16, 128, 1))


@dataclass(frozen=True)
class Facts:
    """A product as the model sees it: out [batch, m, n] = a [batch, m, k] b [batch, k, n]."""

    m: int
    n: int
    k: int
    batch: int = 1
    itemsize: int = 2  # bytes of one element of the operands
    out_bytes: int = 2  # of one element of the result where TMA stores it, 0 where it cannot
    sms: int = 132
    vectors: int = 0  # of bias and column scales: one value a column each
    a_straddles: bool = False  # its rows are no multiple of 128 bytes apart
    b_straddles: bool = False
    integer: bool = False

    def swapped(self) -> Facts:
        return replace(self, m=self.n, n=self.m, a_straddles=self.b_straddles, b_straddles=self.a_straddles)


@dataclass(frozen=True)
class Plan:
    """How a product is shared out: tiles taken whole, tiles whose slices are shared, blocks, slices of a tile, pieces of a tile cut evenly."""

    whole: int
    streamed: int
    blocks: int
    slices: int
    split: int = 1

    @property
    def units(self) -> int:
        return self.streamed * self.slices

    @property
    def parts(self) -> int:
        """Pieces that the scratch memory holds."""
        return 0 if not self.streamed else self.streamed * self.split if self.split > 1 else 2 * self.blocks


def plan(config: Config, m: int, n: int, k: int, batch: int, sms: int) -> Plan:
    if config.SWAP:
        m, n = n, m
    total = -(-m // config.BM) * -(-n // config.BN) * batch
    slices = max(1, -(-k // config.BK))
    if config.SPLIT > 1 and total % sms:
        rest = total % sms
        split = min(config.SPLIT, slices)
        return Plan(total - rest, rest, min(sms, total - rest + rest * split), slices, split) if split > 1 else Plan(total, 0, min(total, sms), slices)
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
    """Shared memory beside the ring: the result on its way out (a swapped one goes straight from registers; one that TMA cannot store, `out_bytes` 0, changes
    its layout) and `vectors` (bias, scales) of one value a column."""
    staging = 0 if config.SWAP else 2 * config.BM * piece(config) * (out_bytes or 2) + (2048 if out_bytes == 0 else 0)
    return staging + 4 * vectors * config.GROUPS * config.BN + BARRIERS


def shared_bytes(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> int:
    return config.STAGES * ring_bytes(config, itemsize) + _beside(config, out_bytes, vectors)


def deepest(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> Config:
    """The config with as many stages as there is room for, at most 8."""
    return replace(config, STAGES=min(8, (SHARED - _beside(config, out_bytes, vectors)) // ring_bytes(config, itemsize)))


def valid(config: Config, itemsize: int, out_bytes: int, vectors: int = 0) -> bool:
    rows = config.BM // config.GROUPS
    return config.STAGES >= 2 and rows in (64, 128) and rows * config.BN <= 64 * 256 and shared_bytes(config, itemsize, out_bytes, vectors) <= SHARED


def seconds(config: Config, facts: Facts) -> float:
    """Predicted time."""
    p = plan(config, facts.m, facts.n, facts.k, facts.batch, facts.sms)
    f = facts.swapped() if config.SWAP else facts
    bm, bn, bk, itemsize = config.BM, config.BN, config.BK, f.itemsize
    line = bk * itemsize
    products = bm * bn * line / 2 / FMAS * (1.1 if f.integer and bn > 128 else 1.0)  # integers: two instructions of 128 columns
    reads = line * (bm + bn * max(1, bm // 64)) / SHARED_RATE
    outside = (max(0, bm - f.m) + max(0, bn - f.n)) * line / 128
    spare = 2 - p.blocks / f.sms  # what the idle multiprocessors leave of L2's rate
    brought = line / spare * (min(bm, f.m) / (STRADDLING if f.a_straddles else FROM_L2) + min(bn, f.n) / (STRADDLING if f.b_straddles else FROM_L2))
    step = max(products, reads, brought + outside * FILLED) + HANDSHAKE + (SHALLOW[config.STAGES] if config.STAGES < 4 else 0)
    epilogue = EPILOGUE + (bm * bn / 8 if config.SWAP or not f.out_bytes else bm * bn * f.out_bytes / 64)
    turns = -(-p.whole // p.blocks)
    mine = -(-p.slices // p.split) if p.split > 1 else -(-p.units // p.blocks)
    shared = mine * step / CLOCK
    if p.units and p.split == 1:
        shared = max(shared, _apart(config, f, p) / MEMORY)
    clocks = START + turns * (p.slices * step + epilogue) + (epilogue if p.units else 0)
    each = (f.m * f.k + f.k * f.n) * itemsize * f.batch / max(1, p.whole + p.streamed)
    memory = START / CLOCK
    full, rest = divmod(p.whole, p.blocks)
    memory += full * p.blocks * each / min(MEMORY, p.blocks * ONE)
    memory += p.streamed * each / min(MEMORY, min(p.blocks, p.streamed * p.split if p.split > 1 else p.blocks) * ONE)
    memory += rest * each / min(MEMORY, max(rest, 1) * ONE) + f.batch * f.m * f.n * f.out_bytes / MEMORY
    extra = 0.0
    if p.units:
        pieces = p.split if p.split > 1 else min(p.blocks * 2, p.streamed * 2) / p.streamed
        extra = SECOND + 2 * p.streamed * pieces * bm * bn * 4 / PARTS
        if p.split == 1:
            extra += PIECE * max(0.0, p.blocks / p.streamed - 1)
    return max(clocks / CLOCK + shared, memory) + extra


def _apart(config: Config, f: Facts, p: Plan) -> float:
    """Bytes of device memory that dealt-out tiles read: their blocks walk different parts of K at once, so that what tiles share stays in L2 only
    where all of it does."""
    line = f.k * f.itemsize
    together = min(p.streamed, p.blocks)
    rows = min(config.GROUP * config.BM, -(-f.m // config.BM) * config.BM)
    panels = (rows + max(1.0, together * config.BM / rows) * config.BN) * line
    alone = p.streamed * (config.BM + config.BN) * line
    missed = max(0.0, 1 - L2 / panels)
    return missed * alone + (1 - missed) * min(alone, panels)


def group_of(config: Config, sms: int) -> int:
    """Rows of tiles that make the tiles in flight a square of outputs, so that they share the most."""
    side = (sms * config.BM * config.BN) ** 0.5
    return max(1, round(side / config.BM))


def candidates(facts: Facts, swaps: bool = True) -> Iterable[Config]:
    """Every config worth a thought, in no order."""
    few = -(-facts.m // 128) * -(-facts.n // 128) * facts.batch < facts.sms
    for swap in (False, True) if swaps else (False,):
        columns = facts.m if swap else facts.n
        shapes = dict.fromkeys((*(NARROW if columns <= 64 else NARROW[:4] if few and not swap else ()), *(() if swap else WIDE)))
        for bm, bn, bk, groups in shapes:
            base = Config(bm, bn, bk * 2 // facts.itemsize, groups, SWAP=swap)
            base = replace(base, GROUP=group_of(base, facts.sms))
            config = deepest(base, facts.itemsize, facts.out_bytes, facts.vectors)
            if not valid(config, facts.itemsize, facts.out_bytes, facts.vectors):
                continue
            yield config
            p = plan(config, facts.m, facts.n, facts.k, facts.batch, facts.sms)
            rest = p.whole % facts.sms
            if not rest or p.slices < 2:
                continue
            most = min(facts.sms // rest, p.slices // 2, LARGEST_SPLIT) if p.whole < 4 * facts.sms else 1
            for split in {most, -(-most // 2), -(-most // 4)}:
                if split > 1:
                    yield replace(config, SPLIT=split)
            streaming = replace(config, STREAM=True)
            units = plan(streaming, facts.m, facts.n, facts.k, facts.batch, facts.sms).units
            if p.whole > facts.sms and 0 < units < 2**31:
                yield streaming


def ranked(facts: Facts, swaps: bool = True) -> list[Config]:
    """The candidates, the best predicted first."""
    return sorted(set(candidates(facts, swaps)), key=lambda c: (seconds(c, facts), c.SPLIT, c.BM, c.BN, c.BK, c.STREAM))
