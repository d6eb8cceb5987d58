"""Chunks as long as dW has room for, in the memory of dW, and one pass over the logits of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss._linear_passes import whole_rows
from rooftop.kernels.loss._linear_plan import (
    copied,
    count,
    dense,
    evenly,
    matrix,
    numbers,
    padded,
    product,
    row_shape,
    sizes,
    taking,
    total,
    turned,
)
from rooftop.kernels.loss._linear_rungs import plain

IDEA = "The chunk is stored where dW is written at the end: H tokens without extra memory. One program reads a row for its loss and again, from L2, for its \
gradient."
PREDICT = {"speedup": 1.18}
LIMIT = "dW is summed over two chunks in float32 and rounded: 2 GiB written, 4 read and written, 3 read and written, 2 ms in addition to 37 of products."


@dataclass(frozen=True)
class Config:
    """Tokens of a chunk."""

    rows: int


def supports(p: Problem) -> str | None:
    _, width, columns = sizes(p)
    return plain(p) or (None if columns * width >= padded(columns) else "not one row of logits fits dW")


def choose(p: Problem) -> Config:
    rows, width, columns = sizes(p)
    return Config(evenly(rows, columns * width // padded(columns)))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, columns = sizes(p)
    return {"losses": Meta((rows,), "f32"), "weight_sum": Meta((columns, width), "f32")}


def steps(p: Problem, config: Config) -> Sequence[Step]:
    rows, width, columns = sizes(p)
    weight, sums = matrix(p, "weight"), dense("weight_sum", columns, width)
    piece, warps = row_shape(columns, p["x"].itemsize, 16)
    same = {**numbers(p), "z": "unit_weight", "bias": None, "target": "target", "state": "state", "losses": "losses", "divisor": "divisor", "zo": 0}
    same |= {"zs": padded(columns), "columns": columns, "SMOOTH": False, "CAP": 0, "COLUMNS": piece, "STAGES": 3}
    found: list[Step] = [count(p)]
    for first in range(0, rows, config.rows):
        height = min(config.rows, rows - first)
        chunk, x = View("unit_weight", (height, columns), (padded(columns), 1)), matrix(p, "x", first, height)
        found += [product(chunk, x, turned(weight)), taking(whole_rows, {**same, "row0": first}, height, warps)]
        found += [product(dense("unit_x", height, width, first), chunk, weight), product(sums, turned(chunk), x, add=first > 0)]
    return [*found, copied(dense("unit_weight", columns, width), sums), total(p, "losses")]
