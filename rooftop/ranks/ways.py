"""What the collectives of `rooftop.comm` do once all ranks agree about the call: which way it goes, and each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.formats import wire as wires
from rooftop.ranks import groups, hierarchy, link_model, steps
from rooftop.ranks.groups import Limit
from rooftop.ranks.steps import Options

PATHS = ("portable", "symmetric", "hierarchical", "plain")
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@dataclass(frozen=True)
class Plan:
    """The path that a call uses, and why not another one."""

    path: str
    shots: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}, {self.shots} shot{'s' * (self.shots - 1)}: {self.why}"


def plan(
    x: Tensor, group: Any = None, *, wire: str = "int8", shots: int | None = None, path: str | None = None, kind: str = "all_reduce"
) -> Plan:
    """The path that `all_reduce(x, group, wire=wire, ...)` uses, or another collective: `kind` is "reduce_scatter", "all_gather" or
    "all_to_all". ``print(rooftop.comm.plan(x))``. It is the same on every rank with the same arguments.

    "symmetric": a kernel that accesses the peers' memory; "hierarchical": for several hosts with several ranks each, quantised only between
    hosts; "portable": torch.distributed's all-to-all and all-gather of messages; "plain": torch.distributed's own collective in x's dtype,
    unquantised, if it is faster according to a measured table of sizes (`rooftop calibrate --comm`) or, without one, to a model of launch
    and link (rooftop/ranks/link_model.py). In the first call of a group, this one or a collective, the ranks exchange their hosts.

    Raises ValueError for an unknown path or kind, or shots of another collective than an all-reduce, RuntimeError for a named path that is
    not available."""
    group = groups.group_of("plan", group)
    x = groups.tensor_of("plan", x)
    groups.sendable("plan", x, group)
    wires.wire_of("plan", wire, 128, False, False)
    if kind not in KINDS:
        raise ValueError(f"plan: kind is {kind!r}; accepted are {', '.join(map(repr, KINDS))}")
    check_way("plan", shots, path, paths_of(kind))
    if kind != "all_reduce":
        if shots is not None:
            raise ValueError(f"plan: shots is {shots!r}; of {kind} it must be None")
        return exchanged_by("plan", x, group, path, wire, Limit(), kind)
    return planned("plan", x, group, wire, shots, path, Limit())


def check_way(what: str, shots: Any, path: Any, accepted: tuple[str, ...]) -> None:
    """Raises ValueError for a number of shots and a path that there are not."""
    if shots is not None and (type(shots) is not int or shots not in (1, 2)):
        raise ValueError(f"{what}: shots is {shots!r}; accepted are None, 1 and 2")
    if path is not None and (not isinstance(path, str) or path not in accepted):
        raise ValueError(f"{what}: path is {path!r}; accepted are None, {', '.join(map(repr, accepted))}")


def planned(what: str, x: Tensor, group: Any, wire: str, shots: int | None, path: str | None, limit: Limit) -> Plan:
    """As `plan`, of arguments that are right."""
    ranks = dist.get_world_size(group)
    free = shots is None
    if shots is None:
        shots = link_model.shots(x.numel(), x.element_size(), ranks, wire)
    chosen, why = _way(what, x, group, path, PATHS, limit)
    plain = _plain(x, ranks, wire, chosen) if free and path is None else ""
    return Plan("plain", shots, plain) if plain else Plan(chosen, shots, why)


def _plain(x: Tensor, ranks: int, wire: str, way: str, kind: str = "all_reduce") -> str:
    """Why torch's own is faster than that path: by the measured table of sizes, else, of all-reduces on the symmetric path, by the model;
    or nothing."""
    from rooftop.ranks import sizes

    if (measured := sizes.faster(x, ranks, wire, way, kind)) is not None:
        return measured.why if measured.path == "plain" else ""
    if way != "symmetric" or kind != "all_reduce" or not x.numel() or ranks == 1:
        return ""
    shots = link_model.shots(x.numel(), x.element_size(), ranks, wire)
    return link_model.plain(x.numel(), x.element_size(), ranks, wire, shots)


def _way(what: str, x: Tensor, group: Any, path: str | None, accepted: tuple[str, ...], limit: Limit) -> tuple[str, str]:
    """(path, why), before any table of sizes is asked. Raises RuntimeError as `plan`."""
    from rooftop.ranks import symmetric

    if path in ("plain", "portable"):
        return path, "asked for"
    reason = symmetric.unable(x, group, limit) if path != "hierarchical" else ""
    if path == "symmetric":
        if reason:
            raise RuntimeError(f"{what}: path 'symmetric': {reason}")
        return path, "asked for"
    if path is None and not reason:
        return "symmetric", "one host, peers' memory can be reached"
    hosts = hierarchy.of(group, limit) if "hierarchical" in accepted else None
    if path == "hierarchical" and hosts is None:
        raise RuntimeError(
            f"{what}: path 'hierarchical': it takes several hosts, each with the same number of ranks, two at least, one after another"
        )
    if hosts is not None:
        return "hierarchical", "asked for" if path else f"{hosts.hosts} hosts of {hosts.each} ranks"
    return "portable", str(reason)


def paths_of(what: str) -> tuple[str, ...]:
    if what in ("all_reduce_norm", "dispatch_rows", "combine_rows"):
        return "portable", "symmetric"
    return ("portable", "symmetric", "plain") if what == "all_to_all" else PATHS


def exchanged_by(what: str, x: Tensor, group: Any, path: str | None, wire: str, limit: Limit, kind: str = "") -> Plan:
    """The path of a reduce_scatter, all_gather or all_to_all, which is `kind` or else `what`: see `plan`."""
    kind = kind or what
    way, why = _way(what, x, group, path, paths_of(kind), limit)
    plain = _plain(x, dist.get_world_size(group), wire, way, kind) if path is None else ""
    return Plan("plain", 1, plain) if plain else Plan(way, 1, why)


def measured_plain(what: str, x: Tensor, ranks: int, wire: str) -> tuple[str, ...]:
    """The ways that this process would leave for "plain": ranks whose tables decide otherwise would wait for each other."""
    return tuple(way for way in PATHS[:3] if _plain(x, ranks, wire, way, what)) if x.is_cuda else ()


def _in_range(x: Tensor, o: Options, ranks: int, call: Callable[[Tensor], Tensor]) -> Tensor:
    """`call(x)`, of numbers that a rotation cannot push out of the range. `ranks`: whose numbers are added up."""
    return wires.raised(call(wires.lowered(x)), x.dtype, o.wire, ranks) if o.hadamard else call(x)


def all_reduce(x: Tensor, group: Any, o: Options, shots: int | None, path: str | None, limit: Limit) -> Tensor:
    from rooftop.ranks import symmetric

    ranks = dist.get_world_size(group)
    p = planned("all_reduce", x, group, o.wire.name, shots, path, limit)
    if x.numel() == 0 or ranks == 1:
        return x.clone()
    if p.path == "plain":
        found = x.clone(memory_format=torch.contiguous_format)
        groups.run("all_reduce", group, lambda: dist.all_reduce(found, group=group, async_op=True), limit)
        return found
    if p.path == "hierarchical":
        return hierarchy.all_reduce(x, hierarchy.of(group, limit), o, shots, limit, all_reduce)  # type: ignore[arg-type]
    if p.path == "symmetric":
        return _in_range(x, o, ranks, lambda t: symmetric.all_reduce(t, group, o, p.shots, limit))
    return _in_range(x, o, ranks, lambda t: _portable_all_reduce(t, group, o, p.shots, limit))


def _portable_all_reduce(x: Tensor, group: Any, o: Options, shots: int, limit: Limit) -> Tensor:
    what, ranks, rank, count = "all_reduce", dist.get_world_size(group), dist.get_rank(group), x.numel()
    share = wires.stripe(count, ranks, o.group)
    size = ranks * share
    if shots == 1:
        sent = steps.encode(x, o, 1, size, rank * size)
        got = sent.new_empty(ranks, sent.shape[1])
        groups.run(what, group, lambda: groups.gather_into(got.view(-1), sent.view(-1), group), limit)
        return steps.decode_sum(got, o, size, x.dtype)[:count].view(x.shape)
    sent = steps.encode(x, o, ranks, share, rank * size)
    parts = torch.empty_like(sent)
    groups.run(what, group, lambda: groups.exchange(parts.view(-1), sent.view(-1), group), limit)
    mine = steps.add(parts, o, share, (ranks * ranks + rank) * share)
    got = mine.new_empty(ranks, mine.numel())
    groups.run(what, group, lambda: groups.gather_into(got.view(-1), mine, group), limit)
    return steps.decode(got, o, share, count, x.dtype).view(x.shape)


def reduce_scatter(x: Tensor, group: Any, o: Options, path: str | None, limit: Limit) -> Tensor:
    from rooftop.ranks import symmetric

    what = "reduce_scatter"
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    shape = (x.shape[0] // ranks, *x.shape[1:])
    count = prod(shape)
    way = exchanged_by(what, x, group, path, o.wire.name, limit).path
    if x.numel() == 0 or ranks == 1:
        return x.clone()[: shape[0]]
    if way == "plain":
        found, rows = x.new_empty(shape), x.contiguous()
        groups.run(what, group, lambda: groups.scatter_sum(found, rows, group), limit)
        return found
    if way == "hierarchical":
        return hierarchy.reduce_scatter(x, hierarchy.of(group, limit), o, limit, reduce_scatter).view(shape)  # type: ignore[arg-type]
    if way == "symmetric":
        return _in_range(x, o, ranks, lambda t: symmetric.exchange(what, t, group, o, limit)).view(shape)

    def portable(t: Tensor) -> Tensor:
        sent = steps.encode(t, o, ranks, count, rank * ranks * wires.padded(count, o.group))
        parts = torch.empty_like(sent)
        groups.run(what, group, lambda: groups.exchange(parts.view(-1), sent.view(-1), group), limit)
        return steps.decode_sum(parts, o, count, t.dtype)

    return _in_range(x, o, ranks, portable).view(shape)


def all_gather(x: Tensor, group: Any, o: Options, path: str | None, limit: Limit) -> Tensor:
    from rooftop.ranks import symmetric

    what = "all_gather"
    ranks, rank, count = dist.get_world_size(group), dist.get_rank(group), x.numel()
    shape = (x.shape[0] * ranks, *x.shape[1:])
    way = exchanged_by(what, x, group, path, o.wire.name, limit).path
    if count == 0 or ranks == 1:
        return x.new_empty(shape) if count == 0 else x.clone()
    if way == "plain":
        found, rows = x.new_empty(shape), x.contiguous()
        groups.run(what, group, lambda: groups.gather_into(found, rows, group), limit)
        return found
    if way == "hierarchical":
        return hierarchy.all_gather(x, hierarchy.of(group, limit), o, limit, all_gather).view(shape)  # type: ignore[arg-type]
    if way == "symmetric":
        return _in_range(x, o, 1, lambda t: symmetric.exchange(what, t, group, o, limit)).view(shape)

    def portable(t: Tensor) -> Tensor:
        sent = steps.encode(t, o, 1, count, rank * wires.padded(count, o.group))
        got = sent.new_empty(ranks, sent.shape[1])
        groups.run(what, group, lambda: groups.gather_into(got.view(-1), sent.view(-1), group), limit)
        return steps.decode(got, o, count, ranks * count, t.dtype)

    return _in_range(x, o, 1, portable).view(shape)


def all_to_all(x: Tensor, group: Any, o: Options, path: str | None, limit: Limit) -> tuple[Tensor, bool]:
    """(what came, whether it was quantised)."""
    from rooftop.ranks import symmetric

    what = "all_to_all"
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    way = exchanged_by(what, x, group, path, o.wire.name, limit).path
    if x.numel() == 0 or ranks == 1:
        return x.clone(), False
    count = x.numel() // ranks
    if way == "plain":
        found, rows = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
        groups.run(what, group, lambda: groups.exchange(found, rows, group), limit)
        return found, False
    if way == "symmetric":
        return _in_range(x, o, 1, lambda t: symmetric.exchange(what, t, group, o, limit)).view(x.shape), True

    def portable(t: Tensor) -> Tensor:
        sent = steps.encode(t, o, ranks, count, rank * ranks * wires.padded(count, o.group))
        got = torch.empty_like(sent)
        groups.run(what, group, lambda: groups.exchange(got.view(-1), sent.view(-1), group), limit)
        return steps.decode(got, o, count, ranks * count, t.dtype)

    return _in_range(x, o, 1, portable).view(x.shape), True


def received(x: Tensor, o: Options, ranks: int, rank: int, count: int) -> Tensor:
    """What the others get of this rank's x, sent in rows of `count` elements, one to each rank. Nothing travels."""
    start = rank * ranks * wires.padded(count, o.group)
    return _in_range(x, o, 1, lambda t: steps.decode(steps.encode(t, o, ranks, count, start), o, count, t.numel(), t.dtype)).view(x.shape)
