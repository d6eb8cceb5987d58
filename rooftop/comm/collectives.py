"""All-reduce, reduce-scatter, all-gather and all-to-all whose messages are quantised, over a torch.distributed.ProcessGroup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.comm import groups, hierarchy, library, steps
from rooftop.comm import wire as wires
from rooftop.comm.steps import Options

library.register()
ONE_SHOT_BYTES = 4 << 20  # bytes of the others' tensors up to which everybody adds up everything: on two H200 int8 took 21 us so at 4 MiB, 27 in two shots
PATHS = ("portable", "symmetric", "hierarchical", "plain")


@dataclass(frozen=True)
class Statistics:
    """How far a quantised collective is from the same in float32, over the elements that are finite in both; the same on every rank."""

    elements: int
    max_error: float
    rms_error: float
    relative: float  # rms_error / rms of the float32 result; 0 where that is 0
    nonfinite: int  # elements left out

    def __str__(self) -> str:
        error = f"error rms {self.rms_error:.3g} ({self.relative:.3g} of the signal), largest {self.max_error:.3g}"
        return f"{self.elements} elements: {error}, {self.nonfinite} not finite"


@dataclass(frozen=True)
class Plan:
    """Which way a call takes, and why not another."""

    path: str
    shots: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}, {self.shots} shot{'s' * (self.shots - 1)}: {self.why}"


def plan(x: Tensor, group: Any = None, *, wire: str = "int8", shots: int | None = None, path: str | None = None) -> Plan:
    """Which way `all_reduce(x, group, wire=wire, ...)` goes: ``print(rooftop.comm.plan(x))``. The same on every rank that asks with the same arguments.

    "symmetric": a kernel that reaches the peers' memory; "hierarchical": of several hosts with several ranks each, quantised between hosts alone; "portable":
    torch.distributed's all-to-all and all-gather of messages; "plain": torch.distributed's own all-reduce in x's dtype, where a measured table of sizes
    (`rooftop calibrate --comm`) says that it is faster. The first call of a group, this one or a collective, asks all of its ranks where they are.

    Raises ValueError for a path that there is not, RuntimeError for a named one that cannot be taken here."""
    from rooftop.comm import sizes

    group = groups.group_of("plan", group)
    x = groups.tensor_of("plan", x)
    ranks = dist.get_world_size(group)
    free = shots is None
    if shots is None:
        shots = 1 if x.numel() * x.element_size() * (ranks - 1) <= ONE_SHOT_BYTES else 2
    if isinstance(shots, bool) or shots not in (1, 2):
        raise ValueError(f"shots is {shots!r}; accepted are None, 1 and 2")
    chosen, why = _way("plan", x, group, path, PATHS)
    measured = sizes.faster(x, ranks, wire, chosen) if free and path is None else None
    if measured is not None and measured.path == "plain":
        return Plan("plain", shots, measured.why)
    return Plan(chosen, shots, why)


def _way(what: str, x: Tensor, group: Any, path: str | None, accepted: tuple[str, ...]) -> tuple[str, str]:
    """(path, why), before any table of sizes is asked. Raises ValueError and RuntimeError as `plan`."""
    from rooftop.comm import symmetric

    if path is not None and path not in accepted:
        raise ValueError(f"{what}: path is {path!r}; accepted are None, {', '.join(map(repr, accepted))}")
    if path in ("plain", "portable"):
        return path, "asked for"
    reason = symmetric.unable(x, group) if path != "hierarchical" else ""
    if path == "symmetric":
        if reason:
            raise RuntimeError(f"{what}: path 'symmetric': {reason}")
        return path, "asked for"
    if path is None and not reason:
        return "symmetric", "one host, peers' memory can be reached"
    hosts = hierarchy.of(group, x.device) if "hierarchical" in accepted else None
    if path == "hierarchical" and hosts is None:
        raise RuntimeError(f"{what}: path 'hierarchical': it takes several hosts, each with the same number of ranks, two at least, one after another")
    if hosts is not None:
        return "hierarchical", "asked for" if path else f"{hosts.hosts} hosts of {hosts.each} ranks"
    return "portable", str(reason)


def _begun(
    what: str, kind: str, x: Any, group: Any, settings: tuple[Any, ...], verify: bool | None, more: Callable[[Tensor, int], int | None] | None = None
) -> tuple[Tensor, Any, Options]:
    """Validate, and agree with the other ranks. A rank whose own arguments are wrong tells the others before it raises, so that none waits for it."""
    group = groups.group_of(what, group)
    problem: Exception | None = None
    facts: list[int] = []
    try:
        x = groups.tensor_of(what, x).detach()
        o = Options.of(what, *settings)
        extra = more(x, dist.get_world_size(group)) if more is not None else None
        facts = [*o.facts(), extra or 0]
    except (TypeError, ValueError) as error:
        problem = error
    device = x.device if isinstance(x, torch.Tensor) else torch.device("cpu")
    if groups.must_verify(group, device, verify):
        where = device if problem is None or device.type != "cpu" else _own_device(group)
        try:
            groups.agree(what, group, where, groups.header(kind, None if problem else x, facts))
        except groups.Disagreement:
            if problem is None:
                raise
    if problem is not None:
        raise problem
    return x, group, o


def _own_device(group: Any) -> torch.device:
    """A device that the group's backend sends from."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")


@overload
def all_reduce(x: Tensor, group: Any = ..., *, wire: str = ..., group_size: int = ..., hadamard: bool = ..., stochastic: bool = ..., seed: int = ...,
               shots: int | None = ..., path: str | None = ..., statistics: Literal[False] = ..., verify: bool | None = ...,
               timeout: float | None = ...) -> Tensor: ...  # fmt: skip
@overload
def all_reduce(x: Tensor, group: Any = ..., *, wire: str = ..., group_size: int = ..., hadamard: bool = ..., stochastic: bool = ..., seed: int = ...,
               shots: int | None = ..., path: str | None = ..., statistics: Literal[True], verify: bool | None = ...,
               timeout: float | None = ...) -> tuple[Tensor, Statistics]: ...  # fmt: skip
def all_reduce(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    shots: int | None = None, path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:  # fmt: skip
    """The sum of the ranks' tensors, on every rank the same bits: ``g = rooftop.comm.all_reduce(g, wire="int8")``. A new tensor; none is changed.

    Each rank quantises its tensor once; in two shots the sums are quantised once more, each by one rank, and every rank takes them from those codes. Sums
    are taken in float32 in the order of the ranks. `rooftop.all_reduce_ranks` is the formula.

    Args:
        x: float32, float16 or bfloat16, any shape and strides; on all ranks the same shape and dtype.
        group: a ProcessGroup; None: the default one. Of one rank: x comes back as it is.
        wire: "bf16", "fp8" (e4m3), "int8", "int4".
        group_size: elements that share a scale (float32): 32, 64, 128, 256.
        hadamard: rotate each group first, which spreads outliers. Not with "bf16".
        stochastic: unbiased rounding, for "int8" and "int4"; `seed` of its bits, on all ranks the same, another for each call.
        shots: 1: all to all at once, for small tensors; 2: by stripes. None: by size.
        path: "portable", "symmetric", "hierarchical", "plain" or None: see `plan`. A named one is taken or raises.
        statistics: also return `Statistics`; costs a float32 all-reduce.
        verify: whether the ranks compare shapes, dtypes and options first. None: always on the CPU, on a GPU in a group's first 16 calls; the symmetric
            path's ranks compare them in every call, where they meet.
        timeout: seconds to wait for the others. None: the group's own; on the symmetric path 600.

    NaN and infinities arrive where they stood.

    Raises TypeError and ValueError for arguments that are not accepted, `Disagreement` (a ValueError) on every rank where those of two ranks differ,
    `CommError` (a RuntimeError) where a rank has died or is late. On the symmetric path these two come from the next call, or from `synchronize`."""
    from rooftop.comm import symmetric

    what = "all_reduce"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed, shots or 0, path or "")
    x, group, o = _begun(what, what, x, group, (wire, group_size, hadamard, stochastic, seed), verify)
    p = plan(x, group, wire=wire, shots=shots, path=path)
    if x.numel() == 0 or dist.get_world_size(group) == 1:
        found = x.clone()
    elif p.path == "plain":
        found = x.clone(memory_format=torch.contiguous_format)
        groups.run(what, group, lambda: dist.all_reduce(found, group=group, async_op=True), timeout)
    elif p.path == "symmetric":
        found = symmetric.all_reduce(x, group, o, p.shots, timeout)
    elif p.path == "hierarchical":
        found = hierarchy.all_reduce(x, hierarchy.of(group, x.device), o, shots, timeout)  # type: ignore[arg-type]
    else:
        found = _portable_all_reduce(x, group, o, p.shots, timeout)
    if not statistics:
        return found
    exact = x.float().contiguous().clone()
    groups.run(what, group, lambda: dist.all_reduce(exact, group=group, async_op=True), timeout)
    return found, _statistics(found, exact)


def _exchanged_by(what: str, x: Tensor, group: Any, path: str | None, wire: str) -> str:
    """The path of a reduce_scatter, all_gather or all_to_all: see `plan`."""
    from rooftop.comm import sizes

    way = _way(what, x, group, path, ("portable", "symmetric", "plain") if what == "all_to_all" else PATHS)[0]
    measured = sizes.faster(x, dist.get_world_size(group), wire, way, what) if path is None else None
    return "plain" if measured is not None and measured.path == "plain" else way


def _portable_all_reduce(x: Tensor, group: Any, o: Options, shots: int, timeout: float | None) -> Tensor:
    what, ranks, rank, count = "all_reduce", dist.get_world_size(group), dist.get_rank(group), x.numel()
    share = wires.stripe(count, ranks, o.group)
    size = ranks * share
    if shots == 1:
        sent = steps.encode(x, o, 1, size, rank * size)
        got = sent.new_empty(ranks, sent.shape[1])
        groups.run(what, group, lambda: groups.gather_into(got.view(-1), sent.view(-1), group), timeout)
        return steps.decode_sum(got, o, size, x.dtype)[:count].view(x.shape)
    sent = steps.encode(x, o, ranks, share, rank * size)
    parts = torch.empty_like(sent)
    groups.run(what, group, lambda: groups.exchange(parts.view(-1), sent.view(-1), group), timeout)
    mine = steps.add(parts, o, share, (ranks * ranks + rank) * share)
    got = mine.new_empty(ranks, mine.numel())
    groups.run(what, group, lambda: groups.gather_into(got.view(-1), mine, group), timeout)
    return steps.decode(got, o, share, count, x.dtype).view(x.shape)


def reduce_scatter(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:  # fmt: skip
    """This rank's part of the sum of the ranks' tensors: of x [W n, ...] the rows [n, ...] from rank * n on. Quantised once, added in float32.

    Arguments and errors as `all_reduce`'s; path "plain": torch.distributed's own, unquantised, taken where the table of sizes says that it is faster. Raises
    ValueError where the first dimension cannot be divided by the number of ranks."""
    from rooftop.comm import symmetric

    what = "reduce_scatter"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed)
    x, group, o = _begun(what, what, x, group, (wire, group_size, hadamard, stochastic, seed), verify, lambda t, n: _divided(what, t, n))
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    shape = (x.shape[0] // ranks, *x.shape[1:])
    count = prod(shape)
    way = _exchanged_by(what, x, group, path, wire)
    if x.numel() == 0 or ranks == 1:
        found = x.clone()[: shape[0]]
    elif way == "plain":
        found, rows = x.new_empty(shape), x.contiguous()
        groups.run(what, group, lambda: groups.scatter_sum(found, rows, group), timeout)
    elif way == "symmetric":
        found = symmetric.exchange(what, x, group, o, timeout).view(shape)
    elif way == "hierarchical":
        found = hierarchy.reduce_scatter(x, hierarchy.of(group, x.device), o, timeout).view(shape)  # type: ignore[arg-type]
    else:
        sent = steps.encode(x, o, ranks, count, rank * ranks * wires.padded(count, o.group))
        parts = torch.empty_like(sent)
        groups.run(what, group, lambda: groups.exchange(parts.view(-1), sent.view(-1), group), timeout)
        found = steps.decode_sum(parts, o, count, x.dtype).view(shape)
    if not statistics:
        return found
    exact = torch.empty(shape, dtype=torch.float32, device=x.device)
    groups.run(what, group, lambda: groups.scatter_sum(exact, x.float().contiguous(), group), timeout)
    return found, _statistics(found, exact, group)


def all_gather(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:  # fmt: skip
    """The ranks' tensors one after another: [n, ...] to [W n, ...]. A rank's own part comes from its codes too, so that all ranks have the same bits.

    Arguments and errors as `all_reduce`'s. Raises ValueError for a tensor without dimensions."""
    from rooftop.comm import symmetric

    what = "all_gather"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed)
    x, group, o = _begun(what, what, x, group, (wire, group_size, hadamard, stochastic, seed), verify, lambda t, n: _rows(what, t))
    ranks, rank, count = dist.get_world_size(group), dist.get_rank(group), x.numel()
    shape = (x.shape[0] * ranks, *x.shape[1:])
    way = _exchanged_by(what, x, group, path, wire)
    if count == 0 or ranks == 1:
        found = x.new_empty(shape) if count == 0 else x.clone()
        return (found, _statistics(found, found.float())) if statistics else found
    if way == "plain":
        found, rows = x.new_empty(shape), x.contiguous()
        groups.run(what, group, lambda: groups.gather_into(found, rows, group), timeout)
    elif way == "symmetric":
        found = symmetric.exchange(what, x, group, o, timeout).view(shape)
    elif way == "hierarchical":
        found = hierarchy.all_gather(x, hierarchy.of(group, x.device), o, timeout).view(shape)  # type: ignore[arg-type]
    else:
        sent = steps.encode(x, o, 1, count, rank * wires.padded(count, o.group))
        got = sent.new_empty(ranks, sent.shape[1])
        groups.run(what, group, lambda: groups.gather_into(got.view(-1), sent.view(-1), group), timeout)
        found = steps.decode(got, o, count, ranks * count, x.dtype).view(shape)
    if not statistics:
        return found
    return found, _statistics(found[rank * x.shape[0] : (rank + 1) * x.shape[0]], x.float(), group)


def all_to_all(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:  # fmt: skip
    """Part p of x [W n, ...] goes to rank p; part p of the result, of the same shape, came from rank p. Quantised once, a rank's own part too.

    Arguments and errors as `reduce_scatter`'s."""
    from rooftop.comm import symmetric

    what = "all_to_all"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed)
    x, group, o = _begun(what, what, x, group, (wire, group_size, hadamard, stochastic, seed), verify, lambda t, n: _divided(what, t, n))
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    way = _exchanged_by(what, x, group, path, wire)
    if x.numel() == 0 or ranks == 1:
        found = x.clone()
        return (found, _statistics(found, found.float())) if statistics else found
    count = x.numel() // ranks
    start = rank * ranks * wires.padded(count, o.group)
    sent = steps.encode(x, o, ranks, count, start) if way == "portable" or (statistics and way != "plain") else x
    if way == "plain":
        found, rows = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
        groups.run(what, group, lambda: groups.exchange(found, rows, group), timeout)
    elif way == "symmetric":
        found = symmetric.exchange(what, x, group, o, timeout).view(x.shape)
    else:
        got = torch.empty_like(sent)
        groups.run(what, group, lambda: groups.exchange(got.view(-1), sent.view(-1), group), timeout)
        found = steps.decode(got, o, count, ranks * count, x.dtype).view(x.shape)
    if not statistics:
        return found
    return found, _statistics(x if way == "plain" else steps.decode(sent, o, count, ranks * count, x.dtype).view(x.shape), x.float(), group)


def sent(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    shots: int | None = None,
) -> Tensor:  # fmt: skip
    """What the others get of this rank's `x` in the first shot of an `all_reduce` with these arguments. Nothing travels. x - sent(x) is what is lost."""
    group = groups.group_of("sent", group)
    x = groups.tensor_of("sent", x).detach()
    o = Options.of("sent", wire, group_size, hadamard, stochastic, seed)
    ranks, count = dist.get_world_size(group), x.numel()
    if count == 0 or ranks == 1:
        return x.clone()
    share = wires.stripe(count, ranks, o.group)
    messages = steps.encode(x, o, ranks, share, dist.get_rank(group) * ranks * share)
    return steps.decode(messages, o, share, count, x.dtype).view(x.shape)


def synchronize(group: Any = None) -> None:
    """Wait for this GPU, and raise what its ranks found wrong where they met: CommError or Disagreement. On the CPU there is nothing to wait for."""
    from rooftop.comm import symmetric

    group = groups.group_of("synchronize", group)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    symmetric.raise_faults(group)


def _rows(what: str, x: Tensor) -> None:
    if x.dim() == 0:
        raise ValueError(f"{what}: x has no dimensions; its first one is what the ranks share")


def _divided(what: str, x: Tensor, ranks: int) -> None:
    _rows(what, x)
    if x.shape[0] % ranks:
        raise ValueError(f"{what}: x is {tuple(x.shape)}; its first dimension must be a multiple of {ranks}, the number of ranks")


def _statistics(found: Tensor, exact: Tensor, group: Any = None) -> Statistics:
    """Of one rank's result, or with `group` of all ranks'. Waits for the device."""
    both = found.isfinite() & exact.isfinite()
    error = torch.where(both, found.double() - exact.double(), 0.0)
    signal = torch.where(both, exact.double(), 0.0)
    sums = torch.stack((error.square().sum(), signal.square().sum(), both.sum().double(), (~both).sum().double()))
    largest = error.abs().amax() if error.numel() else sums.new_zeros(())
    if group is not None and dist.get_world_size(group) > 1:
        largest = largest.clone()
        groups.run("statistics", group, lambda: dist.all_reduce(sums, group=group, async_op=True))
        groups.run("statistics", group, lambda: dist.all_reduce(largest, dist.ReduceOp.MAX, group=group, async_op=True))
    squares, power, counted, left_out = sums.tolist()
    rms = (squares / counted) ** 0.5 if counted else 0.0
    return Statistics(int(counted + left_out), float(largest), rms, (squares / power) ** 0.5 if power else 0.0, int(left_out))
