"""How long a tile shape takes on Hopper: the model that the choice of config and the pruning of a search go by.

Clocks of one multiprocessor, for one slice of K: the products (wgmma reads both operands from shared memory, so narrow tiles are bound by that),
or the bytes that come from L2, whichever is more. A tile is its slices and an epilogue; a block takes tiles in turn; device memory bounds it all
from below. Rates: 2048 FMAs of 16 bits a clock and multiprocessor (H100 whitepaper), the rest measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SHARED = 227 * 1024
BARRIERS = 1024  # bytes of shared memory for mbarriers, alignment and what warp specialisation keeps
CLOCK = 1.6e9  # Hz under tensor load
FMAS = 2048  # a clock and multiprocessor, operands of 16 bits; 8 bits: twice
FROM_L2 = 48.0  # bytes a clock that TMA brings a multiprocessor when all ask
SHARED_RATE = 128.0  # bytes a clock that wgmma reads from shared memory
HANDSHAKE = 90.0  # clocks of a slice spent on its barriers where one warp group is alone
START = 2400.0  # clocks from launch to the first product
EPILOGUE = 700.0  # clocks of latency of an epilogue
SECOND = 2.0e-6  # seconds that a second launch adds
MEMORY = 3.0e12  # bytes a second of device memory; what it is exactly decides nothing here


@dataclass(frozen=True)
class Config:
    """BM, BN, BK: the tile; GROUPS: consumer warp groups, each with BM / GROUPS rows; STAGES: slices in the ring; GROUP: rows of tiles walked
    together; SPLITS: parts of K, each a tile of its own, added by a second launch."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUPS: int = 2
    STAGES: int = 4
    GROUP: int = 16
    SPLITS: int = 1


SHAPES = (
    (128, 256, 64, 2), (256, 128, 64, 2), (128, 128, 64, 2), (128, 128, 128, 2), (128, 64, 128, 2), (128, 32, 128, 2), (64, 256, 64, 1), (64, 128, 64, 1),
    (64, 128, 128, 1), (64, 64, 128, 1), (64, 32, 128, 1),
)  # fmt: skip


def piece(config: Config) -> int:
    """Columns that the epilogue stores at once."""
    return min(config.BN, 64)


def ring_bytes(config: Config, itemsize: int) -> int:
    return (config.BM + config.BN) * config.BK * itemsize


def shared_bytes(config: Config, itemsize: int, out_bytes: int) -> int:
    """Shared memory of a block; partial sums and unaligned results are stored from registers and need no staging (`out_bytes` 0)."""
    return config.STAGES * ring_bytes(config, itemsize) + 2 * config.BM * piece(config) * out_bytes + BARRIERS


def deepest(config: Config, itemsize: int, out_bytes: int) -> Config:
    """The config with as many stages as there is room for, at most 8."""
    room = SHARED - BARRIERS - 2 * config.BM * piece(config) * out_bytes
    return replace(config, STAGES=min(8, room // ring_bytes(config, itemsize)))


def valid(config: Config, itemsize: int, out_bytes: int, k: int) -> bool:
    rows = config.BM // config.GROUPS
    slices = -(-k // config.BK)
    per = -(-slices // config.SPLITS)
    return (
        config.STAGES >= 2
        and rows in (64, 128)
        and rows * config.BN <= 64 * 256
        and shared_bytes(config, itemsize, out_bytes) <= SHARED
        and (config.SPLITS - 1) * per < slices
    )


def seconds(config: Config, m: int, n: int, k: int, batch: int, itemsize: int, out_bytes: int, sms: int) -> float:
    """Predicted time. `out_bytes`: of one element of the result."""
    tiles = -(-m // config.BM) * -(-n // config.BN) * batch * config.SPLITS
    slices = -(-(-(-k // config.BK)) // config.SPLITS)
    fmas = config.BM * config.BN * config.BK * itemsize / 2 / FMAS
    rows = config.BM // config.GROUPS
    reads = config.BK * itemsize * (config.BM + config.BN * rows // 64 * config.GROUPS * 64 // rows) / SHARED_RATE
    used = (min(config.BM, m) + min(config.BN, n)) * config.BK * itemsize
    step = max(fmas, reads, used / FROM_L2 * min(1.0, tiles / sms)) + (HANDSHAKE if config.GROUPS == 1 else HANDSHAKE / 3)
    written = config.BM * config.BN * (4 if config.SPLITS > 1 else out_bytes)
    epilogue = EPILOGUE + written / 48.0
    turns = -(-tiles // sms)
    clocks = START + turns * (slices * step + epilogue)
    bytes_ = batch * (m * k * itemsize + k * n * itemsize + m * n * out_bytes)
    memory = START / CLOCK + bytes_ / (MEMORY * min(1.0, tiles / (0.6 * sms)))
    parts = config.SPLITS * batch * m * n * 4
    second = SECOND + 2 * parts / (FROM_L2 * sms * CLOCK * 0.5) if config.SPLITS > 1 else 0.0
    return max(clocks / CLOCK, memory) + second


def group_of(config: Config, sms: int) -> int:
    """Rows of tiles that make the tiles in flight a square of outputs, so that they share the most."""
    side = (sms * config.BM * config.BN) ** 0.5
    return max(1, round(side / config.BM))


def candidates(m: int, n: int, k: int, batch: int, itemsize: int, out_bytes: int, sms: int) -> Iterable[Config]:
    """Every config worth a thought, in no order."""
    for bm, bn, bk, groups in SHAPES:
        base = Config(bm, bn, bk * 2 // itemsize, groups)
        base = replace(base, GROUP=group_of(base, sms))
        for splits in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
            if splits > 1 and -(-m // bm) * -(-n // bn) * batch * splits > 2 * sms:
                break
            config = deepest(replace(base, SPLITS=splits), itemsize, 0 if splits > 1 else out_bytes)
            if valid(config, itemsize, 0 if splits > 1 else out_bytes, k):
                yield config


def ranked(m: int, n: int, k: int, batch: int, itemsize: int, out_bytes: int, sms: int) -> list[Config]:
    """The candidates, the best predicted first."""
    return sorted(candidates(m, n, k, batch, itemsize, out_bytes, sms), key=lambda c: seconds(c, m, n, k, batch, itemsize, out_bytes, sms))
