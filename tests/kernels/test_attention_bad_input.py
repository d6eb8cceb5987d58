"""What attention's kernels do with input that the host cannot refuse, since only the device sees it, or that leaves a query nothing to see: as the contract
says, forward and backward, with no NaN that was not given."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from _kernels import by_the_portable_kernel

import rooftop
from rooftop.lab.report.attention_page import given
from rooftop.ops.attention import OP

Call = dict[str, Any]


def _call(b: int = 2, sq: int = 40, sk: int = 40, h: int = 2, hk: int = 1, d: int = 16) -> Call:
    generator = torch.Generator().manual_seed(3)
    shapes = {"q": (b, sq, h, d), "k": (b, sk, hk, d), "v": (b, sk, hk, d)}
    return {n: torch.randn(s, generator=generator).bfloat16() for n, s in shapes.items()}


def _packed(q: list[int], k: list[int], tokens: int = 40) -> Call:
    return {**{n: t[0, :tokens] for n, t in _call(b=1).items()}, "causal": True, "cu_seqlens_q": torch.tensor(q), "cu_seqlens_k": torch.tensor(k)}


def _paged(table: list[list[int]], lengths: list[int], queries: int) -> Call:
    call = _call(b=2, sq=queries)
    pages = {n: torch.randn(6, 8, 1, 16, generator=torch.Generator().manual_seed(4)).bfloat16() for n in "kv"}
    return {**call, **pages, "causal": True, "page_table": torch.tensor(table, dtype=torch.int32), "cache_lengths": torch.tensor(lengths)}


def _empty(pages: int, size: int, lengths: list[int], queries: int = 3) -> Call:
    call = _paged([[0, 0], [0, 0]], lengths, queries)
    return {**call, **{n: call[n][:pages, :size] for n in "kv"}}


def _bias() -> Call:
    bias = torch.zeros(1, 1, 40, 40)
    bias[..., 7, :] = float("-inf")
    bias[..., 30:] = float("-inf")
    return {**_call(), "bias": bias}


CALLS: dict[str, Callable[[], Call]] = {
    "a mask that hides everything": lambda: {**_call(), "mask": torch.zeros(2, 1, 1, 40, dtype=torch.bool)},
    "a mask that hides rows": lambda: {**_call(), "mask": torch.arange(40)[None, None, :, None].expand(1, 1, 40, 40) % 3 > 0},
    "ranges that hold nothing": lambda: {**_call(), "mask": (torch.full((2, 40), 9, dtype=torch.int32), torch.full((2, 40), 9, dtype=torch.int32))},
    "-inf in the bias": _bias,
    "queries before all keys": lambda: {**_call(sk=9), "causal": True},
    "empty sequences": lambda: _packed([0, 0, 13, 13, 40], [0, 5, 5, 13, 40]),
    "bounds that fall": lambda: _packed([0, 30, 10, 40], [0, 10, 30, 20]),
    "bounds beyond the buffer": lambda: _packed([-5, 20, 90], [3, 20, 900]),
    "one token a sequence": lambda: _packed(list(range(11)), list(range(11)), 10),
    "lengths of 0 and beyond the cache": lambda: {**_call(), "causal": True, "cache_lengths": torch.tensor([0, 400])},
    "pages that do not exist": lambda: _paged([[0, 9, 1], [2, 3, -1]], [20, 15], 1),
    "pages that do not exist, 40 queries": lambda: _paged([[0, 9, 1], [2, 3, -1]], [20, 15], 40),
}


def judged(op: Any, tensors: Call, options: Call) -> tuple[Call, Call]:
    found = by_the_portable_kernel(op, tensors, options)
    assert found is not None, "no kernel takes it"
    return found


@pytest.mark.sampled("cells", "attention__triton", "attention_bwd__triton")
@pytest.mark.parametrize("name", CALLS)
def test_kernels_do_what_the_contract_says(name: str) -> None:
    tensors, options = given(CALLS[name]())
    got, found = judged(OP, tensors, options)
    assert bool(got["out"].isnan().any()) == name.startswith("pages")
    hidden = got["lse"] == float("-inf")  # [B, H, Sq]
    assert not got["out"].transpose(1, 2)[hidden].any()
    if name.startswith("pages"):
        with rooftop.debug(), pytest.raises(IndexError, match="page_table"):
            rooftop.attention(**CALLS[name]())
        return
    assert OP.bwd is not None and OP.grad is not None
    out = found["out"].to(torch.bfloat16)
    saved = dict(zip(OP.grad.saved_names, OP.grad.saved({**tensors, "out": out, "lse": found["lse"].float()}), strict=True))
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    back, _ = judged(OP.bwd, {"dout": dout, "dlse": None, **saved}, options)
    assert not any(bool(t.isnan().any()) for t in back.values() if t is not None)
    assert not back["dq"].transpose(1, 2)[hidden].any(), "a query that sees nothing has no gradient"


@pytest.mark.parametrize(("pages", "size"), [(0, 8), (5, 0), (0, 0)])
def test_a_cache_of_no_token_shows_nothing(pages: int, size: int) -> None:
    out, lse = rooftop.attention(**_empty(pages, size, [0, 0]), return_lse=True)
    assert not out.any() and bool((lse == float("-inf")).all())
    if pages == 0 and size:
        call = _empty(pages, size, [0, 5])
        call = {n: t.float().requires_grad_() if n in "qkv" else t for n, t in call.items()}
        out = rooftop.attention(**call)
        assert not out[0].any() and bool(out[1].isnan().all())
        out.nansum().backward()
        assert not call["q"].grad[0].any() and call["k"].grad.shape == call["k"].shape


def test_pages_of_no_token_are_told_under_debug() -> None:
    for lengths in ([0, 0], [0, 9]):
        with rooftop.debug(), pytest.raises(IndexError, match=r"k has shape \(5, 0, 1, 16\): pages of no token"):
            rooftop.attention(**_empty(5, 0, lengths))
    with rooftop.debug(), pytest.raises(IndexError, match="k has no page"):
        rooftop.attention(**_empty(0, 8, [0, 9]))


def test_a_sink_of_minus_infinity_has_no_gradient_where_every_key_is_hidden() -> None:
    q, k, v = (t.float().requires_grad_() for t in _call(sq=4, sk=5).values())
    sinks = torch.tensor([float("-inf"), 0.5], requires_grad=True)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0, 0, 1] = False
    out, lse = rooftop.attention(q, k, v, sinks=sinks, mask=mask, return_lse=True)
    (out.sum() + lse.exp().sum()).backward()
    assert sinks.grad is not None and float(sinks.grad[0]) == 0 and bool(sinks.grad[1].isfinite() & (sinks.grad[1] != 0))
    assert all(bool(t.grad.isfinite().all()) for t in (q, k, v))
    assert not q.grad[0, 1, 0].any()


@pytest.mark.sampled("cells", "attention__triton", "attention_bwd__triton")
@pytest.mark.parametrize("cap", [50.0, 1e3, 1e6, 1e12, 3.4e38])
@pytest.mark.parametrize("queries", [40, 3])
def test_a_score_errs_by_its_last_digits_whatever_the_cap(cap: float, queries: int) -> None:
    tensors, options = given({**_call(sq=queries), "softcap": cap})
    got, found = judged(OP, tensors, options)
    exact = found["lse"]
    assert float((got["lse"].double() - exact).abs().max()) < 2e-6
    assert OP.bwd is not None and OP.grad is not None
    out = found["out"].to(torch.bfloat16)
    saved = dict(zip(OP.grad.saved_names, OP.grad.saved({**tensors, "out": out, "lse": exact.float()}), strict=True))
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    back, _ = judged(OP.bwd, {"dout": dout, "dlse": None, **saved}, options)
    assert bool(back["dq"].any() and back["dk"].any())


def test_mixed_devices_are_refused_by_name() -> None:
    call = _call()
    with pytest.raises(ValueError, match="q lies on cpu and v on meta"):
        rooftop.attention(**{**call, "v": call["v"].to("meta")})


def test_latent_heads_are_taken_by_the_one_function() -> None:
    """D above 256 where v is a view of the first columns of k; their options alone."""
    q, kv = torch.randn(2, 3, 16, 576), torch.randn(2, 40, 1, 576)
    out, lse = rooftop.attention(q, kv, kv[..., :512], causal=True, scale=192**-0.5, order="bshd", return_lse=True)
    again = rooftop.latent_attention(q, kv, causal=True, scale=192**-0.5)
    assert torch.equal(out, again) and out.shape == (2, 3, 16, 512) and lse.shape == (2, 16, 3)
    turned = rooftop.attention(q.transpose(1, 2), kv.transpose(1, 2), kv.transpose(1, 2)[..., :512], causal="lower_right", scale=192**-0.5, order="bhsd")
    assert torch.equal(turned.transpose(1, 2), out)
    scores = torch.einsum("bihd,bjd->bhij", q, kv[:, :, 0]) * 192**-0.5
    hidden = torch.arange(40) > torch.arange(3)[:, None] + 37
    expected = torch.einsum("bhij,bjd->bihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), kv[:, :, 0, :512])
    torch.testing.assert_close(out, expected)
    for other, said in (
        ({"v": kv[..., :512].clone()}, "D, the size of a head, is 576; accepted are multiples of 8 from 8 to 256; or more where v is a view"),
        ({"v": kv[..., 64:]}, "D, the size of a head, is 576"),
        ({"softcap": 5.0}, "softcap is given with latent heads, which take none"),
        ({"mask": torch.ones(1, 1, 1, 40, dtype=torch.bool)}, "mask is given with latent heads"),
        ({"causal": "upper_left"}, "causal is 'upper_left', and v is a view of k, of latent heads"),
        ({"v": kv[..., :500]}, "value_size is 500 and D 576; both must be multiples of 16"),
        ({"v": kv[..., :432]}, "value_size is 432 and D 576"),
    ):
        more = {"q": q, "k": kv, "v": kv[..., :512], "order": "bshd", **other}
        with pytest.raises(ValueError, match=re.escape(said)):
            rooftop.attention(**more)


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [
        ({"q": torch.randn(2, 1, 16, 40)}, ValueError, "q has shape (2, 1, 16, 40) and kv (2, 9, 1, 80); they must be [B, Sq, H, D] and [B, Sk, Hk, D]"),
        ({"kv": torch.randn(2, 9, 3, 80)}, ValueError, "q has 16 heads and kv 3"),
        ({"kv": torch.randn(2, 9, 1, 80).half()}, TypeError, "q is torch.float32 and kv torch.float16; they must be alike, or kv torch.float8_e4m3fn"),
        ({"kv": torch.randn(2, 9, 1, 80).to(torch.float8_e4m3fn)}, TypeError, "kv torch.float8_e4m3fn and q of 16 bits"),
        ({"kv_scale": torch.ones(1)}, ValueError, "kv_scale is given, and kv is torch.float32"),
        ({"value_size": 8}, ValueError, "value_size is 8 and D 80"), ({"value_size": 64.0}, TypeError, "value_size is 64.0, a float"),
        ({"scale": 0.0}, ValueError, "scale is 0.0"), ({"causal": 1}, TypeError, "causal is 1"),
        ({"page_table": torch.zeros(2, 2, dtype=torch.int32)}, ValueError, "page_table needs cache_lengths"),
        ({"cache_lengths": torch.zeros(3, dtype=torch.int32)}, ValueError, "cache_lengths has shape (3,); it must be [2]"),
        ({"cache_lengths": torch.zeros(2)}, TypeError, "cache_lengths is torch.float32"),
    ],
)
def test_latent_attention_refuses_what_does_not_fit(other: dict[str, Any], error: type[Exception], said: str) -> None:
    whole = {"q": torch.randn(2, 1, 16, 80), "kv": torch.randn(2, 9, 1, 80), "value_size": 64, **other}
    with pytest.raises(error, match=re.escape(said)):
        rooftop.latent_attention(**whole)
