"""What every contract keeps: its reference passes, its wrong versions and one precision lower are rejected, its backward is its gradient."""

from __future__ import annotations

import pytest
from conftest import whole
from contracts import plan, rules
from contracts.calls import dtypes, ops, small

from rooftop.core import registry

OPS = ops()
PART = 8


@pytest.mark.parametrize("name", OPS)
def test_the_reference_passes_its_own_check(name: str, pytestconfig: pytest.Config) -> None:
    """In all cases where its contract has changed; else one in `PART`, others in each commit."""
    every = whole(pytestconfig) or plan.edited_op(name)
    rules.reference_passes(registry.op(name), [c for c in small(registry.op(name)) if every or plan.drawn(PART, name, c.id)])


@pytest.mark.parametrize("name", OPS)
def test_its_check_can_fail(name: str) -> None:
    rules.can_fail(registry.op(name))


@pytest.mark.sampled("contracts")
@pytest.mark.parametrize("name", OPS)
def test_every_known_wrong_implementation_is_rejected(name: str) -> None:
    rules.are_rejected(registry.op(name))


@pytest.mark.sampled("contracts")
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in OPS for d in dtypes(registry.op(n))])
def test_one_precision_lower_or_one_element_off_is_rejected_in_every_dtype(name: str, dtype: str) -> None:
    rules.less_is_rejected(registry.op(name), dtype)


@pytest.mark.sampled("contracts")
@pytest.mark.parametrize("name", [n for n in registry.op_names() if registry.op(n).grad])
def test_the_backward_is_the_gradient_of_the_reference(name: str) -> None:
    rules.backward_is_the_gradient(registry.op(name))


CPU = [(n, d) for n in OPS if registry.op(n).cpu for d in dtypes(registry.op(n))]


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize(("name", "dtype"), CPU)
def test_what_calls_on_the_cpu_run_is_within_the_contract(name: str, dtype: str) -> None:
    rules.cpu_passes(registry.op(name), dtype)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, d in CPU if registry.op(n).bwd])
def test_gradients_of_what_calls_on_the_cpu_run_are_within_the_contract(name: str, dtype: str) -> None:
    rules.cpu_gradients_pass(registry.op(name), dtype)


@pytest.mark.parametrize("name", OPS)
def test_the_choice_for_every_case_and_target_is_made_without_a_gpu(name: str) -> None:
    rules.choices_are_made(registry.op(name), registry.implementations(name))
