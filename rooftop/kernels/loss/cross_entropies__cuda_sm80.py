"""How cross_entropies__cuda_sm80.cu divides rows among threads. A row is `vectors` vectors of 16 bytes.

Forward: at most eight a lane of a warp. Backward: the work is elementwise, for any number of rows and classes: every thread should have
about four vectors in flight, and short rows should not leave threads idle. Short 16-bit rows are bound by instructions: a vector takes a
lane about 127, and what all lanes of a row compute (the terms of the slope) takes 100. So a row of 320 16-bit classes costs 35 instructions
a class with 32 lanes and 24 with 16; a copy leaves time for 28."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance, typed

BLOCK, MOST, MOST_BWD = 256, 8, 4  # threads; vectors a thread
OF_VECTOR, OF_ROW = 127, 100  # instructions of a lane, from `rooftop inspect`
EXACT, SHORT, FEW = 1, 2, 1024  # soft cap; below so many classes a gradient shows the error of SHORT


def _is_backward(p: Problem) -> bool:
    return p.op == "cross_entropy_bwd"


def supports(p: Problem, head: Head) -> str | None:
    x = p["input"]
    if not x.numel:
        return "there is nothing to compute"
    if not _is_backward(p):
        most = 512 * MOST
        return f"a row must fit a warp's registers, {most} bytes; given {x.shape[1] * x.itemsize}" if _vectors(p) > 32 * MOST else None
    if max(x.shape) >= 2**31 - 2**14 or launches(p, choose(p, head), head)[0].grid[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**14 rows and classes, and 2**31 blocks; given {x.shape}"
    return None


def _aligned(p: Problem) -> bool:
    x = p["input"]
    of_vector = 16 // x.itemsize
    return x.shape[1] % of_vector == 0 and all(
        m.align >= 16 and (x.shape[0] == 1 or m.strides[0] % of_vector == 0) for m in (x, p.get("dinput")) if m is not None
    )


def _vectors(p: Problem) -> int:
    return max(1, p["input"].shape[1] * p["input"].itemsize // 16)


def _least(p: Problem) -> int:
    """Threads of a row; unaligned rows have one single element a thread."""
    return 1 if _aligned(p) else 32 // p["input"].itemsize


def _warp(p: Problem, lanes: int) -> dict[str, Any]:
    """As many rows a warp as it has registers for, but more warps are better than more rows a warp."""
    vectors = -(-_vectors(p) // lanes)
    rows = max(1, (4 if _aligned(p) else 2) // vectors)
    while rows > 1 and (rows == 3 or p["input"].shape[0] * lanes < rows * 512 * p.device.sms):
        rows -= 1
    return {"lanes": lanes, "vectors": vectors, "rows": rows}


def choose(p: Problem, head: Head) -> dict[str, Any]:
    vectors = _vectors(p)
    lanes = min(32, max(_least(p), 1 << (vectors - 1).bit_length()))
    if not _is_backward(p):
        return _warp(p, lanes)
    if vectors > 32 and p["input"].shape[0] * vectors <= 2048 * p.device.sms:  # all fits the card at once: a vector a thread
        return {"lanes": 0, "vectors": 1, "rows": 1}
    if vectors > 32 * MOST_BWD:
        return {"lanes": 0, "vectors": MOST_BWD, "rows": 1}
    if p["input"].shape[0] * 8 >= 512 * p.device.sms:  # enough warps with eight lanes a row, which read whole lines
        fewer = [n for n in (8, 16, 32) if _least(p) <= n <= lanes and vectors <= MOST_BWD * n]
        lanes = min(fewer, key=lambda n: n * (OF_ROW + OF_VECTOR * -(-vectors // n)), default=lanes)
    return _warp(p, lanes)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    most = MOST_BWD if _is_backward(p) else MOST
    warps = [_warp(p, lanes) for lanes in (1, 2, 4, 8, 16, 32) if lanes >= _least(p) and -(-_vectors(p) // lanes) <= most]
    return warps + [{"lanes": 0, "vectors": each, "rows": 1} for each in (1, 2, 3, 4, 6) if _is_backward(p)]


def _grid(p: Problem, config: Mapping[str, Any]) -> int:
    """Blocks, where rows are in warps."""
    return int(-(-p["input"].shape[0] // (config["rows"] * (BLOCK // config["lanes"]))))


def _added(p: Problem) -> bool:
    return not _is_backward(p) and p.option("reduction") != "none"


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    """A sum and a number of rows from each block."""
    return {"found": Meta((_grid(p, config), 2), "f64")} if _added(p) else {}


def _options(p: Problem) -> dict[str, tuple[str, Any]]:
    """The last parameters of the kernels."""
    listed = (("smoothing", "label_smoothing"), ("scale", "lse_square_scale"), ("cap", "softcap"))
    return {"ignore": ("i64", int(p.option("ignore_index"))), **{name: ("f32", float(p.option(option))) for name, option in listed}}


def _launch(p: Problem, kernel: str, grid: int, threads: int, args: Mapping[str, tuple[str, Any]]) -> Launch:
    return Launch(kernel, (grid,), **typed(args), block=(threads,), pdl=p.device.pdl)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    return _backward(p, config) if _is_backward(p) else _forward(p, config, head)


def _forward(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    grid, added, smoothing, cap = _grid(p, config), _added(p), p.option("label_smoothing"), p.option("softcap")
    values, types = head.arguments(p, config)
    args = {name: (kind, value) for (name, value), kind in zip(values.items(), types, strict=True)}
    args |= {"loss": ("ptr", None if added else "loss"), "found": ("ptr", "found" if added else None)}
    args |= {"normaliser": ("ptr", "normaliser"), "divisor": ("ptr", "divisor"), **_options(p)}
    template = (DTYPES[p["input"].dtype].cuda, config["lanes"], config["vectors"], config["rows"], _aligned(p), cap != 0, smoothing != 0)
    first = _launch(p, instance("cross_entropy_warp", *template, added), grid, BLOCK, args)
    if not added:
        return [first]
    last = {"count": ("i32", grid), "found": ("ptr", "found"), "loss": ("ptr", "loss"), "divisor": ("ptr", "divisor")}
    kernel = instance("cross_entropy_blocks", p.option("reduction") == "mean")
    return [first, _launch(p, kernel, 1, min(1024, max(32, 32 * -(-grid // 128))), last)]


def _bound(p: Problem) -> int:
    cap, x = float(p.option("softcap")), p["input"]
    return 0 if cap == 0 else EXACT if x.itemsize >= 4 or x.shape[1] < FEW or not 1e-30 < cap <= 70 else SHORT


def _backward(p: Problem, config: Mapping[str, Any]) -> list[Launch]:
    x, dloss = p["input"], p["dloss"]
    args: dict[str, tuple[str, Any]] = {
        "R": ("i32", x.shape[0]), "C": ("i32", x.shape[1]), "dloss": ("ptr", "dloss"),
        "gs": ("i64", dloss.strides[0] if dloss.shape else 0),
        "x": ("ptr", "input"), "xs": ("i64", x.strides[0]), "target": ("ptr", "target"), "normaliser": ("ptr", "normaliser"),
        "divisor": ("ptr", "divisor"), "dx": ("ptr", "dinput"), "ds": ("i64", p["dinput"].strides[0]), **_options(p),
    }
    vectors, element, last = config["vectors"], DTYPES[x.dtype].cuda, (_aligned(p), _bound(p))
    if config["lanes"]:
        kernel = instance("cross_entropy_bwd_warp", element, config["lanes"], vectors, config["rows"], *last)
        return [_launch(p, kernel, _grid(p, config), BLOCK, args)]
    parts = -(-_vectors(p) // (BLOCK * vectors))
    threads = max(64, 32 * -(-_vectors(p) // (32 * vectors * parts)))
    return [_launch(
        p, instance("cross_entropy_bwd_block", element, vectors, *last), x.shape[0] * parts, threads, {**args, "parts": ("i32", parts)}
    )]
