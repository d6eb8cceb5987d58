"""mmt with descriptors made on the host. Contract: ops/mmt.py"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Descriptor, Launch, Problem
from rooftop.core.tensor_maps import not_copied

DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"]}


@triton.jit
def _mmt(a, b, c, K, M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr):
    row, column = tl.program_id(1) * M_TILE, tl.program_id(0) * N_TILE
    sums = tl.zeros((M_TILE, N_TILE), tl.float32)
    for k in range(0, K, K_TILE):
        sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
    c.store([row, column], sums.to(tl.bfloat16))


def supports(p: Problem) -> str | None:
    for name in "abc":
        if reason := not_copied(p[name], stored=name == "c"):
            return f"{name}: {reason}"
    return None


def choose(p: Problem) -> dict[str, Any]:
    return {"rows": 64, "columns": 64, "depth": 64}


def launches(p: Problem, config: dict[str, Any]) -> list[Launch]:
    m, n, k = config["rows"], config["columns"], config["depth"]
    rows, columns = p["c"].shape
    args = {
        "a": Descriptor("a", (m, k)), "b": Descriptor("b", (n, k)), "c": Descriptor("c", (m, n)), "K": p["a"].shape[1], "M_TILE": m, "N_TILE": n, "K_TILE": k,
    }
    return [Launch(_mmt, (-(-columns // n), -(-rows // m)), args, warps=4, stages=3, options={"maxnreg": 168})]
