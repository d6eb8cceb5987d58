"""out = act(a b + bias) by cuBLASLt, bias and activation on the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.ops._cublas import Matmul, Operand, alignment

IDEA = (
    "cuBLASLt adds a bias of one value per column of out and applies relu or the tanh form of gelu before it stores: a pass over the result, 64 MiB at "
    "4096 cubed, is saved. With out transposed the bias is one value per row, which is cuBLASLt's definition of a bias."
)
PREDICT = {"speedup": 1.0}
LIMIT = (
    "It supports relu and gelu, one addend, one bias in the dtype of the result. A gate, silu or a residual is another pass, about 30 µs at 4096 "
    "cubed; there a custom kernel pays."
)


def supports(p: Problem) -> str | None:
    a, out = p["a"], p["out"]
    if len(a.shape) != 2 or p.option("precision") != "ieee" or out.dtype != a.dtype:
        return "this ladder takes one product with a result of the operands' dtype"
    if p.option("beta") != 0 or p.option("alpha") != 1 or p.get("gate") is not None or p.get("residual") is not None:
        return "cuBLASLt has no gate; this rung adds nothing but a bias"
    if p.option("activation") not in ("none", "relu", "gelu_tanh"):
        return f"cuBLASLt has no {p.option('activation')}"
    bias = p.get("bias")
    if bias is not None and (bias.dtype != a.dtype or bias.strides[0] != 1):
        return "the bias must be contiguous and of the operands' dtype"
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
    bias, activation = inputs["bias"], inputs["activation"]
    if not out.is_cuda:
        Matmul(_turned(b), _turned(a), Operand(out, n, m, max(out.stride(0), n)), bias, activation).run()
        return
    key = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, a.device, *map(alignment, (a, b, out)), bias is not None, activation)
    made, best = _product(key, lambda: Matmul(_turned(b), _turned(a), Operand(out, n, m, max(out.stride(0), n)), bias, activation))
    made.run(best, b, a, out, bias)
