"""Quantised models in `save_pretrained` and `from_pretrained` of Hugging Face Transformers: the quantisation method "rooftop" of a
configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rooftop.quant import experts
from rooftop.quant.linear import QuantLinear
from rooftop.quant.replacing import is_linear, sizes

METHOD = "rooftop"
BUFFERS = ("codes", "scale", "zero")


class QuantConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """``from_pretrained(name, quantization_config=rooftop.quant.QuantConfig("int4"))``: a model is quantised after it is loaded.

    Args:
        format, group, and `options`: those of `rooftop.quantize_model`.
        layers: of a model that is quantised, what each layer's buffers are, by its name; written by `save_pretrained`."""

    def __init__(
        self, format: str = "int4", group: int = 128, layers: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
        **_: Any
    ) -> None:
        self.quant_method = METHOD
        self.format, self.group, self.layers, self.options = format, group, dict(layers or {}), dict(options or {})


class RooftopQuantizer(HfQuantizer):  # type: ignore[misc]
    """What `from_pretrained` asks of a quantisation method. `quantize`: `rooftop.quantize_model`."""

    quantize: Callable[..., Any] | None = None

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        if not self.pre_quantized:
            return model
        mixtures: dict[str, dict[str, QuantLinear]] = {}
        for name, described in self.quantization_config.layers.items():
            parent, last = name.rpartition(".")[::2]
            mixture = experts.in_place(model, name)
            try:
                present: Any = None if mixture else model.get_submodule(name)
                layer = QuantLinear.empty(described["facts"])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"from_pretrained: layer {name} of the configuration's quantization_config: {error}") from None
            here = experts.whole(*mixture) if mixture else sizes(present) if is_linear(present) else None
            if here != (layer.out_features, layer.in_features):
                what = f"{type(mixture[0] if mixture else present).__name__} {here or ''}".strip()
                raise ValueError(
                    f"from_pretrained: layer {name} is {(layer.out_features, layer.in_features)} in quantization_config; the model's is a "
                    f"{what}"
                )
            for key, (shape, dtype) in described["tensors"].items():
                layer.register_buffer(key, torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
            if mixture:
                mixtures.setdefault(parent, {})[mixture[1]] = layer
            else:
                layer.bias = None if present.bias is None else nn.Parameter(torch.empty_like(present.bias, device="meta"))
                setattr(model.get_submodule(parent), last, layer)
        for name, layers in mixtures.items():
            holder = model.get_submodule(name)
            if missing := experts.lacking(holder, layers):
                raise ValueError(f"from_pretrained: experts {name} of quantization_config lack {missing}")
            parent, last = name.rpartition(".")[::2]
            setattr(model.get_submodule(parent), last, experts.QuantExperts(holder, layers))
        for converted in self.quantization_config.layers:
            parts = converted.split(".")
            for i in range(1, len(parts) + 1):  # nothing is drawn for it, nor by a block that draws for its layers
                model.get_submodule(".".join(parts[:i]))._is_hf_initialized = True
        ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
        model._keys_to_ignore_on_load_unexpected = {*ignored, r"\._extra_state$"}
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        if not self.pre_quantized:
            quantize: Any = type(self).quantize
            quantize(model, self.quantization_config.format, group=self.quantization_config.group, **self.quantization_config.options)
        return model


def register(quantize: Callable[..., Any]) -> None:
    """What `rooftop.quant.register_quantizer` does."""
    RooftopQuantizer.quantize = staticmethod(quantize)
    if METHOD not in AUTO_QUANTIZER_MAPPING:
        register_quantizer(METHOD)(RooftopQuantizer)
    if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(METHOD)(QuantConfig)


def _described(t: torch.Tensor) -> list[Any]:
    return [list(t.shape), str(t.dtype).removeprefix("torch.")]


def remember(model: Any, format: str, group: int) -> None:
    """Write into a model's configuration which of its layers are quantised, and how."""
    layers = {
        name: {"facts": m.described(), "tensors": {n: _described(t) for n in BUFFERS if (t := m._buffers.get(n)) is not None}}
        for name, m in model.named_modules() if isinstance(m, QuantLinear)
    }
    model.config.quantization_config = QuantConfig(format, group, layers)
