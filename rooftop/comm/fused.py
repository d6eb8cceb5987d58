"""Products of matrices whose inputs are gathered, or whose results are reduced, while they run.

Over any backend the work goes in chunks: while one travels, the product of the one before runs. Inside a host of GPUs that read each other's memory, whole
shards are copied by the copy engines on a second stream, and no multiprocessor is taken from the product.

Sums are taken in float32 in the order of the ranks, from products that were rounded to the dtype (and to the wire, if one is asked for)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.comm import collectives, groups, steps
from rooftop.comm import wire as wires
from rooftop.comm.steps import Options

CHUNK_ROWS = 512  # rows of a chunk at least: a smaller product does not fill a large GPU (predicted)
CHUNKS = 4
PATHS = ("portable", "symmetric")


def _validated(
    what: str, a: Any, b: Any, group: Any, wire: str | None, group_size: int, path: str | None, verify: bool | None, rows: bool
) -> tuple[Any, Options | None, int, int]:
    """(group, how elements travel, ranks, rank). The ranks compare what they were given; one whose own arguments are wrong tells the others first."""
    group = groups.group_of(what, group)
    ranks = dist.get_world_size(group)
    problem: Exception | None = None
    o: Options | None = None
    facts: list[int] = []
    try:
        groups.tensor_of(what, a, "a")
        groups.tensor_of(what, b, "b")
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(f"{what}: a is {tuple(a.shape)}, b is {tuple(b.shape)}; they must be [M, K] and [K, N]")
        if a.dtype != b.dtype or a.device != b.device:
            raise ValueError(f"{what}: a is {a.dtype} on {a.device}, b is {b.dtype} on {b.device}; both must be the same")
        if rows and a.shape[0] % ranks:
            raise ValueError(f"{what}: a has {a.shape[0]} rows; it must be a multiple of {ranks}, the number of ranks")
        if path is not None and path not in PATHS:
            raise ValueError(f"{what}: path is {path!r}; accepted are None, {', '.join(map(repr, PATHS))}")
        o = None if wire is None else Options.of(what, wire, group_size, False, False, 0)
        facts = [*(o.facts() if o is not None else [-1, 0, 0, 0]), b.shape[1] if what != "all_gather_matmul" else 0]
    except (TypeError, ValueError) as error:
        problem = error
    device = a.device if isinstance(a, torch.Tensor) else torch.device("cpu")
    if groups.must_verify(group, device, verify):
        shown = None if problem is not None else a if what == "all_gather_matmul" else a[:, :0]
        try:
            groups.agree(what, group, device, groups.header(what, shown, facts))
        except groups.Disagreement:
            if problem is None:
                raise
    if problem is not None:
        raise problem
    return group, o, ranks, dist.get_rank(group)


def _symmetric(what: str, x: Tensor, group: Any, path: str | None) -> bool:
    """Whether peers' memory is used. Raises RuntimeError where it was asked for and cannot be."""
    from rooftop.comm import symmetric

    if path == "portable" or x.numel() == 0:
        return False
    reason = symmetric.unable(x, group)
    if path == "symmetric" and reason:
        raise RuntimeError(f"{what}: path 'symmetric': {reason}")
    return reason is None


def _bounds(rows: int) -> list[tuple[int, int]]:
    """Chunks of rows: at most CHUNKS, of CHUNK_ROWS at least."""
    step = max(CHUNK_ROWS, -(-rows // CHUNKS))
    return [(i, min(i + step, rows)) for i in range(0, rows, step)]


def all_gather_matmul(
    a: Tensor, b: Tensor, group: Any = None, *, wire: str | None = None, group_size: int = 128, path: str | None = None, verify: bool | None = None,
    timeout: float | None = None,
) -> Tensor:  # fmt: skip
    """cat(a of all ranks) @ b: [m, K] on each rank and its own [K, N] to [W m, N], as in the column-parallel half of a sequence-parallel MLP.

    Args:
        a: this rank's rows, float32, float16 or bfloat16; on all ranks the same shape.
        b: any strides (``weight.t()`` is right).
        group: a ProcessGroup; None: the default one.
        wire: None: rows travel as they are; "bf16", "fp8", "int8", "int4": quantised (over torch.distributed), a rank's own rows too.
        path: "symmetric" (copies out of the peers' memory), "portable" (chunks over torch.distributed), None: the first where it is possible and wire is None.
        group_size, verify, timeout: as `all_reduce`'s.

    No gradient; `ColumnParallelLinear` has one. Raises as `all_reduce`."""
    what = "all_gather_matmul"
    group, o, ranks, rank = _validated(what, a, b, group, wire, group_size, path, verify, False)
    a, b = a.detach(), b.detach()
    m, n = a.shape[0], b.shape[1]
    if ranks == 1:
        return a @ b
    if o is None and _symmetric(what, a, group, path):
        return _gather_by_copies(a, b, group, ranks, rank)
    if path == "symmetric" and o is not None:
        raise RuntimeError(f"{what}: path 'symmetric': copies are not quantised; wire must be None")
    out = a.new_empty(ranks, m, n)

    def begin(first: int, last: int) -> tuple[Any, Tensor]:
        rows = a[first:last].contiguous()
        message = rows.view(-1) if o is None else steps.encode(rows, o, 1, rows.numel()).view(-1)
        got = message.new_empty(ranks * message.numel())
        return groups.gather_into(got, message, group), got

    def use(got: Tensor, first: int, last: int) -> None:
        count = (last - first) * a.shape[1]
        rows = got if o is None else steps.decode(got.view(ranks, -1), o, count, ranks * count, a.dtype)
        out[:, first:last] = (rows.reshape(ranks * (last - first), a.shape[1]) @ b).view(ranks, last - first, n)

    _pipeline(what, group, _bounds(m), begin, use, timeout)
    return out.view(ranks * m, n)


def _pipeline(
    what: str, group: Any, bounds: list[tuple[int, int]], begin: Callable[[int, int], tuple[Any, Tensor]], use: Callable[[Tensor, int, int], None],
    timeout: float | None,
) -> None:  # fmt: skip
    """One chunk travels while the one before is used."""
    under_way: tuple[Any, Tensor, int, int] | None = None
    for first, last in [*bounds, (-1, -1)]:
        new = (*groups.run_unwaited(what, group, lambda f=first, e=last: begin(f, e)), first, last) if first >= 0 else None  # type: ignore[misc]
        if under_way is not None:
            work, got, f, e = under_way
            groups.run(what, group, lambda w=work: w, timeout)  # type: ignore[misc]
            use(got, f, e)
        under_way = new


def matmul_reduce_scatter(
    a: Tensor, b: Tensor, group: Any = None, *, wire: str | None = None, group_size: int = 128, path: str | None = None, verify: bool | None = None,
    timeout: float | None = None,
) -> Tensor:  # fmt: skip
    """This rank's rows of the sum of the ranks' a @ b: [M, K] and [K, N] to [M / W, N], as in the row-parallel half of a sequence-parallel MLP.

    Arguments as `all_gather_matmul`'s; with a wire the products travel quantised, on either path. Raises ValueError where W does not divide M."""
    what = "matmul_reduce_scatter"
    group, o, ranks, rank = _validated(what, a, b, group, wire, group_size, path, verify, True)
    a, b = a.detach(), b.detach()
    m, n = a.shape[0] // ranks, b.shape[1]
    if ranks == 1:
        return a @ b
    if m * n == 0:
        return a.new_empty(m, n)
    if _symmetric(what, a, group, path):
        return _scatter_by_copies(a, b, group, ranks, rank, o)
    out = a.new_empty(m, n)
    blocks = a.view(ranks, m, a.shape[1]) if a.is_contiguous() else a.contiguous().view(ranks, m, a.shape[1])

    def begin(first: int, last: int) -> tuple[Any, Tensor]:
        made = blocks[:, first:last].reshape(-1, a.shape[1]) @ b
        message = made.view(ranks, -1) if o is None else steps.encode(made, o, ranks, (last - first) * n)
        got = torch.empty_like(message)
        return groups.exchange(got.view(-1), message.view(-1), group), got

    def use(got: Tensor, first: int, last: int) -> None:
        out[first:last] = _summed(got.view(ranks, -1), o, (last - first) * n, a.dtype).view(last - first, n)

    _pipeline(what, group, _bounds(m), begin, use, timeout)
    return out


def _summed(parts: Tensor, o: Options | None, count: int, dtype: torch.dtype) -> Tensor:
    if o is None:
        if dtype == torch.bfloat16 and count % 128 == 0:  # a row of bfloat16 is a message of its own
            return steps.decode_sum(parts.view(torch.uint8), Options(wires.WIRES["bf16"]), count, dtype)
        return wires.total(parts.float()).to(dtype)
    return steps.decode_sum(parts, o, count, dtype)


def matmul_all_reduce(
    a: Tensor, b: Tensor, group: Any = None, *, wire: str | None = None, group_size: int = 128, path: str | None = None, verify: bool | None = None,
    timeout: float | None = None,
) -> Tensor:  # fmt: skip
    """The sum of the ranks' a @ b on every rank, the same bits: [M, K] and [K, N] to [M, N], as in the row-parallel half of an MLP.

    In chunks of rows, each reduced on a second stream while the product of the next runs. Arguments as `all_gather_matmul`'s. wire None: torch.distributed's
    all-reduce; else `rooftop.comm.all_reduce` of each chunk."""
    what = "matmul_all_reduce"
    group, o, ranks, _ = _validated(what, a, b, group, wire, group_size, path, verify, False)
    a, b = a.detach(), b.detach()
    if ranks == 1 or a.shape[0] * b.shape[1] == 0:
        return a @ b
    by_kernel = o is not None and _symmetric(what, a, group, path)
    if path == "symmetric" and o is None:
        raise RuntimeError(f"{what}: path 'symmetric' is for quantised chunks; wire must not be None")
    out = a.new_empty(a.shape[0], b.shape[1])
    aside = _aside(a)

    def reduced(part: Tensor) -> Tensor:
        chosen = "symmetric" if by_kernel else "portable"
        return collectives.all_reduce(part, group, wire=wire or "", group_size=group_size, shots=2, path=chosen, verify=False, timeout=timeout)

    works = []
    for first, last in _bounds(a.shape[0]):
        made = a[first:last] @ b
        if o is None:
            works.append((groups.run_unwaited(what, group, lambda t=made: (dist.all_reduce(t, group=group, async_op=True), t)), first, last))  # type: ignore[misc]
        elif aside is None:
            out[first:last] = reduced(made)
        else:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                out[first:last] = reduced(made)
                made.record_stream(aside)
    for (work, made), first, last in works:
        groups.run(what, group, lambda w=work: w, timeout)  # type: ignore[misc]
        out[first:last] = made
    if aside is not None:
        torch.cuda.current_stream().wait_stream(aside)
    return out


_ASIDE: dict[int, Any] = {}


def _aside(x: Tensor) -> Any:
    """A second stream of the tensor's GPU; None on the CPU."""
    if not x.is_cuda:
        return None
    index = x.device.index
    if index not in _ASIDE:
        _ASIDE[index] = torch.cuda.Stream(x.device)
    return _ASIDE[index]


def _gather_by_copies(a: Tensor, b: Tensor, group: Any, ranks: int, rank: int) -> Tensor:
    """Each rank puts its rows where all can read; the copy engine fetches the next rank's while the product of the last runs."""
    from rooftop.comm import symmetric

    m, n = a.shape[0], b.shape[1]
    room, places = symmetric.table_of("gather", (m, a.shape[1]), a.dtype, a.device, group)
    out = a.new_empty(ranks * m, n)
    main, aside = torch.cuda.current_stream(), _aside(a)
    room.handle.barrier(channel=0)  # nobody still reads what was there
    places[rank].copy_(a)
    room.handle.barrier(channel=1)
    aside.wait_stream(main)
    fetched = []
    with torch.cuda.stream(aside):
        for i in range(1, ranks):
            peer = (rank + i) % ranks
            rows = torch.empty_like(a, memory_format=torch.contiguous_format)
            rows.copy_(places[peer])
            rows.record_stream(main)
            fetched.append((peer, rows, aside.record_event()))
    torch.mm(a, b, out=out[rank * m : (rank + 1) * m])
    for peer, rows, event in fetched:
        main.wait_event(event)
        torch.mm(rows, b, out=out[peer * m : (peer + 1) * m])
    return out


def _scatter_by_copies(a: Tensor, b: Tensor, group: Any, ranks: int, rank: int, o: Options | None) -> Tensor:
    """The product for each other rank in turn, pushed into that rank's memory by the copy engine while the next one runs; the own one last, then the sum."""
    from rooftop.comm import symmetric

    m, n = a.shape[0] // ranks, b.shape[1]
    count = m * n
    each = (count,) if o is None else (o.bytes(count),)
    dtype = a.dtype if o is None else torch.uint8
    room, places = symmetric.table_of("scatter", (ranks, *each), dtype, a.device, group)
    main, aside = torch.cuda.current_stream(), _aside(a)
    room.handle.barrier(channel=0)  # everybody has added up what was there
    aside.wait_stream(main)
    for i in range(1, ranks + 1):
        peer = (rank + i) % ranks
        made = a[peer * m : (peer + 1) * m] @ b
        message = made.view(count) if o is None else steps.encode(made, o, 1, count)[0]
        if peer == rank:
            places[rank][rank].copy_(message)
            break
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            places[peer][rank].copy_(message)
            message.record_stream(aside)
    main.wait_stream(aside)
    room.handle.barrier(channel=1)
    return _summed(places[rank], o, count, a.dtype).view(m, n)
