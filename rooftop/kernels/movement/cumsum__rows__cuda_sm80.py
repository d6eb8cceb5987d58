"""How cumsum__rows__cuda_sm80.cu divides rows into tiles, and which rows it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, pow2, typed
from rooftop.kernels.movement import _cumsum_rows
from rooftop.kernels.movement._cumsum_rows import THREADS, WHOLE

PACKS = 8  # of a thread at most: 128 bytes of loads in flight, with room for 768 threads in the registers of a multiprocessor
GROUP = 128  # tiles of a group: 4 MiB, which take 2 µs to read; a running sum passes from one group to the next in about 1 µs


def supports(p: Problem, head: Head) -> str | None:
    return _cumsum_rows.refuses(p) or _cumsum_rows.too_large(p, _tiles(p, choose(p, head)))


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """The threads of a row read at least a line together, if the row has one; a row of more than 32 KiB is divided into tiles of equal
    size."""
    packs = _cumsum_rows.packs(p)
    most = WHOLE[p["x"].itemsize]
    if packs <= THREADS * most:
        team = min(8, pow2(packs))
        while team * most < packs:
            team *= 2
        return {"packs": -(-packs // team), "team": team, "whole": 1}
    tiles = max(2, -(-packs // (THREADS * PACKS)))
    return {"packs": -(-packs // (tiles * THREADS)), "team": THREADS, "whole": 0}


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    """The same with fewer packs a thread, in larger teams or smaller tiles."""
    first, packs = choose(p, head), _cumsum_rows.packs(p)
    found = [first]
    for each in range(2, int(first["packs"])):
        team = int(first["team"])
        while team < THREADS and team * each < packs:
            team *= 2
        found.append({"packs": each, "team": team, "whole": int(team * each >= packs)})
    return [c for c in found if c["whole"] or c["team"] == THREADS]


def _tiles(p: Problem, config: Mapping[str, Any]) -> int:
    return -(-_cumsum_rows.packs(p) // (int(config["team"]) * int(config["packs"])))


def _words(p: Problem, config: Mapping[str, Any]) -> int:
    tiles = _tiles(p, config)
    return 0 if config["whole"] else 1 + p["x"].shape[0] * (tiles + -(-tiles // GROUP))


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return {"words": Meta((n,), "i64")} if (n := _words(p, config)) else {}


def zeroed(p: Problem, config: Mapping[str, Any], head: Head) -> tuple[str, ...]:
    return ("words",) if _words(p, config) else ()


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, out = p["x"], p["out"]
    whole, team = bool(config["whole"]), int(config["team"])
    tiles = _tiles(p, config)
    args: dict[str, tuple[Any, str]] = {
        "x": ("x", "ptr"), "out": ("out", "ptr"), "words": (None if whole else "words", "ptr"), "O": (x.shape[0], "i64"),
        "N": (x.shape[1], "i32"), "xo": (x.strides[0], "i64"), "oo": (out.strides[0], "i64"), "tiles": (tiles, "i32"),
    }
    back, even, one = (str(bool(v)).lower() for v in (p.option("reverse"), _cumsum_rows.even(p), whole))
    name = f"rows<{DTYPES[x.dtype].cuda}, {config['packs']}, {team}, {back}, {even}, {one}, {GROUP}>"
    blocks = -(-x.shape[0] // (THREADS // team)) if whole else x.shape[0] * tiles
    return [
        Launch(
            name, (blocks,), **typed(args, value_first=True), block=(THREADS,),
            pdl=p.device.arch >= 90
        )
    ]
