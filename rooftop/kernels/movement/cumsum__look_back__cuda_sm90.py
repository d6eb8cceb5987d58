"""Which rows cumsum__look_back__cuda_sm90.cu takes, and its launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, typed
from rooftop.kernels.movement import _cumsum_rows
from rooftop.kernels.movement._cumsum_rows import TILE

WARPS = 14  # 8 write, 4 load, 1 takes and publishes, 1 waits
CLEAR = 1024


def _tiles(p: Problem) -> int:
    """Tiles of a row, wherever it starts."""
    return -(-_cumsum_rows.packs(p) // TILE)


def supports(p: Problem, head: Head) -> str | None:
    return _cumsum_rows.refuses(p) or _cumsum_rows.too_large(p, _tiles(p))


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """Half of the slots are for tiles that are loaded: 96 KiB of a multiprocessor, which it reads in 6 µs; half for those that wait for the
    sum before them. The words of a group are read by one warp, 16 a lane in flight."""
    return {"slots": 6, "lead": 3, "group": 512}


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return [{"slots": s, "lead": n, "group": g} for s, n in ((6, 3), (6, 4), (7, 4), (4, 2)) for g in (512, 256)]


def _words(p: Problem, config: Mapping[str, Any]) -> int:
    tiles = _tiles(p)
    return 1 + p["x"].shape[0] * (tiles + -(-tiles // int(config["group"])))


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return {"words": Meta((_words(p, config),), "i64")}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, out = p["x"], p["out"]
    tiles, words, slots = _tiles(p), _words(p, config), int(config["slots"])
    args: dict[str, tuple[Any, str]] = {
        "x": ("x", "ptr"), "out": ("out", "ptr"), "words": ("words", "ptr"), "O": (x.shape[0], "i32"), "N": (x.shape[1], "i32"),
        "xo": (x.strides[0], "i64"), "oo": (out.strides[0], "i64"), "tiles": (tiles, "i32"),
    }
    back, even = (str(bool(v)).lower() for v in (p.option("reverse"), _cumsum_rows.even(p)))
    return [
        Launch("clear", (-(-words // CLEAR),), {"words": "words", "count": words}, types=("ptr", "i64"), block=(CLEAR,), pdl=True),
        Launch(
            f"chain<{DTYPES[x.dtype].cuda}, {slots}, {config['lead']}, {config['group']}, {back}, {even}>",
            (min(p.device.sms, x.shape[0] * tiles),), **typed(args, value_first=True),
            block=(32 * WARPS,), shared=slots * TILE * 16, pdl=True,
        ),
    ]
