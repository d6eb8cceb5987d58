"""Which products matmul__multicast__cuda_sm90.cu supports, and its launch."""

from __future__ import annotations

from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.spec import DTYPES, Launch, Problem, TensorMap

TILE = 48 * 1024  # bytes of a slice of a and b
STAGING = 32 * 1024  # staging of the result


def _maps(p: Problem) -> dict[str, TensorMap]:
    b = p["b"]
    pitch = b.strides[1] if b.shape[1] > 1 else -(-b.shape[0] // 8) * 8
    return {
        "a": TensorMap("a", (128, 64), swizzle=128),
        "b": TensorMap("b", (128, 64), swizzle=128, shape=(b.shape[1], b.shape[0]), strides=(pitch, 1)),
        "out": TensorMap("out", (64, 64), swizzle=128),
    }


def supports(p: Problem, head: Any) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if len(a.shape) != 2 or out.dtype != a.dtype:
        return "takes one product whose result has the dtype of its operands"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1 or p.option("activation") != "none":
        return "multiplies and does nothing after"
    if out.numel * a.shape[1] == 0:
        return "M, N and K must be at least 1"
    if max(*a.shape, *b.shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    if b.strides[0] != 1 and b.shape[0] > 1:
        return "the elements of a column of b must be neighbours"
    for name, made in _maps(p).items():
        if reason := tensor_maps.refused(made, p[name]):
            return f"TMA does not copy {name}: {reason}"
    return tensor_maps.not_copied(out, stored=True)


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"stages": 4, "group": 8}


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return [{"stages": stages, "group": group} for stages in (4, 3) for group in (8, 4, 16)]


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    (m, k), n = p["a"].shape, p["b"].shape[1]
    tall, across = -(-m // 256), -(-n // 256)
    maps = _maps(p)
    args: dict[str, Any] = {
        "slices": -(-k // 64), "tall": tall, "across": across, "group": config["group"], "a_map": maps["a"], "b_map": maps["b"],
        "out_map": maps["out"],
    }
    return [
        Launch(
            f"hgemm<{DTYPES[p['a'].dtype].cuda}, {config['stages']}>", (2 * min(p.device.resident(2), tall * across),), args,
            types=("i32",) * 4 + ("map",) * 3, block=(288,), cluster=(2,), shared=config["stages"] * TILE + STAGING,
        )
    ]
