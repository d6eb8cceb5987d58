"""The peer `cublaslt-best`: a product by the fastest of all algorithms that cuBLASLt's heuristics offer for its shape, layout and alignment.
torch, like most callers, takes the first of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from rooftop.ops._cublas import (
    EPILOGUES,
    MAX_WORKSPACE_BYTES,
    MIN_ALIGNMENTS,
    WORKSPACE,
    BlasError,
    Heuristic,
    Matmul,
    Operand,
    _call,
    _made,
    alignment,
)

if TYPE_CHECKING:
    from torch import Tensor

MOST = 128  # algorithms asked for; there are rarely half as many
NEAR = 1.3  # times the fastest of a first run: what is slower is not timed again
TIMED_S = 200e-6  # of runs in one graph: launches from the host would hide what small products take
RUNS, REPLAYS = 20, 4
HEAD_START = 200_000  # cycles, 100 us


class Searched(Matmul):
    """A product of which every algorithm is known, and the fastest."""

    def __init__(self, a: Operand, b: Operand, c: Operand, bias: Any, activation: str) -> None:
        super().__init__(a, b, c, bias, activation)
        self.best = 0
        if self.on_gpu:
            self._workspace = _workspace(str(c.tensor.device))
            self.algorithms = self._offered()
            self.best = self._fastest()

    def _offered(self) -> list[Heuristic]:
        preference, size = _made("cublasLtMatmulPreferenceCreate"), ctypes.c_size_t(WORKSPACE)
        pairs: list[tuple[int, Any]] = [(MAX_WORKSPACE_BYTES, size)]
        pairs += [(n, ctypes.c_uint32(alignment(x.tensor))) for n, x in zip(MIN_ALIGNMENTS, (self.a, self.b, self.c, self.c), strict=True)]
        for attribute, value in pairs:
            _call("libcublasLt", "cublasLtMatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))
        found, count = (Heuristic * MOST)(), ctypes.c_int()
        a, b, c = self._layouts
        _call(
            "libcublasLt", "cublasLtMatmulAlgoGetHeuristic", self._handle, self._operation, a, b, c, c, preference, MOST, found,
            ctypes.byref(count)
        )
        _call("libcublasLt", "cublasLtMatmulPreferenceDestroy", preference)
        return [found[i] for i in range(count.value) if found[i].state == 0]

    def _fastest(self) -> int:
        """By runs in CUDA graphs, of which the shortest counts; those far behind after one run without a graph are not run again."""
        times: dict[int, float] = {}
        for i in range(len(self.algorithms)):
            try:
                self.run(i)
                times[i] = self._once(i)
            except BlasError:  # what a heuristic offers may still not run
                continue
        if not times:
            raise BlasError("none of the algorithms that cuBLASLt offers for this product runs")
        least = min(times.values())
        runs = max(1, min(RUNS, int(TIMED_S / max(least, 1e-7))))
        again = {i: self._seconds(i, runs, REPLAYS) for i, t in times.items() if t <= NEAR * least + 3e-6}
        return min(again, key=lambda i: again[i])

    def _once(self, algorithm: int) -> float:
        """Of one run, which the CPU queues while the device waits: a graph of each would take longer than all else."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START)
        begin.record()
        self.run(algorithm)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def _seconds(self, algorithm: int, runs: int, replays: int) -> float:
        """Of one run, the least of several replays."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(runs):
                self.run(algorithm)
        found = []
        for _ in range(replays):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e-3 / runs)
        return min(found)


@cache
def _workspace(device: str) -> Any:
    import torch

    return torch.empty(WORKSPACE, dtype=torch.uint8, device=device)


def turned(x: Any) -> Operand:
    """The transpose of a torch matrix, in columns: the same memory. Raises ValueError where neither rows nor columns are contiguous."""
    rows, columns = x.shape
    if x.stride(1) == 1 or columns == 1:
        return Operand(x, columns, rows, max(x.stride(0), columns, 1))
    if x.stride(0) != 1 and rows != 1:
        raise ValueError("cuBLAS takes matrices with contiguous rows or columns")
    return Operand(x, rows, columns, max(x.stride(1), rows, 1), turned=True)


def best() -> Callable[..., Tensor]:
    """A factory of the peer. The first call at a shape searches, so it cannot be one that a graph captures."""
    import torch

    known: dict[Any, Searched] = {}

    def cublaslt(
        a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None, alpha: float,
        beta: float, activation: str, to: str, precision: str,
    ) -> Tensor:
        if a.dim() != 2 or c is not None or gate is not None or residual is not None or alpha != 1 or to or precision != "ieee":
            raise ValueError("the peer multiplies two matrices, and adds a bias and an activation")
        if (bias is not None, activation) not in EPILOGUES or (bias is not None and bias.dtype != a.dtype):
            raise ValueError(f"cuBLASLt has no epilogue with {activation} here")
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        if out.numel() * a.shape[1] == 0:
            return out.zero_() if bias is None else out.copy_(bias)
        operands = turned(b), turned(a), Operand(out, b.shape[1], a.shape[0], b.shape[1])
        if not out.is_cuda:
            Matmul(*operands, bias, activation).run()
            return out
        key = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, a.device, *map(alignment, (a, b, out)), bias is not None, activation)
        if key not in known:
            if torch.cuda.is_current_stream_capturing():
                raise ValueError("the first call of the peer at a shape times algorithms, which a graph that is captured cannot")
            known[key] = Searched(*operands, bias, activation)
            known[key].forget()
        known[key].run(known[key].best, b, a, out, bias)
        return out

    return cublaslt
