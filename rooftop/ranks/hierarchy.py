"""Collectives of a group that spans several hosts with several ranks each: unquantised among the ranks of a host, quantised between hosts.

Rank r = h L + l is rank l of the L on host h (of H). `inside`: the L ranks of a host; `across`: the H ranks l of all hosts. What crosses
hosts is 1 / L of what a flat collective sends there.

    all_reduce:      s = reduce_scatter(x, inside); s = rooftop.comm.all_reduce(s, across, wire); all_gather(s, inside)
    reduce_scatter:  rows (h', l) of x for rank l: reduce_scatter(x, inside); rooftop.comm.reduce_scatter(that, across, wire)
    all_gather:      rooftop.comm.all_gather(x, across, wire); all_gather(that, inside), put into the order of the ranks

Sums inside a host are rounded to x's dtype before they are quantised. The ranks l of all hosts hold the same bits after `across`, and
`inside` copies them.

Source: hierarchical partitions of ZeRO++ (arXiv 2306.10209) and SDP4Bit (arXiv 2410.15526)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.formats import random_bits
from rooftop.formats import wire as wires
from rooftop.ranks import agreement, groups, symmetric
from rooftop.ranks.groups import Limit
from rooftop.ranks.steps import Options


@dataclass(frozen=True)
class Hosts:
    """Of one group: how many hosts, how many ranks on each, and this rank's two groups."""

    hosts: int
    each: int
    inside: Any
    across: Any


def set_hosts(each: int, group: Any = None) -> None:
    """Declare that every `each` consecutive ranks of the group share a host, if the ranks cannot detect it (containers of one host that
    represent several hosts, or several hosts with the same name). Every rank of the group must call it, before its first collective; the
    ranks compare the values.

    Raises TypeError if `each` is not an integer, ValueError if the number of ranks is not divisible by it, Disagreement if the ranks give
    different values, CommError if a rank does not call it."""
    what, limit = "set_hosts", Limit()
    group = groups.group_of(what, group)
    ranks = dist.get_world_size(group)
    problem: Exception | None = None
    if isinstance(each, bool) or not isinstance(each, int):
        problem = TypeError(f"{what}: each is {each!r}; it must be a whole number")
    elif each < 1 or ranks % each:
        problem = ValueError(f"{what}: each is {each}; it must divide {ranks}, the number of ranks")
    agreement.together(what, group, True, limit, lambda: f"set_hosts with each={each}", problem)
    groups.state(group).hosts = _grouped(group, [r // each for r in range(ranks)], limit)


def of(group: Any, limit: Limit) -> Hosts | None:
    """The group's hosts, where there are several with the same number of ranks, two at least, one host's after another's. The first call of
    a group makes their groups, and asks all ranks where they are if no call has."""
    own = groups.state(group)
    if own.hosts is groups.UNKNOWN:
        own.hosts = _grouped(group, agreement.names("hosts", group, limit), limit) if dist.get_world_size(group) > 1 else None
    return own.hosts


def _grouped(group: Any, names: Sequence[int], limit: Limit) -> Hosts | None:
    """`names`: of the host of each rank."""
    ranks, rank = len(names), dist.get_rank(group)
    each = names.count(names[0])
    alike = ranks % each == 0 and all(names[r] == names[r - r % each] for r in range(ranks)) and len(set(names)) == ranks // each
    if not alike or each == 1 or each == ranks:
        return None
    world = dist.get_process_group_ranks(group)
    first = rank - rank % each

    def made(members: Sequence[int]) -> Any:
        own, left = groups.timeout_of(group), limit.left()
        ids = [world[r] for r in members]
        backend = dist.get_backend(group)
        found = groups.run(
            "hosts", group, lambda: dist.new_group(ids, timeout=left or own, backend=backend, use_local_synchronization=True)
        )
        if left is not None and own is not None:
            dist.distributed_c10d._set_pg_timeout(own, found)
        groups.state(found).hosts = None  # what crosses hosts or stays inside one has no hosts of its own
        return found

    return Hosts(ranks // each, each, made(range(first, first + each)), made(range(rank % each, ranks, each)))


def _within(o: Options, hosts: Hosts) -> Options:
    """The options of the collective between hosts. The ranks of a host have random bits of their own."""
    return replace(o, seed=random_bits.signed(o.seed + 0x3C6EF35F * dist.get_rank(hosts.inside))) if o.stochastic else o


PLAIN = Options(wires.WIRES["bf16"])


def _by_kernel(x: Tensor, group: Any, limit: Limit) -> bool:
    """Whether the bf16 wire carries x as it is, through the peers' memory."""
    return x.dtype == torch.bfloat16 and symmetric.unable(x, group, limit) is None


def _scattered(x: Tensor, hosts: Hosts, what: str, limit: Limit) -> Tensor:
    """This rank's part of the host's sum of flat x: [L n] to [n]."""
    if _by_kernel(x, hosts.inside, limit):
        return symmetric.exchange("reduce_scatter", x, hosts.inside, PLAIN, limit)
    out = x.new_empty(x.numel() // hosts.each)
    groups.run(what, hosts.inside, lambda: groups.scatter_sum(out, x, hosts.inside), limit)
    return out


def _gathered(x: Tensor, hosts: Hosts, what: str, limit: Limit) -> Tensor:
    """The host's flat x one after another, as they are: [n] to [L n]."""
    if _by_kernel(x, hosts.inside, limit):
        return symmetric.exchange("all_gather", x, hosts.inside, PLAIN, limit)
    out = x.new_empty(x.numel() * hosts.each)
    groups.run(what, hosts.inside, lambda: groups.gather_into(out, x, hosts.inside), limit)
    return out


def all_reduce(x: Tensor, hosts: Hosts, o: Options, shots: int | None, limit: Limit, across: Callable[..., Tensor]) -> Tensor:
    """As `rooftop.comm.all_reduce`, of a tensor that is not empty. `across`: the same between the hosts (ways.py), here and below."""
    what, count = "all_reduce", x.numel()
    share = wires.stripe(count, hosts.each, o.group)
    flat = torch.nn.functional.pad(x.reshape(-1), (0, hosts.each * share - count))
    mine = _scattered(flat, hosts, what, limit)
    total = across(mine, hosts.across, _within(o, hosts), shots, None, limit)
    return _gathered(total, hosts, what, limit)[:count].view(x.shape)


def reduce_scatter(x: Tensor, hosts: Hosts, o: Options, limit: Limit, across: Callable[..., Tensor]) -> Tensor:
    """As `rooftop.comm.reduce_scatter`, flat: [H L n] to [n]."""
    rows = x.reshape(hosts.hosts, hosts.each, -1).transpose(0, 1).reshape(-1)
    mine = _scattered(rows, hosts, "reduce_scatter", limit)
    return across(mine, hosts.across, _within(o, hosts), None, limit)


def all_gather(x: Tensor, hosts: Hosts, o: Options, limit: Limit, across: Callable[..., Tensor]) -> Tensor:
    """As `rooftop.comm.all_gather`, flat: [n] to [H L n]."""
    parts = across(x.reshape(-1), hosts.across, _within(o, hosts), None, limit)
    found = _gathered(parts, hosts, "all_gather", limit)
    return found.view(hosts.each, hosts.hosts, -1).transpose(0, 1).reshape(-1)
