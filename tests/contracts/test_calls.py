"""What every public function keeps: wrong arguments are named, any layout is right, gradients are its reference's, empty tensors give empty results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from _support import results
from conftest import whole
from contracts.calls import LAYOUTS, LOOSE, Call, called, calls, differentiable, double, dtypes, every, first, gradients, small, wrt

from rooftop.core import registry
from rooftop.core.contract import Contract
from rooftop.core.layouts import computes
from rooftop.core.spec import DTYPES, Case, Input

OPS = called()
CALLS = every()
ARGUMENTS = [pytest.param(first(name), n, id=f"{name} {n}") for name in OPS if calls(name) for n in first(name).make()]
SEVERAL = [p for p in ARGUMENTS if len(p.values[0].make()) > 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", OPS)
def test_every_op_can_be_called_from_its_contract_and_what_is_wrong_is_found(name: str) -> None:
    call = first(name)
    assert call.faults() == ""

    def wrong(*args: Any) -> Any:
        made = results(call(*[t.clone() if isinstance(t, torch.Tensor) else t for t in args]))
        found = tuple(None if r is None else ~r if r.dtype == torch.bool else torch.ones_like(r) - r for r in made)
        return found if len(found) != 1 else found[0]

    assert call.judged(wrong).status == "wrong", "anything would be right"


@pytest.mark.parametrize("name", [n for n in OPS if "torch" in registry.op(n).peers and not registry.op(n).mutates])
def test_the_reference_is_what_torch_has(name: str) -> None:
    """In float64, where neither rounds much. A call that torch's own function refuses says nothing."""
    op, taken = registry.op(name), 0
    theirs = op.peers["torch"]()
    for call in calls(name):
        # bytes of half the range: oneDNN's sums of larger ones saturate on a CPU without VNNI
        args = call.arguments({n: t.clamp(-64, 63) if t.dtype == torch.int8 else double(t) for n, t in call.make().items()})
        try:
            found = results(theirs(*args))
        except (RuntimeError, ValueError, TypeError):
            continue
        taken += 1
        for n, got, want in zip(op.output_names, found, results(op.reference(*args)), strict=True):
            if got is not None and n not in op.compare:
                torch.testing.assert_close(got, want, msg=lambda text, n=n: f"{n}: {text}")
    if not taken:
        pytest.skip("torch's function takes none of these calls in float64")


# -- tensors that are not what a function takes --------------------------------------------------------------------


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_another_dtype_is_named_with_those_accepted(call: Call, name: str) -> None:
    taken = {getattr(torch, DTYPES[v.dtype].torch) for c in call.op.cases for n, v in c.tensors() if n == name}
    for other in {torch.float64, torch.int32, torch.complex64} - taken:
        tensors = call.make()
        try:
            made = call.with_(name, tensors[name].to(other))
        except (TypeError, ValueError) as error:
            assert str(error).startswith(f"{call.op.name}: ")
            assert str(other) in str(error) and str(tensors[name].dtype) in str(error)
        else:  # more dtypes than its cases have: then it must be right
            want = call.op.reference(*call.arguments({**tensors, name: tensors[name].to(other)}))
            torch.testing.assert_close(results(made), results(want), msg=lambda text, other=other: f"{other}: {text}")


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_what_is_no_tensor_is_named(call: Call, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{call.op.name}: .*list"):
        call.with_(name, [1.0])


KINDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "sparse": (lambda t: t.float().reshape(-1).to_sparse(), "a tensor in the layout sparse_coo; .*its to_dense"),
    "csr": (lambda t: t.float().reshape(1, -1).to_sparse_csr(), "a tensor in the layout sparse_csr; .*its to_dense"),
    "nested": (lambda t: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), "a nested tensor; .*to_padded_tensor"),
    "jagged": (lambda t: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged), "a nested tensor; .*to_padded_tensor"),
    "quantised": (lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8), r"a quantised tensor of torch\.qint8; .*dequantize"),
    "mkldnn": (lambda t: t.float().to_mkldnn(), "a tensor in the layout mkldnn; .*its to_dense"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_tensors_of_other_kinds_are_refused_with_the_way_out(request: pytest.FixtureRequest, call: Call, name: str) -> None:
    """Each argument with one of the kinds; with all of them by --all."""
    tensor = call.make()[name]
    some = list(KINDS.values())
    turn = sum(map(ord, call.op.name + name)) % len(some)
    for make, said in some if request.config.getoption("--all") else some[turn : turn + 1]:
        with pytest.raises(TypeError, match=rf"^{call.op.name}: .+ is {said}"):
            call.with_(name, make(tensor))


@pytest.mark.parametrize("name", OPS)
def test_tensors_without_values_give_some_without(name: str) -> None:
    call = first(name)
    made = call.run({n: t.to("meta") for n, t in call.make().items()})
    assert all(t.is_meta for t in made)


@pytest.mark.parametrize(("call", "name"), SEVERAL)
def test_tensors_on_two_devices_are_named(call: Call, name: str) -> None:
    with pytest.raises(ValueError, match="meta") as caught:
        call.with_(name, call.make()[name].to("meta"))
    assert "cpu" in str(caught.value)


@pytest.mark.parametrize(("call", "name"), SEVERAL)
def test_shapes_that_do_not_fit_are_named(call: Call, name: str) -> None:
    """One element more in the last dimension of one tensor: what the reference cannot take so is refused with the size."""
    tensors = call.make()
    if not tensors[name].dim():
        pytest.skip("a single number has no dimension to lengthen")
    longer = torch.cat([tensors[name], tensors[name][..., :1]], -1)
    try:
        call.op.reference(*call.arguments({n: t.clone() for n, t in {**tensors, name: longer}.items()}))
    except (RuntimeError, IndexError, ValueError):
        with pytest.raises(ValueError, match=rf"^{call.op.name}: ") as caught:
            call.with_(name, longer)
        assert str(longer.shape[-1]) in str(caught.value)
    else:
        pytest.skip("the reference takes it: it is another shape, and no wrong one")


# -- layouts, gradients, values ------------------------------------------------------------------------------------


@pytest.mark.sampled("contracts")
@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.id)
def test_every_layout_is_right(call: Call, pytestconfig: pytest.Config) -> None:
    """The first kind of call in each dtype in every layout, the others in one each; with --all every kind in every layout."""
    number = [c for c in calls(call.op.name) if c.case.dtype == call.case.dtype].index(call)
    tried = LAYOUTS if number == 0 or whole(pytestconfig) else (LAYOUTS[(number + len(call.id)) % len(LAYOUTS)],)
    laid = {layout: made for layout in tried if (made := call.laid(layout)) is not None}
    assert {layout: said for layout, made in laid.items() if (said := made.faults())} == {}


def error_of_the_reference(call: Call, tensors: dict[str, Any]) -> float:
    """Of the largest result, where an option asks for less than float32 can (TF32): its gradients err as its result does. 0 for 16 bits, whose rounding LOOSE
    allows for, and where the error is what float32 makes."""
    if any(computes(t) and t.dtype != torch.float32 for t in tensors.values() if t is not None):
        return 0.0
    near, exact = {n: t if t is None else t.clone() for n, t in tensors.items()}, {n: double(t) for n, t in tensors.items()}
    with torch.no_grad():
        pairs = zip(*(results(call.op.reference(*call.arguments(t))) for t in (near, exact)), strict=True)
    shares = [float((x.double() - y).abs().max() / y.abs().max()) for x, y in pairs if y is not None and computes(y) and y.numel() and y.any()]
    found = max(shares, default=0.0)
    return found if found > LOOSE["f32"] / 4 else 0.0


@pytest.mark.sampled("contracts")
@pytest.mark.parametrize("call", [c for c in CALLS if differentiable(c)], ids=lambda c: c.id)
def test_gradients_reach_inputs_of_any_layout(call: Call, pytestconfig: pytest.Config) -> None:
    """The first kind of call in each dtype in three layouts, the others where they lie; with --all every kind in all three."""
    others = call.id == next(c.id for c in calls(call.op.name) if c.case.dtype == call.case.dtype) or whole(pytestconfig)
    for layout in ("contiguous", "expanded", "transposed") if others else ("contiguous",):
        laid = call if layout == "contiguous" else call.laid(layout)
        if laid is not None:
            gradients_are_right(laid, layout)


def gradients_are_right(laid: Call, layout: str) -> None:
    tensors = laid.make()
    got, want = (gradients(f, laid, t) for f, t in ((laid, tensors), (laid.op.reference, {n: double(t) for n, t in tensors.items()})))
    assert got
    own = 4 * error_of_the_reference(laid, tensors)
    most = max(float(w.abs().max()) for w in want.values())
    for n, w in want.items():
        assert got[n].dtype == tensors[n].dtype
        loose = max(own, LOOSE[next(d.name for d in DTYPES.values() if d.torch == str(tensors[n].dtype).removeprefix("torch."))])
        largest = float(w.abs().max())
        largest = most if largest < 1e-12 * most else largest  # what is 0 but for float64's rounding: its terms cancel, and were as large as the others
        largest = max(largest, 1e-9)  # where all of them are: inputs are of the size of 1
        torch.testing.assert_close(got[n].double(), w, rtol=0, atol=loose * largest, msg=lambda text, n=n: f"{layout}, {n}: {text}")


@pytest.mark.parametrize("name", [n for n in OPS if calls(n) and any(computes(t) for t in first(n).make().values())])
def test_numbers_that_are_no_numbers_stay_where_they_are(name: str) -> None:
    call, found = first(name), {}
    n, t = next((n, t) for n, t in call.make().items() if computes(t))
    for value in (float("nan"), float("inf"), float("-inf"), -0.0, 1e-40):
        given = t.clone()
        given[tuple(torch.unravel_index(torch.tensor(5), t.shape))] = value
        found[value] = call.faults(**{n: given})
    assert {value: said for value, said in found.items() if said} == {}


# -- empty tensors -------------------------------------------------------------------------------------------------


def _resized(v: Any, size: int) -> Any:
    if isinstance(v, tuple):
        return tuple(_resized(one, size) for one in v)
    return replace(v, shape=tuple(0 if e == size else e for e in v.shape)) if isinstance(v, Input) else v


def emptied(op: Contract) -> tuple[list[Case], list[Case]]:
    """The cases of an op whose results are empty; and its first call with one size after another made 0, where its results are empty then. Those the public
    function may refuse."""

    def empty(case: Case) -> bool:
        return op.idle(op.problem(case))

    case = first(op.name).case
    made = []
    for size in sorted({e for _, v in case.tensors() for e in v.shape}):
        made.append(replace(case, name=f"{size} made 0", inputs={n: _resized(v, size) for n, v in case.inputs.items()}))
    return [c for c in small(op) if empty(c)], [c for c in made if empty(c)]


@pytest.mark.parametrize("name", [n for n in OPS if calls(n)])
def test_empty_tensors_give_empty_results_and_gradients_of_their_shape(name: str) -> None:
    op = registry.op(name)
    cases, made = emptied(op)
    if not cases and not made:
        pytest.skip("its results are never empty")
    for case in (*cases, *made):
        call = replace(first(name), case=case)
        leaves = {n: t.requires_grad_() if n in wrt(op) and computes(t) else t for n, t in call.make().items()}
        try:
            found = call.run(leaves)
        except ValueError as error:
            assert case in made and str(error).startswith(f"{name}: "), f"{case.id}: {error}"
            continue
        want = [m for n, m in op.problem(case).tensors if n in call.returned() and m is not None]
        assert [tuple(r.shape) for r in found] == [m.shape for m in want], case.id
        if any(r.requires_grad for r in found):
            sum(r.sum() for r in found if r.requires_grad).backward()  # type: ignore[union-attr]
        for n in (n for n, t in leaves.items() if t.requires_grad and any(r.requires_grad for r in found)):
            grad = leaves[n].grad
            assert grad is not None and grad.shape == leaves[n].shape and not grad.any(), f"{case.id}: {n}"


def test_dtypes_are_those_of_the_cases_the_widest_first() -> None:
    assert dtypes(registry.op("softmax")) == ["f32", "f16", "bf16"]
