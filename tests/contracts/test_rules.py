"""The rules themselves, on ops made up for them (contracts/house): of whole numbers, of bfloat16 alone, without a kernel for older cards,
with a wrong backward, of a list of tensors, one that writes into its input and returns nothing. What keeps a rule passes it, what breaks it
fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts import rules, test_far
from contracts.calls import LAYOUTS, calls, dtypes, first, gradients, ops
from torch import Tensor

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.contract_parts import Calls, Grad
from rooftop.core.spec import TARGETS, Input, Work, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

FOLDER = Path(__file__).parent / "house"
HOUSE = registry.House(FOLDER / "ops", FOLDER / "kernels", FOLDER / "ladders")
OPS = ops(HOUSE)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the made-up ops are found as those of the tree are."""
    real = registry.implementations
    monkeypatch.setattr(registry, "implementations", lambda name, house=registry.HOUSE: real(name, HOUSE if name in OPS else house))


def contract(**changes: Any) -> Contract:
    """y = 3 x in bfloat16, with changes."""

    def reference(x: Tensor) -> Tensor:
        return 3 * x

    given: dict[str, Any] = {
        "outputs": lambda x: {"y": x},
        "cases": [case("odd", tags="edge", x=Input((5, 7), "bf16")), case("NaN", tags="edge", x=Input((5, 7), "bf16", "nan"))],
        "work": lambda p: Work(p["x"].nbytes, p["y"].nbytes, {}), "name": "thrice", "calls": Calls(changes.pop("cpu", None)), **changes,
    }
    return Contract(given.pop("reference", reference), **given)


@pytest.mark.parametrize("name", OPS)
def test_an_op_joins_by_its_file_alone(name: str) -> None:
    op = registry.op(name, HOUSE)
    rules.reference_passes(op)
    rules.can_fail(op)
    rules.are_rejected(op)
    for dtype in dtypes(op):
        rules.less_is_rejected(op, dtype)
    found = registry.implementations(name)
    if found:
        rules.choices_are_made(op, found)
    for implementation in found:
        for c in op.cases:
            result = checker.check(Subject(implementation.name, op, implementation), c, backend="interpreter")
            assert result.status == ("skipped" if "bench" in c.tags or c.name == "empty" else "ok"), result.message


@pytest.mark.parametrize("name", OPS)
def test_its_public_function_is_called_in_its_own_dtypes(name: str) -> None:
    assert {c.case.dtype for c in calls(name, HOUSE)} == set(dtypes(registry.op(name, HOUSE)))
    for call in calls(name, HOUSE):
        assert call.faults() == ""
        for layout in LAYOUTS:
            laid = call.laid(layout)
            assert laid is None or laid.faults() == ""
    call = first(name, HOUSE)
    for n, t in call.make().items():
        with pytest.raises(TypeError, match=f"^{name}: .*torch.complex64"):
            call.with_(n, t.to(torch.complex64))
    if call.op.grad:
        assert gradients(call.op.reference, call, call.make())["x"].dtype == torch.bfloat16


def test_what_calls_on_the_cpu_run_is_judged() -> None:
    def wide(x: Tensor) -> Tensor:
        return 3 * x.float()

    assert rules.cpu_passes(contract(cpu=lambda x: 3 * x)) == 2
    assert rules.cpu_passes(contract(cpu=lambda x: 3 * x if bool(x.isfinite().all()) else NotImplemented)) == 1
    for cpu, said in ((lambda x: 3 * x.nan_to_num(), "NaN"), (lambda x: 2 * x, "y: "), (wide, "float32"),
                      (lambda x: x.mul_(3), "memory of an input"), (lambda x: NotImplemented, "takes none")):
        with pytest.raises(AssertionError, match=said):
            rules.cpu_passes(contract(cpu=cpu))


def test_gradients_of_what_calls_on_the_cpu_run_are_judged() -> None:
    def backward(dy: Tensor) -> Tensor:
        return 3 * dy

    grad = Grad(wrt=("x",), saves=(), backward=backward, outputs=lambda dy: {"dx": dy}, work=lambda p: Work(0, 0, {}))
    assert rules.cpu_gradients_pass(contract(grad=grad, cpu=lambda x: 3 * x)) == 2
    with pytest.raises(AssertionError, match="thrice on the CPU, gradients of odd bf16: dx: "):
        rules.cpu_gradients_pass(contract(grad=grad, cpu=lambda x: 3 * x.detach() + 0 * x))


def test_what_an_op_must_write_into_is_judged() -> None:
    call = first("made_up_append", HOUSE)
    assert call.op.output_names == () and call.run(call.make()) == ()
    assert "cache" in replace(call, function=lambda cache, new, start: cache).faults()
    assert "cache" in replace(call, function=lambda cache, new, start: cache.zero_()).faults()


def test_a_list_of_tensors_is_given_as_one() -> None:
    call = first("made_up_total", HOUSE)
    assert call.parts() == ({"xs": ["xs0", "xs1", "xs2"]}, {})
    assert [t.dtype for t in call.run(call.make())] == [torch.float32, torch.int64]
    assert "count" in replace(call, function=lambda xs: (torch.stack(xs).sum(0), torch.tensor(7))).faults()


def test_a_square_tensor_is_stretched_and_stays_square() -> None:
    call = first("made_up_symmetric", HOUSE)
    (far,) = test_far.far_shapes(call).values()
    assert far[0] == far[1] and 2**31 < far[0] ** 2 < 2**32
    assert test_far.works_out_far_shapes(call)
    assert test_far.three_rows(call).make()["x"].shape == (7, 7)
    huge = call.op.problem(next(c for c in call.op.cases if "huge" in c.tags))["x"]
    for change in test_far.far_changes(huge.shape):
        stretched = call.op.problem(test_far.stretched(call.op, change))["x"]
        assert stretched.shape[0] == stretched.shape[1] and 2**31 < stretched.numel < 2**48
    with pytest.raises(AssertionError):
        test_far.works_out_far_shapes(replace(call, function=lambda x: x[1:]))


def test_a_kernel_for_hopper_alone_is_enough() -> None:
    op = registry.op("made_up_half", HOUSE)
    asked = op.case("1 Mi elements")
    assert select(op, op.problem(asked, TARGETS[90])).call is not None
    assert select(op, op.problem(asked, TARGETS[80])).call is None


def test_a_kernel_that_says_it_is_for_older_cards_takes_something_there(monkeypatch: pytest.MonkeyPatch) -> None:
    op = registry.op("made_up_half", HOUSE)
    (found,) = registry.implementations("made_up_half")
    monkeypatch.setattr(found, "arch", 80)
    monkeypatch.setattr(found, "supports", lambda p: None if p.device.arch >= 90 else "it asks for more")
    with pytest.raises(AssertionError, match="take nothing on sm_80"):
        rules.choices_are_made(op, [found])
    monkeypatch.setattr(found, "supports", lambda p: "it asks for more")
    with pytest.raises(AssertionError, match="take nothing on sm_80"):
        rules.choices_are_made(op, [found])
    monkeypatch.setattr(found, "supports", lambda p: None if p.device.arch < 90 else "it asks for more")
    with pytest.raises(AssertionError, match="no kernel takes 1 Mi elements bf16 on NVIDIA H100"):
        rules.choices_are_made(op, [found])


# -- gradients -----------------------------------------------------------------------------------------------------


def test_the_gradient_of_an_op_of_bfloat16_alone_is_judged() -> None:
    rules.backward_is_the_gradient(registry.op("made_up_half", HOUSE))
    with pytest.raises(AssertionError, match="made_up_seventh, odd bf16, dx"):
        rules.backward_is_the_gradient(registry.op("made_up_seventh", HOUSE))


def thrice(backward: Callable[..., Any], **changes: Any) -> Contract:
    return contract(grad=Grad(wrt=("x",), saves=(), backward=backward), **changes)


def test_a_gradient_that_no_case_speaks_of_fails() -> None:
    right: Callable[..., Any] = lambda dy: 3 * dy  # noqa: E731
    rules.backward_is_the_gradient(thrice(right))
    for cases in (
        [case("NaN", tags="edge", x=Input((5, 7), "bf16", "nan"))],
        [case("empty", tags="edge", x=Input((0, 7), "bf16"))],
        [case("odd", tags="bench", x=Input((5, 7), "bf16"))],
        [case("whole", tags="edge", x=Input((5, 7), "i32"))],
    ):
        with pytest.raises(AssertionError, match="no case says anything of its gradient"):
            rules.backward_is_the_gradient(thrice(right, cases=cases))


@pytest.mark.parametrize("backward", [lambda dy: dy * 3.01, lambda dy: dy * float("nan"), lambda dy: dy.new_zeros(dy.shape)])
def test_a_backward_that_is_a_little_off_fails(backward: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="thrice, odd bf16, dx"):
        rules.backward_is_the_gradient(thrice(backward))


def test_a_reference_that_refuses_float64_is_differentiated_in_float32() -> None:
    def reference(x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("not for float64")
        return 3 * x

    rules.backward_is_the_gradient(thrice(lambda dy: 3 * dy, reference=reference))
    with pytest.raises(AssertionError, match="thrice, odd bf16, dx"):
        rules.backward_is_the_gradient(thrice(lambda dy: 4 * dy, reference=reference))


# -- what is wrong is rejected -------------------------------------------------------------------------------------


def test_a_wrong_version_that_passes_every_case_is_told() -> None:
    with pytest.raises(AssertionError, match="thrice: the same passes every case"):
        rules.are_rejected(contract(wrong={"the same": lambda x: 3 * x, "twice": lambda x: 2 * x}))


def test_a_wrong_version_that_writes_into_its_input_spoils_it_for_no_other() -> None:
    with pytest.raises(AssertionError, match="thrice: the same passes every case"):
        rules.are_rejected(contract(wrong={"zeros": lambda x: x.zero_(), "the same": lambda x: 3 * x}))


def test_a_reference_that_writes_nothing_and_a_contract_that_names_nothing_wrong_are_told() -> None:
    def idle(x: Tensor) -> None:
        pass

    writing: dict[str, Any] = {"reference": idle, "outputs": lambda x: {}, "mutates": ("x",), "work": lambda p: Work(0, 0, {})}
    with pytest.raises(AssertionError, match="names no wrong version"):
        rules.can_fail(contract(wrong={}, **writing))
    with pytest.raises(AssertionError, match="mutates names x, which its reference leaves as it was"):
        rules.can_fail(contract(wrong={"zeros": lambda x: x.zero_()}, **writing))


def test_cases_that_let_a_lower_precision_through_are_told() -> None:
    def reference(x: Tensor) -> Tensor:
        return 0 * x.abs().nan_to_num(0)

    zero = contract(reference=reference, cases=[case("zero", tags="edge", x=Input((5, 7), "bf16", "-0.0"))])
    with pytest.raises(AssertionError, match="nothing is wrong"):
        rules.less_is_rejected(zero, "bf16")


def test_a_call_that_its_contract_does_not_describe_is_told() -> None:
    call = first("made_up_half", HOUSE)
    with pytest.raises(AssertionError, match=r"made_up_half.* is not called as its reference is: its contract says how by public="):
        replace(call, function=lambda input: input).run(call.make())
