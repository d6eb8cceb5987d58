"""What the public function of attention promises beyond its cases: packed sequences, layouts, merged parts, bad input."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch

import rooftop
from rooftop.core.contract import metas_of


def _qkv(b: int = 2, sq: int = 9, sk: int = 11, h: int = 4, hk: int = 2, d: int = 16, **options: Any) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(b, s, n, d, **options) for s, n in ((sq, h), (sk, hk), (sk, hk)))


def test_heads_before_tokens_give_a_result_that_lies_so() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in _qkv(dtype=torch.bfloat16))
    got = rooftop.attention(q, k, v)
    assert got.stride() == q.stride()
    torch.testing.assert_close(got, rooftop.attention(*(x.contiguous() for x in (q, k, v))))


def test_packed_sequences_are_those_sequences_alone() -> None:
    q, k, v = (x[0] for x in _qkv(b=1, sq=20, sk=30))
    cu_q, cu_k = torch.tensor([0, 7, 7, 20]), torch.tensor([0, 10, 12, 30])
    out, lse = rooftop.attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True)
    for i in range(3):
        a, b = (slice(int(c[i]), int(c[i + 1])) for c in (cu_q, cu_k))
        want, norm = rooftop.attention(q[None, a], k[None, b], v[None, b], causal=True, return_lse=True)
        torch.testing.assert_close(out[a], want[0])
        torch.testing.assert_close(lse[:, a], norm[0])


def test_queries_of_no_sequence_and_rows_that_see_nothing_are_zero() -> None:
    q, k, v = (x[0] for x in _qkv(b=1, sq=20, sk=30))
    bounds = torch.tensor([4, 10])
    out, lse = rooftop.attention(q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, return_lse=True)
    assert not out[:4].any() and not out[10:].any() and bool(out[4:10].any())
    assert bool((lse[:, :4] == float("-inf")).all())
    q, k, v = _qkv(sq=9, sk=4)
    out = rooftop.attention(q, k, v, causal=True)
    assert not out[:, :5].any() and bool(out.isfinite().all())


def test_a_paged_cache_is_the_contiguous_cache() -> None:
    q, k, v = _qkv(b=2, sq=1, sk=12)
    table = torch.tensor([[3, 1, 0], [2, 5, 4]])
    pages = [x.new_full((6, 4, *x.shape[2:]), float("nan")) for x in (k, v)]
    for to, x in zip(pages, (k, v), strict=True):
        for b in range(2):
            to[table[b]] = x[b].view(3, 4, *x.shape[2:])
    lengths = torch.tensor([12, 5])
    got = rooftop.attention(q, *pages, causal=True, page_table=table, cache_lengths=lengths)
    torch.testing.assert_close(got, rooftop.attention(q, k, v, causal=True, cache_lengths=lengths))
    torch.testing.assert_close(got[1:], rooftop.attention(q[1:], k[1:, :5], v[1:, :5], causal=True))


def test_dropout_keeps_its_share_and_the_backward_drops_the_same() -> None:
    q, k, _ = _qkv(b=1, sq=64, sk=64, h=1, hk=1, d=64)
    one = torch.eye(64)[None, :, None].contiguous().requires_grad_()
    weights = rooftop.attention(q, k, one, dropout_p=0.25, seed=3)[0, :, 0]
    dropped = weights == 0
    assert abs(float(dropped.float().mean()) - 0.25) < 0.05
    (grad,) = torch.autograd.grad(weights.sum(0)[5], one)
    torch.testing.assert_close(grad[0, :, 0, 5], weights.sum(0))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"q": torch.zeros(2, 9, 3, 16)}, ValueError, "3 heads and k 2"),
        ({"k": torch.zeros(2, 11, 2, 12)}, ValueError, "must be"),
        ({"q": torch.zeros(2, 9, 4, 16, dtype=torch.float64)}, TypeError, "float64"),
        ({"k": torch.zeros(2, 11, 2, 16, dtype=torch.bfloat16)}, TypeError, "alike"),
        ({"q": torch.zeros(2, 9, 4, 512), "k": torch.zeros(2, 11, 2, 512)}, ValueError, "multiples of 8 from 8 to 256"),
        ({"window": (-2, 0)}, ValueError, "window"),
        ({"scale": 0.0}, ValueError, "above 0"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"dropout_p": 1.0}, ValueError, "below 1"),
        ({"bias": torch.zeros(2, 4, 9, 12)}, ValueError, "bias"),
        ({"mask": torch.zeros(2, 4, 9, 11)}, TypeError, "torch.bool"),
        ({"cu_seqlens_q": torch.tensor([0, 9])}, ValueError, "together"),
        ({"page_table": torch.zeros(2, 3, dtype=torch.int32)}, ValueError, "cache_lengths"),
        ({"sinks": torch.zeros(3)}, ValueError, "sinks"),
        ({"k_scale": torch.ones(1)}, ValueError, "k_scale"),
        (
            {"page_table": torch.zeros(2, 1, dtype=torch.int32), "cache_lengths": torch.ones(2, dtype=torch.int32), "dropout_p": 0.1}, ValueError,
            "^attention: dropout_p is given with page_table; a cache is read without dropout$",
        ),
        ({n: torch.zeros(2, 11, 2, 16).to(torch.float8_e5m2) for n in "kv"}, TypeError, "^attention: k is torch.float8_e5m2; accepted are .*_e4m3fn$"),
        ({"v": torch.zeros(2, 11, 2, 264)}, ValueError, "^attention: Dv, the size of a head, is 264; accepted"),
        ({"causal": 1}, TypeError, "causal"),
        ({"return_lse": "no"}, TypeError, "return_lse is 'no', a str; it must be True or False"),
        ({"deterministic": None}, TypeError, "deterministic is None, a NoneType; it must be True or False"),
        ({"scale": 1e-50}, ValueError, "scale is 1e-50; it must be a finite number above 0 that a float32 holds, at least 1.17"),
        ({"softcap": 1e-50}, ValueError, "softcap is 1e-50; .* that a float32 holds, at least 1.17"),
        ({"softcap": 1e39}, ValueError, r"softcap is 1e\+39; it must be a finite number above 0 that a float32 holds, or None$"),
    ],
)
def test_bad_input_is_refused_by_name(change: dict[str, Any], error: type[Exception], said: str) -> None:
    q, k, v = _qkv()
    with pytest.raises(error, match=said):
        rooftop.attention(**{"q": q, "k": k, "v": v, **change})


def test_debug_tells_bounds_and_pages_that_do_not_exist() -> None:
    q, k, v = (x[0] for x in _qkv(b=1))
    bounds = torch.tensor([0, 8, 4, 9])
    with rooftop.debug(), pytest.raises(IndexError, match="cu_seqlens_q"):
        rooftop.attention(q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds)


def test_ranges_are_the_mask_that_they_say() -> None:
    q, k, v = _qkv(sq=9, sk=9)
    lengths = torch.tensor([9, 6])
    begin, end = rooftop.attention_ranges(9, 9, lengths, causal=True, window=(4, 0))
    mask = rooftop.attention_mask(9, 9, lengths, causal=True, window=(4, 0))
    torch.testing.assert_close(rooftop.attention(q, k, v, mask=(begin, end)), rooftop.attention(q, k, v, mask=mask))
    with pytest.raises(ValueError, match="a tuple of 1"):
        rooftop.attention(q, k, v, mask=(begin,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"mask\[1\] is torch.int64"):
        rooftop.attention(q, k, v, mask=(begin, end.long()))
    with rooftop.debug(), pytest.raises(IndexError, match="end of mask"):
        rooftop.attention(q, k, v, mask=(begin, end + 9))


def test_merged_parts_are_the_whole() -> None:
    q, k, v = _qkv(sk=12)
    whole, lse = rooftop.attention(q, k, v, return_lse=True)
    parts = [rooftop.attention(q, k[:, i : i + 4], v[:, i : i + 4], return_lse=True) for i in (0, 4, 8)]
    out, norm = parts[0]
    for part in parts[1:]:
        out, norm = rooftop.merge_attention(out, norm, *part)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(norm, lse)
    with pytest.raises(ValueError, match="lse_b has shape"):
        rooftop.merge_attention(out, norm, out, norm.mT)


def _half_seen() -> tuple[list[torch.Tensor], torch.Tensor]:
    """Two parts, of which the second sees nothing for every other query, and holds NaN there."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(2, 6, 3, 16, generator=generator) for _ in range(2))
    lse_a, lse_b = (torch.randn(2, 3, 6, generator=generator) for _ in range(2))
    b[:, ::2], lse_b[..., ::2] = float("nan"), float("-inf")
    return [a, lse_a, b, lse_b], a


@pytest.mark.parametrize("turned", [False, True])
def test_a_part_that_sees_nothing_may_hold_nan(turned: bool) -> None:
    parts, a = _half_seen()
    parts = parts[2:] + parts[:2] if turned else parts
    given = [t.clone().requires_grad_() for t in parts]
    out, lse = rooftop.merge_attention(*given)
    torch.testing.assert_close(out[:, ::2], a[:, ::2])
    assert bool(out.isfinite().all() & lse.isfinite().all())
    (out.square().sum() + lse.sum()).backward()
    assert all(bool(t.grad.isfinite().all()) for t in given)
    both = [float("nan") * a, torch.full((2, 3, 6), float("-inf"))]
    out, lse = rooftop.merge_attention(*both, *both)
    assert not out.any() and bool((lse == float("-inf")).all())


def test_the_kernel_of_merging_takes_nan_of_a_part_that_sees_nothing() -> None:
    pytest.importorskip("triton")
    from rooftop.core.call import select
    from rooftop.core.contract import metas_of
    from rooftop.core.spec import TARGETS
    from rooftop.lab.check import checker
    from rooftop.ops.merge_attention import OP

    tensors = dict(zip(OP.tensor_names, _half_seen()[0], strict=True))
    call = select(OP, OP.problem_of(metas_of(tensors), {}, TARGETS[90]), "triton").call
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64).run(tensors, {}, 0xFF)
    for value, want in zip((got["out"], got["lse"]), OP.reference(*tensors.values()), strict=True):
        torch.testing.assert_close(value, want)


def test_a_cache_of_8_bits_is_its_values() -> None:
    q, k, v = _qkv(sq=1, dtype=torch.bfloat16)
    codes = [(x / 0.5).to(torch.float8_e4m3fn) for x in (k, v)]
    scale = torch.tensor([0.5])
    got = rooftop.attention(q, *codes, k_scale=scale, v_scale=scale)
    torch.testing.assert_close(got, rooftop.attention(q, *(c.bfloat16() * 0.5 for c in codes), return_lse=True)[0])  # the reference, too
    with pytest.raises(ValueError, match="page_table"):
        rooftop.attention(q, k, v, dropout_p=0.5, page_table=torch.zeros(2, 1, dtype=torch.int32), cache_lengths=torch.tensor([1, 1]))


@pytest.mark.parametrize(("rows", "keys"), [(9, 9), (5, 9), (9, 5)])
@pytest.mark.parametrize("how", ["plain", "causal", "mask", "added", "group", "one head"])
def test_the_function_of_torch_is_torchs(how: str, rows: int, keys: int) -> None:
    torch.manual_seed(1)
    shape = (2, 3) if how == "mask" else (2,)
    heads, key_heads = (4, 2) if how == "group" else (4, 4)
    q = torch.randn(*shape, heads, rows, 16)
    k, v = torch.randn(*shape, key_heads, keys, 16), torch.randn(*shape, key_heads, keys, 24)
    options: dict[str, Any] = {"is_causal": how == "causal", "enable_gqa": how == "group"}
    if how == "mask":
        options["attn_mask"] = torch.rand(2, 1, 1, rows, keys) > 0.3
        options["attn_mask"][..., 0] = True
    if how == "added":
        options["attn_mask"] = torch.randn(rows, keys)
    if how == "one head":
        q, k, v = (x[:, 0] for x in (q, k, v))
    got = rooftop.drop_in.scaled_dot_product_attention(q, k, v, scale=0.3, **options)
    torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3, **options))


def test_the_function_of_torch_hands_on_what_it_does_not_take() -> None:
    q = torch.randn(1, 2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(rooftop.drop_in.scaled_dot_product_attention(q, q, q), torch.nn.functional.scaled_dot_product_attention(q, q, q))
    q = torch.randn(1, 2, 5, 16)
    with pytest.raises(ValueError, match="attn_mask has shape"):
        rooftop.drop_in.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(3, 5))
    four = q.repeat(1, 2, 1, 1)
    with pytest.raises(ValueError, match="enable_gqa"):
        rooftop.drop_in.scaled_dot_product_attention(four, q, q)
    with pytest.raises(ValueError, match="must divide the query's"):
        rooftop.drop_in.scaled_dot_product_attention(four, four[:, :3], q, enable_gqa=True)
    with pytest.raises(ValueError, match="before the heads"):
        rooftop.drop_in.scaled_dot_product_attention(q.expand(3, 2, 5, 16), q.expand(2, 2, 5, 16), q)
    with pytest.raises(TypeError, match="attn_mask is a list; it must be a tensor, or None"):
        rooftop.drop_in.scaled_dot_product_attention(q, q, q, attn_mask=[[1.0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scale is 'x', a str; it must be a number, or None"):
        rooftop.drop_in.scaled_dot_product_attention(q, q, q, scale="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale is a whole number of 1329 bits"):
        rooftop.drop_in.scaled_dot_product_attention(q, q, q, scale=10**400)
    for more in ({"dropout_p": 1.0}, {"scale": float("inf")}, {"scale": 0.0}, {"scale": 1e-50}):
        got, want = (f(q, q, q, **more) for f in (rooftop.drop_in.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
        torch.testing.assert_close(got, want, equal_nan=True)
    torch.manual_seed(3)
    dropped = rooftop.drop_in.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(3)
    torch.testing.assert_close(rooftop.drop_in.scaled_dot_product_attention(q, q, q, dropout_p=0.5), dropped)


@pytest.mark.parametrize(("change", "error", "said"), [
    ({"is_causal": "no"}, TypeError, "is_causal is 'no', a str; it must be True or False"),
    ({"enable_gqa": 1}, TypeError, "enable_gqa is 1, a int; it must be True or False"),
    ({"dropout_p": "x"}, TypeError, "dropout_p is 'x', a str; it must be 0 to 1"), ({"dropout_p": 1.5}, ValueError, "dropout_p is 1.5; it must be 0 to 1"),
    ({"value": torch.zeros(1, 2, 6, 16)}, ValueError, r"query has shape \(1, 2, 5, 16\), key \(1, 2, 7, 16\) and value \(1, 2, 6, 16\); they must be"),
    ({"key": torch.zeros(1, 2, 7, 8)}, ValueError, r"query has shape \(1, 2, 5, 16\), key \(1, 2, 7, 8\)"),
    ({"attn_mask": torch.zeros(5, 7, device="meta")}, ValueError, "query lies on cpu and attn_mask on meta"),
    ({"attn_mask": torch.zeros(5, 7).half()}, TypeError, "attn_mask is torch.float16; accepted are torch.bool, torch.float32$"),
])
def test_the_function_of_torch_refuses_by_its_own_names(change: dict[str, Any], error: type[Exception], said: str) -> None:
    given = {"query": torch.zeros(1, 2, 5, 16), "key": torch.zeros(1, 2, 7, 16), "value": torch.zeros(1, 2, 7, 16)}
    with pytest.raises(error, match=f"^scaled_dot_product_attention: {said}"):
        rooftop.drop_in.scaled_dot_product_attention(**{**given, **change})


@pytest.mark.parametrize(("query", "key", "value", "more"), [
    ((2, 4), (1, 4), (1, 4), {}), ((1, 4), (2, 4), (2, 4), {}), ((2, 4), (2, 4), (1, 4), {}), ((2, 4), (2, 1), (2, 1), {}), ((2, 4), (2, 4), (2, 1), {}),
    ((2, 1), (2, 4), (2, 4), {}), ((2, 1), (2, 1), (2, 4), {}), ((4,), (2, 4), (4,), {}), ((3, 2, 4), (3, 1, 4), (1, 2, 4), {"is_causal": True}),
    ((2, 4), (2, 4), (2, 2), {"enable_gqa": True}), ((2, 4), (1, 2), (1, 2), {"enable_gqa": True}),
    ((2, 4), (1, 1), (1, 1), {"attn_mask": torch.arange(70.0).view(2, 1, 5, 7).sin()}),
])
def test_the_function_of_torch_broadcasts_as_torch_does(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], more: dict[str, Any]) -> None:
    torch.manual_seed(4)
    given = [torch.randn(*lead, n, 16, requires_grad=True) for lead, n in ((query, 5), (key, 7), (value, 7))]
    got, want = (f(*given, **more) for f in (rooftop.drop_in.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), given) for out in (got, want)))


def test_the_function_of_torch_under_autocast_has_its_dtype() -> None:
    q, k, v = (t.transpose(1, 2) for t in _qkv(hk=4))
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (f(q, k.bfloat16(), v) for f in (rooftop.drop_in.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, rooftop.drop_in.scaled_dot_product_attention(*(t.bfloat16() for t in (q, k, v))))


def test_a_model_of_transformers_gets_its_attention() -> None:
    q, k, v = (x.transpose(1, 2) for x in _qkv(sq=9, sk=9))
    module = types.SimpleNamespace(is_causal=True)
    out, weights = rooftop.drop_in.transformers_attention(module, q, k, v, None, scaling=0.2, sliding_window=4)
    assert weights is None
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2, enable_gqa=True)
    torch.testing.assert_close(out, want.transpose(1, 2))
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    torch.testing.assert_close(rooftop.drop_in.transformers_attention(module, q, k, v, mask, scaling=0.2)[0], out)
    added = torch.zeros(2, 1, 9, 9).masked_fill(~mask, float("-inf"))
    torch.testing.assert_close(rooftop.drop_in.transformers_attention(module, q, k, v, added, scaling=0.2)[0], out)
    sinks = torch.tensor([0.5, -0.5, 0.0, 1.0])
    got, _ = rooftop.drop_in.transformers_attention(module, q, k, v, mask, scaling=0.2, softcap=3.0, s_aux=sinks)
    torch.testing.assert_close(got, rooftop.attention(*(x.transpose(1, 2) for x in (q, k, v)), scale=0.2, softcap=3.0, sinks=sinks, causal=True))


def test_a_dropped_weight_is_0_also_where_it_would_be_nan() -> None:
    """Kernels leave it out; a product with 0 would be NaN."""
    q = torch.full((1, 1, 1, 8), math.nan, dtype=torch.bfloat16)
    k, v = torch.ones(1, 1, 1, 8, dtype=torch.bfloat16), torch.ones(1, 1, 1, 8, dtype=torch.bfloat16, requires_grad=True)
    seen = set()
    for seed in range(12):
        out = rooftop.attention(q, k, v, dropout_p=0.5, seed=seed)
        (dv,) = torch.autograd.grad(out, [v], torch.ones_like(out))
        assert bool(out.isnan().all())
        assert bool(dv.isnan().all()) or bool((dv == 0).all())
        seen.add(bool(dv.isnan().all()))
    assert seen == {True, False}


def test_gradients_of_normalisers_near_100_are_as_exact_as_of_small_ones() -> None:
    """Shares relative to a rounded lse of 100 would err by 4e-6."""
    from rooftop.ops.merge_attention import OP

    g = torch.Generator().manual_seed(0)
    a, b, flow = (torch.randn(7, 7, 1, 1, generator=g) for _ in range(3))
    lse_a, lse_b, dlse = torch.randn(7, 1, 7, generator=g) + 90, torch.randn(7, 1, 7, generator=g) + 100, torch.randn(7, 1, 7, generator=g)
    assert OP.grad
    got = OP.grad.backward(flow, dlse, a, lse_a, b, lse_b)
    exact = OP.grad.backward(*(t.double() for t in (flow, dlse, a, lse_a, b, lse_b)))
    for x, y in zip(got, exact, strict=True):
        assert float((x - y).abs().max()) < 4e-7


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_hidden_pair_passes_no_nan_to_a_gradient_and_may_in_plain_arithmetic(softcap: float | None) -> None:
    """Query 7 is NaN and sees key 7 alone: the gradients of other keys are numbers."""
    from rooftop.ops.attention import OP

    g = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(2, 12, 2, 8, generator=g, dtype=torch.float64) for _ in range(4))
    q[0, 7, 0, 3] = math.nan
    options = (0, 0, 0.3, softcap or 0.0, 0.0, 0)
    none = (None,) * 11
    out, lse = OP.reference(q, k, v, *none, *options)
    assert OP.grad
    rest = (dout, None, q, k, v, out, lse, *none, *none[:2], *options)
    dq, dk, dv, *_ = OP.grad.backward(*rest)
    _, plain_dk, plain_dv, *_ = OP.grad.judging.undefined(*rest)
    bad = torch.zeros(2, 12, 2, dtype=torch.bool)
    bad[0, 7, 0] = True
    assert bool((dq.isnan().any(-1) == bad).all()) and bool((dk.isnan().any(-1) == bad).all()) and bool((dv.isnan().any(-1) == bad).all())
    assert int(plain_dk.isnan().any(-1).sum()) > 1 and int(plain_dv.isnan().any(-1).sum()) > 1
    clean = q.nan_to_num(0.0)
    out, lse = OP.reference(clean, k, v, *none, *options)
    want = OP.grad.backward(dout, None, clean, k, v, out, lse, *none, *none[:2], *options)
    for x, y in zip((dq, dk, dv), want, strict=False):
        torch.testing.assert_close(x[~bad], y[~bad])


def test_what_a_hidden_pair_may_spoil_is_judged_by_what_it_is_without_it() -> None:
    """The last key is NaN and only the last query sees it. In plain arithmetic all of dq is NaN."""
    from rooftop.lab.check import judgement
    from rooftop.ops.attention import OP

    assert OP.bwd and OP.grad
    g = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(1, 256, 2, 16, generator=g) for _ in range(4))
    k[:, 255] = math.nan
    options = (-1, 0, 0.25, 0.0, 0.0, 1)
    none = (None,) * 11
    out, lse = OP.reference(q, k, v, *none, *options)
    values = dict(zip(OP.bwd.tensor_names, (dout, None, q, k, v, out, lse, *none, None, None), strict=True))
    named = dict(zip(OP.bwd.option_names, options, strict=True))
    problem = OP.bwd.problem_of(metas_of(values), named)
    expected = judgement.expect_given(OP.bwd, problem, values, named)
    assert int(expected.same["dq"].isnan().any(-1).sum()) == 2

    def right(**change: Any) -> bool:
        made = {**{n: None if t is None else t.clone() for n, t in expected.same.items()}, **change}
        return all(v.ok for v in judgement.judge_given(OP.bwd, problem, expected, made).values())

    dq = expected.same["dq"]
    assert right() and right(dq=torch.full_like(dq, math.nan))
    assert right(dq=dq + 1e-8 * dq.abs())
    assert not right(dq=dq + 1e-3)
    assert not right(dq=dq.nan_to_num(0.0)) and not right(dv=torch.zeros_like(dq))
