"""A small Llama gives a token the same bits alone, in a batch, padded, packed, in chunks, decoded; and training the losses of inference."""

from __future__ import annotations

import copy
import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import rooftop
from rooftop.core import settings

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
TINY = ["--device", "cpu", "--tiny", "--length", "7"]


def test_every_way_has_the_same_bits(tmp_path: Path) -> None:
    script = runpy.run_path(str(settings.CHECKOUT / "scripts" / "invariant_llama.py"))
    assert script["main"]([*TINY, "--out", str(tmp_path / "with.json")]) == 0
    record = json.loads((tmp_path / "with.json").read_text())
    assert len(record["ways"]) == 7 and all(way["values"] > 10 for way in record["ways"])
    script["main"]([*TINY, "--free", "--out", str(tmp_path / "without.json")])
    assert any(way["unequal"] for way in json.loads((tmp_path / "without.json").read_text())["ways"])  # what is compared can differ


def test_steps_of_decoding_are_timed_with_and_without_the_mode(tmp_path: Path) -> None:
    script = runpy.run_path(str(settings.CHECKOUT / "scripts" / "invariant_step.py"))
    assert script["main"](["--device", "cpu", "--tiny", "--out", str(tmp_path / "step.json")]) == 0
    for row in json.loads((tmp_path / "step.json").read_text())["steps"]:
        assert {way: len(times) for way, times in row["step_ms"].items()} == {"free": 3, "invariant": 3}
        assert row["ratio"] > 0


@pytest.mark.parametrize("given", ["Linear", "Adapter"])
def test_linear_layers_are_replaced_where_asked_for(given: str) -> None:
    class Adapter(nn.Linear):
        pass

    torch.manual_seed(0)
    model = nn.Sequential({"Linear": nn.Linear, "Adapter": Adapter}[given](32, 48), nn.LayerNorm(48))
    x, plain = torch.randn(19, 32), copy.deepcopy(model)
    assert "linear" not in rooftop.patch(model).replaced
    rooftop.unpatch(model)
    report = rooftop.patch(model, linear=True)
    assert report.replaced.get("linear", 0) == (given == "Linear") and isinstance(model[0], nn.Linear)
    torch.testing.assert_close(model(x), plain(x))
    if given == "Linear":
        with rooftop.invariant():
            assert torch.equal(model(x)[7:8], model(x[7:8]))
        with torch.autocast("cpu", torch.bfloat16):
            assert model[0](x).dtype == plain[0](x).dtype == torch.bfloat16
        again = copy.deepcopy(model)
        assert torch.equal(again(x), model(x)) and type(rooftop.unpatch(again)[0]) is nn.Linear  # type: ignore[index]


def test_the_fused_loss_of_a_model_whose_layers_are_replaced() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=64)
    model, ids = LlamaForCausalLM(config).train(), torch.randint(3, 64, (2, 9))
    expected = model(input_ids=ids, labels=ids).loss
    report = rooftop.patch(model, linear=True)
    assert report.replaced["linear"] == 8 and "fused_linear_cross_entropy" in report.replaced
    free = model(input_ids=ids, labels=ids)
    with rooftop.invariant():
        held = model(input_ids=ids, labels=ids)
    held.loss.backward()
    assert free.logits is None and held.logits is None and model.lm_head.weight.grad is not None
    torch.testing.assert_close(free.loss, expected)
    torch.testing.assert_close(held.loss, expected)


def test_draws_for_a_sequence_do_not_depend_on_the_others() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from rooftop.core.invariance import InvarianceError

    torch.manual_seed(2)
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=64)
    model, ids, seeds = LlamaForCausalLM(config).eval(), torch.randint(3, 64, (3, 5)), torch.tensor([1000, 7, 500])
    rooftop.patch(model, linear=True)

    def drawn(ids: torch.Tensor, seed: int | torch.Tensor) -> torch.Tensor:
        return rooftop.generate(model, ids, max_new_tokens=4, temperature=1.0, top_k=20, seed=seed)

    with rooftop.invariant():
        whole = drawn(ids, seeds)
        for i in range(3):
            alone = drawn(ids[i : i + 1], seeds[i : i + 1])
            assert torch.equal(whole[i : i + 1, : alone.shape[1]], alone)
        with pytest.raises(InvarianceError, match=r"from its place in the call: give seed as a tensor, one for each row$"):
            drawn(ids, 7)
