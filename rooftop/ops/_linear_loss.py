"""Cross-entropy of logits that are a product, in plain torch: the formulas of linear_cross_entropy, for the whole vocabulary or a slice of
it.

`state` [N, 4] is a token's shift m (its largest logit), the sum of exp(z - m), the sum of z where labels are smoothed (else 0), and the
target's logit (0 where the slice has it not). A token that is ignored has (0, 1, 0, 0). Where entropies are asked for, the token's follows
as a fifth number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Judged

if TYPE_CHECKING:
    from torch import Tensor


PIECE = 2**29  # logits that the reference holds at a time


@dataclass(frozen=True)
class Options:
    """`start`: the class that the weight's first row is; `classes`: of the whole vocabulary."""

    ignore_index: int
    reduction: str
    smoothing: float
    scale: float
    softcap: float
    start: int
    classes: int


def options_of(weight: Tensor, rest: Sequence[Any]) -> Options:
    ignore, reduction, smoothing, scale, cap, start, classes = rest[:7]
    return Options(ignore, reduction, smoothing, scale, cap, start, classes or weight.shape[0])


def logits(x: Tensor, weight: Tensor, bias: Tensor | None, softcap: float, narrow: bool = False, factor: float = 1.0) -> Tensor:
    """`narrow`: the product is rounded to the dtype of `x`, and all else is in float32. `factor`: of all but the soft cap."""
    z = x @ weight.t()
    z = z.float() if narrow else z
    z = z if bias is None else z + (bias.float() if narrow else bias)
    if factor != 1:
        z = z * factor
    return softcap * (z / softcap).tanh() if softcap else z


def state_of(z: Tensor, target: Tensor, o: Options) -> Tensor:
    import torch

    most = z.amax(-1).clamp_min(torch.finfo(z.dtype).min)  # where all are -inf, differences from it are no NaN
    sum_ = (z - most[:, None]).exp().sum(-1)
    total = z.sum(-1) if o.smoothing else torch.zeros_like(most)
    hit = target - o.start
    there = (hit >= 0) & (hit < z.shape[-1])
    picked = z.gather(-1, hit.clamp(0, z.shape[-1] - 1)[:, None])[:, 0].where(there, 0.0)
    ignored = most.new_tensor([0.0, 1.0, 0.0, 0.0])
    return torch.stack((most, sum_, total, picked), -1).where((target != o.ignore_index)[:, None], ignored)


def losses(state: Tensor, target: Tensor, o: Options) -> Tensor:
    """Of each token; NaN where the target is no class."""
    most, sum_, total, picked = state.unbind(-1)
    above, off = sum_.log(), most - picked
    if o.smoothing:
        off = (1 - o.smoothing) * off + o.smoothing * (most - total / o.classes)
    found = above + off
    if o.scale:
        found = found + o.scale * (most + above).square()
    return found.where((target >= 0) & (target < o.classes), float("nan")).where(target != o.ignore_index, 0.0)


def with_entropies(z: Tensor, target: Tensor, state: Tensor, o: Options) -> Tensor:
    """The state [N, 5], with lse - sum of p z of each token's distribution p last, from differences of logits; 0 where it is ignored. A
    class of probability 0 adds nothing, though its logit be -inf."""
    import torch

    d = z - state[:, :1]
    e = d.exp()
    found = state[:, 1].log() - (e * d.where(e != 0, 0.0)).sum(-1) / state[:, 1]
    return torch.cat((state, found.where(target != o.ignore_index, 0.0)[:, None]), 1)


def entropy_slopes(z: Tensor, state: Tensor, share: Tensor) -> Tensor:
    """The gradient of the entropies by the logits, -p (log p + entropy), times `share` [N]."""
    d = z - state[:, :1]
    e = d.exp()
    return -e * (d.where(e != 0, 0.0) + (state[:, 4] - state[:, 1].log())[:, None]) * (share / state[:, 1])[:, None]


def divisor_of(target: Tensor, o: Options, like: Tensor) -> Tensor:
    return (target != o.ignore_index).sum().to(like.dtype) if o.reduction == "mean" else like.new_ones(())


def slopes(
    z: Tensor, target: Tensor, state: Tensor, share: Tensor, o: Options, of_entropy: Tensor | None = None, factor: float = 1.0
) -> Tensor:
    """The gradient of the logits before the soft cap and the factor. `share`, `of_entropy` [N]: those of each token's loss and entropy."""
    count = z.shape[-1]
    most, sum_ = state[:, 0], state[:, 1]
    share = share.where((target >= 0) & (target < o.classes), float("nan"))
    each = (1 + 2 * o.scale * (most + sum_.log())) / sum_ if o.scale else 1 / sum_
    hit = target - o.start
    there = (hit >= 0) & (hit < count)
    d = (z - most[:, None]).exp() * each[:, None] - o.smoothing / o.classes
    taken = d.new_full((), o.smoothing - 1).expand(hit.shape).where(there, 0.0)
    d = d.scatter_add(-1, hit.clamp(0, count - 1)[:, None], taken[:, None]) * share[:, None]
    if of_entropy is not None:
        d = d + entropy_slopes(z, state, of_entropy)
    d = d * (1 - (z / o.softcap).square()) if o.softcap else d
    if factor != 1:
        d = d * factor
    return d.where((target != o.ignore_index)[:, None], 0.0)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, o: Options, memory: str, with_entropy: bool, factor: float,
    narrow: bool,
) -> tuple[Tensor, ...]:
    import torch

    parts = pieces(x, weight)
    states = []
    for p in parts:
        z = logits(x[p], weight, bias, o.softcap, narrow, factor)
        states.append(state_of(z, target[p], o))
        if with_entropy:
            states[-1] = with_entropies(z, target[p], states[-1], o)
    state = torch.cat(states)
    if with_entropy:
        loss = torch.stack((losses(state[:, :4], target, o), state[:, 4]), 1)
        return loss, state, divisor_of(target, o, state), None, None, None
    found = losses(state, target, o)
    divisor = divisor_of(target, o, state)
    loss = found if o.reduction == "none" else found.sum() / divisor
    if memory != "fast" or o.reduction == "none":
        return loss, state, divisor, None, None, None
    with torch.no_grad():
        units = products(x, weight, bias, target, state, (1 / divisor).expand(target.shape), o, narrow, z if len(parts) == 1 else None, factor=factor)
    return loss, state, divisor, *units


def pieces(x: Tensor, weight: Tensor) -> list[slice]:
    """The tokens, as many at a time as have at most PIECE logits."""
    step = max(1, PIECE // weight.shape[0])
    return [slice(i, i + step) for i in range(0, max(1, x.shape[0]), step)]


def products(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, state: Tensor, share: Tensor, o: Options, narrow: bool,
    known: Tensor | None = None, of_entropy: Tensor | None = None, factor: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients. Those of weight and bias are rounded once: sums over several pieces are at least float32. `known`: the logits, of a
    single piece."""
    import torch

    def of(p: slice) -> Tensor:
        z = logits(x[p], weight, bias, o.softcap, narrow, factor) if known is None else known
        if of_entropy is not None:
            return slopes(z, target[p], state[p], share[p], o, of_entropy[p], factor=factor).to(x.dtype)
        return slopes(z, target[p], state[p], share[p], o, factor=factor).to(x.dtype)

    parts = pieces(x, weight)
    if len(parts) == 1:
        d = of(parts[0])
        return d @ weight, d.t() @ x, d.sum(0)
    wide = torch.promote_types(x.dtype, torch.float32)
    dx, dweight, dbias = torch.empty_like(x), weight.new_zeros(weight.shape, dtype=wide), weight.new_zeros(weight.shape[:1], dtype=wide)
    for p in parts:
        d = of(p)
        dx[p] = d @ weight
        dweight.addmm_(d.t().to(wide), x[p].to(wide))
        dbias += d.sum(0, dtype=wide)
    return dx, dweight.to(x.dtype), dbias.to(x.dtype)


def entropy_gradients(
    dloss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, state: Tensor, divisor: Tensor, o: Options,
    factor: float, narrow: bool,
) -> tuple[Tensor, ...]:
    return products(x, weight, bias, target, state, dloss[:, 0] / divisor, o, narrow, None, dloss[:, 1], factor)


def gradients(
    dloss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, state: Tensor, divisor: Tensor, unit_x: Tensor | None,
    unit_weight: Tensor | None, unit_bias: Tensor | None, o: Options, factor: float, narrow: bool,
) -> tuple[Tensor, ...]:
    units = (unit_x, unit_weight, unit_bias)
    found: Sequence[Any] = units
    if any(u is None for u in units[: 2 if bias is None else 3]):
        found = products(x, weight, bias, target, state, (dloss / divisor).expand(target.shape), o, narrow, factor=factor)
    return tuple(f if u is None else (u.float() if narrow else u) * dloss for u, f in zip(units, found, strict=True))


def same_state(judged: Judged) -> str | None:
    """Any shift will do that keeps lse. lse, the sum of the logits and the target's logit: to four times what the same precision errs, or
    2^-20 of the largest, or where the logits of many classes have 16 bits 2^-22 of the soft cap."""
    classes, cap = int(judged.options["classes"] or judged.tensors["weight"].shape[0]), float(judged.options["softcap"])
    rough = cap if judged.tensors["x"].element_size() == 2 and classes >= 1024 and cap <= 70 else 0.0
    got, exact, narrow = (t["state"].double() for t in (judged.got, judged.exact, judged.same))
    for i, what in enumerate(("lse", "the sum of the logits", "the target's logit")):
        mine, true, theirs = (t[:, i + 1] if i else t[:, 0] + t[:, 1].log() for t in (got, exact, narrow))
        if not bool((mine.isfinite() == theirs.isfinite()).all()):
            return f"{what} is NaN or infinite elsewhere than at the same precision in plain torch"
        there = theirs.isfinite()
        if bool(there.any()):
            error, base = (float((t - true)[there].abs().max()) for t in (mine, theirs))
            allowed = max(4 * base, 2.0**-20 * max(1.0, float(true[there].abs().max())), 2.0**-22 * rough)
            if error > allowed:
                return f"{what} errs by {error:.3g}; {allowed:.3g} is allowed"
    return None


def changed(function: Any, first: int, **changes: Any) -> Any:
    """The same function with options exchanged for others. `first`: how many arguments come before the options."""
    names = ("ignore_index", "reduction", "label_smoothing", "lse_square_scale", "softcap", "start", "classes", "weight_to", "memory",
             "x_grad", "weight_grad", "bias_grad", "inplace", "with_entropy", "logit_scale")

    def run(*args: Any) -> Any:
        return function(*args[:first], *(changes.get(n, v) for n, v in zip(names, args[first:], strict=True)))

    return run


def beside(*columns: Tensor) -> Tensor:
    import torch

    return torch.stack(columns, -1)
