"""Which kernel computes a loss: by how a row lies in registers, shared memory or a stretch of many rows. Measured on an H100 and an
H200."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem

STAGED = 4 * 24 * 1024  # bytes in flight to a multiprocessor: four blocks with a stretch each; with fewer rows the latency decides
STRETCHED = 1 << 25  # bytes of all logits from which stretches are faster in the backward
IN_A_WARP = 32 * 4  # vectors of a row that a warp holds in the backward
ROWS_OF_BLOCK = 8  # of a block of the kernel that holds rows in warps
VECTOR = 8  # elements of 16 bits


def cross_entropy(p: Problem, named: str = "") -> Chosen | str:
    """Stretches of many rows: 0.79 to 0.91 of the read at 64 to 1088 classes. Rows in registers reach 0.28 to 0.36 at 80 to 369 16-bit
    classes and 0.75 to 0.80 at 3 to 4 KiB; one block a row 0.71 to 0.75 at 5 KiB: all bound by their instructions a row. With few rows,
    rows in registers are 18 times as fast as one block a row at 64 classes, 1.8 times at 1000 and 1.02 at 2048. Many soft-capped logits are
    faster where their tanh
    is approximated: one block a row."""
    x = p["input"]
    rows, classes = x.shape
    staged, in_registers, block = (
        ("cross_entropy__staged__cuda_sm80", "short rows, many a stretch of shared memory"),
        ("cross_entropy__cuda_sm80", "a row in a warp's registers"), ("cross_entropy__cuda_sm90", "a block a row"),
    )
    order = []
    if rows * classes * x.itemsize >= STAGED * p.device.sms:
        order.append(staged)
    idle = rows < ROWS_OF_BLOCK * p.device.sms and classes * x.itemsize >= IN_A_WARP * 8  # two vectors a lane, and blocks for a part of the card
    if not idle and not (float(p.option("softcap")) and classes >= 1024):
        order.append(in_registers)
    order += [block, ("cross_entropy__triton", "a program a row"), in_registers, staged]
    return in_order(p, named, order)


def cross_entropy_bwd(p: Problem, named: str = "") -> Chosen | str:
    """Stretches: 0.96 of a copy with 144 and with 1200 classes; other lengths are predicted, by the same instructions a class or fewer. The
    other kernels reach 0.45 to 0.70 where rows of up to 4 KiB are not whole vectors, 0.55 with 2473 classes and 0.81 to 0.85 with 3200 to
    13260, where their estimates are 25 to 39 instructions a class; and 0.88 or more at 22 to 24, which are the estimates of 128 and of
    multiples of 2048."""
    x = p["input"]
    classes = x.shape[1]
    stretch, in_registers = (
        "cross_entropy_bwd__stretch__cuda_sm80", "stretches of any rows"
    ), ("cross_entropy_bwd__cuda_sm80", "a row in a warp's registers")
    order = []
    if x.nbytes >= STRETCHED and (classes % VECTOR or _instructions(classes) > (26 if classes <= 1024 else 24.5)):
        order.append(stretch)
    if max(1, classes * x.itemsize // 16) <= IN_A_WARP:
        order.append(in_registers)
    return in_order(p, named, (*order, ("cross_entropy_bwd__triton", "programs of 2048 classes"), in_registers, stretch))


def _instructions(classes: int) -> float:
    """A class of the other kernels for many aligned rows. Up to 1024 classes rows are in registers: lanes take a row's vectors in turn.
    Triton runs programs of 2048 places, 16 a thread: 376 instructions of 128 threads, whether places are idle or not."""
    vectors = classes // VECTOR
    if classes <= 1024:
        return min([lanes * (100 + 127 * -(-vectors // lanes)) for lanes in (8, 16, 32) if vectors <= 4 * lanes]) / classes
    return 128 * 376 * -(-classes // 2048) / classes


def linear_cross_entropy(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, _linear(p, "linear_cross_entropy"))


def linear_cross_entropy_bwd(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, _linear(p, "linear_cross_entropy_bwd"))


def _linear(p: Problem, op: str) -> tuple[tuple[str, str], ...]:
    """The Hopper kernel passes over x once more, and copies a weight that TMA does not read, which is negligible beside large products."""
    (rows, width), classes = p["x"].shape, p["weight"].shape[0]
    kernels = (f"{op}__gluon_sm90", "TMA and wgmma, losses in the epilogue"), (f"{op}__triton", "products too small for tiles of wgmma")
    return kernels if rows >= 256 and classes >= 1024 and width >= 256 else kernels[::-1]
