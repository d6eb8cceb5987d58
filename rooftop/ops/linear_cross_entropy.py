"""Fused linear layer and cross-entropy loss: the last layer of a language model. The logits x · wᵀ never exist in full.

    z = logit_scale · (x · weightᵀ + bias),  then softcap · tanh(z / softcap) where that is asked,  then z / temperature
    loss_i = lse_i - (1 - s) · z_i,target - s · mean(z_i) + lse_square_scale · lse_i²,   lse_i = log sum_j exp(z_ij)
    entropy_i = lse_i - sum_j p_ij · z_ij,   p_ij = exp(z_ij - lse_i)

s is the label smoothing. Sources: Wijmans et al. 2024, Cut Your Losses (arXiv 2411.09009); Hsu et al. 2024, Liger Kernel (arXiv
2410.10989), for gradients made in the forward; those of the options are in cross_entropy's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.core import invariance
from rooftop.core.argument_checks import flag, wants_gradient
from rooftop.core.autocasting import lowered
from rooftop.core.layouts import widen
from rooftop.core.op import Calls, Grad, Judging, Op, Timed, Tolerance
from rooftop.core.spec import DTYPES, Meta, Problem, Work
from rooftop.ops import _linear_cpu, _linear_rows
from rooftop.ops._linear_call import canonical, canonical_bwd, check_divisor, check_weights, faults, scale_of, summed, validated
from rooftop.ops._linear_cases import SWEPT, cases
from rooftop.ops._linear_loss import beside, changed, entropy_gradients, forward, gradients, logits, options_of, same_state
from rooftop.ops._linear_peers import compiled_backward, liger, three_products, torch_step
from rooftop.ops._matmul_calls import onednn_takes_bfloat16

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FEW = 2**24  # logits that a call on the CPU may hold for its backward
UNITS = {"f64": "fma64", "f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    reduction: str = "mean",
    divisor: int | float | Tensor | None = None,
    weights: Tensor | None = None,
    return_lse: bool = False,
    return_entropy: bool = False,
    weight_grad_dtype: torch.dtype | None = None,
    memory: str = "fast",
    group: Any = None,
    implementation: str | None = None,
) -> Any:
    """Cross-entropy between `x @ weight.T + bias` and class indices. Products are summed in float32 and rounded to the dtype of `x`, all
    else is float32. Under autocast `x`, `weight` and `bias` are cast to its dtype, as by a linear layer.

    With N tokens, H features, V classes and gradients included, the memory beyond the inputs, for 16-bit tensors and `"mean"` or `"sum"`,
    is: `"fast"`: dX + the larger of 3.1 dW and 3 dW + 256 MiB; on Hopper dX + dW + 4 GiB if that is more. There are three products; the
    forward computes the gradients, and the backward scales them. `"small"`: dW + 3 dX + 64 MiB. There are four products; the backward
    recomputes the logits. On Hopper, if H is no multiple of 8, `"fast"` takes dX + dW more, and `"small"` dX more. Both are exact and
    deterministic, and the host does not wait.

    Args:
        x: [..., H], float32, float16 or bfloat16.
        weight: [V, H] in the dtype of `x`. If it, or `x`, requires no gradient, the product for that gradient is skipped.
        target: int64 [...], 0 to V - 1 or `ignore_index`. Any other value raises IndexError on the CPU; on a GPU it makes the token's loss
            and the gradients NaN, and raises under `rooftop.debug()`.
        bias: [V], of the dtype of `x` or float32.
        ignore_index: tokens with this target have no loss and no gradient, do not count in the mean, and their logits are not read. On
            Hopper, in 16 bits, the products skip them too; elsewhere the products include their rows.
        label_smoothing: 0 to 1, the share of the target spread evenly over all classes.
        lse_square_scale: factor of the squared log-normaliser, added to each token's loss.
        softcap: logits are first bounded smoothly to ± this. None: no cap. On a GPU, with 16 bits, 1024 classes or more and a cap of at
            most 70, the error is up to 2e-7 of the cap.
        logit_scale: factor of the logits before the soft cap, other than 0.
        temperature: above 0: loss, lse and entropy are those of the logits, soft-capped, divided by it.
        divisor: with `"sum"`, what the sum is divided by: a number, or a tensor of one element on any device (`num_items_in_batch` of
            Transformers: the tokens that count in all batches of a step). Without a gradient.
        reduction: `"mean"` over the tokens that count, `"sum"` or `"none"`. With `"none"` both values of `memory` need four products.
        weights: [...], the shape of `target`, floating point: factors of the tokens' losses, without a gradient. `"mean"` divides by
            their sum over the tokens that count. There are four products for either value of `memory`. A token of weight 0 is computed as
            an ignored one, unless lse or entropy are asked for.
        return_lse: return (loss, lse), lse [...] in float32, 0 where a token is ignored. No gradient flows through it.
        return_entropy: return last the entropy of each token's distribution, [...] in float32, in nats, 0 where a token is ignored. Its
            gradient flows. There are four products for either value of `memory`.
        weight_grad_dtype: dtype of the weight's gradient: that of the weight, or torch.float32, for a leaf with ``weight.grad_dtype =
            torch.float32`` (otherwise autograd rounds it to the weight's dtype). It is summed in float32 either way.
        memory: `"fast"` or `"small"`.
        group: a `torch.distributed` process group that shards the vocabulary: `weight` and `bias` are this rank's classes, those of rank r
            before those of rank r + 1, the same number on each. `x` and `target` (global class indices) are the same on all ranks. The
            forward exchanges four numbers a token; dX is summed over the ranks. The backward recomputes the logits for either value of
            `memory`.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns float32: a scalar, or [...] without a reduction. The mean over no tokens is NaN, as torch's, and its gradients are zeros. On a
    GPU, with `"fast"` and a reduction, a second backward through one forward raises: the first one has scaled the gradients in place.

    Raises TypeError for other dtypes or options that are not numbers, ValueError for shapes, devices or options that are not accepted."""

    x, weight, bias = lowered(x, weight, bias)
    to = validated(x, weight, target, bias, ignore_index, label_smoothing, lse_square_scale, softcap, reduction, weight_grad_dtype, memory)
    scale = scale_of(logit_scale, temperature)
    if divisor is not None:
        check_divisor(divisor, reduction)
    if weights is not None:
        check_weights(weights, target)
    flag("linear_cross_entropy", "return_lse", return_lse)
    flag("linear_cross_entropy", "return_entropy", return_entropy)
    rows, flat = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    wanted = (wants_gradient(x), wants_gradient(weight), wants_gradient(bias))
    cap = 0.0 if softcap is None else float(softcap) / temperature  # cap · tanh(z / cap) / T, with z / T for z
    each = None if weights is None else weights.detach().reshape(-1).float()
    if each is not None and not return_lse and not return_entropy:
        flat = flat.where(each != 0, ignore_index)
    apart = each is not None or return_entropy  # what is summed are losses of tokens
    options = (int(ignore_index), "none" if apart else reduction, float(label_smoothing), float(lse_square_scale), cap)
    given = implementation if implementation is not None or not return_lse else ""  # torch's own function gives no normaliser
    if invariance.on:
        _linear_rows.refuse(implementation, group, to, weight, return_entropy)
        loss, lse = _linear_rows.losses(rows, weight, bias, flat, *(options[0], *options[2:]), scale)
        apart = True
    else:
        if group is not None:
            from rooftop.ops._vocabulary import split_loss

            loss, state = split_loss(OP, rows, weight, bias, flat, options, (to, memory), wanted, group, implementation, return_entropy, scale)
        else:
            loss, state, *_ = OP(
                rows, weight, bias, flat, *options, 0, 0, to, memory, *wanted, True, return_entropy, scale, implementation=given
            )
        lse = state[:, 0] + state[:, 1].log() if return_lse else loss
    loss, entropy = loss.unbind(-1) if return_entropy else (loss, loss)
    if apart:
        loss = summed(loss, flat != ignore_index, each, reduction)
    loss = loss.reshape(target.shape) if reduction == "none" else loss
    if divisor is not None:
        loss = loss / (divisor.detach().reshape(()).to(loss.device) if hasattr(divisor, "detach") else divisor)
    more = ([lse.detach()] if return_lse else []) + ([entropy] if return_entropy else [])
    return (loss, *(m.reshape(target.shape) for m in more)) if more else loss


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float,
    lse_square_scale: float, softcap: float, start: int, classes: int, weight_to: str, memory: str, x_grad: bool, weight_grad: bool,
    bias_grad: bool, inplace: bool, with_entropy: bool = False, logit_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """(loss, state, divisor, and for memory="fast" the gradients of the loss by x, weight and bias). `start`, `classes`: the weight's first
    class and all classes, where it is a slice of the vocabulary; 0 classes: it is all. With entropies, which go with no reduction, `loss`
    [N, 2] is each token's loss and entropy."""
    rest = (ignore_index, reduction, label_smoothing, lse_square_scale, softcap, start, classes)
    return forward(x, weight, bias, target, options_of(weight, rest), memory, with_entropy, logit_scale, narrow=False)


def cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float,
    lse_square_scale: float, softcap: float, start: int, classes: int, weight_to: str, memory: str, x_grad: bool, weight_grad: bool,
    bias_grad: bool, inplace: bool, with_entropy: bool = False, logit_scale: float = 1.0,
) -> Any:
    """Two calls of torch, where all logits of float32 are few. Its gradients err more than what is allowed: they are the reference's, of
    bfloat16 with products of bfloat16 (`same`) where those are of whole tiles (rooftop/ops/matmul.py says why)."""
    import torch

    wanted = (x_grad and x.requires_grad) or (weight_grad and weight.requires_grad) or (
        bias_grad and bias is not None and bias.requires_grad
    )
    rest = (ignore_index, reduction, label_smoothing, lse_square_scale, softcap, start, classes)
    tiles = x.dtype == torch.bfloat16 and x.numel() > 0 and x.shape[1] % 32 == 0 and onednn_takes_bfloat16()
    if (
        wanted and not torch.is_grad_enabled() and tiles and not (x.shape[0] % 32 or weight.shape[0] % 32) and weight_to == "bf16"
        and made_inforward(reduction, memory) and not (label_smoothing or lse_square_scale or softcap or classes or with_entropy)
        and x.shape[0] * weight.shape[0] <= FEW and faults(x, weight, bias, target, *rest) is None
    ):
        return _linear_cpu.step(x, weight, bias, target, options_of(weight, rest), logit_scale, (x_grad, weight_grad, bias_grad and bias is not None))
    if wanted or lse_square_scale or classes or memory != "fast" or with_entropy or x.shape[0] * weight.shape[0] > FEW:
        return NotImplemented
    if not tiles:
        x, weight, bias = (widen(t) for t in (x, weight, bias))
    z = logits(x, weight, bias, softcap, tiles, logit_scale)
    try:
        loss = torch.nn.functional.cross_entropy(z, target, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing)
    except IndexError:  # a target out of range, of which the checks of the reference say more
        return NotImplemented
    # torch adds the losses one after another
    loss = loss if reduction == "none" else loss.sum() / (1 if reduction == "sum" else (target != ignore_index).sum())
    return (loss, *[None] * 5)


def same(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The result at the same precision: products rounded to the dtype of `x`, all else in float32; so is the logits' gradient, before it is
    multiplied."""
    return forward(x, weight, bias, target, options_of(weight, rest), rest[8], rest[13], rest[14], narrow=x.element_size() == 2)


def backward(
    dloss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, state: Tensor, divisor: Tensor,
    unit_x: Tensor | None, unit_weight: Tensor | None, unit_bias: Tensor | None, ignore_index: int, reduction: str,
    label_smoothing: float, lse_square_scale: float, softcap: float, start: int, classes: int, weight_to: str, memory: str,
    x_grad: bool, weight_grad: bool, bias_grad: bool, inplace: bool, with_entropy: bool = False, logit_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """dz = (exp(z - lse) · (1 + 2 · lse_square_scale · lse) - s / V - (1 - s) · [target]) · dloss / divisor, times 1 - (z / softcap)²; dx =
    dz · weight, dweight = dzᵀ · x, dbias the sum of dz over the tokens. Where the forward has made the gradients: those times dloss. With
    entropies, dloss [N, 2] is (dloss, dentropy), and dz has another - p (log p + entropy) · dentropy before the soft cap's factor."""
    rest = (ignore_index, reduction, label_smoothing, lse_square_scale, softcap, start, classes)
    o = options_of(weight, rest)
    if with_entropy:
        return entropy_gradients(dloss, x, weight, bias, target, state, divisor, o, logit_scale, narrow=False)
    return gradients(dloss, x, weight, bias, target, state, divisor, unit_x, unit_weight, unit_bias, o, logit_scale, narrow=False)


def same_gradients(
    dloss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, state: Tensor, divisor: Tensor, unit_x: Tensor | None,
    unit_weight: Tensor | None, unit_bias: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:
    """As `same`."""
    o = options_of(weight, rest)
    if rest[13]:
        return entropy_gradients(dloss, x, weight, bias, target, state, divisor, o, rest[14], narrow=x.element_size() == 2)
    return gradients(dloss, x, weight, bias, target, state, divisor, unit_x, unit_weight, unit_bias, o, rest[14], narrow=x.element_size() == 2)


def made_inforward(reduction: str, memory: str) -> bool:
    """Whether the forward makes the gradients. A token's own share of the loss is not known there, so not without a reduction."""
    return memory == "fast" and reduction != "none"


def outputs(
    x: Meta, weight: Meta, bias: Meta | None, reduction: str, weight_to: str, memory: str, x_grad: bool, weight_grad: bool, bias_grad: bool,
    with_entropy: bool = False, **_: Any
) -> dict[str, Meta | None]:
    rows, wide = x.shape[:1], "f64" if x.dtype == "f64" else "f32"
    each = (*rows, 2) if with_entropy else rows
    made = made_inforward(reduction, memory)
    return {
        "loss": Meta(each if reduction == "none" else (), wide), "state": Meta((*rows, 5 if with_entropy else 4), wide), "divisor": Meta((), wide),
        "unit_x": Meta(x.shape, x.dtype) if made and x_grad else None,
        "unit_weight": Meta(weight.shape, weight_to) if made and weight_grad else None,
        "unit_bias": Meta(bias.shape, bias.dtype) if made and bias_grad and bias is not None else None,
    }


def outputs_bwd(
    x: Meta, weight: Meta, bias: Meta | None, weight_to: str, x_grad: bool, weight_grad: bool, bias_grad: bool, **_: Any
) -> dict[str, Meta | None]:
    return {
        "dx": Meta(x.shape, x.dtype) if x_grad else None,
        "dweight": Meta(weight.shape, weight_to) if weight_grad else None,
        "dbias": Meta(bias.shape, bias.dtype) if bias_grad and bias is not None else None,
    }


def _one(p: Problem) -> float:
    """Multiplications of one product."""
    return float(p["x"].numel) * p["weight"].shape[0]


def work(p: Problem) -> Work:
    """One product, and each gradient that is made one more."""
    products = 1 + sum(p.get(n) is not None for n in ("unit_x", "unit_weight"))
    read = sum(m.nbytes for n in ("x", "weight", "bias", "target") if (m := p.get(n)) is not None)
    made = sum(m.nbytes for n in ("loss", "state", "unit_x", "unit_weight", "unit_bias") if (m := p.get(n)) is not None)
    return Work(read, made, {UNITS[p["x"].dtype]: products * _one(p), "exp": _one(p) / p["x"].shape[-1]})


def work_bwd(p: Problem) -> Work:
    outs = [m for n in ("dx", "dweight", "dbias") if (m := p.get(n)) is not None]
    made = sum(m.nbytes for m in outs)
    if any(p.get(n) is not None for n in ("unit_x", "unit_weight", "unit_bias")):
        return Work(made, made, {})
    products = 1 + sum(p.get(n) is not None for n in ("dx", "dweight"))
    read = sum(m.nbytes for n in ("x", "weight", "bias", "target", "state") if (m := p.get(n)) is not None)
    return Work(read, made, {UNITS[p["x"].dtype]: products * _one(p), "exp": _one(p) / p["x"].shape[-1]})


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
    import torch

    to = getattr(torch, DTYPES[options["weight_to"]].torch)
    if options["start"] or options["classes"] or to != tensors["weight"].dtype:  # a gradient of another dtype wants a weight that takes it
        return None
    if options["with_entropy"]:  # the public function gives two tensors
        return None
    names = ("ignore_index", "reduction", "label_smoothing", "lse_square_scale", "memory")
    more = {"softcap": options["softcap"] or None, "bias": tensors["bias"], "logit_scale": options["logit_scale"]}
    return (tensors["x"], tensors["weight"], tensors["target"]), {**{n: options[n] for n in names}, **more}


def _tail_dropped(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Any:
    """The last classes, short of a multiple of 8, are not in the sum."""
    kept = max(weight.shape[0] // 8 * 8, 1)
    loss, state, divisor, unit_x, unit_weight, unit_bias = reference(x, weight[:kept], bias if bias is None else bias[:kept], target, *rest)
    if unit_weight is not None:
        unit_weight = unit_weight.new_zeros(weight.shape).index_copy(0, unit_weight.new_tensor(range(kept)).long(), unit_weight)
        unit_bias = unit_bias.new_zeros(weight.shape[0]).index_copy(0, unit_bias.new_tensor(range(kept)).long(), unit_bias)
    return loss, state, divisor, unit_x, unit_weight, unit_bias


def _last_chunk_alone(dloss: Tensor, *rest: Any) -> Any:
    """dX of the last half of the classes alone: what slices add is forgotten."""
    dx, dweight, dbias = backward(dloss, *rest)
    return (dx / 2, dweight, dbias)


def _flat(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Any:
    """The entropy of the largest probability alone, -log p of it."""
    loss, state, *more = reference(x, weight, bias, target, *rest)
    return (beside(loss[:, 0], state[:, 1].log()), state, *more) if rest[13] else (loss, state, *more)


def _entropy_without_gradient(dloss: Tensor, *rest: Any) -> Any:
    return backward(beside(dloss[:, 0], 0 * dloss[:, 1]) if rest[-2] else dloss, *rest)


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, strict=True, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=cases(),
    swept=SWEPT,
    work=work,
    judging=Judging(
        same=same, compare={"state": same_state}, rows=lambda p: _linear_rows.APART,
        invariant={"batch": "mode", "packing": "mode", "padding": "mode", "chunking": "mode"},
    ),
    tolerance=Tolerance(multiple=2.0),
    grad=Grad(
        wrt=("x", "weight", "bias"),
        saves=("x", "weight", "bias", "target", "state", "divisor", "unit_x", "unit_weight", "unit_bias"),
        non_differentiable=("state", "divisor", "unit_x", "unit_weight", "unit_bias"),
        into={"dx": "unit_x", "dweight": "unit_weight", "dbias": "unit_bias"},
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        canonical=canonical_bwd,
        tolerance=Tolerance(multiple=2.0),
        judging=Judging(same=same_gradients),
        peers={"torch.compile": compiled_backward(backward)},
        wrong={
            "ignored tokens have a gradient": changed(backward, 10, ignore_index=-1),
            "smoothing forgotten": changed(backward, 10, label_smoothing=0.0),
            "square forgotten": changed(backward, 10, lse_square_scale=0.0),
            "cap forgotten": changed(backward, 10, softcap=0.0),
            "slices not added": _last_chunk_alone,
            "logit scale forgotten": changed(backward, 10, logit_scale=1.0),
            "entropy without a gradient": _entropy_without_gradient,
        },
    ),
    peers={"torch": torch_step, "torch.compile": lambda: torch_step(compiled=True), "liger": liger},
    timed=Timed(lower_bounds={"three products": three_products}),
    wrong={
        "ignored tokens count": changed(reference, 4, ignore_index=-1),
        "smoothing forgotten": changed(reference, 4, label_smoothing=0.0),
        "square forgotten": changed(reference, 4, lse_square_scale=0.0),
        "cap forgotten": changed(reference, 4, softcap=0.0),
        "bias forgotten": lambda x, weight, bias, *rest: reference(x, weight, bias if bias is None else bias * 0, *rest),
        "logit scale forgotten": changed(reference, 4, logit_scale=1.0),
        "tail dropped": _tail_dropped,
        "entropy of one class": _flat,
    },
)
