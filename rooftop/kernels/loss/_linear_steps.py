"""The steps that the forward and the backward of linear_cross_entropy share if they process only the tokens that count: kernels of _linear_counted.py."""

from __future__ import annotations

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.loss._linear_counted import gather_rows, sort_out, spread_rows
from rooftop.kernels.loss._linear_plan import numbers, sizes, taking


def _by_program(width: int) -> int:
    """Features that a program of a gather or a scatter moves at once."""
    return min(2048, max(128, 1 << (width - 1).bit_length()))


def sorted_out(p: Problem, losses: str | None, divisor: str | None) -> Launch:
    rows = p["x"].shape[0]
    block = 512 if rows <= 512 else 4096
    args = {"target": "target", "order": "order", "place": "place", "live": "live", "divisor": divisor, "state": "state", "losses": losses, "R": rows}
    args |= {**numbers(p), "MEAN": p.option("reduction") == "mean", "BLOCK": block}
    return taking(sort_out, args, 1, max(4, block // 256))


def gathered(p: Problem, to: str, first: int, height: int) -> Launch:
    _, width, _ = sizes(p)
    args = {"x": "x", "order": "order", "live": "live", "out": to, "xs": p["x"].strides[0], "H": width, "first": first, "BLOCK": _by_program(width)}
    return taking(gather_rows, args, height, max(1, _by_program(width) // 512))


def spread(p: Problem, source: str, out: str, first: int, height: int) -> Launch:
    rows, width, _ = sizes(p)
    args = {"source": source, "place": "place", "out": out, "H": width, "first": first, "height": height, "FIRST": first == 0, "BLOCK": _by_program(width)}
    return taking(spread_rows, args, rows, max(1, _by_program(width) // 512))
