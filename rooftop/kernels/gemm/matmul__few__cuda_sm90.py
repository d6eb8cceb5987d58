"""The config of matmul__few__cuda_sm90.cu: products of few tiles, whose time is mostly latency.

The model: what every launch takes with its first bytes (START); the slices of K, each the larger of its products and of what its operands
take to shared memory; device memory and L2, which overlap with them; what a cluster takes to add its parts (EXCHANGE and the bytes sent) and
a block to store its results. The rates were fitted on an H200 to the times of 358 configs of 75 products; the predictions are off by 10 %
on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, TensorMap, instance, typed
from rooftop.kernels.gemm import _model
from rooftop.ops.matmul import ACTIVATIONS

BK, LINE = 64, 128  # k of a slice, and its bytes
ANY, ACROSS = 1, 2  # modes of an operand, as in the kernels
WIDTHS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 192, 256)
MOST_FETCHED = 128  # of WIDTHS where threads load an operand: they hold two slices in registers
SPLITS = (1, 2, 4, 8)  # blocks of a cluster; 8 are portable
MOST_STAGES = 12
FITTED = 16  # rows, columns and K of the smallest products whose times the model was fitted to
FEW = 3  # tiles of 128 x 128 for each multiprocessor up to which it may be the fastest
ROOM = _model.SHARED - 2048  # bytes for stages and sums
TYPES = {"f32": 0, "f16": 1, "bf16": 2}
START, EXCHANGE = 2.9e-6, 1.06e-6  # seconds
STEP = 73.0  # cycles of a slice besides
COPIED, STRADDLING = 121.0, 85.0  # bytes a cycle of TMA, and where rows are no multiple of 128 bytes apart
# of operands that threads load: bytes a cycle, seconds of a slice at least, and of the first ones where K is whole
FETCHED, WAIT, FIRST = 13.2, 0.71e-6, 2.35e-6
PUSHED = 9.0  # bytes of sums a cycle that a block sends to others
STORE = 1.06e-8  # seconds of a result of a thread
MEMORY, L2 = 3.7e12, 11.1e12  # bytes a second
TOGETHER = 3.6  # slices, memory and L2 combine as the norm of this order


# Predicted seconds, SPLIT, the negative tile area, SWAP, WIDE, GROUPS, STAGES: rows sort by time, then by what is simplest.
Row = tuple[float, int, int, int, int, int, int]


FIELDS = ("WIDE", "GROUPS", "STAGES", "SPLIT", "SWAP")


@dataclass(frozen=True)
class Config:
    """WIDE rows of one operand and 64 · GROUPS of the other a tile, STAGES slices of K in shared memory, SPLIT blocks that divide K. SWAP: the
    64 · GROUPS rows are columns of b."""

    WIDE: int
    GROUPS: int
    STAGES: int
    SPLIT: int
    SWAP: int

    @property
    def fields(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in FIELDS}


@dataclass(frozen=True)
class Facts:
    """out [m, n]; modes of a and b; straddles: rows are no multiple of 128 bytes apart; resident: clusters of 1, 2, 4 and 8 blocks."""

    m: int
    n: int
    k: int
    modes: tuple[int, int]
    straddles: tuple[bool, bool]
    resident: tuple[int, ...]


def lies_across(name: str, meta: Meta) -> bool:
    """Whether the operand lies along M or N, not along K."""
    near, far = (-1, -2) if name == "a" else (-2, -1)
    return (meta.strides[near] != 1 and meta.shape[near] > 1) or (meta.strides[far] == 1 and meta.shape[far] > 1 and meta.shape[near] == 1)


def boxes(name: str, meta: Meta, lines: int) -> TensorMap:
    """Boxes of `lines` rows by 64 of K, or ACROSS of `lines` of K by 64 rows."""
    across = lies_across(name, meta)
    order = (0, 1) if (name == "a") != across else (1, 0)
    shape, strides = tuple(meta.shape[i] for i in order), (meta.strides[order[0]], 1)
    if shape[0] == 1:
        strides = (-(-shape[1] // 8) * 8, 1)
    return TensorMap(name, (lines, 64), swizzle=128, shape=shape, strides=strides)


def mode_of(name: str, meta: Meta) -> int:
    return ACROSS * lies_across(name, meta) + ANY * (tensor_maps.refused(boxes(name, meta, 64), meta) is not None)


def line_of(name: str, meta: Meta) -> int:
    """Elements from a line to the next: from a row of k to the next where the operand lies across, else along M or N."""
    return meta.strides[-2 if (name == "a") != lies_across(name, meta) else -1]


@lru_cache(maxsize=256)
def facts_of(p: Problem) -> Facts:
    a, b = p["a"], p["b"]
    return Facts(
        a.shape[0], b.shape[1], a.shape[1], (mode_of("a", a), mode_of("b", b)),
        (line_of("a", a) * a.itemsize % LINE != 0, line_of("b", b) * b.itemsize % LINE != 0), tuple(p.device.resident(s) for s in SPLITS),
    )


def supports(p: Problem, head: Head | None = None) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if a.dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {a.dtype}"
    if len(a.shape) != 2:
        return "takes one product, not a batch"
    if out.numel * a.shape[-1] == 0:
        return "M, N and K must be at least 1"
    if max(*a.shape, *b.shape) >= 2**31 - 512 or -(-out.shape[-2] // 64) * -(-out.shape[-1] // 8) >= 2**27:
        return "takes fewer than 2^31 rows and columns, and products of few tiles"
    for name in ("a", "b"):
        meta = p[name]
        if all(meta.strides[i] != 1 and meta.shape[i] > 1 for i in (-1, -2)):
            return f"rows or columns of {name} must be neighbours in memory"
    for name in ("c", "gate", "residual", "out"):
        found = p.get(name)
        if found is not None and found.strides[-1] != 1 and found.shape[-1] > 1:
            return f"the elements of a row of {name} must be neighbours"
    return None


def _sums(wide: int, groups: int, swap: int) -> int:
    """Bytes of the sums of a tile: rows of out, with the pitch of the kernel."""
    high = 64 * groups
    return 4 * (wide * (high + 4) if swap else high * (wide if wide % 16 == 8 else wide + 8))


def _slice_bytes(wide: int, groups: int, y_mode: int) -> int:
    return (64 * groups + (-(-wide // 64) * 64 if y_mode & ACROSS else wide)) * LINE


def _shared(c: Config, y_mode: int) -> int:
    return c.STAGES * _slice_bytes(c.WIDE, c.GROUPS, y_mode) + (_sums(c.WIDE, c.GROUPS, c.SWAP) if c.SPLIT > 1 else 0)


def _of_tile(f: Facts, wide: int, groups: int, swap: int) -> list[Row]:
    """A tile with every division of K."""
    (x_mode, y_mode), (x_cut, y_cut), (x_rows, y_rows) = (
        (f.modes[::-1], f.straddles[::-1], (f.n, f.m)) if swap else (f.modes, f.straddles, (f.m, f.n))
    )
    high, slices, sums, bytes_ = 64 * groups, -(-f.k // BK), _sums(wide, groups, swap), _slice_bytes(wide, groups, y_mode)
    tiles = -(-x_rows // high) * -(-y_rows // wide)
    fetched = (x_mode | y_mode) & ANY
    x_there, y_there = LINE * min(high, x_rows), LINE * min(wide, y_rows)  # bytes of a slice
    x_cycles, y_cycles = (
        there / (FETCHED if mode & ANY else STRADDLING if cut else COPIED)
        for there, mode, cut in ((x_there, x_mode, x_cut), (y_there, y_mode, y_cut))
    )
    x_sectors, y_sectors = x_there * (1.25 if x_cut else 1.0), y_there * (1.25 if y_cut else 1.0)
    products = high * max(wide, 32) * BK / _model.FMAS
    memory = 2.0 * (f.m * f.k + f.k * f.n + f.m * f.n) / MEMORY
    found = []
    for split, alone_resident in zip(SPLITS, f.resident, strict=True):
        each = -(-slices // split)
        stages = min(MOST_STAGES, (ROOM - (sums if split > 1 else 0)) // bytes_, max(each, 2, -(-sums // bytes_)))
        if split > slices or wide % split or stages < 2 or stages * bytes_ < sums:
            continue
        together = max(1, min(ROOM // (stages * bytes_ + (sums if split > 1 else 0) + 2048), 1 if fetched else 4))
        resident = alone_resident * together
        rounds = -(-tiles // resident)
        crowd = max(1.0, min(tiles, resident) * split / f.resident[0])  # blocks that share a multiprocessor
        step = (max(x_cycles + y_cycles, products) + STEP) / _model.CLOCK * crowd
        traffic = tiles * slices * (x_sectors + y_sectors) / L2
        added = EXCHANGE + sums * (1 - 1 / split) / PUSHED / _model.CLOCK if split > 1 else 0.0
        stored = STORE * wide * high / (split * (128 * groups + (256 if fetched else 32))) * crowd
        busy = rounds * (each * (max(step, WAIT) if fetched else step) + (FIRST if fetched and split == 1 else 0.0))
        loaded = (busy**TOGETHER + memory**TOGETHER + traffic**TOGETHER) ** (1 / TOGETHER)
        found.append((START + loaded + rounds * (added + stored), split, -wide * high, swap, wide, groups, stages))
    return found


@lru_cache(maxsize=1024)
def _ranked(f: Facts) -> tuple[Row, ...]:
    found: list[Row] = []
    most = MOST_FETCHED if (f.modes[0] | f.modes[1]) & ANY else WIDTHS[-1]
    for swap in (0, 1):
        across, y_rows, x_rows = (f.modes[0] & ACROSS, f.m, f.n) if swap else (f.modes[1] & ACROSS, f.n, f.m)
        enough = most
        for wide in WIDTHS:
            if wide >= y_rows:
                enough = min(wide, most)  # wider ones pad alone
                break
        for wide in WIDTHS:
            if wide > enough or wide < min(enough, 32) or (across and wide > 64 and wide % 64):
                continue
            for groups in (1, 2):
                if groups == 1 or (x_rows > 64 and wide <= 128):
                    found += _of_tile(f, wide, groups, swap)
    return tuple(sorted(found))


def predicted(p: Problem) -> float | None:
    """Seconds of the config that it chooses; None where it has too many tiles or too few rows for the model, or
    where no GPU has shown that the kernel is right."""
    a, b = p["a"], p["b"]
    if not (a.dtype == p["out"].dtype == "bf16") or p.extra or p.option("beta") != 0 or p.option("activation") != "none":
        return None
    if min(*a.shape, b.shape[-1]) < FITTED:
        return None
    if len(a.shape) != 2 or lies_across("a", a) or -(-a.shape[0] // 128) * -(-b.shape[1] // 128) > FEW * p.device.sms:
        return None
    return _ranked(facts_of(p))[0][0]


def _config(row: Row) -> Config:
    _, split, _, swap, wide, groups, stages = row
    return Config(wide, groups, stages, split, swap)


def ranked(p: Problem) -> list[tuple[float, Config]]:
    """Predicted time and config, the best first."""
    return [(row[0], _config(row)) for row in _ranked(facts_of(p))]


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _config(_ranked(facts_of(p))[0]).fields


def for_any_rows(p: Problem, head: Head) -> str:
    return "it is for few tiles: how K is divided follows from their number"


def every(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return [c.fields for _, c in ranked(p)]


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return every(p, head)[:12]


def _stored(meta: Meta) -> int:
    """Results of a store: at most 16 bytes, and whatever all rows are a multiple of."""
    steps = [meta.strides[0]] if meta.shape[0] > 1 else []
    return gcd(16 // meta.itemsize, meta.align // meta.itemsize, meta.shape[-1], *steps)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    f = facts_of(p)
    c = Config(*(config[n] for n in FIELDS))
    (x, y), (x_mode, y_mode), (r, columns) = (
        (("b", "a"), f.modes[::-1], (f.n, f.m)) if c.SWAP else (("a", "b"), f.modes, (f.m, f.n))
    )
    args: dict[str, tuple[str, Any]] = {"R": ("i32", r), "C": ("i32", columns), "K": ("i32", f.k), "splits": ("i32", c.SPLIT)}
    args["stages"] = ("i32", c.STAGES)
    for side, name, mode, rows in (("x", x, x_mode, 64 * c.GROUPS), ("y", y, y_mode, c.WIDE)):
        args[f"{side}_map"] = ("i32", 0) if mode & ANY else ("map", boxes(name, p[name], BK if mode & ACROSS else rows))
    for side, name in (("x", x), ("y", y)):
        args |= {side: ("ptr", name), f"ld{side}": ("i64", line_of(name, p[name]))}
    args |= {"out": ("ptr", "out"), "ldo": ("i64", p["out"].strides[0])}
    args |= {"alpha": ("f32", float(p.option("alpha"))), "beta": ("f32", float(p.option("beta")))}
    for name in ("c", "bias", "gate", "residual"):
        meta = p.get(name)
        args |= {name: ("ptr", name if meta is not None else None), f"{name}_type": ("i32", 0 if meta is None else TYPES[meta.dtype])}
        args |= {"act": ("i32", ACTIVATIONS.index(str(p.option("activation"))))} if name == "bias" else {
            f"ld_{name}": ("i64", 0 if meta is None else meta.strides[0])
        }
    more = args["act"][1] > 0 or any(p.get(n) is not None for n in ("c", "bias", "gate", "residual"))
    kernel = instance(
        "few", DTYPES[p["a"].dtype].cuda, DTYPES[p["out"].dtype].cuda, c.WIDE, c.GROUPS, x_mode, y_mode, bool(c.SWAP), _stored(p["out"]), more
    )
    tiles = -(-r // (64 * c.GROUPS)) * -(-columns // c.WIDE)
    threads = 128 * c.GROUPS + (256 if (x_mode | y_mode) & ANY else 32)
    return [
        Launch(
            kernel, (tiles * c.SPLIT,), **typed(args), block=(threads,),
            cluster=(c.SPLIT,) if c.SPLIT > 1 else (), shared=_shared(c, y_mode), pdl=True,
        )
    ]


def explains(p: Problem, config: Mapping[str, Any], head: Head) -> str:
    f = facts_of(p)
    c = Config(*(config[n] for n in FIELDS))
    high, rows = 64 * c.GROUPS, (f.n, f.m) if c.SWAP else (f.m, f.n)
    tile = (c.WIDE, high) if c.SWAP else (high, c.WIDE)
    tiles = -(-rows[0] // high) * -(-rows[1] // c.WIDE)
    parts = f", each computed by a cluster of {c.SPLIT} blocks that divide K" if c.SPLIT > 1 else ""
    fetched = [name for name, mode in zip(("a", "b"), f.modes, strict=True) if mode & ANY]
    odd = f"; TMA does not read {' and '.join(fetched)}: loaded by threads" if fetched else ""
    return (
        f"tile {tile[0]} x {tile[1]}, {c.STAGES} slices of {BK} of K in flight; {tiles} tile{'s'[: tiles - 1]}{parts}{odd}; "
        f"predicted {next((row[0] for row in _of_tile(f, c.WIDE, c.GROUPS, c.SWAP) if row[1] == c.SPLIT), 0.0) * 1e6:.1f} µs"
    )
