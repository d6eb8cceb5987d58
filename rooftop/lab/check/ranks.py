"""Ops of several ranks, judged on several processes: each makes the case's inputs, passes its slice to the public function, and all outputs
together are held against the contract as those of one device are."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from rooftop.core.contract import Contract
from rooftop.core.spec import Case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, judgement

Call: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any], Any], Mapping[str, Any]]


def cases(op: Contract, ranks: int) -> list[Case]:
    """Those of so many ranks that are small enough for the processes of one machine."""
    return [c for c in op.cases if "huge" not in c.tags and "bench" not in c.tags and all(v.shape[0] == ranks for _, v in c.tensors())]


def of(subject: Subject) -> Call | None:
    """How one process of several runs a kernel: the `on_ranks` of its module. None where it does not say."""
    made = subject.implementation
    module = getattr(made, "module", None) or getattr(made, "_module", None)
    return getattr(module, "on_ranks", None)


def check(op: Contract, group: Any, device: torch.device, seed: int, chosen: Sequence[Case] | None = None) -> list[checker.Result]:
    """Every process of the group calls it with the same seed, and gets the same results."""
    if op.ranks is None:
        raise ValueError(f"{op.name} is no op of several ranks: its contract has no `ranks`")
    name = f"{op.name} on {dist.get_world_size(group)} ranks"
    return [
        judged(op, name, op.ranks, case, group, device, seed)
        for case in (cases(op, dist.get_world_size(group)) if chosen is None else chosen)
    ]


def judged(op: Contract, name: str, call: Call, case: Case, group: Any, device: torch.device, seed: int) -> checker.Result:
    """`call` of every process of the group on its slice of the case's inputs, and what all of them got, by the contract."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    expected = judgement.expect(op, case, device, seed)
    mine = {n: t if t is None else t[rank] for n, t in expected.tensors.items()}
    outputs: dict[str, Any] = {}
    with torch.no_grad():
        for n, part in call(mine, expected.options, group).items():
            parts = [torch.empty_like(part.contiguous()) for _ in range(ranks)]
            dist.all_gather(parts, part.contiguous(), group=group)
            outputs[n] = torch.stack(parts)
    verdicts = judgement.judge(op, case, expected, outputs)
    wrong = [f"{n}: {v.message}" for n, v in verdicts.items() if not v.ok]
    return checker.Result(name, op.name, case.id, "wrong" if wrong else "ok", dist.get_backend(group), "; ".join(wrong), verdicts)


def _work(rank: int, folder: str, op: str, ranks: int, seed: int) -> None:
    from rooftop.core import registry

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    found = check(registry.op(op), dist.group.WORLD, torch.device("cpu"), seed)
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.destroy_process_group()


def check_here(op: str, ranks: int, seed: int) -> list[checker.Result]:
    """`check` on so many processes of this machine, over gloo."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(_work, (folder, op, ranks, seed), ranks)
        except mp.ProcessExitedException as error:  # killed, or ended by the system; what a process raises is a fault of this code
            return [checker.Result(op, op, f"on {ranks} processes", "error", "cpu", f"{error}; run it again")]
        return torch.load(Path(folder) / "found.pt", weights_only=False)
