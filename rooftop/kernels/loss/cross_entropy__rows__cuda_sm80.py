"""How cross_entropy__rows__cuda_sm80.cu divides its rows among lanes: a row is `vectors` of 16 bytes, at most eight per lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem

BLOCK, MOST = 256, 8  # threads; vectors a lane


def _aligned(p: Problem) -> bool:
    x = p["input"]
    of_vector = 16 // x.itemsize
    return x.shape[1] % of_vector == 0 and x.align >= 16 and (x.shape[0] == 1 or x.strides[0] % of_vector == 0)


def _vectors(p: Problem) -> int:
    return max(1, p["input"].shape[1] * p["input"].itemsize // 16)


def _least(p: Problem) -> int:
    """Lanes of a row; unaligned rows have one single element a lane."""
    return 1 if _aligned(p) else 32 // p["input"].itemsize


def supports(p: Problem, head: Head) -> str | None:
    x = p["input"]
    if not x.numel:
        return "there is nothing to compute"
    if _vectors(p) > 32 * MOST:
        return f"a row must fit a warp's registers, {512 * MOST} bytes; given {x.shape[1] * x.itemsize}"
    return None


def _config(p: Problem, lanes: int) -> dict[str, Any]:
    vectors = -(-_vectors(p) // lanes)
    rows = max(1, (4 if _aligned(p) else 2) // vectors)
    while rows > 1 and (rows == 3 or p["input"].shape[0] * lanes < rows * 512 * p.device.sms):
        rows -= 1  # more warps are better than more rows a warp
    return {"lanes": lanes, "vectors": vectors, "rows": rows}


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _config(p, min(32, max(_least(p), 1 << (_vectors(p) - 1).bit_length())))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return [_config(p, lanes) for lanes in (1, 2, 4, 8, 16, 32) if lanes >= _least(p) and -(-_vectors(p) // lanes) <= MOST]


def _grid(p: Problem, config: Mapping[str, Any]) -> int:
    grid: int = -(-p["input"].shape[0] // (config["rows"] * (BLOCK // config["lanes"])))
    return grid


def _added(p: Problem) -> bool:
    return p.option("reduction") != "none"


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    """A sum and a number of rows from each block."""
    return {"found": Meta((_grid(p, config), 2), "f64")} if _added(p) else {}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    grid, added, chained = _grid(p, config), _added(p), p.device.arch >= 90
    smoothing, scale, cap = (float(p.option(name)) for name in ("label_smoothing", "lse_square_scale", "softcap"))
    args, types = head.arguments(p, config)
    args |= {"loss": None if added else "loss", "found": "found" if added else None, "normaliser": "normaliser", "divisor": "divisor"}
    args |= {"ignore": int(p.option("ignore_index")), "smoothing": smoothing, "scale": scale, "cap": cap}
    flags = (str(v).lower() for v in (_aligned(p), cap != 0, smoothing != 0, added))
    template = (DTYPES[p["input"].dtype].cuda, config["lanes"], config["vectors"], config["rows"], *flags)
    types = (*types, "ptr", "ptr", "ptr", "ptr", "i64", "f32", "f32", "f32")
    first = Launch(f"cross_entropy_warp<{', '.join(map(str, template))}>", (grid,), args, types=types, block=(BLOCK,), chained=chained)
    if not added:
        return [first]
    last = {"count": grid, "found": "found", "loss": "loss", "divisor": "divisor"}
    threads = min(1024, max(32, 32 * -(-grid // 128)))
    mean = str(p.option("reduction") == "mean").lower()
    return [
        first, Launch(f"cross_entropy_blocks<{mean}>", (1,), last, types=("i32", "ptr", "ptr", "ptr"), block=(threads,), chained=chained)
    ]
