"""Linear and cross-entropy, forward, of the tokens that are not ignored, on Hopper; with memory="fast" also their gradients if requested.
Contract: rooftop/ops/linear_cross_entropy.py

The plan and its reasons are those of linear_cross_entropy__triton. The difference: the first launch lists the tokens that are not ignored,
in order and on the device. Chunks consist of these tokens, gathered to contiguous rows, and the products are persistent kernels of this
library that read their number from device memory (rooftop/kernels/loss/_counted_gluon.py); cuBLAS needs its sizes on the host. So an
ignored token costs 16 bytes of lists and zeros in dX, and nothing waits for the device. With no token ignored the gather and the scatter
move 4 x dX; the products take hundreds of times as long.

Where TMA cannot read the weight, as with features that are no multiple of 8, the products take a copy of it, or of its slice, in aligned rows:
4 bytes of device memory per element beside 2 N operations or more. Of the gradients dX is then computed first, and dW takes the place of that
copy.

dX has few tiles and many slices of K, the classes: where the tiles would leave multiprocessors idle at last and memory is left, K is cut into parts,
whose float32 sums are added as the rows are scattered.

Memory in addition to the Triton plan: the gathered rows of a chunk, which the chunk's dX then overwrites; a chunk has correspondingly fewer
rows. The loss alone gathers all of x."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss import _linear_plan as plan
from rooftop.kernels.loss._counted_gluon import counted, parts_of, row_stride, rows_copied, unread
from rooftop.kernels.loss._linear_passes import row_losses
from rooftop.kernels.loss._linear_plan import Config
from rooftop.kernels.loss._live_passes import live_column_sums, live_rows, live_statistics

WHOLE = 4 << 30  # bytes of logits that are kept whole: each further chunk reads and writes a float32 sum of dW once more
REGISTERS = 128  # of a thread of the pass over a row
DEMANDS = {"has": ["HGMMA", "UTMALDG"]}


def supports(p: Problem) -> str | None:
    rows, _, columns = plan.sizes(p)
    if not rows:
        return "there is nothing to compute"
    if p["x"].itemsize != 2:
        return f"takes bf16 and f16; given {p['x'].dtype}"
    if columns >= 2**31 - 2**20 or rows >= 2**31 - 2**14:
        return f"takes fewer than 2**31 - 2**20 classes and 2**31 - 2**14 tokens; given {columns} and {rows}"
    made = p.get("unit_weight")
    return f"TMA does not write the weight's gradient: it begins at {made.align} bytes" if made is not None and made.align % 16 else None


def _in_one_chunk(weight: int) -> int:
    """Bytes of the logits of all tokens and of their x up to which there is one chunk."""
    return max(plan.in_one_chunk(weight), WHOLE)


def choose(p: Problem) -> Config:
    rows, width, columns = plan.sizes(p)
    stride, weight = plan.padded(columns), p.get("unit_weight")
    if not plan.wanted(p):
        # as much as the backward takes: long slices, whose last wave matters little
        behind = columns * width * 2 if p.option("weight_grad") else 0
        each = rows if unread(p) is None else rows + row_stride(p)  # elements of a class: its logits and its copied weight
        most = max(plan.SPARE if p.option("memory") == "fast" else plan.SMALL, plan.SMALL + behind) // (each * 2)
        return Config(0, 0 if most >= columns else plan.in_waves(columns, most, rows, p.device.sms))
    each = stride + row_stride(p)  # elements of a row: its logits and its x
    if weight is not None and weight.dtype == p["x"].dtype:
        whole = warps_of_rows(stride * 2, p)
        if rows * each * 2 <= _in_one_chunk(columns * width * 2):
            return Config(0, 0, whole=whole)
        inside, aside = min(columns * width // stride, max(columns * width // 11, plan.SPARE // 2) // width), plan.SPARE // (each * 2)
        chunk = plan.evenly(rows, max(64, plan.in_tiles(max(inside, aside))))
        return Config(chunk, 0, inside >= aside and chunk < rows, whole=whole)
    most = max(columns * width, plan.SPARE // 2) // each
    return Config(plan.evenly(rows, max(64, plan.in_tiles(most))), 0, whole=warps_of_rows(stride * 2, p))


def warps_of_rows(row: int, p: Problem) -> int:
    """Of a program that processes a row of so many bytes. The fewer, the more programs a multiprocessor has at once, whose reads, sums and writes
    overlap; but all their rows must stay in the L2 until they are read again."""
    for warps in (4, 8):
        if row * p.device.sms * (65536 // (32 * warps * REGISTERS)) <= p.device.l2_bytes * 2 // 3:
            return warps
    return 16


def configs(p: Problem) -> list[Config]:
    return plan.varied(choose(p), p)


def _turned_round(p: Problem, config: Config) -> bool:
    """Whether dX is computed before dW, which takes the place of the copied weight."""
    weight = p.get("unit_weight")
    return unread(p) is not None and weight is not None and weight.dtype != "f32" and not plan.summed_aside(p, config)


def _parts(p: Problem, config: Config) -> int:
    """Of the classes in the product that gives dX of a chunk: at most as many as the memory that the docstring of the op states leaves room
    for."""
    (rows, width, columns), weight = plan.sizes(p), p.get("unit_weight")
    if p.get("unit_x") is None or weight is None or weight.dtype != p["x"].dtype:
        return 1
    height, of_weight = config.rows or rows, columns * width * 2
    spare = max(of_weight // 10, plan.SPARE) if height < rows else _in_one_chunk(of_weight)
    left = spare - 2 * height * (row_stride(p) + (0 if config.inside else plan.padded(columns)))
    return parts_of(height, width, columns, p.device.sms, left // (4 * height * width))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, columns = plan.sizes(p)
    found = {"order": Meta((rows,), "i32"), "place": Meta((rows,), "i32"), "live": Meta((1,), "i32")}
    if p.option("reduction") != "none":
        found["losses"] = Meta((rows,), "f32")
    height, kind = (config.rows or rows) if plan.wanted(p) else rows, p["x"].dtype
    found["taken"] = Meta((height, row_stride(p)), kind)
    if unread(p) is not None:
        found["weight_rows"] = Meta((columns if plan.wanted(p) else config.columns or columns, row_stride(p)), kind)
        if _turned_round(p, config) and _parts(p, config) == 1:
            found["dx_rows"] = Meta((height, row_stride(p)), kind)
    if (parts := _parts(p, config)) > 1:
        found["dx_parts"] = Meta((parts * height, width), "f32")
    if not config.inside:
        found["chunk"] = Meta((config.rows or rows, plan.padded(config.columns or columns)), p["x"].dtype)
    if plan.summed_aside(p, config):
        found["weight_sum"] = Meta((columns, width), "f32")
    if (bias := p.get("unit_bias")) is not None and 0 < config.rows < rows and bias.dtype != "f32":
        found["bias_sum"] = Meta((columns,), "f32")
    return found


def steps(p: Problem, config: Config) -> Sequence[Step]:
    losses = "loss" if p.option("reduction") == "none" else "losses"
    # with an entropy, `row_losses` writes ignored tokens
    found: list[Step] = [plan.sorted_out(p, None if p.option("with_entropy") else losses, "divisor")]
    found += _by_tokens(p, config) if plan.wanted(p) else _by_classes(p, config, losses)
    return found if p.option("reduction") == "none" else [*found, plan.total(p, "losses")]


def _metas(p: Problem, config: Config) -> dict[str, Meta]:
    return {n: m for n, m in (*p.tensors, *scratch(p, config).items()) if m is not None}


def _by_classes(p: Problem, config: Config, losses: str) -> list[Step]:
    rows, width, columns = plan.sizes(p)
    each, metas = config.columns or columns, _metas(p, config)
    same = {
        **plan.numbers(p), **plan.entropy_of(p), "z": "chunk", "bias": plan.bias_of(p), "order": "order", "live": "live", "target": "target", "state": "state",
        "losses": losses
    }
    same |= {"zs": plan.padded(each), "SMOOTH": p.option("label_smoothing") != 0, "CAP": plan.cap_of(p), "R": rows}
    same |= {"classes": plan.classes(p), "start": int(p.option("start"))}
    copying, pitch = unread(p) is not None, row_stride(p)
    found: list[Step] = [plan.gathered(p, "taken", 0, rows, pitch if copying or pitch != width else 0)]
    for first in range(0, columns, each):
        width_ = min(each, columns - first)
        piece, warps = plan.row_shape(width_, 2, config.warps)
        chunk, weight = View("chunk", (rows, width_), (plan.padded(each), 1)), plan.matrix(p, "weight", first, width_)
        if copying:
            found.append(rows_copied(View("weight_rows", (width_, width), (pitch, 1)), weight))
            weight = View("weight_rows", (width_, width), (pitch, 1))
        found.append(counted(metas, chunk, View("taken", (rows, width), (pitch, 1)), plan.turned(weight), p.device.sms))
        args = {**same, "columns": width_, "first": first, "FIRST": first == 0, "COLUMNS": piece, "STAGES": config.stages}
        found.append(plan.taking(live_statistics, args, rows, warps))
    block = min(1024, max(128, 1 << (rows - 1).bit_length()))
    return [*found, plan.taking(row_losses, {**same, "BLOCK": block}, -(-rows // block), 4)]


def _by_tokens(p: Problem, config: Config) -> list[Step]:
    rows, width, columns = plan.sizes(p)
    each, stride, metas = config.rows or rows, plan.padded(columns), _metas(p, config)
    memory = "unit_weight" if config.inside else "chunk"
    aside = plan.summed_aside(p, config)
    weight_sum = "weight_sum" if aside else "unit_weight"
    bias, bias_sum = p.get("unit_bias"), "bias_sum" if "bias_sum" in metas else "unit_bias"
    piece, warps = plan.row_shape(columns, 2, config.whole)
    same = {
        **plan.numbers(p), "z": memory, "bias": plan.bias_of(p), "order": "order", "live": "live", "target": "target", "state": "state",
        "losses": "losses"
    }
    same |= {
        "divisor": "divisor", "zs": stride, "columns": columns, "SMOOTH": p.option("label_smoothing") != 0, "CAP": plan.cap_of(p),
        "COLUMNS": piece, **plan.ragged(columns)
    }
    found: list[Step] = []
    weight, first_dx, parts = plan.matrix(p, "weight"), _turned_round(p, config), _parts(p, config)
    pitch = row_stride(p) if unread(p) is not None or row_stride(p) != width else 0
    if unread(p) is not None:
        weight = View("weight_rows", (columns, width), (pitch, 1))
        found.append(rows_copied(weight, plan.matrix(p, "weight")))
    for first in range(0, rows, each):
        height = min(each, rows - first)
        chunk, taken = View(memory, (height, columns), (stride, 1)), View("taken", (height, width), (pitch or width, 1))
        found += [plan.gathered(p, "taken", first, height, pitch), counted(metas, chunk, taken, plan.turned(weight), p.device.sms, first=first)]
        found.append(plan.taking(live_rows, {**same, "first": first, "STAGES": config.stages}, height, warps))
        of_w: list[Step] = []
        of_x: list[Step] = []
        if p.get("unit_weight") is not None:
            to = weight if first_dx else plan.dense(weight_sum, columns, width)
            of_w = [counted(metas, to, plan.turned(chunk), taken, p.device.sms, first=first, depth=True, add=first > 0)]
        if p.get("unit_x") is not None:
            to = View("dx_rows" if first_dx else "taken", taken.shape, taken.strides)
            to, apart = (plan.dense("dx_parts", parts * height, width), 0) if parts > 1 else (to, pitch)
            of_x = [
                counted(metas, to, chunk, weight, p.device.sms, first=first, parts=parts),
                plan.spread(p, to.tensor, "unit_x", first, height, apart, parts),
            ]
        found += [*of_x, *of_w] if first_dx else [*of_w, *of_x]
        if bias is not None:
            args = {
                "z": memory, "live": "live", "out": bias_sum, "zo": 0, "zs": stride, "rows": height, "columns": columns, "first": 0,
                "chunk": first
            }
            found.append(plan.taking(live_column_sums, {**args, "ADD": first > 0, "ROWS": 32, "COLUMNS": 64}, -(-columns // 64), 4))
    if first_dx:
        found.append(rows_copied(plan.dense("unit_weight", columns, width), weight))
    if aside:
        found.append(plan.copied(plan.dense("unit_weight", columns, width), plan.dense("weight_sum", columns, width)))
    if bias_sum == "bias_sum":
        found.append(plan.copied(plan.dense("unit_bias", 1, columns), plan.dense("bias_sum", 1, columns)))
    return found
