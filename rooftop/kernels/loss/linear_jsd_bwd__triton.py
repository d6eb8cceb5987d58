"""The gradients that the forward of linear_jsd computed, times dloss: in place, and not touched if dloss is 1. Contract:
rooftop/ops/linear_jsd.py"""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.loss._linear_passes import times_loss

UNITS = (("dx", "unit_x"), ("dweight", "unit_weight"))


@dataclass(frozen=True)
class Config:
    """Elements of a program."""

    block: int = 4096


def supports(p: Problem) -> str | None:
    most = max((m.numel for out, _ in UNITS if (m := p.get(out)) is not None), default=0)
    return None if most < 2**42 else f"takes fewer than 2**42 numbers; given {most}"


def choose(p: Problem) -> Config:
    return Config()


def launches(p: Problem, config: Config) -> list[Launch]:
    found = []
    for out, unit in UNITS:
        m = p.get(out)
        if m is not None and m.numel:
            args = {"unit": unit, "dloss": "dloss", "out": out, "N": m.numel, "IN_PLACE": bool(p.option("inplace")), "BLOCK": config.block}
            found.append(Launch(times_loss, (-(-m.numel // config.block),), args, 4))
    return found
