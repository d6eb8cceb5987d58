"""The config of quantized_matmul__mma__cuda_sm80.cu, by a performance model: device memory, L2 (every block reads x from it), the
instructions that unpack, tensor cores, and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance, typed_arguments
from rooftop.kernels.gemm._lowbit_plan import FORMATS, grouping, sizes
from rooftop.ops.quantized_matmul import BITS

CLOCK, MEMORY, L2 = 1.7e9, 4.2e12, 5.5e12
# unpacking instructions for a pair of codes
UNPACK = {"int8": 3.5, "int4": 2.8, "int2": 2.9, "e4m3": 4.5, "e5m2": 4.5, "e3m2": 7.0, "e2m3": 7.0, "e2m1": 4.8}
MMA = 8.5  # cycles of an mma.m16n8k16 in one of a multiprocessor's four tensor cores
SECOND = 2.0e-6  # seconds of the launch that adds parts (split-K)
ROUND = 1.0e-6  # seconds that another wave of blocks adds: nothing hides its first loads
START = 2e-6  # seconds of latency of the first codes
LATE = 1.5e-6  # seconds that measurements are above the prediction, for every config
IN_FLIGHT = 34e3  # bytes in flight that a multiprocessor needs for its share of the memory bandwidth
FEW = 64  # the most rows of x in a block
WARPS = ((1, 8), (2, 4), (4, 2), (8, 1), (1, 4), (2, 2), (4, 1))  # of a block: for different stripes, for different columns of one


@dataclass(frozen=True)
class Facts:
    """What the model sees of a product of x [m, k] with packed codes of n rows."""

    m: int
    n: int
    k: int
    format: str
    bits: int
    stripes: int  # of 16 rows of the weight
    blocks: int  # of 128 columns
    groups: int  # of columns in a block
    bytes_of_weight: int  # codes and scales
    tokens: int  # rows of x that a block supports, a power of two: half as many with zero points, whose sums take registers too
    tiles: int  # groups of eight of them
    channel: bool  # one scale a row and no zero points: accumulators are multiplied once, at the end
    zero: bool
    raw: bool  # codes are multiplied with an offset of 128, which the sums of x subtract again
    share: int  # bytes of codes, scales and zero points of one stripe by 128 columns
    sms: int
    room: int  # bytes of shared memory that a block may have


@lru_cache(maxsize=32)
def _facts(p: Problem) -> Facts:
    x, zero, scale, format = p["x"], p.get("zero"), p["scale"], str(p.option("format"))
    (m, n, k), bits, (stripes, blocks), group = sizes(p), BITS[format], p["codes"].shape[:2], grouping(p)[0]
    tokens = 1 << (min(m, FEW if zero is None else FEW // 2) - 1).bit_length()
    tiles = max(1, tokens // 8)
    channel = int(p.option("group")) == k and zero is None
    # One more mma for each eight rows of x, and one instruction less for each pair of codes. Only if sums are over at most 128 columns, so
    # that cancellation costs no accuracy that bf16 would show.
    raw = x.dtype == "bf16" and bits <= 4 and format != "e2m1" and not channel and tiles <= 2
    wide = 16 * (128 // group)
    share = bits * 256 + (0 if channel else wide * scale.itemsize) + (0 if zero is None else wide * zero.itemsize)
    return Facts(
        m, n, k, format, bits, stripes, blocks, 128 // group, p["codes"].numel + scale.nbytes, tokens, tiles, channel, zero is not None,
        raw, share, p.device.sms, p.device.shared_per_block,
    )


def supports(p: Problem, head: Any) -> str | None:
    m, n, k = sizes(p)
    if m * n == 0:
        return "there is nothing to compute"
    if max(m * n, n, k, p["scale"].numel) >= 2**31 or m > 65535 * FEW // 2:
        return f"takes fewer than 2^31 results and scales, and {65535 * FEW // 2} rows; given {m} x {n}"
    for name in ("codes", "scale", "zero"):
        meta = p.get(name)
        if meta is not None and meta.align % 16:
            return f"{name} must begin at a multiple of 16 bytes"
    return None


def predicted(p: Problem) -> float:
    """Seconds with the best config."""
    return _ranked(_facts(p))[0][0] + LATE


def _shared(f: Facts, high: int, down: int, along: int, deep: int, slab: int) -> int:
    """Bytes of shared memory of a block."""
    of_x = (1 + -(-(deep - 1) // slab)) * slab * along * f.tokens * 256
    return max(of_x + down * along * deep * high * f.share, (along - 1) * down * high * f.tiles * 512)


def seconds(f: Facts, high: int, down: int, along: int, split: int, deep: int, resident: int) -> float:
    """Predicted time."""
    ones = f.raw or f.zero
    tall, towers = -(-f.m // (8 * f.tiles)), -(-f.stripes // (down * high))
    count = towers * tall * split
    each = -(-f.blocks // split)
    steps = -(-each // along)
    of_groups = 0 if f.channel else f.groups * (6 + 4 * f.tiles * (2 if ones else 1))
    loads = 3 if f.bits == 6 else f.bits // 2
    issue = high * (
        32 * (UNPACK[f.format] - f.raw) + 8 * f.tiles + 2 * loads + of_groups + 14
    ) + f.tiles * (8 if ones else 0) + 4 * f.tiles + 45
    tensor = (high + ones) * 8 * f.tiles * MMA
    through = high * 4 * f.bits + 16 * f.tiles  # cycles of shared memory, for the whole multiprocessor
    staging = f.tokens * along * 16 * 12 / 32 / 4 + 20
    warps = down * along / 4 * min(resident, -(-count // f.sms))  # for each of four schedulers
    busy = -(-count // f.sms) * steps * (
        along * down * max(issue / 4 / min(0.9, 0.2 * warps + 0.1 * high), tensor / 4, through) + staging
    ) / CLOCK
    rounds = -(-count // (f.sms * resident))
    flight = min(count, f.sms * resident) * down * along * (deep - 1) * high * 256 * f.bits
    idle = max(1.0, IN_FLIGHT * f.sms / flight)
    memory = max(f.bytes_of_weight / MEMORY * idle, (f.bytes_of_weight * tall + towers * f.m * f.k * 2) / L2)
    extra = 0.0 if split == 1 else SECOND + 2 * split * f.m * f.n * 4 / MEMORY
    memory *= (-(-count // f.sms) * f.sms / count) ** 0.5  # where some multiprocessors have a block less, the others make up for about half of it
    return max(memory, busy) + 0.15 * min(memory, busy) + START + ROUND * (rounds - 1) + extra


@lru_cache(maxsize=32)
def _ranked(f: Facts) -> tuple[tuple[float, dict[str, Any]], ...]:
    """Configs with their predicted times, the fastest first."""
    few = {8: 3, 6: 3, 4: 4, 2: 6}[f.bits]
    found = []
    for high in (1, 2):
        sums = high * f.tiles * 4 * (1 if f.channel else 2) + (f.tiles * 4 if f.raw or f.zero else 0)
        registers = 44 + sums + high * (8 + (3 if f.bits == 6 else f.bits // 2) * 4)  # of a thread's arrays, with some reserve
        if registers > 250:
            continue
        fit = 4 if registers <= 64 else 3 if registers <= 84 else 2 if registers <= 128 else 1  # groups of eight warps
        for (down, along), split, deep in product(WARPS, (1, 2, 4, 8), (few, few + 2, 2)):
            if split > 1 and (f.blocks < 2 * split * along or f.m > 8 * f.tiles or -(-f.blocks // split) * (split - 1) >= f.blocks):
                continue
            slab = max(1, min(8, 16384 // (along * f.tokens * 256)))  # iterations for which x is loaded together: 16 KiB
            shared = _shared(f, high, down, along, deep, slab)
            if shared > f.room:
                continue
            resident = max(1, min(8 * fit // (down * along), (f.room + 1024) // (shared + 1024)))  # blocks on a multiprocessor
            made = {
                "format": FORMATS.index(f.format), "tokens": f.tokens, "tiles": f.tiles, "high": high, "down": down, "along": along,
                "deep": deep
            }
            made |= {"slab": slab, "split": split, "resident": resident, "raw": int(f.raw)}
            found.append((seconds(f, high, down, along, split, deep, resident), made))
    return tuple(sorted(found, key=itemgetter(0)))


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return dict(_ranked(_facts(p))[0][1])


def for_any_rows(p: Problem, head: Any) -> str:
    return "it is for few rows: how its warps divide K follows from their number"


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return [dict(config) for _, config in _ranked(_facts(p))]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    m, n, _ = sizes(p)
    return {"parts": Meta((config["split"], m, n), "f32")} if config["split"] > 1 else {}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    m, n, k = sizes(p)
    stripes, blocks = p["codes"].shape[:2]
    group, per_group = grouping(p)
    zero, x = p.get("zero"), p["x"]
    split, pdl = config["split"], p.device.arch >= 90
    each = -(-blocks // split)
    row = x.strides[0] if m > 1 else k
    whole = k % 8 == 0 and x.align >= 16 and row % 8 == 0
    kind = DTYPES[x.dtype].cuda
    args, types = typed_arguments(
        p,
        {
            "M": ("i32", m), "N": ("i32", n), "K": ("i32", k), "stripes": ("i32", stripes), "blocks": ("i32", blocks),
            "groups": ("i32", p["scale"].shape[1]), "per_group": ("i32", per_group), "each": ("i32", each), "x": ("ptr", 0),
            "xs": ("i64", row), "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0), "x_scale": ("ptr", 0), "bias": ("ptr", 0),
            "out": ("ptr", 0),
        },
    )
    args, types = {**args, "parts": "parts" if split > 1 else None}, (*types, "ptr")
    kernel = instance(
        "few_rows", kind, config["format"], DTYPES[p["scale"].dtype].cuda, DTYPES[zero.dtype].cuda if zero else "unsigned char",
        zero is not None, 0 if _facts(p).channel else group, config["tokens"], config["tiles"], config["high"], config["down"],
        config["along"], config["deep"], config["slab"], config["resident"], bool(config["raw"]), whole, split > 1,
        p.get("x_scale") is not None,
    )
    bytes_of_all = _shared(_facts(p), *(config[n] for n in ("high", "down", "along", "deep", "slab")))
    grid = (-(-stripes // (config["down"] * config["high"])), -(-m // (8 * config["tiles"])), split)
    made = [Launch(kernel, grid, args, types=types, block=(32 * config["down"] * config["along"],), shared=bytes_of_all, pdl=pdl)]
    if split > 1:
        more: dict[str, tuple[str, Any]] = {"count": ("i64", m * n), "N": ("i32", n), "split": ("i32", split)}
        args, types = typed_arguments(p, more)
        args, types = {
            **args, "parts": "parts", "bias": "bias" if p.get("bias") is not None else None, "out": "out"
        }, (*types, "ptr", "ptr", "ptr")
        made.append(Launch(instance("add_parts", kind), (-(-m * n // 256),), args, types=types, block=(256,), pdl=pdl))
    return made
