"""The config of matmul__simt__cuda_sm80.cu: a performance model of a multiprocessor chooses the tile and the number of parts of K
(split-K).

The time of a block's slices of K is the largest of three: its FMAs, the load/store unit's transfers to and from shared memory, and the
copies that the ring of stages does not hide. Blocks of one multiprocessor share its units. Stores and first loads are added, and the
bandwidths of L2 and device memory are lower bounds. The rates were fitted to 436 configs of 60 random products on an H200, ALONE and SOLO
to the worst points of a sweep of 131 others; the predictions are off by 9 % on average."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from math import gcd, log
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem, typed
from rooftop.ops.matmul import ACTIVATIONS

BK = 8  # k of a slice
CLOCK = 1.72e9  # Hz
FMAS = 128  # FMAs a cycle and multiprocessor
COPY = {0: 8.8, 1: 12.0, 2: 12.0, 4: 16.4}  # cycles of the load/store unit for a warp's copy, by the floats a thread (0: 1, transposed)
SINGLE = {False: 1.05, True: 1.25}  # slowdown of a slice if an operand is copied float by float; True: with threads of 128 accumulators
BOTH = 1.11  # the same if both operands are copied float by float along K
# registers of a thread besides sums, operands and the addresses of copies; slowdown where all of them do not fit
BESIDE, SPILLED = 10, 1.4
FETCH = 1.47  # cycles of the load/store unit for a warp's shared memory loads of 16 bytes a lane
SUMS = 6.5  # warps at which half of the FMA rate is lost, over the root of a thread's accumulators
TOGETHER = 6.0  # the times of FMAs and copies of a slice combine as the norm of this order
LATENCY = 0.99e-6  # seconds of latency of a copy
# seconds that a slice takes longer where a multiprocessor has one block, with 128 rows copied along K: nothing runs at its barrier
ALONE = 0.11e-6
SOLO = 1.7  # slowdown of the part outside the main loop for blocks of one warp: nothing hides its latencies
# seconds of a block outside its main loop: constant, an output, an output stored by itself
BEGIN, STORE, NARROW = 1.8e-6, 9.9e-6 / 2**15, 1.5e-6 / 2**15
START, SECOND = 0.9e-6, 1.2e-6  # seconds of a launch, and of the launch that adds parts (split-K)
L2, MEMORY, PARTS = 6.0e12, 2.8e12, 4.7e12  # bytes a second
# seconds of the launch that copies an operand first, and bytes a second; how much longer its product counts, as far as predictions err
COPY_START, COPIED, SURE = 3.5e-6, 2.2e12, 1.08
HOT = 5.5e10  # bytes a second of one line of the L2: copies of 16 bytes pass the L1 by, and blocks at the same slice read the same lines
WORTH = 8192  # outputs of a tile from which operands are copied first: smaller ones read them too often
CACHED = 40e6  # bytes of an operand that stay in the L2
MOST_PARTS = 512
ROWS = tuple(1 << i for i in range(14))  # for which the parts of K are chosen that serve any number
MOST_FOR_ANY_ROWS = (1, 2, 3, 4)  # parts


@dataclass(frozen=True)
class Tile:
    """BM x BN outputs a block, WM x WN a warp, TM x TN a thread. BLOCKS: resident blocks a multiprocessor, limited by registers. factor:
    measured times over the model's for full tiles; for 16 x 8 outputs a thread in small blocks a guess."""

    BM: int
    BN: int
    WM: int
    WN: int
    TM: int
    TN: int
    STAGES: int
    BLOCKS: int
    factor: float

    @cached_property
    def threads(self) -> int:
        return self.BM // self.WM * (self.BN // self.WN) * 32

    @cached_property
    def spilling(self) -> bool:
        """Whether a thread's registers do not hold the addresses of its copies too where both operands are copied float by float along K."""
        copies = [max(1, extent * BK // self.threads) for extent in (self.BM, self.BN)]
        addresses = sum(2 * x if x <= 8 else 2 for x in copies)  # of more than 8 one address steps on
        return 65536 // (self.threads * self.BLOCKS) - self.TM * self.TN - 2 * (self.TM + self.TN) - BESIDE < addresses

    @cached_property
    def config(self) -> dict[str, int]:
        return {n: int(getattr(self, n)) for n in ("BM", "BN", "WM", "WN", "TM", "TN", "STAGES", "BLOCKS")}


TILES = (
    Tile(128, 256, 32, 128, 8, 16, 4, 1, 0.97),
    Tile(256, 128, 128, 32, 16, 8, 4, 1, 1.04),
    Tile(128, 128, 32, 128, 8, 16, 4, 2, 0.99),
    Tile(128, 64, 64, 32, 8, 8, 4, 4, 1.02),
    Tile(64, 128, 32, 64, 8, 8, 4, 4, 1.00),
    Tile(128, 64, 64, 64, 16, 8, 4, 4, 1.20),
    Tile(64, 128, 64, 64, 8, 16, 4, 4, 1.20),
    Tile(64, 64, 64, 64, 8, 16, 4, 8, 1.10),
    Tile(64, 64, 32, 32, 8, 4, 6, 5, 0.94),
    Tile(128, 32, 32, 32, 8, 4, 6, 5, 0.87),
    Tile(32, 128, 32, 32, 4, 8, 6, 5, 1.03),
    Tile(256, 16, 64, 16, 8, 4, 4, 5, 0.87),
    Tile(16, 256, 16, 64, 4, 8, 4, 5, 0.86),
    Tile(32, 32, 16, 32, 4, 4, 8, 8, 0.94),
)


def _sizes(p: Problem) -> tuple[int, int, int, int]:
    """M, N, K and the matrices of the batch."""
    m, n = p["out"].shape[-2:]
    return m, n, p["a"].shape[-1], p["out"].shape[0] if len(p["out"].shape) == 3 else 1


def _columns(meta: Meta) -> bool:
    """Whether columns are contiguous in memory."""
    return meta.strides[-1] != 1 and meta.shape[-1] > 1


def _floats(meta: Meta, along: int) -> int:
    """Floats of a copy along a dimension, at most 4: all other strides, the extent and the address are multiples of them."""
    steps = [s for i, (s, n) in enumerate(zip(meta.strides, meta.shape, strict=True)) if i != along % len(meta.shape) and n > 1]
    return gcd(4, meta.align // 4, meta.shape[along], *steps)


def _modes(p: Problem) -> tuple[int, int, bool]:
    """How a and b are copied (0: along K; else floats of a copy along rows of a or columns of b), and whether results are stored 16 bytes
    at a time."""
    a, b = p["a"], p["b"]
    mode_a = _floats(a, -2) if _columns(a) else 0
    mode_b = 0 if _columns(b) else _floats(b, -1)
    wide = all(_floats(meta, -1) == 4 for n in ("c", "out") if (meta := p.get(n)) is not None)
    return mode_a, mode_b, wide


def supports(p: Problem, head: Head) -> str | None:
    m, n, k, batch = _sizes(p)
    if p["a"].dtype != "f32":
        return f"takes f32; given {p['a'].dtype}"
    if m * n * batch == 0:
        return "there is nothing to compute"
    if batch > 65535:
        return f"takes at most 65535 matrices; given {batch}"
    if max(m, n, k) >= 2**31 - 512:
        return "takes fewer than 2^31 - 512 rows and columns"
    for name in ("a", "b"):
        meta = p[name]
        if meta.strides[-1] != 1 and meta.shape[-1] > 1 and meta.strides[-2] != 1 and meta.shape[-2] > 1:
            return f"rows or columns of {name} must be neighbours in memory"
    for name in ("c", "gate", "residual", "out"):
        if (found := p.get(name)) is not None and _columns(found):
            return f"the elements of a row of {name} must be neighbours"
    return None


def _shared(config: Mapping[str, Any], modes: tuple[int, int]) -> int:
    high, wide = config["BM"] + (4 if modes[0] == 0 else 0), config["BN"] + (4 if modes[1] == 0 else 0)
    return int(4 * config["STAGES"] * BK * (high + wide))


def _slice(tile: Tile, blocks: int, modes: tuple[int, int]) -> float:
    """Seconds of a slice for each resident block of a multiprocessor: its FMAs, at a lower rate with few warps, and the load/store unit's
    transfers."""
    warps = tile.threads // 32
    at_once = blocks * warps * (tile.TM * tile.TN) ** 0.5
    products = blocks * tile.BM * tile.BN * BK / FMAS * (1 + SUMS / at_once)
    copies = tile.BM * BK / (32 * max(modes[0], 1)) * COPY[modes[0]] + tile.BN * BK / (32 * max(modes[1], 1)) * COPY[modes[1]]
    moved = blocks * (copies + warps * BK * (tile.TM + tile.TN) / 4 * FETCH)
    single = SINGLE[tile.TM * tile.TN == 128] if 1 in modes else 1.0
    if modes == (0, 0):
        single = BOTH * (SPILLED if tile.spilling else 1.0)
    return float(single * (products**TOGETHER + moved**TOGETHER) ** (1 / TOGETHER) / CLOCK)


def seconds(tile: Tile, splits: int, sizes: tuple[int, int, int, int], modes: tuple[int, int], wide: bool, sms: int, room: int) -> float:
    """Predicted time with `splits` parts of K. room: bytes of shared memory of a multiprocessor."""
    return min(_times(tile, [splits], sizes, modes, wide, sms, room))


def _times(
    tile: Tile, parts_of_k: Iterable[int], sizes: tuple[int, int, int, int], modes: tuple[int, int], wide: bool, sms: int, room: int
) -> list[float]:
    """`seconds` for each number of parts of K."""
    m, n, k, batch = sizes
    down, across = -(-m // tile.BM), -(-n // tile.BN)
    resident = max(1, min(tile.BLOCKS, (room + 1024) // (_shared(tile.config, modes) + 1024)))  # blocks of a multiprocessor
    waiting = LATENCY / (tile.STAGES - 1)
    a, b, out = 4.0 * m * k * batch, 4.0 * k * n * batch, 4.0 * m * n * batch
    from_l2 = 4.0 * k * batch * (across * down * (tile.BM + tile.BN))
    # bytes of each line of the slices in flight that all blocks read, of lines of 128 bytes; other copies find them in the L1
    hot = 128 / BK * k * batch * max(across if modes[0] == 4 else 0, down if modes[1] == 4 else 0)
    from_memory = a + b + out + (0.0 if a + b <= 2 * CACHED else min(a * across, b * down, from_l2) * 0.05)
    a_slice: dict[int, float] = {}  # seconds, by the blocks of a multiprocessor
    found = []
    for splits in parts_of_k:
        slices = -(-k // (BK * splits))
        each = -(-down * across * batch * splits // sms)
        outside = (BEGIN + tile.BM * tile.BN * (STORE if wide or splits > 1 else STORE + NARROW)) * (SOLO if tile.threads == 32 else 1.0)
        alone = ALONE * tile.BM / 128 if each == 1 and modes[0] == 0 else 0.0
        rounds, rest = divmod(each, resident)
        for blocks in (resident, rest):
            if blocks and blocks not in a_slice:
                a_slice[blocks] = max(_slice(tile, blocks, modes), waiting)
        busy = rounds * (slices * a_slice[resident] + outside)
        busy += slices * (a_slice[rest] + alone) + outside if rest else 0.0
        parts = SECOND + 2 * splits * out / PARTS if splits > 1 else 0.0
        at_once = max(1, min(splits * batch, resident * sms // (down * across)))  # parts and matrices
        found.append(START + max(busy * tile.factor, from_l2 / L2, hot / at_once / HOT, from_memory / MEMORY) + parts)
    return found


def _parts(tile: Tile, sizes: tuple[int, int, int, int], sms: int) -> list[int]:
    """Candidate numbers of parts of K: those that fill one to eight waves of blocks."""
    m, n, k, batch = sizes
    tiles = -(-m // tile.BM) * -(-n // tile.BN) * batch
    most = min(MOST_PARTS, k // (4 * BK), max(1, (1 << 28) // max(1, m * n * batch)))
    found = []
    for waves in range(1, 9):
        for x in (waves * sms // tiles, -(-waves * sms // tiles)):
            if 1 < x <= most:
                part = -(-k // (BK * x)) * BK
                found.append(-(-k // part))
    return sorted({1, *found})


def _part(k: int, splits: int) -> int:
    """k of one part: whole slices."""
    return -(-k // (BK * splits)) * BK


@lru_cache(maxsize=1024)
def _ranked(
    sizes: tuple[int, int, int, int], modes: tuple[int, int], wide: bool, sms: int, room: int
) -> tuple[tuple[float, Tile, int], ...]:
    found: list[tuple[float, int, int, int]] = []
    for i, tile in enumerate(TILES):
        if _shared(tile.config, modes) <= room:
            parts = _parts(tile, sizes, sms)
            found += zip(_times(tile, parts, sizes, modes, wide, sms, room), parts, repeat(-tile.BM * tile.BN), repeat(i))
    return tuple([(time, TILES[i], splits) for time, splits, _, i in sorted(found)])


def _step(m: int) -> int:
    """Rounded up to 8 to 15 times a power of two: the choice depends on eight numbers of rows, or of columns, in an octave, so that a new
    size rarely compiles anything new."""
    shift = max(0, m.bit_length() - 4)
    return -(-m // (1 << shift)) << shift


def _ways(p: Problem) -> list[tuple[int, tuple[int, int], float]]:
    """Which operands are first copied as rows of K on 16 bytes (1: a, 2: b; none, or all that do not lie so), the modes then, and the
    seconds of the copies. Copies of one of two would double the kernels that a new number of rows compiles."""
    a, b, _ = _modes(p)
    found = [(0, (a, b), 0.0)]
    if len(p["out"].shape) == 2 and p["a"].numel * p["b"].numel and (copied := (a != 4) + 2 * (b != 4)):
        spent = sum(COPY_START + 2 * p[name].nbytes / COPIED for bit, name in ((1, "a"), (2, "b")) if copied & bit)
        found.append((copied, (4, 4), spent))
    return found


def _ranked_of(p: Problem, modes: tuple[int, int], copied: int) -> list[tuple[float, Tile, int]]:
    m, n, k, batch = _sizes(p)
    found = _ranked((_step(m), _step(n), k, batch), modes, _modes(p)[2], p.device.sms, p.device.shared_per_block)
    return [row for row in found if not copied or row[1].BM * row[1].BN >= WORTH]


def ranked(p: Problem) -> list[tuple[float, Tile, int, int]]:
    """Predicted time, tile, parts of K and the operands that are copied first, the best first."""
    found = [
        (time * (SURE if copied else 1) + spent, tile, splits, copied)
        for copied, modes, spent in _ways(p) for time, tile, splits in _ranked_of(p, modes, copied)
    ]
    return sorted(found, key=lambda row: row[0])


def _config(p: Problem, tile: Tile, splits: int, copied: int = 0) -> dict[str, int]:
    k = p["a"].shape[-1]
    side = (p.device.sms * tile.BLOCKS * tile.BM * tile.BN) ** 0.5  # of the square of concurrent outputs
    tall = max(1, min(round(side / tile.BM), 8))
    return {**tile.config, "GROUP": tall, "PART": _part(k, splits), "COPIED": copied}


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    ways = ((_ranked_of(p, modes, copied)[0], spent, copied) for copied, modes, spent in _ways(p))
    best, _, copied = min(ways, key=lambda way: way[0][0] * (SURE if way[2] else 1) + way[1])
    return _config(p, *best[1:], copied)


@lru_cache(maxsize=256)
def _parts_for_any_rows(n: int, k: int, sms: int, room: int) -> int:
    """The parts of K, whatever the number of rows: with them, the times are least on the geometric mean over 1 to 8192 rows, relative to those of a free
    choice. The parts of the results, which are as many as the rows, stay few."""
    best = [(rows, _ranked((rows, _step(n), k, 1), (0, 4), True, sms, room)[0][0]) for rows in ROWS]
    options = sorted({-(-k // _part(k, x)) for x in MOST_FOR_ANY_ROWS if x * 4 * BK <= k or x == 1}) if k else [1]

    def lost(splits: int) -> float:
        return sum(
            log(min(seconds(t, splits, (rows, _step(n), k, 1), (0, 4), True, sms, room) for t in TILES if _shared(t.config, (0, 4)) <= room) / time)
            for rows, time in best
        )

    return min(options, key=lost)


def for_any_rows(p: Problem, head: Head) -> Mapping[str, Any]:
    """A part of K is one chain of FMAs in the order of K, whatever the tile, and the parts are added in order."""
    a, b, wide = _modes(p)
    m, n, k, batch = _sizes(p)
    room = p.device.shared_per_block
    splits = _parts_for_any_rows(n, k, p.device.sms, room)
    sizes = (_step(m), _step(n), k, batch)
    fit = [t for t in TILES if _shared(t.config, (a, b)) <= room]
    return _config(p, min(fit, key=lambda t: (seconds(t, splits, sizes, (a, b), wide, p.device.sms, room), -t.BM * t.BN)), splits)


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return [_config(p, *row[1:]) for row in ranked(p)[:12]]


def _splits(p: Problem, config: Mapping[str, Any]) -> int:
    return max(1, -(-p["a"].shape[-1] // config["PART"])) if config["PART"] else 1


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    splits = _splits(p, config)
    m, n, k, batch = _sizes(p)
    made = {f"{name}_rows": Meta((k, _pitch(extent)), "f32") for bit, name, extent in ((1, "a", m), (2, "b", n)) if config["COPIED"] & bit}
    return {**made, "parts": Meta((splits, batch * m * _pitch(n)), "f32")} if splits > 1 else made


def _pitch(n: int) -> int:
    """Row stride of a part, in floats: rows of parts are aligned to 16 bytes even if those of the result are not."""
    return -(-n // 4) * 4


def _apart(meta: Meta | None) -> tuple[int, int]:
    """Stride of rows (or of columns, if rows are contiguous), and of matrices."""
    if meta is None:
        return 0, 0
    return meta.strides[-1] if _columns(meta) else meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 and meta.shape[0] > 1 else 0


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    m, n, k, batch = _sizes(p)
    modes, wide = next(modes for copied, modes, _ in _ways(p) if copied == config["COPIED"]), _modes(p)[2]
    splits, early = _splits(p, config), p.device.arch >= 90
    act = ACTIVATIONS.index(str(p.option("activation")))
    more = act > 0 or any(p.get(x) is not None for x in ("bias", "gate", "residual"))
    (lda, za), (ldb, zb), (ldo, zo) = (_apart(p[x]) for x in ("a", "b", "out"))
    (ldc, zc), (ldg, zg), (ldr, zr) = (_apart(p.get(x)) for x in ("c", "gate", "residual"))
    pitch = _pitch(n)
    plane = m * pitch * batch

    def there(name: str) -> tuple[str | None, str]:
        return name if p.get(name) is not None else None, "ptr"

    def launch(name: str, grid: tuple[int, ...], args: Mapping[str, tuple[Any, str]], block: int, shared: int = 0) -> Launch:
        return Launch(name, grid, **typed(args, value_first=True), block=(block,), shared=shared, pdl=early)

    after: dict[str, tuple[Any, str]] = {
        "alpha": (float(p.option("alpha")), "f32"), "beta": (float(p.option("beta")), "f32"), "c": there("c"), "ldc": (ldc, "i64"),
        "zc": (zc, "i64"), "bias": there("bias"), "act": (act, "i32"), "gate": there("gate"), "ldg": (ldg, "i64"), "zg": (zg, "i64"),
        "residual": there("residual"), "ldr": (ldr, "i64"), "zr": (zr, "i64"),
    }
    nothing: dict[str, tuple[Any, str]] = {
        name: ({"alpha": 1.0, "beta": 0.0}.get(name, None if kind == "ptr" else 0), kind) for name, (_, kind) in after.items()
    }
    first: dict[str, tuple[Any, str]] = {
        "M": (m, "i32"), "N": (n, "i32"), "K": (k, "i32"), "part": (config["PART"] or k, "i32"), "tall": (config["GROUP"], "i32"),
        "a": ("a", "ptr"), "lda": (lda, "i64"), "za": (za, "i64"), "b": ("b", "ptr"), "ldb": (ldb, "i64"), "zb": (zb, "i64"),
    }
    made = []
    for bit, name, extent, turned in ((1, "a", m, not _columns(p["a"])), (2, "b", n, _columns(p["b"]))):
        if config["COPIED"] & bit:
            to = _pitch(extent)
            args: dict[str, tuple[Any, str]] = {
                "N": (extent, "i32"), "K": (k, "i32"), "pitch": (to, "i32"), "x": (name, "ptr"), "ld": first[f"ld{name}"], "out": (f"{name}_rows", "ptr"),
            }
            made.append(launch(f"rows_of_k<{str(turned).lower()}>", (-(-to // 32) * -(-k // 32),), args, 256))
            first |= {name: (f"{name}_rows", "ptr"), f"ld{name}": (to, "i64"), f"z{name}": (0, "i64")}
    if splits == 1:
        first |= {"out": ("out", "ptr"), "ldo": (ldo, "i64"), "zo": (zo, "i64"), "plane": (0, "i64"), **after}
    else:
        first |= {"out": ("parts", "ptr"), "ldo": (pitch, "i64"), "zo": (m * pitch, "i64"), "plane": (plane, "i64"), **nothing}
        wide = True
    shape = [*(config[x] for x in ("BM", "BN", "WM", "WN", "TM", "TN", "STAGES", "BLOCKS")), *modes]
    last_of_all = more and splits == 1
    flags = [str(x).lower() for x in (wide and not last_of_all, last_of_all)]
    tiles = -(-m // config["BM"]) * -(-n // config["BN"])
    threads = config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * 32

    name = f"sgemm<{', '.join(map(str, [*shape, *flags]))}>"
    made.append(launch(name, (tiles, splits, batch), first, threads, _shared(config, modes)))
    if splits > 1:
        each = 1 if splits <= 8 else 4 if splits <= 32 else 16
        last = {
            "M": (m, "i32"), "N": (n, "i32"), "splits": (splits, "i32"), "pitch": (pitch, "i32"), "plane": (plane, "i64"),
            "parts": ("parts", "ptr"), "out": ("out", "ptr"), "ldo": (ldo, "i64"), "zo": (zo, "i64"), **after,
        }
        made.append(launch(f"add_parts<{each}, {str(more).lower()}>", (-(-plane // 4 // (256 // each)),), last, 256))
    return made


def explains(p: Problem, config: Mapping[str, Any], head: Head) -> str:
    m, n, _, batch = _sizes(p)
    splits, copied = _splits(p, config), config["COPIED"]
    tile = next((t for t in TILES if all(config[name] == value for name, value in t.config.items())), None)
    tiles = -(-m // config["BM"]) * -(-n // config["BN"]) * batch
    said = ["first " + " and ".join(name for bit, name in ((1, "a"), (2, "b")) if copied & bit) + " copied as rows of K on 16 bytes"] if copied else []
    said += [
        f"tile {config['BM']} x {config['BN']}, {config['TM']} x {config['TN']} a thread, {config['STAGES']} slices of {BK} of K in flight",
        f"{tiles} tile{'s'[: tiles - 1]}" + (f", cut into {splits} parts of K that a second launch adds" if splits > 1 else ""),
    ]
    found = ranked(p)
    of_this = next(((modes, spent) for way, modes, spent in _ways(p) if way == copied), None)
    predicted = None
    if tile is not None and of_this is not None:
        predicted = seconds(tile, splits, _sizes(p), of_this[0], _modes(p)[2], p.device.sms, p.device.shared_per_block) + of_this[1]
    other = next((row for row in found if row[1:] != (tile, splits, copied)), None)
    first = "next" if (tile, splits, copied) == found[0][1:] else "the model prefers"
    beside = "" if other is None else f"; {first} {other[1].BM}x{other[1].BN} in {other[2]} at {other[0] * 1e6:.1f} µs"
    said.append(("" if predicted is None else f"predicted {predicted * 1e6:.1f} µs") + beside)
    return "; ".join(said)
