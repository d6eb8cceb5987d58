"""The config of scaled_spmm_24__cuda_sm90.cu: the taller tile unless multiprocessors would be idle."""

from __future__ import annotations

from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.spec import DTYPES, Launch, Problem, TensorMap, instance
from rooftop.ops._sparse import ACTIVATIONS

SHARED = 226 * 1024
WIDE = 128
FMAS = 4096.0  # multiply-adds a cycle and multiprocessor, counted on the values: what the power limit leaves of 8192
FROM_L2 = 40.0  # bytes a cycle that TMA loads to a multiprocessor while all of them load
START, EPILOGUE = 2500.0, 2500.0  # cycles of the prologue, and of the epilogue of a tile


def _maps(p: Problem, blocks: int) -> dict[str, TensorMap]:
    b = p["b"]
    pitch = b.strides[1] if b.shape[1] > 1 else -(-b.shape[0] // 16) * 16
    of_b = TensorMap("b", (WIDE, 128), swizzle=128, shape=(b.shape[1], b.shape[0]), strides=(pitch, 1))
    return {"values": TensorMap("values", (128 * blocks, 128), swizzle=128), "b": of_b}


def supports(p: Problem, head: Any) -> str | None:
    b, out = p["b"], p["out"]
    if out.numel * b.shape[0] == 0:
        return "M, N and K must be at least 1"
    if max(*b.shape, *out.shape) >= 2**31 - 512 or p["meta"].shape[0] * p["meta"].shape[1] >= 2**31:
        return "takes fewer than 2^31 rows and columns"
    if b.shape[0] > 1 and b.strides[0] != 1:
        return "the columns of b must be contiguous along K, as tensor cores read 8 bits"
    if p["meta"].align % 16:
        return "metadata must begin at a multiple of 16 bytes"
    for name, m in _maps(p, 1).items():
        if reason := tensor_maps.refused(m, p[name]):
            return f"TMA does not read {name}: {reason}"
    return None


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return [{"blocks": blocks, "stages": min(6, SHARED // (128 * blocks * 128 + WIDE * 256))} for blocks in (2, 1)]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    m, (k, n) = p["values"].shape[0], p["b"].shape

    def clocks(config: dict[str, Any]) -> float:
        high = 128 * config["blocks"]
        rounds = -(-(-(-m // high) * -(-n // WIDE)) // p.device.sms)
        step = max(high * WIDE * 256 / 2 / FMAS, (high + 2 * WIDE) * 128 / FROM_L2)  # a slice of 256 columns
        return START + rounds * (-(-k // 256) * step + EPILOGUE)

    return min(configs(p, head), key=clocks)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    values, b, bias, turned = p["values"], p["b"], p.get("bias"), bool(p.option("transposed"))
    m, (k, n), blocks, stages = values.shape[0], b.shape, config["blocks"], config["stages"]
    tall, across = -(-m // (128 * blocks)), -(-n // WIDE)
    pitch = m if turned else n
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    whole, maps = b.dtype == "i8", _maps(p, blocks)
    kernel = instance(
        "spmm", DTYPES[values.dtype].cuda, DTYPES[b.dtype].cuda, DTYPES[p["out"].dtype].cuda, "int" if whole else "float", blocks, stages,
        not whole and not p.option("fast"), turned, 8 if pitch % 8 == 0 else 2 if pitch % 2 == 0 else 1,
        ACTIVATIONS.index(str(p.option("activation"))), form,
    )
    args: dict[str, Any] = {
        "M": m, "N": n, "slices": -(-k // 256), "tall": tall, "across": across, "band": 8 if blocks == 2 else 16,
        "values_map": maps["values"], "b_map": maps["b"], "meta": "meta", "stripes": p["meta"].shape[0], "scale_a": "scale_a",
        "step_a": int(p["scale_a"].numel > 1), "scale_b": "scale_b", "step_b": int(p["scale_b"].numel > 1),
        "bias": "bias" if bias else None, "bias_step": 0 if bias is None else bias.strides[form - 1], "out": "out", "pitch": pitch,
    }
    types = ("i32",) * 6 + ("map", "map", "ptr", "i32", "ptr", "i32", "ptr", "i32", "ptr", "i64", "ptr", "i64")
    shared = stages * (128 * blocks * 128 + WIDE * 256)
    return [Launch(kernel, (min(p.device.sms, tall * across),), args, types=types, block=(384,), shared=shared)]
