"""out = a b in cuTile, a tile of 128 x 128 a block, by ordinary loads."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Meta, Problem, View
from rooftop.kernels._device.cutile import ct

IDEA = "A block computes one tile of the result: it loads slices of a and b and passes them to ct.mma. No TMA."
PREDICT = {"spills": 0}
LIMIT = "Every element passes through registers on its way to shared memory, and concurrent blocks share few operands."


def product(
    a, b, out, depth, M: ct.Constant[int], N: ct.Constant[int], K: ct.Constant[int], A_TURNED: ct.Constant[bool], B_TURNED: ct.Constant[bool],
):
    across = ct.num_tiles(out, axis=1, shape=(M, N))
    i, j = ct.bid(0) // across, ct.bid(0) % across
    sum = ct.zeros((M, N), ct.float32)
    for k in range(ct.cdiv(depth, K)):
        if A_TURNED:
            tile_a = ct.load(a, (i, k), (M, K), order="F", padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
        else:
            tile_a = ct.load(a, (i, k), (M, K), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
        if B_TURNED:
            tile_b = ct.load(b, (k, j), (K, N), order="F", padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
        else:
            tile_b = ct.load(b, (k, j), (K, N), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
        sum = ct.mma(tile_a, tile_b, sum)
    ct.store(out, (i, j), sum.astype(out.dtype), allow_tma=False)


@dataclass(frozen=True)
class Config:
    M: int = 128
    N: int = 128
    K: int = 64


def supports(p: Problem) -> str | None:
    if len(p["a"].shape) != 2 or p["a"].dtype == "f32":
        return "this ladder takes one product of operands of 16 bits"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this ladder multiplies and does nothing after"
    if 0 in (*p["a"].shape, *p["out"].shape):
        return "there is nothing to compute"
    return None


def choose(p: Problem) -> Config:
    return Config()


def _matrix(name: str, m: Meta) -> tuple[View, bool]:
    """The operand as rows of neighbours, and whether those are its columns."""
    turned = m.shape[1] > 1 and m.strides[1] != 1
    return View(name, m.shape[::-1] if turned else m.shape, m.strides[::-1] if turned else m.strides), turned


def launches(p: Problem, config: Config) -> list[Launch]:
    (a, a_turned), (b, b_turned) = _matrix("a", p["a"]), _matrix("b", p["b"])
    args = {
        "a": a, "b": b, "out": "out", "depth": p["a"].shape[1], "M": config.M, "N": config.N, "K": config.K, "A_TURNED": a_turned, "B_TURNED": b_turned,
    }
    rows, columns = p["out"].shape
    return [Launch(product, (-(-rows // config.M) * -(-columns // config.N),), args)]
