"""The Hopper matrix product in Gluon: a persistent, warp-specialised kernel that every product of this family runs.

A block is one producer warp and one or two consumer warp groups. The producer moves slices of A and B by TMA into a ring of stages; each stage
has two mbarriers, `full` (its bytes have landed) and `empty` (every consumer has done with it). A consumer group owns BM / GROUPS rows of the
tile, multiplies them by wgmma with one product in flight, and stores its part while the producer already loads the next tile. Tiles are taken
by a fixed stride, in groups of rows, so that those in flight at once share their operands in L2.

Rows and columns past the end are filled with zeros by TMA and left out by the store. Whole numbers are 32 bits wide: TMA takes coordinates,
not offsets."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels._device import activations


@gluon.jit
def place(tile, M, N, group, BM: gl.constexpr, BN: gl.constexpr):
    """Tile number -> row and column of the tile, and the number of the split or batch. `group` rows of tiles are walked column by column."""
    rows = gl.cdiv(M, BM)
    columns = gl.cdiv(N, BN)
    z = tile // (rows * columns)
    rest = tile % (rows * columns)
    width = group * columns
    first = rest // width * group
    size = gl.minimum(rows - first, group)
    return first + rest % width % size, rest % width // size, z


@gluon.jit
def span(z, K, splits, BK: gl.constexpr):
    """First slice of K of split z and one past its last. No split is empty: the host sees to it."""
    slices = gl.cdiv(K, BK)
    per = gl.cdiv(slices, splits)
    return z * per, gl.minimum(z * per + per, slices)


@gluon.jit
def load(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, total, group, splits, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr,
         STAGES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr):  # fmt: skip
    """The producer warp. X_COLUMNS: the descriptor is of the transposed operand, whose columns lie in rows of memory."""
    RM: gl.constexpr = BM // GROUPS
    BYTES: gl.constexpr = GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
    n = 0
    for tile in range(gl.program_id(0), total, gl.num_programs(0)):
        pm, pn, z = place(tile, M, N, group, BM, BN)
        begin, end = span(z % splits, K, splits, BK)
        for k in range(begin, end):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for i in gl.static_range(GROUPS):
                if A_COLUMNS:
                    tma.async_copy_global_to_shared(a_desc, [k * BK, pm * BM + i * RM], full.index(stage), a_ring.index(stage * GROUPS + i))
                else:
                    tma.async_copy_global_to_shared(a_desc, [pm * BM + i * RM, k * BK], full.index(stage), a_ring.index(stage * GROUPS + i))
            if B_COLUMNS:
                tma.async_copy_global_to_shared(b_desc, [pn * BN, k * BK], full.index(stage), b_ring.index(stage))
            else:
                tma.async_copy_global_to_shared(b_desc, [k * BK, pn * BN], full.index(stage), b_ring.index(stage))
            n += 1


@gluon.jit
def halves(x, LAYOUT: gl.constexpr):
    """The left and the right half of the columns: no data moves."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    left, right = x.reshape([M, 2, N // 2]).permute(0, 2, 1).split()
    return gl.convert_layout(left, LAYOUT, assert_trivial=True), gl.convert_layout(right, LAYOUT, assert_trivial=True)


@gluon.jit
def finish(x, row, column, M, N, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr, ACT: gl.constexpr):
    """The epilogue, in float32: act(alpha x + beta c + bias) · gate + residual."""
    L: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, L))
    columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, L))
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    wide = rows.to(gl.int64)
    x = x * alpha
    if c is not None:
        x += beta * gl.load(c + (wide * ldc)[:, None] + columns[None, :], mask=inside, other=0.0).to(gl.float32)
    if bias is not None:
        x += gl.load(bias + columns, mask=columns < N, other=0.0).to(gl.float32)[None, :]
    x = activate(x, ACT)
    if gate is not None:
        x *= gl.load(gate + (wide * ldg)[:, None] + columns[None, :], mask=inside, other=0.0).to(gl.float32)
    if residual is not None:
        x += gl.load(residual + (wide * ldr)[:, None] + columns[None, :], mask=inside, other=0.0).to(gl.float32)
    return x


@gluon.jit
def put(x, out, ldo, row, column, M, N):
    """Stores x straight from registers, masked."""
    L: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, L))
    columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, L))
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    gl.store(out + (rows.to(gl.int64) * ldo)[:, None] + columns[None, :], x.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def activate(x, ACT: gl.constexpr):
    if ACT == "relu":
        x = gl.maximum(x, 0.0)
    elif ACT == "silu":
        x = silu(x)
    elif ACT == "gelu":
        x = gelu(x)
    elif ACT == "gelu_tanh":
        x = gelu_tanh(x)
    return x


@gluon.jit
def consume(GROUP_INDEX: gl.constexpr, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, M, N, K, total, group, splits, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
            BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
            A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, PARTS: gl.constexpr, ACT: gl.constexpr, EN: gl.constexpr):  # fmt: skip
    """One consumer warp group: rows GROUP_INDEX · RM and following of each tile."""
    RM: gl.constexpr = BM // GROUPS
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    n = 0
    acc = gl.zeros((RM, BN), gl.float32, MMA)
    for tile in range(gl.program_id(0), total, gl.num_programs(0)):
        pm, pn, z = place(tile, M, N, group, BM, BN)
        begin, end = span(z % splits, K, splits, BK)
        for k in range(begin, end):
            stage = n % STAGES
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            a = a_ring.index(stage * GROUPS + GROUP_INDEX)
            b = b_ring.index(stage)
            if A_COLUMNS:
                a = a.permute((1, 0))
            if B_COLUMNS:
                b = b.permute((1, 0))
            acc = warpgroup_mma(a, b, acc, use_acc=k > begin, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1, pred=k > begin)
            n += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index((n + STAGES - 1) % STAGES), count=1)
        store(GROUP_INDEX, acc, c_ring, out_desc, out, ldo, pm * BM + GROUP_INDEX * RM, pn * BN, z, M, N, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
              PARTS, ACT, EN)  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def store(GROUP_INDEX: gl.constexpr, acc, c_ring, out_desc, out, ldo, row, column, z, M, N, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
          PARTS: gl.constexpr, ACT: gl.constexpr, EN: gl.constexpr):  # fmt: skip
    """The epilogue of one group's part of a tile, EN columns at a time."""
    BN: gl.constexpr = acc.shape[1]
    PIECES: gl.constexpr = BN // EN
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 2, 16])
    QUARTER: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN // 4, 16])
    gl.static_assert(PIECES <= 4)
    if PIECES == 1:
        pieces = (acc,)
    elif PIECES == 2:
        pieces = halves(acc, HALF)
    else:
        left, right = halves(acc, HALF)
        pieces = halves(left, QUARTER) + halves(right, QUARTER)
    for i in gl.static_range(PIECES):
        at = column + i * EN
        if PARTS:
            put(pieces[i], out + z.to(gl.int64) * M * N, ldo, row, at, M, N)
        else:
            x = finish(pieces[i], row, at, M, N, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr, ACT)
            if out_desc is None:
                put(x, out, ldo, row, at, M, N)
            else:
                buffer = c_ring.index(GROUP_INDEX * 2 + i % 2)
                tma.store_wait(1 if PIECES > 1 else 0)
                buffer.store(x.to(out_desc.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(out_desc, [row, at], buffer)


@gluon.jit(do_not_specialize=("M", "N", "K", "total", "group", "splits"))
def product(a_desc, b_desc, out_desc, out, ldo, M, N, K, total, group, splits, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
            BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
            A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, PARTS: gl.constexpr, ACT: gl.constexpr, EN: gl.constexpr):  # fmt: skip
    """out = act(alpha a b + beta c + bias) · gate + residual; with PARTS each split of K stores its bare sum into
    out[split]."""
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
    if GROUPS == 1:
        gl.warp_specialize([
            (consume, (0, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, M, N, K, total, group, splits, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
                       BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, PARTS, ACT, EN)),
            (load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, total, group, splits, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS)),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (0, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, M, N, K, total, group, splits, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
                       BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, PARTS, ACT, EN)),
            (consume, (1, a_ring, b_ring, c_ring, full, empty, out_desc, out, ldo, M, N, K, total, group, splits, alpha, beta, c, ldc, bias, gate, ldg, residual, ldr,
                       BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS, PARTS, ACT, EN)),
            (load, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, total, group, splits, BM, BN, BK, GROUPS, STAGES, A_COLUMNS, B_COLUMNS)),
        ], [4, 1], [240, 24])  # fmt: skip


sigmoid = gluon.jit(activations.sigmoid.fn)
silu = gluon.jit(activations.silu.fn)
gelu = gluon.jit(activations.gelu.fn)
gelu_tanh = gluon.jit(activations.gelu_tanh.fn)
