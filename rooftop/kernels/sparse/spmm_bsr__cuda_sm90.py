"""The config of spmm_bsr__cuda_sm90.cu, and what TMA requires: how values and b are read, or why they cannot be."""

from __future__ import annotations

from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, TensorMap, instance
from rooftop.ops._sparse import ACTIVATIONS

SHARED = 226 * 1024
TOWER = 128  # rows
FROM_L2 = 37.0  # bytes a cycle that TMA loads to a multiprocessor while all of them load
COLUMN, STORE = 450, 0.18  # cycles of a column of blocks in a tower, and of an element of the result
SHORT = 16  # average stages of a tile up to which it pays that one warp group lags behind the other: one multiplies while the other stores


def near(b: Meta) -> bool:
    """Whether b is contiguous along K."""
    return b.strides[0] == 1 and b.shape[0] > 1 and not (b.strides[1] == 1 and b.shape[1] > 1)


def maps(p: Problem, tile: int) -> dict[str, TensorMap]:
    """Boxes of the values: a block's rows; of b: `tile` columns along K, or 64 columns."""
    b, (count, high, wide) = p["b"], p["values"].shape
    sub = min(wide, 64)
    if near(b):
        pitch = b.strides[1] if b.shape[1] > 1 else -(-b.shape[0] // 8) * 8
        of_b = TensorMap("b", (tile, sub), swizzle=2 * sub, shape=(b.shape[1], b.shape[0]), strides=(pitch, 1))
    else:
        pitch = b.strides[0] if b.shape[0] > 1 else -(-b.shape[1] // 8) * 8
        of_b = TensorMap("b", (sub, 64), swizzle=128, shape=b.shape, strides=(pitch, 1))
    return {"values": TensorMap("values", (high, sub), swizzle=2 * sub, shape=(count * high, wide), strides=(wide, 1)), "b": of_b}


def supports(p: Problem, head: Any) -> str | None:
    count, high, wide = p["values"].shape
    if p["out"].numel == 0 or count == 0:
        return "there is nothing to multiply"
    if wide < 16:
        return f"takes blocks of at least 16 columns; given {wide}"
    if not p["values"].contiguous:
        return "takes blocks that lie by rows"
    if max(*p["b"].shape, *p["out"].shape, count * max(high, wide)) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    for name, m in maps(p, 128).items():
        if reason := tensor_maps.refused(m, p[name]):
            return f"TMA does not read {name}: {reason}"
    return None


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    high, wide = p["values"].shape[1:]
    tiles = (512, 256, 128) if high <= 64 and not near(p["b"]) else (256, 128)  # TMA reads at most 256 rows at once
    short = p["values"].shape[0] * wide <= SHORT * 64 * (p["offsets"].numel - 1)
    found = []
    for tile in tiles:
        stages = min(8, SHARED // (128 * (high + tile)))
        found.append({"tile": tile, "stages": stages, "lag": min(2, stages - 2) if short else 0, "towers": False})
    found += [{**c, "lag": min(2, c["stages"] - 2) - c["lag"]} for c in found] + [
        {**c, "stages": c["stages"] - 2} for c in found if c["stages"] > 5
    ]
    return found + _towers(p)


def _towers(p: Problem) -> list[dict[str, Any]]:
    high, wide = p["values"].shape[1:]
    if high not in (32, 64) or wide > 64:
        return []
    return [
        {"tile": tile, "stages": min(6, SHARED // (128 * (TOWER + tile))), "lag": 0, "towers": True}
        for tile in (256, 128)
    ]


def cycles(p: Problem, config: Any) -> float:
    """Predicted for a multiprocessor: each tile loads its blocks and the rows of b that they need. In a tower rows of b are loaded once for
    all block rows, but wgmma reads b from shared memory for each block."""
    (count, high, wide), (k, n), tall, tile = p["values"].shape, p["b"].shape, p["offsets"].numel - 1, config["tile"]
    rows, columns = TOWER // high if config["towers"] else 1, -(-k // wide)
    loaded, held = columns * (1 - (1 - min(1.0, count / (tall * columns))) ** rows), count / tall * rows
    made = (loaded * tile + held * high) * wide * 2 / FROM_L2
    if config["towers"]:
        made = max(made, loaded * COLUMN + held * (wide / 16) * (tile / 64) * (2048 + 32 * high) / 128)
    return max(1.0, -(-tall // rows) * -(-n // tile) / p.device.sms) * (made + STORE * rows * high * tile)


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """The first of the fastest predicted."""
    found: dict[tuple[int, bool], dict[str, Any]] = {}
    for c in configs(p, head):
        found.setdefault((c["tile"], c["towers"]), c)
    return min(found.values(), key=lambda c: cycles(p, c))


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"next": Meta((1,), "i32")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("next",)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    (count, high, wide), b, bias, (m, n) = p["values"].shape, p["b"], p.get("bias"), p["out"].shape
    tall, tile, stages, towers = p["offsets"].numel - 1, config["tile"], config["stages"], config["towers"]
    across = -(-n // tile)
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    of, down = maps(p, tile), -(-tall * high // TOWER) if towers else tall
    form_of = {"high": down, "across": across} if towers else {"across": across, "lag": config["lag"]}
    args: dict[str, Any] = {
        "M": m, "N": n, "K": b.shape[0], "blocks": count, "tall": tall, **form_of, "values_map": of["values"],
        "b_map": of["b"], "columns": "columns", "offsets": "offsets", "next": "next", "alpha": float(p.option("alpha")),
        "bias": "bias" if bias else None, "bias_step": 0 if bias is None else bias.strides[form - 1], "out": "out",
    }
    types = ("i32",) * 7 + ("map", "map", "ptr", "ptr", "ptr", "f32", "ptr", "i64", "ptr")
    act = ACTIVATIONS.index(str(p.option("activation")))
    step = 8 if n % 8 == 0 else 2 if n % 2 == 0 else 1
    kind = ("towers", DTYPES[b.dtype].cuda, high, wide, tile, stages) if towers else (
        "spmm", DTYPES[b.dtype].cuda, high, wide, tile, stages
    )
    kernel = instance(*kind, near(b), step, act, form)
    shared = stages * 128 * ((TOWER if towers else high) + tile)
    return [Launch(kernel, (min(p.device.sms, down * across),), args, types=types, block=(288,), shared=shared)]
