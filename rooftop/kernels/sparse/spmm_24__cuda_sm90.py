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

    return min(clocks(p, c["blocks"], c["wide"]) * part(c["blocks"], c["wide"]) for c in configs(p, None)) / CLOCK


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    found = []
    for blocks, wide in ((2, 128), (1, 256), (1, 128)):
        stage = 128 * blocks * 128 + wide * 256
        found.append({"blocks": blocks, "wide": wide, "stages": min(6, SHARED // stage)})
    return found


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return min(configs(p, head), key=lambda c: clocks(p, c["blocks"], c["wide"]))


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
    maps = _maps(p, config)
    kernel = instance("spmm", DTYPES[p["b"].dtype].cuda, blocks, wide, stages, near(p["b"]), turned, pairs, act, kind)
    args: dict[str, Any] = {
        "M": m, "N": n, "slices": 2 * -(-k // 256), "tall": tall, "across": across, "band": 8 if blocks == 2 else 16,
        "values_map": maps["values"], "b_map": maps["b"], "meta": "meta", "stripes": p["meta"].shape[0], "alpha": float(p.option("alpha")),
        "bias": "bias" if bias else None, "bias_step": along, "out": "out", "pitch": m if turned else n,
    }
    types = ("i32",) * 6 + ("map", "map", "ptr", "i32", "f32", "ptr", "i64", "ptr", "i64")
    shared = stages * (high * 128 + wide * 256)
    return [Launch(kernel, (min(p.device.sms, tall * across),), args, types=types, block=(288,), shared=shared)]
