"""All logits in float32, their softmax, their gradient rounded to 16 bits, and the two products of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooftop.core.spec import Meta, Problem, Step, View
from rooftop.kernels.loss._linear_plan import copied, count, dense, matrix, padded, product, sizes, total, turned
from rooftop.kernels.loss._linear_rungs import gradient_of, losses_of, plain

IDEA = "As models are written: logits in float32 for all tokens, their loss, their gradient in place, rounded to the dtype of x for two more products."
LIMIT = "The logits are 4 GiB in float32 and 2 GiB rounded; each pass reads and writes them in memory, in addition to three products."


@dataclass(frozen=True)
class Config:
    """Nothing is to be chosen."""


def supports(p: Problem) -> str | None:
    return plain(p)


def choose(p: Problem) -> Config:
    return Config()


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, _, columns = sizes(p)
    return {"losses": Meta((rows,), "f32"), "logits": Meta((rows, padded(columns)), "f32"), "slopes": Meta((rows, padded(columns)), p["x"].dtype)}


def steps(p: Problem, config: Config) -> Sequence[Step]:
    rows, width, columns = sizes(p)
    logits, slopes = (View(name, (rows, columns), (padded(columns), 1)) for name in ("logits", "slopes"))
    return [
        count(p), product(logits, matrix(p, "x"), turned(matrix(p, "weight"))), losses_of(p, logits, 0), gradient_of(p, logits, 0), copied(slopes, logits),
        product(dense("unit_x", rows, width), slopes, matrix(p, "weight")), product(dense("unit_weight", columns, width), turned(slopes), matrix(p, "x")),
        total(p, "losses"),
    ]
