"""Models whose linear layers have quantised weights."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.formats.number_formats import ALIASES, FORMATS
from rooftop.formats.packed import PackedWeight
from rooftop.formats.quantized import Quantized
from rooftop.quant import calibrate, experts
from rooftop.quant.layer import LinearLayer
from rooftop.quant.linear import QuantLinear
from rooftop.quant.replacing import check_weight, is_linear, linears, obstacle, replace, say_left, sizes, take_over

NOT_CONVERTED = ("lm_head", "*.lm_head", "*.lora_*", "*.router", "*.gate", "*.shared_expert_gate")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def _patterns(which: str, given: str | Sequence[str]) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(p, str) for p in found):
        raise TypeError(f"quantize_model: {which} is {given!r}; it must be a pattern or several, as text")
    return found


def layers(model: nn.Module, include: str | Sequence[str] = "*", exclude: str | Sequence[str] = ()) -> dict[str, nn.Module]:
    """The `torch.nn.Linear` layers that can be replaced, by their first name: those with a name that matches one of `include`, and none
    that matches one of `exclude`, as a shell matches. A layer may have several names."""
    wanted, not_wanted = _patterns("include", include), _patterns("exclude", exclude)
    return {
        n: m for n, (m, names) in linears(model).items()
        if not obstacle(m) and any(_matches(a, wanted) for a in names) and not any(_matches(a, not_wanted) for a in names)
    }


def quantize_model(
    model: nn.Module,
    format: str = "int4",
    *,
    group: int = 128,
    zero_points: bool = False,
    method: str = "nearest",
    calibration: Iterable[Any] | None = None,
    activations: str | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] | None = None,
) -> nn.Module:
    """Replace linear layers of `model` by `QuantLinear`, in place: ``rooftop.quantize_model(model, "int4")``.

    Args:
        model: any module. Layers are found by name; one that is used in several places is replaced in each, under all its names: it is left
            alone if one of them is excluded. Layers with a common weight have common codes (with "gptq", for the inputs of all of them)
            until they are moved to a device.
        format: int8, int4, int2, fp8 (e4m3), e5m2, fp6 (e2m3), e3m2, fp4 (e2m1), mxfp8, mxfp6, mxfp4.
        group: columns that share a scale: 32, 64 or a multiple of 128; 0: one scale a row. mx formats have groups of 32. A layer whose K it
            does not divide gets the largest smaller group that does, one of K if K is smaller than `group`; where there is none, the layer
            stays as it is.
        zero_points: for integer formats.
        method: "nearest"; "hqq" (integer formats: fitted zero points); "gptq", with `calibration`.
        calibration: batches for "gptq": each is passed to the model, a dict by name, a tuple or list by position. Layers see the
            unquantised model's inputs.
        activations: "int8" or "fp8": the input is quantised too, row by row. With int8 and fp8 weights, group=0, "nearest" and no zero
            points the product is one of 8-bit codes.
        include, exclude: shell-style name patterns: "model.layers.*.mlp.*". exclude=None: the output embedding, which is a layer named
            lm_head, that of `model.get_output_embeddings()`, or one whose weight an `nn.Embedding` has too; the adapters of peft
            (`*.lora_*`); and what chooses or weighs experts (`*.router`, `*.gate`, `*.shared_expert_gate`).

    Experts of a mixture in parameters of three dimensions, as Transformers 5 has them (Mixtral, Qwen3-MoE, gpt-oss, DeepSeek-V3), become
    `rooftop.quant.QuantExperts`; patterns match their parameters' names. A warning says which layers and other matrices stay as they are
    without having been excluded, why, and how many bytes they have, and which groups were fitted: experts of another layout are named
    there. Conv1D layers of Transformers (GPT-2) are converted.

    Left alone are subclasses of `torch.nn.Linear`, which compute something else or whose weight others read (`out_proj` of
    `nn.MultiheadAttention`, a parametrized layer), layers whose weight a hook computes (`weight_norm`, `torch.nn.utils.prune`), and those
    whose `forward` was replaced. The layers of `nn.TransformerEncoderLayer` are replaced; torch's fast path, which reads their weights, is
    then not taken. Forward and backward hooks of a layer go to the one that takes its place, and so does the parameter of its bias.

    A model of Hugging Face Transformers can be saved and loaded by `save_pretrained` and `from_pretrained`, in another process after
    `rooftop.quant.register_quantizer()`.

    Returns `model`; if it is itself a linear layer, the `QuantLinear` that takes its place (its name is ""). Raises TypeError if a layer is
    not float32, float16 or bfloat16; ValueError if no layer matches, or none has a K that a group divides, if a weight is not finite or on
    the meta device, or if arguments are not supported together. The error names the layer; nothing has been replaced."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_model: model is a {type(model).__name__}; it must be a torch.nn.Module")
    excluded = _patterns("exclude", exclude) if exclude is not None else NOT_CONVERTED
    found = layers(model, include, excluded)
    if exclude is None:
        outputs = _outputs(model)
        found = {n: m for n, m in found.items() if id(m) not in outputs}
    mixtures = _mixtures(model, include, excluded)
    if not found and not mixtures:
        names = [f"{n or 'the layer'} ({why})" if (why := obstacle(m)) else n or "the layer" for n, (m, _) in linears(model).items()]
        raise ValueError(
            f"quantize_model: no linear layer matches include={include!r}, exclude={exclude!r}; there are {', '.join(names[:8]) or 'none'}"
        )
    if (calibration is not None) != (method == "gptq"):
        raise ValueError(
            f"quantize_model: calibration goes with method='gptq'; given method={method!r} "
            f"{'with' if calibration is not None else 'without'} it"
        )
    groups: dict[int, int] = {}  # by the layer
    narrow: dict[str, nn.Module] = {}
    for name, layer in found.items():  # before anything is replaced
        with _named(name, layer):
            check_weight(layer)
            if (fitted := calibrate.fitting(format, group, sizes(layer)[1])) is None:
                narrow[name] = layer
                continue
            calibrate.Scheme.of(format, fitted, zero_points or method == "hqq", sizes(layer)[1])
            groups[id(layer)] = fitted
    why = f"layers whose K no group up to {group} divides (group=0 takes any K)"
    kept = {id(m): why_not for m in mixtures.values() if (why_not := experts.obstacle(m, format, group, method))}
    mixtures = {n: m for n, m in mixtures.items() if id(m) not in kept}
    of_experts = {n: {w: _fitted(format, group, experts.sizes(m, w)[1]) for w in experts.projections(m)} for n, m in mixtures.items()}
    for name, module in mixtures.items():
        with _named(name, module):
            experts.check(module)
            for each, fitted in of_experts[name].items():
                calibrate.Scheme.of(format, fitted, zero_points or method == "hqq", experts.sizes(module, each)[1])
    if not groups and not mixtures and (narrow or not kept):
        raise ValueError(f"quantize_model: {', '.join(f'{n} {sizes(m)}' for n, m in narrow.items())}: {why}; none of them can be converted")
    found = {n: m for n, m in found.items() if id(m) in groups}
    hessians = hessians_of(model, found, calibration) if calibration is not None else {}
    made: dict[int, nn.Module] = {}
    shared: dict[int, PackedWeight | Quantized] = {}  # by the weight
    with torch.inference_mode(False), torch.no_grad():
        for name, layer in found.items():
            with _named(name, layer):
                weight = shared.get(id(layer.weight))
                if weight is not None:
                    quantised = QuantLinear(weight, layer.bias, activations=activations)
                else:
                    how: dict[str, Any] = {
                        "group": groups[id(layer)], "zero_points": zero_points, "method": method, "activations": activations
                    }
                    quantised = QuantLinear.of(layer, format, hessian=hessians.get(id(layer.weight)), **how)
                    shared[id(layer.weight)] = quantised.packed
            if layer.bias is not None and not layer.bias.is_inference():
                quantised.bias = layer.bias
            take_over(quantised, layer)
            made[id(layer)] = quantised
        for name, module in mixtures.items():
            with _named(name, module):
                mixture = experts.QuantExperts.of(
                    module, format, of_experts[name], zero_points=zero_points, method=method, activations=activations
                )
            take_over(mixture, module)
            made[id(module)] = mixture
    fits = [
        f"{n or 'the layer'} {sizes(m)} has groups of {groups[id(m)]}" for n,
        m in found.items() if group > 0 and groups[id(m)] < group and not _mx(format)
    ]
    fits += [
        f"{n}.{w} {experts.sizes(m, w)} has groups of {of_experts[n][w]}" for n, m in mixtures.items() for w in of_experts[n]
        if group > 0 and of_experts[n][w] < group and not _mx(format)
    ]
    result = replace(model, made)
    left = {**dict.fromkeys(map(id, narrow.values()), why), **_kept(model, include, excluded), **kept}
    if _of_transformers(result):
        from rooftop.quant.pretrained import remember

        register_quantizer()
        remember(result, format, group)
    say_left(
        "quantize_model", result, left, ["; ".join(fits[:4]) + (f" and {len(fits) - 4} more" if len(fits) > 4 else "")] if fits else []
    )
    return result


def _mixtures(model: nn.Module, include: str | Sequence[str], excluded: Sequence[str]) -> dict[str, nn.Module]:
    """Experts by their first name, those with a weight whose name matches, and none that is excluded."""
    wanted, found = _patterns("include", include), {}
    for name, module in model.named_modules():
        names = [f"{name}.{p}" if name else p for p in experts.projections(module)]
        if any(_matches(n, wanted) for n in names) and not any(_matches(n, excluded) for n in (name, *names)):
            found[name] = module
    return found


def _fitted(format: str, group: int, k: int) -> int:
    """The group that is known to exist."""
    found = calibrate.fitting(format, group, k)
    assert found is not None
    return found


def register_quantizer() -> None:
    """Make quantised models known to `from_pretrained` of Hugging Face Transformers. `quantize_model` of one of its models does so too.

    Raises ImportError where Transformers is not installed."""
    from rooftop.quant.pretrained import register

    register(quantize_model)


def _of_transformers(model: nn.Module) -> bool:
    return any(c.__module__ == "transformers.modeling_utils" and c.__name__ == "PreTrainedModel" for c in type(model).__mro__)


def _mx(format: str) -> bool:
    known = FORMATS.get(ALIASES.get(format, format))
    return known is not None and known.kind == "mx"


def _outputs(model: nn.Module) -> set[int]:
    """The ids of the output embeddings: what the model says it is, and linear layers that share their weight with an embedding."""
    found = {id(m) for m in model.modules() if isinstance(m, nn.Embedding) for m in [m.weight]}
    by_weight = {id(m) for m, _ in linears(model).values() if not isinstance(m, LinearLayer) and id(m._parameters.get("weight")) in found}
    said = getattr(model, "get_output_embeddings", None)
    try:
        output = said() if callable(said) else None
    except (NotImplementedError, AttributeError):
        output = None
    return by_weight | {id(output)}


def _kept(model: nn.Module, include: str | Sequence[str], excluded: Sequence[str]) -> dict[int, str]:
    """Layers that were to be converted and are of a kind that stays."""
    wanted = _patterns("include", include)
    return {
        id(m): "layers that compute something else or whose weight others read" for m, names in linears(model).values()
        if not isinstance(m, LinearLayer) and obstacle(m) and any(_matches(a, wanted) for a in names)
        and not any(_matches(a, excluded) for a in names)
    }


@contextmanager
def _named(name: str, layer: nn.Module) -> Iterator[None]:
    """Errors with the layer's name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        said = f" {sizes(layer)}" if is_linear(layer) else ""
        raise type(error)(f"quantize_model: {name or 'the layer'}{said}: {error}") from None


def hessians_of(model: nn.Module, found: Mapping[str, nn.Module], batches: Iterable[Any]) -> dict[int, Tensor]:
    """Σ xᵀ x of the inputs of each weight over the batches, in float32, by the id of the weight: layers may share it."""
    sums: dict[int, Tensor] = {}
    seen = 0

    def watch(key: int) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            x = (given[0] if given else named["input"]).detach()
            x = x.reshape(-1, x.shape[-1]).float()
            sums[key] = sums[key] + x.t() @ x if key in sums else x.t() @ x

        return hook

    with _hooked([(layer, watch(id(layer.weight))) for layer in found.values()]), torch.no_grad():
        for batch in batches:
            seen += 1
            if isinstance(batch, Mapping):
                model(**batch)
            elif isinstance(batch, (tuple, list)):
                model(*batch)
            else:
                model(batch)
    if missing := [n or "the layer" for n, layer in found.items() if id(layer.weight) not in sums]:
        raise ValueError(f"quantize_model: {seen} calibration batches, and {', '.join(missing[:4])} saw no input")
    return sums


@contextmanager
def _hooked(hooks: Sequence[tuple[nn.Module, Callable[..., None]]]) -> Iterator[None]:
    handles = [m.register_forward_pre_hook(h, with_kwargs=True) for m, h in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
