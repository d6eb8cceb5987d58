"""The backward of rms_norm and layer_norm for rows too long for a cluster, in tiles: rooftop/kernels/norm/_split_triton.py"""

from __future__ import annotations

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device.column_sums import column_sums
from rooftop.kernels.norm import _split_tiles
from rooftop.kernels.norm._bwd_triton import _slabs_bwd
from rooftop.kernels.norm._fwd_triton import pow2, wide_access
from rooftop.kernels.norm._split_tiles import Config
from rooftop.kernels.norm._split_triton import _fold_bwd, _shared, _statistics_bwd

OPS = ("rms_norm_bwd", "layer_norm_bwd")
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]


def supports(p: Problem) -> str | None:
    return _split_tiles.refuses(p, "s", ("s", "dy"))


def choose(p: Problem) -> Config:
    return _split_tiles.choose(p, "s", 32)


def configs(p: Problem) -> list[Config]:
    return _split_tiles.configs(choose(p))


def slab(p: Problem) -> tuple[int, int, int, int]:
    """Columns and rows at a time, warps, and rows of a slab: all rows if there are enough columns for the whole card."""
    rows, columns = p["s"].shape
    wide, lanes = (1024, 4) if wide_access(p) else (512, 2)
    return wide, lanes, 4, max(8, min(128, pow2(rows * -(-columns // wide) // (8 * p.device.sms))))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, columns = p["s"].shape
    partial = Meta((-(-rows // slab(p)[3]), columns), "f32")
    found = {"found": Meta((rows, _split_tiles.tiles(p, "s", config), 4), "f32"), "rows": Meta((rows, 4), "f32")}
    return found | {name: partial for name, of in (("pw", "dweight"), ("pb", "dbias")) if p.get(of) is not None}


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["s"].shape
    made, shared, chain = scratch(p, config), _shared(p, "s", config), p.device.pdl
    wide, lanes, warps, height = slab(p)
    strides = {f"{n}s": m.strides[0] if (m := p.get(n)) is not None else 0 for n in ("dy", "ds", "s", "dx")}
    centre = p.op.startswith("layer_norm")
    first = {**shared, "R": rows, "dy": "dy", "s": "s", "w": "weight", "gs": strides["dys"], "ss": strides["ss"], "CENTRE": centre}
    fold = {
        **shared, "rows": "rows", "ss": strides["ss"], "eps": float(p.option("eps")), "TILES": _split_tiles.folded(shared["tiles"]),
        "CENTRE": centre
    }
    sums = [(parts, to) for parts, to in (("pw", "dweight"), ("pb", "dbias")) if parts in made]
    names = {
        "dy": "dy", "ds": "ds", "s": "s", "w": "weight", "dx": "dx", "pw": "pw" if "pw" in made else None,
        "pb": "pb" if "pb" in made else None
    }
    slabs, blocks = -(-rows // height), -(-columns // wide)
    last = {
        **names, "found": "rows", "R": rows, "C": columns, **strides, "blocks": blocks, "height": height, "COLUMNS": wide, "LANES": lanes
    }
    last |= {"CHAINED": chain, "FIRST": bool(sums)}
    found = [
        Launch(_statistics_bwd, (rows * shared["tiles"],), first, config.warps, chained=chain),
        Launch(_fold_bwd, (rows,), fold, 4, chained=chain),
        Launch(_slabs_bwd, (blocks * slabs,), last, warps, chained=chain),
    ]
    return found + column_sums(sums, slabs, columns, p.device)
