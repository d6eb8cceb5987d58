"""Pruning by magnitude: masks over a model, lottery tickets, and an order of columns that lets 2:4 keep more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor, nn

from rooftop.formats import two_four
from rooftop.quant.layer import LinearLayer
from rooftop.quant.replacing import say_left, turned
from rooftop.sparse.indices import BLOCKS

FORMS = ("elements", "blocks", "2:4")
AT_ONCE = 1 << 25  # elements that a search holds at once


@dataclass
class Pruned:
    """Which weights of a model are kept: a mask of booleans for each, by the parameter's name."""

    masks: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def apply(self, model: nn.Module) -> None:
        """Set the pruned weights to zero, in place, NaN and infinity too: call it after each step of an optimiser.

        Raises KeyError for a parameter that the model does not have, ValueError for one of another shape; nothing is changed then."""
        for weight, mask in self._pairs(model):
            weight.masked_fill_(mask.to(weight.device) == 0, 0)

    def _pairs(self, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """The parameters and their masks."""
        own = dict(model.named_parameters(remove_duplicate=False))  # a tied parameter by each of its names
        for name, mask in self.masks.items():
            if name not in own:
                raise KeyError(f"the model has no parameter {name!r}; it has {', '.join(own)}")
            if own[name].shape != mask.shape:
                raise ValueError(
                    f"the mask of {name!r} is {tuple(mask.shape)}; the parameter is {tuple(own[name].shape)}, and both must be alike"
                )
        return [(own[name], mask) for name, mask in self.masks.items()]

    def density(self) -> float:
        """Share of the weights with a mask that are kept."""
        kept, every = sum(int(m.sum()) for m in self.masks.values()), sum(m.numel() for m in self.masks.values())
        return kept / max(1, every)


@torch.no_grad()  # type: ignore[untyped-decorator]
def prune(
    model: nn.Module, fraction: float = 0.5, *, form: str = "elements", block: tuple[int, int] = (32, 32), everywhere: bool = False,
    skip: Sequence[str] = (), before: Pruned | None = None,
) -> Pruned:
    """Set the smallest weights of a model's linear layers to zero, and return masks of those that are kept.

    fraction: of the weights to set to zero, 0 to 1. Ignored by "2:4", which always prunes half.
    form: "elements", by magnitude; "blocks" of `block`, by the sum of squares; "2:4", two of each four consecutive elements of a row.
    everywhere: True: the fraction applies to all layers together, of equal weights the later are pruned first; False: to each layer.
    skip: the name or names of layers that are not pruned, nor a weight that another layer shares with them.
    before: masks of an earlier round: weights that are zero there stay zero, and count towards the fraction (iterative magnitude pruning).

    A weight that several layers share is pruned once, and has one mask, by the first linear layer's name. Pruned NaN and infinity become
    zero.

    A warning says which matrices stay as they are without having been skipped, and how many bytes they have: experts in one parameter,
    Transformers' Conv1D.

    Raises ValueError for a fraction outside 0 to 1, an unknown form, a block of other sizes, or an earlier mask of another shape.

    Source: Han et al., "Learning both Weights and Connections for Efficient Neural Networks" (2015); Frankle and Carbin, "The Lottery
    Ticket Hypothesis" (2019)."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"prune: fraction is {fraction}; it must be 0 to 1")
    if form not in FORMS:
        raise ValueError(f"prune: form is {form!r}; it is one of {', '.join(map(repr, FORMS))}")
    if form == "blocks" and (len(block) != 2 or any(n not in BLOCKS for n in block)):
        raise ValueError(f"prune: block is {block!r}; it must be two of {', '.join(map(str, BLOCKS))}")
    skipped = {skip} if isinstance(skip, str) else set(skip)
    weights = _weights(model, skipped)
    earlier = _earlier(model, weights, before)
    scores = {n: _scores(w, earlier.get(n), form, block) for n, w in weights.items()}
    masks = {}
    if form == "2:4":
        for n, w in weights.items():
            chosen = torch.zeros(w.shape[0], -(-w.shape[1] // 4) * 4, dtype=torch.bool, device=w.device)
            masks[n] = chosen.scatter_(1, two_four.places(two_four.select(scores[n])), True)[:, : w.shape[1]]
    else:
        chosen_of = _kept_everywhere(scores, fraction) if everywhere and scores else {n: _kept(s, fraction) for n, s in scores.items()}
        for n, w in weights.items():
            kept = chosen_of[n]
            if form == "blocks":
                kept = kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: w.shape[0], : w.shape[1]]
            masks[n] = kept
    masks = {n: m & earlier[n] if n in earlier else m for n, m in masks.items()}
    found = Pruned(masks)
    found.apply(model)
    say_left("prune", model, {id(m): "layers of Transformers' Conv1D" for n, m in model.named_modules() if turned(m) and n not in skipped})
    return found


@torch.no_grad()  # type: ignore[untyped-decorator]
def rewind(model: nn.Module, state: Mapping[str, Tensor], pruned: Pruned) -> None:
    """The parameters of an earlier `state` (a state dict, kept before training) with the masks found since: a lottery ticket. Raises as
    `load_state_dict`."""
    pruned._pairs(model)  # raises before anything is changed
    model.load_state_dict(state)
    pruned.apply(model)


@torch.no_grad()  # type: ignore[untyped-decorator]
def permute_columns(w: Tensor, rounds: int = 100, seed: int = 0) -> Tensor:
    """An order of the columns of `w` [M, K], K a multiple of 4, with which the two largest of each four of a row add up to more: int64 [K],
    for ``w[:, order]``. What comes before must make its rows in that order, ``previous[order]``.

    Each round pairs the groups of four at random, and of the 35 ways to part eight columns takes the best: the sum never falls. Raises
    ValueError for other shapes.

    Source: Pool and Yu, "Channel Permutations for N:M Sparsity" (2021)."""
    if w.dim() != 2 or w.shape[1] % 4:
        raise ValueError(f"permute_columns: w has shape {tuple(w.shape)}; it must be [M, K], K a multiple of 4")
    m, k = w.shape
    order = torch.arange(k, device=w.device)
    groups = k // 4
    if groups < 2 or m == 0:
        return order
    size = w.abs().float()
    generator = torch.Generator(device="cpu").manual_seed(seed)
    # the stay-as-it-is first
    ways = torch.tensor([(0, *c, *(i for i in range(1, 8) if i not in c)) for c in combinations(range(1, 8), 3)], device=w.device)
    each = max(1, AT_ONCE // (m * 35 * 8))
    for _ in range(rounds):
        pairs = torch.randperm(groups, generator=generator)[: groups // 2 * 2].view(-1, 2).to(w.device)
        for part in pairs.split(each):
            at = (part[:, :, None] * 4 + torch.arange(4, device=w.device)).flatten(1)  # pairs, 8
            columns = size[:, order[at]][:, :, ways].view(m, part.shape[0], 35, 2, 4)
            most = columns.topk(2, dim=-1).values.sum((0, 3, 4), dtype=torch.float64)
            best = most.argmax(1)
            order[at] = order[at].gather(1, ways[best])
    return order


def _weights(model: nn.Module, skip: set[str]) -> dict[str, Tensor]:
    """The weights of linear layers, each once, without those of a layer in `skip`."""
    seen = {id(p) for n, m in model.named_modules(remove_duplicate=False) if n in skip for p in m.parameters(recurse=False)}
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not isinstance(module, LinearLayer) and name not in skip and id(module.weight) not in seen:
            found[f"{name}.weight" if name else "weight"] = module.weight
            seen.add(id(module.weight))
    return found


def _earlier(model: nn.Module, weights: dict[str, Tensor], before: Pruned | None) -> dict[str, Tensor]:
    """The masks of an earlier round by the names of this one, on the weights' devices."""
    if before is None:
        return {}
    own = dict(model.named_parameters(remove_duplicate=False))
    masks = {id(own[n]): m for n, m in before.masks.items() if n in own}
    found = {n: masks[id(w)].to(w.device) != 0 for n, w in weights.items() if id(w) in masks}
    for n, m in found.items():
        if m.shape != weights[n].shape:
            raise ValueError(
                f"prune: the earlier mask of {n!r} is {tuple(m.shape)}; the weight is {tuple(weights[n].shape)}, and both must be alike"
            )
    return found


def _scores(w: Tensor, earlier: Tensor | None, form: str, block: tuple[int, int]) -> Tensor:
    if earlier is not None:
        w = w.masked_fill(~earlier, 0)
    if form == "elements" and earlier is not None:
        return w.abs().float().masked_fill_(~earlier, -1.0)  # before a zero that is kept
    if form != "blocks":
        return w.abs().float()
    m, k = w.shape
    whole = nn.functional.pad(w.float().square(), (0, -k % block[1], 0, -m % block[0]))
    return whole.view(-(-m // block[0]), block[0], -(-k // block[1]), block[1]).sum((1, 3))


def _kept_everywhere(scores: dict[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """All but a fraction of all, the smallest; of equal ones the later are pruned first. NaN counts as infinity."""
    scores = {n: s.nan_to_num(nan=float("inf"), posinf=float("inf")) for n, s in scores.items()}
    whole = torch.cat([s.flatten() for s in scores.values()])
    count = round(fraction * whole.numel())
    if count == 0:
        return {n: torch.ones_like(s, dtype=torch.bool) for n, s in scores.items()}
    limit = whole.kthvalue(count).values
    spare = whole.numel() - count - int((whole > limit).sum())  # of those at the limit, how many are kept
    kept = {}
    for n, s in scores.items():
        equal = s == limit
        kept[n] = (s > limit) | (equal & (equal.flatten().cumsum(0).view(s.shape) <= spare))
        spare = max(0, spare - int(equal.sum()))
    return kept


def _kept(scores: Tensor, fraction: float) -> Tensor:
    """All but a fraction, the smallest; of equal ones the later are pruned first."""
    count = round(fraction * scores.numel())
    order = scores.flatten().argsort(descending=True, stable=True)
    kept = torch.ones(scores.numel(), dtype=torch.bool, device=scores.device)
    kept[order[scores.numel() - count :]] = False
    return kept.view(scores.shape)
