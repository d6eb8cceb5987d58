"""What scripts/comm_on_gpus.py tries of gradients on the way between ranks: the hooks of DDP and FSDP2, and error feedback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _comm_checks import F32, FUNCTIONS, Here
from torch import Tensor

from rooftop import comm


def model(h: Here) -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(h.device)


def ddp(h: Here) -> None:
    from torch.nn.parallel import DistributedDataParallel

    grads = {}
    fed_back = {"wire": "int4", "error_feedback": True, "hadamard": True, "stochastic": True}
    for name, options in {"plain": None, "int8": {"wire": "int8"}, "int4": fed_back}.items():  # the path is named: a measured table of sizes may say plain
        net = DistributedDataParallel(model(h))
        if options is not None:
            net.register_comm_hook(None, comm.ddp_hook(path=h.paths[-1], **options))
        for step in range(2):
            net.zero_grad()
            net(h.inputs(110 + step, (32, 64))[h.rank]).square().mean().backward()
        grads[name] = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    alike(h, grads, {"int8": 0.03, "int4": 0.4})


def fsdp(h: Here) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, grads = init_device_mesh(h.device.type, (h.ranks,)), {}
    for name, options in {"plain": None, "int8": {"gradients": "int8"}, "both": {"gradients": "int8", "weights": "int8"}}.items():
        net = model(h)
        for part in (net[0], net[2], net):
            fully_shard(part, mesh=mesh)
        if options is not None:
            comm.fsdp_hook(net, path=h.paths[-1], **options)
        net(h.inputs(120, (32, 64))[h.rank]).square().mean().backward()
        grads[name] = torch.cat([p.grad.full_tensor().reshape(-1) for p in net.parameters()])
    print(f"FSDP2's gradients without a named path: {comm.plan(grads['plain'], h.group, kind='reduce_scatter')}", flush=True)
    alike(h, grads, {"int8": 0.03, "both": 0.1})


def alike(h: Here, grads: dict[str, Tensor], most: dict[str, float]) -> None:
    """The same bits on every rank, and near those of torch's own."""
    for name, limit in most.items():
        off = float((grads[name] - grads["plain"]).norm() / grads["plain"].norm())
        assert 0 < off < limit, f"{name}: gradients are {off:.3g} of the signal away from unquantised ones"
        every = torch.empty(h.ranks * grads[name].numel(), device=h.device)
        dist.all_gather_into_tensor(every, grads[name].contiguous())
        assert bool((every.view(h.ranks, -1) == grads[name]).all()), f"{name}: ranks have different bits"


def feedback(h: Here) -> None:
    """What is lost comes back: the mean of many rounds is nearer than one. Statistics are the same on all ranks."""
    for path in h.paths:
        own, xs = comm.ErrorFeedback(), h.inputs(130, (5000,), F32)
        want, total, rounds = xs.sum(0), torch.zeros(5000, device=h.device), 16
        for _ in range(rounds):
            total += own.all_reduce(xs[h.rank], "g", h.group, wire="int4", shots=1, path=path)
        once = float((comm.all_reduce(xs[h.rank], h.group, wire="int4", shots=1, path=path) - want).norm())
        assert float((total / rounds - want).norm()) < once / 4, path
        for what in FUNCTIONS:
            xs = h.inputs(131, (2 * h.ranks, 200), F32)
            _, told = getattr(comm, what)(xs[h.rank], h.group, wire="int8", statistics=True, path=path)
            assert 0 < told.relative < 0.02, (what, told)


HOOKS: dict[str, Callable[[Here], None]] = {"error feedback and statistics": feedback, "DDP": ddp, "FSDP2": fsdp}
