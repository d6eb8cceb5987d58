"""`rooftop.prove`, and the command: what is equal is said to be, and what is not is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import rooftop
from rooftop.drop_in import gates
from rooftop.lab.cli.app import app

hf = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0,
}


def _model(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, **more)).to(dtype)


def _batch() -> dict[str, Any]:
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_equal_is_said_to_be(dtype: torch.dtype) -> None:
    model = _model(dtype, attention_dropout=0.3)
    before = {n: p.clone() for n, p in model.named_parameters()}
    proof = rooftop.prove(model, _batch(), steps=3)
    assert proof.equal and proof.first == "" and str(proof).startswith("equal within eager's own rounding\nlayers: 11;")
    assert len(proof.losses["ours"]) == 3 and proof.losses["ours"][0] > proof.losses["ours"][-1] and proof.seconds["eager"] > 0
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters()) and not rooftop.drop_in.is_patched(model)
    assert model.config.attention_dropout == model.model.layers[0].self_attn.attention_dropout == 0.3
    assert {c.name for c in proof.gradients} == set(before)


@pytest.mark.parametrize("wrong", ["result", "gradient"])
def test_the_first_layer_that_is_not_is_named(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    model, right = _model(), gates.swiglu
    rooftop.patch(model)

    def slip(a: Any, b: Any, **_: Any) -> Any:
        return right(a, b) * 1.0001 if wrong == "result" else right(a, b).detach() + right(a.detach(), b) - right(a, b).detach()

    monkeypatch.setattr(gates, "swiglu", slip)
    proof = rooftop.prove(model, _batch(), steps=0)
    assert not proof.equal and rooftop.drop_in.is_patched(model)
    assert proof.first == ("layer model.layers.0.mlp" if wrong == "result" else "gradient of model.embed_tokens.weight")
    assert proof.verdict().startswith(f"not equal: {proof.first} errs by ")


def test_a_patch_that_must_be_proved_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    with rooftop.patch(model, prove=True):
        assert rooftop.drop_in.is_patched(model)
    real = rooftop.drop_in.proving.prove

    def broken(*args: Any) -> Any:
        found = real(*args)
        found.layers.insert(0, rooftop.drop_in.proving.Compared("model.norm", 1e-7, 1.0, 1e-7))
        return found

    monkeypatch.setattr(rooftop.drop_in.proving, "prove", broken)
    with pytest.raises(ValueError, match=r"^patch: not equal: layer model.norm errs by 1.0e\+00, eager by 1.0e-07; the model is as it was$"):
        rooftop.patch(model, prove=True)
    assert not rooftop.drop_in.is_patched(model) and model.config._attn_implementation == "sdpa"


def test_bad_input() -> None:
    with pytest.raises(TypeError, match=r"^prove: batch is a Tensor; it must be a mapping of the model's arguments"):
        rooftop.prove(_model(), torch.zeros(2))
    with pytest.raises(ValueError, match=r"^prove: steps is -1; it must be a whole number of at least 0$"):
        rooftop.prove(_model(), _batch(), -1)


def test_the_command(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    import rooftop.lab.cli

    rooftop.lab.cli.commands()
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**SIZES, "model_type": "llama", "num_hidden_layers": 9}))
    done = CliRunner().invoke(app, ["prove", str(config), "--layers", "1", "--length", "8", "--steps", "2", "--json"])
    said = json.loads(done.stdout)
    assert done.exit_code == 0 and said["equal"] and len(said["losses"]["ours"]) == 2
    assert [r["times"] for r in said["replaced"] if r["part"] == "rms_norm"] == [3]
    for text, message in (("{", "it is no JSON"), ("[]", "it names no model_type"), ("[" * 100_000, "it is no JSON"),
                          ('{"model_type": "llama", "hidden_size": -4}', "makes no causal language model of it: "),
                          ('{"model_type": "no"}', "makes no causal language model of it: .*no")):
        config.write_text(text)
        failed = CliRunner().invoke(app, ["prove", str(config)])
        assert isinstance(failed.exception, ValueError)
        assert re.search(message, str(failed.exception)), failed.exception
