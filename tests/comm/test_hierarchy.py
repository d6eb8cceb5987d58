"""Four processes as two hosts of two ranks: quantised between the hosts, plain inside, the same bits on every rank."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run

import rooftop
from rooftop import comm

OPTIONS: tuple[dict[str, Any], ...] = ({"wire": "int8"}, {"wire": "int4", "group_size": 32, "hadamard": True}, {"wire": "int4", "stochastic": True, "seed": 3})
COUNT = 701


def given(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(4, COUNT, generator=torch.Generator().manual_seed(2))
    x[1, 5], x[3, 600] = float("inf"), float("nan")
    return x.to(dtype)


def work(rank: int, ranks: int) -> dict[str, Any]:
    flat = str(comm.plan(given()[rank])) if rank < 4 else ""
    again = dist.new_group(list(range(ranks)))
    comm.set_hosts(2, again)
    found: dict[str, Any] = {"one host": flat, "plan": str(comm.plan(given()[rank], again))}
    for i, options in enumerate(OPTIONS):
        for dtype in (torch.float32, torch.bfloat16):
            x = given(dtype)[rank]
            found[f"reduce {i} {dtype}"] = comm.all_reduce(x, again, **options)
            found[f"gather {i} {dtype}"] = comm.all_gather(x.view(-1, 1), again, **options)
            found[f"scatter {i} {dtype}"] = comm.reduce_scatter(x[:700].view(100, 7), again, **options)
    found["empty"] = tuple(comm.all_reduce(torch.empty(0, 3), again).shape)
    found["statistics"] = comm.all_reduce(given()[rank], again, wire="int8", statistics=True)[1]
    found["to all"] = comm.all_to_all(given()[rank, :700], again)  # which has no such way: flat
    said = []
    for call in (
        lambda: comm.set_hosts(3, again), lambda: comm.set_hosts(True, again), lambda: comm.all_reduce(torch.ones(3), path="hierarchical"),
        lambda: comm.all_reduce(torch.ones(8 + rank), again), lambda: comm.all_to_all(torch.ones(4), again, path="hierarchical"),
    ):
        try:
            call()
            said.append("nothing")
        except (TypeError, ValueError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    found["said"] = said
    return found


@pytest.fixture(scope="module")
def four() -> Any:
    return run(work, 4)


def sums(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of each host's ranks, rounded to the dtype."""
    return torch.stack([(x[2 * h].float() + x[2 * h + 1].float()).to(dtype) for h in range(2)])


def test_an_all_reduce_is_quantised_between_hosts_alone(four: Any) -> None:
    for i, options in enumerate(OPTIONS):
        for dtype in (torch.float32, torch.bfloat16):
            got = [f[f"reduce {i} {dtype}"] for f in four]
            for other in got[1:]:
                assert torch.equal(other.nan_to_num(7.0), got[0].nan_to_num(7.0)), "the ranks have different bits"
            if options.get("stochastic"):
                continue
            share = -(-COUNT // (2 * options.get("group_size", 128))) * options.get("group_size", 128)
            host = torch.nn.functional.pad(sums(given(dtype), dtype), (0, 2 * share - COUNT))
            parts = [rooftop.all_reduce_ranks(host[:, k * share : (k + 1) * share].contiguous(), shots=1, **options)[0] for k in range(2)]
            assert torch.equal(got[0].nan_to_num(7.0), torch.cat(parts)[:COUNT].nan_to_num(7.0)), (options, dtype)
    assert four[0]["reduce 0 torch.float32"].isnan()[600] and four[0]["reduce 0 torch.float32"][5] == float("inf")
    assert 0 < four[0]["statistics"].relative < 0.02 and len({str(f["statistics"]) for f in four}) == 1


def test_gather_and_scatter_between_hosts(four: Any) -> None:
    for i, options in enumerate(OPTIONS):
        for dtype in (torch.float32, torch.bfloat16):
            x, allowed = given(dtype).float(), 0.05 if options["wire"] == "int8" else 1.5
            for rank, f in enumerate(four):
                gathered, scattered = f[f"gather {i} {dtype}"], f[f"scatter {i} {dtype}"]
                assert torch.equal(gathered.nan_to_num(7.0), four[0][f"gather {i} {dtype}"].nan_to_num(7.0)) and gathered.shape == (4 * COUNT, 1)
                near(gathered.view(-1), x.reshape(-1), allowed)
                near(scattered, x[:, :700].sum(0).view(4, 25, 7)[rank], 2 * allowed)


def near(got: torch.Tensor, want: torch.Tensor, allowed: float) -> None:
    finite = got.isfinite() & want.isfinite()
    assert got.shape == want.shape and int(finite.sum()) > got.numel() // 2
    assert float((got[finite].float() - want[finite]).abs().max()) < allowed


def test_which_way_and_what_is_refused(four: Any) -> None:
    for rank, f in enumerate(four):
        assert "portable" in f["one host"] and f["plan"].startswith("hierarchical") and "2 hosts of 2 ranks" in f["plan"]
        divide, kind, flat, disagree, other = f["said"]
        assert "must divide 4" in divide and "must be a whole number" in kind
        assert flat.startswith("RuntimeError") and "several hosts" in flat
        assert disagree.startswith("Disagreement") and f"rank {rank}: all_reduce of float32 ({8 + rank},)" in disagree
        assert "path is 'hierarchical'" in other
        assert f["empty"] == (0, 3) and f["to all"].shape == (700,)


def killed(rank: int, ranks: int) -> None:
    comm.set_hosts(2)
    comm.all_reduce(torch.ones(1000))
    if rank == 3:
        os._exit(3)
    for _ in range(2):
        comm.all_reduce(torch.ones(1000))


def test_a_rank_that_died_is_an_error_on_both_hosts(long: None) -> None:
    found = run(killed, 4, fails=True, timeout=20)
    assert found[3] is None and all(f is not None and f[0] == "CommError" for f in found[:3]), found
