"""Calls of latent heads on the CPU: gradients, traces, what a hidden token may do."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import rooftop
from rooftop.core import registry
from rooftop.core.contract import metas_of
from rooftop.lab.check import judgement

OP = registry.op("latent_attention")
LENGTHS = torch.tensor([9, 13])


def tensors(grad: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 4, 288, generator=g, requires_grad=grad), torch.randn(2, 13, 1, 288, generator=g, requires_grad=grad)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_gradients_of_results_and_normalisers(lengths: torch.Tensor | None) -> None:
    """A GPU takes the same way: with a gradient of its own, not torch's of whatever ran."""
    q, kv = tensors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rooftop.latent_attention(q, kv, value_size=256, causal=True, cache_lengths=lengths, return_lse=True)
        flow = [torch.randn_like(t) for t in found]
        got = torch.autograd.grad(found, (q, kv), flow)
    wide = [t.detach().double().requires_grad_() for t in (q, kv)]
    want = torch.autograd.grad(OP.reference(*wide, None, lengths, None, 256, 0, 288**-0.5), wide, [t.double() for t in flow])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.float())
    if lengths is not None:
        assert not got[1][0, 9:].any()


def test_a_detached_view_is_no_value_of_latent_heads() -> None:
    q, kv = tensors()
    torch.testing.assert_close(rooftop.attention(q, kv, kv[..., :256]), rooftop.latent_attention(q, kv, value_size=256))
    with pytest.raises(ValueError, match="D, the size of a head, is 288"):
        rooftop.attention(q, kv, kv[..., :256].detach())
    with pytest.raises(ValueError, match=r"kv is torch\.float8_e4m3fn and requires a gradient"):
        rooftop.latent_attention(q.bfloat16(), kv.detach().to(torch.float8_e4m3fn).requires_grad_(), value_size=256)
    with pytest.raises(TypeError, match="return_lse is 1, a int"):
        rooftop.attention(q, kv, kv[..., :256], return_lse=1)  # type: ignore[arg-type]


def test_they_are_explained_compiled_and_transformed() -> None:
    q, kv = tensors(grad=False)
    want = rooftop.attention(q, kv, kv[..., :256], causal=True)
    assert "latent_attention on cpu" in str(rooftop.explain(rooftop.attention, q, kv, kv[..., :256]))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda q, kv: rooftop.attention(q, kv, kv[..., :256], causal=True), backend="eager")(q, kv), want)
    whole = torch.compile(lambda q, kv: rooftop.latent_attention(q, kv, value_size=256, causal=True), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(q, kv), want)
    again = kv.clone().requires_grad_()
    (one,) = torch.autograd.grad(rooftop.attention(q, again, again[..., :256], causal=True).sum(), again)
    torch.testing.assert_close(torch.func.grad(lambda kv: rooftop.attention(q, kv, kv[..., :256], causal=True).sum())(kv), one)


def test_a_hidden_token_may_make_a_result_nan_or_is_left_out() -> None:
    """The last token is NaN and only the last query sees it. In the reference, whose product multiplies it by 0, all results are NaN."""
    q, kv = (t.detach()[:1].clone() for t in tensors())
    kv[:, -1] = math.nan
    values = {"q": q, "kv": kv, "page_table": None, "cache_lengths": None, "kv_scale": None}
    options = {"value_size": 256, "right": 0, "scale": 288**-0.5}
    problem = OP.problem_of(metas_of(values), options)
    expected = judgement.expect_given(OP, problem, values, options)
    assert bool(expected.same["out"].isnan().all())
    clean = OP.reference(q, kv.nan_to_num(0.0), None, None, None, *options.values())[0]
    clean[:, -1] = math.nan  # it sees the token

    def right(out: torch.Tensor) -> bool:
        return judgement.judge_given(OP, problem, expected, {"out": out, "lse": expected.same["lse"]})["out"].ok

    half = clean.clone()
    half[:, 0] = math.nan
    assert right(expected.same["out"]) and right(clean) and right(half)
    assert not right(clean.nan_to_num(0.0)) and not right(clean + 1e-2) and not right(torch.zeros_like(clean))
