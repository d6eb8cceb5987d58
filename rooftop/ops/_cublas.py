"""cuBLAS and cuBLASLt called directly, through ctypes; matrices are column-major. On the CPU torch does the same computation, so that the
logic can be tested without a GPU.

C [m, n] = alpha · op(A) op(B) + beta · C: element (i, j) of a matrix is at i + j · ld; op is the matrix or, with T, its transpose."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, replace
from typing import Any

TYPES = {"torch.float32": 0, "torch.float16": 2, "torch.bfloat16": 14}  # cudaDataType_t
COMPUTE_32F, DEFAULT_ALGO = 68, -1  # cublasComputeType_t, cublasGemmAlgo_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
MAX_WORKSPACE_BYTES, MIN_ALIGNMENTS = 1, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t; of A, B, C and D
EPILOGUES = {
    (False, "none"): 1, (False, "relu"): 2, (True, "none"): 4, (True, "relu"): 6, (False, "gelu_tanh"): 32, (True, "gelu_tanh"): 36
}
WORKSPACE = 32 << 20  # bytes, what NVIDIA advises for Hopper


class BlasError(RuntimeError):
    """A call of cuBLAS failed; the message has the function and its status."""


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    """The library that torch has loaded."""
    import torch

    torch.cuda.current_blas_handle()
    return ctypes.CDLL(f"{name}.so.{str(torch.version.cuda).split('.')[0]}")


def _call(library: str, function: str, *args: Any) -> None:
    if status := getattr(_library(library), function)(*args):
        raise BlasError(f"{function} returned status {status}")


@dataclass(frozen=True)
class Operand:
    """A column-major view of a torch tensor's memory: rows and columns as stored, the leading dimension, and whether the transpose is
    used."""

    tensor: Any
    rows: int
    columns: int
    ld: int
    turned: bool = False

    def view(self) -> Any:
        """op of it, as torch sees it."""
        seen = self.tensor.as_strided((self.rows, self.columns), (1, self.ld))
        return seen.t() if self.turned else seen


def alignment(x: Any) -> int:
    """The largest power of two up to 256 that divides a tensor's address: an algorithm may need 16 bytes. A `Matmul` runs tensors aligned
    as its own."""
    return min(x.data_ptr() & -x.data_ptr(), 256) or 256


def _pointer(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def gemm(a: Operand, b: Operand, c: Operand, alpha: float = 1.0, beta: float = 0.0) -> None:
    """cublasGemmEx: sums in float32; cuBLAS chooses the algorithm."""
    m, n = c.rows, c.columns
    k = a.rows if a.turned else a.columns
    if not c.tensor.is_cuda:
        c.view().copy_((alpha * (a.view().float() @ b.view().float()) + (beta * c.view().float() if beta else 0)).to(c.tensor.dtype))
        return
    import torch

    kind = [TYPES[str(x.tensor.dtype)] for x in (a, b, c)]
    scales = ctypes.c_float(alpha), ctypes.c_float(beta)
    _call("libcublas", "cublasGemmEx", ctypes.c_void_p(torch.cuda.current_blas_handle()), int(a.turned), int(b.turned), m, n, k,
          ctypes.byref(scales[0]), _pointer(a.tensor), kind[0], a.ld, _pointer(b.tensor), kind[1], b.ld, ctypes.byref(scales[1]),
          _pointer(c.tensor), kind[2], c.ld, COMPUTE_32F, DEFAULT_ALGO)


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Matmul:
    """One cublasLtMatmul, described once: it lists its algorithms and runs one of them."""

    def __init__(self, a: Operand, b: Operand, c: Operand, bias: Any = None, activation: str = "none") -> None:
        """bias: [m], added to each column of C."""
        self.a, self.b, self.c, self.bias, self.activation = a, b, c, bias, activation
        self.on_gpu = bool(c.tensor.is_cuda)
        self.algorithms: list[Heuristic] = []
        if self.on_gpu:
            self._describe()

    def _describe(self) -> None:
        import torch

        self._handle, self._operation = _made("cublasLtCreate"), _made("cublasLtMatmulDescCreate", COMPUTE_32F, 0)
        self._set(TRANSA, ctypes.c_int32(int(self.a.turned)))
        self._set(TRANSB, ctypes.c_int32(int(self.b.turned)))
        self._set(EPILOGUE, ctypes.c_int32(EPILOGUES[self.bias is not None, self.activation]))
        if self.bias is not None:
            self._set(BIAS_POINTER, _pointer(self.bias))
        self._layouts = [
            _made(
                "cublasLtMatrixLayoutCreate", TYPES[str(x.tensor.dtype)], ctypes.c_uint64(x.rows), ctypes.c_uint64(x.columns),
                ctypes.c_int64(x.ld)
            )
            for x in (self.a, self.b, self.c)
        ]
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=self.c.tensor.device)
        preference, size = _made("cublasLtMatmulPreferenceCreate"), ctypes.c_size_t(WORKSPACE)
        _call(
            "libcublasLt", "cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE_BYTES, ctypes.byref(size), ctypes.c_size_t(8)
        )
        for attribute, x in zip(MIN_ALIGNMENTS, (self.a, self.b, self.c, self.c), strict=True):
            least = ctypes.c_uint32(alignment(x.tensor))
            _call("libcublasLt", "cublasLtMatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(least), ctypes.c_size_t(4))
        found, count = (Heuristic * 16)(), ctypes.c_int()
        a, b, c = self._layouts
        _call(
            "libcublasLt", "cublasLtMatmulAlgoGetHeuristic", self._handle, self._operation, a, b, c, c, preference, 16, found,
            ctypes.byref(count)
        )
        _call("libcublasLt", "cublasLtMatmulPreferenceDestroy", preference)
        self.algorithms = [found[i] for i in range(count.value) if found[i].state == 0]

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _call("libcublasLt", "cublasLtMatmulDescSetAttribute", self._operation, attribute, ctypes.byref(value), size)

    def run(self, algorithm: int = 0, a: Any = None, b: Any = None, c: Any = None, bias: Any = None) -> None:
        """Runs one of the algorithms on the memory of these tensors (None: of those it was described with). Raises BlasError."""
        tensors = [given if given is not None else x.tensor for given, x in ((a, self.a), (b, self.b), (c, self.c))]
        if not self.on_gpu:
            self._on_cpu()
            return
        import torch

        if bias is not None:
            self._set(BIAS_POINTER, _pointer(bias))
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        _call("libcublasLt", "cublasLtMatmul", self._handle, self._operation, ctypes.byref(one), _pointer(tensors[0]), self._layouts[0],
              _pointer(tensors[1]), self._layouts[1], ctypes.byref(zero), _pointer(tensors[2]), self._layouts[2], _pointer(tensors[2]),
              self._layouts[2], ctypes.byref(self.algorithms[algorithm].algo), _pointer(self._workspace), ctypes.c_size_t(WORKSPACE),
              ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def forget(self) -> None:
        """Releases the tensors it was described with: from now on each run must be given its own."""
        self.a, self.b, self.c, self.bias = (replace(self.a, tensor=None), replace(self.b, tensor=None), replace(self.c, tensor=None), None)

    def _on_cpu(self) -> None:
        from torch.nn import functional

        out = self.a.view().float() @ self.b.view().float()
        out = out if self.bias is None else out + self.bias.float()[:, None]
        out = (
            functional.gelu(out, approximate="tanh") if self.activation == "gelu_tanh" else out.relu() if self.activation == "relu" else out
        )
        self.c.view().copy_(out.to(self.c.tensor.dtype))


def _made(function: str, *args: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call("libcublasLt", function, ctypes.byref(made), *args)
    return made
