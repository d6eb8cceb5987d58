"""What the collectives know of a process group, what ranks say to each other before they send, and the errors that all of them see."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

VERIFIED = 16  # calls of a group on a GPU of which the ranks compare what they were given; on the CPU all
FIELDS = 16  # numbers of a header
KINDS = ("refused", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class CommError(RuntimeError):
    """A collective did not end: a rank has died, is late, or called something else. What its tensors hold is not known."""


class Disagreement(ValueError):
    """Ranks called a collective with arguments that do not go together. Every rank raises it, before anything was sent."""


UNKNOWN: Any = object()


@dataclass
class State:
    """Of one group in this process."""

    calls: int = 0
    made: int = 0  # rooms of symmetric memory
    rooms: dict[Any, Any] = field(default_factory=dict)
    unable: dict[str, str] = field(default_factory=dict)  # path -> why this group has none
    hosts: Any = UNKNOWN  # rooftop.comm.hierarchy.Hosts, or None where it is of one host


_STATES: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()


def state(group: Any) -> State:
    found = _STATES.get(group)
    if found is None:
        found = _STATES[group] = State()
    return found


def group_of(what: str, group: Any) -> Any:
    """The group, or the default one. Raises TypeError for what is none, RuntimeError where torch.distributed was not initialised."""
    if group is None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(f"{what}: torch.distributed is not initialised: call torch.distributed.init_process_group first (torchrun starts the processes)")
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"{what}: group is a {type(group).__name__}; it must be a torch.distributed.ProcessGroup, or None for the default one")
    return group


def tensor_of(what: str, x: Any, name: str = "x") -> Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{what}: {name} is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in DTYPES:
        raise TypeError(f"{what}: {name} is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    return x


def must_verify(group: Any, device: torch.device, asked: bool | None) -> bool:
    """Whether this call's arguments are compared: a function of how many calls there were, which is the same on all ranks."""
    own = state(group)
    own.calls += 1
    return (device.type == "cpu" or own.calls <= VERIFIED) if asked is None else asked


def header(kind: str, x: Tensor | None, facts: Sequence[int] = ()) -> list[int]:
    if x is None:
        return [0] * FIELDS
    shape = list(x.shape)[:7]
    return [KINDS.index(kind), list(DTYPES).index(x.dtype), x.dim(), *shape, *[-1] * (7 - len(shape)), *facts, *[0] * (FIELDS - 10 - len(facts))]


def agree(what: str, group: Any, device: torch.device, mine: list[int]) -> None:
    """Compare headers. Raises Disagreement on every rank where one differs."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return
    sent = torch.tensor(mine, dtype=torch.int64, device=device)
    got = torch.empty(ranks * FIELDS, dtype=torch.int64, device=device)
    run(what, group, lambda: gather_into(got, sent, group))
    found = got.view(ranks, FIELDS).tolist()
    if all(row == found[0] for row in found):
        return
    said = "; ".join(f"rank {rank}: {_said(row)}" for rank, row in enumerate(found))
    raise Disagreement(f"{what}: the ranks were given different arguments: {said}")


def _said(row: Sequence[int]) -> str:
    if row[0] == 0:
        return "refused its arguments"
    shape = tuple(row[3 : 3 + min(row[2], 7)])
    options = ", ".join(map(str, row[10:]))
    return f"{KINDS[row[0]]} of {list(DTYPES.values())[row[1]]} {shape} (wire and options {options})"


def run(what: str, group: Any, call: Callable[[], Any], timeout: float | None = None) -> Any:
    """A call of torch.distributed whose failure names the op. Raises CommError."""
    try:
        work = call()
        if work is not None and hasattr(work, "wait"):
            finished = work.wait(timedelta(seconds=timeout)) if timeout is not None else work.wait()
            if finished is False:
                raise RuntimeError("it did not end in time")
        return work
    except (RuntimeError, dist.DistBackendError) as error:
        raise failure(what, group, error, timeout) from error


def run_unwaited(what: str, group: Any, call: Callable[[], Any]) -> Any:
    """As `run`, of what is waited for later."""
    try:
        return call()
    except (RuntimeError, dist.DistBackendError) as error:
        raise failure(what, group, error) from error


def failure(what: str, group: Any, error: Any, timeout: float | None = None) -> CommError:
    try:
        where = f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}, {dist.get_backend(group)}"
    except (RuntimeError, ValueError):
        where = "a group that is no more"
    limit = f"{timeout} s" if timeout is not None else "the group's timeout"
    first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    return CommError(f"{what} ({where}) was not answered by all ranks: one has died, is late by more than {limit}, or called something else. It said: {first}")


def timeout_of(group: Any) -> timedelta | None:
    """The group's own, for groups made of its ranks; None: torch's default."""
    try:
        device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
        found = group._get_backend(torch.device(device)).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, timedelta) else None


# -- torch's collectives by the names that this version has for them

_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gather_into(out: Tensor, x: Tensor, group: Any) -> Any:
    """`out`: the ranks' `x` one after another. A work to wait for."""
    return _GATHER(out, x, group=group, async_op=True)


def scatter_sum(out: Tensor, x: Tensor, group: Any) -> Any:
    return _SCATTER(out, x, group=group, async_op=True)


def exchange(out: Tensor, x: Tensor, group: Any) -> Any:
    """Part p of `x` goes to rank p; part p of `out` comes from it."""
    return dist.all_to_all_single(out, x, group=group, async_op=True)
