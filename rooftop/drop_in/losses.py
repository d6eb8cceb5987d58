"""lm_head and loss in one: the forward of a causal language model without its logits, where a loss is asked for in training.

The model's own forward runs wherever that is not so. What it does to the logits (a factor, a soft cap) and to the loss (an auxiliary loss
of the experts), and which fields its result has, is found by trial: its class runs around a head and hidden states that are small and
random."""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in.swapping import builder, swap_of
from rooftop.drop_in.transformers_masks import TOLD
from rooftop.drop_in.trials import REFUSED, ordinary, quiet, replaced_forward, twin
from rooftop.ops.linear_cross_entropy import linear_cross_entropy

FACTORS = {"": 0, "logit_scale": 1, "logits_scaling": -1, "lm_head_multiplier": 1}  # of a configuration; their powers
CAPS = ("", "final_logit_softcapping")
FEATURES, TOKENS = 16, (2, 6)  # of a trial


@builder("model")
def model_class(base: type) -> dict[str, Any]:
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        return _told(plain, self, given, named)

    return {"forward": forward}


# What a model may be given that does not divide its rows.
WITHOUT_BOUNDS = (
    "input_ids", "inputs_embeds", "attention_mask", "past_key_values", "labels", "shift_labels", "logits_to_keep", "num_items_in_batch"
)
SIMPLE = (bool, int, float, str, type(None))


def _told(function: Callable[..., Any], self: Any, given: tuple[Any, ...], named: dict[str, Any], position: int = 2) -> Any:
    """A call of a model. While it is traced, the masks are told that rows hold one sequence each, where nothing is given that may say
    otherwise: positions that start anew, lengths of packed sequences, kinds of tokens."""
    packed = len(given) > position or any(n not in WITHOUT_BOUNDS and not isinstance(v, SIMPLE) for n, v in named.items())
    if packed or not torch.compiler.is_compiling():
        return function(self, *given, **named)
    before = TOLD.unpacked
    TOLD.unpacked = True
    try:
        return function(self, *given, **named)
    finally:
        TOLD.unpacked = before


@builder("loss")
def causal_class(base: type, inner: str, head: str, factor: str, cap: str, auxiliary: bool, memory: str) -> dict[str, Any]:
    """`inner`, `head`: the children that make the hidden states and the logits; `auxiliary`: the model adds a loss of its experts."""
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]
    names = [n for n, p in inspect.signature(plain).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    balance, result = _balance(plain) if auxiliary else None, _result_of(plain)

    @functools.wraps(plain)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        from transformers.utils.generic import can_return_tuple

        call = {**dict(zip(names, given, strict=False)), **named}
        without = call.pop("skip_logits", None)
        labels, shifted = call.get("labels"), call.get("shift_labels")
        asked = labels is not None or shifted is not None
        routers = _routers(self, call)
        layer = self._modules[head]
        wanted = asked and (self.training if without is None else without)
        if not wanted or _unusable(layer) or _keeps(call) or (routers and balance is None):
            return _told(plain, self, (), call)
        said = {n: call.pop(n) for n in ("return_dict",) if n in call}
        return can_return_tuple(_fused)(self, call, inner, layer, factor, cap, memory, balance if routers else None, result, **said)

    return {"forward": forward}


def _fused(
    self: Any, call: dict[str, Any], inner: str, layer: nn.Linear, factor: str, cap: str, memory: str, balance: Any, result: Any, **_: Any
) -> Any:
    labels, shifted = call.pop("labels", None), call.pop("shift_labels", None)
    items, ignore = call.pop("num_items_in_batch", None), call.pop("ignore_index", -100)
    call.pop("logits_to_keep", None)
    mask = call.get("attention_mask")
    made = _told(_body, self._modules[inner], (), call)
    x = made[0]
    config = self.config.get_text_config()
    scale = float(getattr(config, factor)) ** FACTORS[factor] if factor else 1.0
    if shifted is None:
        shifted = nn.functional.pad(labels, (0, 1), value=ignore)[..., 1:]
    weight = layer.weight
    if not torch.is_autocast_enabled(x.device.type):
        weight = weight.to(x.dtype)
    loss = linear_cross_entropy(
        x.reshape(-1, x.shape[-1]), weight,
        shifted.reshape(-1).to(x.device), bias=layer.bias, ignore_index=ignore, softcap=getattr(config, cap) if cap else None,
        logit_scale=scale,
        reduction="mean" if items is None else "sum", divisor=items, memory=memory,
    )
    found: dict[str, Any] = {"loss": loss, "logits": None}
    if balance is not None:
        auxiliary = balance(made.router_logits, self.num_experts, self.num_experts_per_tok, mask)
        found |= {"loss": loss + self.router_aux_loss_coef * auxiliary.to(loss.device), "aux_loss": auxiliary}
    fields = result.__dataclass_fields__
    return result(**found, **{n: getattr(made, n, None) for n in fields if n not in found and n != "aux_loss"})


def _body(module: nn.Module, **call: Any) -> Any:
    return module(**call)


def _unusable(layer: Any) -> str:
    """Why the head is no linear layer whose weight may be read past its forward; "" where it is."""
    how = swap_of(layer)  # one that `patch` has replaced computes the same
    if (type(layer) if how is None else how.base) is not nn.Linear:
        return f"its output embedding is a {type(layer).__name__}, no torch.nn.Linear"
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
        return "its output embedding has hooks, or another forward"
    return (
        "" if ordinary(layer.weight, layer.bias)
        else "the weight of its output embedding is distributed, or of a dtype that no kernel takes"
    )


def _keeps(call: dict[str, Any]) -> bool:
    kept = call.get("logits_to_keep", 0)
    return isinstance(kept, Tensor) or bool(kept)


def _routers(self: Any, call: dict[str, Any]) -> bool:
    asked = call.get("output_router_logits")
    return bool(getattr(self.config.get_text_config(), "output_router_logits", False) if asked is None else asked)


def _balance(plain: Callable[..., Any]) -> Any:
    return inspect.unwrap(plain).__globals__.get("load_balancing_loss_func")


def _result_of(plain: Callable[..., Any]) -> Any:
    """The class of the result, by the annotation of the forward."""
    from transformers import modeling_outputs

    function = inspect.unwrap(plain)
    said = function.__annotations__.get("return")
    found = function.__globals__.get(said) if isinstance(said, str) else said
    kinds = (found, *typing.get_args(found))
    return next((k for k in kinds if hasattr(k, "__dataclass_fields__")), modeling_outputs.CausalLMOutputWithPast)


class _Hidden:
    """The result of a body of which nothing but the hidden states is known."""

    def __init__(self, x: Tensor, routers: tuple[Tensor, ...]) -> None:
        self.last_hidden_state, self.router_logits = x, routers

    def __getitem__(self, i: Any) -> Any:
        return self.last_hidden_state if i == 0 else None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Body(nn.Module):  # type: ignore[misc]
    def __init__(self, x: Tensor, routers: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.__dict__["given"] = (x, routers)

    def forward(self, *_: Any, **__: Any) -> _Hidden:
        return _Hidden(*self.given)


def candidate(model: Any) -> str:
    """Why the loss of a model of Transformers is not one with its head; "" where it may be."""
    if why := replaced_forward(model):
        return why
    if "labels" not in inspect.signature(type(model).forward).parameters:
        return "its forward takes no labels"
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder with a decoder"
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None or not any(m is head for m in model._modules.values()):
        return "it has no output embedding of its own"
    if why := _unusable(head):
        return why
    if getattr(model, "base_model_prefix", "") not in model._modules:
        return f"it has no child {getattr(model, 'base_model_prefix', '')!r}"
    return ""


def find(model: Any, memory: str = "fast", gradients: bool = True) -> tuple[Any, ...] | str:
    """The options of `causal_class`, or why there are none."""
    if why := candidate(model):
        return why
    head = next(n for n, m in model._modules.items() if m is model.get_output_embeddings())
    with quiet():
        for options in _candidates(model, head, memory):
            if all(_alike(model, options, **how) for how in _calls(options)):
                return options
    return "its logits or its loss are made in another way"


def _candidates(model: Any, head: str, memory: str) -> Iterator[tuple[Any, ...]]:
    config = model.config.get_text_config()
    auxiliary = _balance(type(model).forward) is not None and all(
        hasattr(model, n) for n in ("num_experts", "num_experts_per_tok", "router_aux_loss_coef")
    )
    for cap in (c for c in CAPS if not c or getattr(config, c, None)):
        for factor in (f for f in FACTORS if not f or getattr(config, f, None)):
            for extra in (True, False) if auxiliary else (False,):
                yield model.base_model_prefix, head, factor, cap, extra, memory


def _calls(options: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    yield {}
    yield {"num_items_in_batch": 7}
    yield {"num_items_in_batch": torch.tensor(5), "ignore_index": 3}
    yield {"shift_labels": True}
    if options[4]:
        yield {"output_router_logits": True}


def _alike(model: Any, options: tuple[Any, ...], **how: Any) -> bool:
    """Loss and gradients of the forward of the model's class and of ours, around small random parts."""
    inner, head = options[:2]
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    classes = min(int(text.vocab_size), 1 << 16)
    text.vocab_size = classes
    g = torch.Generator().manual_seed(9)
    layer = model._modules[head]
    x = torch.randn(*TOKENS, FEATURES, generator=g)
    weight = torch.randn(classes, FEATURES, generator=g) * 0.5
    bias = None if layer.bias is None else torch.randn(classes, generator=g)
    labels = torch.randint(0, min(classes, 11), TOKENS, generator=g)
    labels[0, 2] = how.get("ignore_index", -100)
    routers = tuple(torch.randn(TOKENS[0] * TOKENS[1], getattr(model, "num_experts", 2), generator=g) for _ in range(2))
    given: dict[str, Any] = {"input_ids": labels.clamp(min=0), "labels": labels, **how}
    if given.get("shift_labels"):
        given["shift_labels"] = labels.roll(1, -1)
    losses, slopes = [], []
    try:
        for ours in (False, True):
            leaves = [t.clone().requires_grad_() for t in (x, weight, *(() if bias is None else (bias,)))]
            small = nn.Linear(FEATURES, 1, bias=bias is not None)
            small.weight = nn.Parameter(leaves[1].detach())
            if bias is not None:
                small.bias = nn.Parameter(leaves[2].detach())
            made = twin(model, modules={inner: _Body(leaves[0], routers), head: small})
            made.__dict__.update(config=config, training=True)
            if isinstance(vars(model).get("vocab_size"), int):
                made.__dict__["vocab_size"] = classes
            if ours:
                made.__class__ = type("Trial", (type(model),), causal_class(type(model), *options))
            loss = made(**given).loss
            losses.append(loss.detach())
            slopes.append(torch.autograd.grad(loss, [leaves[0], *small.parameters()]))
    except Exception as error:  # whatever a forward of others raises
        if losses and not isinstance(error, REFUSED):
            raise
        return False
    return all(
        bool(torch.isfinite(b).all()) and float((a - b).abs().max()) <= 2e-5 * max(float(b.abs().max()), 1e-6)
        for a, b in zip((losses[1], *slopes[1]), (losses[0], *slopes[0]), strict=True)
    )
