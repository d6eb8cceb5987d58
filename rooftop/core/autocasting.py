"""What torch.autocast does to the arguments of public functions: as torch's own functions of the same kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def _dtype(first: Tensor) -> Any:
    """The dtype of autocast where that is on for the device of a tensor; else None."""
    import torch

    device = first.device.type
    # other questions end a graph of torch.compile before torch 2.12
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _is_float(t: Any) -> bool:
    import torch

    return isinstance(t, torch.Tensor) and t.dtype in (torch.float32, torch.float16, torch.bfloat16)


def lowered(*tensors: Any) -> list[Any]:
    """Under autocast, tensors of float32 and 16 bits in its dtype: products and attention. `tensors`: the first is a tensor; None stays."""
    to = _dtype(tensors[0]) if _is_float(tensors[0]) else None
    return list(tensors) if to is None else [t.to(to) if _is_float(t) else t for t in tensors]


def widened(*tensors: Any) -> list[Any]:
    """Under autocast, tensors of several float dtypes in the widest of them: elementwise functions and norms."""
    kinds = {t.dtype for t in tensors if _is_float(t)}
    if len(kinds) < 2 or _dtype(next(t for t in tensors if _is_float(t))) is None:
        return list(tensors)
    import torch

    return [t.to(torch.float32) if _is_float(t) else t for t in tensors]
