"""Matrix products that overlap with the gathering of their inputs or the reduction of their results.

Over any backend the work is divided into chunks: one chunk is sent while the product of the previous one runs. GPUs of one host that can
access each other's memory store the tiles of products directly there, and push rows by the copy engines: rooftop/ranks/products.py.

Sums are computed in float32 in the order of the ranks, from products rounded to the dtype (and to the wire format, if one is given);
between two ranks on the symmetric path a rank's own product is added before it is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.ranks import agreement, groups, products, steps, ways
from rooftop.ranks.groups import Limit
from rooftop.ranks.steps import Options

PATHS = ("portable", "symmetric")


def _begun(
    what: str, a: Any, b: Any, group: Any, wire: str | None, group_size: int, path: str | None, verify: bool | None, timeout: float | None
) -> tuple[Tensor, Tensor, Any, Options | None, int, Limit]:
    """(a, b, group, how elements travel, ranks, how long to wait). The ranks compare what they were given; one whose arguments are wrong
    tells the others."""
    group = groups.group_of(what, group)
    ranks = dist.get_world_size(group)
    limit, problem, o = Limit(), None, None
    try:
        limit = Limit.of(what, timeout)
        a, b = groups.tensor_of(what, a, "a").detach(), groups.tensor_of(what, b, "b").detach()
        groups.sendable(what, a, group, "a")
        groups.sendable(what, b, group, "b")
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(f"{what}: a is {tuple(a.shape)}, b is {tuple(b.shape)}; they must be [M, K] and [K, N]")
        if a.dtype != b.dtype or a.device != b.device:
            raise ValueError(f"{what}: a is {a.dtype} on {a.device}, b is {b.dtype} on {b.device}; both must be the same")
        if what == "matmul_reduce_scatter" and a.shape[0] % ranks:
            raise ValueError(f"{what}: a has {a.shape[0]} rows; it must be a multiple of {ranks}, the number of ranks")
        ways.check_way(what, None, path, PATHS)
        o = None if wire is None else Options.of(what, wire, group_size, False, False, 0)
        if path == "symmetric" and o is not None and what == "all_gather_matmul" and ranks > 1:
            raise ValueError(f"{what}: path 'symmetric': copies are not quantised; wire must be None")
        agreement.check_verify(what, verify)
    except Exception as error:  # whatever it is, the others must not wait for this rank
        problem = error

    def say() -> str:
        shapes = f"a {tuple(a.shape)}" if what == "all_gather_matmul" else f"{a.shape[0]} rows and {b.shape[1]} columns"
        how = f"wire={wire!r}, group_size={group_size}" if o is not None else "wire=None"
        return f"{what} of {groups.DTYPES[a.dtype]} {shapes} on {a.device.type} with {how}, path={path!r}, verify={verify}"

    agreement.together(what, group, verify, limit, say, problem)
    return a, b, group, o, ranks, limit


def _symmetric(what: str, x: Tensor, group: Any, path: str | None, limit: Limit) -> bool:
    """Whether peers' memory is used. Raises RuntimeError where it was asked for and cannot be."""
    from rooftop.ranks import symmetric

    if path == "portable":
        return False
    reason = symmetric.unable(x, group, limit)
    if path == "symmetric" and reason:
        raise RuntimeError(f"{what}: path 'symmetric': {reason}")
    return reason is None


def all_gather_matmul(
    a: Tensor, b: Tensor, group: Any = None, *, wire: str | None = None, group_size: int = 128, path: str | None = None,
    verify: bool | None = None, timeout: float | None = None,
) -> Tensor:
    """cat(a of all ranks) @ b: [m, K] on each rank and its own [K, N] to [W m, N], as in the column-parallel half of a sequence-parallel
    MLP.

    Args:
        a: this rank's rows, float32, float16 or bfloat16; on all ranks the same shape.
        b: any strides (``weight.t()`` is right).
        group: a ProcessGroup; None: the default one.
        wire: None: rows are sent in their dtype; "bf16", "fp8", "int8", "int4": quantised (over torch.distributed), including a rank's own
        rows.
        path: "symmetric" (copies in the peers' memory), "portable" (chunks over torch.distributed), None: the first if it is available and
        wire is None.
        group_size, verify, timeout: as for `all_reduce`.

    No gradient; `ColumnParallelLinear` has one. Raises as `all_reduce`."""
    what = "all_gather_matmul"
    a, b, group, o, ranks, limit = _begun(what, a, b, group, wire, group_size, path, verify, timeout)
    m, n = a.shape[0], b.shape[1]
    if ranks == 1:
        return a @ b
    if a.numel() == 0:
        return a.new_zeros(ranks * m, n)
    if o is None and _symmetric(what, a, group, path, limit):
        return products.gather(a, b, group, limit)
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

    _pipeline(what, group, products.bounds(m), begin, use, limit)
    return out.view(ranks * m, n)


def _pipeline(
    what: str, group: Any, bounds: list[tuple[int, int]], begin: Callable[[int, int], tuple[Any, Tensor]],
    use: Callable[[Tensor, int, int], None], limit: Limit,
) -> None:
    """One chunk travels while the one before is used."""
    under_way: tuple[Any, Tensor, int, int] | None = None
    for first, last in [*bounds, (-1, -1)]:
        new = (
            *groups.run_unwaited(what, group, lambda f=first, e=last: begin(f, e)), first, last  # type: ignore[misc]
        ) if first >= 0 else None
        if under_way is not None:
            work, got, f, e = under_way
            groups.run(what, group, lambda w=work: w, limit)  # type: ignore[misc]
            use(got, f, e)
        under_way = new


def matmul_reduce_scatter(
    a: Tensor, b: Tensor, group: Any = None, *, wire: str | None = None, group_size: int = 128, path: str | None = None,
    verify: bool | None = None, timeout: float | None = None,
) -> Tensor:
    """This rank's rows of the sum of the ranks' a @ b: [M, K] and [K, N] to [M / W, N], as in the row-parallel half of a sequence-parallel
    MLP.

    Arguments as for `all_gather_matmul`; with a wire format the products are sent quantised, on either path.

    Raises ValueError if M is not divisible by W."""
    what = "matmul_reduce_scatter"
    a, b, group, o, ranks, limit = _begun(what, a, b, group, wire, group_size, path, verify, timeout)
    m, n = a.shape[0] // ranks, b.shape[1]
    if ranks == 1:
        return a @ b
    if m * n == 0:
        return a.new_empty(m, n)
    if _symmetric(what, a, group, path, limit):
        return products.scatter(a, b, group, o, limit)
    out = a.new_empty(m, n)
    blocks = a.view(ranks, m, a.shape[1]) if a.is_contiguous() else a.contiguous().view(ranks, m, a.shape[1])

    def begin(first: int, last: int) -> tuple[Any, Tensor]:
        made = blocks[:, first:last].reshape(ranks * (last - first), a.shape[1]) @ b
        message = made.view(ranks, -1) if o is None else steps.encode(made, o, ranks, (last - first) * n)
        got = torch.empty_like(message)
        return groups.exchange(got.view(-1), message.view(-1), group), got

    def use(got: Tensor, first: int, last: int) -> None:
        out[first:last] = products.summed(got.view(ranks, -1), o, (last - first) * n, a.dtype).view(last - first, n)

    _pipeline(what, group, products.bounds(m), begin, use, limit)
    return out


def matmul_all_reduce(
    a: Tensor, b: Tensor, group: Any = None, *, wire: str | None = None, group_size: int = 128, path: str | None = None,
    verify: bool | None = None, timeout: float | None = None,
) -> Tensor:
    """The sum of the ranks' a @ b on every rank, the same bits: [M, K] and [K, N] to [M, N], as in the row-parallel half of an MLP.

    On the symmetric path, if M is divisible by W, each rank computes a part of the rows as `matmul_reduce_scatter` does and pushes it to
    the others. Otherwise it uses chunks of rows: a second stream reduces a chunk while the product of the next one runs, by
    torch.distributed's all-reduce, or with a wire format by `rooftop.comm.all_reduce`. Arguments as for `all_gather_matmul`."""
    what = "matmul_all_reduce"
    a, b, group, o, ranks, limit = _begun(what, a, b, group, wire, group_size, path, verify, timeout)
    if ranks == 1 or a.shape[0] * b.shape[1] == 0:
        return a @ b
    by_kernel = _symmetric(what, a, group, path, limit)
    if by_kernel and a.shape[0] % ranks == 0:
        return products.reduce(a, b, group, o, limit)
    if path == "symmetric" and o is None:
        raise RuntimeError(
            f"{what}: path 'symmetric': a has {a.shape[0]} rows; without a wire they must be a multiple of {ranks}, the number of ranks"
        )
    out = a.new_empty(a.shape[0], b.shape[1])
    aside = products.aside(a) if o is not None else None

    def reduced(part: Tensor, o: Options) -> Tensor:
        return ways.all_reduce(part, group, o, 2, "symmetric" if by_kernel else "portable", limit)

    works = []
    for first, last in products.bounds(a.shape[0]):
        made = a[first:last] @ b
        if o is None:
            works.append(
                (groups.run_unwaited(what, group, lambda t=made: (dist.all_reduce(t, group=group, async_op=True), t)), first, last)  # type: ignore[misc]
            )
        elif aside is None:
            out[first:last] = reduced(made, o)
        else:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                out[first:last] = reduced(made, o)
                made.record_stream(aside)
    for (work, made), first, last in works:
        groups.run(what, group, lambda w=work: w, limit)  # type: ignore[misc]
        out[first:last] = made
    if aside is not None:
        torch.cuda.current_stream().wait_stream(aside)
    return out
