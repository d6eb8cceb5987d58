"""The config of matmul__multicast__cuda_sm90.cu: clusters whose blocks share what they load.

The model is _model.py's, with two rates for what a block brings: the share that it asks of the L2, slower where rows are no multiple of 128
bytes apart, and all that arrives in its shared memory. Fitted on an H200 to results/h200/product_clusters.json."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rooftop.core import tensor_maps
from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, TensorMap, instance
from rooftop.kernels.gemm import _model
from rooftop.kernels.gemm.matmul__few__cuda_sm90 import ACROSS, ANY, BK, LINE, Facts, boxes, facts_of, mode_of

BM = 128  # rows of a tile
WIDTHS = (256, 192, 128, 64)  # columns
CLUSTERS = ((2, 1), (1, 2), (2, 2))  # blocks down and across
STAGING = 32 * 1024  # bytes of the result on its way out
STRADDLING = 34.0  # bytes a cycle that a block asks of the L2 where rows are no multiple of 128 bytes apart
FILLED = 3.7  # cycles that TMA takes to fill a row outside the tensor with zeros
HANDSHAKE = 55.0  # cycles of a slice besides
FIELDS = ("BN", "CM", "CN", "STAGES", "GROUP")
Row = tuple[float, int, int, int, int, int]  # predicted seconds and the fields, STAGES and GROUP negative: of equals the most


def _out_map() -> TensorMap:
    return TensorMap("out", (64, 64), swizzle=128)


def supports(p: Problem, head: Head | None = None) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if len(a.shape) != 2 or out.dtype != a.dtype:
        return "takes one product whose result has the dtype of its operands"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1 or p.option("activation") != "none":
        return "multiplies and does nothing after"
    if out.numel * a.shape[1] == 0:
        return "M, N and K must be at least 1"
    if max(*a.shape, *b.shape) >= 2**31 - 512:
        return "takes fewer than 2^31 rows and columns"
    for name in ("a", "b"):
        meta = p[name]
        if all(meta.strides[i] != 1 and meta.shape[i] > 1 for i in (-1, -2)):
            return f"rows or columns of {name} must be neighbours in memory"
        if mode_of(name, meta) & ANY:
            return f"TMA does not copy {name}: {tensor_maps.refused(boxes(name, meta, 64), meta)}"
    if reason := tensor_maps.refused(_out_map(), out):
        return f"TMA does not copy out: {reason}"
    return tensor_maps.not_copied(out, stored=True)


def _shared(wide: int) -> tuple[int, int]:
    """Stages that fit, and the shared memory of all."""
    slice_bytes = (BM + wide) * LINE
    stages = min(8, (_model.SHARED - 2048 - STAGING) // slice_bytes)
    return stages, stages * slice_bytes + STAGING


def _seconds(f: Facts, wide: int, down: int, beside: int) -> float:
    tall, across = -(-f.m // (BM * down)), -(-f.n // (wide * beside))
    resident = f.resident[2 if down * beside == 4 else 1]
    turns, slices = -(-tall * across // resident), -(-f.k // BK)
    a_rate, b_rate = (STRADDLING if cut else _model.FROM_L2 for cut in f.straddles)
    asked = LINE * (BM / beside / a_rate + wide / down / b_rate)
    least = max(BM * wide * BK / _model.FMAS, LINE * (BM + 2 * wide) / _model.SHARED_RATE, LINE * (BM + wide) / _model.FROM_L2)
    step = max(least, asked)
    # in the last row and column of tiles TMA also fills with zeros what lies outside
    below = max(least, asked + FILLED * min(BM, tall * down * BM - f.m) / beside) - step
    right = max(least, asked + FILLED * min(wide, across * beside * wide - f.n) / down) - step
    clocks = _model.START + turns * (slices * (step + HANDSHAKE + below / tall + right / across) + _model.EPILOGUE + BM * wide * 2 / 64)
    moved = 2.0 * (f.m * f.k + f.k * f.n + f.m * f.n)
    blocks = min(tall * across, resident) * down * beside
    return max(clocks / _model.CLOCK, moved / min(_model.MEMORY, blocks * _model.ONE))


@lru_cache(maxsize=256)
def _ranked(f: Facts) -> tuple[Row, ...]:
    found = []
    for wide in WIDTHS:
        stages, _ = _shared(wide)
        group = max(1, round((f.resident[1] * 2 * BM * wide) ** 0.5 / BM))
        for down, beside in CLUSTERS:
            if f.modes[1] & ACROSS and wide // 64 % down:
                continue  # a share is whole boxes of 64 columns
            found.append((_seconds(f, wide, down, beside), -wide, down * beside, beside, -stages, -max(1, group // down)))
    return tuple(sorted(found))


def _fields(row: Row) -> dict[str, int]:
    _, wide, blocks, beside, stages, group = row
    return dict(zip(FIELDS, (-wide, blocks // beside, beside, -stages, -group), strict=True))


def predicted(p: Problem) -> float:
    """Seconds of the config that it chooses."""
    return _ranked(facts_of(p))[0][0]


def choose(p: Problem, head: Head | None = None) -> Mapping[str, Any]:
    return _fields(_ranked(facts_of(p))[0])


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return [_fields(row) for row in _ranked(facts_of(p))]


def for_any_rows(p: Problem, head: Head) -> str:
    return "matmul__gluon_sm90 multiplies in that mode"


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    f = facts_of(p)
    wide, down, beside = config["BN"], config["CM"], config["CN"]
    tall, across = -(-f.m // (BM * down)), -(-f.n // (wide * beside))
    args: dict[str, Any] = {"slices": -(-f.k // BK), "tall": tall, "across": across, "group": config["GROUP"]}
    for name, mode, rows in (("a", f.modes[0], BM // beside), ("b", f.modes[1], wide // down)):
        args[f"{name}_map"] = boxes(name, p[name], BK if mode & ACROSS else rows)
    args["out_map"] = _out_map()
    kernel = instance("hgemm", DTYPES[p["a"].dtype].cuda, wide, down, beside, *f.modes, config["STAGES"])
    blocks = down * beside
    return [
        Launch(
            kernel, (blocks * min(p.device.resident(blocks), tall * across),), args, types=("i32",) * 4 + ("map",) * 3, block=(288,),
            cluster=(blocks,), shared=config["STAGES"] * (BM + wide) * LINE + STAGING,
        )
    ]


def explains(p: Problem, config: Mapping[str, Any], head: Head) -> str:
    f = facts_of(p)
    wide, down, beside = config["BN"], config["CM"], config["CN"]
    return (
        f"tile {BM} x {wide}, {config['STAGES']} slices of {BK} of K in flight; clusters of {down} x {beside} tiles share what they load; "
        f"predicted {_seconds(f, wide, down, beside) * 1e6:.1f} µs"
    )
