"""Calls like an earlier one of their group on the symmetric path: their arguments were accepted then, and their kernel is prepared, so
that the launch is left. A call that is not found here goes the whole way, to the same kernel in the same room: what ranks have here may
differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from rooftop.ranks import agreement, groups, sizes, symmetric
from rooftop.ranks.steps import Options

MOST = 1024  # calls of a group that are kept


@dataclass(frozen=True)
class Ready:
    latest: symmetric.Latest
    shape: tuple[int, ...]  # of the result
    seed: int


def key_of(what: str, x: Any, options: tuple[Any, ...]) -> Any:
    """What decides that two calls are alike; None for a tensor that is prepared first, or is none. The options' types belong to it: 1 is
    refused where True is accepted."""
    if (type(x) is not Tensor and type(x) is not torch.nn.Parameter) or x.is_nested or x.layout is not torch.strided:
        return None
    if x.is_neg() or not x.is_contiguous():
        return None
    return what, x.shape, x.dtype, x.device, sizes.saved, options, tuple(map(type, options))


def call(what: str, x: Tensor, group: Any, key: Any) -> Tensor | None:
    """The result, or None as `find`."""
    ready = find(what, x, group, key)
    if ready is None:
        return None
    out = x.new_empty(ready.shape)
    ready.latest.launch(x.device.index, (x.data_ptr(), out.data_ptr(), ready.seed))
    return out


def find(what: str, x: Tensor, group: Any, key: Any) -> Ready | None:
    """None where the call must go the whole way, as it must while the ranks compare theirs. Raises what kernels have found."""
    group = dist.group.WORLD if group is None else group
    if key is None or not isinstance(group, dist.ProcessGroup) or group not in c10d._world.pg_map:
        return None
    own = groups.state(group)
    try:
        ready: Ready | None = own.ready.get(key)
    except TypeError:  # an option that cannot be hashed, and is refused
        return None
    if ready is None or own.broken or own.calls < agreement.VERIFIED or own.rooms.get(ready.latest.key) is not ready.latest.room:
        return None
    symmetric.raise_faults(group, what)
    own.calls += 1
    own.device = x.device
    return ready


def remember(group: Any, key: Any, verify: bool | None, found: Tensor, o: Options) -> None:
    """The call that was just made, if a kernel of the symmetric path alone made it."""
    own = groups.state(group)
    if key is None or own.latest is None or verify or o.hadamard:
        return
    if len(own.ready) >= MOST:
        own.ready.clear()
    own.ready[key] = Ready(own.latest, tuple(found.shape), o.seed)


def begin(group: Any) -> None:
    groups.state(group).latest = None
