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

BM = 128  # rows of a tile, if the kernel's name has none
TILES = {128: (256, 192, 160, 128, 64), 192: (192, 160, 128), 256: (192, 160, 128)}  # rows and columns: registers hold the sums
CLUSTERS = ((2, 1), (1, 2), (2, 2))  # blocks down and across
STAGING = 16 * 1024  # bytes of the result on its way out, of a warp group
STRADDLING = 34.0  # bytes a cycle that a block asks of the L2 where rows are no multiple of 128 bytes apart
FILLED = 3.7  # cycles that TMA takes to fill a row outside the tensor with zeros
HANDSHAKE = 40.0  # cycles of a slice besides
SHALLOW = 40.0  # the same that 3 stages do not hide
TOGETHER = 8.0  # products and loads of a slice combine as the norm of this order
FIELDS = ("BN", "CM", "CN", "STAGES", "GROUP", "BM")
Row = tuple[float, int, int, int, int, int, int]  # predicted seconds and the fields, STAGES and GROUP negative: of equals the most


def _out_map(wide: int = 64) -> TensorMap:
    """Of tiles of `wide` columns."""
    piece = 32 if wide % 64 else 64
    return TensorMap("out", (64, piece), swizzle=2 * piece)


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


def _groups(high: int) -> int:
    """Warp groups that multiply."""
    return 3 if high == 192 else 2


def _threads(high: int) -> int:
    return 384 if high == 256 else 128 * _groups(high) + 32


def _slice_bytes(f: Facts, high: int, wide: int) -> int:
    """ACROSS, b comes in boxes of 64 columns."""
    return (high + (-(-wide // 64) * 64 if f.modes[1] & ACROSS else wide)) * LINE


def _stages(f: Facts, high: int, wide: int) -> int:
    return min(8, (_model.SHARED - 2048 - _groups(high) * STAGING) // _slice_bytes(f, high, wide))


def _seconds(f: Facts, high: int, wide: int, down: int, beside: int) -> float:
    tall, across = -(-f.m // (high * down)), -(-f.n // (wide * beside))
    resident = f.resident[2 if down * beside == 4 else 1]
    turns, slices = -(-tall * across // resident), -(-f.k // BK)
    a_rate, b_rate = (STRADDLING if cut else _model.FROM_L2 for cut in f.straddles)
    asked = LINE * (high / beside / a_rate + wide / down / b_rate)
    least = max(high * wide * BK / _model.FMAS, LINE * (high + high // 64 * wide) / _model.SHARED_RATE, LINE * (high + wide) / _model.FROM_L2)
    step = (least**TOGETHER + asked**TOGETHER) ** (1 / TOGETHER)
    # in the last row and column of tiles TMA also fills with zeros what lies outside
    below = max(0.0, asked + FILLED * min(high, tall * down * high - f.m) / beside - max(least, asked))
    right = max(0.0, asked + FILLED * min(wide, across * beside * wide - f.n) / down - max(least, asked))
    step += HANDSHAKE + (SHALLOW if _stages(f, high, wide) == 3 else 0)
    clocks = _model.START + turns * (slices * (step + below / tall + right / across) + _model.EPILOGUE + high * wide * 2 / _model.STORED)
    most = min(tall * across, resident) * down * beside * _model.ONE
    memory = 2.0 * (f.m * f.k + f.k * f.n) / min(_model.MEMORY, most) + 2.0 * f.m * f.n / _model.WRITTEN
    return max(clocks / _model.CLOCK, _model.START / _model.CLOCK + memory)


@lru_cache(maxsize=256)
def _ranked(f: Facts) -> tuple[Row, ...]:
    found = []
    for high, widths in TILES.items():
        for wide in widths:
            stages = _stages(f, high, wide)
            group = max(1, round((f.resident[1] * 2 * high * wide) ** 0.5 / high))
            for down, beside in CLUSTERS:
                # a share is whole boxes of 64 rows or columns
                if (f.modes[1] & ACROSS and -(-wide // 64) % down) or (f.modes[0] & ACROSS and high // 64 % beside):
                    continue
                found.append((_seconds(f, high, wide, down, beside), -wide, down * beside, beside, -stages, -max(1, group // down), high))
    return tuple(sorted(found))


def _fields(row: Row) -> dict[str, int]:
    _, wide, blocks, beside, stages, group, high = row
    return dict(zip(FIELDS, (-wide, blocks // beside, beside, -stages, -group, high), strict=True))


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
    wide, down, beside, high = (config[n] for n in ("BN", "CM", "CN", "BM"))
    tall, across = -(-f.m // (high * down)), -(-f.n // (wide * beside))
    args: dict[str, Any] = {"slices": -(-f.k // BK), "tall": tall, "across": across, "group": config["GROUP"]}
    for name, mode, rows in (("a", f.modes[0], high // beside), ("b", f.modes[1], wide // down)):
        args[f"{name}_map"] = boxes(name, p[name], BK if mode & ACROSS else rows)
    args["out_map"] = _out_map(wide)
    kernel = instance("hgemm", DTYPES[p["a"].dtype].cuda, wide, down, beside, *f.modes, config["STAGES"], *((high,) if high != BM else ()))
    blocks = down * beside
    return [
        Launch(
            kernel, (blocks * min(p.device.resident(blocks), tall * across),), args, types=("i32",) * 4 + ("map",) * 3, block=(_threads(high),),
            cluster=(blocks,), shared=config["STAGES"] * _slice_bytes(f, high, wide) + _groups(high) * STAGING,
        )
    ]


def explains(p: Problem, config: Mapping[str, Any], head: Head) -> str:
    f = facts_of(p)
    wide, down, beside, high = config["BN"], config["CM"], config["CN"], config["BM"]
    return (
        f"tile {high} x {wide}, {config['STAGES']} slices of {BK} of K in flight; clusters of {down} x {beside} tiles share what they load; "
        f"predicted {_seconds(f, high, wide, down, beside) * 1e6:.1f} µs"
    )
