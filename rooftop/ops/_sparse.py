"""What products with a sparse matrix share: the epilogue, its gradient, and checks of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import Meta

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")
LAYOUTS = ("padded", "sliced", "offset", "strided", "transposed", "expanded")  # of a dense operand, in cases
UNITS = {"f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}


def finished(total: Tensor, bias: Tensor | None, alpha: float, activation: str) -> Tensor:
    """act(alpha · total + bias)"""
    return activated(total * alpha if bias is None else total * alpha + bias, activation)


def activated(s: Tensor, activation: str) -> Tensor:
    import torch.nn.functional as F

    if activation == "relu":
        return F.relu(s)
    if activation == "silu":
        return F.silu(s)
    return s if activation == "none" else F.gelu(s, approximate="tanh" if activation == "gelu_tanh" else "none")


def gelu_on_cpu(reference: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """GELU of a product on a CPU, by erf: torch's function there is oneDNN's, which makes NaN of infinity. Without gradients. `given`: the
    arguments of `reference` before the activation."""
    import torch

    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return NotImplemented
    kept = next(t.dtype for t in tensors if t.is_floating_point())
    wide = (t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in given)
    s = reference(*wide, activation="none", **options)
    return (s * ((1 + (s * math.sqrt(0.5)).erf()) / 2)).to(kept)


def slope(d: Tensor, s: Tensor | None, activation: str) -> Tensor:
    """d · act'(s)"""
    import torch

    if activation == "none" or s is None:
        return d
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(d, s, 0)
    if activation == "silu":
        return aten.silu_backward(d, s)
    return aten.gelu_backward(d, s, approximate="tanh" if activation == "gelu_tanh" else "none")


def bias_gradient(ds: Tensor, bias: Tensor | None) -> Tensor | None:
    """The sum of ds over the dimension that the bias is shared along."""
    import torch

    if bias is None:
        return None
    along = tuple(i for i in (0, 1) if bias.shape[i] == 1)
    wide = torch.float32 if ds.element_size() <= 2 else ds.dtype
    return (ds.sum(along, keepdim=True, dtype=wide) if along else ds).to(bias.dtype)


def steps(bias: Meta | None) -> tuple[int, int]:
    """Elements from one row's bias to the next, and from one column's."""
    if bias is None:
        return 0, 0
    return tuple(0 if n == 1 else s for n, s in zip(bias.shape, bias.strides, strict=True))  # type: ignore[return-value]


def validate(op: str, tensors: dict[str, Any], dtypes: tuple[str, ...], rows: int, bias: Any, alpha: Any, activation: Any) -> None:
    """`tensors`: those whose dtype is the product's, `b` the last; `rows` of the result. Raises TypeError and ValueError."""
    import torch

    from rooftop.core.argument_checks import among, number

    accepted = tuple(getattr(torch, d) for d in dtypes)
    first, lead = next(iter(tensors.items()))
    for name, t in tensors.items():
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in accepted or t.dtype != lead.dtype:
            raise TypeError(f"{op}: {name} is {t.dtype}; accepted are {', '.join(map(str, accepted))}, the same as {first} ({lead.dtype})")
        if t.device != lead.device:
            raise ValueError(f"{op}: {first} lies on {lead.device} and {name} on {t.device}; they must be on one device")
    b = tensors["b"]
    if b.dim() != 2:
        raise ValueError(f"{op}: b has shape {tuple(b.shape)}; it must be [K, N]")
    number(op, "alpha", alpha, "a number")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"{op}: activation is {activation!r}; it is one of {', '.join(ACTIVATIONS)}")
    if bias is None:
        return
    if not isinstance(bias, torch.Tensor) or bias.dtype != b.dtype:
        raise TypeError(
            f"{op}: bias is {bias.dtype if isinstance(bias, torch.Tensor) else type(bias).__name__}; it must be a tensor of {b.dtype}"
        )
    if bias.device != b.device:
        raise ValueError(f"{op}: b lies on {b.device} and bias on {bias.device}; they must be on one device")
    n = b.shape[1]
    if not among(tuple(bias.shape), ((rows, 1), (1, n))):
        raise ValueError(
            f"{op}: bias is {tuple(bias.shape)}; it must be {(rows, 1)}, a number for each row of the result, or {(1, n)}, for each column"
        )


def indices(op: str, named: dict[str, Any], device: Any) -> None:
    """Raises unless each is an int32 vector on the device."""
    import torch

    for name, t in named.items():
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype != torch.int32 or t.dim() != 1:
            raise TypeError(f"{op}: {name} is {t.dtype} of {t.dim()} dimensions; accepted is torch.int32 of one")
        if t.device != device:
            raise ValueError(f"{op}: {name} lies on {t.device}, the values on {device}; they must be on one device")
