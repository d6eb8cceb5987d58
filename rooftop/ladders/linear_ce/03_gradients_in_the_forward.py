"""The loss and the gradients of a chunk of tokens, before the next chunk is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss._linear_plan import copied, count, dense, matrix, padded, product, sizes, total, turned
from rooftop.kernels.loss._linear_rungs import gradient_of, losses_of, plain

IDEA = "The forward computes the gradients of a chunk too, while its logits exist: the loss is a sum or a mean, so its own gradient is a factor for later."
PREDICT = {"speedup": 1.25}
LIMIT = "Three products, the fewest. dW in float32 is still read and written for each chunk of 1024 tokens, and each chunk of logits three times."


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
    for first in range(0, rows, config.rows):
        height = min(config.rows, rows - first)
        chunk, x = View("chunk", (height, columns), (padded(columns), 1)), matrix(p, "x", first, height)
        found += [product(chunk, x, turned(weight)), losses_of(p, chunk, first), gradient_of(p, chunk, first)]
        found += [product(dense("unit_x", height, width, first), chunk, weight), product(sums, turned(chunk), x, add=first > 0)]
    return [*found, copied(dense("unit_weight", columns, width), sums), total(p, "losses")]
