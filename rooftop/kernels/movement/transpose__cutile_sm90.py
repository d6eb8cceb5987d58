"""out[.., j, i] = x[.., i, j] in cuTile, of words of 1 to 8 bytes. Contract: rooftop/ops/transpose.py

One block per tile; the compiler transposes it through shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Meta, Problem, View, collapse, pow2
from rooftop.kernels._device.cutile import ct


def exchange(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], TURNED: ct.Constant[bool], TMA: ct.Constant[bool]):
    """x [B, R, C]; out [B, C, R] where TURNED, else [B, R, C] with other strides."""
    across = ct.num_tiles(x, axis=2, shape=(1, ROWS, COLUMNS))
    down = ct.num_tiles(x, axis=1, shape=(1, ROWS, COLUMNS))
    pid = ct.bid(0)
    batch, i, j = pid // (across * down), pid % down, (pid // down) % across
    tile = ct.load(x, (batch, i, j), (1, ROWS, COLUMNS), allow_tma=TMA)
    if TURNED:
        ct.store(out, (batch, j, i), ct.permute(tile, (0, 2, 1)), allow_tma=TMA)
    else:
        ct.store(out, (batch, i, j), tile, allow_tma=TMA)


@dataclass(frozen=True)
class Config:
    """Tiles of `rows` × `columns`, `warps` warps."""

    rows: int
    columns: int
    warps: int
    tma: bool = False


def _batch(m: Meta) -> tuple[int, int] | None:
    """The three batch dimensions as one (extent, stride)."""
    return collapse(m.shape[:3], m.strides[:3])


def supports(p: Problem) -> str | None:
    x, out = p["x"], p["out"]
    if x.numel == 0:
        return "there is nothing to move"
    if _batch(x) is None or _batch(out) is None:
        return f"takes one batch dimension; given {x.shape[:3]}, which do not lie as one"
    rows, columns = x.shape[3:]
    config = choose(p)
    if max(rows, columns) >= 2**31 or x.numel // (rows * columns) * -(-rows // config.rows) * -(-columns // config.columns) >= 2**31:
        return "more rows, columns or blocks than one launch may have"
    return None


def _turned(p: Problem) -> bool:
    return p["out"].strides[4] != 1


def choose(p: Problem) -> Config:
    rows, columns = p["x"].shape[3:]
    if not _turned(p):
        wide = min(pow2(columns), 2048)
        return Config(min(pow2(rows), max(1, 4096 // wide)), wide, 4)
    size = 32768 // p["x"].itemsize  # elements of a tile of 32 KiB, the fastest on an H200
    across = min(pow2(columns), {1: 256, 2: 128, 4: 128, 8: 64}[p["x"].itemsize])
    down = min(pow2(rows), size // across)
    return Config(down, across, 8 if down * across == size else 4)


def configs(p: Problem) -> list[Config]:
    return [
        Config(r, c, w, tma) for r,
        c in ((64, 64), (128, 64), (64, 128), (128, 128), (32, 64), (32, 32)) for w in (4, 8) for tma in (False, True)
    ]


def launches(p: Problem, config: Config) -> list[Launch]:
    x, out = p["x"], p["out"]
    rows, columns = x.shape[3:]
    (batch, x_step), (_, out_step) = _batch(x) or (1, 1), _batch(out) or (1, 1)
    turned = _turned(p)
    shape, strides = (batch, rows, columns), (out_step, *out.strides[3:])
    if turned:
        shape, strides = (batch, columns, rows), (out_step, out.strides[4], out.strides[3])
    args = {
        "x": View("x", (batch, rows, columns), (x_step, *x.strides[3:])), "out": View("out", shape, strides), "ROWS": config.rows,
        "COLUMNS": config.columns, "TURNED": turned, "TMA": config.tma,
    }
    tiles = batch * -(-rows // config.rows) * -(-columns // config.columns)
    return [Launch(exchange, (tiles,), args, options={"num_worker_warps": config.warps})]
