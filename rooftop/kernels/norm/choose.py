"""Which kernel runs softmax, log_softmax, rms_norm and layer_norm, forward and backward: one table of regimes for all of them.

    a row in registers         *__cuda_sm80       up to 64 KiB: some lanes of a warp, or a block. One tile a program: *__triton
    short rows, staged         *__staged          a block copies a range of rows to shared memory, whatever their starts
    a row in shared memory     *__cuda_sm90       a block, or the blocks of a cluster; rows that follow are fetched meanwhile; *__ring
    longer rows                *__long            all blocks of the card, which exchange sums through global memory; *__split__triton in two
                               passes

A regime is taken by the bytes of a row, how rows start, the bytes of the tensor, and, where kernels overlap, by their estimates: bytes in
flight, waves, registers and instructions. The first line that fits, and whose kernel takes the problem, decides. Figures are shares of a
copy, or times relative to another kernel, measured on an H200 unless another card is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem
from rooftop.kernels._device import contiguous_rows
from rooftop.kernels.norm import _cluster_slices, _register_rows
from rooftop.kernels.norm import norms__cuda_sm90 as clusters
from rooftop.kernels.norm import norms__long__cuda_sm80 as long_rows
from rooftop.kernels.norm import norms__staged__cuda_sm80 as staged
from rooftop.kernels.norm import norms_bwd__cuda_sm80 as bwd_rows
from rooftop.kernels.norm import norms_bwd__cuda_sm90 as bwd_clusters
from rooftop.kernels.norm import norms_bwd__long__cuda_sm80 as bwd_long_rows
from rooftop.kernels.norm import norms_bwd__staged__cuda_sm80 as bwd_staged
from rooftop.kernels.norm import softmax__ring__cuda_sm90 as softmax_ring
from rooftop.kernels.norm import softmaxes__long__cuda_sm80 as softmax_long_rows

KIB, ANY = 1 << 10, 1 << 62
STAGED, ROWS, CLUSTERS, RING, LONG, SPLIT, TILE = (
    "staged__cuda_sm80", "cuda_sm80", "cuda_sm90", "ring__cuda_sm90", "long__cuda_sm80", "split__triton", "triton"
)
REGISTERS = _register_rows.ROW_BYTES  # of a row, at most
CLUSTER = 1800000  # bytes of the longest row that a cluster of sixteen blocks holds; a backward holds two tensors
RMS, LAYER, RMS_BWD, LAYER_BWD = "rms_norm", "layer_norm", "rms_norm_bwd", "layer_norm_bwd"
SOFT, LOG, SOFT_BWD, LOG_BWD = "softmax", "log_softmax", "softmax_bwd", "log_softmax_bwd"
BEFORE_HOPPER, HOPPER = (0, 89), (90, 999)  # compute capabilities
FEW = 4  # rows for each multiprocessor up to which a block of several rows in a ring is still filling it: 1.06 to 1.29 times clusters' time


@dataclass(frozen=True)
class Regime:
    """A line of the table: a kernel and the rows it is for.

    over, most  bytes of a row: more than `over`, at most `most`
    why         what limits here, with what was measured
    when        what a model or an estimate must say, asked last
    arch        compute capabilities, from and to
    starts      "odd": rows are no whole vectors of 16 bytes; "whole": they are; "unaligned": Triton's accesses of them are no vectors
    power       True: only powers of two of columns; False: all others
    itemsize    bytes of an element; 0: any
    alone       only without a residual, or in a backward without a gradient of the sum
    resident    bytes of rows for each multiprocessor, at least
    tensor      bytes of the tensor of rows: more than so many
    spread      only if clusters of sixteen blocks, one a row, occupy half of the card"""

    kernel: str
    ops: tuple[str, ...]
    over: int
    most: int
    why: str
    when: Callable[[Problem], bool] | None = None
    arch: tuple[int, int] = (0, 999)
    starts: str = ""
    power: bool | None = None
    itemsize: int = 0
    alone: bool = False
    resident: int = 0
    tensor: int = -1
    spread: bool = False


def _no_ring(p: Problem) -> bool:
    return p.device.arch < 90 or clusters.of(p).ring is None


def _ring(p: Problem) -> bool:
    return clusters.of(p).ring is not None


def _no_power_of_bytes(p: Problem) -> bool:
    x = p["x"]
    size = x.shape[1] * x.itemsize
    return size & (size - 1) != 0


def _rows_apart(p: Problem) -> bool:
    """Whether some row is not whole vectors on 16 bytes."""
    rows, columns = p["y"].shape[:2]
    per = 16 // p["y"].itemsize
    return columns % per != 0 or any([p[name].align < 16 or (rows > 1 and p[name].strides[0] % per) for name in ("y", "dy", "dx")])


def _large_l2(p: Problem) -> bool:
    return p.device.l2_bytes > 50 << 20


def _whole_packs(p: Problem) -> bool:
    return clusters.of(p).slices.aligned


def _no_groups(p: Problem) -> bool:
    """Whether no group of blocks holds a row."""
    rows = long_rows if p.op in (RMS, LAYER) else bwd_long_rows if p.op in (RMS_BWD, LAYER_BWD) else softmax_long_rows
    return rows.supports(p) is not None


def _groups_are_fast(p: Problem) -> bool:
    return long_rows.share(p) >= (0.55 if p.op == LAYER else 0.7) and _no_ring(p)


def _rests_in_l2(p: Problem) -> bool:
    return p["x"].nbytes <= p.device.l2_bytes


def _one_shift(p: Problem) -> bool:
    """Whether shifting weight and bias for each of the rows costs less than persistent blocks save, which do it once: short rows, or one
    of a multiprocessor."""
    return (p["x"].shape[1] <= 8192 and _no_ring(p)) or p["x"].shape[0] <= p.device.sms


def _padded(p: Problem) -> bool:
    both = p.get("dweight") is not None and p.get("dbias") is not None
    least, most = bwd_staged.PADDED
    return both and least <= contiguous_rows.vectors(p["s"].shape[1] * 4) <= most


def _fill_clusters(p: Problem) -> bool:
    rows, columns = p["s"].shape
    few = rows >= 2 * p.device.sms - 8 and columns <= 4096 and not (p.op == LAYER_BWD and p.get("ds") is not None)
    return columns >= 1024 and (p["s"].nbytes > 32 << 20 or few)


def _fill_no_clusters(p: Problem) -> bool:
    return not _fill_clusters(p)


def _no_block_holds(p: Problem) -> bool:
    return bwd_rows.refuses(p) is not None and not (p.device.arch >= 90 and bwd_clusters.supports(p) is None)


def _faster_than_clusters(p: Problem) -> bool:
    """By one estimate for both. It was within 0.1 of what these kernels took on an H200, padded and odd rows too, for which that of
    norms_bwd__cuda_sm80.py is too optimistic. The memory time of odd rows counts 1.5 times: vectors of a warp that start amid 32 bytes are
    requested one by one."""
    s = p["s"]
    rows, columns = s.shape
    if columns < 1024:
        return True
    if s.nbytes <= 32 << 20:
        return rows > FEW * p.device.sms or not _fill_clusters(p)
    r = bwd_rows.of(p)
    if not r.by_cycles:
        return True
    c = r.by_cycles[0]
    least = c["teams"] * r.vectors * 16 * (r.tensors + 1) / _cluster_slices.BYTES
    exchange, pack = bwd_clusters.costs(p.op == LAYER_BWD, r.itemsize)
    own = exchange + c["team"] * c["teams"] // 32 * c["vectors"] * pack / 4
    round_ = _cluster_slices.takes_turns(least * (1 if r.aligned else 1.5), own)
    return bwd_clusters.share_of(p) <= 1.08 * least / round_


FORWARD, BACKWARD, LOGS = (RMS, LAYER), (RMS_BWD, LAYER_BWD), (LOG, LOG_BWD)
TABLE = (
    # short rows
    Regime(STAGED, (SOFT,), -1, ANY, "0.93 to 0.96 for rows off 16 bytes; in registers they reach 0.5 to 0.65", starts="odd",
           resident=96 * KIB),
    Regime(STAGED, (SOFT,), -1, KIB, "rows that do not fill their lanes: 0.70 to 0.89 in registers", _no_power_of_bytes, resident=96 * KIB),
    Regime(STAGED, FORWARD, -1, REGISTERS, "odd rows, if every resident block has a range to copy and no ring holds them: from 4 KiB on "
           "two blocks of eight lone rows each have too few warps (0.72 at 1159 columns of float32)", _no_ring, starts="odd", alone=True,
           resident=staged.RESIDENT),
    Regime(STAGED, (LAYER,), -1, 1280, "16-bit rows that leave lanes of a warp idle: 0.82 to 0.93", _no_ring, itemsize=2, alone=True,
           resident=staged.RESIDENT),
    Regime(STAGED, (RMS,), -1, 1280, "16-bit rows that leave lanes of a warp idle; powers of two fill them", _no_ring, power=False,
           itemsize=2, alone=True, resident=staged.RESIDENT),
    Regime(STAGED, BACKWARD, -1, 4 * KIB, "odd rows: a row takes 510 instructions, so the memory is the limit", starts="odd", alone=True,
           tensor=bwd_staged.MANY - 1),
    Regime(STAGED, BACKWARD, -1, ANY, "rows with both sums that leave most of a second warp idle: norm_bwd_block takes 3900 cycles for "
           "seven or eight of them, however short they are (0.60 at 528 columns, 0.73 at 560)", _padded, starts="whole", itemsize=4,
           alone=True, tensor=bwd_staged.MANY - 1),
    # rows in registers
    Regime(ROWS, (SOFT,), -1, REGISTERS, "0.93 to 0.97; powers of two are left to Triton's tile, which has no idle lane", power=False),
    Regime(ROWS, (SOFT_BWD,), 4 * KIB, REGISTERS, "1.08 to 1.15 times as fast if Triton pads a row; powers of two 0.90", power=False),
    Regime(ROWS, (SOFT_BWD,), -1, 4 * KIB, "unaligned short rows; the other short ones 0.96 to 0.98", _rows_apart, power=False),
    Regime(ROWS, LOGS, KIB, REGISTERS, "8192x4097 bf16: Triton's tile 61 us, softmax in registers 37", starts="unaligned"),
    Regime(ROWS, (RMS,), -1, REGISTERS, "1.0 to 1.17 times as fast as other kernels; powers of two 0.90 to 0.99", power=False, alone=True),
    Regime(ROWS, (LAYER,), -1, REGISTERS, "rows of whole vectors, 1.0 to 1.17 times as fast as other kernels", starts="whole", power=False,
           alone=True),
    Regime(ROWS, (LAYER,), -1, REGISTERS, "odd rows beyond 8192 columns 0.92, those of a ring 0.70 to 0.75", _one_shift, starts="odd",
           power=False, alone=True),
    Regime(ROWS, (LAYER,), -1, REGISTERS, "powers of two in smaller tensors 0.90 to 0.94, in float32 0.97", power=True, itemsize=2,
           alone=True, tensor=(64 << 20) - 1),
    # rows that no cluster, or before Hopper no block, holds
    Regime(SPLIT, (SOFT,), CLUSTER, ANY, "two passes are faster than all blocks of the card on one row", arch=HOPPER),
    Regime(SPLIT, (SOFT,), REGISTERS, ANY, "rows that no group of blocks holds", _no_groups, arch=BEFORE_HOPPER),
    Regime(SPLIT, (SOFT_BWD,), CLUSTER // 2, ANY, "rows that no group of blocks holds", _no_groups, arch=HOPPER),
    Regime(SPLIT, (SOFT_BWD,), REGISTERS, ANY, "rows that no group of blocks holds, on a card without clusters", _no_groups,
           arch=BEFORE_HOPPER),
    Regime(LONG, (SOFT_BWD,), CLUSTER // 2, ANY, "all blocks of the card on a row", arch=HOPPER),
    Regime(LONG, (SOFT, SOFT_BWD), REGISTERS, ANY, "all blocks of the card on a row, on a card without clusters", arch=BEFORE_HOPPER),
    Regime(SPLIT, FORWARD, long_rows.STREAMED, ANY, "few rows: the second pass reads x from the L2, and no block waits for another (42 rows of "
           "187593 float32: 33 us, by groups of blocks 39)", _rests_in_l2, arch=HOPPER, alone=True),
    Regime(LONG, FORWARD, long_rows.STREAMED, ANY, "streaming clusters take 1.4 to 1.9 times the time of a copy", _groups_are_fast,
           arch=HOPPER, alone=True),
    Regime(SPLIT, (LAYER,), 1 << 19, CLUSTER, "streaming blocks read weight and bias for each row: 0.41 to 0.54", arch=HOPPER, starts="odd",
           alone=True),
    Regime(SPLIT, (LAYER,), CLUSTER, ANY, "too long for a cluster", arch=HOPPER, alone=True),
    Regime(SPLIT, (RMS,), CLUSTER, ANY, "too long for a cluster and for a group of blocks", _no_groups, arch=HOPPER, alone=True),
    Regime(SPLIT, FORWARD, REGISTERS, ANY, "too long for a group of blocks", _no_groups, arch=BEFORE_HOPPER, alone=True),
    # a row in the shared memory of a block or a cluster
    Regime(RING, (SOFT,), 128 * KIB - 1, ANY, "faster than clusters that end with their row, from 256 KiB on, or where a multiprocessor "
           "holds two blocks; slower for odd rows", softmax_ring.keeps_busy, arch=HOPPER),
    Regime(CLUSTERS, (LOG,), 32 * KIB - 1, 32 * KIB, "as softmax", arch=HOPPER),
    Regime(CLUSTERS, (SOFT,), 32 * KIB - 1, 32 * KIB, "an H200's memory asks for more bytes in flight: 1.03 there, 0.99 on an H100",
           _large_l2, arch=HOPPER),
    Regime(CLUSTERS, (SOFT, LOG, SOFT_BWD, LOG_BWD), 32 * KIB, ANY, "a tile of a program has too few bytes in flight", arch=HOPPER),
    Regime(CLUSTERS, (SOFT, SOFT_BWD), 6 * KIB, 32 * KIB, "each element has its own address in Triton", arch=HOPPER, starts="unaligned"),
    Regime(CLUSTERS, FORWARD, 6 * KIB, REGISTERS, "each element has its own address in Triton", arch=HOPPER, starts="unaligned"),
    Regime(CLUSTERS, (LAYER,), -1, REGISTERS, "odd rows in a ring, from 4 KiB on", _ring, arch=HOPPER, starts="unaligned", alone=True),
    Regime(CLUSTERS, (LAYER,), 6 * KIB, REGISTERS, "faster than Triton on an H100", _whole_packs, arch=HOPPER, alone=True),
    Regime(CLUSTERS, (LAYER,), 511, 6 * KIB, "powers of two of columns, from 512 bytes on", _whole_packs, arch=HOPPER, power=True,
           alone=True),
    Regime(CLUSTERS, (RMS,), 2 * KIB - 1, 8 * KIB, "2 to 8 KiB in large tensors: faster than Triton on an H100", _whole_packs, arch=HOPPER,
           alone=True, tensor=32 << 20),
    Regime(CLUSTERS, (RMS,), 10 * KIB, REGISTERS, "from 10 KiB on in large tensors: faster than Triton on an H100", _whole_packs,
           arch=HOPPER, alone=True, tensor=32 << 20),
    Regime(CLUSTERS, (LAYER,), REGISTERS, ANY, "too long for a program; clusters of a few rows leave most of the card idle", arch=HOPPER,
           spread=True),
    Regime(CLUSTERS, (RMS,), REGISTERS, ANY, "16-bit rows too long for a program", arch=HOPPER, itemsize=2, spread=True),
    Regime(CLUSTERS, (RMS,), 128 * KIB, ANY, "float32 rows too long for a program", arch=HOPPER, itemsize=4, spread=True),
    Regime(CLUSTERS, (RMS,), REGISTERS, 128 * KIB, "unaligned rows too long for registers", arch=HOPPER, starts="unaligned", spread=True),
    Regime(CLUSTERS, (RMS,), REGISTERS, 128 * KIB, "64 to 128 KiB in large tensors: faster than Triton on an H100", _whole_packs,
           arch=HOPPER, alone=True, tensor=32 << 20, spread=True),
    Regime(LONG, FORWARD, long_rows.STREAMED, ANY, "no ring holds the row", _no_ring, arch=HOPPER),
    Regime(LONG, FORWARD, REGISTERS, ANY, "all blocks of the card on a row, on a card without clusters", arch=BEFORE_HOPPER),
    Regime(SPLIT, (RMS,), REGISTERS, ANY, "16 bits: Triton's tile gives NaN for a long row whose sum of squares is infinite", itemsize=2),
    Regime(SPLIT, (RMS,), 128 * KIB, ANY, "float32: Triton's tile gives NaN for a long row whose sum of squares is infinite", itemsize=4),
    # the backward of norms: rows in registers or in clusters
    Regime(ROWS, BACKWARD, -1, ANY, "a block that loops over rows in its ring", arch=BEFORE_HOPPER),
    Regime(ROWS, (LAYER_BWD,), -1, 24 * KIB, "1.0 to 1.6 times as fast as clusters, but for 32 KiB (0.92 in float32, 0.99 in bf16)",
           _faster_than_clusters, arch=HOPPER),
    Regime(ROWS, (RMS_BWD,), -1, 2 * KIB, "short rows: 1.0 to 1.6 times as fast as clusters", _faster_than_clusters, arch=HOPPER),
    Regime(ROWS, (RMS_BWD,), 2 * KIB, 16 * KIB, "odd rows of 2 to 16 KiB; 0.90 to 0.96 for whole vectors", _faster_than_clusters,
           arch=HOPPER, starts="odd"),
    Regime(ROWS, (RMS_BWD,), 8 * KIB, 16 * KIB, "tensors with too few rows for clusters", _fill_no_clusters, arch=HOPPER),
    Regime(CLUSTERS, (LAYER_BWD,), -1, ANY, "clusters that loop over rows", _fill_clusters, arch=HOPPER),
    Regime(CLUSTERS, (RMS_BWD,), -1, 8 * KIB, "clusters that loop over rows of up to 8 KiB", _fill_clusters, arch=HOPPER, alone=True),
    Regime(CLUSTERS, (RMS_BWD,), 8 * KIB, ANY, "clusters that loop over longer rows", _fill_clusters, arch=HOPPER),
    Regime(CLUSTERS, BACKWARD, 32 * KIB, ANY, "few long rows: a program a row occupies as many multiprocessors as there are rows (0.12 of a copy "
           "at 18x208627 bf16)", arch=HOPPER),
    Regime(LONG, BACKWARD, -1, ANY, "2.3 to 2.5 times as fast as Triton at 1048576 columns; 0.53 where clusters hold 500 KiB",
           _no_block_holds),
    Regime(SPLIT, BACKWARD, REGISTERS, ANY, "too long for clusters and for a group of blocks: several programs a row, in passes"),
)
OF_OP = {op: tuple(r for r in TABLE if op in r.ops) for op in (RMS, LAYER, RMS_BWD, LAYER_BWD, SOFT, LOG, SOFT_BWD, LOG_BWD)}
OTHERS = {
    SOFT: (TILE, ROWS, CLUSTERS, LONG, STAGED, SPLIT), SOFT_BWD: (TILE, ROWS, CLUSTERS, LONG, SPLIT),
    **dict.fromkeys(LOGS, (TILE, ROWS, CLUSTERS)), **dict.fromkeys((*FORWARD, *BACKWARD), (TILE, ROWS, CLUSTERS, LONG, SPLIT, STAGED)),
}
ADDEND = ("rms_norm__triton", "the only one that adds to the result")


def _choose(p: Problem, named: str = "") -> Chosen | str:
    """The first regime that fits and whose kernel takes the problem; where none does, a program a row, or any other kernel."""
    op = p.op
    if named or p.extra:
        return in_order(p, named, [ADDEND])
    m = p["s" if op in BACKWARD else "x" if op in (RMS, LAYER, SOFT, LOG) else "y"]
    rows, columns, arch, width, sms = m.shape[0], m.shape[1], p.device.arch, m.itemsize, p.device.sms
    size, power = columns * width, columns & (columns - 1) == 0
    starts = ("", "odd" if size % 16 else "whole", "unaligned" if columns % 16 or m.strides[0] % 16 or m.align < 16 else "")
    alone = p.get("residual") is None and p.get("ds") is None
    for r in OF_OP[op]:
        if (
            r.over < size <= r.most and r.arch[0] <= arch <= r.arch[1] and r.starts in starts and r.power in (None, power)
            and r.itemsize in (0, width) and (alone or not r.alone) and rows * size >= r.resident * sms and rows * size > r.tensor
            and (not r.spread or 16 * rows >= sms // 2) and (r.when is None or r.when(p))
        ):
            found = in_order(p, named, [(f"{op}__{r.kernel}", r.why)])
            if not isinstance(found, str):
                return found
    return in_order(p, named, [(f"{op}__{kernel}", "takes the problem") for kernel in OTHERS[op]])


softmax = log_softmax = softmax_bwd = log_softmax_bwd = rms_norm = layer_norm = rms_norm_bwd = layer_norm_bwd = _choose
