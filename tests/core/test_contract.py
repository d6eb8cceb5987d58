"""What a contract may say beyond one output and given inputs: absent tensors, outputs made aside, memory taken over, runtime options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rooftop.core import dispatch, head_text, plans, registry, triton_compat
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.contract_parts import Values
from rooftop.core.op import Grad, Op, like
from rooftop.core.spec import TARGETS, Input, Launch, Meta, Problem, Work, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker


def reference(x: torch.Tensor, r: torch.Tensor | None, seed: int, inplace: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """(x + r)², x + r where there is an r, and what the backward needs."""
    s = x if r is None else x + r
    return s * s + seed, None if r is None else s.clone(), 2 * s


reference.__annotations__ = {"x": "Tensor", "r": "Tensor | None", "seed": "int", "inplace": "bool"}


def backward(dy: torch.Tensor, ds: torch.Tensor | None, slope: torch.Tensor, seed: int, inplace: bool) -> torch.Tensor:
    return dy * slope if ds is None else dy * slope + ds


backward.__annotations__ = {"dy": "Tensor", "ds": "Tensor | None", "slope": "Tensor", "seed": "int", "inplace": "bool"}


def outputs(x: Meta, r: Meta | None, seed: int, inplace: bool) -> dict[str, Meta | None]:
    return {"y": like(x), "s": None if r is None else like(x), "slope": like(x)}


def toy(name: str = "toy") -> Op:
    cases = [
        case("alone", x=Input((3, 5)), r=None, seed=4, inplace=True, tags="edge"),
        case("with r", x=Input((3, 5)), r=Input((3, 5)), seed=5, inplace=False, tags="edge"),
    ]
    grad = Grad(
        wrt=("x=r",), saves=("slope|x",), non_differentiable=("slope",), backward=backward, outputs=lambda dy, ds, slope, seed,
        inplace: {"dx": like(slope)}, work=lambda p: Work(0, 0), into={"dx": "slope"},
    )
    return Op(
        reference, outputs=outputs, cases=cases, work=lambda p: Work(p["x"].nbytes, p["y"].nbytes), grad=grad,
        values=Values(runtime_options=("seed",)), name=name
    )


def test_absent_outputs_and_outputs_aside() -> None:
    op = toy("toy_absent")
    dispatch.register(op)
    x = torch.randn(3, 5, requires_grad=True)
    y, s, slope = op(x, None, 7, False)
    assert (
        s is None and torch.ops.rooftop.toy_absent(x, None, 7, False, "")[1].numel() == 0
    ), "a registered op has a fixed number of tensors as results"
    assert not slope.requires_grad
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    r = torch.randn(3, 5, requires_grad=True)
    y, s, _ = op(x, r, 7, False)
    x.grad = None
    (y.sum() + 3 * s.sum()).backward()
    torch.testing.assert_close(x.grad, 2 * (x + r).detach() + 3)
    torch.testing.assert_close(r.grad, x.grad)
    x.grad = None
    op(x, r, 7, False)[1].sum().backward()  # y unused: its gradient is zero
    torch.testing.assert_close(x.grad, torch.ones(3, 5))
    torch.library.opcheck(torch.ops.rooftop.toy_absent.default, (x, r, 7, False, ""))
    torch.library.opcheck(torch.ops.rooftop.toy_absent.default, (x, None, 7, False, ""))


def test_known_right_passes_and_a_missing_output_is_found() -> None:
    op = toy()
    for c in op.cases:
        assert checker.check_callable(op, c, op.reference, name="reference").status == "ok"
        assert op.bwd is not None
        assert checker.check_callable(op.bwd, c, op.bwd.reference, name="reference").status == "ok"
    assert checker.check_callable(op, op.cases[1], lambda x, r, seed, inplace: (x * x, None, x), name="none").status == "error"


def test_a_late_option_is_in_no_problem_and_reaches_the_launch_by_name() -> None:
    op = toy()
    problem = op.problem(op.cases[0])
    assert problem.runtime_options == ("seed",)
    assert "seed" not in problem.signature
    with pytest.raises(KeyError):
        problem.option("seed")
    text = """/* rooftop
args    = ["n: i32 = numel(x)", "seed: i32", "x: f32[R, C]"]
[[launch]]
kernel  = "k"
grid    = [1]
block   = [32]
*/"""
    launch = head_text.parse(text, "k.cu").launches_for(problem, {})[0]
    assert dict(launch.args) == {"n": 15, "seed": "seed", "x": "x"}


def test_a_late_option_is_compiled_as_a_general_number() -> None:
    values = triton_compat.values_of(Launch(None, (1,), {"x": "x", "r": "r", "seed": "seed", "n": 3}), {"x": Meta((4,), "f32"), "r": None})
    assert values["r"] is None
    assert values["seed"] == triton_compat.RUNTIME_INTEGER
    assert values["seed"] % 16 != 0


def test_memory_is_taken_over_only_where_it_lies_alike_and_only_when_asked() -> None:
    op = toy().bwd
    assert op is not None
    first, second = op.cases
    assert op.reused(op.problem(first)) == {"dx": "slope"}
    assert op.reused(op.problem(second)) == {}
    p = op.problem(first)
    assert op.reused(p.replace(dx=Meta((3, 5), "f32", (8, 1)))) == {}


KERNEL = '''
import triton
import triton.language as tl
from rooftop.core.spec import Launch
@triton.jit
def _k(dy, slope, dx, n, B: tl.constexpr):
    at = tl.arange(0, B)
    g = tl.load(dy + at, at < n) * tl.load(slope + at, at < n)
    tl.store(dx + at, g, at < n)
    {more}
def supports(p): return None if p.get("ds") is None else "no"
def choose(p): return {}
def launches(p, config): return [Launch(_k, (1,), {"dy": "dy", "slope": "slope", "dx": "dx", "n": 15, "B": 16})]
'''


@pytest.mark.parametrize(
    ("more", "status"), [("", "ok"), ("tl.store(dx + at, tl.load(dy + at, at < n) * tl.load(slope + at, at < n), at < n)", "wrong")]
)
def test_a_kernel_that_reads_what_it_has_overwritten_is_found(tmp_path: Path, more: str, status: str) -> None:
    path = tmp_path / "toy_bwd__triton.py"
    path.write_text(KERNEL.replace("{more}", more))
    op = toy().bwd
    assert op is not None
    from rooftop.core.backends.triton import TritonImplementation

    found = checker.check(Subject("toy", op, TritonImplementation(path, op.name)), op.cases[0], backend="interpreter")
    assert found.status == status, found.message


def test_results_are_promised_in_one_layout_and_written_in_another_only_with_a_copy_after() -> None:
    op = registry.op("softmax")
    shape, strides = (3, 2, 4, 64), (256, 768, 64, 1)
    metas = {"x": Meta(shape, "f32", strides)}
    problem = op.problem_of(metas, {"dim": 3}, TARGETS[90])
    call = select(op, problem).call
    assert call is not None and call.copies == ("x",)
    assert call.outputs == (("y", Meta(shape, "f32")),)
    assert list(call.promised) == ["y"]
    plain = select(op, op.problem_of({"x": Meta(shape, "f32")}, {"dim": 3}, TARGETS[90])).call
    assert plain is not None
    assert (plain.outputs, plain.promised) == ((("y", Meta(shape, "f32")),), {})


def test_the_hash_of_a_triton_file_holds_its_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.core import helpers as where

    helpers = tmp_path / "kernels" / "_device"
    helpers.mkdir(parents=True)
    (helpers / "one.py").write_text("from rooftop.kernels._device.two import f\nA = 1\n")
    (helpers / "two.py").write_text("from rooftop.kernels._device import (  # both\n    three as short,\n    four,\n)\nB = 1\n")
    (helpers / "three.py").write_text("from rooftop.kernels._device import four\nC = 1\n")
    (helpers / "four.py").write_text("D = 1\n")
    monkeypatch.setattr(where, "KERNELS", tmp_path / "kernels")
    text = "from rooftop.kernels._device.one import A\n"
    before = where.with_imported(text)
    assert len(before) == 5
    (helpers / "four.py").write_text("D = 2\n")
    assert where.with_imported(text) != before


class Recorded:
    """A prepared launch that keeps the addresses it was given."""

    def __init__(self) -> None:
        self.addresses: list[int] = []

    def __call__(self, stream: int, addresses: list[int]) -> None:
        self.addresses = list(addresses)


def plan_of(name: str, case_id: str, monkeypatch: pytest.MonkeyPatch) -> tuple[plans.Plan, Recorded]:
    """A plan as a GPU would have it, with memory of the CPU and a launch that only records."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)

    def allocator(meta: Meta | None, index: int, zero: bool = False) -> object:
        if meta is None:
            return lambda: None
        return lambda: torch.empty_strided(
            meta.shape, meta.strides, dtype=getattr(torch, {"f32": "float32", "bf16": "bfloat16"}[meta.dtype])
        )

    monkeypatch.setattr(plans, "_allocator", allocator)
    op = registry.op(name)
    problem = op.problem(op.case(case_id), TARGETS[90])
    recorded = Recorded()
    return planned(op, problem, recorded), recorded


def planned(op: Contract, problem: Problem, recorded: Recorded) -> plans.Plan:
    call = select(op, problem).call
    assert call is not None
    plan = plans.Plan(call, 0)
    plan._runner, plan._addressed = recorded, True
    return plan


def test_a_plan_writes_over_the_input_and_says_so_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.lab.inputs import make

    plan, recorded = plan_of("cross_entropy_bwd", "in place f32", monkeypatch)
    op = registry.op("cross_entropy_bwd")
    tensors = make(op, op.case("in place f32"), "cpu", 0)[0]
    logits = tensors["input"]
    assert logits is not None
    logits.requires_grad_()
    version = logits._version
    made = plan(list(tensors.values()))
    assert made[0] is not None
    assert made[0].data_ptr() == logits.data_ptr()
    assert not made[0].requires_grad
    assert logits._version == version + 1
    assert recorded.addresses[plan.call.names.index("dinput")] == logits.data_ptr()


def test_a_plan_passes_late_options_after_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, recorded = plan_of("bias_mask_scale_add", "no bias f32", monkeypatch)
    x = torch.zeros(33, 70)
    plan([x, None, x, None], [-7])
    assert recorded.addresses[plan.call.names.index("seed")] == -7
    assert recorded.addresses[plan.call.names.index("bias")] == 0


def test_a_plan_has_none_for_an_absent_output_and_the_promised_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, recorded = plan_of("rms_norm", "odd 37x1001 f32", monkeypatch)
    x, w = torch.zeros(37, 1001), torch.zeros(1001)
    y, s = plan([x, None, w, None, None])
    assert s is None
    assert y is not None
    assert recorded.addresses[plan.call.names.index("s")] == 0
    op = registry.op("softmax")
    problem = op.problem_of({"x": Meta((3, 2, 4, 64), "f32", (256, 768, 64, 1))}, {"dim": 3}, TARGETS[90])
    moved = planned(op, problem, Recorded())
    (found,) = moved([torch.zeros(2, 3, 4, 64).transpose(0, 1)])
    assert found is not None
    assert found.stride() == (256, 768, 64, 1)


def test_a_contract_that_could_not_be_judged_is_an_error() -> None:
    def add_to(x: torch.Tensor, many: list[torch.Tensor]) -> None: ...

    add_to.__annotations__ = {"x": "Tensor", "many": "list[Tensor]"}
    given = {"outputs": lambda x, many: {}, "work": lambda p: Work(0, 0), "name": "added"}
    cases = [case("odd", x=Input((3,)), many=(Input((3,)),))]
    with pytest.raises(ValueError, match="added has no case"):
        Contract(add_to, cases=[], **given)
    for name in ("y", "many"):
        with pytest.raises(ValueError, match=f"added: mutates names '{name}'"):
            Contract(add_to, cases=cases, mutates=(name,), **given)
    with pytest.raises(ValueError, match="added has no output and `mutates` names no tensor"):
        _ = Contract(add_to, cases=cases, **given).output_names
    with pytest.raises(ValueError, match="dtype 'int32' is not one of f64, f32"):
        Input((3,), "int32")
