"""Rows to the ranks of their experts, and back: launches of expert_rows_ranks__cuda_sm80.cu, and the same by torch.distributed's all-to-all
of messages, for which the host waits for the counts."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.core.argument_checks import number
from rooftop.core.spec import Launch, dtype_of
from rooftop.ranks import again, collectives, expert_launches, groups, steps, symmetric, ways
from rooftop.ranks.groups import Disagreement, Limit
from rooftop.ranks.rank_launches import FLAGS
from rooftop.ranks.steps import Options

ROWS = 65535  # messages of one launch, at most: a grid's second dimension


@dataclass(frozen=True)
class Routes:
    """Where a rank's rows went and the rows that it got came from, of `dispatch_rows`.

    counts: int32 [E], rows of this rank for each expert; received: int32 [W, E / W], rows that came from each rank for each expert of this
    one, those that did not fit among them; ends: int32 [E / W], where each expert's rows end, the offsets of `rooftop.grouped_matmul`;
    tokens: rows that `combine_rows` returns; capacity: rows that it takes, where known."""

    counts: Tensor
    received: Tensor
    ends: Tensor
    tokens: int
    capacity: int | None = None


def dispatch_rows(
    x: Tensor, counts: Tensor, group: Any = None, *, capacity: int | None = None, wire: str = "int8", group_size: int = 128,
    path: str | None = None, verify: bool | None = None, timeout: float | None = None,
) -> tuple[Tensor, Routes]:
    """The rows of all ranks for this rank's experts: ``rows, routes = rooftop.comm.dispatch_rows(x, counts)``, then
    ``rooftop.grouped_matmul(rows, weights, routes.ends)`` and `combine_rows`. `rooftop.expert_rows_ranks` is the formula.

    On the symmetric path one kernel sends counts and rows, waits once, and puts rows into place; the host waits for nothing, so a CUDA
    graph may replay the call with other counts. Each rank has symmetric memory for all rows of all ranks, twice.

    Args:
        x: float32, float16 or bfloat16, [N, C], by experts: first the rows for expert 0, then for expert 1, ... A row for several experts
        is there several times. On all ranks the same shape and dtype.
        counts: int32 [E] on the device of x, how many rows each expert gets; E, at most 1024, is a multiple of the number of ranks W, and
        rank r has the experts r E / W to (r + 1) E / W - 1. Rows of x after those that are counted do not travel. A count below 0 is 0,
        counts end with the rows of x.
        capacity: rows of the result; None: W N, which holds all whatever the counts are. Rows that do not fit are left out, those
        of the last experts; `routes.received` tells.
        wire, group_size: as for `all_reduce`. "bf16" rounds float32 and float16. A rank's own rows are rounded too.
        path: "symmetric", "portable" or None: see `plan`. "portable" is torch.distributed's all-to-all, for which the host waits.
        verify, timeout: as for `all_reduce`.

    Returns (rows [capacity, C], by experts, then by the ranks they came from; zeros after them; `Routes`). With one rank nothing is sent
    and rows are not rounded. NaN and infinities are preserved. No gradient.

    Raises the errors of `all_reduce`; TypeError and ValueError for counts and a capacity that are not accepted."""
    what = "dispatch_rows"
    options = (capacity, wire, group_size, path, verify, timeout)
    key = _key(what, (x, counts), options)
    if (ready := again.find(what, x, group, key)) is not None:
        given, out, routes = _dispatched(x, counts, ready.shape[0], ready.seed)
        ready.latest.launch(x.device.index, tuple(t.data_ptr() for t in given.values()))
        return out, routes

    def check(t: Tensor, ranks: int) -> None:
        _rows(what, t)
        _counted(what, "counts", counts, t.device)
        if counts.dim() != 1 or not counts.numel() or counts.numel() % ranks or counts.numel() > expert_launches.EXPERTS:
            raise ValueError(
                f"{what}: counts is {tuple(counts.shape)}; it must be [E], with E a multiple of {ranks}, the number of ranks, and at most "
                f"{expert_launches.EXPERTS}"
            )
        if capacity is not None:
            number(what, "capacity", capacity, "a whole number, or None", whole=True)
            if not 0 <= capacity < 2**31:
                raise ValueError(f"{what}: capacity is {capacity}; it must be at least 0 and below 2^31, or None")

    said = f", experts={counts.numel() if isinstance(counts, Tensor) else None}, capacity={capacity}"
    x, group, o, limit = collectives.begun(
        what, x, group, (wire, group_size, False, False, 0), None, path, False, verify, timeout, check, more=said
    )
    x, counts, ranks = x.contiguous(), counts.contiguous(), dist.get_world_size(group)
    rows = ranks * len(x) if capacity is None else capacity
    way = ways.exchanged_by(what, x, group, path, o.wire.name, limit).path
    again.begin(group)
    if ranks == 1 or x.numel() == 0 or way != "symmetric" or expert_launches.unable(ranks, len(x), x.shape[1], counts.numel(), rows):
        return _dispatch_by_messages(x, counts, rows, group, o, limit)
    given, out, routes = _dispatched(x, counts, rows, ranks)
    _launched(what, given, len(x), rows, group, o, limit)
    again.remember(group, key, verify, out, Options(o.wire, seed=ranks))
    return out, routes


def combine_rows(
    rows: Tensor, routes: Routes, group: Any = None, *, wire: str = "int8", group_size: int = 128, path: str | None = None,
    verify: bool | None = None, timeout: float | None = None,
) -> Tensor:
    """What the experts made of the rows of `dispatch_rows`, back on the ranks and in the order that they came from: [N, C], zeros for rows
    that did not fit or were not counted. ``y = rooftop.comm.combine_rows(rows, routes)``

    Args:
        rows: [capacity, C], as many as `dispatch_rows` returned; C and the dtype may be others. On all ranks the same shape and dtype.
        routes: of that call, of every rank. Where they do not belong together the result is NaN, and the next call, or
        `synchronize`, raises `Disagreement` (on path "portable" the call itself does).
        wire, group_size, path, verify, timeout: as for `dispatch_rows`.

    Copies of a row that went to several experts come back one by one: weigh and add them up. No gradient. Raises as `dispatch_rows`."""
    what = "combine_rows"
    tokens = (routes.tokens, routes.capacity) if isinstance(routes, Routes) else None
    key = _key(what, (rows, *((routes.counts, routes.received) if isinstance(routes, Routes) else ())), (tokens, wire, group_size, path, verify, timeout))
    if (ready := again.find(what, rows, group, key)) is not None:
        out = rows.new_empty(ready.shape)
        given = _back(rows, routes, out)
        ready.latest.launch(rows.device.index, tuple(t.data_ptr() for t in given.values()))
        return out

    def check(t: Tensor, ranks: int) -> None:
        _rows(what, t)
        if not isinstance(routes, Routes):
            raise TypeError(f"{what}: routes is a {type(routes).__name__}; it must be the Routes that dispatch_rows returned")
        if routes.capacity is not None and len(t) != routes.capacity:
            raise ValueError(f"{what}: rows is {tuple(t.shape)}; it must have the {routes.capacity} rows that dispatch_rows returned")
        _counted(what, "routes.counts", routes.counts, t.device)
        _counted(what, "routes.received", routes.received, t.device)
        shape = tuple(routes.received.shape)
        if shape != (ranks, routes.counts.numel() // ranks):
            raise ValueError(f"{what}: routes.received is {shape} and the group has {ranks} ranks; they must be those of one dispatch_rows")

    said = f", experts={routes.counts.numel()}, tokens={routes.tokens}" if isinstance(routes, Routes) else ""
    rows, group, o, limit = collectives.begun(
        what, rows, group, (wire, group_size, False, False, 0), None, path, False, verify, timeout, check, more=said
    )
    rows, ranks = rows.contiguous(), dist.get_world_size(group)
    way = ways.exchanged_by(what, rows, group, path, o.wire.name, limit).path
    again.begin(group)
    shape = ranks, routes.tokens, rows.shape[1], routes.counts.numel(), len(rows)
    if ranks == 1 or not rows.numel() * routes.tokens or way != "symmetric" or expert_launches.unable(*shape):
        return _combine_by_messages(rows, routes, group, o, limit)
    out = rows.new_empty(routes.tokens, rows.shape[1])
    _launched(what, _back(rows, routes, out), routes.tokens, len(rows), group, o, limit)
    again.remember(group, key, verify, out, o)
    return out


def _key(what: str, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    keys = tuple(again.key_of(what, t, options) for t in tensors)
    return None if None in keys else keys


def _rows(what: str, t: Tensor) -> None:
    if t.dim() != 2:
        raise ValueError(f"{what}: the rows are {tuple(t.shape)}; they must be a matrix")


def _counted(what: str, name: str, t: Any, device: torch.device) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{what}: {name} is a {type(t).__name__}; it must be a tensor")
    if t.dtype != torch.int32:
        raise TypeError(f"{what}: {name} is {t.dtype}; it must be torch.int32")
    if t.device != device:
        raise ValueError(f"{what}: {name} lies on {t.device}, the rows on {device}; they must be on one device")


# -- by the kernel


def _dispatched(x: Tensor, counts: Tensor, rows: int, ranks: int) -> tuple[dict[str, Tensor], Tensor, Routes]:
    """The kernel's tensors by name, and what it writes of them."""
    out, received = x.new_empty(rows, x.shape[1]), counts.new_empty(ranks, len(counts) // ranks)
    ends = counts.new_empty(received.shape[1])
    given = {"counts": counts, "received": received, "ends": ends, "x": x, "out": out}
    return given, out, Routes(counts, received, ends, len(x), rows)


def _back(rows: Tensor, routes: Routes, out: Tensor) -> dict[str, Tensor]:
    return {"counts": routes.counts, "received": routes.received, "x": rows, "out": out}


def _launched(what: str, given: Mapping[str, Tensor], tokens: int, capacity: int, group: Any, o: Options, limit: Limit) -> None:
    symmetric.raise_faults(group, what)
    x, experts, back = given["x"], given["counts"].numel(), what == "combine_rows"
    ranks, rank, columns = dist.get_world_size(group), dist.get_rank(group), x.shape[1]
    facts = (what, tokens, columns, experts, capacity, str(x.dtype), *o.facts())
    call = zlib.crc32(repr(facts).encode()) & 0x7FFFFFFF

    def make(room: symmetric.Room, sms: int, patience: int) -> Launch:
        return expert_launches.launch(
            tokens, columns, experts, capacity, ranks, dtype_of(x.dtype), o.wire.name, o.group, sms, back=back, rank=rank,
            half=room.capacity // 2, room=FLAGS + room.capacity, call=call, patience=patience,
        )

    whole = expert_launches.sizes(tokens, columns, experts, ranks, o.wire.name, o.group, expert_launches.grid_of(tokens, columns, 256))[1]
    symmetric.launched("experts", "experts", whole, facts, make, given, x.device, group, limit)


# -- by messages


def _encoded(x: Tensor, o: Options) -> Tensor:
    """Messages [N, bytes], one a row."""
    return torch.cat([steps.encode(part, o, len(part), x.shape[1]) for part in x.split(ROWS)])


def _decoded(messages: Tensor, o: Options, columns: int, dtype: torch.dtype) -> Tensor:
    parts = [steps.decode(part, o, columns, len(part) * columns, dtype).view(-1, columns) for part in messages.split(ROWS)]
    return torch.cat(parts)


def _moved(what: str, x: Tensor, out: list[int], into: list[int], group: Any, o: Options, limit: Limit) -> Tensor:
    """Rows of x, `out` of them for each rank, and from each `into`, in the order of the ranks."""
    if not x.shape[1]:
        return x.new_empty(sum(into), 0)
    sent = _encoded(x, o)
    got = sent.new_empty(sum(into), sent.shape[1])
    groups.run(what, group, lambda: dist.all_to_all_single(got, sent, into, out, group=group, async_op=True), limit)
    return _decoded(got, o, x.shape[1], x.dtype)


def begins(counts: Tensor, tokens: int) -> Tensor:
    """int64 [..., E + 1]: where each expert's rows begin among a rank's `tokens`, and where the last end."""
    ends: Tensor = counts.clamp(0, tokens).long().cumsum(-1).clamp(max=tokens)
    return torch.nn.functional.pad(ends, (1, 0))


def _order(received: Tensor) -> Tensor:
    """For each row by experts its number by ranks, of rows [ranks, experts] that were received."""
    ranks, experts = received.shape
    of = torch.arange(experts, device=received.device).repeat(ranks).repeat_interleave(received.reshape(-1))
    return of.argsort(stable=True)


def _counts(counts: Tensor, tokens: int) -> Tensor:
    """int64 [E], in range."""
    return begins(counts, tokens).diff()


def _dispatch_by_messages(x: Tensor, counts: Tensor, rows: int, group: Any, o: Options, limit: Limit) -> tuple[Tensor, Routes]:
    what, ranks = "dispatch_rows", dist.get_world_size(group)
    mine = _counts(counts, len(x)).view(ranks, -1)
    received = mine.clone()
    if ranks > 1:
        groups.run(what, group, lambda: groups.exchange(received, mine, group), limit)
    ends = received.sum(0).cumsum(0).clamp(max=rows).to(torch.int32)
    out, routes = x.new_zeros(rows, x.shape[1]), Routes(counts, received.to(torch.int32), ends, len(x), rows)
    if ranks == 1:  # no host waits
        kept = torch.arange(min(rows, len(x)), device=x.device) < mine.sum()
        out[: len(kept)] = torch.where(kept[:, None], x[: len(kept)], out[: len(kept)])
        return out, routes
    sent, into = mine.sum(1).tolist(), received.sum(1).tolist()
    got = _moved(what, x[: sum(sent)], sent, into, group, o, limit)
    order = _order(received)[:rows]
    out[: len(order)] = got[order]
    return out, routes


def _combine_by_messages(rows: Tensor, routes: Routes, group: Any, o: Options, limit: Limit) -> Tensor:
    ranks = dist.get_world_size(group)
    mine = _counts(routes.counts, routes.tokens).view(ranks, -1)
    out = rows.new_zeros(routes.tokens, rows.shape[1])
    if ranks == 1:
        kept = torch.arange(min(len(rows), len(out)), device=rows.device) < mine.sum()
        out[: len(kept)] = torch.where(kept[:, None], rows[: len(kept)], out[: len(kept)])
        return out
    received = routes.received.long()
    _same_dispatch(mine, received, group, limit)
    sent, into = received.sum(1).tolist(), mine.sum(1).tolist()
    order = _order(received)
    x = rows.new_zeros(len(order), rows.shape[1])
    kept = order[: len(rows)]
    x[kept] = rows[: len(kept)]
    got = _moved("combine_rows", x, sent, into, group, o, limit)
    out[: len(got)] = got
    return out


def _same_dispatch(mine: Tensor, received: Tensor, group: Any, limit: Limit) -> None:
    """Compare with all ranks the rows that this one sent [W, E / W] and received, by its routes: backends end the process, or wait, where
    messages have not the length that is expected. Raises Disagreement on every rank."""
    what, ranks = "combine_rows", len(mine)
    told = torch.stack((mine, received))
    all_told = told.new_empty(ranks * told.numel())
    groups.run(what, group, lambda: groups.gather_into(all_told, told.view(-1), group), limit)
    sent, got = (t.tolist() for t in all_told.view(ranks, *told.shape).unbind(1))
    for at in range(ranks):
        for of in range(ranks):
            for expert, (there, here) in enumerate(zip(sent[of][at], got[at][of], strict=True)):
                if there != here:
                    raise Disagreement(
                        f"{what}: the ranks' routes are not of one dispatch_rows: by those of rank {of} it sent rank {at} {there} rows for expert "
                        f"{at * len(got[at][of]) + expert}, by those of rank {at} these were {here}"
                    )


def of_case(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any, path: str | None = None) -> dict[str, Any]:
    """The outputs of a case of the contract `expert_rows_ranks`, of this rank."""
    x, counts, received, rows = tensors["x"], tensors["counts"], tensors.get("routes"), int(options["rows"])
    more: dict[str, Any] = {"wire": options["wire"], "group_size": options["group"], "path": path, "verify": None if path is None else False}
    if received is not None:
        return {"out": combine_rows(x, Routes(counts, received, received.new_empty(0), rows), group, **more)}
    out, routes = dispatch_rows(x, counts, group, capacity=rows, **more)
    return {"out": out, "received": routes.received, "ends": routes.ends}
