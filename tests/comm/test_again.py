"""Calls like an earlier one go straight to their launch: with what the whole way gives the kernel, and with every refusal of it. Here CPU tensors stand for
those of a GPU, and launches are written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from rooftop import comm
from rooftop.ranks import agreement, collectives, groups, kernels, sizes, symmetric

FUNCTIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """(kernel, values) of each launch."""
    found: list[Any] = []
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index=None: stream)
    monkeypatch.setattr(kernels, "facts", lambda index: SimpleNamespace(sms=132, target="sm_90a"))
    monkeypatch.setattr(symmetric, "unable", lambda x, group, limit=None: None)
    monkeypatch.setattr(symmetric, "_agreed", lambda *args: None)
    monkeypatch.setattr(symmetric, "_LAST", {})

    def prepared(stem: str, launch: Any, names: tuple[str, ...], index: Any) -> Any:
        return lambda stream, values: found.append((launch.kernel, dict(zip(names, values, strict=True))))

    def room(capacity: int, device: Any, group: Any, limit: Any = None) -> symmetric.Room:
        epochs, fault = (torch.zeros(n, dtype=torch.int32) for n in (256, 4))
        return symmetric.Room(torch.zeros(8, dtype=torch.uint8), None, torch.zeros(2, dtype=torch.int64), epochs, fault, capacity)

    monkeypatch.setattr(symmetric, "_made", room)
    monkeypatch.setattr(kernels, "prepared", prepared)
    monkeypatch.setattr(agreement, "agree", lambda what, group, *more: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield found
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that went the whole way."""
    found, begun = [], collectives.begun

    def noted(what: str, *args: Any, **more: Any) -> Any:
        found.append(what)
        return begun(what, *args, **more)

    monkeypatch.setattr(collectives, "begun", noted)
    return found


def warm(**options: Any) -> None:
    for _ in range(agreement.VERIFIED):
        comm.all_reduce(torch.ones(64), **options)


def test_a_call_made_before_is_launched_at_once_with_the_same_values(launched: Any, whole: Any) -> None:
    warm()
    x = torch.arange(512.0).view(4, 128)
    for what in FUNCTIONS:
        for more in ({}, {"wire": "int4", "stochastic": True, "seed": 5, "timeout": 3.0}):
            first = getattr(comm, what)(x, **more)
            before, calls = len(whole), groups.state(dist.group.WORLD).calls
            second = getattr(comm, what)(x, **more)
            (kernel, values), (other, others) = launched[-2:]
            assert len(whole) == before and groups.state(dist.group.WORLD).calls == calls + 1
            assert kernel == other and second.shape == first.shape and second.dtype == first.dtype
            assert values == {**others, "out": values["out"]} and others["out"] == second.data_ptr()
            assert (values["x"], values["seed"]) == (x.data_ptr(), more.get("seed", 0))
    x.requires_grad_()
    assert not comm.all_reduce(x).requires_grad


def test_the_fused_norm_is_launched_at_once_too(launched: Any, whole: Any) -> None:
    warm()
    x, residual, weight = torch.ones(4, 2, 96), torch.zeros(4, 2, 96), torch.ones(96)
    for given in ((x,), (x, residual), (x, residual, weight, 1e-5)):
        for more in ({}, {"format": "int8"}, {"format": "e4m3", "columns": 32}):
            (y, s), before = comm.all_reduce_norm(*given, **more), len(whole)
            again, sums = comm.all_reduce_norm(*given, **more)
            (kernel, values), (other, others) = launched[-2:]
            assert len(whole) == before and kernel == other and s.shape == sums.shape == x.shape
            written = {"out", "sum", "scale"}
            assert {n: v for n, v in values.items() if n not in written} == {n: v for n, v in others.items() if n not in written}
            codes, scale = (again, None) if isinstance(again, torch.Tensor) else (again.codes, again.scale)
            assert (others["sum"], others["out"], others.get("scale")) == (sums.data_ptr(), codes.data_ptr(), scale if scale is None else scale.data_ptr())
            assert more == {} or (again.scale.shape == y.scale.shape and again.format == more["format"])
    before = len(whole)
    for wrong in ({"eps": -1.0}, {"columns": 32}, {"format": "int4"}, {"verify": 1}):
        with pytest.raises((TypeError, ValueError)):
            comm.all_reduce_norm(x, residual, **wrong)
    comm.all_reduce_norm(x, residual.transpose(0, 1).contiguous().transpose(0, 1))
    comm.all_reduce_norm(x, residual, torch.ones(96, dtype=torch.float32))
    assert len(whole) == before + 6


def test_what_is_compared_refused_or_otherwise_laid_out_goes_the_whole_way(launched: Any, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(8, 64)
    for _ in range(agreement.VERIFIED):
        comm.all_reduce(x)
    assert len(whole) == agreement.VERIFIED  # in which the ranks compare their calls

    def way(**more: Any) -> int:
        before = len(whole)
        comm.all_reduce(more.pop("x", x), **more)
        return len(whole) - before

    assert way() == 0 and way(verify=True) == way(verify=True) == 1
    assert way(x=x.t()) == way(x=x.t()) == 1 and way(x=x.half()) == 1 and way(x=x[:4]) == 1 and way(hadamard=True) == way(hadamard=True) == 1
    assert comm.all_reduce(x, statistics=False).shape == x.shape
    for wrong in ({"hadamard": 0}, {"group_size": 128.0}, {"verify": 0}, {"seed": 0.5}, {"wire": ["int8"]}, {"statistics": 0}):
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)):
                comm.all_reduce(x, **wrong)
    with pytest.raises(TypeError, match="x is a list"):
        comm.all_reduce([1.0])  # type: ignore[call-overload]
    assert way() == 0
    monkeypatch.setattr(sizes, "saved", sizes.saved + 1)  # a table of sizes was measured: it may say that plain is faster
    assert way() == 1 and way() == 0
    comm.all_reduce(torch.ones(1 << 20), shots=1)  # the room grows: all ranks go on in the new one
    assert way() == 1 and way() == 0


def test_what_a_kernel_found_and_a_group_that_is_gone_are_errors(launched: Any, whole: Any) -> None:
    warm()
    x, own = torch.ones(64), groups.state(dist.group.WORLD)
    own.rooms[1].fault[0] = 1
    with pytest.raises(comm.CommError, match="a rank did not come in time"):
        comm.all_reduce(x)
    own.rooms[1].fault[0] = 2
    with pytest.raises(comm.Disagreement, match="different arguments"):
        comm.all_reduce(x)
    own.rooms[1].fault[0] = 0
    own.broken = "it was late"
    with pytest.raises(comm.CommError, match="it was late"):
        comm.all_reduce(x)
    own.broken = ""
    group = dist.group.WORLD
    comm.all_reduce(x, group)
    count = len(launched)
    dist.destroy_process_group()
    for given in (None, group):
        with pytest.raises(RuntimeError):
            comm.all_reduce(x, given)
    assert len(launched) == count
