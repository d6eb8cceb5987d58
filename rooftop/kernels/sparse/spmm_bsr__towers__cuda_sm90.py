"""The config of spmm_bsr__towers__cuda_sm90.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.kernels.sparse import spmm_bsr__cuda_sm90 as single
from rooftop.ops._sparse import ACTIVATIONS

TOWER = 128  # rows


def supports(p: Problem, head: Any) -> str | None:
    high, wide = p["values"].shape[1:]
    if high not in (32, 64) or not 16 <= wide <= 64:
        return f"takes blocks of 32 or 64 rows and 16 to 64 columns; given {high} x {wide}"
    return single.supports(p, head)


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return [{"tile": tile, "stages": min(6, single.SHARED // (128 * (TOWER + tile)))} for tile in (256, 128)]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """Wide tiles, which read values less often, unless multiprocessors would be idle or there are few columns."""
    n, (wide, narrow) = p["b"].shape[1], configs(p, head)
    return narrow if n <= 128 or _towers(p) * -(-n // 256) < p.device.sms else wide


def _towers(p: Problem) -> int:
    return -(-(p["offsets"].numel - 1) * p["values"].shape[1] // TOWER)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"next": Meta((1,), "i32")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("next",)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    (count, high, wide), b, bias, (m, n) = p["values"].shape, p["b"], p.get("bias"), p["out"].shape
    towers, tile, stages = _towers(p), config["tile"], config["stages"]
    across = -(-n // tile)
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    of = single.maps(p, tile)
    args: dict[str, Any] = {
        "M": m, "N": n, "K": b.shape[0], "blocks": count, "tall": p["offsets"].numel - 1, "towers": towers, "across": across,
        "values_map": of["values"], "b_map": of["b"], "columns": "columns", "offsets": "offsets", "next": "next",
        "alpha": float(p.option("alpha")), "bias": "bias" if bias else None,
        "bias_step": 0 if bias is None else bias.strides[form - 1], "out": "out",
    }
    types = ("i32",) * 7 + ("map", "map", "ptr", "ptr", "ptr", "f32", "ptr", "i64", "ptr")
    act = ACTIVATIONS.index(str(p.option("activation")))
    kernel = instance(
        "spmm", DTYPES[b.dtype].cuda, high, wide, tile, stages, single.near(b), 8 if n % 8 == 0 else 2 if n % 2 == 0 else 1, act, form
    )
    return [Launch(kernel, (min(p.device.sms, towers * across),), args, types=types, block=(288,), shared=stages * 128 * (TOWER + tile))]
