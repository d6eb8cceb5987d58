"""As the rung before, with 128 x 256 tiles and eight warps that compute."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Meta, Problem, View
from rooftop.kernels._device.cutile import ct

IDEA = "A tile of 128 x 256 loads a quarter fewer bytes per FMA. Its sums are 256 registers per thread of four warps, so num_worker_warps is set to eight."
PREDICT = {"speedup": 1.05}
LIMIT = "One block per multiprocessor: while it stores its tile, nothing is multiplied."


GROUP = 8  # tile rows


def _place(pid, down, across):
    """Row and column of a tile: `GROUP` rows at a time, column by column."""
    group = pid // (GROUP * across)
    first = group * GROUP
    size = min(down - first, GROUP)
    return first + (pid % (GROUP * across)) % size, (pid % (GROUP * across)) // size


def product(
    a, b, out, depth, M: ct.Constant[int], N: ct.Constant[int], K: ct.Constant[int], A_TURNED: ct.Constant[bool], B_TURNED: ct.Constant[bool],
):
    i, j = _place(ct.bid(0), ct.num_tiles(out, axis=0, shape=(M, N)), ct.num_tiles(out, axis=1, shape=(M, N)))
    sum = ct.zeros((M, N), ct.float32)
    for k in range(ct.cdiv(depth, K)):
        if A_TURNED:
            tile_a = ct.load(a, (i, k), (M, K), order="F", padding_mode=ct.PaddingMode.ZERO)
        else:
            tile_a = ct.load(a, (i, k), (M, K), padding_mode=ct.PaddingMode.ZERO)
        if B_TURNED:
            tile_b = ct.load(b, (k, j), (K, N), order="F", padding_mode=ct.PaddingMode.ZERO)
        else:
            tile_b = ct.load(b, (k, j), (K, N), padding_mode=ct.PaddingMode.ZERO)
        sum = ct.mma(tile_a, tile_b, sum)
    ct.store(out, (i, j), sum.astype(out.dtype))


@dataclass(frozen=True)
class Config:
    M: int = 128
    N: int = 256
    K: int = 64
    warps: int = 8


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
    return [Launch(product, (-(-rows // config.M) * -(-columns // config.N),), args, options={"num_worker_warps": config.warps})]
