"""How spmm_csr__merge__cuda_sm80.cu divides rows and elements among blocks."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.ops._sparse import ACTIVATIONS

STEP = 2048  # elements that a block adds in one step
FEWEST = 512  # items of a block, rows and elements together
MOST_ITEMS = 16 * STEP  # of a block: more blocks than are resident balance the cost of gathers
AT_ONCE = 4  # resident blocks of a multiprocessor
LONG = 128  # elements of a row, on average: from here on one warp a row is not bound by latency
MOST = 4  # columns: the elements are read again for each


def supports(p: Problem, head: Any) -> str | None:
    b, out = p["b"], p["out"]
    if out.numel == 0:
        return "there is nothing to compute"
    if p["values"].numel + out.shape[0] >= 2**31 - 4096 or max(*b.shape, *out.shape) >= 2**31 - 4096:
        return "takes fewer than 2^31 elements and rows together"
    if b.shape[0] == 0:
        return "b has no rows"
    return f"takes up to {MOST} columns; given {out.shape[1]}" if out.shape[1] > MOST else None


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    first = choose(p, head)
    return [{**first, "rows": rows} for rows in (first["rows"], 3 - first["rows"])]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """An equal share of the items for each resident block. rows: of a thread at a time, so that on average the rows of a step are read in
    one go."""
    nnz, m = p["values"].numel, p["out"].shape[0]
    items = nnz + m
    blocks = max(min(AT_ONCE * p.device.sms, -(-items // FEWEST)), -(-items // MOST_ITEMS))
    return {"rows": 2 if m * STEP > 192 * nnz else 1, "each": -(-items // blocks)}


def _blocks(p: Problem, config: Any) -> int:
    return -(-(p["values"].numel + p["out"].shape[0]) // config["each"])


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    blocks, n = _blocks(p, config), p["out"].shape[1]
    return {"carry": Meta((blocks, n), "f64"), "head": Meta((blocks, n), "f64"), "rows": Meta((blocks,), "i32")}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    m, n = p["out"].shape
    b, bias, nnz, blocks = p["b"], p.get("bias"), p["values"].numel, _blocks(p, config)
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    kind, act, pdl = DTYPES[b.dtype].cuda, ACTIVATIONS.index(str(p.option("activation"))), p.device.arch >= 90
    after = {
        "bias": "bias" if bias else None, "bias_step": 0 if bias is None else bias.strides[form - 1], "alpha": float(p.option("alpha")),
        "out": "out", "carry": "carry", "head": "head", "rows": "rows",
    }
    args: dict[str, Any] = {
        "M": m, "N": n, "K": b.shape[0], "nnz": nnz, "each": config["each"], "values": "values", "columns": "columns", "offsets": "offsets",
        "b": "b", "bs": b.strides[0] if b.shape[0] > 1 else n, **after,
    }
    types = ("i32",) * 5 + ("ptr",) * 4 + ("i64", "ptr", "i64", "f32", "ptr", "ptr", "ptr", "ptr")
    made = [Launch(instance("merged", kind, config["rows"], act, form), (blocks, n), args, types=types, block=(256,), pdl=pdl)]
    if blocks > 1:
        args = {"N": n, "nnz": nnz, "each": config["each"], "blocks": blocks, "offsets": "offsets", **after}
        types = ("i32",) * 4 + ("ptr", "ptr", "i64", "f32", "ptr", "ptr", "ptr", "ptr")
        made.append(
            Launch(instance("join_blocks", kind, act, form), (-(-blocks // 8), n), args, types=types, block=(256,), pdl=pdl)
        )
    return made
