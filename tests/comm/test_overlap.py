"""Products that overlap with communication, parallel layers and hooks, over gloo: against what one process computes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run
from torch import nn

from rooftop import comm
from rooftop.ranks import products as overlapping

M, K, N = 1100, 24, 20  # rows of a rank: more than a chunk


def given() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(4 * M, 4 * K, generator=g), torch.randn(4 * K, 4 * N, generator=g)


def products(rank: int, ranks: int) -> dict[str, Any]:
    a, b = given()
    mine = a[rank * M : (rank + 1) * M, :K]
    columns = b[:K, rank * N : (rank + 1) * N]
    found: dict[str, Any] = {}
    for wire in (None, "int8"):
        found[f"gather {wire}"] = comm.all_gather_matmul(mine, columns, wire=wire)
        part = slice(rank * K, (rank + 1) * K)
        found[f"scatter {wire}"] = comm.matmul_reduce_scatter(a[: ranks * M, part], b[part, :N], wire=wire)
        found[f"reduce {wire}"] = comm.matmul_all_reduce(a[:M, part], b[part, :N], wire=wire)
    found["strided"] = comm.all_gather_matmul(mine.t().contiguous().t(), columns.t().contiguous().t())
    found["empty"] = tuple(comm.matmul_reduce_scatter(a[:0, :K], b[:K, :N]).shape), tuple(comm.all_gather_matmul(a[:0, :K], b[:K, :N]).shape)
    thin = a[: ranks * 6, : 3 * rank]  # whose K differs from rank to rank: of rank 0 none
    found["thin"] = comm.matmul_reduce_scatter(thin, b[: 3 * rank, :N]), comm.matmul_all_reduce(thin, b[: 3 * rank, :N])
    found["joined"] = joined(a[:M, part], b[part, :N])
    found["no K"] = comm.all_gather_matmul(a[:M, :0], b[:0, :N])
    for name, call in {
        "divide": lambda: comm.matmul_reduce_scatter(a[: ranks * M + 1, :K], b[:K]),
        "fit": lambda: comm.all_gather_matmul(a, b[:3]),
        "disagree": lambda: comm.all_gather_matmul(mine[: M - rank], columns),
        "dtype": lambda: comm.matmul_all_reduce(mine, columns.half()),
    }.items():
        try:
            call()
        except (ValueError, TypeError) as error:
            found[name] = str(error)
    return found


def joined(a: torch.Tensor, b: torch.Tensor) -> list[str]:
    """The wires with which a product waits for the second stream. In a captured graph a stream that nothing was given to must not be waited for."""
    events: list[str] = []

    class Stream:
        def wait_stream(self, other: Any) -> None:
            events.append("waits")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlapping, "aside", lambda x: Stream())
        patch.setattr(torch.cuda, "current_stream", Stream)
        patch.setattr(torch.cuda, "stream", lambda s: contextlib.nullcontext())
        patch.setattr(torch.Tensor, "record_stream", lambda t, s: None)
        for wire in (None, "int8"):
            events.append(f"{wire}:")
            comm.matmul_all_reduce(a, b, wire=wire)
    return events


@pytest.fixture(scope="module")
def two() -> Any:
    """What two processes found, (products, layers): started once."""
    return tuple(zip(*run(both, 2), strict=True))


def both(rank: int, ranks: int) -> Any:
    return products(rank, ranks), layers(rank, ranks, True, "int8")


def test_products_are_those_of_one_process(two: Any) -> None:
    ranks, found = 2, two[0]
    for f in found:
        assert f["joined"] == ["None:", "int8:", *["waits"] * (len(overlapping.bounds(M)) + 1)]
    a, b = given()
    thin = sum(a[: ranks * 6, : 3 * r] @ b[: 3 * r, :N] for r in range(ranks))
    for rank, f in enumerate(found):
        torch.testing.assert_close(f["thin"][0], thin[rank * 6 : rank * 6 + 6])  # type: ignore[index]
        torch.testing.assert_close(f["thin"][1], thin)
        assert f["no K"].shape == (ranks * M, N) and not f["no K"].any()
    inside = slice(0, ranks * K)
    whole = a[:, inside].double() @ b[inside, :N].double()
    for rank, f in enumerate(found):
        for wire, tolerance in ((None, 1e-4), ("int8", 0.6)):
            want = a[: ranks * M, :K].double() @ b[:K, rank * N : (rank + 1) * N].double()
            torch.testing.assert_close(f[f"gather {wire}"].double(), want, atol=tolerance, rtol=0)
            torch.testing.assert_close(f[f"scatter {wire}"].double(), whole[rank * M : (rank + 1) * M], atol=tolerance, rtol=0)
            torch.testing.assert_close(f[f"reduce {wire}"].double(), whole[:M], atol=tolerance, rtol=0)
            assert torch.equal(f[f"reduce {wire}"], found[0][f"reduce {wire}"])
        assert torch.equal(f["strided"], f["gather None"]) and f["empty"] == ((0, N), (0, N))
        assert "multiple of 2" in f["divide"] and "[M, K] and [K, N]" in f["fit"] and "different arguments" in f["disagree"] and "float16" in f["dtype"]


def layers(rank: int, ranks: int, sequence: bool, wire: str | None) -> dict[str, Any]:
    torch.manual_seed(1)
    up, down = nn.Linear(16, 32), nn.Linear(32, 16)
    x = torch.randn(12, 16)
    mine = comm.ColumnParallelLinear.of(up, sequence=sequence, wire=wire), comm.RowParallelLinear.of(down, sequence=sequence, wire=wire)
    part = x.chunk(ranks)[rank] if sequence else x
    part = part.clone().requires_grad_()
    y = mine[1](torch.relu(mine[0](part)))
    y.square().sum().backward()
    whole = x.clone().requires_grad_()
    want = down(torch.relu(up(whole)))
    want.square().sum().backward()
    rows = slice(rank * 6, rank * 6 + 6) if sequence else slice(None)
    assert whole.grad is not None and part.grad is not None and up.weight.grad is not None and down.weight.grad is not None
    pairs = [
        (y, want[rows]), (part.grad, whole.grad[rows]), (mine[0].weight.grad, up.weight.grad.chunk(ranks, 0)[rank]),
        (mine[1].weight.grad, down.weight.grad.chunk(ranks, 1)[rank]),
    ]
    return {"pairs": [(a.detach(), b.detach()) for a, b in pairs]}


def test_parallel_layers_have_the_gradients_of_the_whole(two: Any) -> None:
    same_gradients(two[1], "int8")


@pytest.mark.parametrize(("sequence", "wire"), [(False, None), (True, None), (False, "int8")])
def test_parallel_layers_in_other_ways(long: None, sequence: bool, wire: str | None) -> None:
    same_gradients(run(layers, 2, sequence, wire), wire)


def same_gradients(found: Any, wire: str | None) -> None:
    for f in found:
        for got, want in f["pairs"]:
            scale = float(want.abs().max())
            torch.testing.assert_close(got, want, atol=(1e-5 if wire is None else 0.03) * scale, rtol=0)


def trained(rank: int, ranks: int) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel

    found: dict[str, Any] = {}
    for name, options in {
        "float32": None, "int8": {"wire": "int8"}, "int4": {"wire": "int4", "group_size": 32},
        "int4, fed back": {"wire": "int4", "group_size": 32, "error_feedback": True},
        "int4, random": {"wire": "int4", "group_size": 32, "stochastic": True, "hadamard": True},
    }.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
        if options is not None:
            model.register_comm_hook(None, comm.ddp_hook(**options))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        g = torch.Generator().manual_seed(100 + rank)
        for _ in range(60):
            x = torch.randn(64, 16, generator=g)
            loss = (model(x) - x[:, :1] * x[:, 1:2].tanh()).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        x = torch.randn(2000, 16, generator=torch.Generator().manual_seed(9))
        loss = (model.module(x) - x[:, :1] * x[:, 1:2].tanh()).square().mean().detach()
        found[name] = float(loss), torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return found


def test_training_with_the_hook_keeps_the_ranks_alike_and_learns(long: None) -> None:
    a, b = run(trained, 2)
    for name, (loss, weights) in a.items():
        assert torch.equal(weights, b[name][1]), name
        assert loss < 1.05 * a["float32"][0], (name, loss, a["float32"][0])
    assert not torch.equal(a["int8"][1], a["float32"][1])


def fed(rank: int, ranks: int) -> list[float]:
    x = torch.linspace(-1, 1, 640) ** 3 * (rank + 1)
    want = torch.linspace(-1, 1, 640) ** 3 * 3
    feedback = comm.ErrorFeedback()
    plain, kept = torch.zeros(640), torch.zeros(640)
    for _ in range(20):
        plain += comm.all_reduce(x, wire="int4", shots=1)
        kept += feedback.all_reduce(x, wire="int4", shots=1)
    return [float((plain / 20 - want).abs().max()), float((kept / 20 - want).abs().max())]


def test_error_feedback_gives_back_what_the_wire_lost(long: None) -> None:
    for plain, kept in run(fed, 2):
        assert kept < plain / 5


def plain(rank: int, ranks: int) -> list[bool]:
    feedback, x = comm.ErrorFeedback(), torch.linspace(-1, 1, 640) ** 3 * (rank + 1)
    found = feedback.all_reduce(x, wire="int4", path="plain")
    return [torch.equal(found, torch.linspace(-1, 1, 640) ** 3 * 3), not feedback.state_dict()[0].any()]


def test_what_is_not_quantised_loses_nothing(long: None) -> None:
    assert run(plain, 2) == [[True, True]] * 2


def test_hooks_refuse_at_once_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match="wire is 'int3'"):
        comm.ddp_hook(wire="int3")
    with pytest.raises(ValueError, match="path is 'fast'"):
        comm.ddp_hook(path="fast")
    with pytest.raises(ValueError, match="path is 'hierarchical'"):
        comm.ddp_hook(error_feedback=True, path="hierarchical")
    with pytest.raises(TypeError, match="fully_shard"):
        comm.fsdp_hook(nn.Linear(2, 2))
    assert not dist.is_initialized()
