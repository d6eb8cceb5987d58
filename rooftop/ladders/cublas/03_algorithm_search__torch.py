"""out = a b by cuBLASLt: sixteen algorithms from its heuristic are timed once, and the fastest is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.ops._cublas import Matmul, Operand, alignment

IDEA = (
    "cuBLASLt returns up to sixteen algorithms for a product, the one it expects to be the fastest first. Each is timed once for each kind of input, and the "
    "fastest is used from then on."
)
PREDICT = {"speedup": 1.02}
LIMIT = (
    "The search costs a few milliseconds and a synchronisation at the first call, so it pays for a product that is repeated a thousand times; in a "
    "captured graph only the first algorithm can be used."
)


def supports(p: Problem) -> str | None:
    a, out = p["a"], p["out"]
    if len(a.shape) != 2 or p.option("precision") != "ieee" or out.dtype != a.dtype:
        return "this ladder takes one product with a result of the operands' dtype"
    if p.extra or p.option("beta") != 0 or p.option("alpha") != 1:
        return "this rung multiplies and does nothing after"
    if out.numel * a.shape[1] == 0:
        return "there is nothing to compute"
    return None


def _turned(x: Any) -> Operand:
    """The transpose of a torch matrix, in columns: the same memory."""
    rows, columns = x.shape
    if x.stride(1) == 1 or columns == 1:
        return Operand(x, columns, rows, max(x.stride(0), columns, 1))
    return Operand(x, rows, columns, max(x.stride(1), rows, 1), turned=True)


_FOUND: dict[Any, tuple[Matmul, int]] = {}  # by sizes, strides, dtype and alignments: the product, and its fastest algorithm


def _fastest(made: Matmul) -> int:
    """Each algorithm five times; the first where there is no GPU, or while a graph is captured, when nothing can be timed."""
    import torch

    if not made.on_gpu or torch.cuda.is_current_stream_capturing():
        return 0
    times = []
    for i in range(len(made.algorithms)):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        made.run(i)
        begin.record()
        for _ in range(5):
            made.run(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times.index(min(times))


def _product(key: Any, make: Callable[[], Matmul]) -> tuple[Matmul, int]:
    if key not in _FOUND:
        made = make()
        _FOUND[key] = (made, _fastest(made))
        made.forget()
    return _FOUND[key]


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    a, b, out = inputs["a"], inputs["b"], outputs["out"]
    m, n = out.shape
    if not out.is_cuda:
        Matmul(_turned(b), _turned(a), Operand(out, n, m, max(out.stride(0), n))).run()
        return
    key = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, a.device, *map(alignment, (a, b, out)))
    made, best = _product(key, lambda: Matmul(_turned(b), _turned(a), Operand(out, n, m, max(out.stride(0), n))))
    made.run(best, b, a, out)
