"""Quantised models of Hugging Face Transformers that are saved and loaded by its own functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rooftop

hf = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 32}
LOADS = """import sys, torch, rooftop, transformers
rooftop.quant.register_quantizer()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(float(model(torch.arange(3, 9)[None]).logits.double().sum()))"""


def _model(kind: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = hf.GPT2Config(**GPT2) if kind == "GPT2" else getattr(hf, f"{kind}Config")(**SIZES, **({"attention_bias": True} if kind == "Llama" else {}))
    return hf.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 21).view(2, 9)).logits


@pytest.mark.parametrize(
    ("kind", "format", "dtype"),
    [
        ("Llama", "int8", torch.float32), ("Gemma2", "int4", torch.bfloat16), ("GPT2", "int8", torch.float32), ("Qwen2", "fp8", torch.bfloat16),
        ("Llama", "mxfp4", torch.float16),
    ],
)
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, kind: str, format: str, dtype: torch.dtype) -> None:
    model = _model(kind, dtype)
    plain = tmp_path / "plain"
    model.save_pretrained(plain)
    rooftop.quantize_model(model, format, group=32)
    for folder in (tmp_path / "first", tmp_path / "second"):
        model.save_pretrained(folder)
        again = hf.AutoModelForCausalLM.from_pretrained(folder).eval()
        assert torch.equal(_logits(again), _logits(model)) and again.dtype == dtype
        state = model.state_dict()
        assert all(torch.equal(t.view(torch.uint8), state[n].view(torch.uint8)) and t.dtype == state[n].dtype for n, t in again.state_dict().items())
        assert again.config.quantization_config.format == format
        model = again
    loaded = hf.AutoModelForCausalLM.from_pretrained(plain, quantization_config=rooftop.quant.QuantConfig(format, 32)).eval()
    assert torch.equal(_logits(loaded), _logits(model))


@pytest.mark.sampled("slow")
def test_another_process_loads_it(tmp_path: Path) -> None:
    model = rooftop.quantize_model(_model("Llama", torch.float32), "int4", group=32)
    model.save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", LOADS, str(tmp_path)], capture_output=True, text=True, timeout=300)
    with torch.no_grad():
        want = float(model(torch.arange(3, 9)[None]).logits.double().sum())
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("change", ["another name", "another size", "cut"])
def test_a_configuration_that_does_not_fit_is_refused_by_name(tmp_path: Path, change: str) -> None:
    rooftop.quantize_model(_model("Llama", torch.float32), "int8", group=32).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    layers = said["quantization_config"]["layers"]
    name = "model.layers.0.self_attn.q_proj"
    match change:
        case "another name":
            layers["model.layers.9.q_proj"] = layers.pop(name)
            message = r"^from_pretrained: layer model.layers.9.q_proj of the configuration's quantization_config: "
        case "another size":
            layers[name]["facts"] = layers["model.layers.0.mlp.up_proj"]["facts"]
            message = rf"^from_pretrained: layer {name} is \(96, 64\) in quantization_config; the model's is a Linear \(64, 64\)$"
        case _:
            layers[name] = {}
            message = rf"^from_pretrained: layer {name} of the configuration's quantization_config: 'facts'$"
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match=message):
        hf.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_what_chooses_experts_stays() -> None:
    config = hf.Qwen2MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts_per_tok=2)
    model = rooftop.quantize_model(hf.Qwen2MoeForCausalLM(config), "int8", group=32)
    kinds = {n.rpartition(".")[2]: type(m).__name__ for n, m in model.named_modules() if "shared_expert" in n}
    assert kinds["shared_expert_gate"] == "Linear" and kinds["up_proj"] == "QuantLinear"
