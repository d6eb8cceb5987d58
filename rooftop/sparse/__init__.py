"""Sparse matrices: `SparseTensor` in compressed rows (CSR), coordinates (COO), dense blocks (BSR) and 2:4, products with dense ones, and
pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.lazy_names import lazily

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
__getattr__, __dir__ = lazily("sparse", __all__, {
    "sparse.indices": "LAYOUTS", "sparse.tensor": "SparseTensor", "sparse.products": ("matmul", "sddmm"), "sparse.advice": "advise",
    "sparse.linear": ("SparseLinear", "sparsify_model"), "sparse.pruning": ("Pruned", "permute_columns", "prune", "rewind"),
})
