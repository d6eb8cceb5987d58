"""Every kind of model in Transformers, listed or not: what can be replaced computes the same, and the rest stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drop_in import _kinds

import rooftop

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
KINDS = sorted(_kinds.found())


def _result(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out = model(**_kinds.inputs(model))
    return next(t for n, t in out.items() if n != "loss" and isinstance(t, torch.Tensor) and t.is_floating_point() and t.dim() > 1)


def _loss_and_gradient(model: Any, **more: Any) -> torch.Tensor:
    """The loss, and the gradients of all parameters divided by the largest, in evaluation: nothing is dropped."""
    model.zero_grad()
    given = _kinds.inputs(model)
    labels = given["input_ids"].clone()
    labels[0, 2] = -100
    loss = model(**given, labels=labels, **more).loss
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return torch.cat((loss.detach()[None], flat / flat.abs().max()))


@pytest.mark.sampled("patched")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_model_is_as_before(kind: str) -> None:
    works = _kinds.works(kind)
    if isinstance(works, str):
        pytest.skip(works)
    try:
        model = _kinds.made(*works, "sdpa" if works[0]._supports_sdpa else "eager")
    except (KeyError, ValueError) as error:
        pytest.skip(f"takes no sdpa: {error}")
    want, keys = _result(model), list(model.state_dict())
    try:
        report = rooftop.patch(model, residual=True)
    except ValueError as error:
        assert "can be replaced" in str(error) and not rooftop.drop_in.is_patched(model)
        pytest.skip(str(error))
    try:
        got = _result(model)
    except TypeError as error:  # sparse patterns that the model makes masks of for its own functions alone
        assert "which may change the result" in str(error)
        pytest.skip(f"refused by name: {error}")
    assert float((got - want).abs().max()) <= 3e-5 * float(want.abs().max()), str(report)
    assert list(model.state_dict()) == keys
    if "fused_linear_cross_entropy" in report.replaced:
        plain = _kinds.made(*works, "sdpa" if works[0]._supports_sdpa else "eager")
        try:
            exact = _loss_and_gradient(plain)
        except RuntimeError:  # RWKV has no backward
            return
        got = _loss_and_gradient(model, skip_logits=True)
        apart = (got - exact).abs()
        assert float(apart[0]) <= 1e-5 * float(got[0]) and float(apart[1:].max()) <= 1e-4, str(report)
    rooftop.unpatch(model)
    assert torch.equal(_result(model), want)
