"""mmt in cuTile: one tile of c a block. Contract: ops/mmt.py"""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.cutile import ct

DEMANDS = {"has": ["HGMMA", "UTMALDG"], "spills": 0}


def mmt(a, b, c, TILE: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    sums = ct.zeros((TILE, TILE), ct.float32)
    for k in range(ct.num_tiles(a, axis=1, shape=(TILE, TILE))):
        left = ct.load(a, (i, k), (TILE, TILE), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, j), (TILE, TILE), order="F", padding_mode=ct.PaddingMode.ZERO)
        sums = ct.mma(left, right, sums)
    ct.store(c, (i, j), sums.astype(c.dtype))


@dataclass(frozen=True)
class Config:
    tile: int = 64
    warps: int = 4


def supports(p: Problem) -> str | None:
    return None


def choose(p: Problem) -> Config:
    return Config()


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = (-(-n // config.tile) for n in p["c"].shape)
    return [Launch(mmt, (rows, columns), {"a": "a", "b": "b", "c": "c", "TILE": config.tile}, options={"num_worker_warps": config.warps})]
