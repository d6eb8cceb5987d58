"""The config of matmul__cluster__cuda_sm90.cu: products of few tiles, whose time is mostly latency.

The model adds the latencies of launch, first copy, barriers and store to the slices of K that a multiprocessor's blocks take; a slice takes
the largest of its instructions, the bytes in flight, and a share of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.ops.matmul import ACTIVATIONS

BK = 64  # k of a slice
SPLITS = (1, 2, 4, 8)  # blocks of a cluster; 8 are portable
TYPES = {"f32": 0, "f16": 1, "bf16": 2}
CLOCK = 1.7e9  # Hz
MMA = 512.0  # multiply-adds of mma.sync a cycle and multiprocessor
COPY, MOVE = 1.0, 2.5  # cycles of a multiprocessor for 64 bytes that are copied, and moved to their place
STEP = 250.0  # cycles of a slice that are barriers and latencies of a block, which others hide
START, SOLO, MEET = 3.0e-6, 0.9e-6, 1.2e-6  # seconds: launch, first copy and store; latency of a copy; a cluster's barriers and addition
MEMORY, ONE = 3.6e12, 4.0e10  # bytes a second of device memory, and the most for a multiprocessor


@dataclass(frozen=True)
class Tile:
    """BM x BN outputs a block, WM x WN a warp, STAGES slices of K in shared memory."""

    BM: int
    BN: int
    WM: int
    WN: int
    STAGES: int

    @property
    def threads(self) -> int:
        return self.BM // self.WM * (self.BN // self.WN) * 32


SHAPES = (
    (128, 128, 64, 32), (64, 128, 32, 64), (128, 64, 64, 32), (64, 64, 32, 32), (32, 64, 16, 32), (64, 32, 32, 16), (32, 32, 16, 16), (16, 64, 16, 16),
    (64, 16, 16, 16), (32, 128, 32, 32), (128, 32, 32, 32), (16, 128, 16, 32), (128, 16, 32, 16),
)
TILES = tuple(Tile(*s, stages) for s in SHAPES for stages in (3, 4, 6))


@dataclass(frozen=True)
class Facts:
    """out [batch, m, n]; modes of a and b as in the kernel."""

    m: int
    n: int
    k: int
    batch: int
    modes: tuple[int, int]
    sms: int
    room: int
    clusters: tuple[int, ...]


def _across(name: str, meta: Meta) -> bool:
    """Whether the operand lies along M or N, not along K."""
    near, far = (-1, -2) if name == "a" else (-2, -1)
    return meta.strides[near] != 1 and meta.shape[near] > 1 or (meta.strides[far] == 1 and meta.shape[far] > 1 and meta.shape[near] == 1)


def _mode(name: str, meta: Meta) -> int:
    across = _across(name, meta)
    lines = -2 if (name == "a") != across else -1  # the dimension whose steps go from line to line
    steps = [meta.strides[i] for i in (lines, *range(len(meta.shape) - 2)) if meta.shape[i] > 1]
    whole = meta.align % 16 == 0 and all(s % 8 == 0 for s in steps)
    return 2 * across + (not whole)


def _facts(p: Problem) -> Facts:
    m, n = p["out"].shape[-2:]
    batch = p["out"].shape[0] if len(p["out"].shape) == 3 else 1
    clusters = tuple(p.device.resident(s) for s in SPLITS)
    return Facts(m, n, p["a"].shape[-1], batch, (_mode("a", p["a"]), _mode("b", p["b"])), p.device.sms, p.device.shared_per_block, clusters)


def supports(p: Problem, head: Head) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if a.dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {a.dtype}"
    if out.numel * a.shape[-1] == 0:
        return "M, N, K and the batch must be at least 1"
    if max(*a.shape, *b.shape) >= 2**31 - 512 or -(-out.shape[-2] // 16) * -(-out.shape[-1] // 16) >= 2**27:
        return "takes fewer than 2^31 rows and columns, and products of few tiles"
    if len(a.shape) == 3 and a.shape[0] > 65535:
        return f"takes at most 65535 matrices; given {a.shape[0]}"
    for name in ("a", "b"):
        meta = p[name]
        if all(meta.strides[i] != 1 and meta.shape[i] > 1 for i in (-1, -2)):
            return f"rows or columns of {name} must be neighbours in memory"
    for name in ("c", "gate", "residual", "out"):
        found = p.get(name)
        if found is not None and found.strides[-1] != 1 and found.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def _bytes(ext: int, mode: int) -> int:
    """A slice of an operand in shared memory."""
    return (BK * (ext + 8) if mode >= 2 else ext * (BK + 8)) * 2


def _shared(t: Tile, modes: tuple[int, int]) -> int:
    sizes = [_bytes(ext, mode) for ext, mode in zip((t.BM, t.BN), modes, strict=True)]
    return t.STAGES * sum(sizes) + sum(s for s, mode in zip(sizes, modes, strict=True) if mode % 2)


def _fits(t: Tile, f: Facts) -> bool:
    return _shared(t, f.modes) <= f.room and t.BM * (t.BN + 8) * 4 <= t.STAGES * sum(map(_bytes, (t.BM, t.BN), f.modes))


def seconds(t: Tile, split: int, f: Facts) -> float:
    """Predicted time."""
    down, across = -(-f.m // t.BM), -(-f.n // t.BN)
    blocks = down * across * f.batch * split
    slices = -(-(-(-f.k // BK)) // split)
    resident = max(1, min(2048 // t.threads, (f.room + 1024) // (_shared(t, f.modes) + 1024), 65536 // (t.threads * (96 + t.WM * t.WN // 32))))
    each = -(-blocks // f.sms)
    rounds = -(-each // resident)
    together = -(-each // rounds)
    cycles = t.BM * t.BN * BK / MMA
    for ext, mode in zip((t.BM, t.BN), f.modes, strict=True):
        cycles += ext * BK * 2 / 64 * (COPY + (MOVE if mode % 2 else 0.0))
    step = max(together * cycles, cycles + STEP) / CLOCK
    waiting = SOLO / (t.STAGES - 1)
    busy = rounds * (slices * max(step, waiting) + SOLO)
    moved = 2.0 * f.batch * (f.m * f.k + f.k * f.n + f.m * f.n)
    memory = moved / min(MEMORY, min(blocks, f.sms) * ONE)
    return START + max(busy, memory) + (MEET + t.BM * t.BN * 4 / 6e10 if split > 1 else 0.0)


@lru_cache(maxsize=1024)
def _ranked(f: Facts) -> tuple[tuple[float, Tile, int], ...]:
    slices = -(-f.k // BK)
    found = [
        (seconds(t, split, f), t, split)
        for t in TILES if _fits(t, f) and t.STAGES <= max(3, slices + 1)
        for split in SPLITS if split == 1 or (split <= slices and -(-f.m // t.BM) * -(-f.n // t.BN) * f.batch * split <= 4 * f.sms)
    ]
    return tuple(sorted(found, key=lambda x: (x[0], x[2], -x[1].BM * x[1].BN, x[1].STAGES)))


def ranked(p: Problem) -> tuple[tuple[float, Tile, int], ...]:
    """Predicted time, tile and parts of K, the best first."""
    return _ranked(_facts(p))


def _config(tile: Tile, split: int) -> dict[str, int]:
    return {**{n: getattr(tile, n) for n in ("BM", "BN", "WM", "WN", "STAGES")}, "SPLIT": split}


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _config(*ranked(p)[0][1:])


def for_any_rows(p: Problem, head: Head) -> str:
    return "it is for few tiles: how K is divided follows from their number"


def every(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return [_config(t, s) for _, t, s in ranked(p)]


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return every(p, head)[:12]


def _apart(meta: Meta | None) -> tuple[int, int]:
    """Elements from a row to the next, and from a matrix to the next."""
    if meta is None:
        return 0, 0
    return meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 and meta.shape[0] > 1 else 0


def _wide(meta: Meta) -> int:
    """Results of a store: at most 16 bytes, and whatever all rows are a multiple of."""
    steps = [s for s, n in zip(meta.strides[:-1], meta.shape[:-1], strict=True) if n > 1]
    return gcd(16 // meta.itemsize, meta.align // meta.itemsize, meta.shape[-1], *steps)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    f = _facts(p)
    tile, split = Tile(*(config[n] for n in ("BM", "BN", "WM", "WN", "STAGES"))), config["SPLIT"]
    args: dict[str, tuple[str, Any]] = {
        "M": ("i32", f.m), "N": ("i32", f.n), "K": ("i32", f.k), "splits": ("i32", split), "each": ("i32", -(-(-(-f.k // BK)) // split) * BK),
        "tall": ("i32", max(1, min(-(-f.m // tile.BM), round((f.sms / split) ** 0.5)))),
    }
    for name, mode in zip(("a", "b"), f.modes, strict=True):
        meta = p[name]
        line = meta.strides[-2 if (name == "a") == (mode < 2) else -1]
        args |= {name: ("ptr", name), f"ld{name}": ("i64", line), f"z{name}": ("i64", _apart(meta)[1])}
    ldo, zo = _apart(p["out"])
    args |= {"out": ("ptr", "out"), "ldo": ("i64", ldo), "zo": ("i64", zo)}
    args |= {"alpha": ("f32", float(p.option("alpha"))), "beta": ("f32", float(p.option("beta")))}
    for name in ("c", "bias", "gate", "residual"):
        meta_or = p.get(name)
        args |= {name: ("ptr", name if meta_or is not None else None), f"{name}_type": ("i32", 0 if meta_or is None else TYPES[meta_or.dtype])}
        if name == "bias":
            args["act"] = ("i32", ACTIVATIONS.index(str(p.option("activation"))))
        else:
            ld, z = _apart(meta_or)
            args |= {f"ld_{name}": ("i64", ld), f"z_{name}": ("i64", z)}
    more = args["act"][1] > 0 or any(p.get(n) is not None for n in ("c", "bias", "gate", "residual"))
    kernel = instance(
        "divided", DTYPES[p["a"].dtype].cuda, DTYPES[p["out"].dtype].cuda, *(config[n] for n in ("BM", "BN", "WM", "WN", "STAGES")), *f.modes, _wide(p["out"]), more
    )
    tiles = -(-f.m // tile.BM) * -(-f.n // tile.BN)
    return [
        Launch(
            kernel, (tiles * split, f.batch), {n: v for n, (_, v) in args.items()}, types=tuple(kind for kind, _ in args.values()), block=(tile.threads,),
            cluster=(split,) if split > 1 else (), shared=_shared(tile, f.modes), chained=True,
        )
    ]


def explains(p: Problem, config: Mapping[str, Any], head: Head) -> str:
    f = _facts(p)
    tile, split = Tile(*(config[n] for n in ("BM", "BN", "WM", "WN", "STAGES"))), config["SPLIT"]
    tiles = -(-f.m // tile.BM) * -(-f.n // tile.BN) * f.batch
    parts = f", each computed by a cluster of {split} blocks that divide K" if split > 1 else ""
    moved = [name for name, mode in zip(("a", "b"), f.modes, strict=True) if mode % 2]
    odd = f"; rows of {' and '.join(moved)} start on no 16 bytes and are moved in shared memory" if moved else ""
    return (
        f"tile {tile.BM} x {tile.BN}, {tile.STAGES - 1} slices of {BK} of K in flight; {tiles} tile{'s'[: tiles - 1]}{parts}{odd}; predicted "
        f"{seconds(tile, split, f) * 1e6:.1f} µs"
    )
