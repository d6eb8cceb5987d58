"""How spmm_csr__cuda_sm80.cu divides rows among lanes, by their mean length, N and alignment."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.ops._sparse import ACTIVATIONS

FEW = 8  # columns: with at most so many float32 is summed in float64, which costs nothing beside the loads


def supports(p: Problem, head: Any) -> str | None:
    b, out = p["b"], p["out"]
    if out.numel == 0:
        return "there is nothing to compute"
    if p["values"].numel >= 2**31 or max(*b.shape, *out.shape) >= 2**31 - 4096:
        return "takes fewer than 2^31 elements, rows and columns"
    if b.shape[0] == 0:
        return "b has no rows"
    return None


def width(p: Problem, names: tuple[str, ...], columns: int) -> int:
    """Elements that a lane loads at once: at most 16 bytes, to which every row is aligned."""
    size = p[names[0]].itemsize
    wide = 16 // size
    while wide > 1 and (columns % wide or any(p[n].align % (wide * size) or (p[n].shape[0] > 1 and p[n].strides[0] % wide) for n in names)):
        wide //= 2
    return wide


def power(n: float) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, (max(1, int(-(-n // 1))) - 1).bit_length())


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """Lanes along the columns, up to a warp. With short rows, fewer lanes with several vectors each, so that a warp has several rows in
    flight; with few columns several lanes share a row, about eight elements each."""
    n, nnz, m = p["out"].shape[1], p["values"].numel, p["out"].shape[0]
    wide, mean = width(p, ("b", "out"), n), nnz / m
    lanes, pieces = min(32, power(n / wide)), 1
    while mean <= 8 and lanes > 8 and pieces < 4:
        lanes, pieces = lanes // 2, pieces * 2
    deep = max(1, min(32 // lanes, power(mean / 8)))
    few = mean <= 4 * deep
    sums = "double" if n <= FEW and p["b"].dtype == "f32" else "float"
    unroll = max(2, (4 if few or (sums == "double" and wide > 2) else 8) // pieces)
    most = max(256, min(1024, 16 * deep * unroll), power(4 * mean))
    return {"wide": wide, "pieces": pieces, "lanes": lanes, "deep": deep, "unroll": unroll, "most": most, "sums": sums}


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    first = choose(p, head)
    found = [first]
    for pieces in (1, 2, 4):
        for deep in (1, 2, 4, 8, 16, 32):
            if (pieces == 1 or first["lanes"] >= 8) and deep * first["lanes"] <= 32:
                made = {
                    **first, "pieces": pieces, "deep": deep,
                    "unroll": max(2, (4 if first["sums"] == "double" and first["wide"] > 2 else 8) // pieces)
                }
                if made not in found:
                    found.append(made)
    return found


def _pieces(p: Problem, config: Any) -> int:
    return -(-p["values"].numel // config["most"])


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    count = max(1, _pieces(p, config))
    return {"parts": Meta((count, 2, p["out"].shape[1]), "f64" if config["sums"] == "double" else "f32"), "rows": Meta((count, 2), "i32")}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    m, n = p["out"].shape
    b, bias, kind = p["b"], p.get("bias"), DTYPES[p["b"].dtype].cuda
    nnz, pieces = p["values"].numel, _pieces(p, config)
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    step = 0 if bias is None else bias.strides[form - 1]
    act, pdl = ACTIVATIONS.index(str(p.option("activation"))), p.device.arch >= 90
    wide, lanes, deep = config["wide"], config["lanes"], config["deep"]
    cut, tile = -(-pieces // 8), lanes * wide * config["pieces"]
    grid = (cut + -(-m // (256 // (lanes * deep))), -(-n // tile))
    after = {
        "bias": "bias" if bias else None, "bias_step": step, "alpha": float(p.option("alpha")), "out": "out", "parts": "parts",
        "rows": "rows"
    }
    args: dict[str, Any] = {
        "M": m, "N": n, "K": b.shape[0], "nnz": nnz, "cut": cut, "most": config["most"], "values": "values", "columns": "columns",
        "offsets": "offsets", "b": "b", "bs": b.strides[0] if b.shape[0] > 1 else n, **after,
    }
    types = ("i32",) * 6 + ("ptr",) * 4 + ("i64", "ptr", "i64", "f32", "ptr", "ptr", "ptr")
    kernel = instance("rows_split", kind, config["sums"], wide, config["pieces"], lanes, deep, config["unroll"], act, form)
    made = [Launch(kernel, grid, args, types=types, block=(256,), pdl=pdl)]
    if pieces:
        args = {"N": n, "nnz": nnz, "pieces": pieces, "most": config["most"], "offsets": "offsets", **after}
        types = ("i32",) * 4 + ("ptr", "ptr", "i64", "f32", "ptr", "ptr", "ptr")
        kernel = instance("join_rows", kind, config["sums"], act, form)
        made.append(Launch(kernel, (-(-pieces // 32), min(8, -(-n // 32))), args, types=types, block=(256,), pdl=pdl))
    return made
