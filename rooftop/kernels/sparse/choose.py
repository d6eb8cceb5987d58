"""Which kernels multiply by sparse matrices: wgmma where the architecture has it and its tiles are filled. Measured on an H200."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem

LONG = 128  # elements of a row, on average: from here on one warp a row is not bound by latency


def spmm_24(p: Problem, named: str = "") -> Chosen | str:
    """Few columns are bound by the memory of S: streamed, unless the narrowest tile of wgmma is predicted to be faster."""
    from rooftop.kernels.sparse import spmm_24__cuda_sm90 as many
    from rooftop.kernels.sparse import spmm_24__few__cuda_sm80 as few

    order = [("spmm_24__cuda_sm90", "sparse wgmma"), ("spmm_24__mma__cuda_sm80", "sparse mma")]
    thin = p["b"].shape[1] <= few.FEW and p["out"].numel * p["b"].shape[0] > 0
    if not named and thin and (p.device.arch < 90 or few.seconds(p) <= many.seconds(p)):
        order.insert(0, ("spmm_24__few__cuda_sm80", "few columns: S streams through shared memory"))
    return in_order(p, named, order)


def scaled_spmm_24(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, (("scaled_spmm_24__cuda_sm90", "sparse wgmma"), ("scaled_spmm_24__torch", "a dense product")))


def spmm_bsr(p: Problem, named: str = "") -> Chosen | str:
    """Triton for blocks of at most 16 columns, each of which needs its own rows of b, and for blocks of 32 with at most 64 columns of b:
    half of the narrowest wgmma tile would be empty (Triton is 1.3 times as fast there)."""
    small = min(p["values"].shape[1:])
    kernels = ("spmm_bsr__cuda_sm90", "wgmma over gathered rows of b"), ("spmm_bsr__triton", "blocks too small for a wgmma tile")
    return in_order(p, named, kernels if small > 32 or (small > 16 and p["b"].shape[1] > 64) else kernels[::-1])


def spmm_csr(p: Problem, named: str = "") -> Chosen | str:
    """For one column, if no row is long: the merge of rows and elements balances rows of different lengths exactly."""
    rows = p["out"].shape[0]
    kernels = ("spmm_csr__cuda_sm80", "a team of lanes a row"), (
        "spmm_csr__merge__cuda_sm80", "one column: equal shares of rows and elements"
    )
    return in_order(p, named, kernels[::-1] if p["out"].shape[1] == 1 and p["values"].numel < LONG * rows else kernels)
