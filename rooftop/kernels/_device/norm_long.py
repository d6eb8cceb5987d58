"""Configs and launches of norm_long.cuh: the forward of rms_norm and layer_norm where a row is too long for a block's registers."""

from __future__ import annotations

from collections.abc import Mapping

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels._device import row_groups
from rooftop.kernels._device.row_groups import LongRows

TENSORS = ("x", "residual", "weight", "bias", "y", "s")


def of(p: Problem, centre: bool) -> LongRows:
    present = [m for name in TENSORS if (m := p.get(name)) is not None]
    kept = sum(p.get(name) is not None for name in ("weight", "bias"))
    return row_groups.of(p, p["x"], present, 1 if p.get("residual") is None else 2, kept, 2 if centre else 1)


def refuses(p: Problem, centre: bool) -> str | None:
    return row_groups.refuses(of(p, centre), p["x"])


def choose(p: Problem, centre: bool) -> dict[str, int]:
    return row_groups.choose(of(p, centre)) or {}


def configs(p: Problem, centre: bool) -> list[dict[str, int]]:
    return row_groups.configs(of(p, centre))


def scratch(p: Problem, config: Mapping[str, int], centre: bool) -> dict[str, Meta]:
    return {"mail": row_groups.mail(of(p, centre), config["blocks"])}


def launches(p: Problem, config: Mapping[str, int], head: Head, centre: bool) -> list[Launch]:
    r = of(p, centre)
    flags = (r.aligned, centre, *(p.get(name) is not None for name in ("residual", "weight", "bias")))
    template = (DTYPES[p["x"].dtype].cuda, config["vectors"], config["stages"], config["lag"], *(str(v).lower() for v in flags))
    return [row_groups.launch(r, config, f"norm_long<{', '.join(map(str, template))}>", *head.arguments(p, config))]
