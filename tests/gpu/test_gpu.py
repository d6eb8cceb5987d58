"""On a GPU: every op as a user calls it. What runs, whether it is right, and under what: autograd, torch.compile, graphs, streams, threads."""

from __future__ import annotations

import contextlib
import gc
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from _support import results
from contracts.calls import LOOSE, Call, calls, differentiable, double, dtypes, every, first, gradients, ops, wrt

import rooftop
from rooftop.core import dispatch, registry
from rooftop.core.call import problem_for_kernels, select
from rooftop.core.contract import Contract, metas_of
from rooftop.core.head import HeadError
from rooftop.core.implementation import UnsupportedError
from rooftop.core.op import Op
from rooftop.core.spec import DTYPES, OF_TORCH, Case, Input, Meta
from rooftop.lab import public_calls
from rooftop.lab.check import checker, compare, judgement
from rooftop.lab.inputs import by_name, make
from rooftop.lab.timing import warm

if not torch.cuda.is_available():  # the file as one: its thousands of tests would each be collected, set up and reported
    pytest.skip("needs an NVIDIA GPU: torch.cuda.is_available() is False", allow_module_level=True)
pytestmark = pytest.mark.gpu
DEVICE = "cuda"

FORWARD = list(registry.op_names())
OPS = ops()
CALLS = every()
SMALL = 40_000  # elements of all tensors of a case
LARGE = 1 << 21


# -- which cases ---------------------------------------------------------------------------------------------------


def elements(op: Contract, case: Case) -> int:
    return sum(m.numel for _, m in op.problem(case).tensors if m is not None)


def ordinary(op: Contract) -> list[Case]:
    return [c for c in op.cases if not {"bench", "huge"} & c.tags]


def small(op: Contract) -> list[Case]:
    return [c for c in ordinary(op) if elements(op, c) <= SMALL]


def kind(op: Contract, case: Case) -> str:
    """What a case is there for: `empty` (one of its tensors is), a layout, a kind of values, or `plain`."""
    inputs = [v for _, v in case.tensors()]
    if op.idle(op.problem(case)) or any(m is not None and m.numel == 0 for _, m in op.problem(case).tensors):
        return "empty"
    layouts = [v.layout for v in inputs if v.layout != "contiguous"]
    fills = [v.fill for v in inputs if v.fill not in ("normal", "wide", "far") and not v.fill.startswith("below")]
    return (layouts or fills or ["plain"])[0]


def standing(op: Contract, dtype: str | None = None) -> list[Case]:
    """The cases of a dtype that are not empty, those that stand for the op first: small, with values of every day, odd where it has such."""

    def rank(c: Case) -> tuple[Any, ...]:
        size = elements(op, c)
        return kind(op, c) != "plain", size > SMALL, size <= 20, "odd" not in c.name, 0 if size <= SMALL else size

    return sorted((c for c in ordinary(op) if c.dtype == (dtype or c.dtype) and kind(op, c) != "empty"), key=rank)


def plain(op: Contract, dtype: str) -> Case:
    """The case that stands for an op."""
    found = standing(op, dtype)
    assert found, f"{op.name} has no case in {dtype} that is not empty"
    return found[0]


def themed(name: str) -> list[Case]:
    """The first case of each kind, all in one dtype, which is another from op to op: 16 bits and 32 get their turn."""
    op = registry.op(name)
    dtype = dtypes(op)[OPS.index(name) % len(dtypes(op))]
    first: dict[str, Case] = {}
    for c in small(op):
        if c.dtype == dtype:
            first.setdefault(kind(op, c), c)
    return [c for what, c in first.items() if what not in ("plain", "padded")]


PLAIN = [(name, d) for name in OPS for d in dtypes(registry.op(name))]
THEMED = [(name, c.id) for name in OPS for c in themed(name)]


Tensors = dict[str, torch.Tensor | None]


def arguments(name: str, case: Case, seed: int = 0) -> tuple[Tensors, dict[str, Any]]:
    """(tensors, options) of a case on the GPU, by name."""
    return make(registry.op(name), case, DEVICE, seed)


def same_bits(a: Any, b: Any) -> bool:
    pairs = list(zip(results(a), results(b), strict=True))
    return all((x is None) == (y is None) and (x is None or (x.shape == y.shape and checker.same_bits(x, y))) for x, y in pairs)


def outcome(op: Contract, tensors: Tensors, options: dict[str, Any]) -> tuple[Any, ...]:
    """What a call returns, and copies of what it wrote into."""
    made = results(op(*op.arguments(tensors, options)))
    return (*made, *(t.clone() for n in op.mutates if (t := tensors[n]) is not None))


def alike(op: Contract, a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two outcomes have the same bits. Of an output whose size is a result itself, what lies past that size means nothing."""

    def used(made: Sequence[Any]) -> tuple[Any, ...]:
        outputs = dict(zip(op.output_names, made, strict=False))
        return (*(judgement.used(op, n, t, outputs) for n, t in outputs.items()), *made[len(outputs) :])

    return same_bits(used(a), used(b))


def copied(tensors: Tensors) -> Tensors:
    return {n: None if t is None else t.clone() for n, t in tensors.items()}


def ran(name: str, case: Case) -> str | None:
    """The implementation that a call of this case takes, None for the reference."""
    op = registry.op(name)
    tensors, options = arguments(name, case)
    found = select(op, op.problem_of(metas_of(tensors), options, dispatch._device(torch.cuda.current_device()))).call
    return found and found.implementation.name


# -- right ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), PLAIN)
def test_an_eager_call_is_right_in_every_dtype_and_runs_a_kernel(name: str, dtype: str) -> None:
    op = registry.op(name)
    case = plain(op, dtype)
    found = checker.check_callable(op, case, op, name="eager", device=DEVICE)
    assert found.status == "ok", found.message
    kernels = registry.implementations((op.twin_of or op).name)
    assert not kernels or any(ran(name, c) is not None for c in (case, *standing(op, dtype))), "no kernel takes any"


@pytest.mark.parametrize(("name", "case"), THEMED)
def test_every_layout_empty_tensors_and_numbers_that_are_no_numbers(name: str, case: str) -> None:
    op = registry.op(name)
    found = checker.check_callable(op, op.case(case), op, name="eager", device=DEVICE)
    assert found.status == "ok", found.message


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.id)
def test_the_public_function_is_right_and_writes_no_input(call: Call) -> None:
    assert call.faults(DEVICE) == ""
    tensors = call.make(DEVICE)
    before = {n: t.clone() for n, t in tensors.items()}
    call.run(tensors)
    assert [n for n, t in tensors.items() if n not in call.op.mutates and not same_bits(t, before[n])] == []


ZEROS = {
    "add": lambda x: (rooftop.add(x, x), x + x),
    "gelu": lambda x: (rooftop.gelu(x), torch.nn.functional.gelu(x)),
    "silu": lambda x: (rooftop.silu(x), torch.nn.functional.silu(x)),
    "square": lambda x: (rooftop.square(x), x.square()),
    "swiglu": lambda x: (rooftop.swiglu(x, x.abs() + 1), torch.nn.functional.silu(x) * (x.abs() + 1)),
    "geglu": lambda x: (rooftop.geglu(x, x.abs() + 1), torch.nn.functional.gelu(x) * (x.abs() + 1)),
}


@pytest.mark.parametrize("name", ZEROS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_zeros_keep_their_sign_and_infinities_their_place(name: str, dtype: str) -> None:
    values = torch.tensor([-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-30], device=DEVICE)
    got, want = ZEROS[name](values.repeat(7).to(getattr(torch, DTYPES[dtype].torch)))
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    zero = want == 0
    assert torch.equal(got[zero], want[zero])
    settled = ~want.isnan()
    assert torch.equal(got[settled].signbit(), want[settled].signbit())


@pytest.mark.parametrize("call", [c for c in CALLS if differentiable(c)], ids=lambda c: c.id)
def test_gradients_are_those_of_float64(call: Call) -> None:
    tensors = call.make(DEVICE)
    got = gradients(call, call, tensors)
    want = gradients(call.op.reference, call, {n: double(t) for n, t in tensors.items()})
    for n, w in want.items():
        assert got[n].dtype == tensors[n].dtype
        loose = LOOSE[OF_TORCH[str(tensors[n].dtype).removeprefix("torch.")]] * (1 if call.op.options(call.case).get("precision", "ieee") == "ieee" else 100)
        torch.testing.assert_close(got[n].double(), w, rtol=0, atol=loose * float(w.abs().max()), msg=lambda text, n=n: f"{n}: {text}")


def largest(op: Contract) -> list[Case]:
    """The cases of up to 2^21 elements, the largest first; the smallest of all where each is larger."""
    found = sorted((c for c in op.cases if "huge" not in c.tags and 0 < elements(op, c) <= LARGE), key=lambda c: -elements(op, c))
    return found or [min((c for c in op.cases if elements(op, c)), key=lambda c: elements(op, c))]


@pytest.mark.parametrize("name", [n for n in OPS if registry.op(n).deterministic])
def test_twice_the_same_bits(name: str) -> None:
    """At the largest case of up to 2^21 elements: many programs, whose order is another each time."""
    op = registry.op(name)
    tensors, options = arguments(name, largest(op)[0])
    given = [tensors] * 3
    if op.into or op.mutates:  # written over: each call gets its own
        given = [copied(tensors) for _ in range(3)]
    found = [outcome(op, g, options) for g in given]
    assert alike(op, found[0], found[1])
    assert alike(op, found[0], found[2])


# -- under what torch has around it --------------------------------------------------------------------------------


def checkable(name: str) -> tuple[Any, ...]:
    """Arguments of the registered op, with gradients where it has any."""
    op = registry.op(name)
    tensors, options = arguments(name, plain(op, dtypes(op)[0]))
    for n, t in tensors.items():
        if t is not None and n in wrt(op) and differentiated(t):
            t.requires_grad_()
    return (*op.arguments(tensors, options), "")


def checks(given: tuple[Any, ...], *names: str) -> tuple[str, ...]:
    """Those checks of torch's that it can make: its own of the schema compares inputs by allclose, which it has for no 8-bit floats (and none smaller).
    That inputs are not written is asked of every call below."""
    tensors = [t for a in given for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)]
    return tuple(n for n in names if n != "test_schema" or not any(t.is_floating_point() and t.element_size() == 1 for t in tensors))


def test_a_tensor_that_is_negated_when_it_is_read() -> None:
    turned = torch.randn(6, 40, dtype=torch.complex64, device="cuda").conj().imag
    plain = turned.resolve_neg()
    assert turned.is_neg() and not plain.is_neg()
    assert torch.equal(rooftop.transpose(turned, 0, 1), plain.t())
    assert torch.equal(rooftop.topk(turned, 3)[0], rooftop.topk(plain, 3)[0])
    assert torch.equal(rooftop.reduce(turned, "sum"), rooftop.reduce(plain, "sum"))
    want = rooftop.rope(plain[None], order="bhsd")
    rooftop.rope_(turned[None], order="bhsd")
    assert torch.equal(turned, want[0])


@pytest.mark.parametrize("name", FORWARD)
def test_opcheck(name: str) -> None:
    given = checkable(name)
    every: tuple[str, ...] = ("test_schema", "test_autograd_registration", "test_faketensor")
    if not registry.op(name).sizes:  # it compares outputs whole; past a size that is a result itself they are not written
        every += ("test_aot_dispatch_dynamic",)
    torch.library.opcheck(dispatch.register(registry.op(name)), given, test_utils=checks(given, *every))


@pytest.mark.parametrize("name", [n for n in OPS if n not in FORWARD])
def test_opcheck_of_the_backward(name: str) -> None:
    given = checkable(name)
    torch.library.opcheck(dispatch.register(registry.op(name)), given, test_utils=checks(given, "test_schema", "test_faketensor"))


def differentiated(t: torch.Tensor) -> bool:
    """Whether torch carries a gradient of such a tensor: floating-point numbers of 16 bits or more."""
    return t.is_floating_point() and t.element_size() > 1


def narrow(name: str) -> Call:
    """Its first call in the narrowest dtype of its cases. An op whose public function takes or returns objects is called itself."""
    op = registry.op(name)
    if op.objects:
        return Call(op, plain(op, dtypes(op)[-1]), itself(op))
    return next((c for c in calls(name) if c.case.dtype == dtypes(op)[-1]), first(name))


def itself(op: Contract) -> Callable[..., Any]:
    """The op as a function with the signature of its reference; it returns the outputs that are there."""
    signature = inspect.signature(op.reference)

    def called(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        tensors, options = op.flattened(list(bound.arguments.values()))
        problem = op.problem_of(metas_of(tensors, addresses=False), options)
        made = by_name(op, op(*bound.arguments.values()))
        return tuple(made[n] for n in public_calls.returned(op, problem))

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


def families() -> dict[str, list[str]]:
    """The ops of each folder of kernels that can be compiled with their gradients, or without any. Objects are made outside of graphs."""
    found: dict[str, set[str]] = {}
    for f in registry.kernel_files():
        base = f.op if f.op in FORWARD else f.op.removesuffix("_bwd")
        if not registry.op(base).mutates and not registry.op(base).objects:
            found.setdefault(f.path.parent.name, set()).add(base)
    return {k: sorted(v) for k, v in sorted(found.items())}


@pytest.mark.parametrize("family", families())
def test_compiled_whole_it_is_what_it_is_in_eager_mode(family: str) -> None:
    """All ops of a family in one graph, forward and backward, by torch's default compiler."""
    called = [narrow(n) for n in families()[family]]
    tensors = {f"{c.op.name}.{n}": t for c in called for n, t in c.make(DEVICE).items()}
    leaves = [f"{c.op.name}.{n}" for c in called for n, t in c.make().items() if n in wrt(c.op) and differentiated(t)]
    parts = [c.parts() for c in called]

    def whole(**given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made: list[torch.Tensor] = []
        for c, (places, fixed) in zip(called, parts, strict=True):
            found = {k: [given[f"{c.op.name}.{n}"] for n in v] if isinstance(v, list) else given[f"{c.op.name}.{v}"] for k, v in places.items()}
            made += results(c.function(**found, **fixed))
        return tuple(made)

    def flowed(function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        given = {n: t.detach().clone().requires_grad_() if n in leaves else t for n, t in tensors.items()}
        made = [o for o in function(**given) if o.requires_grad]
        g = torch.Generator().manual_seed(11)
        flow = [torch.randn(o.shape, generator=g).to(o.device, o.dtype) for o in made]
        return torch.autograd.grad(made, [given[n] for n in leaves], flow, materialize_grads=True)

    torch.compiler.reset()
    compiled = torch.compile(whole, fullgraph=True, dynamic=False)
    with torch.no_grad():
        assert same_bits(compiled(**tensors), whole(**tensors))
    if leaves:
        for n, got, want in zip(leaves, flowed(compiled), flowed(whole), strict=True):
            loose = LOOSE[OF_TORCH[str(want.dtype).removeprefix("torch.")]]  # the compiler rounds to 16 bits elsewhere than eager torch does
            torch.testing.assert_close(got, want, rtol=0, atol=loose * float(want.abs().max()), msg=lambda text, n=n: f"{n}: {text}")


def two_values(op: Contract, cases: Sequence[Case]) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Tensors of a case with two sets of values, of which the op makes different results, and the options: of the first case and seed that have such.
    Skips where none has: the results do not depend on values (a mask of a window alone)."""
    for case in (c for c in cases if all(v.layout != "expanded" for _, v in c.tensors())):
        held, options = arguments(op.name, case, seed=1)
        before = outcome(op, copied(held), options)
        for seed in (2, 3, 4, 5):
            values, _ = arguments(op.name, case, seed=seed)
            fill(into := copied(held), values)
            if not alike(op, before, outcome(op, into, options)):
                return held, values, options
    pytest.skip("no small case in which its results depend on the values of its tensors")


def fresh(name: str) -> tuple[Op, Tensors, Tensors, dict[str, Any], Any]:
    """An op, tensors that hold one set of values, those of another, options, and the result of the other."""
    op = registry.op(name)
    held, values, options = two_values(op, [c for c in standing(op) if c.dtype == dtypes(op)[0]] + standing(op))
    fill(into := copied(held), values)
    want = outcome(op, into, options)
    torch.cuda.synchronize()
    return op, held, values, options, want


def fill(held: Tensors, values: Tensors) -> None:
    for n, v in values.items():
        if v is not None:
            held[n].copy_(v)


@pytest.mark.parametrize("name", OPS)
def test_a_captured_graph_computes_anew_from_new_inputs(name: str) -> None:
    op, held, values, options, want = fresh(name)
    graph = torch.cuda.CUDAGraph()
    outcome(op, held, options)
    with torch.cuda.graph(graph):
        made = outcome(op, held, options)
    fill(held, values)
    graph.replay()
    torch.cuda.synchronize()
    assert alike(op, made, want)


@pytest.mark.parametrize("name", OPS)
def test_a_call_runs_on_the_current_stream(name: str) -> None:
    """The stream is kept busy, then gives the inputs their values: whatever ran elsewhere would read the old ones."""
    op, held, values, options, want = fresh(name)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # cycles: some 10 ms
        fill(held, values)
        made = outcome(op, held, options)
    stream.synchronize()
    assert alike(op, made, want)


@pytest.mark.parametrize("name", OPS)
def test_a_call_waits_for_what_its_stream_waits_for(name: str) -> None:
    """The inputs get their values on another stream, which is kept busy first. The kernel before the call has long ended by then: a launch that began as
    soon as it might begin early would read the old ones."""
    op, held, values, options, want = fresh(name)
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(20_000_000)  # cycles: some 10 ms
        fill(held, values)
    with torch.cuda.stream(stream):
        outcome(op, held, options)
        stream.wait_stream(other)
        made = outcome(op, held, options)
    stream.synchronize()
    assert alike(op, made, want)


@pytest.mark.parametrize("name", [n for n in OPS if registry.op(n).deterministic])
def test_a_call_reads_what_the_kernel_right_before_it_writes(name: str) -> None:
    """Inputs of up to 2^21 elements change from call to call, with no pause: a launch that began early and did not wait would read the values before."""
    op = registry.op(name)
    held, other, options = two_values(op, largest(op))
    values = [copied(held), other]
    wants = []
    for given in values:
        fill(held, given)
        torch.cuda.synchronize()
        wants.append(tuple(r if r is None else r.clone() for r in outcome(op, held, options)))
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)  # so that all of them are queued before the first begins
    made = []
    for i in range(20):
        fill(held, values[i % 2])
        made.append(tuple(r if r is None else r.clone() for r in outcome(op, held, options)))
    torch.cuda.synchronize()
    assert [i for i, found in enumerate(made) if not alike(op, found, wants[i % 2])] == []


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_that_call_at_once_get_their_own_results(threads: int) -> None:
    """Each on a stream of its own, with shapes of its own and one that all share; nothing is planned before."""
    names = ["softmax", "add", "matmul", "rms_norm", "cross_entropy"]
    gate = threading.Barrier(threads, timeout=600)

    def job(index: int) -> list[str]:
        g = torch.Generator(device=DEVICE).manual_seed(index)
        wrong: list[str] = []
        stream = torch.cuda.Stream()
        for rows in (16, 3 + index):
            x = torch.randn(rows, 96 + 8 * (rows % 5), device=DEVICE, generator=g)
            w = torch.randn(x.shape[1], device=DEVICE, generator=g)
            t = torch.randint(0, x.shape[1], (rows,), device=DEVICE, generator=g)
            want = (x.softmax(-1), x + x, x @ x.t(), torch.nn.functional.rms_norm(x, w.shape, w, 1e-6), torch.nn.functional.cross_entropy(x, t))
            torch.cuda.synchronize()
            gate.wait()
            with torch.cuda.stream(stream):
                for _ in range(10):
                    got = (rooftop.softmax(x), rooftop.add(x, x), rooftop.matmul(x, x.t()), rooftop.rms_norm(x, w.shape, w, 1e-6), rooftop.cross_entropy(x, t))
                    stream.synchronize()
                    wrong += [f"{n}, {rows} rows" for n, a, b in zip(names, got, want, strict=True) if not torch.allclose(a, b, rtol=1e-4, atol=1e-4)]
        return wrong

    for name in names:
        registry.op(name)._plans.clear()
    with ThreadPoolExecutor(threads) as pool:
        assert [w for found in pool.map(job, range(threads)) for w in found] == []


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "cross_entropy", "gelu", "swiglu"])
def test_row_counts_never_seen_before(name: str, backward: bool) -> None:
    forward = registry.op(name)
    op = forward.bwd if backward else forward
    assert op is not None
    case = warm.kinds(forward, "bf16")[0]
    names = warm.rows_and_columns(case)
    assert names is not None
    for rows in (7, 513, 514, 700, 701, 1000, 2001, 2002, 2003, 4097, 5000, 5001, 9999, 10001):
        sized = warm.resized(case, {names[0]: rows, names[1]: 1024})
        expected = judgement.expect(op, sized, DEVICE, rows)
        got = by_name(op, op(*op.arguments(expected.tensors, expected.options)))
        assert [v.message for v in judgement.judge(op, sized, expected, got).values() if not v.ok] == [], rows


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", FORWARD)
def test_tensors_of_another_gpu_than_the_current_one(name: str) -> None:
    call = narrow(name)
    tensors = call.make("cuda:1")
    with torch.cuda.device(0):
        made = call.run(tensors)
        torch.cuda.synchronize(1)
        assert {r.device for r in made} <= {torch.device("cuda", 1)}
        assert call.faults("cuda:1") == ""
        assert torch.cuda.current_device() == 0
    mixed = {n: t.to("cuda:0") if i == 0 else t for i, (n, t) in enumerate(tensors.items())}
    if len(mixed) > 1:
        with pytest.raises(ValueError, match="cuda"):
            call.run(mixed)


@pytest.mark.parametrize("name", FORWARD)
def test_a_call_leaves_no_memory_behind(name: str) -> None:
    call = narrow(name)
    tensors = call.make(DEVICE)
    call.run(tensors)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        call.run(tensors)
    assert torch.cuda.memory_allocated() <= before


# -- which implementation ------------------------------------------------------------------------------------------


def kernels_of(function: Callable[[], Any]) -> list[str]:
    """The names of the kernels that ran, as the profiler gives them."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        function()
        torch.cuda.synchronize()
    return [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]


@pytest.fixture(scope="module")
def profiler() -> Iterator[None]:
    x = torch.ones(1000, device=DEVICE)
    if not kernels_of(lambda: x + x):
        pytest.skip("the profiler sees no kernel here")
    yield


@pytest.mark.parametrize("name", FORWARD)
def test_explain_names_what_runs(name: str, profiler: None) -> None:
    op = registry.op(name)
    others = [Call(op, c, itself(op)) for c in small(op) if kind(op, c) != "empty"] if op.objects else calls(name)
    for call in (narrow(name), *others):
        tensors = call.make(DEVICE)
        given = call.keywords(tensors)
        found = call.op.explain(*call.arguments(tensors)) if call.op.objects else rooftop.explain(call.function, **given)
        assert found.choice is not None
        if found.choice.call is None and not found.choice.rejected:
            pytest.skip("it has no kernel yet")
        if found.choice.call is not None:  # else the kernels refuse it, and the reference runs
            break
    assert found.choice is not None and found.choice.call is not None
    implementation = found.choice.call.implementation
    assert str(found).splitlines()[0].startswith(f"{name} on {torch.cuda.get_device_name()}: {implementation.name}: ")
    wanted = [kernel.partition("<")[0] for kernel in found.choice.call.path]
    call.function(**given)
    names = kernels_of(lambda: call.function(**given))
    for want in wanted:
        assert any(re.search(rf"\b{re.escape(want)}\b", name) for name in names), (want, names)


@pytest.mark.parametrize("name", [f.name for f in registry.kernel_files()])
def test_a_named_implementation_runs_or_raises(name: str) -> None:
    """Right on the first case that it takes; of the first that it refuses it says why."""
    implementation = registry.implementation(name)
    op, device = registry.op(implementation.op), dispatch._device(torch.cuda.current_device())
    taken: Case | None = None
    refused: tuple[Case, str] | None = None
    for c in sorted(small(op), key=lambda c: "odd" not in c.name):
        if kind(op, c) == "empty":
            continue
        reason = implementation.supports(problem_for_kernels(op, op.problem(c, device))[0])
        if reason is None:
            taken = taken or c
        else:
            refused = refused or (c, reason)
    assert taken is not None or refused is not None
    if taken is not None:
        found = checker.check_callable(op, taken, lambda *a: op(*a, implementation=name), name=name, device=DEVICE)
        if (absent := implementation.builds()) and "AbsentCompiler" in found.message:
            pytest.skip(absent)
        assert found.status == "ok", (taken.id, found.message)
    if refused is not None:
        tensors, options = arguments(op.name, refused[0])
        with pytest.raises(UnsupportedError, match=re.escape(name)):
            op(*op.arguments(tensors, options), implementation=name)


def test_another_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(registry.RegistryError, match="did you mean 'softmax__triton'"):
        rooftop.softmax(torch.ones(3, 5, device=DEVICE), implementation="softmax__tritn")


# -- beyond 2^31 elements ------------------------------------------------------------------------------------------

HUGE = [(n, c.id) for n in OPS for c in registry.op(n).cases if "huge" in c.tags]
HIGH = 1 << 31
SOME, FILLER = 2, 5  # rows at each place that are looked at; rows that the others repeat


@dataclass(frozen=True)
class Rows:
    """A case of which few rows are looked at: `extent` is how many it has, wherever that extent stands in its tensors. `places`: those that are looked at."""

    op: Contract
    case: Case
    extent: int
    places: tuple[int, ...]

    def axis(self, meta: Meta | None) -> int | None:
        return None if meta is None or self.extent not in meta.shape else meta.shape.index(self.extent)

    def few(self, count: int) -> Case:
        """The case with so many rows."""

        def cut(v: Any) -> Any:
            if isinstance(v, tuple):
                return tuple(map(cut, v))
            return replace(v, shape=tuple(count if e == self.extent else e for e in v.shape)) if isinstance(v, Input) else v

        return Case(f"{self.case.name}, {count} rows", {n: cut(v) for n, v in self.case.inputs.items()}, self.case.tags)

    @cached_property
    def axes(self) -> dict[str, int]:
        """Tensor -> the dimension of its rows."""
        return {n: i for n, m in self.op.problem(self.case).tensors if (i := self.axis(m)) is not None}

    def alone(self, device: str) -> bool:
        """Whether each row of a result depends on its own row of the inputs and on what has no rows: seen on a few of them, in another order."""
        op, picked = self.op, [4, 1, 5]
        tensors, options = make(op, self.few(6), device, 0)
        part = {n: t if t is None or n not in self.axes else t.index_select(self.axes[n], torch.tensor(picked, device=device)) for n, t in tensors.items()}
        whole, cut = (by_name(op, op.reference(*op.arguments({n: t if t is None else double(t) for n, t in g.items()}, options))) for g in (tensors, part))
        pairs = [(whole[n].index_select(self.axes[n], torch.tensor(picked, device=device)), cut[n]) for n in op.output_names if n in self.axes]
        finite = all(bool(a.double().isfinite().all()) for a, _ in pairs)  # classes that are fewer than the targets say, for one
        return bool(pairs) and finite and all(a.shape == b.shape and torch.allclose(a.double(), b.double()) for a, b in pairs)


def rows_of(op: Contract, case: Case, device: str, high: int = HIGH) -> Rows | None:
    """The rows by which a case can be looked at, of an extent of its largest tensor: those of which there are most. None where none stand alone."""
    if op.mutates or op.list_names or op.fixup:
        return None
    metas = [m for _, m in op.problem(case).tensors if m is not None]
    shape = max(metas, key=lambda m: m.numel).shape
    for extent in sorted({e for e in shape if e > 6 * SOME + FILLER}, reverse=True):
        if any(m.shape.count(extent) > 1 for m in metas):
            continue
        inner = prod(shape[shape.index(extent) + 1 :])
        middle = high // inner % extent
        places = sorted({r for m in (0, middle, extent) for r in range(max(m - SOME, 0), min(m + SOME, extent))})
        found = Rows(op, case, extent, tuple(places))
        with contextlib.suppress(RuntimeError, ValueError, IndexError, KeyError):  # its sizes depend on each other
            if found.alone(device):
                return found
    return None


def spread(few: torch.Tensor, axis: int, rows: int, places: Sequence[int]) -> torch.Tensor:
    """A tensor of so many rows: those of `few` at `places`, and all others repeat the rest of `few`, so that what is read elsewhere is seen."""
    bits = few.view(torch.uint8 if few.element_size() == 1 else getattr(torch, f"int{8 * few.element_size()}"))
    whole = bits.new_empty([rows if i == axis else e for i, e in enumerate(few.shape)])
    rest = few.shape[axis] - len(places)
    whole.narrow(axis, 0, min(rest, rows)).copy_(bits.narrow(axis, len(places), min(rest, rows)))
    done = rest
    while done < rows:
        step = min(done, rows - done)
        whole.narrow(axis, done, step).copy_(whole.narrow(axis, 0, step))
        done += step
    for i, place in enumerate(places):
        whole.select(axis, place).copy_(bits.select(axis, i))
    return whole.view(few.dtype)


def judged_by_rows(rows: Rows, device: str) -> dict[str, compare.Verdict]:
    """What is computed of the whole case, at the places that are looked at; the rest is not compared."""
    op, count = rows.op, len(rows.places)
    expected = judgement.expect(op, rows.few(count + FILLER), device, 0)
    problem = op.problem(rows.case)
    tensors = {n: t if t is None or n not in rows.axes else spread(t, rows.axes[n], rows.extent, rows.places) for n, t in expected.tensors.items()}
    made = by_name(op, op(*op.arguments(tensors, op.options(rows.case))))
    found = {}
    for n in op.output_names:
        if (meta := problem.get(n)) is None or n not in rows.axes:
            continue
        assert made[n].shape == meta.shape
        axis, tolerance = rows.axes[n], op.tolerance_of(n)
        got = torch.stack([made[n].select(axis, place) for place in rows.places], axis)
        exact, same = (t[n].narrow(axis, 0, count) for t in (expected.exact, expected.same))
        found[n] = compare.compare(got, exact, same, meta.dtype, tolerance.multiple, tolerance.exact)
    return found


@pytest.mark.parametrize(("name", "case"), HUGE)
def test_elements_beyond_two_to_the_31(name: str, case: str) -> None:
    """The first rows, the last and those around 2^31 are right; the whole is not compared."""
    op = registry.op(name)
    rows = rows_of(op, op.case(case), DEVICE)
    if rows is None:
        pytest.skip("its rows cannot be looked at alone: rooftop check --tag huge judges the whole")
    need = 1.25 * sum(m.nbytes for _, m in op.problem(op.case(case)).tensors if m is not None) + (1 << 30)
    gc.collect()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < need:
        pytest.skip(f"needs {need / 2**30:.0f} GiB of free memory; there are {free / 2**30:.0f}")
    try:
        found = judged_by_rows(rows, DEVICE)
        assert found and {n: v.message for n, v in found.items() if not v.ok} == {}
    except torch.OutOfMemoryError:
        pytest.skip("another process has taken the memory")
    finally:
        gc.collect()
        torch.cuda.empty_cache()


# -- a kernel of one's own -----------------------------------------------------------------------------------------

ADD = """/* rooftop
op      = "add"
dtypes  = ["f32", "bf16"]
args    = ["n: i64 = numel(x)", "x: T[N]", "y: T[N]", "out: T[N]"]
[requires]
"N <= 1000000" = "it is a small kernel"
[[launch]]
kernel  = "add<{T}>"
grid    = ["ceil(N / 256)"]
block   = [256]
*/
#include <cuda_bf16.h>

template <typename T> __global__ void add(long long n, const T* x, const T* y, T* out) {
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = static_cast<T>(static_cast<float>(x[i]) + static_cast<float>(y[i]));
}
"""
PRODUCT = """/* rooftop
op      = "matmul"
dtypes  = ["f32"]
args    = ["M: i32", "N: i32", "K: i32", "a: T[M, K]", "lda: i64 = stride(a, 0)", "b: T[K, N]", "ldb: i64 = stride(b, 0)", "c: T[M, N]?",
           "ldc: i64 = stride(c, 0)", "out: T[M, N]", "alpha: f32", "beta: f32"]
without = ["bias", "gate", "residual"]
[[launch]]
kernel  = "product"
grid    = ["ceil(N / 16)", "ceil(M / 16)"]
block   = [16, 16]
*/
__global__ void product(int M, int N, int K, const float* a, long long lda, const float* b, long long ldb, const float* c, long long ldc, float* out,
                        float alpha, float beta) {
    int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
    if (i >= M || j >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += a[i * lda + k] * b[k * ldb + j];
    out[i * static_cast<long long>(N) + j] = alpha * sum + (c == nullptr || beta == 0 ? 0.0f : beta * c[i * ldc + j]);
}
"""


def test_a_file_of_ones_own_runs_and_is_right(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(ADD)
    mine = rooftop.load(path)
    assert repr(mine) == "<mine.cu: add(x, y)>"
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((1003,), (7, 33)):
            x, y = torch.randn(shape, device=DEVICE).to(dtype), torch.randn(shape, device=DEVICE).to(dtype)
            assert torch.equal(mine(x, y), x + y)
    x, y = torch.randn(20, 36, device=DEVICE).t(), torch.randn(36, 20, device=DEVICE)
    assert torch.equal(mine(x=x, y=y), x + y)
    assert torch.equal(rooftop.load("other.cu", source=ADD)(y, y), y + y)


def test_options_and_absent_tensors_reach_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "product.cu"
    path.write_text(PRODUCT)
    mine = rooftop.load(path)
    a, b, c = (torch.randint(-4, 5, s, device=DEVICE).float() for s in ((19, 33), (33, 21), (19, 21)))  # sums are exact
    assert torch.equal(mine(a, b, alpha=0.5, beta=0.0), 0.5 * (a @ b))
    assert torch.equal(mine(a, b, c, alpha=0.5, beta=2.0), 0.5 * (a @ b) + 2.0 * c)
    assert torch.equal(mine(a[:, :16], b[:16], c, alpha=1.0, beta=-1.0), a[:, :16] @ b[:16] - c)
    with pytest.raises(TypeError, match="bias is a float; it must be a tensor"):
        mine(a, b, c, 0.5, 2.0)


def test_a_file_of_ones_own_refuses_what_it_cannot_take(tmp_path: Path) -> None:
    mine = rooftop.load("mine.cu", source=ADD)
    x = torch.ones(8, device=DEVICE)
    with pytest.raises(UnsupportedError, match=r"mine cannot take this input: .*takes f32, bf16"):
        mine(x.half(), x.half())
    with pytest.raises(UnsupportedError, match="it is a small kernel"):
        mine(torch.ones(1_000_001, device=DEVICE), torch.ones(1_000_001, device=DEVICE))
    with pytest.raises(UnsupportedError, match="is 0; it must be"):
        mine(x[:0], x[:0])
    assert torch.equal(mine(x.cpu(), x.cpu()), 2 * x.cpu())  # simulated
    with pytest.raises(ValueError, match="must be on one device"):
        mine(x, x.cpu())
    with pytest.raises(TypeError, match="lacks y"):
        mine(x)
    with pytest.raises(HeadError, match="no head"):
        rooftop.load("mine.cu", source="__global__ void k() {}")
    with pytest.raises(ValueError, match=r"mine\.cu\(\d+\): error"):
        rooftop.load("mine.cu", source=ADD.replace("if (i < n)", "if (i < n"))(x, x)
