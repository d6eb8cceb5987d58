"""One rule of layouts: [B, S, H, D] unless `order` names another, and no shape that looks like another passes without a name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import rooftop


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def test_a_decoding_step_needs_no_name_of_a_layout() -> None:
    q, k, v = heads(2, 5, 4, 16), heads(2, 5, 2, 16), heads(2, 5, 2, 16)
    table = torch.outer(torch.arange(5.0), torch.rand(8))
    turned_q, turned_k = rooftop.rope(q, k, table.cos(), table.sin())
    k_cache, v_cache = torch.zeros(2, 8, 2, 16), torch.zeros(2, 8, 2, 16)
    rooftop.append_kv(k_cache, v_cache, turned_k, v, torch.zeros(2, dtype=torch.int32))
    rooftop.rope_(q, k, table.cos(), table.sin())
    assert torch.equal(q, turned_q) and torch.equal(k, turned_k)
    out = rooftop.attention(turned_q, k_cache[:, :5], v_cache[:, :5], causal=True)
    want = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(out, want)


def test_heads_first_is_named_in_all_of_them() -> None:
    q, k, v = heads(2, 4, 5, 16), heads(2, 2, 5, 16), heads(2, 2, 5, 16)
    out, lse = rooftop.attention(q, k, v, order="bhsd", return_lse=True)
    want, want_lse = rooftop.attention(*(t.transpose(1, 2) for t in (q, k, v)), return_lse=True)
    assert out.shape == q.shape and torch.equal(out, want.transpose(1, 2)) and torch.equal(lse, want_lse)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    table = torch.outer(torch.arange(5.0), torch.rand(8))
    for order in ("bhsd", "bshd"):
        given = q if order == "bhsd" else q.transpose(1, 2)
        found = rooftop.rope(given, None, table.cos(), table.sin(), order=order)
        assert torch.equal(found if order == "bhsd" else found.transpose(1, 2), rooftop.rope(q, None, table.cos(), table.sin(), order="bhsd"))
    packed = rooftop.attention(*(t[0] for t in (q, k, v)), order="bhsd", cu_seqlens_q=torch.tensor([0, 5]), cu_seqlens_k=torch.tensor([0, 5]))
    torch.testing.assert_close(packed, out[0])


@pytest.mark.parametrize(("q", "k"), [
    ((1, 32, 1024, 64), (1, 32, 1024, 64)), ((1, 8, 40, 64), (1, 2, 40, 64)), ((1, 8, 1, 64), (1, 2, 40, 64)), ((2, 12, 100, 64), (2, 12, 7, 64)),
    ((2, 12, 7, 64), (2, 12, 100, 64)),
])
def test_tensors_of_sdpa_do_not_enter_unnoticed(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    a, b = torch.empty(q, device="meta"), torch.empty(k, device="meta")
    with pytest.raises(ValueError, match=r"^attention: q has shape \(.*\), which look like \[B, heads, tokens, D\]: give order='bhsd'[^\n]*$"):
        rooftop.attention(a, b, b)


@pytest.mark.parametrize(("q", "k"), [
    ((1, 1024, 32, 64), (1, 1024, 32, 64)), ((1, 1, 32, 64), (1, 77, 8, 64)), ((2, 128, 128, 64), (2, 128, 128, 64)), ((2, 64, 16, 64), (2, 16, 16, 64)),
    ((1, 4, 12, 64), (1, 4, 12, 64)),
])
def test_tokens_first_needs_no_name(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    a, b = torch.randn(q), torch.randn(k)
    assert rooftop.attention(a, b, b).shape == a.shape


def test_functions_that_know_their_layout_take_every_shape() -> None:
    q, k = torch.randn(1, 32, 16, 64), torch.randn(1, 32, 8, 64)  # more heads than tokens, and twice as many queries as keys
    torch.testing.assert_close(rooftop.drop_in.scaled_dot_product_attention(q, k, k), F.scaled_dot_product_attention(q, k, k))
    with pytest.raises(ValueError, match="give order='bhsd'"):
        rooftop.attention(q.transpose(1, 2), k.transpose(1, 2), k.transpose(1, 2))
    torch.testing.assert_close(rooftop.attention(q, k, k, order="bhsd"), F.scaled_dot_product_attention(q, k, k))


def test_tables_tell_the_layout_of_what_is_rotated() -> None:
    table = torch.rand(9, 8)
    with pytest.raises(ValueError, match=r"^rope: q has shape \(1, 4, 9, 16\) and cos \(9, 8\), with a row for each of 9: give order='bhsd'"):
        rooftop.rope(heads(1, 4, 9, 16), None, table, table)
    with pytest.raises(ValueError, match=r"^rope_: q has shape \(1, 4, 9, 16\)"):
        rooftop.rope_(heads(1, 4, 9, 16), None, table, table)
    assert rooftop.rope(heads(1, 4, 9, 16), None, table, table, order="bshd").shape == (1, 4, 9, 16)


@pytest.mark.parametrize("call", [lambda o: rooftop.attention(*[heads(1, 4, 2, 8)] * 3, order=o), lambda o: rooftop.rope(heads(1, 4, 2, 8), order=o)])
def test_a_layout_that_does_not_exist_is_named(call: Any) -> None:
    with pytest.raises(ValueError, match=r"order is 'sbhd'; it must be one of 'bshd', 'bhsd'"):
        call("sbhd")


# -- where causal attention of unequal lengths begins ---------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 8), (8, 3), (1, 6), (6, 1)])
@pytest.mark.parametrize("extra", [False, True])
def test_causal_says_its_corner(queries: int, keys: int, extra: bool) -> None:
    q, k, v = heads(2, queries, 4, 16), heads(2, keys, 2, 16), heads(2, keys, 2, 16)
    bias = torch.randn(1, 4, queries, keys) if extra else None
    mask = torch.rand(2, 1, queries, keys) > 0.2 if extra else None

    def of(corner: str) -> torch.Tensor:
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(0 if corner == "upper_left" else keys - queries)
        return rooftop.attention(q, k, v, bias=bias, mask=seen.expand(2, 1, -1, -1) & (True if mask is None else mask))

    for corner in ("upper_left", "lower_right"):
        torch.testing.assert_close(rooftop.attention(q, k, v, causal=corner, bias=bias, mask=mask), of(corner))
    assert torch.equal(rooftop.attention(q, k, v, causal=True, bias=bias, mask=mask), rooftop.attention(q, k, v, causal="lower_right", bias=bias, mask=mask))


def test_upper_left_is_torchs_is_causal_and_has_gradients() -> None:
    q, k, v = (heads(1, n, 2, 16).requires_grad_() for n in (4, 7, 7))
    out = rooftop.attention(q, k, v, causal="upper_left")
    want = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out, want)
    flow = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), flow), torch.autograd.grad(want, (q, k, v), flow))


def test_upper_left_with_a_window_and_ranges() -> None:
    q, k, v = heads(1, 4, 2, 16), heads(1, 9, 2, 16), heads(1, 9, 2, 16)
    i, j = torch.arange(4)[:, None], torch.arange(9)
    want = rooftop.attention(q, k, v, mask=((j <= i) & (j >= i - 1))[None, None])
    torch.testing.assert_close(rooftop.attention(q, k, v, causal="upper_left", window=(1, 0)), want)
    begin, end = torch.zeros(1, 4, dtype=torch.int32), torch.tensor([[1, 9, 2, 9]], dtype=torch.int32)
    want = rooftop.attention(q, k, v, mask=((j <= i) & (j < end[0][:, None]))[None, None])
    torch.testing.assert_close(rooftop.attention(q, k, v, causal="upper_left", mask=(begin, end)), want)


@pytest.mark.parametrize(("more", "error", "said"), [
    ({"causal": "left"}, ValueError, "causal is 'left'; it must be True, False, 'upper_left' or 'lower_right'"),
    ({"causal": 1}, TypeError, "causal is 1, a int; it must be True, False, 'upper_left' or 'lower_right'"),
    ({"causal": "upper_left", "cache_lengths": torch.tensor([3])}, ValueError, "causal is 'upper_left' with cu_seqlens, page_table or cache_lengths"),
    ({"causal": "upper_left", "window": (1, 0)}, ValueError, "with 9 queries and 4 keys; a window or alibi_slopes needs a key for each query"),
])
def test_corners_that_are_none_are_refused(more: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        rooftop.attention(heads(1, 9, 2, 16), heads(1, 4, 2, 16), heads(1, 4, 2, 16), **more)
