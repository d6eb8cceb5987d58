"""Linear layers of ours and the 8-bit optimizer over several ranks: FSDP2's DTensors, and the layers of tensor parallelism as `nn.Linear`."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run
from torch import Tensor, nn

import rooftop
from rooftop import comm
from rooftop.quant import AdamW8bit
from rooftop.sparse import sparsify_model

BF16 = torch.bfloat16


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def optimized(rank: int, ranks: int) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))

    def model() -> tuple[nn.Module, AdamW8bit]:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(33, 17), nn.Linear(17, 5))  # rows that the ranks do not share evenly
        fully_shard(made, mesh=mesh)
        return made, AdamW8bit(made.parameters(), lr=1e-2)

    def train(m: nn.Module, o: AdamW8bit, first: int, last: int) -> None:
        for i in range(first, last):
            o.zero_grad()
            m(some(3, 33, seed=i)).square().mean().backward()
            o.step()

    def states(m: nn.Module, o: AdamW8bit) -> list[Tensor]:
        return [o.state[p][n].dequantize() for p in m.parameters() for n in ("first", "second")]

    m, o = model()
    start = [p.detach().full_tensor() for p in m.parameters()]
    train(m, o, 0, 3)
    want, found = states(m, o), {}
    whole = get_optimizer_state_dict(m, o, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    found["moved"] = max(float((p.detach().full_tensor() - q).abs().max()) for p, q in zip(m.parameters(), start, strict=True))
    found["shapes"] = [tuple(v["first"].shape) for v in whole["state"].values()] if rank == 0 else [tuple(p.shape) for p in m.parameters()]
    for name, state, options in (
        ("own", o.state_dict(), None), ("sharded", get_optimizer_state_dict(m, o), StateDictOptions()),
        ("whole", whole if rank == 0 else {}, StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)),
    ):
        other, optimizer = model()
        if options is None:
            optimizer.load_state_dict(copy.deepcopy(state))
        else:
            set_optimizer_state_dict(other, optimizer, state, options=options)
        got = states(other, optimizer)
        found[name] = all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(got, want, strict=True))
        found[f"{name} steps"] = {int(s["step"]) for s in optimizer.state.values()}
    return found


def sharded(rank: int, ranks: int) -> dict[str, Any]:
    """Models of our layers before and after FSDP2 has sharded their parameters: the same outputs, and the gradients of all ranks' inputs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def model(kind: str, dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(dtype)
        if kind == "trained":
            return sparsify_model(made, "2:4", train24=True)
        return sparsify_model(made, "csr") if kind == "csr" else rooftop.quantize_model(made, kind, group=32)

    mesh, found = init_device_mesh("cpu", (ranks,)), {}
    for kind in ("int8", "csr", "trained"):
        for mixed in (False, True):
            dtype = torch.float32 if mixed or kind != "trained" else BF16
            plain, other = model(kind, dtype), model(kind, dtype)
            fully_shard(other, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=BF16) if mixed else MixedPrecisionPolicy())
            x = some(6, 64, seed=rank).to(dtype)
            y = other(x)
            with torch.autocast("cpu", BF16, enabled=mixed):
                want = plain(x)
            y.float().square().sum().backward()
            want.float().square().sum().backward()
            close = [torch.allclose(y.float(), want.float(), rtol=0.02, atol=0.02), y.dtype == want.dtype]
            for (name, p), q in zip(other.named_parameters(), plain.parameters(), strict=True):
                mean = q.grad.float().clone()
                dist.all_reduce(mean)
                got = p.grad.full_tensor().float()
                close.append(name.endswith(("weight", "bias")) and torch.allclose(got, mean / ranks, rtol=0.1, atol=0.1 * float(mean.abs().max())))
            again = model(kind, dtype)
            state = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in other.state_dict().items()}
            again.load_state_dict(state)
            close.append(torch.equal(again.state_dict()["0.bias"], plain.state_dict()["0.bias"]))
            found[f"{kind} {mixed}"] = close
    return found


def parallel(rank: int, ranks: int) -> dict[str, Any]:
    torch.manual_seed(0)
    up, down, x, found = nn.Linear(8, 12), nn.Linear(12, 8), some(5, 8), {}
    mine = nn.Sequential(comm.ColumnParallelLinear.of(up), nn.GELU(), comm.RowParallelLinear.of(down))
    whole = nn.Sequential(up, nn.GELU(), down)
    found["sizes"] = [(m.in_features, m.out_features, tuple(m.weight.shape), m.weight.dtype, isinstance(m, nn.Linear)) for m in (mine[0], mine[2])]
    with torch.autocast("cpu", BF16):
        y, want = mine(x.requires_grad_()), whole(z := x.detach().clone().requires_grad_())
    y.float().square().sum().backward()
    want.float().square().sum().backward()
    part = up.weight.grad.chunk(ranks)[rank]
    found["autocast"] = (
        y.dtype == want.dtype == BF16, mine[0].weight.grad.dtype == torch.float32, torch.allclose(y.float(), want.float(), atol=0.03),
        torch.allclose(mine[0].weight.grad, part, atol=0.05 * float(part.abs().max())), torch.allclose(x.grad, z.grad, atol=0.05 * float(z.grad.abs().max())),
    )
    subgroup = dist.new_group([0, 1])
    layer = comm.RowParallelLinear(12, 8, group=subgroup, wire="int8")
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    given = some(5, 12).chunk(ranks, 1)[rank]
    ways = {"deepcopy": copy.deepcopy(layer), "pickle": pickle.loads(pickle.dumps(layer)), "torch.save": torch.load(file, weights_only=False)}
    for name, other in ways.items():
        found[name] = torch.equal(other(given), layer(given)) and other.group is subgroup and other.weight is not layer.weight
    found["state"] = sorted(mine.state_dict())
    other = nn.Sequential(comm.ColumnParallelLinear(8, 12), nn.GELU(), comm.RowParallelLinear(12, 8))
    other.load_state_dict(mine.state_dict())
    found["loaded"] = torch.equal(other(x), mine(x))
    try:
        pickle.loads(pickle.dumps(layer).replace(subgroup.group_name.encode(), b"~" * len(subgroup.group_name)))
    except RuntimeError as error:
        found["no group"] = str(error)
    return found


def every(rank: int, ranks: int) -> tuple[Any, ...]:
    return optimized(rank, ranks), sharded(rank, ranks), parallel(rank, ranks)


@pytest.fixture(scope="module")
def two() -> Any:
    return run(every, 2)


def test_the_optimizer_steps_what_fsdp_shards(two: Any) -> None:
    for found, _, _ in two:
        assert 0.01 < found["moved"] < 0.04 and found["shapes"] == [(17, 33), (17,), (5, 17), (5,)]
        assert all(found[n] is True and found[f"{n} steps"] == {3} for n in ("own", "sharded", "whole"))


def test_layers_that_fsdp_shards(two: Any) -> None:
    for _, found, _ in two:
        assert len(found) == 6 and all(all(close) for close in found.values()), found


def test_parallel_layers_are_linear_layers(two: Any) -> None:
    for _, _, found in two:
        assert found["sizes"] == [(8, 12, (6, 8), torch.float32, True), (12, 8, (8, 6), torch.float32, True)]
        assert all(found["autocast"]) and found["deepcopy"] and found["pickle"] and found["torch.save"] and found["loaded"]
        assert found["state"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert "RowParallelLinear: this process has no group" in found["no group"]
