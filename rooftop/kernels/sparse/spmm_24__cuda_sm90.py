"""The config of spmm_24__cuda_sm90.cu, by a performance model: tensor cores at the card's power, L2 bandwidth, and whole waves of tiles."""

from __future__ import annotations

from math import ceil
from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, TensorMap, instance
from rooftop.ops._sparse import ACTIVATIONS

SHARED = 226 * 1024
CLOCK = 1.7e9  # Hz under tensor load
FMAS = 2048.0  # multiply-adds a cycle and multiprocessor, counted on the values: what the power limit leaves of 4096
FROM_L2 = 40.0  # bytes a cycle that TMA loads to a multiprocessor while all of them load
FILLED = 6.5, 2.8  # cycles that TMA takes to fill 128 bytes outside of b with zeros: along K, and along N
START, EPILOGUE = 2500.0, 2500.0  # cycles of the prologue, and of the epilogue of a tile
NARROW = 64  # columns up to which S is streamed, its bytes by 256 columns of 128 rows, and those of b beside them
OF_S, OF_B = 36864, 32768
MEMORY, ONE, BOTH = 4.5e12, 3.5e10, 9.1e10  # bytes a second: of S, from device memory, by all and by one; of S and b by one
FIRST, ROUND, TOGETHER = 3.2e-6, 3.5e-6, 1.5e-6  # seconds of the first loads, of another round, and of another block's sums
MISSING = 4.7, 2.0  # cycles that TMA takes to fill 128 bytes outside of b with zeros while S is streamed: along K, and along N



def near(b: Meta) -> bool:
    """Whether b is contiguous along K."""
    return b.strides[0] == 1 and b.shape[0] > 1 and not (b.strides[1] == 1 and b.shape[1] > 1)


def _maps(p: Problem, config: Any) -> dict[str, TensorMap]:
    b, high, wide = p["b"], 128 * config["blocks"], config["wide"]
    if near(b):
        pitch = b.strides[1] if b.shape[1] > 1 else -(-b.shape[0] // 8) * 8
        of_b = TensorMap("b", (wide, 64), swizzle=128, shape=(b.shape[1], b.shape[0]), strides=(pitch, 1))
    else:
        pitch = b.strides[0] if b.shape[0] > 1 else -(-b.shape[1] // 8) * 8
        of_b = TensorMap("b", (128, 64), swizzle=128, shape=b.shape, strides=(pitch, 1))
    return {"values": TensorMap("values", (high, 64), swizzle=128), "b": of_b}


def supports(p: Problem, head: Any) -> str | None:
    if p["out"].numel * p["b"].shape[0] == 0:
        return "M, N and K must be at least 1"
    if max(*p["b"].shape, *p["out"].shape) >= 2**31 - 512 or p["meta"].shape[0] * p["meta"].shape[1] >= 2**31:
        return "takes fewer than 2^31 rows and columns"
    if p["meta"].align % 16:
        return "metadata must begin at a multiple of 16 bytes"
    for name, m in _maps(p, {"blocks": 1, "wide": 128}).items():
        if reason := tensor_maps.refused(m, p[name]):
            return f"TMA does not read {name}: {reason}"
    return None


def _sizes(p: Problem) -> tuple[int, int, int]:
    return p["values"].shape[0], p["b"].shape[1], p["b"].shape[0]


def clocks(p: Problem, blocks: int, wide: int) -> float:
    m, n, k = _sizes(p)
    high = 128 * blocks
    rounds = -(-(-(-m // high) * -(-n // wide)) // p.device.sms)
    step = max(high * wide * 128 / 2 / FMAS, (high + 2 * wide) * 128 / FROM_L2)  # a slice of 128 columns
    step += 2 * max(0, wide - n) * FILLED[0 if near(p["b"]) else 1]
    return START + rounds * (2 * -(-k // 256) * step + EPILOGUE)


def seconds(p: Problem) -> float:
    """Predicted time of the best config; a last round of few tiles has more of the L2."""
    m, n, _ = _sizes(p)

    def part(blocks: int, wide: int) -> float:
        rounds = -(-m // (128 * blocks)) * -(-n // wide) / p.device.sms
        return (max(1.0, rounds) / ceil(rounds) + 1) / 2

    whole = min(clocks(p, c["blocks"], c["wide"]) * part(c["blocks"], c["wide"]) for c in _wide()) / CLOCK
    return min([whole, *(streamed(p, c["split"]) for c in _narrow(p)[:1])])


def streamed(p: Problem, split: int) -> float:
    """Predicted time of the kernel for few columns, with K divided among `split` blocks."""
    stripes, slices = p["meta"].shape[:2]
    tall, each, size = -(-stripes // 8), -(-slices // split), 1 << (split - 1).bit_length()
    resident = min(p.device.sms // split, p.device.resident(size) * size // split) * split
    rounds, at_once = -(-tall * split // resident), min(tall * split, resident)
    missing = 4 * (NARROW - p["b"].shape[1]) * MISSING[0 if near(p["b"]) else 1] / CLOCK
    step = max(OF_S * at_once / MEMORY, OF_S / ONE, (OF_S + OF_B) / BOTH + missing)
    return FIRST + rounds * each * step + (rounds - 1) * ROUND + (split - 1) * TOGETHER


def _wide() -> list[dict[str, Any]]:
    found = []
    for blocks, wide in ((2, 128), (1, 256), (1, 128)):
        stage = 128 * blocks * 128 + wide * 256
        found.append({"blocks": blocks, "wide": wide, "stages": min(6, SHARED // stage), "split": 0})
    return found


def _narrow(p: Problem) -> list[dict[str, Any]]:
    """The fastest predicted first; clusters have at most 7 blocks, whose sums fit the first one's ring."""
    if p["b"].shape[1] > NARROW:
        return []
    slices = p["meta"].shape[1]
    splits = [s for s in range(1, 8) if s == 1 or -(-slices // -(-slices // s)) == s]
    return [{"blocks": 1, "wide": NARROW, "stages": 3, "split": s} for s in sorted(splits, key=lambda s: streamed(p, s))]


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return _wide() + _narrow(p)


def choose(p: Problem, head: Any) -> dict[str, Any]:
    best, few = min(_wide(), key=lambda c: clocks(p, c["blocks"], c["wide"])), _narrow(p)
    return few[0] if few and streamed(p, few[0]["split"]) * CLOCK < clocks(p, best["blocks"], best["wide"]) else best


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    m, n, k = _sizes(p)
    blocks, wide, stages = config["blocks"], config["wide"], config["stages"]
    high = 128 * blocks
    tall, across = -(-m // high), -(-n // wide)
    bias, turned = p.get("bias"), bool(p.option("transposed"))
    kind = 0 if bias is None else 1 if bias.shape[1] == 1 and (bias.shape[0] == m) else 2
    along = 0 if bias is None else bias.strides[kind - 1]
    pairs = (m if turned else n) % 2 == 0
    act = ACTIVATIONS.index(str(p.option("activation")))
    maps, split = _maps(p, config), config["split"]
    if split:
        slices = p["meta"].shape[1]
        few: dict[str, Any] = {
            "M": m, "N": n, "slices": slices, "each": -(-slices // split), "values_map": maps["values"], "b_map": maps["b"], "meta": "meta",
            "stripes": p["meta"].shape[0], "alpha": float(p.option("alpha")), "bias": "bias" if bias else None, "bias_step": along,
            "out": "out", "pitch": m if turned else n,
        }
        return [
            Launch(
                instance("narrow", DTYPES[p["b"].dtype].cuda, split, stages, near(p["b"]), turned, pairs, act, kind), (tall, split), few,
                types=("i32",) * 4 + ("map", "map", "ptr", "i32", "f32", "ptr", "i64", "ptr", "i64"), block=(288,),
                cluster=(1, split, 1) if split > 1 else (), shared=stages * (2 * 16384 + OF_B),
            )
        ]
    kernel = instance("spmm", DTYPES[p["b"].dtype].cuda, blocks, wide, stages, near(p["b"]), turned, pairs, act, kind)
    args: dict[str, Any] = {
        "M": m, "N": n, "slices": 2 * -(-k // 256), "tall": tall, "across": across, "band": 8 if blocks == 2 else 16,
        "values_map": maps["values"], "b_map": maps["b"], "meta": "meta", "stripes": p["meta"].shape[0], "alpha": float(p.option("alpha")),
        "bias": "bias" if bias else None, "bias_step": along, "out": "out", "pitch": m if turned else n,
    }
    types = ("i32",) * 6 + ("map", "map", "ptr", "i32", "f32", "ptr", "i64", "ptr", "i64")
    shared = stages * (high * 128 + wide * 256)
    return [Launch(kernel, (min(p.device.sms, tall * across),), args, types=types, block=(288,), shared=shared)]
