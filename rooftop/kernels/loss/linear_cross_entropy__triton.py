"""Linear and cross-entropy, forward; with memory="fast" also the gradients if requested. Contract: rooftop/ops/linear_cross_entropy.py

cuBLAS computes the products. Between them Triton kernels process a chunk of logits; only one chunk exists at a time. Two plans:

classes  (the loss alone) All tokens by a slice of the classes: one product, then a pass that reads the slice into each token's running
         maximum and sum.
tokens   (the loss and its gradient) Some tokens by all classes: one product, a pass that reads the rows for their losses and overwrites the
         logits with their gradients, then dX of those tokens whole and dW += . Three products in all, the fewest possible: the backward
         only multiplies by dloss.

tokens, memory: if all tokens fit 2.1 x dW (N <= 2.1 H) they are one chunk, and dW is one product, summed only within its tiles. Else dW is
summed over chunks in float32 (2 x dW in 16 bits), and the chunk lies in the memory of dW itself, which is written at the very end: so 3 x
dW + dX at most. Predicted for an H200, bf16, forward and backward, relative to the three products alone: 8192 x 4096 x 128256, one chunk:
1.03x (the pass reads 2 GiB from DRAM, again from L2, and writes 2 GiB); 32768 x 4096 x 262144, eight chunks whose float32 sums move 60 GiB:
1.08x; the loss alone relative to one
product: 1.05x.

Ignored tokens: their logits are not read, their gradients are zeros. The products still include their rows: cuBLAS needs its sizes on the
host, and reading the number of tokens that count from the device would synchronise. linear_cross_entropy__gluon_sm90 leaves them out."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss import _linear_plan as plan
from rooftop.kernels.loss._linear_passes import row_losses, slice_statistics, whole_rows
from rooftop.kernels.loss._linear_plan import Config


def supports(p: Problem) -> str | None:
    rows, width, columns = plan.sizes(p)
    if not rows or not width:
        return "there is nothing to compute"
    if columns >= 2**31 - 2**20 or rows >= 2**31:
        return f"takes fewer than 2**31 - 2**20 classes and 2**31 tokens; given {columns} and {rows}"
    return None


def choose(p: Problem) -> Config:
    rows, width, columns = plan.sizes(p)
    size, stride = p["x"].itemsize, plan.padded(columns)
    weight = p.get("unit_weight")
    if not plan.wanted(p):
        behind = columns * width * size if p.option("weight_grad") else 0  # the backward will take as much memory
        most = (plan.SPARE if p.option("memory") == "fast" else min(plan.SPARE, plan.SMALL + behind)) // (rows * size)
        return Config(0, 0 if most >= columns else plan.in_waves(columns, most, rows, p.device.sms))
    if weight is not None and weight.dtype == p["x"].dtype and size == 2:
        if rows * stride * size <= plan.in_one_chunk(columns * width * size):
            return Config(0, 0)
        inside, aside = columns * width // stride, plan.SPARE // (stride * size)
        return Config(plan.evenly(rows, max(64, plan.in_tiles(max(inside, aside)))), 0, inside >= aside)
    most = max(columns * width, plan.SPARE // size) // stride
    return Config(plan.evenly(rows, max(64, plan.in_tiles(most))), 0)


def configs(p: Problem) -> list[Config]:
    return plan.varied(choose(p), p)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, columns = plan.sizes(p)
    found = {} if p.option("reduction") == "none" else {"losses": Meta((rows,), "f32")}
    if not config.inside:
        found["chunk"] = Meta((config.rows or rows, plan.padded(config.columns or columns)), p["x"].dtype)
    if plan.summed_aside(p, config):
        found["weight_sum"] = Meta((columns, width), "f32")
    if (bias := p.get("unit_bias")) is not None and 0 < config.rows < rows and bias.dtype != "f32":
        found["bias_sum"] = Meta((columns,), "f32")
    return found


def steps(p: Problem, config: Config) -> Sequence[Step]:
    found: list[Step] = [plan.count(p)]
    found += _by_tokens(p, config) if plan.wanted(p) else _by_classes(p, config)
    return found if p.option("reduction") == "none" else [*found, plan.total(p, "losses")]


def _by_classes(p: Problem, config: Config) -> list[Step]:
    rows, _, columns = plan.sizes(p)
    each = config.columns or columns
    losses = "loss" if p.option("reduction") == "none" else "losses"
    same = {
        **plan.numbers(p), **plan.entropy_of(p), "z": "chunk", "bias": plan.bias_of(p), "target": "target", "state": "state", "losses": losses, "zo": 0,
        "zs": plan.padded(each)
    }
    same |= {"SMOOTH": p.option("label_smoothing") != 0, "CAP": plan.cap_of(p), "R": rows, "classes": plan.classes(p)}
    start = int(p.option("start"))
    found: list[Step] = []
    for first in range(0, columns, each):
        width_ = min(each, columns - first)
        piece, warps = plan.row_shape(width_, p["x"].itemsize, config.warps)
        logits = View("chunk", (rows, width_), (plan.padded(each), 1))
        found.append(plan.product(logits, plan.matrix(p, "x"), plan.turned(plan.matrix(p, "weight", first, width_))))
        args = {**same, "columns": width_, "first": first, "start": start, "FIRST": first == 0, "COLUMNS": piece, "STAGES": config.stages}
        found.append(plan.taking(slice_statistics, args, rows, warps))
    block = min(1024, max(128, 1 << (rows - 1).bit_length()))
    return [*found, plan.taking(row_losses, {**same, "BLOCK": block}, -(-rows // block), 4)]


def _by_tokens(p: Problem, config: Config) -> list[Step]:
    rows, width, columns = plan.sizes(p)
    each, stride = config.rows or rows, plan.padded(columns)
    memory = "unit_weight" if config.inside else "chunk"
    aside = plan.summed_aside(p, config)
    weight_sum = "weight_sum" if aside else "unit_weight"
    bias, bias_sum = p.get("unit_bias"), "bias_sum" if "bias_sum" in scratch(p, config) else "unit_bias"
    piece, warps = plan.row_shape(columns, p["x"].itemsize, config.whole)
    same = {**plan.numbers(p), "z": memory, "bias": plan.bias_of(p), "target": "target", "state": "state", "losses": "losses", "divisor": "divisor"}
    same |= {
        "zo": 0, "zs": stride, "columns": columns, "SMOOTH": p.option("label_smoothing") != 0, "CAP": plan.cap_of(p), "COLUMNS": piece,
        "STAGES": config.stages, **plan.ragged(columns)
    }
    found: list[Step] = []
    for first in range(0, rows, each):
        height = min(each, rows - first)
        chunk, x, weight = View(memory, (height, columns), (stride, 1)), plan.matrix(p, "x", first, height), plan.matrix(p, "weight")
        found += [plan.product(chunk, x, plan.turned(weight)), plan.taking(whole_rows, {**same, "row0": first}, height, warps)]
        if p.get("unit_x") is not None:
            found.append(plan.product(plan.dense("unit_x", height, width, first), chunk, weight))
        if p.get("unit_weight") is not None:
            found.append(plan.product(plan.dense(weight_sum, columns, width), plan.turned(chunk), x, add=first > 0))
        if bias is not None:
            found.append(plan.sums_of_columns(p, chunk, bias_sum, 0, first > 0))
    if aside:
        found.append(plan.copied(plan.dense("unit_weight", columns, width), plan.dense("weight_sum", columns, width)))
    if bias_sum == "bias_sum":
        found.append(plan.copied(plan.dense("unit_bias", 1, columns), plan.dense("bias_sum", 1, columns)))
    return found
