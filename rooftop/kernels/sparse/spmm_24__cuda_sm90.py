"""The config of spmm_24__cuda_sm90.cu, by a performance model: tensor cores at the card's power, L2 bandwidth, and whole waves of tiles."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
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


@lru_cache(maxsize=32)
def _wide(p: Problem) -> tuple[tuple[float, dict[str, Any], float], ...]:
    """Configs with their predicted cycles, the fastest first, and how much of them is left where a last round of few tiles has more of the
    L2."""
    (m, n, k), sms, fill, found = _sizes(p), p.device.sms, FILLED[0 if near(p["b"]) else 1], []
    for blocks, wide in ((2, 128), (1, 256), (1, 128)):
        high = 128 * blocks
        tiles = -(-m // high) * -(-n // wide)
        rounds = -(-tiles // sms)
        step = max(high * wide * 128 / 2 / FMAS, (high + 2 * wide) * 128 / FROM_L2)  # a slice of 128 columns
        step += 2 * max(0, wide - n) * fill
        made = START + rounds * (2 * -(-k // 256) * step + EPILOGUE)
        config = {"blocks": blocks, "wide": wide, "stages": min(6, SHARED // (high * 128 + wide * 256)), "split": 0}
        found.append((made, config, (max(1.0, tiles / sms) / rounds + 1) / 2))
    return tuple(sorted(found, key=itemgetter(0)))


def seconds(p: Problem) -> float:
    """Predicted time of the best config."""
    return min([*(made * part / CLOCK for made, _, part in _wide(p)), *(time for time, _ in _narrow(p)[:1])])


@lru_cache(maxsize=32)
def _narrow(p: Problem) -> tuple[tuple[float, dict[str, Any]], ...]:
    """Configs for few columns with their predicted times, the fastest first. Clusters have at most 7 blocks, whose sums fit the first one's
    ring."""
    n, (stripes, slices), sms = p["b"].shape[1], p["meta"].shape[:2], p.device.sms
    if n > NARROW:
        return ()
    tall, whole = -(-stripes // 8), (OF_S + OF_B) / BOTH + 4 * (NARROW - n) * MISSING[0 if near(p["b"]) else 1] / CLOCK
    found = []
    for split, size in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (6, 8), (7, 8)):
        each = -(-slices // split)
        if split > 1 and -(-slices // each) != split:
            continue
        resident = min(sms // split, p.device.resident(size) * size // split) * split
        rounds, at_once = -(-tall * split // resident), min(tall * split, resident)
        step = max(OF_S * at_once / MEMORY, OF_S / ONE, whole)
        time = FIRST + rounds * each * step + (rounds - 1) * ROUND + (split - 1) * TOGETHER
        found.append((time, {"blocks": 1, "wide": NARROW, "stages": 3, "split": split}))
    return tuple(sorted(found, key=itemgetter(0)))


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return [dict(config) for _, config, _ in _wide(p)] + [dict(config) for _, config in _narrow(p)]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    (made, best, _), few = _wide(p)[0], _narrow(p)
    return dict(few[0][1]) if few and few[0][0] * CLOCK < made else dict(best)


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
