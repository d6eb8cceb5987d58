"""Which kernel multiplies matrices. Tile, split and schedule within one kernel come from _model.py's prediction of its time."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem
from rooftop.kernels.gemm import _lowbit_plan

# multiply-adds of float32, and K: up to here Triton's kernel is faster, since the CUDA C++ one takes longer to start
SMALL, SHALLOW = 1 << 25, 128
# times of threads that load 2 bytes at a time over the predicted ones, without a record of its own: of the contract's cases those with odd
# sizes, strides or addresses depend on it
THREADS = 1.65
ERRING = 1.06  # the same of clusters over the persistent kernel, whose rates were fitted to more products
THIN = 64  # rows or columns; with fewer, copying or splitting the other operand beforehand moves more bytes than the product
DECODE, FEW = 16, 64  # rows of x of a quantised product up to which mma.sync is always faster, and up to which it may be
CUBLAS = ("matmul__cublas__torch", "no kernel of this library takes it")


def matmul(p: Problem, named: str = "") -> Chosen | str:
    if named:
        return in_order(p, named, ())
    if p["a"].dtype != "f32":
        return in_order(p, named, _narrow(p))
    return in_order(p, named, _full(p) if p.option("precision") == "ieee" else _by_tensor_cores(p))


def _narrow(p: Problem) -> list[tuple[str, str]]:
    """16 bits: the kernel whose model predicts the shortest time. Of loads of 2 bytes by threads the latency is hard to predict."""
    order = [
        ("matmul__gluon_sm90", "TMA and wgmma"), ("matmul__triton", "any stride, address and size"),
        ("matmul__few__cuda_sm90", "few tiles, in one launch"), ("matmul__multicast__cuda_sm90", "clusters share what they load"),
        ("matmul__copied__gluon_sm90", "an operand is copied, for TMA to read it"), CUBLAS,
    ]
    if p.device.arch < 90:
        return order
    from rooftop.kernels._device.gluon_tiles import readable
    from rooftop.kernels.gemm import matmul__copied__gluon_sm90 as copied
    from rooftop.kernels.gemm import matmul__few__cuda_sm90 as few
    from rooftop.kernels.gemm import matmul__gluon_sm90 as persistent
    from rooftop.kernels.gemm import matmul__multicast__cuda_sm90 as sharing
    from rooftop.kernels.gemm import matmul__triton as threads

    times: dict[str, tuple[float, str]] = {}
    if readable(p["a"]) is None and readable(p["b"]) is None:
        if persistent.supports(p) is None:
            times["matmul__gluon_sm90"] = (persistent.predicted(p), "TMA and wgmma")
        if sharing.supports(p) is None:
            times["matmul__multicast__cuda_sm90"] = (ERRING * sharing.predicted(p), "clusters share what they load")
    else:
        times["matmul__triton"] = (THREADS * threads.seconds(p, threads.choose(p)), "threads that load 2 bytes at a time")
        if copied.supports(p) is None:
            times["matmul__copied__gluon_sm90"] = (copied.seconds(p), "the copy costs less than threads that load 2 bytes at a time")
    if few.supports(p) is None and (found := few.predicted(p)) is not None:
        times["matmul__few__cuda_sm90"] = (found, "few tiles, in one launch")
    if not times:
        return order
    name = min(times, key=lambda n: times[n][0])
    return [(name, times[name][1]), *(x for x in order if x[0] != name)]


def _full(p: Problem) -> list[tuple[str, str]]:
    """float32 by multiply-adds; large batches that the CUDA C++ kernel does not take by cuBLAS."""
    batched = len(p["a"].shape) == 3
    k, madds = p["a"].shape[-1], p["out"].numel * p["a"].shape[-1]
    order = [("matmul__simt__cuda_sm80", "tiles in registers")]
    triton = ("matmul__triton", "small, or of any layout")
    if madds <= SMALL or (k <= SHALLOW and madds <= 8 * SMALL):
        return [*order, triton, CUBLAS]
    return [*order, CUBLAS, triton] if batched else [*order, triton, CUBLAS]


def _by_tensor_cores(p: Problem) -> list[tuple[str, str]]:
    """float32 as TF32, or in parts of TF32 or bfloat16. With few rows the product is bound by memory: then operands are split in
    registers."""
    m, n, k = p["a"].shape[-2], p["b"].shape[-1], p["a"].shape[-1]
    precision = ("matmul__precision__triton", "rounded or split in registers")
    if p.option("precision") == "tf32":
        hopper, first = ("matmul__tf32__gluon_sm90", "TMA rounds to TF32 as it copies"), False
        if p.device.arch >= 90 and k >= 32:
            from rooftop.kernels.gemm import matmul__tf32__gluon_sm90 as tf32

            copied = tf32.copied(p)
            first = not (("b" in copied and m <= THIN) or ("a" in copied and n <= THIN))
    else:
        hopper, first = ("matmul__split__gluon_sm90", "split beforehand, wgmma"), min(m, n) > THIN and k >= 128
    return [hopper, precision, CUBLAS] if first else [precision, hopper, CUBLAS]


def grouped_matmul(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, (("grouped_matmul__gluon_sm90", "TMA and wgmma"), ("grouped_matmul__triton", "any layout")))


def int_matmul(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, _eight_bits(p, "int_matmul"))


def scaled_matmul(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, _eight_bits(p, "scaled_matmul"))


def _eight_bits(p: Problem, op: str) -> tuple[tuple[str, str], ...]:
    """TMA and wgmma, unless K is short or they do not read the operands where they lie: then what is predicted to be faster, copying those or
    threads that load a byte at a time. Blocks of scales are of 128 products, which tiles for short K do not have."""
    hopper, threads = (f"{op}__gluon_sm90", "TMA and wgmma"), (f"{op}__triton", "any layout, and little to start")
    if p.device.arch < 90 or 0 in (*p["a"].shape, *p["b"].shape):
        return hopper, threads
    from rooftop.kernels.gemm import _tiles_8bit, int_matmul__gluon_sm90, scaled_matmul__gluon_sm90
    from rooftop.kernels.gemm._product_launches import unread

    long = p["a"].shape[1] > 2 * _tiles_8bit.SHORT or any(o == "scales" and v == "blocks" for o, v in p.options)
    if long and not unread(p["a"], p["b"]):
        return hopper, threads
    wgmma = (scaled_matmul__gluon_sm90 if op == "scaled_matmul" else int_matmul__gluon_sm90).predicted(p)
    return (hopper, threads) if wgmma <= _tiles_8bit.seconds(p) else (threads, hopper)


def quantized_matmul(p: Problem, named: str = "") -> Chosen | str:
    """mma.sync up to 16 rows, and up to 64 where it is predicted to be faster; with more rows, and on older cards from 64 rows on, the
    kernel that unpacks a code once for many of them."""
    rows = p["x"].shape[0]
    mma, wgmma = ("quantized_matmul__mma__cuda_sm80", "few rows: mma.sync"), (
        "quantized_matmul__gluon_sm90", "a code is unpacked once for many rows"
    )
    if named or rows > FEW:
        return in_order(p, named, (wgmma, mma))
    if rows <= DECODE or p.device.arch < 90:
        return in_order(p, named, (mma, wgmma))
    from rooftop.kernels.gemm import quantized_matmul__mma__cuda_sm80 as few

    if few.supports(p, None) is not None:
        return in_order(p, named, (wgmma,))
    return in_order(p, named, (mma, wgmma) if few.predicted(p) <= _lowbit_plan.ranked(p)[0][0] else (wgmma, mma))
