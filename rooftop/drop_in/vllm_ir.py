"""rooftop's norms and gated unit as implementations of vLLM's IR ops, under the provider's name "rooftop".

    from rooftop.drop_in import vllm_ir
    vllm_ir.register()            # in a plugin of vLLM's (entry point vllm.general_plugins), in every process
    # then by priority: KernelConfig(ir_op_priority=IrOpPriorityConfig(rms_norm=["rooftop", "native"], ...))

Provenance: the ops are those of `rooftop.rms_norm` and `rooftop.swiglu`; computed in float32 and rounded once (vLLM's native norm rounds
before the weight). Limits: no `variance_size`, weights of the dtype of x; other calls go to the next provider of the priority. Importing
this changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NAME = "rooftop"


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) · weight over the last dimension, of the shape and dtype of x."""
    from rooftop.ops.rms_norm import rms_norm as op

    return op(x, x.shape[-1], weight, epsilon)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """(the norm of x + x_residual, x + x_residual)."""
    from rooftop.ops.rms_norm import rms_norm as op

    normed, total = op(x, x.shape[-1], weight, epsilon, residual=x_residual)
    return normed, total


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(a) · b of x = [a, b] along the last dimension."""
    from rooftop.ops.swiglu import swiglu

    return swiglu(x)


def _takes_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return _takes(x) and variance_size is None and (weight is None or weight.dtype == x.dtype)


def _takes_added(x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return _takes_norm(x, weight, epsilon, variance_size) and x_residual.dtype == x.dtype and x_residual.shape == x.shape


def _takes(x: Tensor) -> bool:
    import torch

    return x.dtype in (torch.float32, torch.float16, torch.bfloat16) and x.dim() > 0


IMPLEMENTATIONS: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "rms_norm": (rms_norm, _takes_norm), "fused_add_rms_norm": (fused_add_rms_norm, _takes_added), "silu_and_mul": (silu_and_mul, _takes),
}


def register() -> tuple[str, ...]:
    """Register an implementation with each of vLLM's IR ops that it has; their names. A second call registers nothing new.

    Raises ImportError without vLLM, RuntimeError for a vLLM without IR ops (before 0.22)."""
    import torch
    import vllm  # noqa: F401 - its own error where it is absent

    try:
        from vllm.ir import ops
    except ImportError as error:
        raise RuntimeError(f"this vLLM has no IR ops ({error}); 0.22 is the first") from None
    done = []
    for name, (function, takes) in IMPLEMENTATIONS.items():
        op = getattr(ops, name, None)
        if op is None:
            continue
        if NAME not in op.impls:
            op.register_impl(NAME, supported=torch.cuda.is_available(), supports_args=takes)(_with_types(function))
        done.append(name)
    return tuple(done)


def _with_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations as types: torch reads the op's schema from them."""
    import typing

    import torch

    function.__annotations__ = typing.get_type_hints(function, {**function.__globals__, "Tensor": torch.Tensor})
    return function
