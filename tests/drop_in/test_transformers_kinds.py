"""Every kind of model in Transformers that takes its attention interface computes the same with ours as with its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drop_in import _kinds

import rooftop

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")

KINDS = sorted(_kinds.found())


def _calls(model: Any) -> Iterator[tuple[str, dict[str, Any], torch.Tensor | None]]:
    """(what, the arguments, which rows of the result count: those of padding are of no use)."""
    given, known = _kinds.inputs(model), inspect.signature(model.forward).parameters
    yield "as it is", given, None
    if "input_ids" not in given or "attention_mask" not in known:
        return
    decodes = "decoder_input_ids" in given
    for side, padding in (("padded right", slice(-3, None)), ("padded left", slice(0, 3))):
        mask = torch.ones_like(given["input_ids"])
        mask[0, padding] = 0
        yield side, {**given, "attention_mask": mask}, None if decodes else mask.bool()
    if "position_ids" in known and not decodes:
        yield "packed", {**given, "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]] * 2), "use_cache": False}, None


def _far(got: torch.Tensor, want: torch.Tensor, rows: torch.Tensor | None) -> float:
    apart = (got.double() - want.double()).abs()
    return float((apart if rows is None or apart.dim() != 3 else apart[rows]).max() / want.abs().max())


def _result(model: Any, given: dict[str, Any]) -> torch.Tensor:
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    given = {n: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in given.items()}
    return next(t for n, t in model(**given).items() if n != "loss" and isinstance(t, torch.Tensor) and t.is_floating_point() and t.dim() > 1)


def _gradient(model: Any, given: dict[str, Any]) -> torch.Tensor | None:
    """Of all parameters that have one, of the squares of the result; None where the kind has no backward."""
    model.zero_grad()
    try:
        _result(model, given).square().mean().backward()
    except RuntimeError:
        return None
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.sampled("models")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_model_is_as_in_eager(kind: str) -> None:
    """Within four times eager's own error against float64, its gradient too. Where Transformers' own sdpa departs from eager, ours may be
    as its sdpa."""
    works = _kinds.works(kind)
    if isinstance(works, str):
        pytest.skip(works)
    cls, config = works
    if not _kinds.takes_interface(cls):
        pytest.skip("does not take the attention interface")
    rooftop.drop_in.register_transformers()
    try:
        ours = _kinds.made(cls, config, "rooftop")
    except KeyError:
        pytest.skip("chooses among attention classes of its own, and has none of this name")
    eager, exact, own = _kinds.made(cls, config, "eager"), _kinds.made(cls, config, "eager", torch.float64), 0.0
    for what, given, rows in _calls(eager):
        with torch.no_grad():
            want = _result(eager, given)
            try:
                got = _result(ours, given)
            except TypeError as error:  # sparse patterns that the model makes masks of for its own functions alone
                assert "which may change the result" in str(error)
                pytest.skip(f"refused by name: {error}")
            try:
                true = _result(exact, given)
            except RuntimeError:
                true = torch.full_like(want, torch.nan)  # some models have parts that are float32 whatever they are asked for
            finite = bool(true.isfinite().all())  # rows that are masked throughout overflow in float64
            own = max(own, _far(want, true, rows)) if finite else own
            reference, allowed = (true, max(4 * own, 3e-6)) if finite else (want, max(8 * own, 2e-5))
            if _far(got, reference, rows) > allowed:
                assert cls._supports_sdpa, what
                sdpa = _result(_kinds.made(cls, config, "sdpa"), given)
                assert _far(sdpa, want, rows) > 1e-3, what
                assert _far(got, sdpa, rows) <= max(8 * own, 2e-5), what
                return
    given = _kinds.inputs(eager)
    found = [_gradient(m, given) for m in (ours, eager, exact)]
    if found[0] is None or found[1] is None:
        assert found[0] is found[1]
        return
    true_gradient = found[1] if found[2] is None else found[2]
    assert _far(found[0], true_gradient, None) <= max(4 * _far(found[1], true_gradient, None), 2e-5)


@pytest.mark.sampled("slow")
def test_there_are_kinds_enough() -> None:
    """What the test above skips is the exception: this one cannot be skipped away."""
    tried = [_kinds.works(kind) for kind in KINDS[:: len(KINDS) // 24]]
    assert sum(not isinstance(works, str) and _kinds.takes_interface(works[0]) for works in tried) >= 8, tried
