"""One rank's arguments are wrong, or not those of the others: every rank raises at once, each says which rank gave what, and the group is as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import rooftop
from rooftop import comm
from rooftop.comm.hooks import _ReduceScatter
from rooftop.ranks import agreement, groups, ways
from rooftop.ranks.steps import Options

SOON = 20.0  # seconds: far below the timeout of the processes' group, which a rank would wait out
NAN = float("nan")
FUNCTIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
PRODUCTS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
# option: what rank 0 is given, what rank 1 is, and of rank 1 the error and a part of its text
OPTIONS: dict[str, tuple[Any, Any, str, str]] = {
    "wire, another": ("int8", "int4", "Disagreement", "rank 1: {name} of float32 (16,) on cpu with wire='int4'"),
    "wire, wrong": ("int8", "int3", "ValueError", "accepted are 'bf16', 'fp8', 'int8', 'int4'"),
    "group_size, another": (128, 32, "Disagreement", "group_size=32"), "group_size, wrong": (128, 100, "ValueError", "accepted are 32, 64, 128, 256"),
    "path, another": (None, "plain", "Disagreement", "path='plain'"), "path, wrong": (None, "fast", "ValueError", "accepted are None, 'portable'"),
    "path, impossible": (None, "symmetric", "Disagreement", "path='symmetric'"), "statistics, another": (False, True, "Disagreement", "statistics=True"),
    "statistics, wrong": (False, "yes", "TypeError", "statistics is 'yes'; it must be True or False"),
    "verify, another": (None, False, "Disagreement", "verify=False"), "verify, wrong": (None, 1, "TypeError", "it must be True, False or None"),
    "hadamard, another": (False, True, "Disagreement", "hadamard=True"), "seed, wrong": (0, 1.5, "TypeError", "seed is 1.5"),
    "timeout, negative": (60, -1, "ValueError", "timeout is -1; it must be a number of seconds"), "timeout, zero": (60, 0, "ValueError", "timeout is 0;"),
    "timeout, NaN": (60, NAN, "ValueError", "timeout is nan;"), "timeout, str": (60, "1", "TypeError", "timeout is '1', a str; it must be a number of seconds"),
}


def cases(rank: int, ranks: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, the call). Rank 1's is the other one."""
    last = rank == 1

    def of(first: Any, other: Any) -> Any:
        return other if last else first

    x = torch.ones(16)
    whole = DTensor.from_local(x, init_device_mesh("cpu", (ranks,)), [Replicate()])
    for name in FUNCTIONS:
        f = getattr(comm, name)
        for what, (first, other, *_) in OPTIONS.items():
            yield f"{name}: {what}", partial(f, x, **{what.partition(",")[0]: of(first, other)})
        others = {
            "list": [1.0], "integers": x.int(), "meta": x.to("meta"), "sparse": x.to_sparse(), "dtype": x.half(), "shape": torch.ones(32), "DTensor": whole,
            "nested": torch.nested.nested_tensor([x]),
        }
        for what, other in others.items():
            yield f"{name}: x, {what}", partial(f, of(x, other))
        yield f"{name}: nine dimensions", partial(f, of(torch.ones(2, 1, 1, 1, 1, 1, 2, 1, 3), torch.ones(2, 1, 1, 1, 1, 1, 2, 3, 1)))
    yield "shots, another", lambda: comm.all_reduce(x, shots=of(1, 2))
    yield "shots, wrong", lambda: comm.all_reduce(x, shots=of(1, 3))
    yield "function", lambda: of(comm.all_reduce, comm.all_gather)(x)
    yield "products and sums", lambda: comm.matmul_all_reduce(torch.ones(2, 3), torch.ones(3, 2)) if last else comm.all_reduce(x)
    yield "divided", lambda: comm.reduce_scatter(of(x, torch.ones(15)))
    a, b = torch.ones(4, 3), torch.ones(3, 4)
    for name in PRODUCTS:
        f = getattr(comm, name)
        for what, other in {"path": "portable", "path, wrong": "fast", "wire": "int8", "wire, wrong": "int3", "timeout, wrong": "x", "verify": False}.items():
            yield f"{name}: {what}", partial(f, a, b, **{what.partition(",")[0]: of(None, other)})
        yield f"{name}: group_size", partial(f, a, b, wire="int8", group_size=of(128, 64))
        yield f"{name}: rows", partial(f, of(a, torch.ones(8, 3)), b)
        yield f"{name}: fit", partial(f, a, of(b, torch.ones(4, 4)))
        yield f"{name}: a DTensor", partial(f, a, of(b, DTensor.from_local(b, whole.device_mesh, [Replicate()])))
    feedback = comm.ErrorFeedback()
    feedback.all_reduce(x)
    yield "feedback: an option", lambda: feedback.all_reduce(x, **of({}, {"speed": 1}))
    yield "feedback: shape", lambda: feedback.all_reduce(of(x, torch.ones(9)))
    yield "feedback: path", lambda: feedback.all_reduce(x, path=of(None, "hierarchical"))
    yield "feedback: none", lambda: comm.all_reduce(x) if last else feedback.all_reduce(x)
    yield "feedback: key", lambda: feedback.all_reduce(x, key=of(0, []))
    yield "feedback: shots", lambda: feedback.all_reduce(x, shots=of(1, 3))
    yield "fsdp: reduction", lambda: _ReduceScatter(wire="int8")(torch.ones(8), x, dist.group.WORLD, of(dist.ReduceOp.SUM, dist.ReduceOp.MAX))
    yield "row layer: width", lambda: comm.RowParallelLinear(4, 6)(of(torch.ones(2, 2), torch.ones(2, 3)))
    yield "column layer: list", lambda: comm.ColumnParallelLinear(4, 6, sequence=True)(of(torch.ones(2, 4), [1.0]))
    yield "set_hosts", lambda: comm.set_hosts(of(1, 7))
    yield "plan", lambda: comm.all_reduce(x) if last else agreement.agree("plan", dist.group.WORLD, "plan", groups.Limit())


def outcomes(rank: int, ranks: int) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for name, call in cases(rank, ranks):
        begun = time.monotonic()
        try:
            call()
            found[name] = "none", ""
        except Exception as error:
            found[name] = type(error).__name__, str(error)
        again = comm.all_reduce(torch.ones(3), wire="bf16")
        if not torch.equal(again, torch.full((3,), float(ranks))):
            found[name] = "none", "the group does not add up any more"
        if time.monotonic() - begun > SOON:
            found[name] = "late", f"{time.monotonic() - begun:.0f} s"
    return found


def empties(rank: int, ranks: int) -> dict[str, Any]:
    """What is empty, and what has many dimensions, by every function."""
    found: dict[str, Any] = {}
    for name in FUNCTIONS:
        f = getattr(comm, name)
        for shape in ((0, 3), (4, 0)):
            for options in ({}, {"path": "plain"}, {"statistics": True}):
                got = f(torch.ones(shape), **options)
                found[f"{name} {shape} {options}"] = tuple((got[0] if options.get("statistics") else got).shape)
        found[f"{name} of nine dimensions"] = f(torch.ones(2, 1, 1, 1, 1, 1, 2, 1, 3), wire="bf16")
    for name in PRODUCTS:
        for m, k, n in ((0, 3, 4), (4, 0, 4), (4, 3, 0)):
            for wire in (None, "int8"):
                got = getattr(comm, name)(torch.ones(m, k), torch.ones(k, n), wire=wire)
                found[f"{name} {m} {k} {n} {wire}"] = tuple(got.shape), bool(got.eq(0).all())
    for sequence in (False, True):
        for kind, width in ((comm.ColumnParallelLinear, 6), (comm.RowParallelLinear, 2)):
            layer = kind(6 if kind is comm.ColumnParallelLinear else 4, 4, sequence=sequence)
            x = torch.ones((0, width) if sequence else (3, 0, width), requires_grad=True)
            y = layer(x)
            y.sum().backward()
            found[f"{kind.__name__} {sequence}"] = tuple(y.shape), tuple(x.grad.shape) == tuple(x.shape), float(layer.weight.grad.abs().sum())
    return found


def waits(rank: int, ranks: int) -> dict[str, Any]:
    """Rank 1 is late by more than `timeout`, where ranks compare, and later where they tell where they are."""
    found: dict[str, Any] = {}
    groups_made = [dist.new_group([0, 1]) for _ in range(3)]
    for i, name in enumerate(("all_reduce", "all_gather_matmul")):
        arguments = (torch.ones(4),) if i == 0 else (torch.ones(2, 2), torch.ones(2, 2))
        begun = time.monotonic()
        said = []
        for _ in range(2 if rank == 0 else 0):
            try:
                getattr(comm, name)(*arguments, groups_made[i], timeout=0.2)
            except comm.CommError as error:
                said.append(str(error))
        found[name] = said, time.monotonic() - begun
    dist.barrier()  # of the default group, in which nobody was late
    found["another group"] = float(comm.all_reduce(torch.ones(2), groups_made[2], wire="bf16")[0])
    return found


def strange(rank: int, ranks: int) -> dict[str, Any]:
    """Calls that are wrong in the same way on all ranks, and a result of a functional collective, which is no plain tensor."""
    import torch.distributed._functional_collectives as functional

    x = torch.ones(4, 4)
    found: dict[str, Any] = {"functional": comm.all_reduce(functional.all_reduce(x, "sum", dist.group.WORLD), wire="bf16")}
    found["functional product"] = comm.matmul_all_reduce(functional.all_reduce(x, "sum", dist.group.WORLD), x)
    calls: dict[str, Callable[[], Any]] = {
        "float": lambda: comm.ColumnParallelLinear(4, 4.0), "negative": lambda: comm.RowParallelLinear(-4, 4), "bool": lambda: comm.RowParallelLinear(4, True),
        "another layer": lambda: comm.ColumnParallelLinear.of(torch.nn.Conv1d(4, 4, 1)), "lazy": lambda: comm.RowParallelLinear.of(torch.nn.LazyLinear(4)),
        "state": lambda: comm.ErrorFeedback().load_state_dict({"w": 1.0}),
    }
    for name, call in calls.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def everything(rank: int, ranks: int) -> Any:
    return outcomes(rank, ranks), empties(rank, ranks), waits(rank, ranks), strange(rank, ranks)


@pytest.fixture(scope="module")
def two() -> Any:
    """What two processes found: (outcomes, empties, waits, strange), started once."""
    return tuple(zip(*run(everything, 2), strict=True))


def test_every_rank_raises_at_once_and_the_group_goes_on(two: Any) -> None:
    first, other = two[0]
    for name in first:
        assert first[name][0] == "Disagreement", (name, first[name])
        assert other[name][0] in ("Disagreement", "TypeError", "ValueError"), (name, other[name])
        assert "rank 0: " in first[name][1] and "rank 1: " in first[name][1], (name, first[name])
        if other[name][0] != "Disagreement":  # what it refused is told to the others
            assert f"rank 1: refused its arguments: {other[name][0]}: {other[name][1]}" in first[name][1], (name, first[name])


def test_each_rank_says_what_was_given_and_what_is_accepted(two: Any) -> None:
    first, other = two[0]
    for name in FUNCTIONS:
        for what, (_, _, error, text) in OPTIONS.items():
            assert other[f"{name}: {what}"][0] == error and text.format(name=name) in other[f"{name}: {what}"][1], (name, what, other[f"{name}: {what}"])
            assert text.format(name=name) in first[f"{name}: {what}"][1]
        assert "rank 0: " + f"{name} of float32 (2, 1, 1, 1, 1, 1, 2, 1, 3)" in other[f"{name}: nine dimensions"][1]
        assert "torch.int32; accepted are torch.float32" in first[f"{name}: x, integers"][1]
        assert "x is a DTensor; it must be a plain tensor" in first[f"{name}: x, DTensor"][1] and "nested tensor" in first[f"{name}: x, nested"][1]
    assert "rank 0: all_reduce of float32 (16,)" in first["function"][1] and "rank 1: all_gather of float32 (16,)" in other["function"][1]
    assert "shots=1" in first["shots, another"][1] and "shots=2" in first["shots, another"][1] and "accepted are None, 1 and 2" in first["shots, wrong"][1]
    assert "path='portable'" in first["matmul_all_reduce: path"][1] and "rank 1: matmul_all_reduce of float32 2 rows" in first["products and sums"][1]
    assert "'speed' is no option; accepted are wire" in first["feedback: an option"][1] and "must divide 2" in first["set_hosts"][1]


def test_what_is_empty_and_what_has_many_dimensions(two: Any) -> None:
    for rank, found in enumerate(two[1]):
        for options in ({}, {"path": "plain"}, {"statistics": True}):
            for shape in ((0, 3), (4, 0)):
                rows, columns = shape
                for name, want in (("all_reduce", rows), ("reduce_scatter", rows // 2), ("all_gather", 2 * rows), ("all_to_all", rows)):
                    assert found[f"{name} {shape} {options}"] == (want, columns)
        shape = (1, 1, 1, 1, 1, 2, 1, 3)
        assert torch.equal(found["all_reduce of nine dimensions"], torch.full((2, *shape), 2.0)), rank
        assert torch.equal(found["reduce_scatter of nine dimensions"], torch.full((1, *shape), 2.0))
        assert found["all_gather of nine dimensions"].shape == (4, *shape) and torch.equal(found["all_to_all of nine dimensions"], torch.ones(2, *shape))
        for m, k, n in ((0, 3, 4), (4, 0, 4), (4, 3, 0)):
            for wire in (None, "int8"):
                for name, rows in zip(PRODUCTS, (2 * m, m // 2, m), strict=True):
                    assert found[f"{name} {m} {k} {n} {wire}"] == ((rows, n), True)
        for sequence in (False, True):
            lead = (0,) if sequence else (3, 0)
            assert found[f"ColumnParallelLinear {sequence}"] == ((*lead, 2), True, 0.0) and found[f"RowParallelLinear {sequence}"] == ((*lead, 4), True, 0.0)


def test_a_timeout_is_of_all_that_a_call_waits_for_and_ends_the_group(two: Any) -> None:
    first, other = two[2]
    for name in ("all_reduce", "all_gather_matmul"):
        (given_up, refused), seconds = first[name]
        assert f"{name} (rank 0 of 2, gloo) was not answered by all ranks" in given_up and "late by more than 0.2 s" in given_up and seconds < SOON
        assert "an earlier call was given up, so the group cannot be used on; make a new one" in refused
    assert first["another group"] == other["another group"] == 2.0


def test_what_is_no_plain_tensor_and_layers_of_no_size(two: Any) -> None:
    for found in two[3]:
        assert type(found["functional"]) is torch.Tensor and torch.equal(found["functional"], torch.full((4, 4), 4.0))
        assert torch.equal(found["functional product"], torch.full((4, 4), 16.0))
        assert found["float"] == "TypeError: ColumnParallelLinear: out_features is 4.0; it must be a whole number"
        assert found["negative"] == "ValueError: RowParallelLinear: in_features is -4; it must be at least 0" and "out_features is True" in found["bool"]
        assert found["another layer"] == "TypeError: ColumnParallelLinear.of: linear is a Conv1d; it must be a torch.nn.Linear"
        assert found["lazy"].startswith("ValueError: RowParallelLinear.of: linear has no weight yet")
        assert found["state"] == "TypeError: ErrorFeedback.load_state_dict: 'w' is a float; it must be a tensor"


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (0, ValueError), (NAN, ValueError), (1e30, ValueError), ("1", TypeError), (True, TypeError)])
def test_timeouts_that_are_none(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"all_reduce: timeout is .*it must be a number of seconds, above 0 and at most 1e"):
        groups.Limit.of("all_reduce", timeout)


def test_a_limit_is_of_all_waits_together() -> None:
    class Work:
        def wait(self, limit: Any = None) -> bool:
            time.sleep(0.03)
            return True

    none, some = groups.Limit.of("x", None), groups.Limit.of("x", 0.05)
    assert none.wait(Work()) and none.left() is None
    assert some.wait(Work()) and some.left().total_seconds() < 0.03  # type: ignore[union-attr]
    assert some.wait(Work()) and some.left().total_seconds() == 0.001  # type: ignore[union-attr]  # 0 would mean for ever


class Nccl:
    """A group that sends from GPUs alone."""

    def _get_backend(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise RuntimeError("no backend")


def test_a_work_of_nccl_is_asked_and_what_is_given_up_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own wait with a timeout leaves an exception by which torch's watchdog ends the process."""

    class Work:
        def __init__(self, ends_after: int) -> None:
            self.left, self.waited = ends_after, []

        def is_completed(self) -> bool:
            self.left -= 1
            return self.left < 0

        def wait(self, *limit: Any) -> bool:
            self.waited.append(limit)
            return True

    aborted: list[torch.device] = []

    class Group(Nccl):
        def _get_backend(self, device: torch.device) -> Any:
            aborted.append(device)
            return self

        def abort(self) -> None:
            aborted.append(torch.device("meta"))

    captured = False
    monkeypatch.setattr(dist, "get_backend", lambda group: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    group: Any = Group()
    soon, never = Work(3), Work(10**9)
    assert groups.run("all_reduce", group, lambda: soon, groups.Limit(5.0)) is soon and soon.waited == [()] and not aborted
    begun = time.monotonic()
    with pytest.raises(comm.CommError, match=r"late by more than 0.05 s.*It said: it did not end in time"):
        groups.run("all_reduce", group, lambda: never, groups.Limit(0.05))
    assert 0.05 <= time.monotonic() - begun < 2 and not never.waited and [d.type for d in aborted] == ["cuda", "meta"]
    with pytest.raises(comm.CommError, match="cannot be used on"):
        groups.run("all_reduce", group, lambda: soon, groups.Limit(5.0))
    captured, other = True, Work(10**9)
    assert groups.run("all_reduce", Group(), lambda: other, groups.Limit(0.05)) is other and other.waited == [()]  # a graph's stream waits, the host must not


def test_on_a_gpu_the_first_calls_are_compared_and_then_those_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    group: Any = Nccl()
    own = groups.state(group)
    own.device = torch.device("cuda", 1)
    assert groups.meeting(group) == torch.device("cuda", 1)  # not the current one: two ranks may have the same
    assert agreement._must(group, None) and agreement._must(group, True) and agreement._must(group, False)
    own.verify = False  # all ranks said so
    assert not agreement._must(group, False) and agreement._must(group, None) and own.calls == 5
    captured = True
    assert not agreement._must(group, True) and not agreement._must(group, None)  # the host cannot wait then
    captured, own.calls = False, agreement.VERIFIED - 1
    assert agreement._must(group, None) and not agreement._must(group, None) and not agreement._must(group, False) and agreement._must(group, True)
    meant = [agreement._meant(v) for v in (None, True, False, 1, 0, "no", torch.ones(2))]
    assert meant == [None, True, False, True, False, True, None]  # a rank given 1, which it refuses, meets those that were given True
    asked: list[Any] = []
    monkeypatch.setattr(agreement, "agree", lambda what, group, text, limit, refused: asked.append((text, refused)))
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    for verify, told in ((1, 1), (0, 1)):
        with pytest.raises(TypeError, match="verify is"):
            agreement.together("all_reduce", group, verify, groups.Limit(), str, TypeError(f"verify is {verify}"))  # type: ignore[arg-type]
        assert len(asked) == told and asked[0] == ("refused its arguments: TypeError: verify is 1", True)
    with pytest.raises(ValueError, match="x lies on cpu"):
        monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
        groups.sendable("all_reduce", torch.ones(2), group)
    assert own.device.type == "cuda"


def parted(rank: int, ranks: int) -> dict[str, Any]:
    """Groups of some ranks, and calls in one that the others have no part in."""
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine, foreign = pairs[rank % 2], pairs[1 - rank % 2]
    found: dict[str, Any] = {"pair": float(comm.all_reduce(torch.full((4,), rank + 1.0), mine, wire="bf16")[0])}
    for name, call in {
        "foreign": lambda: comm.all_reduce(torch.ones(4), foreign), "differ": lambda: comm.all_reduce(torch.ones(4 + rank), mine),
        "hosts": lambda: comm.set_hosts(2 if rank else 4), "one of four": lambda: comm.all_reduce(torch.ones(4), path="plain" if rank == 2 else None),
    }.items():
        try:
            call()
            found[name] = "nothing"
        except (ValueError, TypeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    found["all"] = float(comm.all_reduce(torch.full((4,), rank + 1.0), wire="bf16")[0])
    dist.barrier()
    dist.destroy_process_group(mine)
    with pytest.raises(RuntimeError, match="the group is destroyed"):
        comm.all_reduce(torch.ones(4), mine)
    return found


def test_groups_of_some_ranks(long: None) -> None:
    for rank, found in enumerate(run(parted, 4)):
        assert found["pair"] == (6.0 if rank % 2 else 4.0) and found["all"] == 10.0
        assert found["foreign"].startswith("ValueError: all_reduce: this rank is not in the group")
        assert found["differ"].startswith("Disagreement") and f"({4 + rank},)" in found["differ"]
        assert "rank 0: set_hosts with each=4; ranks 1, 2, 3: set_hosts with each=2" in found["hosts"]
        assert "ranks 0, 1, 3: all_reduce" in found["one of four"] and "rank 2: all_reduce" in found["one of four"]


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The error, in parts of what is right."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def rotated(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, wire: str, ranks: int) -> torch.Tensor:
    """What the collectives make of an op that rotates."""
    options = Options.of("test", wire, 128, True, False, 0)
    return ways._in_range(x, options, ranks, call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wire", ["fp8", "int8", "int4"])
def test_a_rotation_does_not_leave_the_range(dtype: torch.dtype, wire: str) -> None:
    """Near the largest number the rotated wire is as far off as it is of small numbers, and what is finite stays so."""
    small = torch.rand(2, 2048, generator=torch.Generator().manual_seed(5)) * 2 - 1
    small[1] = 0
    for part in (1 / 64, 0.999):
        x = (small * (torch.finfo(dtype).max * part)).to(dtype)
        for group in (32, 256):
            how: dict[str, Any] = {"wire": wire, "group_size": group, "hadamard": True}
            gathered = rotated(lambda x, how=how: rooftop.exchange_ranks(x, "all_gather", **how)[0].view(2, -1), x, wire, 1)  # type: ignore[misc]
            sums = [rotated(partial(rooftop.all_reduce_ranks, shots=shots, **how), x, wire, 2)[0] for shots in (1, 2)]
            plain = [rooftop.all_reduce_ranks(x, wire=wire, group_size=group, shots=shots)[0] for shots in (1, 2)]
            for got, other in ((gathered[0], plain[0]), *zip(sums, plain, strict=True)):
                assert got.isfinite().all()
                assert off(got, x[0]) < 3 * off(other, x[0])
    beyond = torch.full((2, 256), torch.finfo(dtype).max, dtype=dtype)
    assert rotated(partial(rooftop.all_reduce_ranks, wire=wire, hadamard=True), beyond, wire, 2).isinf().all()  # as a sum that is not rotated


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_room_of_a_rotation_changes_no_bit_of_other_numbers(dtype: torch.dtype) -> None:
    from rooftop.ops import all_reduce_ranks as op

    x = torch.randn(2, 700, generator=torch.Generator().manual_seed(6)).to(dtype)
    x[0, 3], x[1, 400] = float("inf"), float("nan")
    for shots in (1, 2):
        got = rotated(partial(rooftop.all_reduce_ranks, wire="int4", hadamard=True, shots=shots), x, "int4", 2)
        want = op.reference(x, "int4", 128, True, False, 0, shots)
        assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)) and torch.equal(got.isnan(), want.isnan())
