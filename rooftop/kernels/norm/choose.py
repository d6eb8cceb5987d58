"""Which kernel runs softmax, log_softmax, rms_norm and layer_norm, forward and backward: one table of regimes for all of them.

    a row in registers         *__cuda_sm80       up to 64 KiB: some lanes of a warp, or a block. One tile a program: *__triton
    short rows, staged         *__staged          a block copies a range of rows to shared memory, whatever their starts
    a row in shared memory     *__cuda_sm90       a block, or the blocks of a cluster; rows that follow are fetched meanwhile; *__ring
    few or longer rows         *__split__triton   tiles of a row, in two passes
    longer rows                *__long            all blocks of the card, which exchange sums through global memory

A regime is taken by the bytes of a row, how rows start, the bytes of the tensor, and, where kernels overlap, by their estimates: bytes in
flight, waves, registers and instructions. The first line that fits, and whose kernel takes the problem, decides. Figures were measured on
an H200; what each kernel is worth at random points of its regimes: results/h200/norm_regimes.json"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Meta, Problem
from rooftop.kernels._device import contiguous_rows
from rooftop.kernels.norm import _cluster_slices, _register_rows
from rooftop.kernels.norm import norms__cuda_sm90 as clusters
from rooftop.kernels.norm import norms__long__cuda_sm80 as long_rows
from rooftop.kernels.norm import norms__staged__cuda_sm80 as staged
from rooftop.kernels.norm import norms_bwd__cuda_sm80 as bwd_rows
from rooftop.kernels.norm import norms_bwd__cuda_sm90 as bwd_clusters
from rooftop.kernels.norm import norms_bwd__staged__cuda_sm80 as bwd_staged
from rooftop.kernels.norm import softmax__ring__cuda_sm90 as softmax_ring

KIB, ANY = 1 << 10, 1 << 62
STAGED, ROWS, CLUSTERS, RING, LONG, SPLIT, TILE = (
    "staged__cuda_sm80", "cuda_sm80", "cuda_sm90", "ring__cuda_sm90", "long__cuda_sm80", "split__triton", "triton"
)
REGISTERS = _register_rows.ROW_BYTES  # of a row, at most
CLUSTER = 1800000  # bytes of the longest row that a cluster of sixteen blocks holds; a backward holds two tensors
RMS, LAYER, RMS_BWD, LAYER_BWD = "rms_norm", "layer_norm", "rms_norm_bwd", "layer_norm_bwd"
SOFT, LOG, SOFT_BWD, LOG_BWD = "softmax", "log_softmax", "softmax_bwd", "log_softmax_bwd"
BEFORE_HOPPER, HOPPER = (0, 89), (90, 999)  # compute capabilities
# bytes of rows for each multiprocessor that the programs of a pass hold at once: on an H200 6.2 MiB, up to which two passes were faster
# than clusters
WAVE = 48 * KIB
# bytes of rows up to which filling the rings of blocks and adding their partial rows cost more than a cluster's exchanges; twice as many
# where a block has one row at a time
FILLED = 32 << 20
# rows, so few that clusters of them leave multiprocessors idle; odd ones start in up to 16 places, so that the ring of a cluster would run
# empty after each
FEW = 32


@dataclass(frozen=True)
class Regime:
    """A line of the table: a kernel and the rows it is for.

    over, most  bytes of a row: more than `over`, at most `most`
    why         what limits here, with what was measured
    when        what a model or an estimate must say, asked last
    arch        compute capabilities, from and to
    starts      "odd": rows are no whole vectors of 16 bytes; "whole": they are
    power       True: only powers of two of columns; False: all others
    itemsize    bytes of an element; 0: any
    alone       only without a residual, or in a backward without a gradient of the sum
    resident    bytes of rows for each multiprocessor, at least
    tensor      bytes of the tensor of rows: more than so many
    spread      only if clusters of sixteen blocks, one a row, occupy the card"""

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


def _ring(p: Problem) -> bool:
    return p.device.arch >= 90 and clusters.of(p).ring is not None


def _no_ring(p: Problem) -> bool:
    return not _ring(p)


def _ring_shifts_once(p: Problem) -> bool:
    """Whether a multiprocessor has several rows: persistent blocks shift weight and bias of odd rows once, all others for each row."""
    return p["x"].shape[0] > p.device.sms and _ring(p)


def _no_power_of_bytes(p: Problem) -> bool:
    x = p["x"]
    size = x.shape[1] * x.itemsize
    return size & (size - 1) != 0


def _in_vectors(m: Meta) -> bool:
    """Whether Triton accesses the rows in vectors of 16 bytes: where addresses, strides and extents are multiples of 16."""
    return m.align >= 16 and m.shape[1] % 16 == 0 and m.strides[0] % 16 == 0


def _tile_is_faster(p: Problem) -> bool:
    return p["x"].shape[1] <= 8192 and _in_vectors(p["x"]) and (_one_wave(p) or not _rests_in_l2(p))


def _y_in_vectors(p: Problem) -> bool:
    return _in_vectors(p["y"])


def _with_residual(p: Problem) -> bool:
    residual = p.get("residual")
    return residual is not None and _in_vectors(p["x"]) and _in_vectors(residual)


def _one_wave(p: Problem) -> bool:
    return p["x"].nbytes <= WAVE * p.device.sms


def _rests_in_l2(p: Problem) -> bool:
    return p["x"].nbytes <= p.device.l2_bytes


def _exceeds_l2_in_vectors(p: Problem) -> bool:
    return p["y"].nbytes > p.device.l2_bytes and _in_vectors(p["y"])


def _both_rest_in_l2(p: Problem) -> bool:
    return 2 * p["y"].nbytes <= p.device.l2_bytes


def _few(p: Problem) -> bool:
    return p["s"].shape[0] < FEW


def _few_in_one_wave(p: Problem) -> bool:
    return p["x"].shape[0] < FEW and _one_wave(p)


def _groups_are_fast(p: Problem) -> bool:
    return not _rests_in_l2(p) and long_rows.share(p) >= 0.55


def _padded(p: Problem) -> bool:
    both = p.get("dweight") is not None and p.get("dbias") is not None
    least, most = bwd_staged.PADDED
    return both and least <= contiguous_rows.vectors(p["s"].shape[1] * 4) <= most


def _no_block_holds(p: Problem) -> bool:
    return bwd_rows.refuses(p) is not None and not (p.device.arch >= 90 and bwd_clusters.supports(p) is None)


def _staged_is_faster(p: Problem) -> bool:
    """By estimates of whole calls, fitted to timings of odd rows on an H200. It was the faster one, or within 7 %, at 38 of 39 points."""
    s = p["s"]
    other = bwd_clusters if p.device.arch >= 90 and s.shape[1] * s.itemsize >= 2 * KIB and bwd_clusters.supports(p) is None else bwd_rows
    return bwd_staged.supports(p) is None and bwd_staged.cycles(p) <= other.cycles(p)


def _faster_than_clusters(p: Problem) -> bool:
    """By one estimate for both. It was within 0.1 of what these kernels took on an H200, padded rows too, for which that of
    norms_bwd__cuda_sm80.py is too optimistic. The memory time of rows that start within a vector counts 1.5 times: vectors of a warp that
    start amid 32 bytes are requested one by one."""
    r = bwd_rows.of(p)
    if p["s"].nbytes <= FILLED or not r.by_cycles:
        return False
    c = r.by_cycles[0]
    if c["teams"] == 1 and p["s"].nbytes <= 2 * FILLED:
        return False
    least = c["teams"] * r.vectors * 16 * (r.tensors + 1) / _cluster_slices.BYTES
    exchange, pack = bwd_clusters.costs(p.op == LAYER_BWD, r.itemsize)
    own = exchange + c["team"] * c["teams"] // 32 * c["vectors"] * pack / 4
    round_ = _cluster_slices.takes_turns(least * (1 if r.aligned else 1.5), own)
    return bwd_clusters.share_of(p) <= 1.08 * least / round_


FORWARD, BACKWARD = (RMS, LAYER), (RMS_BWD, LAYER_BWD)
SOFTMAXES, SOFTMAXES_BWD = (SOFT, LOG), (SOFT_BWD, LOG_BWD)
TABLE = (
    # softmax and log_softmax
    Regime(STAGED, (SOFT,), -1, ANY, "a block copies a range of odd rows in whole vectors: 0.93 to 0.96 of a copy, where threads that load "
           "a row themselves reach 0.5 to 0.65", starts="odd", resident=96 * KIB),
    Regime(STAGED, (SOFT,), -1, KIB, "short rows would leave lanes of a warp idle (0.70 to 0.89 of a copy); a block that copies a range of "
           "them has no such lanes", _no_power_of_bytes, resident=96 * KIB),
    Regime(TILE, SOFTMAXES, -1, KIB, "short rows of a power of two: a tile has no idle lane, and no row ends within a vector",
           _y_in_vectors, power=True),
    Regime(ROWS, SOFTMAXES, -1, REGISTERS, "the row fits the registers of a block: it is read once and written once, 0.93 to 0.99 of a copy"),
    Regime(TILE, SOFTMAXES_BWD, -1, 32 * KIB, "a tile of a power of two has no idle lane: in tensors larger than the L2 up to 1.06 times "
           "as fast as rows in the registers of a block", _exceeds_l2_in_vectors, power=True),
    Regime(CLUSTERS, SOFTMAXES_BWD, 32 * KIB, REGISTERS, "two rows of 64 KiB leave a block few registers; a cluster holds them in shared "
           "memory, 1.03 times as fast in tensors larger than the L2", _exceeds_l2_in_vectors, arch=HOPPER, power=True),
    Regime(ROWS, SOFTMAXES_BWD, -1, REGISTERS, "both rows fit the registers of a block: they are read once, and the result is written once"),
    Regime(SPLIT, SOFTMAXES, CLUSTER, ANY, "no cluster holds the row: two passes are faster than all blocks of the card on one row",
           arch=HOPPER),
    Regime(SPLIT, SOFTMAXES_BWD, CLUSTER // 2, ANY, "no cluster holds the rows: the second of two passes reads them from the L2",
           _both_rest_in_l2, arch=HOPPER),
    Regime(LONG, (SOFT_BWD,), CLUSTER // 2, ANY, "no cluster holds the rows: all blocks of the card share them, and read them once",
           arch=HOPPER),
    Regime(SPLIT, SOFTMAXES_BWD, CLUSTER // 2, ANY, "no cluster holds the rows, and no group of blocks either: two passes over tiles",
           arch=HOPPER),
    Regime(LONG, (SOFT, SOFT_BWD), REGISTERS, ANY, "no block holds the row: a group of blocks shares it, and reads it once",
           arch=BEFORE_HOPPER),
    Regime(SPLIT, (SOFT, SOFT_BWD), REGISTERS, ANY, "no block holds the row, and no group of blocks: two passes over tiles",
           arch=BEFORE_HOPPER),
    Regime(SPLIT, (LOG, LOG_BWD), 512 * KIB, ANY, "a program a row would occupy few multiprocessors: two passes over tiles",
           arch=BEFORE_HOPPER),
    Regime(RING, (SOFT,), 128 * KIB - 1, ANY, "clusters that loop over rows keep the memory busy while a row's sums are exchanged",
           softmax_ring.keeps_busy, arch=HOPPER),
    Regime(CLUSTERS, (*SOFTMAXES, *SOFTMAXES_BWD), REGISTERS, ANY, "a cluster holds the row in shared memory: it is read once",
           arch=HOPPER),
    # the forward of norms: rows of up to 64 KiB
    Regime(STAGED, (RMS,), -1, 2 * KIB, "a block copies a range of short odd rows in whole vectors", starts="odd", alone=True,
           resident=staged.RESIDENT),
    Regime(STAGED, (LAYER,), -1, REGISTERS, "a block copies a range of short odd rows in whole vectors; no ring holds them", _no_ring,
           starts="odd", alone=True, resident=staged.RESIDENT),
    Regime(STAGED, (LAYER,), -1, 1280, "short rows of 16 bits would leave lanes of a warp idle; a block copies a range of them", itemsize=2,
           power=False, alone=True, resident=staged.RESIDENT),
    Regime(CLUSTERS, (LAYER,), -1, REGISTERS, "odd rows: blocks that loop over rows shift weight and bias once, others for each row (0.70 "
           "to 0.75 of a copy)", _ring_shifts_once, arch=HOPPER, starts="odd", alone=True),
    Regime(TILE, (RMS,), 2 * KIB - 1, 32 * KIB, "up to 8192 columns, a power of two: a tile has no idle lane and one reduction; up to 1.08 "
           "times as fast as a row in the registers of a block", _tile_is_faster, power=True, starts="whole"),
    Regime(TILE, FORWARD, -1, REGISTERS, "a residual: weight and row have registers enough in a tile", _with_residual, starts="whole"),
    Regime(ROWS, FORWARD, -1, REGISTERS, "the row fits the registers of a block: it is read once and written once"),
    # longer rows
    Regime(CLUSTERS, FORWARD, REGISTERS, ANY, "clusters that loop over rows read weight and bias once, and keep the memory busy while a "
           "row's sums are exchanged", _ring, arch=HOPPER, alone=True),
    Regime(SPLIT, FORWARD, REGISTERS, ANY, "few rows: tiles of them are one wave of the whole card, and the second pass reads them from "
           "the L2; clusters would leave multiprocessors idle", _few_in_one_wave, arch=HOPPER),
    Regime(SPLIT, FORWARD, KIB * KIB, ANY, "the second pass reads the row from the L2, and no block waits for another (42 rows of 187593 "
           "float32: 33 us, by groups of blocks 39)", _rests_in_l2, arch=HOPPER),
    Regime(LONG, FORWARD, long_rows.STREAMED, ANY, "clusters that end with their row take 1.4 to 1.9 times the time of a copy; a group of "
           "blocks that loops over rows is faster", _groups_are_fast, arch=HOPPER, alone=True),
    Regime(SPLIT, (LAYER,), 512 * KIB, ANY, "clusters that end with their row read weight and bias for each: 0.41 to 0.54 of a copy",
           arch=HOPPER, starts="odd"),
    Regime(CLUSTERS, FORWARD, REGISTERS, CLUSTER, "a cluster holds the row in shared memory: it is read once", arch=HOPPER, spread=True),
    Regime(LONG, FORWARD, REGISTERS, ANY, "no block holds the row: a group of blocks shares it, and reads it once", arch=BEFORE_HOPPER),
    Regime(SPLIT, FORWARD, REGISTERS, ANY, "no block, cluster or group of blocks holds the row: two passes over tiles of it"),
    # the backward of norms
    Regime(STAGED, BACKWARD, -1, 4 * KIB, "a block copies a range of odd rows in whole vectors: up to 2.2 times as fast as threads that "
           "load a row themselves", _staged_is_faster, starts="odd", alone=True),
    Regime(STAGED, BACKWARD, -1, ANY, "rows with both sums that leave most of a second warp idle: a block takes 3900 cycles for seven or "
           "eight of them, however short they are (0.60 of a copy at 528 columns, 0.73 at 560)", _padded, starts="whole", itemsize=4,
           alone=True, tensor=bwd_staged.MANY - 1),
    Regime(ROWS, BACKWARD, -1, ANY, "a block loops over rows in its ring, and sums dweight and dbias in registers", arch=BEFORE_HOPPER),
    Regime(ROWS, BACKWARD, -1, 2 * KIB - 1, "short rows: a block holds several at once, a cluster's block one", arch=HOPPER),
    Regime(ROWS, (LAYER_BWD,), -1, 24 * KIB, "by the estimate of both, a block in its ring is faster than clusters", _faster_than_clusters,
           arch=HOPPER, starts="whole", alone=True),
    Regime(SPLIT, BACKWARD, 32 * KIB, ANY, "few odd rows: the ring of a cluster would run empty between rows that start elsewhere within a "
           "vector", _few, arch=HOPPER, starts="odd"),
    Regime(CLUSTERS, BACKWARD, -1, ANY, "clusters loop over rows: each is read once, and dweight and dbias are summed in registers",
           arch=HOPPER),
    Regime(LONG, BACKWARD, -1, ANY, "no cluster holds the row: a group of blocks shares it, 2.3 to 2.5 times as fast as Triton at 1048576 "
           "columns", _no_block_holds),
    Regime(SPLIT, BACKWARD, REGISTERS, ANY, "no cluster or group of blocks holds the row: several programs a row, in passes"),
)
OF_OP = {op: tuple(r for r in TABLE if op in r.ops) for op in (RMS, LAYER, RMS_BWD, LAYER_BWD, SOFT, LOG, SOFT_BWD, LOG_BWD)}
OTHERS = {
    SOFT: (TILE, ROWS, CLUSTERS, LONG, STAGED, SPLIT), SOFT_BWD: (TILE, ROWS, CLUSTERS, LONG, SPLIT),
    **dict.fromkeys((LOG, LOG_BWD), (TILE, ROWS, CLUSTERS, SPLIT)),
    **dict.fromkeys((*FORWARD, *BACKWARD), (TILE, ROWS, CLUSTERS, LONG, SPLIT, STAGED)),
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
    starts = ("", "odd" if size % 16 else "whole")
    alone = p.get("residual") is None and p.get("ds") is None
    for r in OF_OP[op]:
        if (
            r.over < size <= r.most and r.arch[0] <= arch <= r.arch[1] and r.starts in starts and r.power in (None, power)
            and r.itemsize in (0, width) and (alone or not r.alone) and rows * size >= r.resident * sms and rows * size > r.tensor
            and (not r.spread or 16 * rows >= sms) and (r.when is None or r.when(p))
        ):
            found = in_order(p, named, [(f"{op}__{r.kernel}", r.why)])
            if not isinstance(found, str):
                return found
    return in_order(p, named, [(f"{op}__{kernel}", "takes the problem") for kernel in OTHERS[op]])


softmax = log_softmax = softmax_bwd = log_softmax_bwd = rms_norm = layer_norm = rms_norm_bwd = layer_norm_bwd = _choose
