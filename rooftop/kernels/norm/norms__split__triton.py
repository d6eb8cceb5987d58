"""The forward of rms_norm and layer_norm for rows too long for a cluster, in tiles: rooftop/kernels/norm/_split_triton.py"""

from __future__ import annotations

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _split_tiles
from rooftop.kernels.norm._split_tiles import Config
from rooftop.kernels.norm._split_triton import _apply, _shared, _statistics

OPS = ("rms_norm", "layer_norm")
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]


def supports(p: Problem) -> str | None:
    return "takes no addend" if p.extra else _split_tiles.refuses(p, "x", ("x", "residual", "y", "s"))


def choose(p: Problem) -> Config:
    return _split_tiles.choose(p, "x")


def configs(p: Problem) -> list[Config]:
    return _split_tiles.configs(choose(p))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {"found": Meta((p["x"].shape[0], _split_tiles.tiles(p, "x", config), 2), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    shared, source, chain = _shared(p, "x", config), "x" if p.get("residual") is None else "s", p.device.pdl
    steps = {
        f"{short}s": m.strides[0] if (m := p.get(name)) is not None else 0 for short, name in (("x", "x"), ("r", "residual"), ("s", "s"))
    }
    tiles = shared["tiles"]
    grid = (p["x"].shape[0] * tiles,)
    first = {**shared, "R": p["x"].shape[0], "x": "x", "r": "residual", "s": "s", **steps, "CENTRE": p.op.startswith("layer_norm")}
    second = {
        **shared, "R": p["x"].shape[0], "v": source, "w": "weight", "b": "bias", "y": "y", "vs": p[source].strides[0],
        "ys": p["y"].strides[0]
    }
    second |= {"eps": float(p.option("eps")), "programs": grid[0], "TILES": _split_tiles.folded(tiles)}
    return [Launch(_statistics, grid, first, config.warps, chained=chain), Launch(_apply, grid, second, config.warps, chained=chain)]
