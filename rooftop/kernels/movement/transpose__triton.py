"""out[.., j, i] = x[.., i, j] in Triton, of words of 1 to 8 bytes. Contract: rooftop/ops/transpose.py

One program per tile; the compiler transposes it through shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem, pow2


@triton.jit
def _exchange(  # type: ignore[no-untyped-def]
    x, out, R, C, down, across, B2, B3, x1, x2, x3, xr, xc, o1, o2, o3, orow, oc, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Strides of the batch dimensions, rows and columns of x and out, in elements."""
    pid = tl.program_id(0).to(tl.int64)
    batch, tile = pid // (down * across), pid % (down * across)
    i, j, k = batch // (B2 * B3), batch // B3 % B2, batch % B3
    row = (tile % down * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tile // down * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < R) & (column < C)
    words = tl.load(x + i * x1 + j * x2 + k * x3 + row * xr + column * xc, inside)
    tl.store(out + i * o1 + j * o2 + k * o3 + row * orow + column * oc, words, inside)


@dataclass(frozen=True)
class Config:
    """Tiles of `rows` × `columns`, `warps` warps."""

    rows: int
    columns: int
    warps: int


def supports(p: Problem) -> str | None:
    x = p["x"]
    if x.numel == 0:
        return "there is nothing to move"
    config = choose(p)
    rows, columns = x.shape[3:]
    if x.numel // (rows * columns) * -(-rows // config.rows) * -(-columns // config.columns) >= 2**31:
        return "more programs than one launch may have"
    return None


def choose(p: Problem) -> Config:
    rows, columns = p["x"].shape[3:]
    size = 8192 // p["x"].itemsize
    if p["out"].strides[4] == 1:
        across = min(pow2(columns), size)
        return Config(min(pow2(rows), max(1, size // across)), across, 4)
    across = min(pow2(columns), {1: 128, 2: 64, 4: 32, 8: 32}[p["x"].itemsize])
    return Config(min(pow2(rows), size // across), across, 4)


def configs(p: Problem) -> list[Config]:
    return [Config(r, c, w) for r, c in ((32, 32), (64, 32), (32, 64), (64, 64), (128, 64), (64, 128)) for w in (4, 8)]


def launches(p: Problem, config: Config) -> list[Launch]:
    x, out = p["x"], p["out"]
    rows, columns = x.shape[3:]
    down, across = -(-rows // config.rows), -(-columns // config.columns)
    args = {"x": "x", "out": "out", "R": rows, "C": columns, "down": down, "across": across, "B2": x.shape[1], "B3": x.shape[2]}
    args |= dict(zip(("x1", "x2", "x3", "xr", "xc"), x.strides, strict=True)) | dict(
        zip(("o1", "o2", "o3", "orow", "oc"), out.strides, strict=True)
    )
    args |= {"ROWS": config.rows, "COLUMNS": config.columns}
    return [Launch(_exchange, (x.numel // (rows * columns) * down * across,), args, config.warps)]
