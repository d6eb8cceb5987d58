"""Products that are gradients of a matrix: in memory they are as the matrix is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def product_like(given: Tensor, x: Tensor, y: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """x y. Where `given` is a transposed matrix it is the transpose of yᵀ xᵀ: autograd would copy a gradient of another layout than its
    parameter's, and optimizers read it with strides."""
    if given.stride(-2) == 1 and given.stride(-1) != 1:
        return product(y.transpose(-1, -2), x.transpose(-1, -2)).transpose(-1, -2)
    return product(x, y)
