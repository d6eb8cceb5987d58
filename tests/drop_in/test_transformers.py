"""The attention and mask functions that Hugging Face Transformers is given."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rooftop
from rooftop.drop_in import transformers_attention, transformers_mask
from rooftop.drop_in.attention import scaled_dot_product_attention

MODULE = types.SimpleNamespace(is_causal=True)


def _qkv(
    rows: int = 9, keys: int = 9, heads: int = 4, key_heads: int = 2, size: int = 16, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    extents = ((heads, rows), (key_heads, keys), (key_heads, keys))
    return [torch.randn(2, h, n, size, generator=g, dtype=dtype) for h, n in extents]


def _plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Any = None, bias: Any = None, softcap: Any = None, sinks: Any = None
) -> torch.Tensor:
    """[B, L, H, D] by the formula, in float64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    z = q.double() @ k.mT * q.shape[-1] ** -0.5
    z = z if softcap is None else softcap * (z / softcap).tanh()
    z = z if bias is None else z + bias.double()
    z = z if seen is None else z.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        z = torch.cat((z, sinks.double()[:, None, None].expand(*z.shape[:3], 1)), -1)
    return (z.softmax(-1)[..., : k.shape[2]] @ v).transpose(1, 2)


def _causal(rows: int, keys: int) -> torch.Tensor:
    return torch.ones(rows, keys, dtype=torch.bool).tril()


# the attention function -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "keys"), [(9, 9), (5, 9), (9, 5), (1, 9)])
@pytest.mark.parametrize("size", [16, 12])
def test_without_a_mask_the_first_query_stands_at_the_first_key(rows: int, keys: int, size: int) -> None:
    """What a static cache's empty slots hold is not seen."""
    q, k, v = _qkv(rows, keys, size=size)
    want = _plain(q, k, v, _causal(rows, keys) if rows > 1 else None)
    torch.testing.assert_close(transformers_attention(MODULE, q, k, v, None)[0].double(), want, atol=1e-5, rtol=1e-5)
    want = _plain(q, k, v)
    torch.testing.assert_close(transformers_attention(MODULE, q, k, v, None, is_causal=False)[0].double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [16, 12, 264])
@pytest.mark.parametrize("mask", ["none", "bool", "added", "runs", "order", "packed"])
@pytest.mark.parametrize("what", ["nothing else", "bias", "cap and sinks"])
def test_any_size_and_dtype_of_heads_takes_any_mask(dtype: torch.dtype, size: int, mask: str, what: str) -> None:
    q, k, v = (x.requires_grad_() for x in _qkv(size=size, dtype=dtype))
    g = torch.Generator().manual_seed(4)
    more: dict[str, Any] = {}
    given: torch.Tensor | None = None
    seen = _causal(9, 9)[None, None]
    if mask == "bool":
        seen = given = (torch.rand(2, 1, 9, 9, generator=g) > 0.4) | torch.eye(9, dtype=torch.bool)
    elif mask == "added":
        seen = torch.rand(2, 1, 9, 12, generator=g) > 0.4
        given = torch.zeros(2, 1, 9, 12).masked_fill(~seen, torch.finfo(torch.float32).min)  # longer than the keys
        seen = seen[..., :9]
    elif mask == "runs":
        begin = torch.tensor([[0, 0, 1, 2, 2, 0, 5, 5, 8], [0] * 9])
        end = torch.tensor([[1, 2, 9, 4, 3, 9, 7, 8, 9], list(range(1, 10))])
        given = torch.stack((begin, end), -1).int()[:, None]
        seen = ((torch.arange(9) >= begin[..., None]) & (torch.arange(9) < end[..., None]))[:, None]
    elif mask == "order":
        given = torch.empty(1, 3, 0, 2, dtype=torch.int32)
        seen = seen & ~seen.tril(-3)
    elif mask == "packed":
        if what == "bias":
            with pytest.raises(TypeError, match="position_bias and cu_seq_lens_q are both given"):
                transformers_attention(MODULE, q, k, v, None, position_bias=torch.zeros(1, 4, 9, 9), cu_seq_lens_q=torch.tensor([0, 18]))
            return
        more["cu_seq_lens_q"] = more["cu_seq_lens_k"] = torch.tensor([0, 4, 9, 12, 18], dtype=torch.int32)
        whose = torch.tensor([0] * 4 + [1] * 5 + [2] * 3 + [3] * 6).view(2, 1, 9)
        seen = seen & (whose[..., None] == whose[..., None, :])
    wrt = [q, k, v]
    if what == "bias":
        wrt.append(torch.randn(1, 4, 9, 9, generator=g, dtype=dtype).requires_grad_())
        got = transformers_attention(MODULE, q, k, v, given, position_bias=wrt[3], **more)[0]
        want = _plain(q, k, v, seen, bias=wrt[3])
    elif what == "cap and sinks":
        wrt.append(torch.randn(4, generator=g, dtype=dtype).requires_grad_())
        got = transformers_attention(MODULE, q, k, v, given, softcap=2.0, s_aux=wrt[3], **more)[0]
        want = _plain(q, k, v, seen, softcap=2.0, sinks=wrt[3])
    else:
        got, want = transformers_attention(MODULE, q, k, v, given, **more)[0], _plain(q, k, v, seen)
    some = seen.any(-1).expand(2, 1, 9)[:, 0]  # a query that sees no key is of no use
    assert got.dtype == dtype
    torch.testing.assert_close(got[some].double(), want[some], atol=1e-5, rtol=1e-5)
    ours, theirs = (torch.autograd.grad(x[some].double().square().sum(), wrt) for x in (got, want))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("low", ["q", "k", "v", "none"])
def test_autocast_casts_as_torchs_function_does(low: str) -> None:
    q, k, v = (x.bfloat16() if n == low else x for n, x in zip("qkv", _qkv(), strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        got = transformers_attention(MODULE, q, k, v, None)[0]
        want = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    assert got.dtype == torch.bfloat16 and torch.equal(got, want)


@pytest.mark.parametrize("name", ["indices", "block_indices", "something_new"])
def test_a_keyword_that_is_not_known_is_refused_by_name(name: str) -> None:
    q, k, v = _qkv()
    said = f'^transformers_attention: {name} given by SimpleNamespace, which may change .* attn_implementation="sdpa" or "eager"$'
    with pytest.raises(TypeError, match=said):
        transformers_attention(MODULE, q, k, v, None, **{name: torch.zeros(1)})
    want = transformers_attention(MODULE, q, k, v, None)[0]
    used: dict[str, Any] = {name: None, "position_ids": torch.arange(9)[None], "output_attentions": False, "sliding_window": 4}
    assert torch.equal(transformers_attention(MODULE, q, k, v, None, **used)[0], want)


def test_what_cannot_be_honoured_is_refused() -> None:
    q, k, v = _qkv()
    with pytest.raises(TypeError, match=r'output_attentions is True; the weights are never in memory. Give attn_implementation="eager"$'):
        transformers_attention(MODULE, q, k, v, None, output_attentions=True)
    with pytest.raises(TypeError, match=r"attention_mask is torch.int64 of shape \(2, 9\); it must be bool, or a float that is added$"):
        transformers_attention(MODULE, q, k, v, torch.ones(2, 9, dtype=torch.long))
    with pytest.raises(ValueError, match=r"9 queries have a window over 5 keys; the mask must say which keys they see$"):
        transformers_attention(MODULE, q, k[:, :, :5], v[:, :, :5], torch.empty(1, 4, 0, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="mask has shape"):
        transformers_attention(MODULE, q, k, v, torch.ones(3, 1, 9, 9, dtype=torch.bool))


def test_dropout_is_drawn_from_torchs_generator() -> None:
    q, k, v = _qkv()
    torch.manual_seed(5)
    first, other = (transformers_attention(MODULE, q, k, v, None, dropout=0.5)[0] for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(transformers_attention(MODULE, q, k, v, None, dropout=0.5)[0], first)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("packed", [True, False])
def test_transformers_finds_the_functions(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    found: dict[str, Any] = {}

    class Interface:
        @staticmethod
        def register(name: str, function: Any) -> None:
            found.setdefault(name, []).append(function)

    package, masks = types.ModuleType("transformers"), types.ModuleType("transformers.masking_utils")
    package.AttentionInterface = masks.AttentionMaskInterface = Interface  # type: ignore[attr-defined]
    package.__version__ = "5.0.0"  # type: ignore[attr-defined]
    masks.sdpa_mask = lambda batch_size, cache_position: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masks)
    with pytest.raises(ImportError, match=r"^transformers is 5.0.0; register_transformers needs 5.5 or later$"):
        rooftop.drop_in.register_transformers()
    assert not found
    masks.sdpa_mask = lambda batch_size, q_length, kv_length, q_offset: None  # type: ignore[attr-defined]
    rooftop.drop_in.register_transformers("ours", packed=packed)
    attention, mask = found["ours"]
    assert attention is transformers_attention
    assert mask is transformers_mask if packed else (mask.func, mask.keywords) == (transformers_mask, {"packed": False})


# with Transformers ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf() -> Any:
    package = pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
    package.logging.set_verbosity_error()
    rooftop.drop_in.register_transformers()
    return package


SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1,
}


def _config(hf: Any, kind: str, **more: Any) -> Any:
    special: dict[str, dict[str, Any]] = {
        "Llama": {}, "Mistral": {"sliding_window": 4},
        "Gemma2": {"head_dim": 16, "sliding_window": 4}, "Gemma3Text": {"head_dim": 16, "sliding_window": 4},
        "GptOss": {"head_dim": 16, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        "Llama4Text": {"head_dim": 16, "attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 64},
    }
    return getattr(hf, f"{kind}Config")(**{**SIZES, **special[kind], **more})


def _model(hf: Any, config: Any, how: str) -> Any:
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=how).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(3)
    return model


def _ids(rows: int = 2, length: int = 11) -> torch.Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(1))


def _expanded(mask: torch.Tensor | None, batch: int, rows: int, keys: int) -> torch.Tensor:
    """A mask of ours, bool [B, 1, L, S]."""
    at, row = torch.arange(keys), torch.arange(rows)[:, None]
    if mask is None:
        seen = torch.ones(1, 1, rows, keys, dtype=torch.bool)
    elif mask.dtype == torch.bool:
        seen = mask
    elif mask.shape[2] == 0:
        causal, window, _, two = mask.shape
        assert two == 2
        seen = (at <= row) & (at > row - (window or keys)) if causal else torch.ones(rows, keys, dtype=torch.bool)
    else:
        seen = (at >= mask[..., :1]) & (at < mask[..., 1:])
    return seen.expand(batch, 1, rows, keys)


def _form(mask: torch.Tensor | None) -> str:
    return "none" if mask is None else "bool" if mask.dtype == torch.bool else "runs" if mask.shape[2] else "order"


CAUSAL = types.SimpleNamespace(sliding_window=None, attention_chunk_size=None)
WINDOW = types.SimpleNamespace(sliding_window=4)
CHUNKS = types.SimpleNamespace(attention_chunk_size=4)


def _function(masks: Any, kind: str, ids: torch.Tensor) -> Callable[..., Any]:
    made: dict[str, Callable[[], Any]] = {
        "causal": lambda: masks.causal_mask_function, "all": lambda: masks.bidirectional_mask_function,
        "window": lambda: masks.sliding_window_causal_mask_function(4),
        "chunks": lambda: masks.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int)),
        "near": lambda: masks.sliding_window_bidirectional_mask_function(4),
        "packed": lambda: masks.and_masks(masks.causal_mask_function, masks.packed_sequence_mask_function(ids)),
        "blocks": lambda: masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(ids - 1)),
        "prefix": lambda: masks.or_masks(masks.causal_mask_function, lambda b, h, q, kv: kv < 3),
    }
    return made[kind]()


LOCAL = {"window": 4, "chunks": 4, "near": 4}
CONFIGS = {"window": WINDOW, "near": WINDOW, "chunks": CHUNKS}


@pytest.mark.parametrize(("kind", "rows", "keys", "offset", "padding", "form"), [
    ("causal", 9, 9, 0, None, "order"), ("causal", 9, 9, 0, "whole", "order"), ("causal", 5, 9, 0, "prompt", "order"),
    ("causal", 9, 9, 0, "right", "runs"), ("causal", 9, 9, 0, "left", "runs"), ("causal", 9, 9, 0, "hole", "bool"),
    ("causal", 5, 9, 4, None, "runs"), ("causal", 1, 9, 8, None, "none"), ("causal", 1, 9, 8, "left", "runs"),
    ("causal", 2, 2, 0, "left", "bool"), ("window", 9, 9, 0, None, "order"), ("window", 9, 9, 0, "left", "runs"),
    ("window", 3, 3, 0, None, "order"), ("window", 1, 9, 8, None, "runs"), ("chunks", 9, 9, 0, None, "runs"),
    ("chunks", 4, 4, 0, None, "order"), ("chunks", 9, 9, 0, "right", "runs"), ("all", 9, 9, 0, None, "order"),
    ("all", 9, 9, 0, "right", "runs"), ("all", 9, 9, 0, "hole", "bool"), ("near", 9, 9, 0, None, "runs"), ("packed", 9, 9, 0, None, "runs"),
    ("blocks", 9, 9, 0, None, "runs"), ("prefix", 9, 9, 0, None, "runs"), ("prefix", 9, 9, 0, "hole", "bool"),
])
def test_a_mask_takes_its_smallest_form(hf: Any, kind: str, rows: int, keys: int, offset: int, padding: str | None, form: str) -> None:
    from transformers import masking_utils

    mask = None if padding is None else torch.ones(2, keys, dtype=torch.bool)
    if mask is not None and padding != "whole":
        left = slice(0, 3 if keys > 3 else 1)
        where = {"right": slice(-3, None), "left": left, "hole": slice(1, 2), "prompt": slice(rows, None)}[str(padding)]
        mask[0 if padding != "prompt" else slice(None), where] = False
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2]] * 2)
    given: dict[str, Any] = {
        "batch_size": 2, "q_length": rows, "kv_length": keys, "q_offset": offset, "mask_function": _function(masking_utils, kind, ids),
        "attention_mask": mask, "local_size": LOCAL.get(kind), "use_vmap": kind == "prefix",
    }
    skips = {"allow_is_causal_skip": kind in ("causal", "window", "chunks"), "allow_is_bidirectional_skip": kind in ("all", "near")}
    got = transformers_mask(**given, **skips, config=CONFIGS.get(kind, CAUSAL))
    want = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)
    assert _form(got) == form
    assert torch.equal(_expanded(got, 2, rows, keys), want.expand(2, 1, rows, keys))


def test_masks_of_any_sizes_say_what_transformers_masks_say(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import masking_utils

    monkeypatch.setattr("rooftop.drop_in.transformers_masks.TOGETHER", 40)  # so that masks are looked at some rows at a time
    g, forms = torch.Generator().manual_seed(7), set()

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    for i in range(400):
        kind = ("causal", "window", "chunks", "all", "near", "packed", "blocks", "prefix")[i % 8]
        rows = draw(1, 7)
        kv_offset = draw(0, 3) if kind in ("causal", "window", "all") and draw(0, 2) == 0 else 0
        q_offset = kv_offset + (draw(0, 6) if draw(0, 1) else 0)
        keys = q_offset - kv_offset + rows + (draw(0, 4) if draw(0, 2) == 0 else 0)
        whole = kv_offset + keys
        ids = (torch.rand(2, whole + 8, generator=g) > 0.7).long().cumsum(-1)
        mask = None
        if draw(0, 1):
            mask = torch.ones(2, draw(max(1, whole - 3), whole + 2), dtype=torch.bool)
            for b in range(2):
                first = draw(0, mask.shape[1])
                mask[b, first : first + draw(0, mask.shape[1])] = draw(0, 3) == 0
        given: dict[str, Any] = {
            "batch_size": 2, "q_length": rows, "kv_length": keys, "q_offset": torch.tensor(q_offset) if draw(0, 3) == 0 else q_offset,
            "kv_offset": kv_offset, "mask_function": _function(masking_utils, kind, ids), "attention_mask": mask,
            "local_size": LOCAL.get(kind), "use_vmap": kind == "prefix",
        }
        skips = {"allow_is_causal_skip": kind in ("causal", "window", "chunks"), "allow_is_bidirectional_skip": kind in ("all", "near")}
        got = transformers_mask(**given, **skips, config=CONFIGS.get(kind, CAUSAL))
        want = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)
        forms.add(_form(got))
        if kind == "all" and _form(got) == "order":
            assert bool(want.all())
        assert torch.equal(_expanded(got, 2, rows, keys), want.expand(2, 1, rows, keys)), (kind, given)
    assert forms == {"none", "order", "runs", "bool"}


HEADS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
LAYER = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}


@pytest.mark.parametrize(("name", "config"), [
    ("BloomForCausalLM", {"hidden_size": 64, "n_layer": 1, "n_head": 4}), ("MptForCausalLM", {"d_model": 64, "n_layers": 1, "n_heads": 4}),
    ("XGLMForCausalLM", {"d_model": 64, "ffn_dim": 64, "num_layers": 1, "attention_heads": 4}),
    ("LongformerModel", {**LAYER, "attention_window": 4}),
    ("LEDModel", {"d_model": 64, **HEADS, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "attention_window": 4}),
])
def test_a_model_that_computes_attention_itself_is_refused(hf: Any, name: str, config: dict[str, Any]) -> None:
    cls = getattr(hf, name)
    model = cls._from_config(cls.config_class(vocab_size=64, pad_token_id=0, **config), attn_implementation="rooftop").eval()
    with pytest.raises(ValueError, match=r'computes attention itself and reads no mask of rooftop; give it attn_implementation="eager"$'):
        model(input_ids=_ids())


def test_what_the_caller_of_a_model_gives_reaches_no_kernel_and_changes_nothing(hf: Any) -> None:
    model, ids = _model(hf, _config(hf, "Llama"), "rooftop"), _ids()
    with torch.no_grad():
        assert torch.equal(model(ids, something=torch.zeros(1), use_cache=False).logits, model(ids, use_cache=False).logits)
    q, k, v = _qkv()
    layer = model.model.layers[0].self_attn
    assert transformers_attention(layer, q, k, v, None, something=3)[0].shape == (2, 9, 4, 16)
    with pytest.raises(TypeError, match="output_attentions is True"):
        model(ids, output_attentions=True)


def test_a_class_of_a_user_is_judged_by_what_it_derives_from(hf: Any) -> None:
    class Ours(hf.LlamaConfig):  # type: ignore[misc]
        model_type = "ours"

    class Model(hf.LlamaForCausalLM):  # type: ignore[misc]
        config_class = Ours

    model = Model._from_config(Ours(**SIZES), attn_implementation="rooftop").eval()
    with torch.no_grad():
        got = model(_ids()).logits
        model.set_attn_implementation("eager")
        torch.testing.assert_close(got, model(_ids()).logits)


CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {}, "static": {"cache_implementation": "static", "disable_compile": True}, "in chunks": {"prefill_chunk_size": 4},
    "beams": {"num_beams": 3}, "assisted": {}, "lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Gemma2", "Gemma3Text", "GptOss", "Llama4Text"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.sampled("slow")
def test_what_is_generated_is_as_in_eager(hf: Any, kind: str, cache: str, padded: bool) -> None:
    """Over dynamic, static, sliding and hybrid caches (the kinds have them by their configuration)."""
    if kind == "Llama4Text" and cache == "static":
        pytest.skip("Transformers itself raises in the masks of chunks and static caches")
    config, ids = _config(hf, kind), _ids()
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :4] = 0
    if cache in ("assisted", "lookup"):  # of one sequence
        ids, mask = ids[:1], mask[:1]
    runs = []
    for how in ("eager", "rooftop"):
        more = dict(CACHES[cache])
        if cache == "assisted":
            more["assistant_model"] = _model(hf, _config(hf, kind, num_hidden_layers=1), how)
        model = _model(hf, config, how)
        runs.append(model.generate(
            ids * mask, attention_mask=mask, max_new_tokens=9, do_sample=False, output_logits=True, return_dict_in_generate=True, **more
        ))
    assert torch.equal(runs[0].sequences, runs[1].sequences)
    for ours, theirs in zip(runs[1].logits, runs[0].logits, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Gemma2", "GptOss"])
@pytest.mark.parametrize("steps", [(11,), (1, 10), (6, 5), (3, 1, 4, 1, 2)])
def test_a_static_cache_may_be_filled_in_any_steps(hf: Any, kind: str, steps: tuple[int, ...]) -> None:
    """More keys than queries, with and without a prompt before: the slots that are still empty are never seen."""
    config, ids = _config(hf, kind), _ids()
    model, eager = _model(hf, config, "rooftop"), _model(hf, config, "eager")
    for masked in (False, True):
        mask = torch.ones(2, 11, dtype=torch.long)
        mask[0, :2] = 0 if masked else 1
        with torch.no_grad():
            want = eager(ids, attention_mask=mask, use_cache=False).logits
            cache, parts, at = hf.StaticCache(config=model.config, max_cache_len=32), [], 0
            for n in steps:
                given = {"attention_mask": mask[:, : at + n]} if masked else {}
                parts.append(model(ids[:, at : at + n], past_key_values=cache, **given).logits)
                at += n
        torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], want[mask.bool()], atol=1e-5, rtol=1e-5)


def test_a_quantised_cache_is_as_in_eager(hf: Any) -> None:
    from transformers.cache_utils import Cache, QuantizedLayer

    class Rounded(QuantizedLayer):  # type: ignore[misc]
        def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
            return (tensor * 16).round() / 16

        def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
            return q_tensor

    config, ids, got = _config(hf, "Llama"), _ids(), []
    for how in ("eager", "rooftop"):
        model, cache = _model(hf, config, how), Cache(layers=[Rounded(residual_length=4) for _ in range(2)])
        how_long = {"max_new_tokens": 9, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        got.append(model.generate(ids, past_key_values=cache, **how_long))
    assert torch.equal(got[0].sequences, got[1].sequences)
    for ours, theirs in zip(got[1].logits, got[0].logits, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_that_the_user_made_is_read(hf: Any, dtype: torch.dtype) -> None:
    """A bidirectional prefix of four tokens, given in full."""
    config, ids = _config(hf, "Llama"), _ids()
    seen = (_causal(11, 11) | (torch.arange(11) < 4))[None, None].expand(2, 1, 11, 11)
    added = torch.zeros(2, 1, 11, 11).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = _model(hf, config, "eager")(ids, attention_mask=added, use_cache=False).logits
        got = _model(hf, config, "rooftop")(ids, attention_mask=seen if dtype == torch.bool else added, use_cache=False).logits
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_sequences_may_be_packed_by_their_bounds_alone(hf: Any) -> None:
    """`cu_seq_lens_q`, as data collators give it for FlashAttention, without `position_ids` that tell."""
    model, ids = _model(hf, _config(hf, "Mistral"), "rooftop"), _ids(1)
    bounds, places = torch.tensor([0, 6, 11], dtype=torch.int32), torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        got = model(ids, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=6, max_length_k=6, use_cache=False).logits
        want = torch.cat([model(ids[:, a:b], position_ids=places[:, a:b] + a, use_cache=False).logits for a, b in ((0, 6), (6, 11))], 1)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_activations_drop_the_same_weights(hf: Any, reentrant: bool) -> None:
    model, ids, found = _model(hf, _config(hf, "Llama", attention_dropout=0.4), "rooftop").train(), _ids(), []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        torch.manual_seed(3)
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        found.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(found[0], found[1])
    assert any(bool(g.any()) for g in found[0])


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Gemma3Text", "Phi3", "GptOss"])
def test_a_model_trains_under_autocast(hf: Any, kind: str) -> None:
    """Rotary embeddings and norms leave queries and keys in float32 beside values of 16 bits."""
    more = {"head_dim": 16} if kind in ("Qwen3", "Gemma3Text", "GptOss") else {}
    more |= {"num_local_experts": 2, "num_experts_per_tok": 1} if kind == "GptOss" else {}
    config, ids, found = getattr(hf, f"{kind}Config")(**SIZES, **more), _ids(), []
    for how, low in (("eager", False), ("eager", True), ("rooftop", True)):
        model = _model(hf, config, how)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            model(ids, labels=ids, use_cache=False).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (found[2] - found[0]).norm() <= 2 * (found[1] - found[0]).norm()


@pytest.mark.parametrize(
    ("kind", "packed", "form"), [("Llama", True, "runs"), ("Llama", False, "order"), ("Mistral", False, "order"), ("Gemma2", True, "runs")]
)
@pytest.mark.sampled("slow")
def test_a_compiled_model_makes_no_full_mask_and_one_graph(hf: Any, kind: str, packed: bool, form: str) -> None:
    graphs: list[set[str]] = []  # of each, what the ops of attention in it are given

    def backend(graph: Any, inputs: Any) -> Any:
        ops = [n for n in graph.graph.nodes if "rooftop.attention" in str(n.target)]
        values = [[a.meta.get("example_value") for a in n.args if isinstance(a, torch.fx.Node)] for n in ops]
        kinds = [{t.dtype for t in given if isinstance(t, torch.Tensor)} for given in values]
        graphs.append({"bool" if torch.bool in k else "runs" if torch.int32 in k else "order" for k in kinds})
        return graph.forward

    name = f"rooftop packed {packed}"
    rooftop.drop_in.register_transformers(name, packed=packed)
    config = _config(hf, kind, num_hidden_layers=2 if kind == "Gemma2" else 1)
    model, eager = _model(hf, config, name), _model(hf, config, "eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for length in (11, 12, 30):
        ids = _ids(length=length)
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids, use_cache=False).logits, eager(ids, use_cache=False).logits, atol=1e-5, rtol=1e-5)
    assert graphs == [{form}]
    if packed:
        places = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]] * 2)
        with torch.no_grad():
            got, want = (m(_ids(), position_ids=places, use_cache=False).logits for m in (compiled, eager))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
