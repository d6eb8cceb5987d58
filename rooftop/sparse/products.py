"""Products of a sparse and a dense matrix, whatever the layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rooftop.sparse.tensor import SparseTensor


def matmul(
    a: SparseTensor | Tensor,
    b: SparseTensor | Tensor,
    *,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    activation: str = "none",
    implementation: str | None = None,
) -> Tensor:
    """act(alpha · a b + bias), one of the two sparse, the other dense; summed in float32 and rounded once.

    Args:
        a, b: [M, K] and [K, N], one a `SparseTensor`; the dense one may be a vector [K]. One dtype and device.
        bias: [N], added to each row, as in `rooftop.matmul`.
        alpha, activation: as in `rooftop.spmm_csr`.
        implementation: name of a kernel of the layout's op, which runs or raises. None selects the best one that supports the input.

    S b and b Sᵀ (a linear layer) read a sparse matrix as it is stored. Sᵀ b and b S first compute the transpose, on the device: keep
    `S.t().contiguous()` if you need it often. "coo" is first converted to "csr". The transpose of a 2:4 matrix is multiplied as a dense
    matrix. 2:4 matrices of fp8 and int8 give bfloat16; `rooftop.scaled_spmm_24` supports scales.

    Gradients flow to the dense operand, the bias, and `values`.

    Raises TypeError unless exactly one is sparse, and the errors of the layout's op; ValueError for shapes that do not fit."""
    left = isinstance(a, SparseTensor)
    if left == isinstance(b, SparseTensor):
        raise TypeError(f"sparse.matmul: a is a {type(a).__name__} and b a {type(b).__name__}; just one must be a SparseTensor")
    dense: Any = b if left else a
    if not isinstance(dense, torch.Tensor):
        raise TypeError(f"sparse.matmul: {'b' if left else 'a'} is a {type(dense).__name__}; it must be a tensor")
    vector = dense.dim() == 1
    if dense.dim() not in (1, 2):
        raise ValueError(f"sparse.matmul: the dense operand is {tuple(dense.shape)}; it must have one or two dimensions")
    s: Any = a if left else b.t()
    x = dense.unsqueeze(1) if vector else dense if left else dense.t()
    if s.shape[1] != x.shape[0]:
        raise ValueError(f"sparse.matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; a's columns must be as many as b's rows")
    if bias is not None and isinstance(bias, torch.Tensor):
        along = 1 if vector and left else x.shape[1] if left else s.shape[0]
        if tuple(bias.shape) != (along,):
            raise ValueError(f"sparse.matmul: bias is {tuple(bias.shape)}; it must be {(along,)}")
        bias = bias.unsqueeze(0 if left else 1)
    out = _product(s, x, bias, alpha, activation, not left, implementation)
    return out.reshape(-1) if vector else out


def _product(
    s: SparseTensor, x: Tensor, bias: Tensor | None, alpha: float, activation: str, turned: bool, implementation: str | None
) -> Tensor:
    """act(alpha · s x + bias), transposed where `turned`."""
    import rooftop

    more: dict[str, Any] = {"bias": bias, "alpha": alpha, "activation": activation, "implementation": implementation}
    if s.layout == "2:4" and s.dtype.itemsize == 1:
        if s.turned:
            raise TypeError(
                f"sparse.matmul: the transpose of a 2:4 matrix of {s.dtype}; accepted is the matrix as it is stored, S b and b Sᵀ"
            )
        one = torch.ones(1, device=s.device)
        more.pop("alpha")
        return rooftop.scaled_spmm_24(s.values, s.meta, x, one * alpha, one, transposed=turned, **more)
    if s.layout == "2:4" and not s.turned:
        return rooftop.spmm_24(s.values, s.meta, x, transposed=turned, **more)
    if s.layout == "2:4":
        vector = None if bias is None else bias.reshape(-1)
        w, rows = s.to_dense(), bias is not None and bias.shape[1] == 1 and turned
        if turned:
            return rooftop.matmul(
                x.t(), w.t(), bias=vector if rows else None, alpha=alpha, activation=activation, implementation=implementation
            )
        return rooftop.matmul(w, x, bias=vector, alpha=alpha, activation=activation, implementation=implementation)
    s = s.contiguous()
    if s.layout == "bsr":
        out = rooftop.spmm_bsr(s.values, s.columns, s.offsets, x, rows=s.size[0], **more)
    else:
        s = s.to("csr")
        out = rooftop.spmm_csr(s.values, s.columns, s.offsets, x, **more)
    return out.t() if turned else out


def sddmm(a: Tensor, b: Tensor, pattern: SparseTensor, *, alpha: float = 1.0, implementation: str | None = None) -> SparseTensor:
    """alpha · a b where `pattern` has elements (blocks, of "bsr"), nothing elsewhere; a [M, N], b [N, K]. In the layout of the pattern;
    "coo" becomes "csr".

    Gradients flow to `a` and `b`. Raises ValueError for shapes that do not fit and for a 2:4 pattern."""
    import rooftop

    if not isinstance(pattern, SparseTensor):
        raise TypeError(f"sparse.sddmm: pattern is a {type(pattern).__name__}; it must be a SparseTensor")
    if pattern.layout == "2:4":
        raise ValueError("sparse.sddmm: pattern is 2:4; accepted are csr, coo and bsr")
    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, torch.Tensor) or t.dim() != 2:
            raise TypeError(f"sparse.sddmm: {name} must be a tensor of two dimensions; given {type(t).__name__}")
    if (a.shape[0], b.shape[1]) != pattern.shape or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"sparse.sddmm: a is {tuple(a.shape)}, b {tuple(b.shape)} and the pattern {pattern.shape}; they must be [M, N], [N, K] and (M, "
            f"K)"
        )
    p = pattern.contiguous()
    p = p if p.layout == "bsr" else p.to("csr")
    assert p.columns is not None and p.offsets is not None
    if p.block is not None:
        values = rooftop.sddmm_bsr(a, b.t(), p.columns, p.offsets, p.block, alpha=alpha, implementation=implementation)
    else:
        values = rooftop.sddmm_csr(a, b.t(), p.columns, p.offsets, alpha=alpha, implementation=implementation)
    return SparseTensor(values, p.columns, p.offsets, None, None, p.layout, p.size, p.block)
