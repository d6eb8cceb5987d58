"""Softmax of rows x[R, C] in CuTe DSL. Contract: rooftop/ops/softmax.py

A block holds one row in registers; every warp computes maximum and sum of its part, and the warps exchange them through shared memory, with
one barrier."""

import math
import operator

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.cute import cute, cutlass
from rooftop.kernels.norm._tile_rows import Vectors as Config
from rooftop.kernels.norm._tile_rows import too_wide, vectors

LOWEST = -3.4028234663852886e38  # the identity of the maximum: -inf would give -inf - -inf = NaN
LOG2E = 1.4426950408889634


@cute.jit
def _exp(v, EXACT: cutlass.Constexpr):
    """exp(v): for float32 to its last digits, for 16 bits by the hardware's exp2."""
    return cute.exp(v) if cutlass.const_expr(EXACT) else cute.exp2(v * LOG2E, fastmath=True)


@cute.kernel
def _rows(x: cute.Pointer, y: cute.Pointer, columns: cutlass.Int32, xs: cutlass.Int64, ys: cutlass.Int64, WIDTH: cutlass.Constexpr,
          VECTORS: cutlass.Constexpr, WARPS: cutlass.Constexpr, EXACT: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    count = columns // WIDTH
    bytes = cutlass.const_expr(WIDTH * x.dtype.width // 8)
    given = cute.make_tensor((x + cutlass.Int64(row) * xs).align(bytes), cute.make_layout((WIDTH, count), stride=(1, WIDTH)))
    made = cute.make_tensor((y + cutlass.Int64(row) * ys).align(bytes), cute.make_layout((WIDTH, count), stride=(1, WIDTH)))
    held = cute.make_fragment((WIDTH, VECTORS), x.dtype)
    held.fill(-math.inf)
    for i in cutlass.range_constexpr(VECTORS):
        at = thread + i * (WARPS * 32)
        if at < count:
            cute.autovec_copy(given[None, at], held[None, i])
    v = held.load().to(cutlass.Float32)
    top = cute.arch.warp_reduction(v.reduce(cute.ReductionOp.MAX, LOWEST, 0), cute.arch.fmax)
    e = _exp(v - top, EXACT)
    sum = cute.arch.warp_reduction(e.reduce(cute.ReductionOp.ADD, 0.0, 0), operator.add)
    most, total = top, sum
    if cutlass.const_expr(WARPS > 1):
        smem = cutlass.utils.SmemAllocator()
        parts = smem.allocate_tensor(cutlass.Float32, cute.make_layout((2, WARPS)), 16)
        if thread % 32 == 0:
            parts[0, thread // 32] = top
            parts[1, thread // 32] = sum
        cute.arch.barrier()
        for w in cutlass.range_constexpr(WARPS):
            most = cute.arch.fmax(most, parts[0, w])
        total = cutlass.Float32(0.0)
        for w in cutlass.range_constexpr(WARPS):
            total += parts[1, w] * cute.exp2((parts[0, w] - most) * LOG2E)
    shift = cute.exp2((top - most) * LOG2E)  # 1 for the warp that holds the maximum
    out = cute.make_fragment_like(held)
    if cutlass.const_expr(EXACT):
        out.store((_exp(v - most, EXACT) / total).to(x.dtype))
    else:
        out.store((e * (shift / total)).to(x.dtype))
    for i in cutlass.range_constexpr(VECTORS):
        at = thread + i * (WARPS * 32)
        if at < count:
            cute.autovec_copy(out[None, i], made[None, at])


@cute.jit
def rows(x: cute.Pointer, y: cute.Pointer, columns: cutlass.Int32, xs: cutlass.Int64, ys: cutlass.Int64, WIDTH: cutlass.Constexpr,
         VECTORS: cutlass.Constexpr, WARPS: cutlass.Constexpr, EXACT: cutlass.Constexpr):
    _rows(x, y, columns, xs, ys, WIDTH, VECTORS, WARPS, EXACT).launch(grid=[1, 1, 1], block=[32 * WARPS, 1, 1])


def _width(p: Problem) -> int:
    """Elements of one access, at most 16 bytes: a divisor of the row, the row stride and the address."""
    x, y = p["x"], p["y"]
    width = 16 // x.itemsize
    steps = [x.shape[1]] + [m.strides[0] for m in (x, y) if m.shape[0] > 1]
    while width > 1 and (any(n % width for n in steps) or min(x.align, y.align) < width * x.itemsize):
        width //= 2
    return width


def supports(p: Problem) -> str | None:
    x, y = p["x"], p["y"]
    if x.dtype not in ("f32", "f16", "bf16") or y.dtype != x.dtype:
        return f"takes f32, f16 or bf16, the same for x and y; given {x.dtype} and {y.dtype}"
    if x.numel == 0:
        return "there is nothing to compute"
    if x.shape[2] != 1:
        return f"takes rows; given {x.shape[2]} inner positions"
    if x.shape[1] > 1 and (x.strides[1] != 1 or y.strides[1] != 1):
        return f"takes rows of neighbouring elements; given strides {x.strides[1]} and {y.strides[1]}"
    if x.shape[0] >= 2**31:
        return f"takes fewer than 2**31 rows; given {x.shape[0]}"
    return too_wide(p, _width(p))


def choose(p: Problem) -> Config:
    """Four accesses in flight a thread."""
    return vectors(p, _width(p), 4)


def configs(p: Problem) -> list[Config]:
    return list(dict.fromkeys(vectors(p, _width(p), n) for n in (1, 2, 4, 8)))


def launches(p: Problem, config: Config) -> list[Launch]:
    x, y = p["x"], p["y"]
    args = {
        "x": "x", "y": "y", "columns": x.shape[1], "xs": x.strides[0], "ys": y.strides[0], "WIDTH": config.width, "VECTORS": config.vectors,
        "WARPS": config.warps, "EXACT": x.dtype == "f32",
    }
    return [Launch(rows, (x.shape[0],), args, block=(32 * config.warps,), shared=max(16, 8 * config.warps))]  # of SmemAllocator: dynamic
