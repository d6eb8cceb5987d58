"""out = a b in CuTe DSL, for operands of 16 bits whose rows of a and columns of b are neighbours. Contract: rooftop/ops/matmul.py

A producer warp loads slices of a and b by TMA into a ring of stages; two consumer warp groups multiply them with wgmma, 64 rows each, and
write the tile to shared memory, from where it is stored in whole rows. Blocks are numbered in groups of tile rows, so that concurrent
blocks read the same operands from L2."""

from dataclasses import dataclass

from rooftop.core.spec import Launch, Problem, TensorMap
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels._device.cute import cute, cutlass

GROUP = 8  # tile rows
PAD = 8  # row stride of the tile in shared memory: eight rows at once have no bank conflict

pipeline, warpgroup, cpasync = cutlass.pipeline, cute.nvgpu.warpgroup, cute.nvgpu.cpasync


@cute.kernel
def _product(
    map_a: cute.CopyAtom, a: cute.Tensor, map_b: cute.CopyAtom, b: cute.Tensor, out: cute.Pointer, rows: cutlass.Int32,
    columns: cutlass.Int32, step: cutlass.Int64, mma: cute.TiledMma, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout,
    M: cutlass.Constexpr, N: cutlass.Constexpr, K: cutlass.Constexpr, STAGES: cutlass.Constexpr,
):
    dtype = out.dtype
    THREADS = cutlass.const_expr(2 * M)  # consumer warps
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    down, across = cute.ceil_div(rows, M), cute.ceil_div(columns, N)
    first = block // (GROUP * across) * GROUP
    size = cutlass.min(down - first, GROUP)
    i, j = first + (block % (GROUP * across)) % size, (block % (GROUP * across)) // size

    smem = cutlass.utils.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
    held_a = smem.allocate_tensor(dtype, layout_a.outer, 1024, swizzle=layout_a.inner)
    held_b = smem.allocate_tensor(dtype, layout_b.outer, 1024, swizzle=layout_b.inner)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers, num_stages=STAGES, producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS // 32), tx_count=(M + N) * K * dtype.width // 8,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    tiles_a, tiles_b = cute.local_tile(a, (M, K), (i, None)), cute.local_tile(b, (N, K), (j, None))
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(map_a, 0, one, cute.group_modes(held_a, 0, 2), cute.group_modes(tiles_a, 0, 2))
    to_b, from_b = cpasync.tma_partition(map_b, 0, one, cute.group_modes(held_b, 0, 2), cute.group_modes(tiles_b, 0, 2))
    slices = cute.size(tiles_a, mode=[2])
    if warp >= THREADS // 32:
        cute.arch.warpgroup_reg_dealloc(40)
        if warp == THREADS // 32:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
            for _ in cutlass.range(slices, unroll=1):
                ring.producer_acquire(put)
                cute.copy(map_a, from_a[None, put.count], to_a[None, put.index], tma_bar_ptr=ring.producer_get_barrier(put))
                cute.copy(map_b, from_b[None, put.count], to_b[None, put.index], tma_bar_ptr=ring.producer_get_barrier(put))
                ring.producer_commit(put)
                put.advance()
            ring.producer_tail(put)
    else:
        cute.arch.warpgroup_reg_alloc(232)
        group = cute.arch.make_warp_uniform(thread // 128)
        part = mma.get_slice(cute.make_layout(M // 64, stride=128)(group))
        own_a, own_b = mma.make_fragment_A(part.partition_A(held_a)), mma.make_fragment_B(part.partition_B(held_b))
        sums = cute.make_fragment(part.partition_shape_C((M, N)), cutlass.Float32)
        take = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        for k in cutlass.range(slices, unroll=1):
            ring.consumer_wait(take)
            warpgroup.fence()
            for piece in cutlass.range_constexpr(cute.size(own_a, mode=[2])):
                cute.gemm(mma, sums, own_a[None, None, piece, take.index], own_b[None, None, piece, take.index], sums)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(1)  # the slice before has been multiplied
            if k > 0:
                ring.consumer_release(free)
                free.advance()
            take.advance()
        warpgroup.wait_group(0)
        ring.consumer_release(free)
        found = cute.make_fragment_like(sums, dtype)
        found.store(sums.load().to(dtype))
        tile = cute.make_tensor(cute.recast_ptr(held_a.iterator, dtype=dtype), cute.make_layout((M, N), stride=(N + PAD, 1)))
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)  # both groups have read it
        matrices = cute.make_tiled_copy_C(cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), dtype), mma).get_slice(thread)
        cute.copy(matrices, matrices.retile(found), matrices.partition_D(tile))
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        vector = cute.make_layout((8,), stride=(1,))
        for at in cutlass.range_constexpr(M * N // 8 // THREADS):
            row, column = (at * THREADS + thread) // (N // 8), (at * THREADS + thread) % (N // 8) * 8
            if i * M + row < rows and j * N + column < columns:
                given = cute.make_tensor((tile.iterator + row * (N + PAD) + column).align(16), vector)
                to = out + cutlass.Int64(i * M + row) * step + j * N + column
                cute.autovec_copy(given, cute.make_tensor(to.align(16), vector))


@cute.jit
def product(
    a: cute.Pointer, b: cute.Pointer, out: cute.Pointer, rows: cutlass.Int32, columns: cutlass.Int32, depth: cutlass.Int32,
    a_step: cutlass.Int64, b_step: cutlass.Int64, step: cutlass.Int64, M: cutlass.Constexpr, N: cutlass.Constexpr, K: cutlass.Constexpr,
    STAGES: cutlass.Constexpr,
):
    by_k, dtype = warpgroup.OperandMajorMode.K, a.dtype
    mma = cutlass.utils.hopper_helpers.make_trivial_tiled_mma(dtype, dtype, by_k, by_k, cutlass.Float32, (M // 64, 1, 1), tiler_mn=(64, N))
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    layout_a, layout_b = (cute.tile_to_shape(atom, (extent, K, STAGES), (0, 1, 2)) for extent in (M, N))
    matrix_a = cute.make_tensor(a, cute.make_layout((rows, depth), stride=(cute.assume(a_step, 8), 1)))
    matrix_b = cute.make_tensor(b, cute.make_layout((columns, depth), stride=(cute.assume(b_step, 8), 1)))
    copy = cpasync.CopyBulkTensorTileG2SOp()
    map_a, tiles_a = cpasync.make_tiled_tma_atom(copy, matrix_a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    map_b, tiles_b = cpasync.make_tiled_tma_atom(copy, matrix_b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    _product(map_a, tiles_a, map_b, tiles_b, out, rows, columns, step, mma, layout_a, layout_b, M, N, K, STAGES).launch(
        grid=[1, 1, 1], block=[2 * M + 128, 1, 1]
    )


@dataclass(frozen=True)
class Config:
    """Tiles of `rows` × `columns` × `depth`, `stages` slices in flight."""

    rows: int
    columns: int
    depth: int
    stages: int


def supports(p: Problem) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if p.device.arch >= 100:
        return f"wgmma is Hopper's alone; {p.device.name} is sm_{p.device.arch}"
    if a.dtype not in ("bf16", "f16") or out.dtype != a.dtype:
        return f"takes bf16 and f16, and gives the same; given {a.dtype} and {out.dtype}"
    if len(a.shape) != 2:
        return f"takes one product; given a batch of {a.shape[0]}"
    if given := [n for n in ("c", "bias", "gate", "residual") if p.get(n) is not None]:
        return f"takes a and b alone; given {', '.join(given)}"
    if p.option("alpha") != 1.0 or p.option("activation") != "none":
        return "takes neither a scale nor an activation"
    if 0 in (*a.shape, *out.shape):
        return "M, N and K must be at least 1"
    if a.strides[1] != 1 or b.strides[0] != 1:
        return "the elements of a row of a, and of a column of b, must be neighbours"
    turned = b.with_(shape=b.shape[::-1], strides=b.strides[::-1])
    for name, meta in (("a", a), ("b", turned)):
        if reason := not_copied(meta):
            return f"TMA does not read {name}: {reason}"
    if out.shape[1] % 8 or out.strides[0] % 8 or out.align < 16:
        return "the rows of the result must lie on 16 bytes"
    return None


def choose(p: Problem) -> Config:
    rows, columns = p["out"].shape
    for config in (Config(128, 256, 64, 4), Config(128, 128, 64, 6)):
        if -(-rows // config.rows) * -(-columns // config.columns) >= p.device.sms:
            return config
    return Config(128, 64, 64, 6)


def configs(p: Problem) -> list[Config]:
    return [Config(128, 256, 64, 4), Config(128, 256, 64, 3), Config(128, 128, 64, 6), Config(128, 128, 64, 3), Config(128, 64, 64, 6)]


def launches(p: Problem, config: Config) -> list[Launch]:
    (rows, depth), columns = p["a"].shape, p["out"].shape[1]
    a_step, b_step, step = p["a"].strides[0], p["b"].strides[1], p["out"].strides[0]
    compiled = {
        "a": "a", "b": "b", "out": "out", "rows": rows, "columns": columns, "depth": depth, "a_step": a_step, "b_step": b_step,
        "step": step, "M": config.rows, "N": config.columns, "K": config.depth, "STAGES": config.stages,
    }
    args = {  # an operand: its tensor map, then rows and depth
        "map_a": TensorMap("a", (config.rows, config.depth), 128), "a": rows | depth << 32,
        "map_b": TensorMap("b", (config.columns, config.depth), 128, shape=(columns, depth), strides=(b_step, 1)),
        "b": columns | depth << 32, "out": "out", "rows": rows, "columns": columns, "step": step, "mma": False,
    }
    types = ("map", "i64", "map", "i64", "ptr", "i32", "i32", "i64", "bool")
    stages = (config.rows + config.columns) * config.depth * 2 * config.stages
    tile = config.rows * (config.columns + PAD) * 2
    tiles = -(-rows // config.rows) * -(-columns // config.columns)
    return [
        Launch(
            product, (tiles,), args, types=types, block=(2 * config.rows + 128,), shared=1024 + max(stages, tile),
            options={"compile": compiled}
        )
    ]
