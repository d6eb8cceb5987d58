"""What a call carries beyond new outputs: tensors written in place, ops without outputs, twins, lists, sizes that are results, own
comparisons."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import rooftop
from rooftop.core import debugging, dispatch, library, registry
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.call import Call, select
from rooftop.core.contract import metas_of
from rooftop.core.op import Calls, Judged, Judging, Op, Timed, Tolerance, Values, in_place, like
from rooftop.core.spec import TARGETS, Input, Meta, Work, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.inputs import make

HEAD = """
import triton
import triton.language as tl
from rooftop.core.spec import Launch, Meta


def supports(p):
    return None


def choose(p):
    return {}


def config_of(values):
    return dict(values)

"""


def kernel(folder: Path, op: Op, body: str, name: str = "k") -> Subject:
    path = folder / f"{op.name}__{name}__triton.py"
    path.write_text(HEAD + body)
    return Subject(path.stem, op, TritonImplementation(path, op.name))


# -- written in place, no outputs ------------------------------------------------------------------------------------


def append(cache: Tensor, new: Tensor, at: int) -> None:  # type: ignore[name-defined] # noqa: F821
    """cache[at : at + n] = new"""
    cache[at : at + new.shape[0]] = new


def appending(name: str, layout: str = "contiguous", dtype: str = "f32") -> Op:
    cases = [
        case("short", cache=Input((9, 6), dtype, layout=layout), new=Input((2, 6), dtype), at=3, tags="edge"),
        case("empty", cache=Input((0, 6), dtype), new=Input((0, 6), dtype), at=0, tags="edge"),
    ]
    return Op(
        append, outputs=lambda cache, new, at: {}, cases=cases, work=lambda p: Work(p["new"].nbytes, p["new"].nbytes), mutates=("cache",),
        name=name, canonical=lambda p: p if p["cache"].contiguous else None, tolerance=Tolerance(exact=True),
        wrong={"nothing written": lambda cache, new, at: None},
    )


APPEND = """
@triton.jit
def append(cache, new, n, start, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(cache + start + at, tl.load(new + at, at < n), at < n{more})
    {after}


def launches(p, config):
    {stop}
    n = p["new"].numel
    return [Launch(kernel=append, grid=(1,), args={{"cache": "cache", "new": "new", "n": n, "start": 6 * p.option("at"), "BLOCK": 16}})]
"""


@pytest.mark.parametrize("layout", ["contiguous", "sliced", "offset"])
def test_an_op_that_writes_into_its_input_is_right(tmp_path: Path, layout: str) -> None:
    op = appending("append", layout)
    found = checker.check(kernel(tmp_path, op, APPEND.format(more="", stop="", after="")), op.cases[0])
    assert (found.status, list(found.outputs)) == ("ok", ["cache"]), found.message
    assert found.outputs["cache"].elements == 54


WRONG = [
    ("", "return []", "", "12 of 54 elements differ"),
    (" + 4", "", "", "4 of 54 elements differ"),
    ("", "", "tl.store(cache + 54 + at, 0.0, at < 1)", "outside"),
]


@pytest.mark.parametrize(("more", "stop", "after", "says"), WRONG)
def test_one_that_writes_nothing_or_too_much_is_wrong(tmp_path: Path, more: str, stop: str, after: str, says: str) -> None:
    op = appending("append")
    found = checker.check(kernel(tmp_path, op, APPEND.format(more=more, stop=stop, after=after)), op.cases[0])
    assert found.status in ("wrong", "error") and says in found.message, found.message


def test_where_nothing_can_be_written_nothing_is_launched(tmp_path: Path) -> None:
    op = appending("append")
    found = checker.check(kernel(tmp_path, op, APPEND.format(more="", stop="", after="")), op.cases[1])
    assert (found.status, found.message) == ("skipped", "there is nothing to write: nothing is launched")


def test_the_known_wrong_version_that_writes_nothing_is_rejected() -> None:
    op = appending("append")
    found = checker.check_callable(op, op.cases[0], op.wrong["nothing written"], name="wrong")
    assert found.status == "wrong"
    assert checker.check_callable(op, op.cases[0], op.reference, name="right").status == "ok"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_call_on_the_cpu_writes_in_place_in_every_dtype(dtype: str) -> None:
    op = appending(f"append_{dtype}", dtype=dtype)
    dispatch.register(op)
    (cache, new), _ = list(make(op, op.cases[0], "cpu", 0)[0].values()), None
    assert cache is not None and new is not None
    want, version = cache.clone(), cache._version
    want[3:5] = new
    assert op(cache, new, 3) is None
    assert torch.equal(cache, want)
    assert cache._version > version
    torch.library.opcheck(getattr(torch.ops.rooftop, op.name).default, (cache, new, 3, ""))


def test_a_gradient_into_a_tensor_that_is_written_is_refused() -> None:
    op = appending("append_grad")
    dispatch.register(op)
    with pytest.raises(RuntimeError, match="writes into a tensor that requires a gradient"):
        op(torch.zeros(9, 6, requires_grad=True), torch.ones(2, 6), 0)


def test_under_compile_it_writes_too() -> None:
    op = appending("append_compiled")
    dispatch.register(op)

    def model(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        op(cache, new * 2, 1)
        return cache.sum()

    cache, new = torch.zeros(9, 6), torch.randn(2, 6)
    got = torch.compile(model, backend="aot_eager", fullgraph=True)(cache, new)
    torch.testing.assert_close(got, 2 * new.sum())
    torch.testing.assert_close(cache[1:3], 2 * new)


class Copying:
    """A runner that does on CPU memory what the kernel would."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self, stream: int, values: Any) -> None:
        memory = dict(zip(self.call.names, values, strict=True))
        append(memory["cache"], memory["new"], 3)


def test_a_tensor_that_is_copied_first_is_copied_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    op = appending("append")
    subject = kernel(tmp_path, op, APPEND.format(more="", stop="", after=""))
    cache, new = torch.randn(9, 11)[:, :6], torch.randn(2, 6)
    assert subject.implementation is not None
    call = Call.of(op, subject.implementation, op.problem_of(metas_of({"cache": cache, "new": new}), {"at": 3}, TARGETS[90]))
    assert (call.copies, call.mutated) == (("cache",), ("cache",))
    plan = dispatch.Plan(call, 0)
    plan._runner = Copying(call)
    want, version = cache.clone(), cache._version
    want[3:5] = new
    assert plan([cache, new]) == []
    assert torch.equal(cache, want)
    assert cache._version > version


def test_the_inputs_that_are_not_copied_keep_their_alignment() -> None:
    """matmul with a transposed c and a b that starts off a 16-byte boundary: the copy of c says nothing of b."""
    op = registry.op("matmul")
    metas = dict.fromkeys(op.tensor_names) | {
        "a": Meta((256, 256), "f32"), "b": Meta((256, 256), "f32", align=4), "c": Meta((256, 256), "f32", (1, 256))
    }
    call = select(
        op, op.problem_of(metas, {n: op.parameters[n].default if n not in ("alpha", "beta") else 1.0 for n in op.option_names}, TARGETS[90])
    ).call
    assert call is not None
    assert call.copies == ("c",)
    assert (call.problem["b"].align, call.problem["c"].align) == (4, 16)


# -- twins -----------------------------------------------------------------------------------------------------------


def scale(x: Tensor, factor: float) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    """x · factor"""
    return x * factor


def scaling(name: str = "scale") -> Op:
    cases = [
        case("odd", x=Input((7, 5)), factor=2.5, tags="edge"), case("strided", x=Input((4, 6), layout="sliced"), factor=0.5, tags="edge")
    ]
    return Op(
        scale, outputs=lambda x, factor: {"y": like(x)}, cases=cases, work=lambda p: Work(p["x"].nbytes, p["y"].nbytes), name=name,
        values=Values(runtime_options=("factor",)), canonical=lambda p: p if p["x"].contiguous else None,
        wrong={"not scaled": lambda x, factor: x.clone()},
    )


SCALE = """
@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * factor, at < n)


def launches(p, config):
    return [Launch(kernel=scale, grid=(1,), args={"x": "x", "y": "y", "n": p["x"].numel, "factor": "factor", "BLOCK": 64})]
"""


def test_a_kernel_writes_over_its_input_as_the_in_place_twin(tmp_path: Path) -> None:
    op = scaling()
    twin = in_place(op, {"y": "x"})
    assert (twin.name, twin.mutates, twin.output_names) == ("scale_", ("x",), ())
    found = [checker.check(kernel(tmp_path, op, SCALE), c) for c in op.cases]
    assert [f.status for f in found] == ["ok", "ok"], found
    subject = Subject("scale__k__triton", twin, kernel(tmp_path, op, SCALE).implementation)
    found = [checker.check(subject, c) for c in twin.cases]
    assert [(f.status, list(f.outputs)) for f in found] == [("ok", ["x"]), ("ok", ["x"])], found
    wrong = [checker.check_callable(twin, twin.cases[0], f, name=n).status for n, f in twin.wrong.items()]
    assert wrong == ["wrong", "wrong"]


def test_a_twin_is_an_op_of_its_own_in_torch() -> None:
    twin = in_place(scaling("scaled"), {"y": "x"})
    dispatch.register(twin)
    x = torch.randn(5, 3)
    want = x * 3
    assert twin(x, 3.0) is None
    assert torch.equal(x, want)
    torch.library.opcheck(torch.ops.rooftop.scaled_.default, (x, 3.0, ""))


def bits(x: Tensor, factor: float, shift: float = 0.0) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    """x · factor + shift."""
    return x * factor + shift


def test_a_twin_keeps_what_the_contract_says() -> None:
    seen: list[Judged] = []

    def near(j: Judged) -> str | None:
        seen.append(j)
        return None if bool((j.got["y"] - j.exact["y"]).abs().max() <= 1) else "y is more than 1 away"

    op = Op(
        bits, outputs=lambda x, **_: {"y": like(x)}, cases=[case("odd", tags="edge", x=Input((5, 3), "f32"), factor=2.0)], name="bits",
        work=lambda p: Work(p["x"].nbytes, p["y"].nbytes), judging=Judging(same=bits, compare={"y": near}, sizes={"y": "y"}),
        timed=Timed(bucket=lambda p: p.replace(y=None), measured_work=lambda p, tensors: Work(tensors["y"].numel(), p["y"].numel)),
        calls=Calls(public=lambda tensors, options: ((tensors["x"],), {})), wrong={"zeros": lambda x, factor, shift: x * 0},
    )
    twin = in_place(op, {"y": "x"})
    found = twin.cases[0]
    problem = twin.problem(found)
    x = torch.ones(5, 3)
    assert twin.public is op.public and twin.sizes == {"x": "x"}
    assert twin.measured_work is not None and twin.measured_work(problem, {"x": x}) == Work(15, 15)
    assert twin.bucket is not None and twin.bucket(problem).get("y") is None
    assert twin.digest(found) == in_place(op, {"y": "x"}).digest(found)
    assert twin.problem_of({"x": problem["x"]}, {"factor": 2.0, "shift": 1.0}).extra == ("shift",)
    assert twin.same is not None
    twin.same(x, 3.0, 1.0)
    assert torch.equal(x, torch.full((5, 3), 4.0))
    assert near(Judged({"y": x}, {"y": x + 2}, {}, {}, {})) == "y is more than 1 away"
    judged = twin.compare["x"](Judged({"x": x}, {"x": x + 0.5}, {"x": x}, {}, {}))
    assert judged is None and torch.equal(seen[-1].got["y"], x)
    with pytest.raises(ValueError, match=r"into is \{'z': 'x'\}; it takes an output \(y\) to a tensor \(x\)"):
        in_place(op, {"z": "x"})
    with pytest.raises(ValueError, match="into is"):
        in_place(op, {"y": "factor"})


def test_float_options_can_be_late() -> None:
    problem = scaling().problem(scaling().cases[0])
    assert (problem.runtime_options, problem.runtime_floats, problem.options) == (("factor",), ("factor",), ())


# -- inputs that depend on each other, sizes that are results, own comparisons, lists ---------------------------------


def pick(x: Tensor, index: Tensor) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    """x[index]; an index out of range gives 0."""
    inside = (index >= 0) & (index < x.shape[0])
    return torch.where(inside, x[index.clamp(0, x.shape[0] - 1).long()], torch.zeros_like(x[:1]))


def outside(x: torch.Tensor, index: torch.Tensor) -> str | None:
    bad = (index < 0) | (index >= x.shape[0])
    return f"index holds {int(index[bad][0])}; x has {x.shape[0]} elements" if bool(bad.any()) else None


def picking(name: str) -> Op:
    return Op(
        pick, outputs=lambda x, index: {"y": Meta(index.shape, x.dtype)}, work=lambda p: Work(0, 0), name=name, calls=Calls(faults=outside),
        cases=[case("permutation", x=Input((40,)), index=Input((40,), "i32"), tags="edge")],
        values=Values(
            fixup=lambda tensors, options, g: {"index": torch.randperm(40, generator=g, device=tensors["x"].device).to(torch.int32)}
        ),
    )


def test_inputs_can_depend_on_each_other() -> None:
    op = picking("pick")
    index = make(op, op.cases[0], "cpu", 3)[0]["index"]
    assert index is not None
    assert sorted(index.tolist()) == list(range(40))


def test_what_only_the_device_sees_is_told_under_debug() -> None:
    op = picking("pick_debug")
    dispatch.register(op)
    x, index = torch.randn(4), torch.tensor([0, 9], dtype=torch.int32)
    assert op(x, index).tolist() == [x[0].item(), 0.0]
    with rooftop.debug(), pytest.raises(IndexError, match="pick_debug: index holds 9; x has 4 elements"):
        op(x, index)
    assert not debugging.on
    assert op(x, index).shape == (2,)


def nonzero(x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[name-defined] # noqa: F821
    """The elements of x that are not zero, in order, and how many they are."""
    found = x[x != 0]
    data = torch.zeros_like(x)
    data[: found.numel()] = found
    return data, torch.tensor([found.numel()], dtype=torch.int32, device=x.device)


def packing() -> Op:
    return Op(
        nonzero, outputs=lambda x: {"data": like(x), "count": Meta((1,), "i32")}, work=lambda p: Work(p["x"].nbytes, p["x"].nbytes),
        name="nonzero", cases=[case("some", x=Input((60,), fill="integers"), tags="edge")], judging=Judging(sizes={"data": "count"}),
        tolerance={"data": Tolerance(exact=True)},
        timed=Timed(measured_work=lambda p, t: Work(p["x"].nbytes, int((t["x"] != 0).sum()) * 4)),
    )


PACK = """
@triton.jit
def pack(x, data, count, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n, other=0.0)
    keep = (v != 0).to(tl.int32)
    place = tl.cumsum(keep, 0) - keep{off}
    tl.store(data + place, v, keep != 0)
    tl.store(count + tl.arange(0, 1), tl.sum(keep, 0) + tl.zeros((1,), tl.int32))


def launches(p, config):
    return [Launch(kernel=pack, grid=(1,), args={{"x": "x", "data": "data", "count": "count", "n": p["x"].numel, "BLOCK": 64}})]
"""


@pytest.mark.parametrize(("off", "status"), [("", "ok"), (" + 1", "wrong")])
def test_only_as_many_elements_as_the_result_says_are_looked_at(tmp_path: Path, off: str, status: str) -> None:
    op = packing()
    found = checker.check(kernel(tmp_path, op, PACK.format(off=off)), op.cases[0])
    assert found.status == status, found.message


def test_a_contract_can_judge_by_a_law_of_its_own() -> None:
    def bounded(j: Judged) -> str | None:
        worst = float((j.got["y"] - j.tensors["x"]).abs().max())
        return None if worst <= 0.5 else f"an element moved by {worst:.2f}, at most 0.5 is allowed"

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.round()

    rounded.__annotations__ = {"x": "Tensor"}
    op = Op(
        rounded, outputs=lambda x: {"y": like(x)}, cases=[case("some", x=Input((50,)))], work=lambda p: Work(0, 0), name="rounded",
        judging=Judging(compare={"y": bounded})
    )
    assert checker.check_callable(op, op.cases[0], torch.round, name="nearest").status == "ok"
    found = checker.check_callable(op, op.cases[0], torch.floor, name="down")
    assert (found.status, "an element moved by" in found.message) == ("wrong", True)


def total(xs: list[Tensor], factor: float) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    """The sum of the tensors, times a factor."""
    return sum(xs[1:], xs[0]) * factor


TOTAL = """
@triton.jit
def total(a, b, c, y, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, (tl.load(a + at, at < n) + tl.load(b + at, at < n) + tl.load(c + at, at < n)) * FACTOR, at < n)


def launches(p, config):
    args = {"a": "xs0", "b": "xs1", "c": "xs2", "y": "y", "n": p["y"].numel, "FACTOR": p.option("factor"), "BLOCK": 64}
    return [Launch(kernel=total, grid=(1,), args=args)]
"""


def test_an_op_takes_a_list_of_tensors(tmp_path: Path) -> None:
    op = Op(
        total, outputs=lambda xs, factor: {"y": like(xs[0])},
        cases=[case("three", xs=(Input((11,)), Input((11,)), Input((11,))), factor=2.0)], work=lambda p: Work(0, 0), name="total",
    )
    assert op.inputs_of(op.problem(op.cases[0])) == ("xs0", "xs1", "xs2")
    found = checker.check(kernel(tmp_path, op, TOTAL), op.cases[0])
    assert found.status == "ok", found.message
    dispatch.register(op)
    xs = [torch.randn(4) for _ in range(3)]
    torch.testing.assert_close(op(xs, 0.5), sum(xs[1:], xs[0]) * 0.5)
    torch.library.opcheck(torch.ops.rooftop.total.default, (xs, 0.5, ""))


def test_an_unknown_dtype_is_an_error_that_says_what_is_accepted() -> None:
    with pytest.raises(TypeError, match=r"dtype is torch.complex128; accepted are torch.float64"):
        metas_of({"x": torch.zeros(2, dtype=torch.complex128)})


@pytest.mark.parametrize(("case", "idle"), [("no tokens f32", True), ("no room f32", True), ("one token f32", False)])
def test_where_nothing_is_written_neither_a_kernel_nor_the_reference_runs(case: str, idle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference waits for the device: a graph that is captured could not hold it."""
    op = registry.op("append_kv")
    assert op.idle(op.problem(op.case(case))) is idle
    monkeypatch.setattr(dispatch, "_device", lambda index: TARGETS[90])
    monkeypatch.setattr(op, "reference", lambda *args: pytest.fail("the reference ran"))
    tensors, options = make(op, op.case(case), "cpu", 0)
    if idle:
        plan = dispatch.plan_for(op, op.arguments(tensors, options), None)
        assert isinstance(plan, dispatch.Idle) and plan(list(tensors.values())) == []


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PLANS", 8)
    plans: dict[Any, Any] = {}
    for i in range(100):
        dispatch._remember(plans, i, None)
    assert len(plans) <= 8
    assert 99 in plans


def test_the_schema_says_what_is_written() -> None:
    assert library.schema(appending("appended")) == "appended(Tensor(a!) cache, Tensor new, SymInt at, str implementation) -> ()"


def test_a_tensor_that_is_written_into_may_be_absent() -> None:
    def counted(x: torch.Tensor, total: torch.Tensor | None) -> torch.Tensor:
        if total is not None:
            total += x
        return 2 * x

    counted.__annotations__ = {"x": "Tensor", "total": "Tensor | None"}
    op = Op(
        counted, outputs=lambda x, total: {"out": like(x)}, mutates=("total",), name="made_up_counted",
        work=lambda p: Work(p["x"].nbytes, p["x"].nbytes),
        cases=[case("odd", x=Input((5, 7), "bf16"), total=Input((5, 7), "bf16")), case("alone", x=Input((5, 7), "bf16"))],
    )
    assert library.schema(op) == "made_up_counted(Tensor x, Tensor(a!)? total, str implementation) -> Tensor"
    x, total = torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.bfloat16)
    assert torch.equal(op(x, total), 2 * x) and torch.equal(total, x) and torch.equal(op(x, None), 2 * x)
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, total), 2 * x) and torch.equal(total, 2 * x) and torch.equal(compiled(x, None), 2 * x)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3"])
def test_what_must_stay_as_it_was_is_allowed_no_error(dtype: str) -> None:
    def fill(cache: torch.Tensor, new: torch.Tensor) -> None:
        cache[2:4] = new

    fill.__annotations__ = {"cache": "Tensor", "new": "Tensor"}
    op = Op(
        fill, outputs=lambda cache, new: {}, mutates=("cache",), name="made_up_fill", work=lambda p: Work(p["new"].nbytes, p["new"].nbytes),
        cases=[case("odd", cache=Input((9, 7), dtype), new=Input((2, 7), dtype))],
    )

    def nudged(cache: torch.Tensor, new: torch.Tensor) -> None:
        fill(cache, new)
        bits = cache.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.element_size()])
        bits[8, 3] ^= 1  # one unit in the last place

    assert checker.check_callable(op, op.cases[0], fill, name="right").status == "ok"
    found = checker.check_callable(op, op.cases[0], nudged, name="nudged")
    assert (found.status, found.outputs["cache"].where) == ("wrong", (8, 3))
    assert "1 elements that must stay as they were" in found.message


# -- autocast ----------------------------------------------------------------------------------------------------------


def test_autocast_casts_the_operands_of_grouped_products() -> None:
    a, b, ends = torch.randn(32, 32), torch.randn(1, 32, 32), torch.tensor([32], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        found = rooftop.grouped_matmul(a, b, ends)
    assert found.dtype == torch.bfloat16 and torch.equal(found, rooftop.grouped_matmul(a.bfloat16(), b.bfloat16(), ends))


@pytest.mark.parametrize("name", ["matmul", "attention", "quantized_matmul"])
def test_autocast_changes_no_reference_and_no_gradient(name: str) -> None:
    generator = torch.Generator().manual_seed(8)
    x, w = (torch.randn(32, 32, generator=generator) for _ in range(2))
    weight = rooftop.quant.pack_weight(rooftop.quantize(w, "int8", group=32))
    calls = {
        "matmul": lambda t: rooftop.matmul(t, w, activation="gelu"),
        "attention": lambda t: rooftop.attention(*(t.view(1, 4, 8, 32),) * 3),
        "quantized_matmul": lambda t: rooftop.quantized_matmul(t, weight),
    }

    def both() -> list[torch.Tensor]:
        t = x.clone().requires_grad_()
        out = calls[name](t)
        return [calls[name](x), out, *torch.autograd.grad(out.square().sum(), t)]

    plain = both()
    with torch.autocast("cpu", torch.bfloat16):
        cast = both()
        assert (x @ w).dtype == torch.bfloat16  # it is on again
    for a, b in zip(cast, plain, strict=True):
        assert a.dtype == torch.float32
        # not of the same bits: with gradients under autocast the reference runs, else torch's own function
        torch.testing.assert_close(a, b)


def test_ops_are_found_by_name() -> None:
    """As a graph that torch compiled in an earlier process asks for them."""
    dispatch.register(registry.op("softmax"))
    for op in map(registry.op, registry.op_names()):
        assert getattr(torch.ops.rooftop, op.name).default
        assert hasattr(torch.ops.rooftop, f"{op.name}_bwd") == (op.bwd is not None)
    assert not hasattr(torch.ops.rooftop, "sofmax")


def test_an_op_is_found_by_name_when_the_thread_that_registers_it_is_done() -> None:
    dispatch.register(registry.op("softmax"))
    vars(torch.ops.rooftop).pop("softmax", None)  # torch keeps what it has found
    found: list[Any] = []
    asks = threading.Thread(target=lambda: found.append(torch.ops.rooftop.softmax))
    with library.registering:
        asks.start()
        asks.join(0.1)
        assert not found
    asks.join()
    assert found[0].default
