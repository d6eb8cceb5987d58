"""The loss from the accumulators of a product that writes no logits; then, by slices of the classes, logits again and all three products of a backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem, Step, View
from rooftop.kernels.loss._linear_plan import copied, count, dense, in_tiles, matrix, padded, product, sizes, total, turned
from rooftop.kernels.loss._linear_rungs import gradient_of, keep, plain

IDEA = (
    "The product's epilogue writes a maximum and a sum per row of each tile, from rounded logits, and no logits. With lse known, dW is computed by slices of "
    "the classes, each complete after one product. A slice's logits are stored in the memory of later slices of dW: nothing of their size is allocated."
)
PREDICT = {"speedup": 0.75}
LIMIT = "Four products, one of them Triton's and not cuBLAS's. Its memory is dW and three times dX: the choice if memory is scarce."


@triton.jit
def _tiles(x, w, target, parts, state, N, V, H, tiles, ignore, M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Maximum and sum of each row of one tile of the logits -> parts[tile, row, 2]; the target's logit where it is in the tile."""
    high = tl.cdiv(N, M_TILE)
    group = tl.program_id(0) // (GROUP * tiles)  # GROUP tiles of tokens share the weight's tiles in the L2
    height = tl.minimum(high - group * GROUP, GROUP)
    of = tl.program_id(0) % (GROUP * tiles)
    row = (group * GROUP + of % height) * M_TILE + tl.arange(0, M_TILE)
    tile = of // height
    column = tile * N_TILE + tl.arange(0, N_TILE)
    k = tl.arange(0, K_TILE)
    a = x + row.to(tl.int64)[:, None] * H + k[None, :]
    b = w + column.to(tl.int64)[None, :] * H + k[:, None]
    z = tl.zeros((M_TILE, N_TILE), tl.float32)
    for at in range(0, H, K_TILE):
        left = tl.load(a + at, (row < N)[:, None] & (at + k < H)[None, :], other=0)
        right = tl.load(b + at, (column < V)[None, :] & (at + k < H)[:, None], other=0)
        z = tl.dot(left, right, z)
    z = z.to(x.dtype.element_ty).to(tl.float32)  # as they will be when they are made again: the sum must be of the same exponentials
    z = tl.where((column < V)[None, :], z, -float("inf"))
    most = tl.maximum(tl.max(z, 1), -3.4028234663852886e38)
    sum_ = tl.sum(tl.exp(z - most[:, None]), 1)
    to = parts + 2 * (tile.to(tl.int64) * N + row)
    tl.store(to, most, row < N)
    tl.store(to + 1, sum_, row < N)
    t = tl.load(target + row, row < N, other=ignore)
    picked = tl.sum(tl.where(column[None, :] == t[:, None], z, 0), 1)
    tl.store(state + 4 * row.to(tl.int64) + 3, picked, (row < N) & (t >= tile * N_TILE) & (t < tile * N_TILE + N_TILE))


@triton.jit
def _folded(parts, target, state, losses, N, V, tiles, ignore, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row's tiles together."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    at = parts + 2 * (tile.to(tl.int64) * N + row)
    m = tl.load(at, tile < tiles, other=-3.4028234663852886e38)
    most = tl.max(m, 0)
    sum_ = tl.sum(tl.load(at + 1, tile < tiles, other=0) * tl.exp(m - most), 0)
    t = tl.load(target + row)
    live = t != ignore
    known = live & (t >= 0) & (t < V)
    picked = tl.load(state + 4 * row + 3, known, other=0)
    keep(state, losses, row, most, sum_, picked, live, known)


@dataclass(frozen=True)
class Config:
    """A tile of the product: tokens, classes, features; warps and stages of it. `last`: classes of a slice whose logits have memory of their own."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    last: int


def supports(p: Problem) -> str | None:
    return plain(p) or (None if p["weight"].shape[0] <= 1 << 20 else "takes 2**20 classes at most")


def choose(p: Problem) -> Config:
    rows, _, columns = sizes(p)
    last = min(columns, max(64, in_tiles((60 << 20) // (rows * p["x"].itemsize))))
    m, n, stages = (128, 256, 3) if p.device.arch >= 90 else (128, 128, 3)
    return Config(m if rows >= m else 16, n if columns >= n else 16, 64, 8 if columns >= n and rows >= m else 1, stages, last)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    rows, width, columns = sizes(p)
    tiles = -(-columns // config.n)
    found = {"losses": Meta((rows,), "f32"), "parts": Meta((tiles, rows, 2), "f32"), "x_sum": Meta((rows, width), "f32")}
    return {**found, "chunk": Meta((rows, padded(config.last)), p["x"].dtype)}


def steps(p: Problem, config: Config) -> Sequence[Step]:
    rows, width, columns = sizes(p)
    tiles = -(-columns // config.n)
    same = {"target": "target", "state": "state", "parts": "parts", "N": rows, "V": columns, "tiles": tiles, "ignore": int(p.option("ignore_index"))}
    shape = {"M_TILE": config.m, "N_TILE": config.n, "K_TILE": config.k, "GROUP": 8}
    found: list[Step] = [count(p)]
    found.append(Launch(_tiles, (-(-rows // config.m) * tiles,), {**same, "x": "x", "w": "weight", "H": width, **shape}, config.warps, config.stages))
    found.append(Launch(_folded, (rows,), {**same, "losses": "losses", "TILES": max(2, 1 << (tiles - 1).bit_length())}, 4))
    first = 0
    while first < columns:
        within = in_tiles((columns - first) * width // (rows + width))
        inside = config.last < within < columns - first and (columns * width - rows * within) // 64 * 64 >= (first + within) * width
        each = within if inside else min(config.last, columns - first)
        offset = (columns * width - rows * each) // 64 * 64 if inside else 0
        chunk = View("unit_weight" if inside else "chunk", (rows, each), (each if inside else padded(config.last), 1), offset)
        x, weight = matrix(p, "x"), matrix(p, "weight", first, each)
        found += [product(chunk, x, turned(weight)), gradient_of(p, chunk, 0, first)]
        found += [product(dense("x_sum", rows, width), chunk, weight, add=first > 0), product(dense("unit_weight", each, width, first), turned(chunk), x)]
        first += each
    return [*found, copied(dense("unit_x", rows, width), dense("x_sum", rows, width)), total(p, "losses")]
