"""y = rms_norm(x + residual) · weight + bias over the rows of [R, C] in CuTe DSL. Contract: rooftop/ops/rms_norm.py

A block holds one row in registers; the warps exchange their sums of squares through shared memory, with one barrier."""

import operator

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.cute import cute, cutlass
from rooftop.kernels.norm._tile_rows import Vectors as Config
from rooftop.kernels.norm._tile_rows import too_wide, vectors


@cute.jit
def _read(
    pointer: cute.Pointer, held: cute.Tensor, columns: cutlass.Int32, WIDTH: cutlass.Constexpr, VECTORS: cutlass.Constexpr,
    WARPS: cutlass.Constexpr
):
    """This thread's vectors of a row."""
    thread, _, _ = cute.arch.thread_idx()
    bytes = cutlass.const_expr(min(16, WIDTH * pointer.dtype.width // 8))
    row = cute.make_tensor(pointer.align(bytes), cute.make_layout((WIDTH, columns // WIDTH), stride=(1, WIDTH)))
    for i in cutlass.range_constexpr(VECTORS):
        at = thread + i * (WARPS * 32)
        if at < columns // WIDTH:
            cute.autovec_copy(row[None, at], held[None, i])


@cute.jit
def _write(
    pointer: cute.Pointer, held: cute.Tensor, columns: cutlass.Int32, WIDTH: cutlass.Constexpr, VECTORS: cutlass.Constexpr,
    WARPS: cutlass.Constexpr
):
    thread, _, _ = cute.arch.thread_idx()
    bytes = cutlass.const_expr(min(16, WIDTH * pointer.dtype.width // 8))
    row = cute.make_tensor(pointer.align(bytes), cute.make_layout((WIDTH, columns // WIDTH), stride=(1, WIDTH)))
    for i in cutlass.range_constexpr(VECTORS):
        at = thread + i * (WARPS * 32)
        if at < columns // WIDTH:
            cute.autovec_copy(held[None, i], row[None, at])


@cute.kernel
def _rows(
    x: cute.Pointer, residual: cute.Pointer, weight: cute.Pointer, bias: cute.Pointer, y: cute.Pointer, s: cute.Pointer,
    columns: cutlass.Int32, xs: cutlass.Int64, rs: cutlass.Int64, ys: cutlass.Int64, ss: cutlass.Int64, eps: cutlass.Float32,
    WIDTH: cutlass.Constexpr, VECTORS: cutlass.Constexpr, WARPS: cutlass.Constexpr, RESIDUAL: cutlass.Constexpr, WEIGHT: cutlass.Constexpr,
    BIAS: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = cutlass.Int64(block)
    held = cute.make_fragment((WIDTH, VECTORS), x.dtype)
    held.fill(0.0)
    _read(x + row * xs, held, columns, WIDTH, VECTORS, WARPS)
    if cutlass.const_expr(RESIDUAL):
        more = cute.make_fragment((WIDTH, VECTORS), x.dtype)
        more.fill(0.0)
        _read(residual + row * rs, more, columns, WIDTH, VECTORS, WARPS)
        # the rounded sum, which is returned, is normalised
        held.store((held.load().to(cutlass.Float32) + more.load().to(cutlass.Float32)).to(x.dtype))
        _write(s + row * ss, held, columns, WIDTH, VECTORS, WARPS)
    v = held.load().to(cutlass.Float32)
    squares = cute.arch.warp_reduction((v * v).reduce(cute.ReductionOp.ADD, 0.0, 0), operator.add)
    if cutlass.const_expr(WARPS > 1):
        parts = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
        if thread % 32 == 0:
            parts[thread // 32] = squares
        cute.arch.barrier()
        squares = cutlass.Float32(0.0)
        for w in cutlass.range_constexpr(WARPS):
            squares += parts[w]
    found = v * (1.0 / cute.sqrt(squares / cutlass.Float32(columns) + eps))
    if cutlass.const_expr(WEIGHT):
        scale = cute.make_fragment((WIDTH, VECTORS), weight.dtype)
        _read(weight, scale, columns, WIDTH, VECTORS, WARPS)
        found = found * scale.load().to(cutlass.Float32)
    if cutlass.const_expr(BIAS):
        shift = cute.make_fragment((WIDTH, VECTORS), bias.dtype)
        _read(bias, shift, columns, WIDTH, VECTORS, WARPS)
        found = found + shift.load().to(cutlass.Float32)
    held.store(found.to(x.dtype))
    _write(y + row * ys, held, columns, WIDTH, VECTORS, WARPS)


@cute.jit
def rows(
    x: cute.Pointer, residual: cute.Pointer, weight: cute.Pointer, bias: cute.Pointer, y: cute.Pointer, s: cute.Pointer,
    columns: cutlass.Int32, xs: cutlass.Int64, rs: cutlass.Int64, ys: cutlass.Int64, ss: cutlass.Int64, eps: cutlass.Float32,
    WIDTH: cutlass.Constexpr, VECTORS: cutlass.Constexpr, WARPS: cutlass.Constexpr, RESIDUAL: cutlass.Constexpr, WEIGHT: cutlass.Constexpr,
    BIAS: cutlass.Constexpr,
):
    _rows(x, residual, weight, bias, y, s, columns, xs, rs, ys, ss, eps, WIDTH, VECTORS, WARPS, RESIDUAL, WEIGHT, BIAS).launch(
        grid=[1, 1, 1], block=[32 * WARPS, 1, 1]
    )


ROWS, COLUMNS = ("x", "residual", "y", "s"), ("weight", "bias")


def _width(p: Problem) -> int:
    """Elements of one access, at most 16 bytes: a divisor of the row, the row stride and every address."""
    found = [m for n in ROWS if (m := p.get(n)) is not None]
    width = 16 // p["x"].itemsize
    steps = [p["x"].shape[1]] + [m.strides[0] for m in found if m.shape[0] > 1]
    while width > 1 and (any(n % width for n in steps) or any(m.align < width * p["x"].itemsize for m in found)):
        width //= 2
    return min(width, *(max(1, p[n].align // p[n].itemsize) for n in COLUMNS if p.get(n) is not None), 8)


def supports(p: Problem) -> str | None:
    x = p["x"]
    if p.extra:
        return "takes no addend"
    if x.dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 or bf16; given {x.dtype}"
    if x.numel == 0:
        return "there is nothing to compute"
    if x.shape[0] >= 2**31:
        return f"takes fewer than 2**31 rows; given {x.shape[0]}"
    return too_wide(p, _width(p))


def choose(p: Problem) -> Config:
    """Four accesses in flight a thread."""
    return vectors(p, _width(p), 4)


def configs(p: Problem) -> list[Config]:
    return list(dict.fromkeys(vectors(p, _width(p), n) for n in (1, 2, 4, 8)))


def launches(p: Problem, config: Config) -> list[Launch]:
    args = {n: n if p.get(n) is not None else "x" for n in (*ROWS, *COLUMNS)}
    args |= {f"{n[0]}s": m.strides[0] if (m := p.get(n)) is not None else 0 for n in ROWS}
    args |= {
        "columns": p["x"].shape[1], "eps": float(p.option("eps")), "WIDTH": config.width, "VECTORS": config.vectors, "WARPS": config.warps
    }
    args |= {n.upper(): p.get(n) is not None for n in ("residual", "weight", "bias")}
    # of SmemAllocator: dynamic
    return [Launch(rows, (p["x"].shape[0],), args, block=(32 * config.warps,), shared=max(16, 4 * config.warps))]
