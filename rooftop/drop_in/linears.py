"""Linear layers by `rooftop.linear`, for `rooftop.invariant()`: torch's product chooses the order of its sums by the number of tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from rooftop.core.autocasting import lowered
from rooftop.drop_in.swapping import builder
from rooftop.drop_in.trials import ordinary
from rooftop.ops._linear_layer import linear


@builder("linear")
def linear_class(base: type) -> dict[str, Any]:
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def forward(self: Any, input: Any) -> Any:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        if not ordinary(input, weight, bias):
            return plain(self, input)
        input, weight, bias = lowered(input, weight, bias)
        return linear(input, weight, bias, "none", None, None, "ieee", None)

    return {"forward": forward}


def candidate(module: nn.Module) -> bool:
    """A plain layer: a subclass, of an adapter say, may do more."""
    return type(module) is nn.Linear and "forward" not in vars(module)
