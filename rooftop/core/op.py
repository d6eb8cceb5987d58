"""A contract that can be called: ``OP(x, dim)`` runs the best implementation for the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooftop.core import dispatch
from rooftop.core.contract import Contract, Grad, Tolerance, like

__all__ = ["Grad", "Op", "Tolerance", "like"]


def _constant(function: Any) -> Any:
    """As `torch.compiler.assume_constant_result`, but without torch: a trace, of which an op's first call may be a part, runs it and keeps its result."""
    function._dynamo_marked_constant = True
    return function


class Op(Contract):
    """An op of the house. Its first call registers it with `torch.library`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._call: Callable[..., Any] | None = None

    def caller(self) -> Callable[..., Any]:
        """What a call comes down to; made, and the op registered, by the first."""
        if self._call is None:
            self._call = dispatch.caller(self)
        return self._call

    @_constant
    def _ready(self) -> bool:
        return self._call is not None or self.caller() is not None

    def __call__(self, *args: Any, implementation: str | None = None) -> Any:
        """Arguments come validated and in the reference's order, none left out."""
        self._ready()
        assert self._call is not None
        return self._call(*args, implementation=implementation)

    def explain(self, *args: Any) -> dispatch.Explanation:
        """What a call with these arguments would run, and why not the others."""
        return dispatch.explain(self, args)
