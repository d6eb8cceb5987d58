"""What every public function keeps: wrong arguments are named, any layout is right, empty tensors give empty results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from _support import CALLS, FIRST, LAYOUTS, Call, faults, from_contract, gradients, laid, results

from rooftop.core import registry
from rooftop.core.op import Op
from rooftop.core.spec import Case, Input
from rooftop.lab.inputs import make

FORWARD = list(registry.op_names())
ARGUMENTS = [pytest.param(c, n, id=f"{c.op} {n}") for c in FIRST.values() for n in c.tensors]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64])
@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_another_dtype_is_named_with_those_accepted(call: Call, name: str, dtype: torch.dtype) -> None:
    tensors = call.make("f32", "cpu")
    with pytest.raises((TypeError, ValueError), match=str(dtype)) as caught:
        call.ours(**{**tensors, name: tensors[name].to(dtype)})
    assert str(caught.value).startswith(f"{call.op}: ")
    assert str(tensors[name].dtype) in str(caught.value)


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_what_is_no_tensor_is_named(call: Call, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{call.op}: .*list"):
        call.ours(**{**call.make("f32", "cpu"), name: [1.0]})


@pytest.mark.parametrize(("call", "name"), [p for p in ARGUMENTS if len(p.values[0].tensors) > 1])
def test_tensors_on_two_devices_are_named(call: Call, name: str) -> None:
    tensors = call.make("f32", "cpu")
    with pytest.raises(ValueError, match="meta") as caught:
        call.ours(**{**tensors, name: tensors[name].to("meta")})
    assert "cpu" in str(caught.value)


def longer(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t, t[..., :1]], -1)


@pytest.mark.parametrize(("call", "name"), [p for p in ARGUMENTS if len(p.values[0].tensors) > 1 and p.id not in ("matmul b", "cross_entropy input")])
def test_shapes_that_do_not_fit_are_named(call: Call, name: str) -> None:
    tensors = call.make("f32", "cpu")
    given = longer(tensors[name])
    with pytest.raises(ValueError, match=rf"^{call.op}: ") as caught:
        call.ours(**{**tensors, name: given})
    assert str(tuple(given.shape)) in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.id)
def test_every_layout_is_right(call: Call, layout: str) -> None:
    for dtype in call.dtypes:
        tensors = {n: laid(t, layout) for n, t in call.make(dtype, "cpu").items()}
        assert faults(call, tensors, call.ours(**tensors)) == []


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.id)
def test_gradients_reach_expanded_and_transposed_inputs(call: Call) -> None:
    for layout in ("expanded", "transposed"):
        tensors = {n: laid(t, layout) for n, t in call.make("f32", "cpu").items()}
        for got, want in zip(gradients(call.ours, tensors, call.floats), gradients(call.theirs, tensors, call.floats), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0, 1e-40])
@pytest.mark.parametrize("call", FIRST.values(), ids=lambda c: c.op)
def test_numbers_that_are_no_numbers_stay_where_they_are(call: Call, value: float) -> None:
    tensors = call.make("f32", "cpu")
    tensors[call.floats[0]].view(-1)[5] = value
    if call.op in ("gelu", "geglu"):  # with infinities torch's vectorised gelu on the CPU differs from its own scalar one
        want = tensors["x" if call.op == "gelu" else "a"].clone()
        want = want * 0.5 * (1 + torch.erf(want * 0.5**0.5)) * (tensors["b"] if call.op == "geglu" else 1)
        torch.testing.assert_close(call.ours(**tensors), want, equal_nan=True)
    else:
        assert faults(call, tensors, call.ours(**tensors)) == []


def emptied(op: Op) -> list[Case]:
    """The cases of an op whose results are empty; where its contract has none, its first case without rows."""

    def empty(case: Case) -> bool:
        return all(m is None or m.numel == 0 for n, m in op.problem(case).tensors if n in op.output_names)

    if found := [c for c in op.cases if empty(c)]:
        return found
    rows = next(v.shape[0] for _, v in op.cases[0].tensors() if v.shape)
    inputs = {n: replace(v, shape=tuple(0 if e == rows else e for e in v.shape)) if isinstance(v, Input) else v for n, v in op.cases[0].inputs.items()}
    return [c for c in (Case("no rows", inputs),) if empty(c)]


@pytest.mark.parametrize("name", FORWARD)
def test_the_empty_cases_of_a_contract_give_empty_results_and_gradients(name: str) -> None:
    op = registry.op(name)
    if not (cases := emptied(op)):
        pytest.skip("its results are never empty")
    wrt = {n for entry in op.grad.wrt for n in entry.split("=")} if op.grad else set()
    for case in cases:
        tensors, options = make(op, case, "cpu", 0)
        leaves = [t.requires_grad_() for n, t in tensors.items() if t is not None and n in wrt]
        found = results(op(*tensors.values(), *options.values()))
        want = [m for n, m in op.problem(case).tensors if n in op.output_names]
        assert [tuple(r.shape) for r, m in zip(found, want, strict=False) if m is not None] == [m.shape for m in want[: len(found)] if m is not None], case.id
        if leaves:
            sum(r.sum() for r in found if r is not None and r.requires_grad).backward()
        assert [t.grad is not None and t.grad.shape == t.shape and not t.grad.any() for t in leaves] == [True] * len(leaves), case.id


@pytest.mark.parametrize("name", FORWARD)
def test_a_call_worked_out_from_the_contract_is_right(name: str) -> None:
    if (call := from_contract(name)) is None:
        pytest.skip("its public function is called otherwise than its reference: tests/_support.py has its calls")
    tensors = call.make("f32", "cpu")
    assert faults(call, tensors, call.ours(**tensors)) == []
    wrong = [torch.ones_like(r) for r in results(call.ours(**tensors))]
    assert faults(call, tensors, tuple(wrong)), "anything would be right"
