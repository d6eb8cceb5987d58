"""What the collectives know of a process group, how long they wait in it, and the errors that its ranks see."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
LONGEST = 1e8  # seconds of a timeout


class CommError(RuntimeError):
    """A collective did not complete: a rank has died, is late, or called something else. The contents of its tensors are undefined."""


class Disagreement(ValueError):
    """Ranks called a collective with inconsistent arguments. Every rank raises it, before data is sent."""


UNKNOWN: Any = object()


@dataclass
class State:
    """Of one group in this process."""

    calls: int = 0
    verify: bool | None = None  # of the last call that the ranks compared
    device: torch.device | None = None  # of the last tensor
    backends: dict[str, bool] = field(default_factory=dict)  # by type of device: whether the group has one
    names: list[int] | None = None  # of each rank's host; None: the ranks have not told each other yet
    made: int = 0  # rooms of symmetric memory
    rooms: dict[Any, Any] = field(default_factory=dict)
    unable: dict[str, str] = field(default_factory=dict)  # path -> why this group has none
    hosts: Any = UNKNOWN  # rooftop.ranks.hierarchy.Hosts, or None where it is of one host
    ready: dict[Any, Any] = field(default_factory=dict)  # calls that are prepared: rooftop/ranks/again.py
    latest: Any = None  # symmetric.Latest
    broken: str = ""  # why no call of this group can be made any more


_STATES: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()


def state(group: Any) -> State:
    found = _STATES.get(group)
    if found is None:
        found = _STATES[group] = State()
    return found


class Limit:
    """How long one call may wait for the other ranks, all its waits together. None: the group's own timeout, at each wait."""

    __slots__ = ("_left", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._left = seconds

    @classmethod
    def of(cls, what: str, timeout: Any) -> Limit:
        """Raises TypeError for what is no number, ValueError for one that is not above 0 and at most LONGEST."""
        accepted = f"it must be a number of seconds, above 0 and at most {LONGEST:.0e}, or None for the group's own"
        if timeout is None:
            return cls()
        if isinstance(timeout, bool) or not isinstance(timeout, Real):
            raise TypeError(f"{what}: timeout is {timeout!r}, a {type(timeout).__name__}; {accepted}")
        seconds = float(timeout)
        if not 0 < seconds <= LONGEST:  # of NaN too
            raise ValueError(f"{what}: timeout is {timeout}; {accepted}")
        return cls(seconds)

    def wait(self, work: Any, asked: bool = False) -> bool | None:
        """Wait for the work. Raises what the backend raises when it did not end in time. `asked`: ask whether it has ended until the time
        is over, False then: of a work whose own wait would end the process."""
        if self._left is None:
            return work.wait()
        begun = time.monotonic()
        try:
            if not asked:
                return work.wait(self.left())
            pause = 2e-5
            while not work.is_completed():
                if time.monotonic() - begun > self._left:
                    return False
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)
            return work.wait()
        finally:
            self._left -= time.monotonic() - begun

    def left(self) -> timedelta | None:
        """Whole milliseconds, at least one: backends take 0 for "for ever"."""
        return None if self._left is None else timedelta(milliseconds=max(1, ceil(1000 * self._left)))


def group_of(what: str, group: Any) -> Any:
    """The group, or the default one. Raises TypeError for what is none, ValueError where this rank is not in it, RuntimeError where
    torch.distributed was not initialised or the group is destroyed."""
    if group is None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                f"{what}: torch.distributed is not initialised: call torch.distributed.init_process_group first (torchrun starts the "
                f"processes)"
            )
        return dist.group.WORLD
    if type(group) is int and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{what}: this rank is not in the group; the ranks alone that torch.distributed.new_group was given may call")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{what}: group is a {type(group).__name__}; it must be a torch.distributed.ProcessGroup, or None for the default one"
        )
    try:
        dist.get_rank(group)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"{what}: the group is destroyed, or is not one of torch.distributed's: {error}") from None
    return group


def tensor_of(what: str, x: Any, name: str = "x") -> Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{what}: {name} is a {type(x).__name__}; it must be a tensor")
    if hasattr(x, "__tensor_flatten__"):  # it holds others, as a DTensor does, and has no memory that could be sent
        if not hasattr(x, "trigger_wait"):  # the result of a functional collective has
            raise TypeError(
                f"{what}: {name} is a {type(x).__name__}; it must be a plain tensor, for example the local part of a DTensor (to_local)"
            )
        x = x.trigger_wait()
    if x.is_nested:
        raise TypeError(f"{what}: {name} is a nested tensor; it must be a plain one")
    if x.dtype not in DTYPES:
        raise TypeError(f"{what}: {name} is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    return x.resolve_neg()  # the imaginary part of a conjugate, whose memory has the other sign


def sendable(what: str, x: Tensor, group: Any, name: str = "x") -> None:
    """Raises ValueError for a tensor that the group cannot send: of a layout that is not strided, or on a device that it has no backend
    for."""
    if x.layout != torch.strided:
        raise ValueError(f"{what}: {name} has the layout {x.layout}; accepted is torch.strided")
    kind = x.device.type
    found = state(group).backends.get(kind)
    if found is None:
        found = state(group).backends[kind] = _has_backend(group, x.device)
    if found:
        state(group).device = x.device
    else:
        raise ValueError(f"{what}: {name} lies on {kind}; accepted are the devices of the group's backend, {dist.get_backend(group)}")


def _has_backend(group: Any, device: torch.device) -> bool:
    try:
        group._get_backend(device)
    except (AttributeError, RuntimeError):
        return False
    return True


def meeting(group: Any) -> torch.device:
    """Where the tensors lie by which ranks compare their calls: on the CPU if the group sends from there, so that ranks whose tensors lie
    on different devices find that out; else on the GPU of the last tensor."""
    own = state(group)
    cpu = own.backends.get("cpu")
    if cpu is None:
        cpu = own.backends["cpu"] = _has_backend(group, torch.device("cpu"))
    if cpu:
        return torch.device("cpu")
    return own.device if own.device is not None and own.device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())


def run(what: str, group: Any, call: Callable[[], Any], limit: Limit | None = None) -> Any:
    """A call of torch.distributed whose failure names the op. Raises CommError, and from then on in every call of the group: the ranks
    stand at different places, and what one sends could be taken for what another waits for."""
    usable(what, group)
    try:
        work = call()
        if work is not None and hasattr(work, "wait") and _waited(work, group, limit or Limit()) is False:
            raise RuntimeError("it did not end in time")
        return work
    except (RuntimeError, dist.DistBackendError) as error:
        raise failure(what, group, error, limit) from error


def _waited(work: Any, group: Any, limit: Limit) -> bool | None:
    """Wait for the work. A work of NCCL that its own wait gives up has an exception, by which torch's watchdog ends the process soon after
    the caller was told: it is asked instead, and what is given up is aborted, so that the GPU is free again and nothing is left for the
    watchdog."""
    if limit.seconds is None or "nccl" not in dist.get_backend(group):
        return limit.wait(work)
    if torch.cuda.is_current_stream_capturing():  # the graph's stream waits; the host must not
        return Limit().wait(work)
    finished = limit.wait(work, asked=True)
    if finished is False:
        _abort(group)
    return finished


def _abort(group: Any) -> None:
    """End what runs in the group's communicators, and its watchdog."""
    try:
        backend = group._get_backend(torch.device("cuda"))
        (getattr(backend, "abort", None) or backend._abort)()
    except (AttributeError, RuntimeError):  # a torch that cannot: the watchdog ends the process after the group's timeout
        return


def run_unwaited(what: str, group: Any, call: Callable[[], Any]) -> Any:
    """As `run`, of what is waited for later."""
    usable(what, group)
    try:
        return call()
    except (RuntimeError, dist.DistBackendError) as error:
        raise failure(what, group, error) from error


def usable(what: str, group: Any) -> None:
    """Raises CommError where an earlier call of the group was given up."""
    if broken := state(group).broken:
        raise CommError(
            f"{what} ({where(group)}): an earlier call was given up, so the group cannot be used on; make a new one. That call said: "
            f"{broken}"
        )


def failure(what: str, group: Any, error: Any, limit: Limit | None = None) -> CommError:
    late = f"{limit.seconds:g} s" if limit is not None and limit.seconds is not None else "the group's timeout"
    first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    text = (
        f"{what} ({where(group)}) was not answered by all ranks: one has died, is late by more than {late}, or called something else. It "
        f"said: {first}"
    )
    if not isinstance(error, NotImplementedError) and "support" not in first:
        state(group).broken = text
    return CommError(text)


def where(group: Any) -> str:
    """This rank of the group, for messages."""
    try:
        return f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}, {dist.get_backend(group)}"
    except (RuntimeError, ValueError):
        return "a group that is no more"


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
