"""`rooftop.generate` and its cache: the tokens of Transformers' greedy decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drop_in import _kinds

import rooftop

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
KINDS = (
    "llama", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "gemma3_text", "phi3", "gpt_oss", "olmo2", "deepseek_v3", "granite", "cohere", "glm4",
    "smollm3",
)


def _made(kind: str) -> Any:
    works = _kinds.works(kind)
    assert not isinstance(works, str), works
    return _kinds.made(*works, "eager")


def _prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Padded on the left by 3, 0 and 1 tokens."""
    ids = _kinds.tokens(3, 7)
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[2, :1] = 0
    return ids * mask, mask


def _greedy(model: Any, ids: torch.Tensor, mask: torch.Tensor, **more: Any) -> torch.Tensor:
    return model.generate(ids, attention_mask=mask, do_sample=False, **{"max_new_tokens": 12, **more})


@pytest.mark.sampled("patched")
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_greedy_decoding(kind: str) -> None:
    model, eager, (ids, mask) = _made(kind), _made(kind), _prompts()
    rooftop.patch(model)
    assert torch.equal(rooftop.generate(model, ids, max_new_tokens=12), _greedy(eager, ids, torch.ones_like(ids)))
    want = _greedy(eager, ids, mask)
    assert torch.equal(rooftop.generate(model, ids, attention_mask=mask, max_new_tokens=12), want)
    assert torch.equal(rooftop.generate(model, ids, attention_mask=mask, max_new_tokens=12, prefill_chunk=2), want)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_heads_of_sizes_without_a_kernel_decode_too(kind: str) -> None:
    """A soft cap, sinks and a window among them."""
    cls, config = _kinds.works(kind)  # type: ignore[misc]
    config = type(config)(**{**config.to_dict(), "head_dim": 20})
    model, eager = (_kinds.made(cls, config, "eager") for _ in range(2))
    rooftop.patch(model)
    ids, mask = _prompts()
    assert torch.equal(rooftop.generate(model, ids, attention_mask=mask, max_new_tokens=12, prefill_chunk=4), _greedy(eager, ids, mask))


def test_sequences_end_at_different_times() -> None:
    model, (ids, mask) = _made("llama"), _prompts()
    new = _greedy(_made("llama"), ids, mask, eos_token_id=None)[:, ids.shape[1] :]
    ends = [int(new[0, 2]), int(new[1, 7])]  # in the first row after three tokens
    for given in (ends, ends[1], [63]):
        want = _greedy(_made("llama"), ids, mask, eos_token_id=given, pad_token_id=5)
        assert torch.equal(rooftop.generate(model, ids, attention_mask=mask, eos_token_id=given, pad_token_id=5, max_new_tokens=12), want)
    assert want.shape[1] <= ids.shape[1] + 12 and not rooftop.drop_in.is_patched(model)


def test_padding_may_be_anywhere_and_prompts_of_one_token() -> None:
    model = _made("llama").train()
    rooftop.patch(model)
    ids = _kinds.tokens(2, 5)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 1]])
    got = rooftop.generate(model, ids, attention_mask=mask, max_new_tokens=6)
    for row, alone in enumerate((ids[:1, :3], ids[1:, 4:])):
        want = rooftop.generate(model, alone, max_new_tokens=6)
        assert torch.equal(got[row, 5:], want[0, alone.shape[1] :])
    assert model.training


def test_memory_is_used_again() -> None:
    model, (ids, mask) = _made("gemma2"), _prompts()
    rooftop.patch(model)
    decoder = rooftop.drop_in.Decoder(model, 3, 32)
    first = rooftop.generate(model, ids, attention_mask=mask, max_new_tokens=12, decoder=decoder)
    other = rooftop.generate(model, ids.flip(0), attention_mask=mask.flip(0), max_new_tokens=9, decoder=decoder)
    assert torch.equal(other, first.flip(0)[:, : ids.shape[1] + 9])
    with pytest.raises(ValueError, match=r"^generate: decoder is for 3 sequences of 32 tokens of its model; 3 of 107 are due$"):
        rooftop.generate(model, ids, max_new_tokens=100, decoder=decoder)


def test_draws_repeat_by_their_seed() -> None:
    model, (ids, _) = _made("llama"), _prompts()
    rooftop.patch(model)
    runs = [rooftop.generate(model, ids, max_new_tokens=12, temperature=1.5, top_k=20, top_p=0.9, seed=s) for s in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    with pytest.raises(TypeError, match=r"^generate: seed is \[1\], a list; it must be a whole number$"):
        rooftop.generate(model, ids, seed=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["llama", "gemma2", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prefill_chunk_size": 3}], ids=["greedy", "beams", "chunks"])
@pytest.mark.sampled("patched")
def test_the_cache_serves_generate_of_transformers(kind: str, how: dict[str, Any]) -> None:
    model, eager, (ids, mask) = _made(kind), _made(kind), _prompts()
    rooftop.patch(model)
    cache = rooftop.drop_in.KVCache(model.config, 40)
    assert torch.equal(_greedy(model, ids, mask, past_key_values=cache, **how), _greedy(eager, ids, mask, **how))


def test_quantised_models_decode_with_the_same_line() -> None:
    """The output embedding too; a router stays as it is."""
    model, (ids, mask) = _made("llama"), _prompts()
    rooftop.quantize_model(model, "int8", group=32)
    rooftop.quantize_model(model, "int8", group=32, include="lm_head", exclude=())
    assert isinstance(model.lm_head, rooftop.QuantLinear)
    want = _greedy(model, ids, mask)
    report = rooftop.patch(model)
    assert report.replaced["mlp"] == 2 and [r.why for r in report.left] == ["its output embedding is a QuantLinear, no torch.nn.Linear"]
    assert torch.equal(rooftop.generate(model, ids, attention_mask=mask, max_new_tokens=12), want)


def test_bad_input() -> None:
    import transformers

    model, (ids, _) = _made("llama"), _prompts()
    with pytest.raises(TypeError, match=r"^generate: ids is torch.int32 \(3, 7\); it must be torch.int64 \[B, L\], with a token at least$"):
        rooftop.generate(model, ids.int())
    with pytest.raises(ValueError, match=r"^generate: attention_mask is \(3, 2\); it must be of the shape of ids, \(3, 7\)$"):
        rooftop.generate(model, ids, attention_mask=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"^generate: attention_mask leaves a sequence without tokens$"):
        rooftop.generate(model, ids, attention_mask=torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"^generate: max_new_tokens is 0; it must be at least 1$"):
        rooftop.generate(model, ids, max_new_tokens=0)
    said = r"^generate: the attention of LlamaForCausalLM is not rooftop's; use model.generate$"
    with rooftop.patch(model, attention=False), pytest.raises(ValueError, match=said):
        rooftop.generate(model, ids)
    assert not rooftop.drop_in.is_patched(model)
    config = transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=64)
    mamba = transformers.MambaForCausalLM(config)
    with pytest.raises(ValueError, match=r"^generate: MambaConfig has layers of linear_attention; use model.generate$"):
        rooftop.generate(mamba, ids)
    cache = rooftop.drop_in.KVCache(model.config, 8)
    with rooftop.patch(model), pytest.raises(ValueError, match=r"^KVCache: 7 tokens and 2 more do not fit; max_length is 8$"):
        model(ids, past_key_values=cache)
        model(ids[:, :2], past_key_values=cache)


@pytest.mark.parametrize("kind, bits", [("llama", None), ("qwen3", "int4"), ("qwen2", None)])
def test_layers_that_share_an_input_are_one_product(kind: str, bits: str | None, tmp_path: Any) -> None:
    """Queries, keys and values, and gate and up: the tokens stay, and so does the model around the decoder's calls. Weights that were replaced are seen."""
    model = _made(kind)
    if bits:
        rooftop.quantize_model(model, bits, group=32)
    rooftop.patch(model, residual=True)
    ids = _kinds.tokens(2, 7)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    want = rooftop.generate(model, ids, max_new_tokens=9)
    decoder = rooftop.drop_in.Decoder(model, 2, 20, packed=True)
    assert decoder.packing is not None
    assert [len(g.layers) for g in decoder.packing.groups if len(g.layers) > 1] == [3, 2] * model.config.num_hidden_layers
    assert torch.equal(rooftop.generate(model, ids, max_new_tokens=9, decoder=decoder), want)
    with torch.inference_mode():
        alone = rooftop.drop_in.Decoder(model, 1, 20, packed=True)
    assert torch.equal(rooftop.generate(model, ids[:1], max_new_tokens=9, decoder=alone), want[:1])
    assert not any("forward" in vars(m) for m in model.modules())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    if bits:
        return
    model.save_pretrained(tmp_path)
    assert all(torch.equal(t, before[n]) for n, t in type(model).from_pretrained(tmp_path).state_dict().items())
    model(input_ids=ids, labels=ids).loss.backward()
    layer = model.model.layers[0].self_attn.k_proj
    layer.weight.data = torch.randn(layer.weight.shape) / 8
    changed = rooftop.generate(model, ids, max_new_tokens=9)
    assert not torch.equal(changed, want)
    assert torch.equal(rooftop.generate(model, ids, max_new_tokens=9, decoder=decoder), changed)
