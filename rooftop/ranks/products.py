"""Products between GPUs that reach each other's memory: their tiles are stored into the peers' memory as they finish, rows come by the copy
engines.

Where a kernel writes is an address: a product whose `out` lies in a peer's memory stores its tiles across the link while the next ones are
multiplied; no multiprocessor copies, and nothing is left to send when it ends. The ranks meet (kernels/comm/_rank_barrier.cu) before the
first store, when the places are free, and after the last. Each takes another peer first.

With a wire, products are encoded into the peer's memory by a launch of its own, which reads them while they are in L2 as far as they
fit."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.formats import wire as wires
from rooftop.ranks import steps, symmetric
from rooftop.ranks.groups import Limit
from rooftop.ranks.steps import Options

CHUNKS = 4  # of a rank's own rows, of which one travels while the next is made
CHUNK_ROWS = 512

_ASIDE: dict[int, Any] = {}


def aside(x: Tensor) -> Any:
    """A second stream of the tensor's GPU, whose launches go before those that wait; None on the CPU."""
    if not x.is_cuda:
        return None
    index = x.device.index
    if index not in _ASIDE:
        _ASIDE[index] = torch.cuda.Stream(x.device, priority=-1)
    return _ASIDE[index]


def bounds(rows: int) -> list[tuple[int, int]]:
    """Chunks of rows: at most CHUNKS, of CHUNK_ROWS at least."""
    step = max(CHUNK_ROWS, -(-rows // CHUNKS))
    return [(i, min(i + step, rows)) for i in range(0, rows, step)]


def gather(a: Tensor, b: Tensor, group: Any, limit: Limit) -> Tensor:
    """All ranks' a [m, K] @ b [K, N]: each pushes its rows into the peers' memory by the copy engine, one peer after another, while the
    product of the rows that are there runs, its own first."""
    symmetric.raise_faults(group, "all_gather_matmul")
    ranks, rank, m, n = dist.get_world_size(group), dist.get_rank(group), a.shape[0], b.shape[1]
    room, places = symmetric.table_of("gather", (ranks, m, a.shape[1]), a.dtype, a.device, group, limit)
    out = a.new_empty(ranks * m, n)
    rows = a.contiguous()
    main, second = symmetric.follow(a.device.index), aside(a)
    second.wait_stream(main)
    come = []
    with torch.cuda.stream(second):
        symmetric.meet(room, group, "all_gather_matmul", limit)  # nobody still reads what was there
        for i in range(1, ranks):
            places[(rank + i) % ranks][rank].copy_(rows)
            symmetric.meet(room, group, "all_gather_matmul", limit)
            come.append(((rank - i) % ranks, second.record_event()))
        rows.record_stream(second)
    torch.mm(a, b, out=out[rank * m : (rank + 1) * m])
    for peer, event in come:
        main.wait_event(event)
        torch.mm(places[rank][peer], b, out=out[peer * m : (peer + 1) * m])
    return out


def scatter(a: Tensor, b: Tensor, group: Any, o: Options | None, limit: Limit) -> Tensor:
    """This rank's rows of the sum of all a [M, K] @ b [K, N]: [M / W, N]."""
    what = "matmul_reduce_scatter"
    symmetric.raise_faults(group, what)
    ranks, m, n = dist.get_world_size(group), a.shape[0] // dist.get_world_size(group), b.shape[1]
    places = _sent(a, b, group, o, limit, what)
    rank = dist.get_rank(group)
    own = a[rank * m : (rank + 1) * m]
    if o is None and ranks == 2:
        return added(own, b, places[1 - rank].view(m, n))
    product(own, b, places[rank], o)
    return summed(places, o, m * n, a.dtype).view(m, n)


def _sent(a: Tensor, b: Tensor, group: Any, o: Options | None, limit: Limit, what: str) -> Tensor:
    """The products for the other ranks, stored where those read them. This rank's places [W, message]: all but its own have come when later
    launches run."""
    ranks, rank, m, n = dist.get_world_size(group), dist.get_rank(group), a.shape[0] // dist.get_world_size(group), b.shape[1]
    count = m * n
    each, dtype = (count, a.dtype) if o is None else (o.bytes(count), torch.uint8)
    room, places = symmetric.table_of("scatter", (ranks, each), dtype, a.device, group, limit)
    symmetric.follow(a.device.index)
    symmetric.meet(room, group, what, limit)  # everybody has read what was there
    for i in range(1, ranks):
        peer = (rank + i) % ranks
        product(a[peer * m : (peer + 1) * m], b, places[peer][rank], o)
    symmetric.meet(room, group, what, limit)
    return places[rank]


def product(a: Tensor, b: Tensor, place: Tensor, o: Options | None) -> None:
    """a @ b as a message in `place`, wherever that lies."""
    if o is None:
        torch.mm(a, b, out=place.view(a.shape[0], b.shape[1]))
    else:
        steps.encode(a @ b, o, 1, a.shape[0] * b.shape[1], into=place)


def added(a: Tensor, b: Tensor, part: Tensor) -> Tensor:
    """a @ b + part, added in float32 before the one rounding."""
    return torch.addmm(part, a, b)


def summed(parts: Tensor, o: Options | None, count: int, dtype: torch.dtype) -> Tensor:
    """[count]: parts [W, message] added in the order of the ranks in float32."""
    if o is None:
        if dtype == torch.bfloat16 and count % 128 == 0:  # a row of bfloat16 is a message of its own
            return steps.decode_sum(parts.view(torch.uint8), Options(wires.WIRES["bf16"]), count, dtype)
        return wires.total(parts.float()).to(dtype)
    return steps.decode_sum(parts, o, count, dtype)


def reduce(a: Tensor, b: Tensor, group: Any, o: Options | None, limit: Limit) -> Tensor:
    """The sum of all a [M, K] @ b [K, N] on every rank, W divides M: each makes its rows of it as `scatter` does, in chunks, of which one
    is pushed into the peers' memory while the next is made. What is pushed is the result as it stands, or its message; a rank takes its own
    rows from that too."""
    what = "matmul_all_reduce"
    symmetric.raise_faults(group, what)
    ranks, rank, m, n = dist.get_world_size(group), dist.get_rank(group), a.shape[0] // dist.get_world_size(group), b.shape[1]
    parts = _sent(a, b, group, o, limit, what)
    if o is not None:
        product(a[rank * m : (rank + 1) * m], b, parts[rank], o)
        return symmetric.exchange("all_gather", summed(parts, o, m * n, a.dtype), group, o, limit).view(ranks * m, n)
    room, places = symmetric.table_of("reduced", (ranks, m, n), a.dtype, a.device, group, limit)
    out = a.new_empty(ranks * m, n)
    main, second = symmetric.follow(a.device.index), aside(a)
    second.wait_stream(main)
    with torch.cuda.stream(second):
        symmetric.meet(room, group, what, limit)  # everybody has copied what was there
    for first, last in bounds(m):
        rows = slice(rank * m + first, rank * m + last)
        if ranks == 2:
            out[rows] = added(a[rows], b, parts[1 - rank].view(m, n)[first:last])
        else:
            torch.mm(a[rows], b, out=parts[rank].view(m, n)[first:last])
            here = parts.view(ranks, m, n)[:, first:last].reshape(ranks, -1)
            out[rows] = summed(here, None, (last - first) * n, a.dtype).view(-1, n)
        second.wait_stream(main)
        with torch.cuda.stream(second):
            for i in range(1, ranks):
                places[(rank + i) % ranks][rank, first:last].copy_(out[rows])
    with torch.cuda.stream(second):
        symmetric.meet(room, group, what, limit)
    main.wait_stream(second)
    out.record_stream(second)
    for i in range(1, ranks):
        peer = (rank + i) % ranks
        out[peer * m : (peer + 1) * m] = places[rank][peer]
    return out
