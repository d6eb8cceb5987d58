"""Sparse matrices: `SparseTensor` in compressed rows (CSR), coordinates (COO), dense blocks (BSR) and 2:4, products with dense ones, and
pruning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftop.sparse.advice import advise
    from rooftop.sparse.indices import LAYOUTS
    from rooftop.sparse.linear import SparseLinear, sparsify_model
    from rooftop.sparse.products import matmul, sddmm
    from rooftop.sparse.pruning import Pruned, permute_columns, prune, rewind
    from rooftop.sparse.tensor import SparseTensor

__all__ = [
    "LAYOUTS", "Pruned", "SparseLinear", "SparseTensor", "advise", "matmul", "permute_columns", "prune", "rewind", "sddmm", "sparsify_model"
]
_PLACES = {
    "LAYOUTS": "indices", "SparseTensor": "tensor", "matmul": "products", "sddmm": "products", "advise": "advice", "SparseLinear": "linear",
    "sparsify_model": "linear", "Pruned": "pruning", "permute_columns": "pruning", "prune": "pruning", "rewind": "pruning",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'rooftop.sparse' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.sparse.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
