"""Which kernel runs softmax, rms_norm and layer_norm, forward and backward: by the bytes of a row, how rows start, and how many there are.

    a row in registers         *__cuda_sm80       up to 64 KiB: some lanes of a warp, or a block. One tile a program: *__triton
    short rows, staged         *__staged          a block copies a range of rows to shared memory, whatever their starts
    a row in shared memory     *__cuda_sm90       a block, or the blocks of a cluster; rows that follow are fetched meanwhile; *__ring
    longer rows                *__long            all blocks of the card, which exchange sums through global memory; *__split__triton in two
                               passes

Figures are shares of a copy, or times relative to another kernel, measured on an H200 unless another card is named."""

from __future__ import annotations

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
from rooftop.kernels.norm import norms_bwd__long__cuda_sm80 as bwd_long_rows
from rooftop.kernels.norm import norms_bwd__staged__cuda_sm80 as bwd_staged
from rooftop.kernels.norm import softmax__ring__cuda_sm90 as softmax_ring
from rooftop.kernels.norm import softmaxes__long__cuda_sm80 as softmax_long_rows

KIB = 1 << 10
Order = list[tuple[str, str]]
STAGED, ROWS, CLUSTERS, LONG, SPLIT, TILE = (
    ("staged__cuda_sm80", "short rows, a range of them staged in shared memory"), ("cuda_sm80", "rows in registers"),
    ("cuda_sm90", "rows in the shared memory of a block or a cluster"), ("long__cuda_sm80", "a row over blocks of the whole card"),
    ("split__triton", "long rows in two passes"), ("triton", "a program a row"),
)
RING = ("ring__cuda_sm90", "clusters that loop over long rows, a ring of them in shared memory")
ADDEND = ("addend__triton", "the only one that adds to the result")


def _chosen(op: str, p: Problem, named: str, order: Order) -> Chosen | str:
    return in_order(p, named, [(f"{op}__{kernel}", why) for kernel, why in order])


def rms_norm(p: Problem, named: str = "") -> Chosen | str:
    return _chosen("rms_norm", p, named, [] if named else [ADDEND] if p.extra else _forward(p, centre=False))


def layer_norm(p: Problem, named: str = "") -> Chosen | str:
    return _chosen("layer_norm", p, named, [] if named else _forward(p, centre=True))


def rms_norm_bwd(p: Problem, named: str = "") -> Chosen | str:
    return _chosen("rms_norm_bwd", p, named, [] if named else _backward(p, centre=False))


def layer_norm_bwd(p: Problem, named: str = "") -> Chosen | str:
    return _chosen("layer_norm_bwd", p, named, [] if named else _backward(p, centre=True))


def _forward(p: Problem, centre: bool) -> Order:
    x, hopper = p["x"], p.device.arch >= 90
    columns = x.shape[1]
    size, residual = columns * x.itemsize, p.get("residual") is not None
    ring = hopper and not residual and clusters.of(p).ring is not None
    order: Order = []
    if size <= _register_rows.ROW_BYTES:
        if not residual and not ring and _stages(p, size, centre):
            order.append(STAGED)
        if not residual and _in_registers(p, size, centre, ring):
            order.append(ROWS)
        if hopper and _clusters(p, size, centre, ring):
            order.append(CLUSTERS)
        return [*order, TILE, ROWS, CLUSTERS, LONG, SPLIT, STAGED]
    long = not (hopper and (size <= long_rows.STREAMED or ring)) and long_rows.supports(p) is None
    if long and hopper and not residual and long_rows.share(p) >= (0.55 if centre else 0.7):
        order.append(LONG)
    if not residual and _split(p, size, centre):
        order.append(SPLIT)
    if hopper and _clusters(p, size, centre, ring):
        order.append(CLUSTERS)
    if long:
        order.append(LONG)
    if not centre and columns > 32768:  # rms_norm__triton gives NaN for a long row whose sum of squares is infinite
        order.append(SPLIT)
    return [*order, TILE, ROWS, CLUSTERS, LONG, SPLIT, STAGED]


def _stages(p: Problem, size: int, centre: bool) -> bool:
    """From counted instructions; 0.82 to 0.93 at the odd and aligned lengths of one sweep. For odd rows, and for short rows of whole
    vectors of 16-bit types, which leave lanes idle if a warp holds them in registers. Only if every resident block has a range to copy, and
    no ring holds the rows: from 4 KiB on two blocks of eight lone rows each have too few warps (0.72 at 1159 columns of float32)."""
    many = p["x"].shape[0] * size >= staged.RESIDENT * p.device.sms
    return many and (size % 16 != 0 or (p["x"].itemsize == 2 and size <= 1280 and (centre or size & (size - 1) != 0)))


def _in_registers(p: Problem, size: int, centre: bool, ring: bool) -> bool:
    """1.0 to 1.17 times as fast as the kernel chosen before. Slower for powers of two of columns: rms_norm 0.90 to 0.99, layer_norm in
    float32 0.97 and in tensors under 64 MiB 0.90 to 0.94. And layer_norm at rows of more than 8192 columns that are not whole vectors
    (0.92), or that a ring holds (0.70 to 0.75 of
    a copy here): shifting weight and bias for each of them costs instructions; persistent blocks do it once."""
    x = p["x"]
    columns = x.shape[1]
    power = columns & (columns - 1) == 0
    if not centre:
        return not power
    return not (size % 16 and (columns > 8192 or ring)) and not (power and (x.nbytes < 64 << 20 or x.itemsize == 4))


def _clusters(p: Problem, size: int, centre: bool, ring: bool) -> bool:
    """Faster than Triton on an H100: rows too long for a program, unaligned rows of more than 6 KiB (of layer_norm 4 KiB in a ring), others
    from 2 KiB (rms_norm, in large tensors) or 512 bytes on (layer_norm at powers of two). Clusters of a few rows leave most of the card
    idle."""
    x = p["x"]
    rows, columns = x.shape
    if size > 65536 and 16 * rows < p.device.sms // 2:
        return False
    odd = columns % 16 != 0 or x.strides[0] % 16 != 0 or x.align < 16
    if (
        size > (64 if centre else 128) * KIB or (not centre and size > 64 * KIB and columns > 32768)
        or (odd and (size > 6 * KIB or (centre and ring)))
    ):
        return True
    if p.get("residual") is not None or not clusters.of(p).slices.aligned:
        return False
    if centre:
        return size > 6 * KIB or (size >= 512 and columns & (columns - 1) == 0)
    return (2 * KIB <= size <= 8 * KIB or size > 10 * KIB) and x.nbytes > 32 << 20


def _split(p: Problem, size: int, centre: bool) -> bool:
    """For rows too long for a cluster or a group of blocks; for layer_norm, whose streaming blocks read weight and bias for each row, also
    for long rows that
    a cluster holds: 0.41 to 0.54 there."""
    if p.device.arch >= 90 and size <= CLUSTER:
        return centre and size > (1400000 if p["x"].shape[1] % (16 // p["x"].itemsize) == 0 else 1 << 19)
    return long_rows.supports(p) is not None or (centre and p.device.arch >= 90)


CLUSTER = 1800000  # bytes of the longest row that a cluster of sixteen blocks holds; a backward holds two tensors


def _backward(p: Problem, centre: bool) -> Order:
    s, hopper = p["s"], p.device.arch >= 90
    rows, columns = s.shape
    size, second = columns * s.itemsize, p.get("ds") is not None
    in_registers = bwd_rows.refuses(p) is None
    order: Order = []
    if not second and s.nbytes >= bwd_staged.MANY and (size % 16 or _padded(p, size)):
        order.append(STAGED)
    if size > (CLUSTER // 2 if hopper else _register_rows.ROW_BYTES) and bwd_long_rows.supports(p) is not None:
        order.append(SPLIT)
    if in_registers and not _bwd_by_clusters(p, size, centre):
        order.append(ROWS)
    many = s.nbytes > 32 << 20 or (rows >= 2 * p.device.sms - 8 and columns <= 4096 and not (centre and second))
    if hopper and columns >= 1024 and many and (centre or not (second and size <= 16384)):
        order.append(CLUSTERS)
    # 2.3 to 2.5 times as fast as Triton at 1048576 columns; where clusters hold the rows, 0.53 times as fast as they at 500 KiB
    if not in_registers and not (hopper and bwd_clusters.supports(p) is None):
        order.append(LONG)
    return [*order, TILE, ROWS, CLUSTERS, LONG, SPLIT, STAGED]


def _padded(p: Problem, size: int) -> bool:
    """Aligned float32 rows with both sums that leave most of a second warp idle: norm_bwd_block takes 3900 cycles for seven or eight of
    them, however short they are (0.60 at 528 columns, 0.73 at 560); staged a row takes 510 instructions, so the memory is the limit."""
    both = p.get("dweight") is not None and p.get("dbias") is not None
    least, most = bwd_staged.PADDED
    return p["s"].itemsize == 4 and both and least <= contiguous_rows.vectors(size) <= most


def _bwd_by_clusters(p: Problem, size: int, centre: bool) -> bool:
    """Rows in registers are 1.0 to 1.6 times as fast as the kernel chosen before, but for layer_norm's of 32 KiB (0.92 in float32, 0.99 in
    bf16) and rms_norm's of 2.5 to 8 KiB (0.96) and from 24 KiB on (0.93 to 1.02); and where an estimate says that clusters are faster: for
    odd rows (0.49 to 0.67 of a copy here) and for rows with padding."""
    if p.device.arch < 90:
        return False
    if size > 24576 if centre else (2048 < size <= 8192 and size % 16 == 0) or size > 16384:
        return True
    return _clusters_are_faster(p, centre)


def _clusters_are_faster(p: Problem, centre: bool) -> bool:
    """By one estimate for both. It was within 0.1 of what these kernels took on an H200, padded and odd rows too, for which that of
    norms_bwd__cuda_sm80.py is too optimistic. The memory time of odd rows counts 1.5 times: vectors of a warp that start amid 32 bytes are
    requested one by one."""
    r, s = bwd_rows.of(p), p["s"]
    if s.shape[1] < 1024 or s.nbytes <= 32 << 20:
        return False
    c = r.by_cycles[0]
    least = c["teams"] * r.vectors * 16 * (r.tensors + 1) / _cluster_slices.BYTES
    exchange, pack = bwd_clusters.costs(centre, r.itemsize)
    own = exchange + c["team"] * c["teams"] // 32 * c["vectors"] * pack / 4
    round_ = _cluster_slices.takes_turns(least * (1 if r.aligned else 1.5), own)
    return bwd_clusters.share_of(p) > 1.08 * least / round_


def softmax(p: Problem, named: str = "") -> Chosen | str:
    """Staged: 0.93 to 0.96 for rows that do not start on 16 bytes; in registers they reach 0.5 to 0.65. Rows that do, in registers: 0.70 to
    0.89 below 1 KiB, where they do not fill their lanes, and 0.93 to 0.97 above. Powers of two are left to Triton's tile, which has no idle
    lane; of 32 KiB a cluster is 1.03 times as fast on an H200, 0.99 on an H100. A ring of aligned rows is faster than
    clusters that end with their row, from 256 KiB a row on, or from 128 KiB where a multiprocessor holds two of its blocks; of odd rows it is
    slower. Rows that no cluster holds: two passes are faster than all blocks of the card on one row."""
    x, hopper = p["x"], p.device.arch >= 90
    rows, columns = x.shape[:2]
    size, power = columns * x.itemsize, columns & (columns - 1) == 0
    order: Order = []
    if (size % 16 or (size <= 1024 and size & (size - 1))) and rows * size >= 3 * 32 * KIB * p.device.sms:
        order.append(STAGED)
    if size <= _register_rows.ROW_BYTES:
        if not power:
            order.append(ROWS)
    elif size > (CLUSTER if hopper else _register_rows.ROW_BYTES):
        order.append(SPLIT if hopper or softmax_long_rows.supports(p) else LONG)
    if hopper and size >= 128 * KIB and softmax_ring.keeps_busy(p):
        order.append(RING)
    # an H200's memory asks for more bytes in flight than an H100's
    long = size > 32 * KIB or (size == 32 * KIB and p.device.l2_bytes > 50 << 20)
    if hopper and (long or (size > 6 * KIB and not _in_vectors(x))):
        order.append(CLUSTERS)
    return _chosen("softmax", p, named, [*order, TILE, ROWS, CLUSTERS, LONG, STAGED, SPLIT])


def softmax_bwd(p: Problem, named: str = "") -> Chosen | str:
    """In registers 1.08 to 1.15 times as fast as the kernel chosen before if Triton pads a row to a power of two, or rows are unaligned;
    short rows 0.96 to 0.98, powers of two 0.90."""
    y, hopper = p["y"], p.device.arch >= 90
    columns = y.shape[1]
    size, power = columns * y.itemsize, columns & (columns - 1) == 0
    order: Order = []
    if size <= _register_rows.ROW_BYTES:
        if not power and (size > 4096 or not _whole_vectors(p)):
            order.append(ROWS)
    elif size > (CLUSTER // 2 if hopper else _register_rows.ROW_BYTES):
        order.append(SPLIT if softmax_long_rows.supports(p) else LONG)
    if hopper and (size > 32 * KIB or (size > 6 * KIB and not _in_vectors(y))):
        order.append(CLUSTERS)
    return _chosen("softmax_bwd", p, named, [*order, TILE, ROWS, CLUSTERS, LONG, SPLIT])


def log_softmax(p: Problem, named: str = "") -> Chosen | str:
    """As softmax, of which it has the kernels with a tile, with rows in registers and with clusters. At 8192x4097 bf16 the tile takes 61 us;
    softmax, with rows in registers, 37."""
    x, size = p["x"], p["x"].shape[1] * p["x"].itemsize
    order = [ROWS] if KIB < size <= _register_rows.ROW_BYTES and not _in_vectors(x) else []
    if p.device.arch >= 90 and (size >= 32 * KIB or (size > 6 * KIB and not _in_vectors(x))):
        order.append(CLUSTERS)
    return _chosen("log_softmax", p, named, [*order, TILE, ROWS, CLUSTERS])


def log_softmax_bwd(p: Problem, named: str = "") -> Chosen | str:
    y, size = p["y"], p["y"].shape[1] * p["y"].itemsize
    order = [ROWS] if KIB < size <= _register_rows.ROW_BYTES and not _in_vectors(y) else []
    if p.device.arch >= 90 and (size > 32 * KIB or (size > 6 * KIB and not _in_vectors(y))):
        order.append(CLUSTERS)
    return _chosen("log_softmax_bwd", p, named, [*order, TILE, ROWS, CLUSTERS])


def _in_vectors(m: Meta) -> bool:
    """Whether Triton's accesses of its rows are vectors."""
    return m.shape[1] % 16 == 0 and m.strides[0] % 16 == 0 and m.align >= 16


def _whole_vectors(p: Problem) -> bool:
    """Whether all rows are whole vectors on 16 bytes."""
    rows, columns = p["y"].shape[:2]
    per = 16 // p["y"].itemsize
    if columns % per:
        return False
    return not any([p[name].align < 16 or (rows > 1 and p[name].strides[0] % per) for name in ("y", "dy", "dx")])
