"""`rooftop.generate_batch`: every prompt gets the tokens that it gets alone, whatever runs beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drop_in import _kinds

import rooftop
from rooftop.drop_in import batching

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")


def _made(kind: str, **more: Any) -> Any:
    cls, config = _kinds.works(kind)  # type: ignore[misc]
    return _kinds.made(cls, type(config)(**{**config.to_dict(), **more}), "eager").eval()


def _prompts(count: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(count)
    return [torch.randint(3, 60, (int(torch.randint(1, 14, (1,), generator=g)),), generator=g).tolist() for _ in range(count)]


def _alone(model: Any, prompt: list[int], new: int, eos: Any = None) -> list[int]:
    made = model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False, eos_token_id=eos, pad_token_id=0)
    return made[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text", "gpt_oss", "deepseek_v3"])
def test_tokens_are_those_of_each_prompt_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More prompts than slots, pages of 4 tokens, chunks of 5; windows, sinks and heads of two sizes among them."""
    monkeypatch.setattr(batching, "PAGE", 4)
    model, prompts = _made(kind), _prompts(5)
    want = [_alone(model, p, 5 + i) for i, p in enumerate(prompts)]
    got = rooftop.generate_batch(model, prompts, max_new_tokens=[5 + i for i in range(5)], slots=3, prefill_chunk=5)
    assert got == want and not rooftop.drop_in.is_patched(model)


def test_heads_of_a_size_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PAGE", 4)
    model, prompts = _made("llama", head_dim=20), _prompts(4)
    assert rooftop.generate_batch(model, prompts, max_new_tokens=9, slots=2) == [_alone(model, p, 9) for p in prompts]


def test_ends_free_their_slots_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for hardly more than the longest sequence, and ends in the middle."""
    monkeypatch.setattr(batching, "PAGE", 4)
    model, prompts = _made("llama"), _prompts(6)
    eos = [_alone(model, prompts[0], 20)[2], _alone(model, prompts[3], 20)[7]]
    want = [_alone(model, p, 20, eos) for p in prompts]
    longest = max(map(len, prompts)) + 20
    got = rooftop.generate_batch(model, [torch.tensor(p) for p in prompts], max_new_tokens=20, eos_token_id=eos, slots=4, cache_tokens=longest + 3)
    assert got == want and len({len(n) for n in got}) > 1
    drawn = [rooftop.generate_batch(model, prompts, max_new_tokens=5, temperature=1.0, seed=s, slots=2) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    beside = rooftop.generate_batch(model, prompts, max_new_tokens=5, temperature=1.0, seed=1, slots=5)
    assert beside == drawn[0]  # what else runs does not matter


def test_arguments_that_do_not_fit() -> None:
    model = _made("llama")
    assert rooftop.generate_batch(model, []) == []
    for given, message in (
        ({"prompts": [[1], []]}, r"prompts\[1\] is \[\]"), ({"prompts": "abc"}, "prompts is a str"), ({"prompts": [[1.5]]}, r"prompts\[0\] is \[1.5\]"),
        ({"prompts": [[1]], "seed": [1]}, r"^generate_batch: seed is \[1\], a list; it must be a whole number$"),
        ({"prompts": [[1]], "slots": 0}, "slots is 0"), ({"prompts": [[1]], "max_new_tokens": [1, 2]}, "2 numbers for 1 prompts"),
        ({"prompts": [[1]], "cache_tokens": 64}, "a sequence of 129 tokens takes 3 pages of 64"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            rooftop.generate_batch(model, **given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model is a str"):
        rooftop.generate_batch("model", [[1]])  # type: ignore[arg-type]
