"""The config of matmul__cluster__cuda_sm90.cu: products of few tiles, whose time is mostly latency.

The model adds what every launch takes (START), what a block takes besides its slices (BLOCK), the meeting of a cluster (MEET), and the
slices of K of a multiprocessor's blocks: the largest of their copies, moves and products, of the latency that the stages do not hide, and
of a block's own barriers. The rates were fitted on an H200."""

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
START, LATENCY, MEET, BLOCK = 0.8e-6, 0.72e-6, 1.5e-6, 1.2e-6  # seconds
STEP, COPY, MOVE, MMA = 150.0, 3.7, 13.0, 585.0  # cycles of a slice; of 128 bytes copied; moved; multiply-adds a cycle
MEMORY, ONE = 3.6e12, 4.0e10  # bytes a second of device memory, and the most for a multiprocessor
FEW, SMALL = 4, 24 << 20  # tiles of 64 x 64 for each multiprocessor, and bytes of operands and result, up to which it may be the fastest


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
TILES = tuple(Tile(*s, stages) for s in SHAPES for stages in (3, 6))


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


def _across(name: str, meta: Meta) -> bool:
    """Whether the operand lies along M or N, not along K."""
    near, far = (-1, -2) if name == "a" else (-2, -1)
    if meta.shape[near] == 1:
        return meta.strides[far] == 1 and meta.shape[far] > 1
    return meta.strides[near] != 1


def _mode(name: str, meta: Meta) -> int:
    across = _across(name, meta)
    lines = -2 if (name == "a") != across else -1  # the dimension whose steps go from line to line
    steps = [meta.strides[i] for i in (lines, *range(len(meta.shape) - 2)) if meta.shape[i] > 1]
    whole = meta.align % 16 == 0 and all(s % 8 == 0 for s in steps)
    return 2 * across + (not whole)


def _facts(p: Problem) -> Facts:
    m, n = p["out"].shape[-2:]
    batch = p["out"].shape[0] if len(p["out"].shape) == 3 else 1
    return Facts(m, n, p["a"].shape[-1], batch, (_mode("a", p["a"]), _mode("b", p["b"])), p.device.sms, p.device.shared_per_block)


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
    return BK * ext * 2 + (32 * (BK if mode >= 2 else ext) if mode % 2 else 0)


def _shared(t: Tile, modes: tuple[int, int]) -> int:
    moved = sum(BK * ext * 2 for ext, mode in zip((t.BM, t.BN), modes, strict=True) if mode % 2)
    return t.STAGES * sum(map(_bytes, (t.BM, t.BN), modes)) + moved


def _each(k: int, split: int) -> int:
    """Slices of K of a block."""
    return -(-k // (BK * split))


@lru_cache(maxsize=64)
def _tiles(modes: tuple[int, int], room: int) -> tuple[tuple[Tile, int, float], ...]:
    """The tiles that fit, with resident blocks of a multiprocessor and the cycles of a slice."""
    found = []
    for t in TILES:
        shared = _shared(t, modes)
        sums = t.BM * (t.BN + 8) * 4  # in the stages, at the end
        if shared > room or sums > t.STAGES * sum(map(_bytes, (t.BM, t.BN), modes)):
            continue
        resident = max(1, min(2048 // t.threads, (room + 1024) // (shared + 1024), 65536 // (t.threads * (104 + t.WM * t.WN // 32))))
        moved = sum(ext for ext, mode in zip((t.BM, t.BN), modes, strict=True) if mode % 2)
        found.append((t, resident, t.BM * t.BN * BK / MMA + (t.BM + t.BN) * COPY + moved * MOVE))
    return tuple(found)


def seconds(t: Tile, resident: int, cycles: float, split: int, f: Facts) -> float:
    """Predicted time."""
    blocks = -(-f.m // t.BM) * -(-f.n // t.BN) * f.batch * split
    slices = _each(f.k, split)
    rounds, rest = divmod(-(-blocks // f.sms), resident)
    alone = max(LATENCY / (t.STAGES - 1), (cycles + STEP) / CLOCK)
    busy = rounds * (slices * max(resident * cycles / CLOCK, alone) + LATENCY + BLOCK)
    if rest:
        busy += slices * max(rest * cycles / CLOCK, alone) + LATENCY + BLOCK
    memory = 2.0 * f.batch * (f.m * f.k + f.k * f.n + f.m * f.n) / min(MEMORY, min(blocks, f.sms) * ONE)
    return START + max(busy, memory) + (MEET if split > 1 else 0.0)


@lru_cache(maxsize=1024)
def _ranked(f: Facts) -> tuple[tuple[float, Tile, int], ...]:
    slices = -(-f.k // BK)
    found = [
        (seconds(t, resident, cycles, split, f), t, split)
        for t, resident, cycles in _tiles(f.modes, f.room)
        for split in SPLITS if split == 1 or (split <= slices and -(-f.m // t.BM) * -(-f.n // t.BN) * f.batch * split <= 4 * f.sms)
    ]
    return tuple(sorted(found, key=lambda x: (x[0], x[2], -x[1].BM * x[1].BN, x[1].STAGES)))


def predicted(p: Problem) -> float | None:
    """Seconds of the config that it chooses; None where the product has too many tiles or bytes for it."""
    m, n = p["out"].shape[-2:]
    tiles = -(-m // 64) * -(-n // 64) * (p["out"].shape[0] if len(p["out"].shape) == 3 else 1)
    if tiles > FEW * p.device.sms or p["a"].nbytes + p["b"].nbytes + p["out"].nbytes > SMALL:
        return None
    return ranked(p)[0][0]


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
        "M": ("i32", f.m), "N": ("i32", f.n), "K": ("i32", f.k), "splits": ("i32", split), "each": ("i32", _each(f.k, split) * BK),
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
    types = (DTYPES[p[n].dtype].cuda for n in ("a", "out"))
    kernel = instance("divided", *types, *(config[n] for n in ("BM", "BN", "WM", "WN", "STAGES")), *f.modes, _wide(p["out"]), more)
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
    time = next((s for s, t, k in ranked(p) if (t, k) == (tile, split)), None)
    said = "" if time is None else f"; predicted {time * 1e6:.1f} µs"
    return (
        f"tile {tile.BM} x {tile.BN}, {tile.STAGES - 1} slices of {BK} of K in flight; {tiles} tile{'s'[: tiles - 1]}{parts}{odd}{said}"
    )
