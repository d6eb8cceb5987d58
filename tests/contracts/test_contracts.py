"""What every contract keeps: its reference passes, its wrong versions and one precision lower are rejected, its backward is its gradient."""

from __future__ import annotations

import pytest
import torch

from rooftop.core import library, registry
from rooftop.core.spec import Case
from rooftop.lab.check import checker

OPS = [n for name in registry.op_names() for n in (name, *([f"{name}_bwd"] if registry.op(name).bwd else []))]


def small(op_name: str) -> list[Case]:
    return [c for c in registry.op(op_name).cases if "bench" not in c.tags and "huge" not in c.tags]


@pytest.mark.parametrize("name", OPS)
def test_the_reference_passes_its_own_check(name: str) -> None:
    op = registry.op(name)
    found = [checker.check_callable(op, c, lambda *args: library.fallback(op, args), name="reference") for c in small(name)]
    assert [(r.case, r.message) for r in found if r.status != "ok"] == []


@pytest.mark.parametrize(("name", "wrong"), [(n, w) for n in OPS for w in registry.op(n).wrong])
def test_every_known_wrong_implementation_is_rejected(name: str, wrong: str) -> None:
    op = registry.op(name)
    assert any(checker.check_callable(op, c, op.wrong[wrong], name=wrong).status == "wrong" for c in small(name))


@pytest.mark.parametrize("name", OPS)
def test_one_precision_lower_is_rejected_in_every_dtype(name: str) -> None:
    op = registry.op(name)
    for dtype in sorted({c.dtype for c in small(name)}):
        cases = [c for c in small(name) if c.dtype == dtype]
        assert any(checker.check_callable(op, c, checker.lower_precision(op), name="lower").status == "wrong" for c in cases), dtype


@pytest.mark.parametrize("name", [n for n in registry.op_names() if registry.op(n).grad])
def test_the_backward_is_the_gradient_of_the_reference(name: str) -> None:
    op = registry.op(name)
    assert op.grad is not None
    unfit = ("NaN", "inf", "large", "overflow", "empty", "rows", "out of range", "all ignored")
    for c in [c for c in small(name) if c.dtype == "f32" and not any(w in c.name for w in unfit)]:
        from rooftop.lab.inputs import make

        tensors, options = make(op, c, "cpu", 3)
        wide = {
            n: t if t is None or not t.is_floating_point() else t.double().contiguous().requires_grad_(n in ",".join(op.grad.wrt).replace("=", ",").split(","))
            for n, t in tensors.items()
        }
        outs = op.reference(*wide.values(), *options.values())
        outs = dict(zip(op.output_names, outs if isinstance(outs, tuple) else (outs,), strict=True))
        generator = torch.Generator().manual_seed(1)
        flow = {n: o for n, o in outs.items() if n not in op.grad.aside}
        d_outs = {n: None if o is None else torch.randn(o.shape, dtype=torch.float64, generator=generator) for n, o in flow.items()}
        names = [n for entry in op.grad.wrt for n in entry.split("=") if wide[n] is not None]
        pairs = [(o, d_outs[n]) for n, o in flow.items() if o is not None]
        want = torch.autograd.grad([o for o, _ in pairs], [wide[n] for n in names], [d for _, d in pairs], allow_unused=True)
        with torch.no_grad():
            got = op.grad.spread(op.grad.backward(*d_outs.values(), *op.grad.saved({**wide, **outs}), *options.values()))
        for n, w in zip(names, want, strict=True):
            torch.testing.assert_close(got[n], torch.zeros_like(got[n]) if w is None else w, rtol=1e-4, atol=1e-4)
