"""The config of quantized_matmul__mma__cuda_sm80.cu, by a model of what bounds it: device memory, the L2 that x is read from by every block, the instructions
that unpack, tensor cores, and shared memory."""

from __future__ import annotations

from itertools import product
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels._device.lowbit import FORMATS, grouping, sizes
from rooftop.kernels._device.quantised import arguments, text
from rooftop.ops.quantized_matmul import BITS

CLOCK, MEMORY, L2 = 1.7e9, 4.2e12, 5.5e12
UNPACK = {"int8": 4.0, "int4": 2.7, "int2": 2.7, "e4m3": 4.5, "e5m2": 4.0, "e3m2": 7.0, "e2m3": 7.0, "e2m1": 4.5}  # instructions a pair of codes
SECOND = 2.0e-6  # seconds of the launch that adds parts
ROUND = 1.0e-6  # seconds that another round of blocks adds, whose first loads nothing hides
START, CHAIN = 2e-6, 0.2e-6  # seconds until the first codes are there; of a warp's block of codes, whose eight products wait for one another
IN_FLIGHT = 34e3  # bytes that a multiprocessor must have under way for its share of device memory
FEW = 64  # rows of x that a block takes at most


def _format(p: Problem) -> str:
    return str(p.option("format"))


def supports(p: Problem, head: Any) -> str | None:
    m, n, k = sizes(p)
    if m * n == 0:
        return "there is nothing to compute"
    if max(m * n, n, k) >= 2**31 or m > 65535 * FEW // 2:
        return f"takes fewer than 2^31 results and {65535 * FEW // 2} rows; given {m} x {n}"
    if any(p[name].align % 16 for name in ("codes",)):
        return "codes must begin at a multiple of 16 bytes"
    return None


def prefers(p: Problem, head: Any) -> int:
    """Up to 64 rows it comes first; beyond, what unpacks a code once for more rows."""
    return 1 if p["x"].shape[0] <= FEW else -1


def _rows(p: Problem) -> tuple[int, int]:
    """Rows of x that a block brings (a power of two), and the eights of them. Half as many with zero points, whose sums take registers too."""
    m = min(p["x"].shape[0], FEW if p.get("zero") is None else FEW // 2)
    tokens = 1 << (m - 1).bit_length()
    return tokens, max(1, tokens // 8)


def _registers(p: Problem, along: int, deep: int) -> int:
    """What the arrays of a thread take, and some; the compiler was seen to need up to 36 more."""
    tokens, tiles = _rows(p)
    zeros, bits = p.get("zero") is not None, BITS[_format(p)]
    held = (3 if bits == 6 else bits // 2) * 4 + 2 * (128 // grouping(p)[0]) * (1 + zeros)
    return 40 + deep * held + tiles * (24 if zeros else 12) + 7 * -(-tokens * 16 * along // 256)


def _resident(p: Problem, along: int, deep: int) -> int:
    """Blocks of eight warps on a multiprocessor, by registers."""
    return 2 if _registers(p, along, deep) <= 105 else 1


def seconds(p: Problem, down: int, along: int, split: int, deep: int) -> float:
    """Predicted time."""
    m, n, k = sizes(p)
    tokens, tiles = _rows(p)
    stripes, blocks = p["codes"].shape[:2]
    tall, towers = -(-m // (8 * tiles)), -(-stripes // down)
    count = towers * tall * split
    each = -(-blocks // split)
    steps = -(-each // along)
    codes = p["codes"].numel + p["scale"].nbytes
    unpack = 32 * UNPACK[_format(p)] + 8 * tiles + 60
    bound = max(unpack / 4, 8 * tiles * 2, tiles * 16)  # clocks a block of codes: issue, tensor cores, shared memory
    staging = tokens * 16 * along * 12 / 32 / 4
    busy = -(-count // p.device.sms) * steps * (along * down * bound + staging) / CLOCK
    bits = BITS[_format(p)]
    resident = _resident(p, along, deep)
    rounds = -(-count // (p.device.sms * resident))
    flight = min(count, p.device.sms * resident) * 8 * deep * 256 * bits
    idle = max(1.0, IN_FLIGHT * p.device.sms / flight)
    memory = max(codes / MEMORY * idle, (codes * tall + towers * m * k * 2) / L2)
    extra = 0.0 if split == 1 else SECOND + 2 * split * m * n * 4 / MEMORY
    return max(memory, busy, rounds * steps * CHAIN) + START + ROUND * (rounds - 1) + extra


def _configs(p: Problem) -> list[dict[str, Any]]:
    tokens, tiles = _rows(p)
    blocks = p["codes"].shape[1]
    few = {8: 2, 6: 2, 4: 3, 2: 4}[BITS[_format(p)]]
    found = []
    for (down, along), split, deep in product(((1, 8), (2, 4), (4, 2), (8, 1)), (1, 2, 4, 8), (few, 2 * few, 2, 1)):
        if _registers(p, along, deep) > 215:
            continue
        if tiles * along > 16 or (split > 1 and (blocks < 2 * split * along or p["x"].shape[0] > 8 * tiles)):
            continue
        made = {"format": FORMATS.index(_format(p)), "tokens": tokens, "tiles": tiles, "down": down, "along": along, "deep": deep, "split": split}
        found.append({**made, "resident": _resident(p, along, deep)})
    return sorted(found, key=lambda c: seconds(p, c["down"], c["along"], c["split"], c["deep"]))


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
            "zero": ("ptr", 0), "bias": ("ptr", 0), "out": ("ptr", 0),
        },
    )  # fmt: skip
    args, types = {**args, "parts": "parts" if split > 1 else None}, (*types, "ptr")
    kernel = text(
        "few_rows", kind, config["format"], DTYPES[p["scale"].dtype].cuda, DTYPES[zero.dtype].cuda if zero else "unsigned char", zero is not None, group,
        config["tokens"], config["tiles"], config["down"], config["along"], config["deep"], config["resident"], whole, split > 1,
    )  # fmt: skip
    bytes_of_x = 2 * config["along"] * config["tiles"] * 2048
    grid = (-(-stripes // config["down"]), -(-m // (8 * config["tiles"])), split)
    made = [Launch(kernel, grid, args, types=types, block=(32 * config["down"] * config["along"],), shared=bytes_of_x, chained=chained)]
    if split > 1:
        more: dict[str, tuple[str, Any]] = {"count": ("i64", m * n), "N": ("i32", n), "split": ("i32", split)}
        args, types = arguments(p, more)
        args, types = {**args, "parts": "parts", "bias": "bias" if p.get("bias") is not None else None, "out": "out"}, (*types, "ptr", "ptr", "ptr")
        made.append(Launch(text("add_parts", kind), (-(-m * n // 256),), args, types=types, block=(256,), chained=chained))
    return made
