"""What may be given to a call of `rooftop.linear_cross_entropy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number, positive
from rooftop.core.spec import Problem, dtype_of

if TYPE_CHECKING:
    from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")
MEMORY = ("fast", "small")


def check_divisor(divisor: Any, reduction: str) -> None:
    """Raises TypeError and ValueError as linear_cross_entropy says."""
    import torch

    if reduction != "sum":
        raise ValueError(f"linear_cross_entropy: divisor is given with reduction={reduction!r}; it divides the sum, reduction='sum'")
    if isinstance(divisor, torch.Tensor):
        if divisor.numel() != 1:
            raise ValueError(
                f"linear_cross_entropy: divisor has shape {tuple(divisor.shape)}; it must be a number or a tensor of one element"
            )
        return
    number("linear_cross_entropy", "divisor", divisor, "a number other than 0, or a tensor of one element")
    if not divisor:
        raise ValueError("linear_cross_entropy: divisor is 0; it must be a number other than 0, or a tensor of one element")


def scale_of(logit_scale: Any, temperature: Any) -> float:
    """The factor of the logits before a soft cap. Raises TypeError and ValueError as linear_cross_entropy says."""
    name = "linear_cross_entropy"
    number(name, "logit_scale", logit_scale, "a finite number other than 0", finite=True)
    if not logit_scale:
        raise ValueError(f"{name}: logit_scale is 0; it must be a finite number other than 0")
    number(name, "temperature", temperature, "a finite number above 0", finite=True)
    if not temperature > 0:
        raise ValueError(f"{name}: temperature is {temperature}; it must be a finite number above 0")
    factor = logit_scale / temperature
    number(name, "logit_scale / temperature", factor, "a finite number", finite=True)
    return factor


def check_weights(weights: Any, target: Any) -> None:
    """Raises TypeError and ValueError as linear_cross_entropy says."""
    import torch

    name = "linear_cross_entropy"
    if not isinstance(weights, torch.Tensor):
        raise TypeError(f"{name}: weights is a {type(weights).__name__}; it must be a tensor of the shape of target")
    if not weights.is_floating_point():
        raise TypeError(f"{name}: weights is {weights.dtype}; it must be floating point")
    if weights.shape != target.shape:
        raise ValueError(f"{name}: weights has shape {tuple(weights.shape)}; it must be that of target, {tuple(target.shape)}")
    if weights.device != target.device:
        raise ValueError(f"{name}: weights lies on {weights.device} and target on {target.device}; they must be on one device")
    if weights.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: weights requires a gradient, and gets none; give weights.detach(), or multiply the losses of reduction='none'")


def summed(losses: Any, live: Any, weights: Any, reduction: str) -> Any:
    """Losses of tokens [N], times their weights, reduced as linear_cross_entropy says. `live`: the tokens that count."""
    if weights is not None:
        losses = (losses * weights).where(live, 0.0)
    if reduction == "none":
        return losses
    count = live if weights is None else weights.where(live, 0.0)
    return losses.sum() / (count.sum() if reduction == "mean" else 1)


def validated(
    x: Any, weight: Any, target: Any, bias: Any, ignore_index: Any, label_smoothing: Any, lse_square_scale: Any, softcap: Any,
    reduction: Any, weight_grad_dtype: Any, memory: Any,
) -> str:
    """The name of the weight's gradient's dtype."""
    import torch

    name = "linear_cross_entropy"
    for what, t in (("x", x), ("weight", weight), ("target", target), ("bias", bias)):
        if not isinstance(t, torch.Tensor) and not (what == "bias" and t is None):
            raise TypeError(f"{name}: {what} is a {type(t).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{name}: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if weight.dtype != x.dtype:
        raise TypeError(f"{name}: weight is {weight.dtype} and x {x.dtype}; they must be alike")
    if target.dtype != torch.int64:
        raise TypeError(f"{name}: target is {target.dtype}; accepted is torch.int64 (class indices; probabilities are not)")
    if bias is not None and bias.dtype not in (x.dtype, torch.float32):
        raise TypeError(f"{name}: bias is {bias.dtype}; accepted are {' and '.join(dict.fromkeys((str(x.dtype), 'torch.float32')))}")
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"{name}: x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [..., H] and [V, H]")
    if weight.shape[0] == 0 or weight.shape[1] == 0:
        raise ValueError(f"{name}: weight has shape {tuple(weight.shape)}; it must have a class and a feature at least")
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"{name}: target has shape {tuple(target.shape)}; it must be that of x but for the last dimension, {tuple(x.shape[:-1])}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{name}: bias has shape {tuple(bias.shape)}; it must be one number a class, ({weight.shape[0]},)")
    for what, t in (("weight", weight), ("target", target), ("bias", bias)):
        if t is not None and t.device != x.device:
            raise ValueError(f"{name}: x lies on {x.device} and {what} on {t.device}; they must be on one device")
    for what, given, accepted in (("reduction", reduction, REDUCTIONS), ("memory", memory, MEMORY)):
        if given not in accepted:
            raise ValueError(f"{name}: {what} is {given!r}; it must be {', '.join(repr(a) for a in accepted[:-1])} or {accepted[-1]!r}")
    if weight_grad_dtype not in (None, weight.dtype, torch.float32):
        dtypes = " and ".join(dict.fromkeys((str(weight.dtype), "torch.float32")))
        raise TypeError(f"{name}: weight_grad_dtype is {weight_grad_dtype!r}; accepted are None, {dtypes}")
    if weight_grad_dtype not in (None, weight.dtype) and weight.requires_grad and not torch.compiler.is_compiling():
        taken = weight.grad_dtype if weight.is_leaf else weight.dtype
        if taken not in (None, weight_grad_dtype):
            raise ValueError(
                f"{name}: weight_grad_dtype is {weight_grad_dtype}, and autograd would round the gradient of this weight to {taken}; "
                             f"it must be a leaf with weight.grad_dtype = {weight_grad_dtype}")
    number(name, "ignore_index", ignore_index, "a whole number", whole=True)
    number(name, "lse_square_scale", lse_square_scale, "a finite number", finite=True)
    number(name, "label_smoothing", label_smoothing, "0 to 1")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing is {label_smoothing}; it must be 0 to 1")
    if softcap is not None:
        positive(name, "softcap", softcap)
    return dtype_of(weight_grad_dtype or weight.dtype)


def faults(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, *rest: Any) -> str | None:
    """What is wrong with the targets; they are read, so the device is waited for."""
    classes = rest[5] or weight.shape[0]
    bad = (target != ignore_index) & ((target < 0) | (target >= classes))
    if not bool(bad.any()):
        return None
    row = int(bad.nonzero()[0])
    return f"target[{row}] is {int(target[row])}; accepted are 0 to {classes - 1} and ignore_index, {ignore_index}"


def canonical(p: Problem) -> Problem | None:
    """As they are: rows of x and weight with neighbouring features, one behind another; all else without gaps."""
    for name, m in p.tensors:
        if m is None or m.contiguous:
            continue
        if name not in ("x", "weight") or m.strides[1] != 1 or m.strides[0] < m.shape[1]:
            return None
    return p


def canonical_bwd(p: Problem) -> Problem | None:
    """Where the forward has made the gradients, they and dloss alone are looked at."""
    return p if any(p.get(n) is not None for n in ("unit_x", "unit_weight", "unit_bias")) else canonical(p)
