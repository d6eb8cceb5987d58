"""The config of quantized_matmul__mma__cuda_sm80.cu, by a performance model: device memory, L2 (every block reads x from it), the instructions
that unpack, tensor cores, and shared memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels._device.quantized import arguments, text
from rooftop.kernels.gemm._lowbit_formats import FORMATS, grouping, sizes
from rooftop.ops.quantized_matmul import BITS

CLOCK, MEMORY, L2 = 1.7e9, 4.2e12, 5.5e12
UNPACK = {"int8": 3.5, "int4": 2.8, "int2": 2.9, "e4m3": 4.5, "e5m2": 4.5, "e3m2": 7.0, "e2m3": 7.0, "e2m1": 4.8}  # unpacking instructions for a pair of codes
MMA = 8.5  # cycles of an mma.m16n8k16 in one of a multiprocessor's four tensor cores
SECOND = 2.0e-6  # seconds of the launch that adds parts (split-K)
ROUND = 1.0e-6  # seconds that another wave of blocks adds: nothing hides its first loads
START = 2e-6  # seconds of latency of the first codes
LATE = 1.5e-6  # seconds that measurements are above the prediction, for every config
IN_FLIGHT = 34e3  # bytes in flight that a multiprocessor needs for its share of the memory bandwidth
FEW = 64  # the most rows of x in a block


def _format(p: Problem) -> str:
    return str(p.option("format"))


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
    best = choose(p, None)
    return seconds(p, *(best[n] for n in ("high", "down", "along", "split", "deep"))) + LATE


@lru_cache(maxsize=32)
def _rows(p: Problem) -> tuple[int, int]:
    """Rows of x that a block supports (a power of two), and groups of eight of them. Half as many with zero points, whose sums take registers too."""
    m = min(p["x"].shape[0], FEW if p.get("zero") is None else FEW // 2)
    tokens = 1 << (m - 1).bit_length()
    return tokens, max(1, tokens // 8)


@lru_cache(maxsize=32)
def _channel(p: Problem) -> bool:
    """One scale a row and no zero points: accumulators are multiplied once, at the end."""
    return int(p.option("group")) == p["x"].shape[1] and p.get("zero") is None


@lru_cache(maxsize=32)
def _raw(p: Problem) -> bool:
    """Whether codes are multiplied with an offset of 128, which the sums of x subtract again: one more mma for each eight rows of x, and one instruction
    less for each pair of codes. Only if sums are over at most 128 columns, so that cancellation costs no accuracy that bf16 would show."""
    return p["x"].dtype == "bf16" and BITS[_format(p)] <= 4 and _format(p) != "e2m1" and not _channel(p) and _rows(p)[1] <= 2


@lru_cache(maxsize=32)
def _share(p: Problem) -> int:
    """Bytes of codes, scales and zero points of one stripe by 128 columns."""
    zero, wide = p.get("zero"), 16 * (128 // grouping(p)[0])
    of_scales = 0 if _channel(p) else wide * DTYPES[p["scale"].dtype].bytes
    return BITS[_format(p)] * 256 + of_scales + (0 if zero is None else wide * DTYPES[zero.dtype].bytes)


def _slab(p: Problem, along: int) -> int:
    """Iterations for which x is loaded together: 16 KiB, at most 8."""
    return max(1, min(8, 16384 // (along * _rows(p)[0] * 256)))


def _shared(p: Problem, high: int, down: int, along: int, deep: int, slab: int) -> int:
    tokens, tiles = _rows(p)
    of_x = (1 + -(-(deep - 1) // slab)) * slab * along * tokens * 256
    return max(of_x + 8 * deep * high * _share(p), (along - 1) * down * high * tiles * 512)


def _registers(p: Problem, high: int) -> int:
    """Registers of a thread's arrays, with some reserve."""
    _, tiles = _rows(p)
    bits = BITS[_format(p)]
    sums = high * tiles * 4 * (1 if _channel(p) else 2) + (tiles * 4 if _raw(p) or p.get("zero") is not None else 0)
    return 44 + sums + high * (8 + (3 if bits == 6 else bits // 2) * 4)


def _resident(p: Problem, high: int, down: int, along: int, deep: int) -> int:
    """Resident blocks of eight warps on a multiprocessor, limited by registers and shared memory."""
    registers = _registers(p, high)
    fit = 4 if registers <= 64 else 3 if registers <= 84 else 2 if registers <= 128 else 1
    return max(1, min(fit, (p.device.shared_per_block + 1024) // (_shared(p, high, down, along, deep, _slab(p, along)) + 1024)))


def seconds(p: Problem, high: int, down: int, along: int, split: int, deep: int) -> float:
    """Predicted time."""
    m, n, k = sizes(p)
    tokens, tiles = _rows(p)
    raw, bits = _raw(p), BITS[_format(p)]
    ones = raw or p.get("zero") is not None
    stripes, blocks = p["codes"].shape[:2]
    tall, towers = -(-m // (8 * tiles)), -(-stripes // (down * high))
    count = towers * tall * split
    each = -(-blocks // split)
    steps = -(-each // along)
    codes = p["codes"].numel + p["scale"].nbytes
    of_groups = 0 if _channel(p) else 128 // grouping(p)[0] * (6 + 4 * tiles * (2 if ones else 1))
    loads = 3 if bits == 6 else bits // 2
    issue = high * (32 * (UNPACK[_format(p)] - raw) + 8 * tiles + 2 * loads + of_groups + 14) + tiles * (8 if ones else 0) + 4 * tiles + 45
    tensor = (high + ones) * 8 * tiles * MMA
    through = high * 4 * bits + 16 * tiles  # cycles of shared memory, for the whole multiprocessor
    staging = tokens * along * 16 * 12 / 32 / 4 + 20
    resident = _resident(p, high, down, along, deep)
    warps = 2 * min(resident, -(-count // p.device.sms))  # for each of four schedulers
    busy = -(-count // p.device.sms) * steps * (along * down * max(issue / 4 / min(0.9, 0.2 * warps + 0.1 * high), tensor / 4, through) + staging) / CLOCK
    rounds = -(-count // (p.device.sms * resident))
    flight = min(count, p.device.sms * resident) * 8 * (deep - 1) * high * 256 * bits
    idle = max(1.0, IN_FLIGHT * p.device.sms / flight)
    memory = max(codes / MEMORY * idle, (codes * tall + towers * m * k * 2) / L2)
    extra = 0.0 if split == 1 else SECOND + 2 * split * m * n * 4 / MEMORY
    return max(memory, busy) + 0.15 * min(memory, busy) + START + ROUND * (rounds - 1) + extra


def _configs(p: Problem) -> list[dict[str, Any]]:
    tokens, tiles = _rows(p)
    blocks = p["codes"].shape[1]
    few = {8: 3, 6: 3, 4: 4, 2: 6}[BITS[_format(p)]]
    found = []
    for high, (down, along), split, deep in product((1, 2), ((1, 8), (2, 4), (4, 2), (8, 1)), (1, 2, 4, 8), (few, few + 2, 2)):
        if _registers(p, high) > 250 or _shared(p, high, down, along, deep, _slab(p, along)) > p.device.shared_per_block:
            continue
        if split > 1 and (blocks < 2 * split * along or p["x"].shape[0] > 8 * tiles or -(-blocks // split) * (split - 1) >= blocks):
            continue
        made = {"format": FORMATS.index(_format(p)), "tokens": tokens, "tiles": tiles, "high": high, "down": down, "along": along, "deep": deep}
        found.append({**made, "slab": _slab(p, along), "split": split, "resident": _resident(p, high, down, along, deep), "raw": int(_raw(p))})
    return sorted(found, key=lambda c: seconds(p, c["high"], c["down"], c["along"], c["split"], c["deep"]))


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return _configs(p)[0]


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return _configs(p)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    m, n, _ = sizes(p)
    return {"parts": Meta((config["split"], m, n), "f32")} if config["split"] > 1 else {}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    m, n, k = sizes(p)
    stripes, blocks = p["codes"].shape[:2]
    group, per_group = grouping(p)
    zero, x = p.get("zero"), p["x"]
    split, chained = config["split"], p.device.arch >= 90
    each = -(-blocks // split)
    row = x.strides[0] if m > 1 else k
    whole = k % 8 == 0 and x.align >= 16 and row % 8 == 0
    kind = DTYPES[x.dtype].cuda
    args, types = arguments(
        p,
        {
            "M": ("i32", m), "N": ("i32", n), "K": ("i32", k), "stripes": ("i32", stripes), "blocks": ("i32", blocks), "groups": ("i32", p["scale"].shape[1]),
            "per_group": ("i32", per_group), "each": ("i32", each), "x": ("ptr", 0), "xs": ("i64", row), "codes": ("ptr", 0), "scale": ("ptr", 0),
            "zero": ("ptr", 0), "x_scale": ("ptr", 0), "bias": ("ptr", 0), "out": ("ptr", 0),
        },
    )  # fmt: skip
    args, types = {**args, "parts": "parts" if split > 1 else None}, (*types, "ptr")
    kernel = text(
        "few_rows", kind, config["format"], DTYPES[p["scale"].dtype].cuda, DTYPES[zero.dtype].cuda if zero else "unsigned char", zero is not None,
        0 if _channel(p) else group, config["tokens"], config["tiles"], config["high"], config["down"], config["along"], config["deep"], config["slab"],
        config["resident"], bool(config["raw"]), whole, split > 1, p.get("x_scale") is not None,
    )  # fmt: skip
    bytes_of_all = _shared(p, *(config[n] for n in ("high", "down", "along", "deep", "slab")))
    grid = (-(-stripes // (config["down"] * config["high"])), -(-m // (8 * config["tiles"])), split)
    made = [Launch(kernel, grid, args, types=types, block=(32 * config["down"] * config["along"],), shared=bytes_of_all, chained=chained)]
    if split > 1:
        more: dict[str, tuple[str, Any]] = {"count": ("i64", m * n), "N": ("i32", n), "split": ("i32", split)}
        args, types = arguments(p, more)
        args, types = {**args, "parts": "parts", "bias": "bias" if p.get("bias") is not None else None, "out": "out"}, (*types, "ptr", "ptr", "ptr")
        made.append(Launch(text("add_parts", kind), (-(-m * n // 256),), args, types=types, block=(256,), chained=chained))
    return made
