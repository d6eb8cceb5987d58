"""Experts in parameters of three dimensions: converted, saved and loaded; what cannot be converted is named."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import rooftop
from rooftop.formats.packed import PackedWeight
from rooftop.quant import QuantExperts, QuantLinear

hf = pytest.importorskip("transformers", minversion="5.5", reason="experts in parameters of three dimensions are those of Transformers 5")
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "num_experts_per_tok": 2,
}
MLA: dict[str, Any] = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
CONFIGS: dict[str, Any] = {
    "mixtral": lambda: hf.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**SIZES, num_key_value_heads=2, num_experts=4, moe_intermediate_size=32, head_dim=16),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    ),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **SIZES, **MLA, num_key_value_heads=4, n_routed_experts=4, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1, topk_group=1
    ),
}


def tiny(kind: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval()
    for name, p in model.named_parameters():
        if name.endswith("_bias"):
            torch.nn.init.normal_(p, std=0.02)
    return model


def logits(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return model(ids).logits


def said(run: Any) -> str:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return " ".join(str(w.message) for w in found if "quantize_model" in str(w.message))


@pytest.mark.parametrize("kind", CONFIGS)
def test_experts_of_transformers_are_converted_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    model, ids = tiny(kind), torch.randint(0, 96, (2, 9))
    before, size = logits(model, ids), sum(p.numel() for n, p in model.named_parameters() if ".experts." in n and p.dim() == 3)
    assert size and said(lambda: rooftop.quantize_model(model, "int8", group=32)) == ""
    after = logits(model, ids)
    assert 1e-4 < (after - before).norm() / before.norm() < 0.02
    mixtures = [m for m in model.modules() if isinstance(m, QuantExperts)]
    assert mixtures and not any(p.dim() == 3 for p in model.parameters())
    assert sum(m.codes.numel() for n, m in model.named_modules() if ".experts." in n and isinstance(m, QuantLinear)) >= size  # a byte each
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    rooftop.quant.save_quantized(model, tmp_path / "state.safetensors")
    fresh = tiny(kind, seed=1)
    assert torch.equal(logits(rooftop.quant.load_quantized(fresh, tmp_path / "state.safetensors"), ids), after)
    assert torch.equal(logits(loaded, ids), after) and torch.equal(logits(pickle.loads(pickle.dumps(copy.deepcopy(model))), ids), after)


def test_an_expert_is_its_rows_of_the_codes_as_if_it_stood_alone() -> None:
    model = tiny("gpt_oss")
    experts = model.model.layers[0].mlp.experts
    weights = {n: getattr(experts, n).detach().clone() for n in ("gate_up_proj", "down_proj")}
    rooftop.quantize_model(model, "int4", group=32, zero_points=True)
    made = model.model.layers[0].mlp.experts
    for name, weight in weights.items():
        for e in range(4):
            alone, mine = rooftop.quant.nearest(weight[e].t(), "int4", group=32, zero_points=True), made.weight(name, e)
            assert isinstance(mine, PackedWeight) and all(torch.equal(a, b) for a, b in zip(alone._leaves(), mine._leaves(), strict=True))


def test_tokens_of_experts_elsewhere_give_zeros_and_gradients_flow() -> None:
    model = tiny("mixtral")
    rooftop.quantize_model(model, "int8", group=0)
    experts = model.model.layers[0].mlp.experts
    x, index = torch.randn(5, 64, requires_grad=True), torch.tensor([[0, 4], [4, 4], [1, 3], [2, 0], [3, 4]])
    share = torch.rand(5, 2, requires_grad=True)
    out = experts(x, index, share)
    out.square().sum().backward()
    assert not out[1].any() and out[0].any() and x.grad is not None and not x.grad[1].any() and share.grad[2].all()
    assert experts(x[:0], index[:0], share[:0]).shape == (0, 64)


def test_what_cannot_be_converted_is_named_with_its_bytes() -> None:
    model = tiny("mixtral")
    for layer in model.model.layers:
        layer.mlp.experts.down_proj = torch.nn.Parameter(torch.randn(4, 60, 64))
    message = said(lambda: rooftop.quantize_model(model, "int8", group=32))
    size = sum(p.numel() * 4 for n, p in model.named_parameters() if ".experts." in n)
    assert f"{size} bytes of experts with rows of results that are no multiple of 16" in message
    assert "model.layers.0.mlp.experts.gate_up_proj (4, 128, 64)" in message and not any(isinstance(m, QuantExperts) for m in model.modules())
    model = tiny("mixtral")
    ids = torch.randint(0, 96, (1, 4))
    message = said(lambda: rooftop.quantize_model(model, "int4", group=32, method="gptq", calibration=[{"input_ids": ids}]))
    assert "bytes of experts, whose inputs gptq does not see" in message
    model = tiny("mixtral")
    assert "bytes of parameters of three dimensions" in said(lambda: rooftop.quantize_model(model, "int8", exclude=("*.experts.*", "lm_head")))
    assert not any(isinstance(m, QuantExperts) for m in model.modules())


def test_weights_that_are_not_finite_change_nothing() -> None:
    model = tiny("qwen3_moe")
    with torch.no_grad():
        model.model.layers[1].mlp.experts.down_proj[2, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.experts.*must be finite"):
        rooftop.quantize_model(model, "int8", group=32)
    assert not any(isinstance(m, QuantExperts | QuantLinear) for m in model.modules())
    with pytest.raises(TypeError, match=r"experts: gate_up_proj is torch\.float64"):
        rooftop.quantize_model(tiny("mixtral").double(), "int8", include="*.experts.*")


def test_a_model_with_quantised_experts_is_patched() -> None:
    model, ids = tiny("mixtral"), torch.randint(0, 96, (1, 7))
    rooftop.quantize_model(model, "int8", group=32)
    before = logits(model, ids)
    rooftop.patch(model)
    assert (logits(model, ids) - before).norm() / before.norm() < 1e-3


def test_a_file_of_other_experts_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model, other, ids = tiny("mixtral"), tiny("qwen3_moe", seed=1), torch.randint(0, 96, (1, 5))
    rooftop.quantize_model(model, "int8", group=32)
    rooftop.quant.save_quantized(model, tmp_path / "state.safetensors")
    before = logits(other, ids)
    with pytest.raises(ValueError, match=r"gate_up is \(512, 64\) there, the model's is \(256, 64\)|layer .* is quantised there"):
        rooftop.quant.load_quantized(other, tmp_path / "state.safetensors")
    assert torch.equal(logits(other, ids), before)
    part = tiny("mixtral", seed=1)
    rooftop.quantize_model(part, "int8", group=32, include="*.experts.*")
    rooftop.quant.save_quantized(part, tmp_path / "part.safetensors")
    again = rooftop.quant.load_quantized(tiny("mixtral", seed=2), tmp_path / "part.safetensors")
    assert torch.equal(logits(again, ids), logits(part, ids))
    assert torch.equal(logits(rooftop.quant.load_quantized(again, tmp_path / "part.safetensors"), ids), logits(part, ids))
