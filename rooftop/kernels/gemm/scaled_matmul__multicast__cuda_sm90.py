"""Which fp8 products scaled_matmul__multicast__cuda_sm90.cu takes, and its launch."""

from __future__ import annotations

from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.spec import DTYPES, Launch, Problem, TensorMap, instance
from rooftop.kernels.gemm.scaled_matmul__gluon_sm90 import SHORT

ROOM = 226 * 1024  # bytes of shared memory beside the barriers


def _maps(p: Problem, wide: int) -> dict[str, TensorMap]:
    b = p["b"]
    pitch = b.strides[1] if b.shape[1] > 1 else -(-b.shape[0] // 16) * 16
    return {
        "a": TensorMap("a", (128, 128), swizzle=128),
        "b": TensorMap("b", (wide // 2, 128), swizzle=128, shape=(b.shape[1], b.shape[0]), strides=(pitch, 1)),
        "out": TensorMap("out", (64, 64), swizzle=128),
    }


def _promotes(p: Problem) -> bool:
    return not (p.option("fast") and p["a"].shape[1] <= SHORT)


def supports(p: Problem, head: Any) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if a.itemsize != 1 or a.dtype == "i8" or out.dtype not in ("bf16", "f16"):
        return f"takes fp8 and results of 16 bits; given {a.dtype} and {out.dtype}"
    if p.option("scales") == "blocks":
        return "takes scales of rows, or one"
    if out.numel * a.shape[1] == 0:
        return "M, N and K must be at least 1"
    if max(*a.shape, *b.shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    if (b.strides[0] != 1 and b.shape[0] > 1) or (a.strides[1] != 1 and a.shape[1] > 1):
        return "rows of a and columns of b must be neighbours in memory"
    for name, made in _maps(p, 128).items():
        if reason := tensor_maps.refused(made, p[name]):
            return f"TMA does not copy {name}: {reason}"
    return tensor_maps.not_copied(out, stored=True)


def _stages(wide: int) -> int:
    return min(6, (ROOM - 32 * 1024) // ((128 + wide) * 128))


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return configs(p, head)[0]


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    widths = (192, 128) if _promotes(p) else (256, 192, 128)
    return [{"BN": wide, "STAGES": _stages(wide), "group": group} for wide in widths for group in (8, 16, 4)]


def for_any_rows(p: Problem, head: Any) -> dict[str, Any]:
    """One chain along all of K, or sums of 128 that are added in order, whatever the tile."""
    return choose(p, head)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    (m, k), n, wide = p["a"].shape, p["b"].shape[1], config["BN"]
    tall, across, bias = -(-m // 256), -(-n // wide), p.get("bias")
    maps = _maps(p, wide)
    args: dict[str, Any] = {
        "M": m, "N": n, "slices": -(-k // 128), "tall": tall, "across": across, "group": config["group"], "scale_a": "scale_a",
        "of_a": int(p["scale_a"].numel > 1), "scale_b": "scale_b", "of_b": int(p["scale_b"].numel > 1), "bias": None if bias is None else "bias",
        "a_map": maps["a"], "b_map": maps["b"], "out_map": maps["out"],
    }
    kernel = instance(
        "qgemm", p["a"].dtype == "f8e5m2", p["b"].dtype == "f8e5m2", DTYPES[p["out"].dtype].cuda, DTYPES[bias.dtype if bias else "f32"].cuda, wide,
        config["STAGES"], _promotes(p),
    )
    types = ("i32",) * 6 + ("ptr", "i32", "ptr", "i32", "ptr") + ("map",) * 3
    grid = (2 * min(p.device.resident(2), tall * across),)
    return [Launch(kernel, grid, args, types=types, block=(384,), cluster=(2,), shared=config["STAGES"] * (128 + wide) * 128 + 32 * 1024)]
