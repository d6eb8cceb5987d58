"""What the peers of several contracts need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from torch import Tensor


class Kept:
    """What a peer's forward hands to its backward, worked out once for each tensor: a peer's backward is timed without its forward."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._found = function, dict[int, tuple[Any, Any]]()

    def __call__(self, of: Tensor, *args: Any) -> Any:
        held, value = self._found.get(id(of), (None, None))
        if held is None or held() is not of:
            self._found = {k: v for k, v in self._found.items() if v[0]() is not None}  # what belongs to dead tensors goes
            value = self._function(of, *args)
            self._found[id(of)] = (ref(of), value)
        return value


def one_dtype(x: Tensor) -> None:
    """torch.compile is a peer in bfloat16 alone: each compilation costs seconds."""
    if str(x.dtype) != "torch.bfloat16":
        raise ValueError(f"compiled for bfloat16 alone, not {x.dtype}")


def of_torch(name: str) -> Callable[[], Callable[..., Any]]:
    """A factory of a function of torch."""

    def factory() -> Callable[..., Any]:
        import torch

        return getattr(torch, name)

    return factory


def compiled(function: Callable[..., Any], every: bool = False) -> Callable[[], Callable[..., Any]]:
    """A factory of torch.compile's version of a plain function, as a peer in bfloat16 or, `every`, in all dtypes."""

    def factory() -> Callable[..., Any]:
        import torch

        made = torch.compile(function, dynamic=False)

        def run(x: Tensor, *rest: Any) -> Any:
            one_dtype(x)
            return made(x, *rest)

        return made if every else run

    return factory
