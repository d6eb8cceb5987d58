"""The ranks of one host read each other's memory: rooms of symmetric memory, and the launches of the kernels of rooftop/kernels/comm that
meet in them.

A room belongs to a group and a kind of call. Its first bytes are flags; where the rest lies does not depend on the size of a call, so that
a rank that is ahead never writes what one that is behind still reads. Rooms grow by powers of two; those that were too small stay, as
kernels of earlier calls, and graphs, may use them. Calls of a process run one after another, in the order in which it made them, which must
be the same on all ranks, as
with NCCL: on another stream than the last, a call waits for that one."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.core.spec import Launch, dtype_of, typed
from rooftop.ranks import exchange as exchanges
from rooftop.ranks import groups, kernels
from rooftop.ranks import rank_launches as launches
from rooftop.ranks.groups import Limit
from rooftop.ranks.steps import Options

PATIENCE = 600.0  # seconds
LEAST = 1 << 20  # bytes of a room
FAULTS = {1: "a rank did not come in time: it has died, is late, or called something else", 2: "the ranks were given different arguments"}
ROOM = ("table", "epochs", "fault")  # what a kernel gets of a room


@dataclass
class Room:
    tensor: Tensor  # uint8, symmetric
    handle: Any
    table: Tensor  # int64 [ranks], this GPU's addresses of all rooms
    epochs: Tensor  # int32 [256]
    fault: Tensor  # int32 [4], of the host, which the kernel writes
    capacity: int  # bytes behind the flags
    prepared: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.failed = ctypes.c_int.from_address(self.fault.data_ptr())  # read in each call, without torch
        self.addresses = tuple(t.data_ptr() for t in (self.table, self.epochs, self.fault))


@dataclass(frozen=True)
class Latest:
    """A launch in a room, of which only the tensors change."""

    key: Any  # of the room
    room: Room
    prepared: Any

    def launch(self, index: int, values: tuple[int, ...]) -> None:
        with nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index):
            self.prepared(follow(index).cuda_stream, (*values, *self.room.addresses))


def unable(x: Tensor, group: Any, limit: Limit | None = None) -> str | None:
    """Why `x` cannot go through peers' memory, or None. On a GPU the first call of a group asks all ranks."""
    if not x.is_cuda:
        return "the tensor lies on the CPU"
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return "one rank"
    if ranks > launches.RANKS:
        return f"{ranks} ranks; at most {launches.RANKS} meet"
    own = groups.state(group)
    if "symmetric" not in own.unable:
        own.unable["symmetric"] = _asked(x.device, group, limit)
    return own.unable["symmetric"] or None


def _asked(device: torch.device, group: Any, limit: Limit | None) -> str:
    """Nothing where every rank has a small room; else the reason of the first that has none."""
    mine = host()
    sent = torch.tensor([mine, device.index if device.index is not None else torch.cuda.current_device()], dtype=torch.int64, device=device)
    got = sent.new_empty(2 * dist.get_world_size(group))
    groups.run("symmetric memory", group, lambda: groups.gather_into(got, sent, group), limit)
    hosts = got.view(-1, 2)
    if int((hosts[:, 0] != hosts[0, 0]).sum()):
        return "the ranks are on several hosts"
    if len(set(hosts[:, 1].tolist())) < len(hosts):
        return "ranks share a GPU"
    reason = _can(device, hosts[:, 1].tolist())
    if _any(reason is not None, device, group, limit):
        return reason or "another rank has no symmetric memory"
    reason = None
    try:
        groups.state(group).rooms[1] = _made(LEAST, device, group, limit)
    except Exception as error:  # torch raises RuntimeError, and its own, by version and driver
        reason = f"symmetric memory cannot be had: {str(error).strip().splitlines()[0][:200]}"
    if _any(reason is not None, device, group, limit):
        groups.state(group).rooms.pop(1, None)
        return reason or "another rank has no symmetric memory"
    return ""


def _can(device: torch.device, others: list[int]) -> str | None:
    try:
        import torch.distributed._symmetric_memory
        from cuda.bindings import driver  # noqa: F401
    except ImportError as error:
        return f"{error}"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "GPUs before sm_80"
    own = device.index if device.index is not None else torch.cuda.current_device()
    lacking = [i for i in others if i != own and i < torch.cuda.device_count() and not torch.cuda.can_device_access_peer(own, i)]
    return f"GPU {own} cannot read the memory of GPU {lacking[0]}" if lacking else None


def _any(flag: bool, device: torch.device, group: Any, limit: Limit | None) -> bool:
    said = torch.tensor([int(flag)], device=device)
    groups.run("symmetric memory", group, lambda: dist.all_reduce(said, dist.ReduceOp.MAX, group=group, async_op=True), limit)
    return bool(said.item())


def host() -> int:
    """A number of this boot of this host."""
    import socket

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    return zlib.crc32(f"{socket.gethostname()} {boot}".encode())


def _agreed(key: Any, capacity: int, group: Any, limit: Limit | None) -> None:
    """The ranks tell each other, through the group's store, which room they make. Raises Disagreement where they want different ones,
    CommError where one does
    not come: it may be at a call that needs none."""
    from torch.distributed.distributed_c10d import _world

    own, ranks = groups.state(group), dist.get_world_size(group)
    own.made += 1
    store, name = _world.pg_map[group][1], f"rooftop/room/{own.made}"
    store.set(f"{name}/{dist.get_rank(group)}", f"{key} of {capacity} bytes")
    keys = [f"{name}/{r}" for r in range(ranks)]
    groups.run(
        "symmetric memory", group, lambda: store.wait(keys, (limit.left() if limit is not None else None) or timedelta(seconds=PATIENCE)),
        limit
    )
    said = [store.get(k).decode() for k in keys]
    if len(set(said)) > 1:
        told = "; ".join(f"rank {r}: {text}" for r, text in enumerate(said))
        raise groups.Disagreement(f"symmetric memory: the ranks need different rooms, so they were given different arguments: {told}")


def _made(capacity: int, device: torch.device, group: Any, limit: Limit | None = None) -> Room:
    import torch.distributed._symmetric_memory as symmetric

    tensor = symmetric.empty(launches.FLAGS + capacity, dtype=torch.uint8, device=device)
    tensor.zero_()
    handle = symmetric.rendezvous(tensor, group.group_name)
    offset = int(getattr(handle, "offset", 0))
    table = torch.tensor([int(p) + offset for p in handle.buffer_ptrs], dtype=torch.int64, device=device)
    epochs = torch.zeros(launches.BLOCKS, dtype=torch.int32, device=device)
    room = Room(tensor, handle, table, epochs, torch.zeros(4, dtype=torch.int32, pin_memory=True), capacity)
    torch.cuda.synchronize(device)
    _any(False, device, group, limit)  # nobody begins before all are zero
    return room


def room_of(key: Any, needed: int, device: torch.device, group: Any, limit: Limit | None = None) -> Room:
    """The group's room of that key, at least so large; the ranks make one together. Raises RuntimeError where that would be while a graph
    is captured, and as `_agreed`."""
    rooms = groups.state(group).rooms
    found: Room | None = rooms.get(key)
    if found is None or found.capacity < needed:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{needed} bytes of symmetric memory cannot be had while a graph is captured: call it once before with the same sizes"
            )
        if found is not None:
            rooms.setdefault("outgrown", []).append(found)
        capacity = max(LEAST, 1 << (needed - 1).bit_length())
        _agreed(key, capacity, group, limit)
        found = rooms[key] = _made(capacity, device, group, limit)
    return found


def raise_faults(group: Any, what: str = "rooftop.comm") -> None:
    """Raise what a kernel has left for the host."""
    rooms = groups.state(group).rooms
    for room in (*(r for k, r in rooms.items() if k != "outgrown"), *rooms.get("outgrown", ())):
        if code := room.failed.value:
            where = f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}, symmetric memory"
            error = groups.Disagreement if code == 2 else groups.CommError
            raise error(f"{what} ({where}): {FAULTS[code]}. The group cannot be used on")


def all_reduce(
    x: Tensor, group: Any, o: Options, shots: int, limit: Limit | None = None, blocks: int = 0, each: int = 0,
    threads: int = 0,
) -> Tensor:
    """As `rooftop.comm.all_reduce`, of a CUDA tensor that is not empty, in a group of several ranks that `unable` has nothing against.
    `blocks`, `each`, `threads`: for measurements, see `rank_launches.geometry`."""
    raise_faults(group, "all_reduce")
    ranks, rank, count = dist.get_world_size(group), dist.get_rank(group), x.numel()
    x = x.contiguous()
    out = torch.empty_like(x)
    most, said = blocks or kernels.facts(x.device.index).sms, (blocks, each, threads)
    whole = launches.geometry(shots, count, ranks, o.wire.name, o.group, most, each, threads).whole
    call = zlib.crc32(repr((shots, count, str(x.dtype), *o.facts(), *said)).encode()) & 0x7FFFFFFF

    def make(room: Room, sms: int, patience: int) -> Launch:
        return launches.launch(
            shots, count, ranks, dtype_of(x.dtype), o.wire.name, o.group, o.hadamard, o.stochastic, most, rank=rank,
            room=room.capacity, call=call, patience=patience, each=each, threads=threads,
        )

    given = {"x": x, "out": out, "seed": o.seed}
    launched("one_shot" if shots == 1 else "two_shot", shots, whole, (call, count, x.dtype, o, said), make, given, x.device, group, limit)
    return out


def exchange(kind: str, x: Tensor, group: Any, o: Options, limit: Limit | None = None) -> Tensor:
    """As `rooftop.comm`'s reduce_scatter, all_gather or all_to_all, of a CUDA tensor that is not empty. The result is flat."""
    raise_faults(group, kind)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    x = x.contiguous()
    count = x.numel() // (1 if kind == "all_gather" else ranks)
    out = x.new_empty(count * (1 if kind == "reduce_scatter" else ranks))
    whole = exchanges.sizes(count, ranks, o.wire.name, o.group)[2]
    call = zlib.crc32(repr((kind, count, str(x.dtype), *o.facts())).encode()) & 0x7FFFFFFF

    def make(room: Room, sms: int, patience: int) -> Launch:
        return exchanges.launch(
            kind, count, ranks, dtype_of(x.dtype), o.wire.name, o.group, o.hadamard, o.stochastic, sms, rank=rank, half=room.capacity // 2,
            room=launches.FLAGS + room.capacity, call=call, patience=patience,
        )

    given = {"x": x, "out": out, "seed": o.seed}
    launched("exchange", "exchange", whole, (call, count, x.dtype, o), make, given, x.device, group, limit)
    return out


def launched(
    stem: str, room_key: Any, whole: int, key: tuple[Any, ...], make: Callable[[Room, int, int], Launch], given: Mapping[str, Tensor | int],
    device: torch.device, group: Any, limit: Limit | None,
) -> None:
    """Launch a kernel in which the ranks meet, in the group's room of that key, of at least `whole` bytes. `make(room, multiprocessors,
    patience)` is asked once for each `key`. `given`: tensors and runtime numbers by the launch's names, beside the room's."""
    index = device.index
    with torch.cuda.device(index):
        room = room_of(room_key, whole, device, group, limit)
        patience = patience_of(limit)
        prepared = room.prepared.get((*key, patience))
        if prepared is None:
            prepared = room.prepared[*key, patience] = kernels.prepared(
                stem, make(room, kernels.facts(index).sms, patience), (*given, *ROOM), index
            )
        latest = groups.state(group).latest = Latest(room_key, room, prepared)
        latest.launch(index, tuple(t if isinstance(t, int) else t.data_ptr() for t in given.values()))


def patience_of(limit: Limit | None) -> int:
    """Nanoseconds."""
    return int((PATIENCE if limit is None or limit.seconds is None else limit.seconds) * 1e9)


_LAST: dict[int, Any] = {}  # the stream of each GPU's last call


def follow(index: int) -> Any:
    """The GPU's current stream, which from here on comes after the last call on any group: two kernels that each fill the GPU and wait for
    their peers could else begin in another order here than there."""
    stream = torch.cuda.current_stream(index)
    last = _LAST.get(index)
    if last is not None and last != stream and not torch.cuda.is_current_stream_capturing():
        stream.wait_stream(last)
    _LAST[index] = stream
    return stream


def table_of(
    key: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: Any, limit: Limit | None = None
) -> tuple[Room, list[Tensor]]:
    """A room and each rank's tensor of that shape in it, one's own among them."""
    room = room_of(key, prod(shape) * dtype.itemsize, device, group, limit)
    views = room.prepared.get((shape, dtype))
    if views is None:
        ranks = range(dist.get_world_size(group))
        views = room.prepared[shape, dtype] = [
            room.handle.get_buffer(p, list(shape), dtype, launches.FLAGS // dtype.itemsize) for p in ranks
        ]
    return room, views


def meet(room: Room, group: Any, what: str, limit: Limit | None = None) -> None:
    """On the current stream: what every rank's stream did to the others' rooms before is seen by all after. One that does not come is left
    as a fault."""
    ranks, rank, index = dist.get_world_size(group), dist.get_rank(group), room.tensor.device.index
    patience = patience_of(limit)
    call = zlib.crc32(what.encode()) & 0x7FFFFFFF
    prepared = room.prepared.get(("meeting", call, patience))
    if prepared is None:
        args: dict[str, tuple[str, Any]] = {
            "ranks": ("i32", ranks), "rank": ("i32", rank), "table": ("ptr", "table"), "epochs": ("ptr", "epochs"),
            "fault": ("ptr", "fault"), "call": ("u32", call), "patience": ("i64", patience),
        }
        launch = Launch("meeting", (1,), **typed(args), block=(32,))
        prepared = room.prepared["meeting", call, patience] = kernels.prepared("meeting", launch, ("table", "epochs", "fault"), index)
    prepared(torch.cuda.current_stream().cuda_stream, (room.table.data_ptr(), room.epochs.data_ptr(), room.fault.data_ptr()))


__all__ = ["all_reduce", "exchange", "follow", "meet", "raise_faults", "table_of", "unable"]
