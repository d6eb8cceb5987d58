"""Families of models with everything patched that can be: results, losses and gradients as in eager, within its own float32 error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drop_in import _kinds

import rooftop

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")

# What is replaced in a model of two layers; encoders have no loss with their head.
DECODER = {"attention": 2, "rope": 2, "fused_linear_cross_entropy": 1}
PRE = {**DECODER, "rms_norm": 5, "residual": 2}
FAMILIES: dict[str, dict[str, int]] = {
    "llama": {**PRE, "mlp": 2}, "qwen2": {**PRE, "mlp": 2}, "qwen3": {**PRE, "rms_norm": 9, "mlp": 2}, "qwen3_moe": {**PRE, "rms_norm": 9, "experts": 2},
    "mistral": {**PRE, "mlp": 2}, "mixtral": {**PRE, "experts": 2}, "gemma": {**PRE, "mlp": 2}, "gemma2": {**PRE, "rms_norm": 9, "mlp": 2},
    "gemma3_text": {**PRE, "rms_norm": 13, "mlp": 2}, "phi3": {**PRE, "mlp": 2}, "gpt_oss": {**PRE, "experts": 2},
    "olmo2": {**DECODER, "rms_norm": 9, "mlp": 2, "residual": 2}, "deepseek_v3": {**PRE, "rms_norm": 9, "mlp": 2, "experts": 1}, "granite": {**PRE, "mlp": 2},
    "cohere": {**DECODER, "layer_norm": 3, "mlp": 2}, "glm4": {**PRE, "rms_norm": 9, "mlp": 2}, "smollm3": {**PRE, "mlp": 2},
    "bert": {"attention": 2, "layer_norm": 6, "activation": 3}, "vit": {"attention": 2, "layer_norm": 5, "activation": 2},
    "whisper": {"attention": 4, "layer_norm": 7, "activation": 2}, "phi": {**DECODER, "layer_norm": 3, "activation": 2},
    "stablelm": {**DECODER, "layer_norm": 5, "mlp": 2}, "gpt_neox": {**DECODER, "layer_norm": 5, "activation": 2},
    "starcoder2": {**DECODER, "layer_norm": 5, "activation": 2},
}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # what small configurations of a kind leave as it is
    "granite, factors": ("granite", {"logits_scaling": 4.0, "residual_multiplier": 0.4, "embedding_multiplier": 3.0, "attention_multiplier": 0.2}),
    "phi4, partly rotated": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "llama, biases, tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}}),
    "deepseek, halves": ("deepseek_v3", {"rope_interleave": False}),
}
FAMILIES |= {name: FAMILIES[kind] for name, (kind, _) in VARIANTS.items()}


def _config(kind: str) -> tuple[Any, Any]:
    kind, more = VARIANTS.get(kind, (kind, {}))
    works = _kinds.works(kind)
    assert not isinstance(works, str), works
    cls, config = works
    return cls, type(config)(**{**config.to_dict(), **more})


def _made(cls: Any, config: Any, dtype: torch.dtype = torch.float32) -> Any:
    model = _kinds.made(cls, config, "eager", dtype)
    if any(hasattr(m, "is_transposed") for m in model.modules()):
        model.set_experts_implementation("eager")
    return model


def _classes(model: Any) -> dict[str, Any]:
    return {n: (type(m), {k: v for k, v in vars(m).items() if k != "training"}) for n, m in model.named_modules()}


def _labels(given: dict[str, Any]) -> torch.Tensor | None:
    if "input_ids" not in given:
        return None
    labels = given["input_ids"].clone()
    labels[0, 3] = -100
    return labels


def _run(model: Any, dtype: torch.dtype, training: bool, **more: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """What it computes, by name: losses, logits, gradients; and the result."""
    model.train(training)
    given = _kinds.inputs(model)
    given = {n: t.to(dtype) if t.is_floating_point() else t for n, t in given.items()}
    labels = _labels(given)
    if labels is not None and "decoder_input_ids" not in given:
        more["labels"] = labels
    model.zero_grad()
    out = model(**given, **more, **({} if "pixel_values" in given else {"use_cache": False}))
    found = {n: t for n, t in out.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
    if training:
        (found["loss"] if "loss" in found else found["logits"].square().mean()).backward()
        found |= {f"grad of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {n: t.detach().clone() for n, t in found.items()}, out


def _near(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> None:
    """Each within four times eager's own error; a router's gradient is small beside others, so no less than 2e-5 of the largest of its kind."""
    for name in want:
        if name not in got:
            assert name == "logits"  # not made in training
            continue
        own, apart = ((t.double() - exact[name]).abs().max() for t in (want[name], got[name]))
        assert got[name].shape == want[name].shape and got[name].dtype == want[name].dtype, name
        kind = [t for n, t in exact.items() if n.startswith("grad") == name.startswith("grad")]
        assert apart <= max(4 * own, 2e-5 * exact[name].abs().max(), 2e-7 * max(t.abs().max() for t in kind)), (name, float(apart), float(own))


@pytest.mark.sampled("patched")
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_as_in_eager(kind: str) -> None:
    cls, config = _config(kind)
    model, eager, exact = (_made(cls, config, dtype) for dtype in (torch.float32, torch.float32, torch.float64))
    before = _classes(model)
    keys = list(model.state_dict())
    report = rooftop.patch(model, residual=True)
    assert report.replaced == FAMILIES[kind], str(report)
    assert list(model.state_dict()) == keys
    for training in (False, True):
        for more in ({}, {"num_items_in_batch": torch.tensor(11)}) if training and "fused_linear_cross_entropy" in report.replaced else ({},):
            runs = [_run(m, d, training, **more) for m, d in ((model, torch.float32), (eager, torch.float32), (exact, torch.float64))]
            _near(*(r for r, _ in runs))
            assert type(runs[0][1]) is type(runs[1][1])
            if "fused_linear_cross_entropy" in report.replaced:
                assert ("logits" in runs[0][0]) != training
    rooftop.unpatch(model)
    assert _classes(model) == before
    assert model.config._attn_implementation == "eager"
    again, _ = _run(model, torch.float32, False)
    want, _ = _run(eager, torch.float32, False)
    assert all(torch.equal(again[n], want[n]) for n in want)


@pytest.mark.sampled("patched")
@pytest.mark.parametrize("kind", [*FAMILIES, "olmo", "olmo3", "ernie4_5"])
def test_a_family_in_16_bits(kind: str) -> None:
    """Results of eager's dtypes, and about eager's error, as norms; tables of rotations stay in float32 where a model keeps them so."""
    cls, config = _config(kind)
    model, eager, exact = (_made(cls, config, dtype) for dtype in (torch.bfloat16, torch.bfloat16, torch.float64))
    rooftop.patch(model, residual=True)
    for training in (False, True):
        runs = [_run(m, d, training)[0] for m, d in ((model, torch.bfloat16), (eager, torch.bfloat16), (exact, torch.float64))]
        got, want, true = runs
        for name in (n for n in want if n in got):
            assert got[name].dtype == want[name].dtype, name
            if name.startswith("grad"):  # a router's may be that of another expert
                continue
            own, apart, size = ((t.double() - true[name]).norm() for t in (want[name], got[name], torch.zeros_like(true[name])))
            assert apart <= max(3 * own, 0.05 * size), (name, float(apart), float(own), float(size))


@pytest.mark.sampled("patched")
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_the_loss_of_the_routers_is_added(kind: str) -> None:
    cls, config = _config(kind)
    config.output_router_logits = True
    config.router_aux_loss_coef = 0.3
    model, eager, exact = (_made(cls, config, dtype) for dtype in (torch.float32, torch.float32, torch.float64))
    rooftop.patch(model)
    runs = [_run(m, d, True)[0] for m, d in ((model, torch.float32), (eager, torch.float32), (exact, torch.float64))]
    assert "logits" not in runs[0] and "aux_loss" in runs[0]
    _near(*runs)
