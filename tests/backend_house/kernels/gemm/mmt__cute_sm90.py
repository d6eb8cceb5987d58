"""mmt in CuTe DSL: one result a thread. Contract: ops/mmt.py"""

from dataclasses import dataclass

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.cute import cute, cutlass


@cute.kernel
def _mmt(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, rows: cutlass.Int32, columns: cutlass.Int32, depth: cutlass.Int32, THREADS: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    left = cute.make_tensor(a, cute.make_layout((rows, depth), stride=(depth, 1)))
    right = cute.make_tensor(b, cute.make_layout((columns, depth), stride=(depth, 1)))
    made = cute.make_tensor(c, cute.make_layout((rows, columns), stride=(columns, 1)))
    if at < rows * columns:
        sum = cutlass.Float32(0.0)
        for k in cutlass.range(depth, unroll=1):
            sum += left[at // columns, k].to(cutlass.Float32) * right[at % columns, k].to(cutlass.Float32)
        made[at // columns, at % columns] = sum.to(made.element_type)


@cute.jit
def mmt(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, rows: cutlass.Int32, columns: cutlass.Int32, depth: cutlass.Int32, THREADS: cutlass.Constexpr):
    _mmt(a, b, c, rows, columns, depth, THREADS).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@dataclass(frozen=True)
class Config:
    threads: int = 128


def supports(p: Problem) -> str | None:
    return None if all(p[n].contiguous for n in "abc") else "takes contiguous matrices"


def choose(p: Problem) -> Config:
    return Config()


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["c"].shape
    args = {"a": "a", "b": "b", "c": "c", "rows": rows, "columns": columns, "depth": p["a"].shape[1], "THREADS": config.threads}
    return [Launch(mmt, (-(-rows * columns // config.threads),), args, block=(config.threads,))]
