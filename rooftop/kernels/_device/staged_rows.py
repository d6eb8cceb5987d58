"""How short rows that are adjacent in memory are divided among blocks that copy many of them to shared memory at once (norm_staged.cuh,
softmax__staged__cuda_sm80.cu).

    lanes   of a row: 12 or 16 elements a lane at most; with more, registers do not allow four resident blocks of 256 threads
    rows    of a block: about 24 KiB, so that four blocks have 96 KiB in flight; a whole number of rows for each team; and a few blocks a multiprocessor"""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Meta, Problem

THREADS = 256
STRETCH = 24 * 1024  # bytes of a block


def most(p: Problem) -> int:
    """The most elements of a row that a lane can hold, with those of weight and bias, in 64 registers."""
    return 12 if p.get("weight") is not None and p.get("bias") is not None else 16


def refuses(p: Problem, names: tuple[str, ...]) -> str | None:
    """Why p["x"] is not supported, or None. `names`: the row tensors."""
    x = p["x"]
    rows, columns = x.shape[:2]
    if not x.numel:
        return "there is nothing to compute"
    if columns > 32 * most(p):
        return f"takes rows of up to {32 * most(p)} elements; given {columns}"
    if len(x.shape) == 3 and x.shape[2] != 1:
        return "the dimension must be the last"
    if rows >= 2**31 - 2**16:
        return f"rows are counted in 32 bits; given {rows}"
    if any(not _one_after_another(m) for name in names if (m := p.get(name)) is not None):
        return "rows must lie one after another, the first on 16 bytes"
    return None


def _one_after_another(m: Meta) -> bool:
    rows, columns = m.shape[:2]
    return m.align >= 16 and (columns == 1 or m.strides[1] == 1) and (rows == 1 or m.strides[0] == columns)


def config(p: Problem, lanes: int, stretch: int = STRETCH) -> dict[str, Any]:
    x = p["x"]
    rows, columns = x.shape[:2]
    teams = THREADS // lanes
    round_ = teams * columns * x.itemsize
    rounds = max(1, min(stretch // round_, -(-rows // (4 * p.device.sms * teams))))
    return {"lanes": lanes, "each": -(-columns // lanes), "rows": teams * rounds}


def choose(p: Problem) -> dict[str, Any]:
    """As few lanes as possible: each step of a reduction over lanes costs all of them two instructions."""
    columns = p["x"].shape[1]
    return config(p, next(lanes for lanes in (4, 8, 16, 32) if columns <= most(p) * lanes))


def configs(p: Problem) -> list[dict[str, Any]]:
    columns = p["x"].shape[1]
    found = [choose(p)]
    found += [config(p, lanes, stretch) for lanes in (4, 8, 16, 32) if lanes <= columns <= most(p) * lanes for stretch in (16 * 1024, STRETCH, 32 * 1024)]
    return [c for k, c in enumerate(found) if c not in found[:k]]


