"""Public functions under autocast, and the options that patched models need."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rooftop


def _drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 64, generator=g), torch.randn(100, 64, generator=g), torch.randint(0, 100, (8,), generator=g)


def test_two_dtypes_meet_under_autocast_as_in_torch() -> None:
    """Products in its dtype, elementwise functions and norms in the wider one; without autocast they are refused."""
    x, w, t = _drawn()
    low = x.bfloat16()
    one = torch.tensor([8], dtype=torch.int32)
    calls: dict[str, tuple[Any, torch.dtype]] = {
        "linear_cross_entropy": (lambda: rooftop.linear_cross_entropy(low, w, t), torch.float32),
        "rms_norm": (lambda: rooftop.rms_norm(low, (64,), w[0], residual=x)[1], torch.float32),
        "swiglu": (lambda: rooftop.swiglu(low, x), torch.float32),
        "geglu": (lambda: rooftop.geglu(x, low), torch.float32),
        "grouped_matmul": (lambda: rooftop.grouped_matmul(low, w[None].transpose(1, 2), one), torch.bfloat16),
    }
    for name, (call, dtype) in calls.items():
        with pytest.raises((TypeError, ValueError), match=name):
            call()
        with torch.autocast("cpu", torch.bfloat16):
            assert call().dtype == dtype, name
    want = torch.nn.functional.cross_entropy((low.float() @ w.bfloat16().float().T).bfloat16().float(), t)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(rooftop.linear_cross_entropy(x, w, t), want, rtol=1e-3, atol=0)  # a sum may round the other way
        y, s = rooftop.rms_norm(low, (64,), w[0], residual=x)
    torch.testing.assert_close(s, low.float() + x)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(s, (64,), w[0], 2.0**-23))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offset_is_added_to_the_weight_in_float32(dtype: torch.dtype) -> None:
    x, w, _ = (t.to(dtype) if t.is_floating_point() else t for t in _drawn())
    weight = (w[0] * 2.0**-6).requires_grad_()  # beside 1 it would lose bits in 16
    got = rooftop.rms_norm(x, 64, weight, 1e-5, offset=1)
    exact = torch.nn.functional.rms_norm(x.double(), (64,), 1 + weight.double(), 1e-5)
    torch.testing.assert_close(got, exact.to(dtype))
    mine, theirs = (torch.autograd.grad(y.double().square().sum(), weight)[0] for y in (got, exact))
    torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)
    with pytest.raises(ValueError, match=r"^rms_norm: offset is 1 and weight is None; an offset is added to a weight$"):
        rooftop.rms_norm(x, 64, offset=1)
    with pytest.raises(TypeError, match=r"^rms_norm: offset is 'one', a str; it must be a finite number$"):
        rooftop.rms_norm(x, 64, weight, offset="one")  # type: ignore[arg-type]


@pytest.mark.parametrize("divisor", [3, 2.5, torch.tensor(3), torch.tensor([3.0])])
def test_logits_have_a_factor_and_the_sum_a_divisor(divisor: Any) -> None:
    x, w, t = _drawn()
    bias = w[:, 0].contiguous()
    leaves = [v.clone().requires_grad_() for v in (x, w, bias)]
    got = rooftop.linear_cross_entropy(*leaves[:2], t, bias=leaves[2], softcap=30.0, logit_scale=0.3, reduction="sum", divisor=divisor)
    exact = [v.double().requires_grad_() for v in (x, w, bias)]
    z = 30 * ((exact[0] @ exact[1].T + exact[2]) * 0.3 / 30).tanh()
    want = torch.nn.functional.cross_entropy(z, t, reduction="sum") / float(divisor)
    assert float(got) == pytest.approx(float(want), rel=1e-5)
    for a, b in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, exact), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"divisor": 3}, "divisor is given with reduction='mean'; it divides the sum, reduction='sum'$"),
        ({"divisor": 0, "reduction": "sum"}, "divisor is 0; it must be a number other than 0, or a tensor of one element$"),
        ({"divisor": torch.ones(2), "reduction": "sum"}, r"divisor has shape \(2,\); it must be a number or a tensor of one element$"),
        ({"logit_scale": 0.0}, "logit_scale is 0; it must be a finite number other than 0$"),
        ({"logit_scale": float("nan")}, "logit_scale is nan; it must be a finite number"),
    ],
)
def test_what_these_options_refuse(more: dict[str, Any], message: str) -> None:
    x, w, t = _drawn()
    with pytest.raises(ValueError, match=rf"^linear_cross_entropy: {message}"):
        rooftop.linear_cross_entropy(x, w, t, **more)
