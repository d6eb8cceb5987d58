"""The hooks of data parallelism over gloo: error feedback that stays with its parameters, parameters that a step leaves out, gradients of several backward
passes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rooftop import comm

COARSE: dict[str, Any] = {"wire": "int4", "group_size": 32, "error_feedback": True}


class Two(nn.Module):
    """Two branches, of which a call may leave one out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 40), nn.Linear(6, 40)

    def forward(self, x: Tensor, which: str) -> Tensor:
        return sum(getattr(self, name)(x).tanh() for name in which)  # type: ignore[return-value]


def balance(
    model: Any, feedback: Any, ranks: int, calls: list[Callable[[nn.Module], Tensor]], accumulate: int = 1, owed: Any = None
) -> float:
    """What was delivered in all steps, and is still owed, less the mean gradients of the ranks and what was `owed` before: the largest difference, relative
    to the largest gradient.
    With error feedback and one shot it is rounding, whatever the wire loses in one step."""
    given = {n: torch.zeros_like(p) for n, p in model.module.named_parameters()}
    true = {n: torch.zeros_like(p) if owed is None else owed[n].clone() for n, p in model.module.named_parameters()}
    for i in range(0, len(calls), accumulate):
        model.module.zero_grad()
        for call in calls[i : i + accumulate]:  # the same without DDP
            call(model.module).backward()
        for n, p in model.module.named_parameters():
            if p.grad is not None:
                true[n] += p.grad / ranks
        model.module.zero_grad()
        for j, call in enumerate(calls[i : i + accumulate]):
            with model.no_sync() if j < accumulate - 1 else nullcontext():
                call(model).backward()
        for n, p in model.module.named_parameters():
            if p.grad is not None:
                given[n] += p.grad
    worst = 0.0
    keys = feedback.keys_of(model.module.parameters())
    for (n, p), key in zip(model.module.named_parameters(), keys, strict=True):
        still = feedback.state_dict()[key].view_as(p).clone()
        for t in (still, true[n]):
            dist.all_reduce(t)
        worst = max(worst, float((given[n] + still - true[n]).abs().max() / true[n].abs().max()))
    return worst


def inputs(rank: int, seed: int = 0) -> Tensor:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * seed + rank))


def fed(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    x = inputs(rank)

    def made(shared: Any = None, **more: Any) -> tuple[Any, Any]:
        torch.manual_seed(0)
        hook, model = shared or comm.ddp_hook(**COARSE), DistributedDataParallel(Two(), **more)
        model.register_comm_hook(None, hook)
        return model, hook

    def both(model: nn.Module) -> Tensor:
        return model(x, "ab").square().mean()

    model, hook = made()
    found["plain"] = balance(model, hook.feedback, ranks, [both] * 4)
    model, hook = made(bucket_cap_mb=0.0005)  # several buckets, which DDP makes anew after its first step
    found["buckets"] = balance(model, hook.feedback, ranks, [both] * 4)
    model, hook = made()
    found["accumulated"] = balance(model, hook.feedback, ranks, [both] * 6, accumulate=3)
    model, hook = made(find_unused_parameters=True)
    found["unused"] = balance(model, hook.feedback, ranks, [both, lambda m: m(x, "a").square().mean(), both, lambda m: m(x, "b").square().mean()])
    model, hook = made(find_unused_parameters=True)
    found["unused here"] = balance(model, hook.feedback, ranks, [both, lambda m: m(x, "a" if rank else "b").square().mean(), both])

    pair = made(), None
    model, hook = pair[0]
    other, _ = made(hook)  # of the same shape, with the same hook
    alone = [made(), made()]
    same = []
    for _ in range(4):
        for m, x_step in ((model, x), (other, 50 * inputs(rank, 7)), (alone[0][0], x), (alone[1][0], 50 * inputs(rank, 7))):
            m.zero_grad()
            m(x_step, "ab").square().mean().backward()
        pairs = [(model, alone[0][0]), (other, alone[1][0])]
        same += [torch.equal(p.grad, q.grad) for m, n in pairs for p, q in zip(m.parameters(), n.parameters(), strict=True)]
    found["two models"] = all(same)
    found["kept for both"] = len(hook.feedback.state_dict())
    del other, pairs, m
    gc.collect()
    found["kept for one"] = len(hook.feedback.state_dict())

    saved = {key: t.clone() for key, t in hook.feedback.state_dict().items()}
    keys = hook.feedback.keys_of(model.module.parameters())
    owed = {n: saved[key].view_as(p) for (n, p), key in zip(model.module.named_parameters(), keys, strict=True)}
    found["owed"] = max(float(t.abs().max()) for t in owed.values())
    again, second = made()  # as after a restart: the state is loaded before the first step
    second.feedback.load_state_dict(saved)
    found["restarted"] = balance(again, second.feedback, ranks, [both], owed=owed)

    own = [dist.new_group([r]) for r in range(ranks)][rank]  # of this rank alone: its gradients stay as they are
    for where, state, group in (("state", own, None), ("argument", None, own)):
        torch.manual_seed(0)
        model = DistributedDataParallel(Two(), process_group=own)
        model.register_comm_hook(state, comm.ddp_hook(group, wire="int8"))
        model(x, "ab").square().mean().backward()
        alone: list[Any] = [p.grad for p in model.module.parameters()]
        model.module.zero_grad()
        model.module(x, "ab").square().mean().backward()
        found[f"group as {where}"] = all(bool((g == p.grad).all()) for g, p in zip(alone, model.module.parameters(), strict=True))
    with pytest.raises(TypeError, match="ddp_hook: group is a str"):
        comm.ddp_hook("own")
    return found


def test_error_feedback_owes_what_it_has_not_delivered(two: Any) -> None:
    for found, _ in two:
        for name in ("plain", "buckets", "accumulated", "unused", "unused here", "restarted"):
            assert found[name] < 1e-5, (name, found)
        assert found["two models"] and (found["kept for both"], found["kept for one"]) == (8, 4) and found["owed"] > 1e-3, found
        assert found["group as state"] and found["group as argument"]


def sharded(rank: int, ranks: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, x = init_device_mesh("cpu", (ranks,)), inputs(rank)

    def made(**options: Any) -> Any:
        torch.manual_seed(0)
        model = Two()
        for part in (model.a, model.b, model):
            fully_shard(part, mesh=mesh)
        return comm.fsdp_hook(model, **options) if options else model

    def gradients(model: Any) -> list[Tensor | None]:
        return [None if p.grad is None else p.grad.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]

    found: dict[str, Any] = {}
    for name, model in (("exact", made()), ("int8", made(gradients="int8", weights="int8", group_size=32))):
        for which in ("ab", "a"):
            model.zero_grad()
            model(x, which).square().mean().backward()
            found[f"{name}, {which}"] = gradients(model)
        model.zero_grad()
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            model(x, "ab").square().mean().backward()
        found[f"{name}, accumulated"] = gradients(model)
    with pytest.raises(ValueError, match="fsdp_hook: hadamard=True smooths what is quantised"):
        made(gradients="bf16", hadamard=True)
    model = made(gradients="int8", weights="bf16", hadamard=True, group_size=32)
    model(x, "ab").square().mean().backward()
    found["rotated"] = gradients(model)
    model = made(gradients="int4", stochastic=True, group_size=32)
    sums = [torch.zeros_like(g) for g in found["exact, ab"]]
    for _ in range(40):
        model.zero_grad()
        model(x, "ab").square().mean().backward()
        sums = [s + g / 40 for s, g in zip(sums, gradients(model), strict=True)]
    found["stochastic"] = [float((s - g).norm() / g.norm()) for s, g in zip(sums, found["exact, ab"], strict=True)]
    return found


def test_fsdp_gradients_of_steps_that_leave_parameters_out_or_accumulate(two: Any) -> None:
    for _, found in two:
        for got, want in zip(found["rotated"], found["exact, ab"], strict=True):  # the weights go in bf16, which is not rotated
            torch.testing.assert_close(got, want, atol=0.05 * float(want.abs().max()), rtol=0)
        for name in ("ab", "a", "accumulated"):
            for got, want in zip(found[f"int8, {name}"], found[f"exact, {name}"], strict=True):
                assert (got is None) == (want is None), name
                if want is not None:
                    assert not torch.equal(got, want)
                    torch.testing.assert_close(got, want, atol=0.05 * float(want.abs().max()), rtol=0)
        assert max(found["stochastic"]) < 0.03, found["stochastic"]  # each step has random bits of its own: their errors cancel


def both(rank: int, ranks: int) -> Any:
    return fed(rank, ranks), sharded(rank, ranks)


@pytest.fixture(scope="module")
def two() -> Any:
    """What two processes found, (fed, sharded): started once."""
    return run(both, 2)
