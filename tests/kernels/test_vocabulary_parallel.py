"""linear_cross_entropy with the vocabulary shared by the ranks of a process group, and with a head that FSDP2 gathers: two gloo processes against one."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import _processes
import pytest
import torch
import torch.distributed as dist

import rooftop

RANKS, TOKENS, WIDTH, CLASSES = 2, 6, 8, 10
OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "each token's": {"reduction": "none"},
    "all options": {"reduction": "sum", "label_smoothing": 0.1, "lse_square_scale": 0.01, "softcap": 3.0, "ignore_index": 4},
    "entropy": {"return_entropy": True, "temperature": 0.7, "softcap": 3.0, "ignore_index": 4, "weights": torch.tensor([1.0, 0.5, 2.0, -1.0, 0.0, 3.0])},
}


def made() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(8)
    x, weight, bias = (torch.randn(shape, generator=g) for shape in ((TOKENS, WIDTH), (RANKS * CLASSES, WIDTH), (RANKS * CLASSES,)))
    bias[:CLASSES] = float("-inf")  # the first rank's classes are all out of the question
    bias[3] = 0.5
    bias[CLASSES:] = 0.1
    return x, weight, bias, torch.tensor([3, 12, 4, 19, 3, 10])


def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, target: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    loss, lse, *entropy = rooftop.linear_cross_entropy(leaves[0], leaves[1], target, bias=leaves[2], return_lse=True, **options)
    whole = loss.sum() + sum((e * torch.linspace(-1, 2, TOKENS)).sum() for e in entropy)
    return [loss.detach(), lse, *torch.autograd.grad(whole, leaves), *(e.detach() for e in entropy)]


class Head(torch.nn.Module):
    """A last layer whose forward, in which FSDP2 has gathered the weight, is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(made()[1])

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss, entropy = rooftop.linear_cross_entropy(x, self.weight, target, temperature=0.7, return_entropy=True)
        return loss - 0.1 * entropy.mean()


def gathered() -> list[torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    head, (x, _, _, target) = Head(), made()
    fully_shard(head, mesh=init_device_mesh("cpu", (RANKS,)))
    loss = head(x, target)
    loss.backward()
    return [loss.detach(), head.weight.grad.full_tensor()]  # type: ignore[union-attr]


def keeps_nothing(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, target: torch.Tensor) -> None:
    """What a call holds goes with its graph: a process group that waits for the garbage collector aborts the process at its end."""
    gc.collect()
    gc.disable()
    mine = target.clone()
    held = weakref.ref(mine)
    run(x, weight, bias, mine, group=dist.group.WORLD)
    del mine
    assert held() is None
    gc.enable()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    x, weight, bias, target = made()
    mine = slice(rank * CLASSES, (rank + 1) * CLASSES)
    keeps_nothing(x, weight[mine], bias[mine], target)
    travelled = []
    real = dist.all_reduce

    def counted(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        travelled.append(t.numel())
        return real(t, *args, **kwargs)

    dist.all_reduce = counted
    found = {name: run(x, weight[mine], bias[mine], target, group=dist.group.WORLD, **options) for name, options in OPTIONS.items()}
    sent = list(travelled)
    torch.save((found, sent, gathered()), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_give_what_one_gives(tmp_path: Path) -> None:
    _processes.start(work, (str(tmp_path),), RANKS, join=True)
    want = {name: run(*made(), **options) for name, options in OPTIONS.items()}
    head, (x, _, _, target) = Head(), made()
    whole = head(x, target)
    whole.backward()
    for rank in range(RANKS):
        found, travelled, sharded = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(sharded, [whole.detach(), head.weight.grad])
        mine = slice(rank * CLASSES, (rank + 1) * CLASSES)
        for name in OPTIONS:
            loss, lse, dx, dweight, dbias, *entropy = want[name]
            for got, expected in zip(found[name], (loss, lse, dx, dweight[mine], dbias[mine], *entropy), strict=True):
                torch.testing.assert_close(got, expected, msg=lambda text, name=name, rank=rank: f"{name}, rank {rank}: {text}")
        assert travelled == [n for o in OPTIONS.values() for n in (TOKENS, (3 + ("return_entropy" in o)) * TOKENS, TOKENS * WIDTH)]


def test_a_group_that_is_none_is_named() -> None:
    x, weight, _, target = made()
    with pytest.raises(TypeError, match="group is a str"):
        rooftop.linear_cross_entropy(x, weight, target, group="world")
