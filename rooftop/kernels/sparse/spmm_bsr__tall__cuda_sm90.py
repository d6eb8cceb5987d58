"""The config of spmm_bsr__tall__cuda_sm90.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, TensorMap
from rooftop.kernels._device.quantised import text
from rooftop.kernels._device.sparse_blocks import SHARED, maps, near, refused
from rooftop.ops._sparse import ACTIVATIONS

RESULT = TensorMap("out", (64, 64), swizzle=128)


def _held(high: int, tile: int) -> int:
    """Bytes of the results of a tile."""
    return high * tile * 2


def supports(p: Problem, head: Any) -> str | None:
    if p["values"].shape[1] < 64:
        return f"takes blocks of 64 and 128 rows; given {p['values'].shape[1]}"
    if reason := refused(p) or tensor_maps.refused(RESULT, p["out"]) or tensor_maps.not_copied(p["out"], stored=True):
        return reason
    return None


def prefers(p: Problem, head: Any) -> int:
    return 2


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    high = p["values"].shape[1]
    return [{"tile": tile, "stages": min(8, (SHARED - _held(high, tile)) // (128 * (high + tile)))} for tile in (256, 128)]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """Wide tiles, which read values less often, unless multiprocessors would be idle or columns few."""
    n, tall = p["b"].shape[1], p["offsets"].numel - 1
    wide, narrow = configs(p, head)
    return narrow if n <= 128 or tall * -(-n // 256) < p.device.sms else wide


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"next": Meta((1,), "i32")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("next",)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    (count, high, wide), b, bias, (m, n) = p["values"].shape, p["b"], p.get("bias"), p["out"].shape
    tall, tile, stages = p["offsets"].numel - 1, config["tile"], config["stages"]
    across = -(-n // tile)
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    of = maps(p, tile)
    args: dict[str, Any] = {
        "M": m, "N": n, "K": b.shape[0], "blocks": count, "tall": tall, "across": across, "values_map": of["values"], "b_map": of["b"], "out_map": RESULT,
        "columns": "columns", "offsets": "offsets", "next": "next", "alpha": float(p.option("alpha")), "bias": "bias" if bias else None,
        "bias_step": 0 if bias is None else bias.strides[form - 1],
    }  # fmt: skip
    types = ("i32",) * 6 + ("map", "map", "map", "ptr", "ptr", "ptr", "f32", "ptr", "i64")
    act = ACTIVATIONS.index(str(p.option("activation")))
    kernel = text("spmm", DTYPES[b.dtype].cuda, high, wide, tile, stages, near(b), act, form)
    return [Launch(kernel, (min(p.device.sms, tall * across),), args, types=types, block=(288,), shared=stages * 128 * (high + tile) + _held(high, tile))]
