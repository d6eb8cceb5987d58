"""The loss over chunks of tokens, then the gradients over the same chunks, whose logits are made a second time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss._linear_plan import copied, count, dense, matrix, padded, product, sizes, total, turned
from rooftop.kernels.loss._linear_rungs import gradient_of, losses_of, plain

IDEA = "1024 tokens at a time: only one chunk of the logits exists, in 16 bits. The backward recomputes each chunk, and sums dW over the chunks in float32."
PREDICT = {"speedup": 0.7}
LIMIT = "A fourth product, and dW in float32, 2 GiB that are read and written for each chunk: the fewer tokens in a chunk, the more often."


@dataclass(frozen=True)
class Config:
    """Tokens of a chunk."""

    rows: int = 1024


def supports(p: Problem) -> str | None:
    return plain(p)


def choose(p: Problem) -> Config:
    return Config()


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, columns = sizes(p)
    chunk = Meta((min(rows, config.rows), padded(columns)), p["x"].dtype)
    return {"losses": Meta((rows,), "f32"), "chunk": chunk, "weight_sum": Meta((columns, width), "f32")}


def steps(p: Problem, config: Config) -> Sequence[Step]:
    rows, width, columns = sizes(p)
    weight, sums = matrix(p, "weight"), dense("weight_sum", columns, width)
    found: list[Step] = [count(p)]
    chunks = [(first, min(config.rows, rows - first)) for first in range(0, rows, config.rows)]
    for first, height in chunks:
        chunk = View("chunk", (height, columns), (padded(columns), 1))
        found += [product(chunk, matrix(p, "x", first, height), turned(weight)), losses_of(p, chunk, first)]
    for first, height in chunks:
        chunk, x = View("chunk", (height, columns), (padded(columns), 1)), matrix(p, "x", first, height)
        found += [product(chunk, x, turned(weight)), gradient_of(p, chunk, first)]
        found += [product(dense("unit_x", height, width, first), chunk, weight), product(sums, turned(chunk), x, add=first > 0)]
    return [*found, copied(dense("unit_weight", columns, width), sums), total(p, "losses")]
