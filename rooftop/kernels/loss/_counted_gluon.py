"""Products of which only the device knows how many rows count, on Hopper: a persistent, warp-specialised kernel in Gluon in the form of
`_product_gluon`.

`live` [1], int32, is the number of rows of a longer list that count. A chunk is the rows of that list from `first` on; of them live - first
count, at least 0 and at most the chunk's length. Two forms:

rows   a b, over the rows of a that count. Tiles past them are skipped. A tile that is partly past them computes its other rows from
       whatever is in memory; with a 16-bit result they are stored
depth  a b, over the columns of a and rows of b that count. Slices of K past them are skipped; the part of the last slice past them is set
       to zero in shared memory, in a and in b. If none count, the result is zeros

With SPLIT, of `rows`, K is cut into as many parts, whose float32 results lie one below the other, M rows each.

A float32 result is stored straight from registers, and may be added to what is in memory; a 16-bit result is stored by TMA. x_at: the first
row in memory of an operand or the result."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem, View
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gluon_tiles import TYPES, bring, flat, halves
from rooftop.kernels.loss._linear_plan import by_program, padded, taking
from rooftop.kernels.loss._live_passes import copy_rows

place = gluon.jit(gemm_epilogue.place.fn)

BK, GROUPS = 64, 2
TILES = {(128, 256): 4, (128, 128): 6, (256, 128): 3}  # rows and columns of a tile: its stages
MOST_PARTS = 8
FROM_L2 = 46  # bytes a clock: 128 x 128 tiles, which ask for 64, took 1.4 to 1.6 times as long as their products, 128 x 256, which ask for 48, as long
LONG = 512  # features from which the padding of a row is little of it


@gluon.jit
def _counted(live, first, most):
    return gl.minimum(gl.maximum(gl.load(live) - first, 0), most)


@gluon.jit
def _part(part, slices, SPLIT: gl.constexpr):
    """The slices of a part of K: no part is empty."""
    if SPLIT == 1:
        return 0, slices
    else:  # noqa: RET505
        each = gl.cdiv(slices, SPLIT)
        return part * each, gl.minimum((part + 1) * each, slices)


@gluon.jit
def _load(a_desc, b_desc, a_ring, b_ring, full, empty, live, first, M, N, K, a_at, b_at, group, BM: gl.constexpr, BN: gl.constexpr,
          BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
          DEPTH: gl.constexpr, SPLIT: gl.constexpr):
    """The producer warp. X_COLUMNS: the descriptor is of the transposed operand."""
    RM: gl.constexpr = BM // GROUPS
    BYTES: gl.constexpr = GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
    count = _counted(live, first, K if DEPTH else M)
    rows = M if DEPTH else count
    slices = gl.cdiv(count if DEPTH else K, BK)
    n = 0
    for tile in range(gl.program_id(0), gl.cdiv(rows, BM) * gl.cdiv(N, BN) * SPLIT, gl.num_programs(0)):
        pm, pn, part = place(tile, rows, N, group, BM, BN)
        begin, end = _part(part, slices, SPLIT)
        for k in range(begin, end):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for g in gl.static_range(GROUPS):
                row = pm * BM + g * RM
                if A_COLUMNS:
                    bring(a_desc, 0, row, a_at + k * BK, True, False, full.index(stage), a_ring.index(stage * GROUPS + g))
                else:
                    bring(a_desc, 0, a_at + row, k * BK, False, False, full.index(stage), a_ring.index(stage * GROUPS + g))
            if B_COLUMNS:
                bring(b_desc, 0, k * BK, b_at + pn * BN, True, False, full.index(stage), b_ring.index(stage))
            else:
                bring(b_desc, 0, b_at + k * BK, pn * BN, False, False, full.index(stage), b_ring.index(stage))
            n += 1


@gluon.jit
def _clear_past(x, left):
    """Writes zeros to the rows of a box from row `left` on. Several warp groups may write the same at once."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    values = x.load(L)
    inside = (gl.arange(0, x.shape[0], gl.SliceLayout(1, L)) < left)[:, None]
    x.store(gl.where(inside, values, gl.zeros_like(values)))


@gluon.jit
def _consume(GROUP_INDEX: gl.constexpr, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, live, first, M, N, K, out_at, group,
             BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr,
             B_COLUMNS: gl.constexpr, DEPTH: gl.constexpr, ADD: gl.constexpr, SPLIT: gl.constexpr):
    """One consumer warp group: rows from GROUP_INDEX · RM on of each tile."""
    RM: gl.constexpr = BM // GROUPS
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    count = _counted(live, first, K if DEPTH else M)
    rows = M if DEPTH else count
    depth = count if DEPTH else K
    slices = gl.cdiv(depth, BK)
    n = 0
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    for tile in range(gl.program_id(0), gl.cdiv(rows, BM) * gl.cdiv(N, BN) * SPLIT, gl.num_programs(0)):
        pm, pn, part = place(tile, rows, N, group, BM, BN)
        begin, end = _part(part, slices, SPLIT)
        for k in range(begin, end):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            if DEPTH:  # noqa: SIM102
                if depth - k * BK < BK:
                    _clear_past(a_ring.index(stage * GROUPS + GROUP_INDEX), depth - k * BK)
                    _clear_past(b_ring.index(stage), depth - k * BK)
                    fence_async_shared()
            a = flat(a_ring.index(stage * GROUPS + GROUP_INDEX), A_COLUMNS, False)
            b = flat(b_ring.index(stage), B_COLUMNS, False)
            acc = warpgroup_mma(a, b, acc, use_acc=k > begin, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=k > begin)
            n += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=end > begin)
        _store(GROUP_INDEX, acc, c_ring, out_desc, out, ldo, out_at if SPLIT == 1 else out_at + part * M, pm * BM + GROUP_INDEX * RM, pn * BN, rows, N, ADD)
    if out_desc is not None:
        tma.store_wait(0)


@gluon.jit
def _store(GROUP_INDEX: gl.constexpr, acc, c_ring, out_desc, out, ldo, out_at, row, column, rows, N, ADD: gl.constexpr):
    """One group's part of a tile, 64 columns at a time."""
    BN: gl.constexpr = acc.shape[1]
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 2, 16])
    if BN == 128:
        pieces = halves(acc, HALF)
    else:
        QUARTER: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 4, 16])
        left, right = halves(acc, HALF)
        pieces = halves(left, QUARTER) + halves(right, QUARTER)
    for i in gl.static_range(BN // 64):
        x = pieces[i]
        if out_desc is not None:
            buffer = c_ring.index(GROUP_INDEX * 2 + i % 2)
            tma.store_wait(1)
            buffer.store(x.to(out_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [out_at + row, column + i * 64], buffer)
        else:
            two = halves(x, gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16]))
            for j in gl.static_range(2):
                _store_wide(
                    two[j], out + (row + out_at).to(gl.int64) * ldo + (column + i * 64 + j * 32), ldo, rows - row,
                    N - (column + i * 64 + j * 32), ADD
                )


@gluon.jit
def _store_wide(x, out, ldo, rows, columns, ADD: gl.constexpr):
    """Stores straight from registers: four lanes write 32 neighbouring bytes. `out`: the address of x's first element; `rows`, `columns`:
    how many of x are stored."""
    row = gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    there = (row < rows)[:, None] & (column < columns)[None, :]
    to = out + ((row * ldo)[:, None] + column[None, :])
    if ADD:
        x += gl.load(to, mask=there, other=0.0)
    gl.store(to, x, mask=there)


@gluon.jit(do_not_specialize=("first", "M", "N", "K", "a_at", "b_at", "out_at", "group"))
def product(a_desc, b_desc, out_desc, out, ldo, live, first, M, N, K, a_at, b_at, out_at, group, BM: gl.constexpr, BN: gl.constexpr,
            BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
            DEPTH: gl.constexpr, ADD: gl.constexpr, SPLIT: gl.constexpr = 1):
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    if out_desc is None:
        c_ring: gl.constexpr = None
    else:
        c_ring = gl.allocate_shared_memory(out_desc.dtype, [2 * GROUPS] + out_desc.block_type.shape, out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    gl.warp_specialize([
        (_consume,
                    (0, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, live, first, M, N, K, out_at, group, BM, BN, BK, GROUPS,
                    STAGES, A_COLUMNS, B_COLUMNS, DEPTH, ADD, SPLIT)),
        (_consume,
                    (1, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, live, first, M, N, K, out_at, group, BM, BN, BK, GROUPS,
                    STAGES, A_COLUMNS, B_COLUMNS, DEPTH, ADD, SPLIT)),
        (_load,
                 (a_desc, b_desc, a_ring, b_ring, full, empty, live, first, M, N, K, a_at, b_at, group, BM, BN, BK, GROUPS, STAGES,
                 A_COLUMNS, B_COLUMNS, DEPTH, SPLIT)),
    ], [4, 1], [232, 40])


def _box(view: View, dtype: str, rows: int, columns: int) -> tuple[Descriptor, bool, int]:
    """A TMA descriptor of a matrix with boxes of rows x columns, whether it is of the transpose, and the first row in memory. The matrix's
    offset is a multiple of its row stride."""
    turned = view.strides[0] == 1 and view.strides[1] != 1
    (high, wide), pitch = (view.shape[::-1] if turned else view.shape), view.strides[1 if turned else 0]
    at, rest = divmod(view.offset, pitch)
    if rest:
        raise ValueError(f"{view.tensor} begins at element {view.offset}, which is no multiple of the {pitch} of a row")
    block = (columns, rows) if turned else (rows, columns)
    layout = gl.NVMMASharedLayout.get_default_for(list(block), TYPES[dtype])
    return Descriptor(view.tensor, block, layout, shape=(at + high, wide), strides=(pitch, 1)), turned, at


def _up(extent: int, each: int) -> int:
    return -(-extent // each)


def _tiles(wide: bool) -> list[tuple[int, int]]:
    """A float32 result of 256 rows spills: the addresses of 128 rows are in the registers of a group."""
    return [tile for tile in TILES if not wide or tile[0] == 128]


def _clocks(m: int, n: int, k: int, tile: tuple[int, int], parts: int, sms: int) -> float:
    """Predicted, as by rooftop/kernels/gemm/_model.py: the slices and results of the tiles that a multiprocessor computes in turn, and what parts
    of K are written and read at."""
    bm, bn = tile
    tiles, slices = _up(m, bm) * _up(n, bn) * parts, _up(_up(k, BK), parts)
    step = max(bm * bn * BK / 2048, 2 * BK * (bm + bn) / FROM_L2) + (100 if TILES[tile] > 3 else 180)
    return _up(tiles, sms) * (slices * step + 800 + bm * bn / 32) + (8 * parts * m * n / 1500 if parts > 1 else 0)


def parts_of(m: int, n: int, k: int, sms: int, most: int) -> int:
    """Into how many parts of K, at most `most`, a product is cut whose tiles would leave multiprocessors idle at last."""
    slices = _up(k, BK)
    options = sorted({_up(slices, _up(slices, x)) for x in range(1, max(1, min(most, MOST_PARTS)) + 1)})  # none is empty
    return min(options, key=lambda x: min(_clocks(m, n, k, tile, x, sms) for tile in _tiles(x > 1)))


def counted(
    metas: Any, out: View, a: View, b: View, sms: int, *, first: int = 0, depth: bool = False, add: bool = False, parts: int = 1
) -> Launch:
    """out = a b, or out += a b, over the rows of a that count (depth: the columns of a and rows of b that count). `metas`: name -> Meta of
    tensors and scratch; one of them is "live". With a 16-bit result, its rows must be multiples of 16 bytes. `parts` of K have float32
    results, one below the other."""
    kinds: dict[str, Meta] = metas
    m, n, k = a.shape[0], out.shape[1], a.shape[1]
    kind, wide = kinds[a.tensor].dtype, kinds[out.tensor].dtype == "f32"
    bm, bn = min(_tiles(wide), key=lambda tile: _clocks(m, n, k, tile, parts, sms))
    a_desc, a_columns, a_at = _box(a, kind, bm // GROUPS, BK)
    b_desc, b_columns, b_at = _box(b, kind, BK, bn)
    stored = View(out.tensor, (m, min(out.strides[0], -(-n // 8) * 8)), out.strides, out.offset)
    out_desc, _, out_at = _box(stored, kinds[out.tensor].dtype, bm // GROUPS, 64)
    tiles = _up(m, bm) * _up(n, bn) * parts
    args: dict[str, Any] = {
        "a_desc": a_desc, "b_desc": b_desc, "out_desc": None if wide else out_desc, "out": out.tensor if wide else None,
        "ldo": out.strides[0], "live": "live", "first": first, "M": m, "N": n, "K": k, "a_at": a_at, "b_at": b_at, "out_at": out_at,
        "group": max(1, round((sms * bm * bn) ** 0.5 / bm)), "BM": bm,
        "BN": bn, "BK": BK, "GROUPS": GROUPS, "STAGES": TILES[bm, bn], "A_COLUMNS": a_columns, "B_COLUMNS": b_columns, "DEPTH": depth,
        "ADD": add, **({"SPLIT": parts} if parts > 1 else {}),
    }
    return Launch(kernel=product, grid=(min(tiles, sms),), args=args, warps=4)


# -- a weight that TMA does not read ----------------------------------------------------------------------------------


def unread(p: Problem) -> str | None:
    """None, or why TMA does not read the weight where it lies: it is then copied into aligned rows."""
    width = p["x"].shape[1]
    return f"it has {width} features, which are no multiple of 8" if width % 8 else not_copied(p["weight"])


def row_stride(p: Problem) -> int:
    """Elements from a row to the next of gathered x, and of a copied weight. Of long rows whole lines: the L2 gives TMA a row that straddles two
    at little more than half the rate (`STRADDLING` in rooftop/kernels/gemm/_model.py)."""
    width = p["x"].shape[1]
    return padded(width) if width >= LONG or unread(p) is not None else width


def rows_copied(to: View, source: View) -> Launch:
    """to = source, of one dtype, whose rows may be apart. torch's copy computes the place of each element."""
    (rows, width), block = to.shape, by_program(to.shape[1])
    args = {
        "x": source.tensor, "out": to.tensor, "xo": source.offset, "xs": source.strides[0], "oo": to.offset, "pitch": to.strides[0], "H": width,
        "BLOCK": block
    }
    return taking(copy_rows, args, rows, max(1, block // 512))
