"""The gradient of linear and cross-entropy by the tokens that are not ignored, on Hopper, with recomputed logits. Contract:
rooftop/ops/linear_cross_entropy.py

The plan and its reasons are those of linear_cross_entropy_bwd__triton: all tokens by a slice of the classes at a time, whose logits are
stored in the part of dW that later slices will fill. The difference is that of linear_cross_entropy__gluon_sm90: products of the tokens
that count, gathered to contiguous rows. x of these tokens is stored in the memory of dX, which is written at the very end; the sum of dX
over the slices has only their rows too. A weight that TMA does not read is copied, slice by slice, as in that file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss import _linear_plan as plan
from rooftop.kernels.loss._counted_gluon import counted, row_stride, rows_copied, unread
from rooftop.kernels.loss._live_passes import live_column_sums, live_gradient

DEMANDS = {"has": ["HGMMA", "UTMALDG"]}


@dataclass(frozen=True)
class Config:
    """`columns`: classes of a slice whose logits have memory of their own. `inside`: slices may be in the memory of dW. `block`: elements
    of a program of the gradient."""

    columns: int
    inside: bool
    block: int


def supports(p: Problem) -> str | None:
    rows, _, columns = plan.sizes(p)
    if not rows:
        return "there is nothing to compute"
    if any(p.get(n) is not None for n in ("unit_x", "unit_weight", "unit_bias")):
        return "the forward has made the gradients: there is no product"
    if p["x"].itemsize != 2:
        return f"takes bf16 and f16; given {p['x'].dtype}"
    if columns >= 2**31 - 2**20 or rows >= 2**31 - 2**14 or rows * -(-columns // 2048) >= 2**31:
        return f"takes fewer than 2**31 - 2**20 classes, 2**31 - 2**14 tokens and 2**42 logits; given {columns} and {rows}"
    return next(
        (
            f"TMA does not write {n}: it begins at {m.align} bytes" for n in ("dx", "dweight") if (m := p.get(n)) is not None
            and m.align % 16
        ), None
    )


def choose(p: Problem) -> Config:
    rows, _, columns = plan.sizes(p)
    weight = p.get("dweight")
    copying = unread(p) is not None
    each_class = rows + row_stride(p) if copying else rows  # elements: its logits and its copied weight
    most = (plan.SMALL if p.option("memory") == "small" else plan.SPARE) // (each_class * 2)
    each = plan.in_waves(columns, most, rows, p.device.sms)
    return Config(each, not copying and weight is not None and weight.dtype == p["x"].dtype, min(2048, max(128, 1 << (each - 1).bit_length())))


def _filled(most: int, p: Problem) -> int:
    """The number of classes of a slice, from three quarters of `most` on, for which the partial waves of tiles of 128 x 256 cost the three
    products least."""
    rows, width, _ = plan.sizes(p)

    def each(classes: int) -> float:
        products = ((rows, classes, width), (rows, width, classes), (classes, width, rows))
        return sum(-(-(-(-m // 128) * -(-n // plan.TILE)) // p.device.sms) * k for m, n, k in products) / classes

    return min(range(most, 3 * most // 4, -plan.TILE), key=each) if most >= 4 * plan.TILE else most


def slices(p: Problem, config: Config) -> Iterator[tuple[int, int, int | None]]:
    """(first class, classes, element of dW at which the logits start, or None: they have memory of their own). That element is a multiple
    of the classes, since TMA counts rows from the start of the memory."""
    rows, width, columns = plan.sizes(p)
    first = 0
    while first < columns:
        left, offset = columns - first, 0
        within = _filled(plan.in_tiles(left * width // (rows + width)), p) if config.inside and left > config.columns else 0
        while within > config.columns:
            offset = (columns * width - rows * within) // within * within
            if offset >= (first + within) * width:
                break
            within -= 64
        if within > config.columns:
            yield first, within, offset
            first += within
        else:
            yield first, min(config.columns, left), None
            first += config.columns


def _taken(p: Problem) -> str:
    """Where x of the tokens that count lies."""
    return "dx" if p.get("dx") is not None and unread(p) is None else "taken"


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, _ = plan.sizes(p)
    found = {"order": Meta((rows,), "i32"), "place": Meta((rows,), "i32"), "live": Meta((1,), "i32")}
    longest = max((n for _, n, at in slices(p, config) if at is None), default=0)
    if longest:
        found["chunk"] = Meta((rows, plan.padded(longest)), p["x"].dtype)
    if p.get("dx") is not None:
        found["x_sum"] = Meta((rows, width), "f32")
    if _taken(p) == "taken":
        found["taken"] = Meta((rows, row_stride(p)), p["x"].dtype)
    if unread(p) is not None:
        found["weight_rows"] = Meta((longest, row_stride(p)), p["x"].dtype)
    return found


def steps(p: Problem, config: Config) -> Sequence[Step]:
    return list(_by_classes(p, config))


def _by_classes(p: Problem, config: Config) -> Iterator[Step]:
    rows, width, _ = plan.sizes(p)
    made, sms = scratch(p, config), p.device.sms
    metas, own = {**{n: m for n, m in p.tensors if m is not None}, **made}, made.get("chunk")
    copying, to = unread(p) is not None, p.get("dweight")
    pitch = made["taken"].shape[1] if "taken" in made else width
    taken = View(_taken(p), (rows, width), (pitch, 1))
    yield plan.sorted_out(p, None, None)
    yield plan.gathered(p, taken.tensor, 0, rows, pitch if copying or pitch != width else 0)
    same = {
        **plan.numbers(p), **plan.entropy_of(p), "bias": plan.bias_of(p), "order": "order", "live": "live", "target": "target", "state": "state",
        "dloss": "dloss",
        "divisor": "divisor"
    }
    same |= {"gs": p["dloss"].strides[0] if p["dloss"].shape else 0, "classes": plan.classes(p), "start": int(p.option("start"))}
    same |= {"CAP": plan.cap_of(p), "BLOCK": config.block}
    for first, each, offset in slices(p, config):
        memory, stride, at = ("chunk", own.strides[0] if own else 0, 0) if offset is None else ("dweight", each, offset)
        chunk, weight = View(memory, (rows, each), (stride, 1), at), plan.matrix(p, "weight", first, each)
        rows_of_weight = View("weight_rows", (each, width), (pitch, 1))
        if copying:
            yield rows_copied(rows_of_weight, weight)
            weight = rows_of_weight
        yield counted(metas, chunk, taken, plan.turned(weight), sms)
        blocks = -(-each // config.block)
        args = {**same, "z": memory, "zo": at, "zs": stride, "columns": each, "blocks": blocks, "first": first}
        yield plan.taking(live_gradient, args, rows * blocks, max(1, config.block // 512))
        if p.get("dx") is not None:
            yield counted(metas, plan.dense("x_sum", rows, width), chunk, weight, sms, add=first > 0)
        if to is not None:
            # in 16 bits TMA writes it: in the place of the copied weight, which no product needs any more
            out = rows_of_weight if copying and to.dtype != "f32" else plan.dense("dweight", each, width, first)
            yield counted(metas, out, plan.turned(chunk), taken, sms, depth=True)
            if out is rows_of_weight:
                yield rows_copied(plan.dense("dweight", each, width, first), out)
        if p.get("dbias") is not None:
            args = {
                "z": memory, "live": "live", "out": "dbias", "zo": at, "zs": stride, "rows": rows, "columns": each, "first": first,
                "chunk": 0
            }
            yield plan.taking(live_column_sums, {**args, "ADD": False, "ROWS": 32, "COLUMNS": 64}, -(-each // 64), 4)
    if p.get("dx") is not None:
        yield plan.spread(p, "x_sum", "dx", 0, rows)
