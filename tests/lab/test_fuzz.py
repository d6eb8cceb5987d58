"""Random calls: what is drawn, what is found, how it is made smaller, what a deadly call does. And a fixed number of calls, others for each commit."""

from __future__ import annotations

import _thread
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # whole, before any test interrupts this process: what is left of an import that Ctrl-C ends cannot be imported again
from _support import command, flat

import rooftop
from rooftop.core import registry, settings
from rooftop.core.call import select
from rooftop.core.spec import TARGETS, Meta
from rooftop.lab import public_calls
from rooftop.lab.fuzz import campaign, drafts, judge
from rooftop.lab.fuzz.drafts import CPU, Draft, Fill, Layout, Turn
from rooftop.lab.fuzz.judge import Outcome

CALLS = 6  # of each op in a run of the tests


def seed() -> int:
    """The commit's, so that each brings other calls; a constant without git."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=settings.CHECKOUT, capture_output=True, text=True, check=False)
    return int(found.stdout[:7], 16) if found.returncode == 0 else 7


CALLED = [
    pytest.param(n, marks=pytest.mark.sampled("fuzz", *(i.name for i in registry.implementations(n))))
    for n in registry.op_names() if not registry.op(n).objects
]


@pytest.mark.parametrize("name", CALLED)
def test_random_calls_are_right(name: str) -> None:
    summary = campaign.run([name], seed=seed(), calls=CALLS)
    assert [f.text("cpu") for f in summary.findings] == []
    assert summary.calls > CALLS // 2, "most draws are refused: the fuzzer cannot see how this op is called"


def draft(op: str, case: str, sizes: dict[int, int], **more: Any) -> Draft:
    contract = registry.op(op)
    found = next(c for c in contract.cases if c.name == case and c.dtype == "f32")
    return Draft(op, found.id, 5, sizes, options=contract.options(found), **more)


# -- what users met ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled("fuzz")
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
@pytest.mark.parametrize(("rows", "classes"), [(40, 256), (9, 1601), (1, 300)])
def test_the_gradient_of_cross_entropy_is_as_exact_as_torchs_where_logits_are_large(rows: int, classes: int, scale: float) -> None:
    one = draft("cross_entropy", "odd 7x33", {7: rows, 33: classes}, fills={"input": Fill("normal", scale)}, mode="grad", wants=("input",))
    outcome = judge.run(one, "cpu")
    assert outcome.messages == []
    assert len(outcome.ran) == 2, "the public function and the kernels"


@pytest.mark.parametrize("strides", [((0,), (1,)), ((1,), (5,))])
def test_strides_of_extents_of_one_say_nothing(strides: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    op = registry.op("add")
    problem = op.problem_of({n: Meta((1,), "f32", s) for n, s in zip(("x", "y"), strides, strict=True)}, {}, TARGETS[90])
    call = select(op, problem).call
    assert call is not None and call.copies == ()


def test_on_the_cpu_torchs_own_rounding_and_layouts_are_no_ones() -> None:
    """Each was a finding: torch's function errs there, or reads another layout."""
    row = torch.arange(14, dtype=torch.int8)
    assert rooftop.int_matmul(row.as_strided((1, 14), (1, 1)), row.as_strided((14, 1), (1, 1))).item() == int((row.long() ** 2).sum())
    x = torch.tensor([[1.0, 3.0], [float("nan"), 2.0]], requires_grad=True)
    (found,) = torch.autograd.grad(rooftop.reduce(x, "max", (1,)).sum(), x)
    assert found.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert rooftop.group_norm(torch.full((2, 4, 3), 1.3), 2).abs().max() == 0
    assert rooftop.layer_norm(torch.full((3, 5), 100.0, dtype=torch.float16), (5,)).abs().max() == 0
    exact = 16 * torch.tensor(4.0, dtype=torch.float64).log().item()
    assert abs(rooftop.cross_entropy(torch.zeros(16, 4), torch.zeros(16, dtype=torch.int64), reduction="sum").item() - exact) < 2e-6


# -- drawing ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_calls_and_all_kinds_of_them() -> None:
    op = registry.op("layer_norm")
    found = [d for i in range(150) if (d := drafts.draw(op, 3, i, CPU, gpu=True)) is not None]
    assert found[:20] == [drafts.draw(op, 3, i, CPU, gpu=True) for i in range(20)]
    assert found != [drafts.draw(op, 4, i, CPU, gpu=True) for i in range(len(found))]
    layouts = [x for d in found for n, x in d.layouts.items() if n in d.tensors]
    for kind in ("order", "pad", "window", "still", "offset"):
        assert any(getattr(x, kind) for x in layouts), kind
    assert any(x.step > 1 for x in layouts)
    assert {d.mode for d in found} >= {"eager", "grad"}
    assert any(d.stream for d in found) and any(d.again for d in found)
    assert {f.sown for d in found for f in d.fills.values()} >= {"", "nan", "inf"}
    assert {len(d.tensors) for d in found} >= {1, 2, 3}
    extents = {e for d in found for shape, _, _ in d.tensors.values() for e in shape}
    assert {0, 1} < extents and any(e % 2 for e in extents if e > 100) and any(e % 64 == 0 for e in extents if e > 60)


@pytest.mark.parametrize("layout", [Layout(), Layout(order=(1, 0)), Layout(pad=3), Layout(step=2), Layout(window=2), Layout(still=(0,)), Layout(offset=5)])
def test_a_tensor_lies_as_its_layout_says(layout: Layout) -> None:
    x = draft("gelu", "odd", {1003: 24}, layouts={"x": layout})
    tensors, _, _ = x.make("cpu")
    assert tensors["x"].shape == (24,)
    assert tensors["x"].stride() == layout.strides((24,)) and tensors["x"].storage_offset() == layout.offset
    assert Layout(order=(1, 0)).strides((4, 6)) == (1, 4)
    assert Layout(window=2).strides((4, 6)) == (2, 1)
    assert Layout(window=500_000_000).strides((4, 6)) == (6, 1)
    assert Layout(pad=3, step=2).strides((4, 6)) == (15, 2)


# -- findings -----------------------------------------------------------------------------------------------------------


def planted(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[..., Any]) -> None:
    real = public_calls.function

    def function(op: Any) -> Any:
        return change if op.name == name else real(op)

    monkeypatch.setattr(public_calls, "function", function)


@pytest.mark.sampled("slow")
def test_a_wrong_tail_is_found_made_small_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(input: torch.Tensor) -> torch.Tensor:
        y = rooftop.square(input)
        return torch.cat((y.flatten()[:-1], y.flatten()[-1:] * 1.5)).view(y.shape) if y.numel() % 8 == 3 else y

    planted(monkeypatch, "square", wrong)
    summary = campaign.run(["square"], seed=1, calls=60)
    assert summary.findings
    small = summary.findings[0]
    extents = [e for shape, _, _ in small.draft.tensors.values() for e in shape]
    assert torch.Size(extents).numel() <= 11, small.text("cpu")
    text = small.text("cpu")
    assert len(text.splitlines()) <= 8 and "largest error" in text
    found: dict[str, Any] = {}
    exec(text, found)
    assert found["found"].shape == found["input" if "input" in found else "x"].shape


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("was written", lambda input: (rooftop.square(input), input.zero_())[0]),
        ("second call", lambda input: rooftop.square(input) + torch.rand(()) * 1e-30 + torch.rand(()) * 2e-8),
        ("ZeroDivisionError", lambda input: 1 // 0 if input.numel() % 2 else rooftop.square(input)),
        ("strides", lambda input: rooftop.square(input).t().contiguous().t() if input.dim() == 2 else rooftop.square(input)),
        ("shape", lambda input: rooftop.square(input)[:0]),
    ],
)
def test_other_faults_are_found(monkeypatch: pytest.MonkeyPatch, what: str, change: Callable[..., Any]) -> None:
    planted(monkeypatch, "square", change)
    one = draft("square", "one block", {2: 3, 2048: 7}, again=True)
    assert any(what in m for m in judge.run(one, "cpu").messages)


def test_a_gradient_that_loses_exactness_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rough(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g[0] * (1 + 1e-5)

    planted(monkeypatch, "square", Rough.apply)
    one = draft("square", "one block", {2: 3, 2048: 7}, mode="grad", wants=("x",))
    assert any("gradient of x" in m for m in judge.run(one, "cpu").messages)


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_gradient_over_its_input_is_judged_by_the_input_as_it_was(monkeypatch: pytest.MonkeyPatch, dtype: str, shift: float) -> None:
    """As on a GPU, where the backward writes there. A gradient off by `shift` is still found."""
    op = registry.op("cross_entropy")
    monkeypatch.setattr(op, "cpu", None)  # as on a GPU
    monkeypatch.setattr(op, "_call", None)
    op.caller()
    real = op.bwd
    assert real is not None

    class InPlace:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def __call__(self, *args: Any) -> torch.Tensor:
            with torch.no_grad():
                return args[1].detach().copy_(real(*args) + shift)

    monkeypatch.setattr(op, "bwd", InPlace())
    options = dict(op.options(op.case(f"in place {dtype}")))
    one = Draft("cross_entropy", f"in place {dtype}", 7, {20: 3, 300: 5}, options=options, mode="grad", wants=("input",))
    found = judge._judged(one, "cpu", judge.public)[0]
    assert bool(found) == bool(shift), found


def test_what_the_same_precision_had_exactly_by_luck_is_judged_over_other_draws_too() -> None:
    exact = torch.zeros(1, dtype=torch.float64)
    lucky = judge.Item(torch.full((1,), 5e-7), exact, torch.zeros(1), judge.GRADIENT)
    verdict = judge._verdict(lucky)
    assert not verdict.ok
    assert judge._inexact(lucky, verdict)
    others = [judge.Item(torch.full((1,), 3e-7), exact, torch.full((1,), e), judge.GRADIENT) for e in (2e-7, -4e-7, 1e-7)]
    assert judge._over_draws([lucky, *others]).ok
    assert not judge._over_draws([lucky, lucky]).ok
    nan = judge.Item(torch.full((1,), float("nan")), exact, torch.zeros(1), judge.GRADIENT)
    assert not judge._inexact(nan, judge._verdict(nan))


def test_a_call_without_the_memory_for_it_is_skipped() -> None:
    assert judge.run(draft("gelu", "odd", {1003: 1 << 46}), "cpu").status == "skipped"


# -- calls that kill ----------------------------------------------------------------------------------------------------


class Fragile:
    """Dies of a call of 13 elements that comes after one of 5."""

    def __init__(self) -> None:
        self.history: list[Draft] = []

    def run(self, one: Draft) -> Outcome:
        self.history.append(one)
        sizes = [n for d in self.history for (n,), _, _ in d.tensors.values()]
        return Outcome("dead" if sizes[-1] == 13 and 5 in sizes else "ok", ["gone"])

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_what_kills_only_after_another_call_is_bisected() -> None:
    calls = [draft("gelu", "odd", {1003: n}) for n in (1, 2, 5, 3, 4, 6, 7, 13)]
    runner = Fragile()
    outcomes = [runner.run(d) for d in calls]
    found = campaign._explained(calls[-1], outcomes[-1], runner, Fragile)
    assert found.before == tuple(calls[2:-1])


@pytest.mark.sampled("slow")
def test_a_child_answers_and_its_death_is_no_ones_else() -> None:
    child = campaign.Child("cpu")
    try:
        fine = draft("gelu", "odd", {1003: 9})
        assert child.run(fine).status == "ok"
        assert child._process is not None
        child._process.kill()
        child._process.wait()
        assert child.run(fine).status == "dead"
        assert child.run(replace(fine, seed=6)).status == "ok"
        turn = Turn("gelu", 1, 0, CPU, False)
        drawn, outcome = child.answer(turn)
        assert drawn == turn.draw() and outcome.status == "ok"
        assert child.history[-1] == drawn
    finally:
        child.close()


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seconds", "0"), "--seconds is 0; it must be above 0"),
        (("--calls", "0"), "--calls is 0; it must be at least 1"),
        (("--seed", "-1", "--calls", "1"), "--seed is -1; it must be 0 to 2**31 - 1"),
        (("--seed", str(2**31), "--calls", "1"), "it must be 0 to 2**31 - 1"),
        (("gelus", "--calls", "1"), "no op 'gelus'"),
        (("gelu", "prune_24", "--calls", "1"), "fuzz does not draw calls of prune_24"),
    ],
)
def test_bad_input_is_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert command(monkeypatch, "fuzz", *words) == 1
    assert said in flat(capsys.readouterr().err)


def test_the_command_counts_and_ends_with_1_on_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "fuzz", "square", "--calls", "3", "--seed", "1", "--cpu") == 0
    assert "3 calls on cpu, seed 1" in capsys.readouterr().out
    planted(monkeypatch, "square", lambda input: rooftop.square(input) + 1)
    assert command(monkeypatch, "fuzz", "square", "--calls", "3", "--seed", "1", "--cpu") == 1
    assert "rooftop.square" in capsys.readouterr().out


@pytest.mark.sampled("slow")
def test_several_at_a_time_on_a_cpu_run_in_processes_of_their_own() -> None:
    found = campaign.run(["softmax", "add"], seed=5, calls=6, jobs=2)
    assert found.calls == 6 and not found.findings


class Endless:
    """Finds something wrong with everything; the main thread is interrupted while the first finding is made smaller."""

    calls = 0

    def run(self, draft: Draft) -> Outcome:
        Endless.calls += 1
        if Endless.calls == 4:
            _thread.interrupt_main()
        time.sleep(0.2 if Endless.calls >= 4 else 0)
        return Outcome("finding", ["wrong"])

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_ctrl_c_ends_the_search_for_a_simpler_call_too() -> None:
    Endless.calls = 0
    found = campaign.run(["softmax"], seed=5, calls=2, jobs=2, runner=Endless)
    assert found.interrupted and Endless.calls < 20


@pytest.fixture(autouse=True)
def _answers_ctrl_c() -> Iterator[None]:
    """As in a terminal: a process in the background starts with SIGINT ignored."""
    import signal

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupting:
    """The third call of all interrupts the main thread; it and later ones wait, as long calls do, until they are stopped."""

    calls = 0

    def __init__(self) -> None:
        self.ended = threading.Event()

    def run(self, draft: Draft) -> Outcome:
        Interrupting.calls += 1
        if Interrupting.calls >= 3:
            if Interrupting.calls == 3:
                _thread.interrupt_main()
            assert self.ended.wait(20)
            return Outcome("dead", ["stopped"])
        return Outcome("ok")

    def stop(self) -> None:
        self.ended.set()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_it_with_what_was_found_until_then(jobs: int) -> None:
    Interrupting.calls = 0
    runners: list[Interrupting] = []

    def made() -> Interrupting:
        runners.append(Interrupting())
        if jobs == 1:
            runners[0].ended.set()
        return runners[-1]

    found = campaign.run(["gelu"], seed=5, calls=100, jobs=jobs, runner=made)
    assert found.interrupted and found.calls in (2, 3) and not found.findings


def test_a_call_whose_tensors_cannot_be_made_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Draft, device: str) -> Any:
        raise RuntimeError("no such tensor")

    monkeypatch.setattr(Draft, "make", refuse)
    found = campaign.run(["gelu"], seed=5, calls=1)
    assert len(found.findings) == 1
    assert "RuntimeError: no such tensor" in found.findings[0].text("cpu") and "gelu" in found.findings[0].text("cpu")


def test_a_cache_of_no_pages_is_drawn() -> None:
    arranged = registry.op("attention").fixup
    assert arranged is not None
    given = {"k": torch.zeros(0, 16, 2, 8), "q": torch.zeros(2, 1, 2, 8), "page_table": torch.zeros(2, 3, dtype=torch.int32)}
    assert not bool(arranged(given, {}, torch.Generator())["page_table"].any())


# -- what is undefined ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_nothing_is_asked_of_rows_of_equal_elements_without_eps_and_all_of_other_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"layer_norm": "odd 37x1001", "group_norm": "positions padded"}[name]
    one = draft(name, case, {}, fills={"x": Fill("equal")}, layouts={"x": Layout(still=(1, 2))})
    one = replace(one, options={**one.options, "eps": 0.0})
    assert judge._judged(one, "cpu", judge.public)[0] == []
    real = public_calls.function(registry.op(name))
    planted(monkeypatch, name, lambda *args, **more: real(*args, **more) * 1.01)
    assert judge._judged(replace(one, fills={}, layouts={}), "cpu", judge.public)[0]


def test_an_overflow_on_the_way_is_judged_by_float64_alone() -> None:
    inf, nan = float("inf"), float("nan")

    def ok(got: float, exact: float, same: float, plain: float | None = None) -> bool:
        g, e, s = torch.tensor([got]), torch.tensor([exact], dtype=torch.float64), torch.tensor([same])
        undefined = None if plain is None else torch.tensor([plain])
        return judge._verdict(judge._known(judge.Item(g, e, s, judge.GRADIENT), undefined)).ok

    assert ok(nan, 1.0, -inf) and ok(1.0, 1.0, inf)
    assert not ok(1.5, 1.0, inf) and not ok(nan, 1.0, 1.0)
    assert ok(inf, 1e300, nan) and not ok(-inf, 1e300, nan) and not ok(nan, 1e300, inf)
    assert ok(0.5, nan, 1.0, nan) and not ok(0.5, nan, nan) and not ok(0.5, nan, nan, 1.0)
