"""All-reduce, reduce-scatter, all-gather and all-to-all whose messages are quantised, over a torch.distributed.ProcessGroup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.formats import wire as wires
from rooftop.ranks import again, agreement, groups, library, ways
from rooftop.ranks.groups import Limit
from rooftop.ranks.steps import Options


@dataclass(frozen=True)
class Statistics:
    """Error of a quantised collective relative to the same in float32, over the elements that are finite in both; the same on every
    rank."""

    elements: int
    max_error: float
    rms_error: float
    relative: float  # rms_error / rms of the float32 result; 0 where that is 0
    nonfinite: int  # elements left out

    def __str__(self) -> str:
        error = f"error rms {self.rms_error:.3g} ({self.relative:.3g} of the signal), largest {self.max_error:.3g}"
        return f"{self.elements} elements: {error}, {self.nonfinite} not finite"


@lru_cache(4096)
def _said(
    what: str, dtype: torch.dtype, shape: tuple[int, ...], kind: str, o: Options, shots: int | None, path: str | None, statistics: bool,
    verify: bool | None, plain: tuple[str, ...], rest: str,
) -> str:
    """A call, as ranks compare it and read of it."""
    more = f", shots={shots}" if what.endswith("all_reduce") else ""
    tables = f", and a table of sizes that says plain is faster than {', '.join(plain)}" if plain else ""
    options = f"{o.said()}{more}, path={path!r}, statistics={statistics}, verify={verify}{rest}"
    return f"{what} of {groups.DTYPES[dtype]} {shape} on {kind} with {options}{tables}"


def begun(
    what: str, x: Any, group: Any, settings: tuple[Any, ...], shots: Any, path: Any, statistics: Any, verify: Any, timeout: Any,
    check: Callable[[Tensor, int], None] | None = None, name: str = "", more: str = "",
) -> tuple[Tensor, Any, Options, Limit]:
    """Validate, and agree with the other ranks. A rank whose own arguments are wrong tells the others before it raises, so that none waits
    for it. `name`: of the function, as errors have it and ranks compare it. `more`: what else they compare."""
    name = name or what
    group = groups.group_of(name, group)
    ranks = dist.get_world_size(group)
    limit, problem, o = Limit(), None, None
    try:
        limit = Limit.of(name, timeout)
        x = groups.tensor_of(name, x).detach()
        groups.sendable(name, x, group)
        o = Options.of(name, *settings)
        ways.check_way(name, shots, path, ways.paths_of(what))
        if not isinstance(statistics, bool):
            raise TypeError(f"{name}: statistics is {statistics!r}; it must be True or False")
        agreement.check_verify(name, verify)
        if check is not None:
            check(x, ranks)
    except Exception as error:  # whatever it is, the others must not wait for this rank
        problem = error

    def say() -> str:
        assert o is not None
        plain = ways.measured_plain(what, x, ranks, o.wire.name) if path is None and shots is None else ()
        return _said(name, x.dtype, tuple(x.shape), x.device.type, o, shots, path, statistics, verify, plain, more)

    agreement.together(name, group, verify, limit, say, problem)
    assert o is not None
    return x, group, o, limit


@overload
def all_reduce(x: Tensor, group: Any = ..., *, wire: str = ..., group_size: int = ..., hadamard: bool = ..., stochastic: bool = ...,
               seed: int = ..., shots: int | None = ..., path: str | None = ..., statistics: Literal[False] = ...,
               verify: bool | None = ..., timeout: float | None = ...) -> Tensor: ...
@overload
def all_reduce(x: Tensor, group: Any = ..., *, wire: str = ..., group_size: int = ..., hadamard: bool = ..., stochastic: bool = ...,
               seed: int = ..., shots: int | None = ..., path: str | None = ..., statistics: Literal[True], verify: bool | None = ...,
               timeout: float | None = ...) -> tuple[Tensor, Statistics]: ...
def all_reduce(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False,
    seed: int = 0, shots: int | None = None, path: str | None = None, statistics: bool = False, verify: bool | None = None,
    timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:
    """The sum of the ranks' tensors, with the same bits on every rank: ``g = rooftop.comm.all_reduce(g, wire="int8")``. Returns a new
    tensor.

    Each rank quantises its tensor once; with two shots the sums are quantised once more, each by one rank, and every rank decodes them from
    those codes. Sums are computed in float32 in the order of the ranks. `rooftop.all_reduce_ranks` is the formula.

    Args:
        x: float32, float16 or bfloat16, any shape and strides; on all ranks the same shape and dtype.
        group: a ProcessGroup; None: the default one. With one rank, x is returned unchanged.
        wire: "bf16", "fp8" (e4m3), "int8", "int4".
        group_size: elements that share a scale (float32): 32, 64, 128, 256.
        hadamard: rotate each group first, which spreads outliers. Not with "bf16".
        stochastic: unbiased rounding, for "int8" and "int4"; `seed` of its random bits: the same on all ranks, a different one for each
        call.
        shots: 1: each rank sends its whole tensor to all, for small tensors; 2: by stripes. None: by size.
        path: "portable", "symmetric", "hierarchical", "plain" or None: see `plan`. A named path is used, or the call raises.
        statistics: also return `Statistics`; costs a float32 all-reduce.
        verify: if True, the ranks first compare their arguments, except `timeout`. None: on a GPU in a group's first 16 calls; the
        symmetric path compares
            them in every call, when the ranks synchronise. On the CPU they are always compared.
        timeout: seconds, above 0, to wait for the other ranks, in all exchanges of the call together. None: the group's timeout for each
        exchange; on the
            symmetric path 600.

    NaN and infinities are preserved.

    Raises TypeError and ValueError for arguments that are not accepted, and then `Disagreement` (a ValueError) on the other ranks;
    `Disagreement` on every rank if the arguments of two ranks differ. The group remains usable. `CommError` (a RuntimeError) if a rank has
    died or is late: the group is then unusable. On the symmetric path the next call, or `synchronize`, may raise these two. RuntimeError
    for a named path that is not available."""
    what = "all_reduce"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed, shots, path, verify, timeout)
    key = again.key_of(what, x, (wire, group_size, hadamard, stochastic, seed, shots, path, verify, timeout))
    if statistics is False and (made := again.call(what, x, group, key)) is not None:
        return made
    x, group, o, limit = begun(what, x, group, (wire, group_size, hadamard, stochastic, seed), shots, path, statistics, verify, timeout)
    again.begin(group)
    found = ways.all_reduce(x, group, o, shots, path, limit)
    again.remember(group, key, verify, found, o)
    if not statistics:
        return found
    exact = x.float().contiguous().clone()
    groups.run(what, group, lambda: dist.all_reduce(exact, group=group, async_op=True), limit)
    return found, _statistics(found, exact)


def reduce_scatter(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False,
    seed: int = 0, path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:
    """This rank's part of the sum of the ranks' tensors: rows [n, ...] of x [W n, ...], starting at rank * n. Quantised once, added in
    float32.

    Arguments and errors as for `all_reduce`; path "plain": torch.distributed's own, unquantised, used if it is faster according to the
    table of sizes. Raises ValueError if the first dimension is not divisible by the number of ranks."""
    what = "reduce_scatter"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed, None, path, verify, timeout)
    settings = (wire, group_size, hadamard, stochastic, seed)
    key = again.key_of(what, x, (wire, group_size, hadamard, stochastic, seed, None, path, verify, timeout))
    if statistics is False and (made := again.call(what, x, group, key)) is not None:
        return made
    x, group, o, limit = begun(what, x, group, settings, None, path, statistics, verify, timeout, lambda t, n: _divided(what, t, n))
    again.begin(group)
    found = ways.reduce_scatter(x, group, o, path, limit)
    again.remember(group, key, verify, found, o)
    if not statistics:
        return found
    exact = torch.empty(found.shape, dtype=torch.float32, device=x.device)
    groups.run(what, group, lambda: groups.scatter_sum(exact, x.float().contiguous(), group), limit)
    return found, _statistics(found, exact, group, limit)


def all_gather(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False,
    seed: int = 0, path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:
    """The ranks' tensors, concatenated: [n, ...] to [W n, ...]. A rank's own part is decoded from its codes too, so that all ranks have the
    same bits.

    Arguments and errors as for `all_reduce`. Raises ValueError for a tensor without dimensions."""
    what = "all_gather"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed, None, path, verify, timeout)
    settings = (wire, group_size, hadamard, stochastic, seed)
    key = again.key_of(what, x, (wire, group_size, hadamard, stochastic, seed, None, path, verify, timeout))
    if statistics is False and (made := again.call(what, x, group, key)) is not None:
        return made
    x, group, o, limit = begun(what, x, group, settings, None, path, statistics, verify, timeout, lambda t, n: _rows(what, t))
    again.begin(group)
    found = ways.all_gather(x, group, o, path, limit)
    again.remember(group, key, verify, found, o)
    if not statistics:
        return found
    rank = dist.get_rank(group)
    return found, _statistics(found[rank * x.shape[0] : (rank + 1) * x.shape[0]], x.float(), group, limit)


def all_to_all(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False,
    seed: int = 0, path: str | None = None, statistics: bool = False, verify: bool | None = None, timeout: float | None = None,
) -> Tensor | tuple[Tensor, Statistics]:
    """Send part p of x [W n, ...] to rank p; part p of the result, of the same shape, is from rank p. Quantised once, including a rank's
    own part.

    Arguments and errors as for `reduce_scatter`."""
    what = "all_to_all"
    if torch.compiler.is_compiling() and not statistics:
        return library.traced(what, x, group, wire, group_size, hadamard, stochastic, seed, None, path, verify, timeout)
    settings = (wire, group_size, hadamard, stochastic, seed)
    key = again.key_of(what, x, (wire, group_size, hadamard, stochastic, seed, None, path, verify, timeout))
    if statistics is False and (made := again.call(what, x, group, key)) is not None:
        return made
    x, group, o, limit = begun(what, x, group, settings, None, path, statistics, verify, timeout, lambda t, n: _divided(what, t, n))
    again.begin(group)
    found, quantised = ways.all_to_all(x, group, o, path, limit)
    again.remember(group, key, verify, found, o)
    if not statistics:
        return found
    ranks = dist.get_world_size(group)
    others = ways.received(x, o, ranks, dist.get_rank(group), x.numel() // ranks) if quantised else x
    return found, _statistics(others, x.float(), group, limit)


def sent(
    x: Tensor, group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False,
    seed: int = 0, shots: int | None = None,
) -> Tensor:
    """The values that the other ranks decode from this rank's `x` in the first shot of an `all_reduce` with these arguments. Nothing is
    sent.

    x - sent(x) is the quantisation error."""
    group = groups.group_of("sent", group)
    x = groups.tensor_of("sent", x).detach()
    o = Options.of("sent", wire, group_size, hadamard, stochastic, seed)
    return lossy(x, group, o)


def lossy(x: Tensor, group: Any, o: Options) -> Tensor:
    ranks, count = dist.get_world_size(group), x.numel()
    if count == 0 or ranks == 1:
        return x.clone()
    return ways.received(x, o, ranks, dist.get_rank(group), wires.stripe(count, ranks, o.group))


def synchronize(group: Any = None) -> None:
    """Wait for this GPU, and raise CommError or Disagreement if its kernels found an error when the ranks synchronised. Does nothing on the
    CPU."""
    from rooftop.ranks import symmetric

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


def _statistics(found: Tensor, exact: Tensor, group: Any = None, limit: Limit | None = None) -> Statistics:
    """Of one rank's result, or with `group` of all ranks'. Waits for the device."""
    both = found.isfinite() & exact.isfinite()
    error = torch.where(both, found.double() - exact.double(), 0.0)
    signal = torch.where(both, exact.double(), 0.0)
    sums = torch.stack((error.square().sum(), signal.square().sum(), both.sum().double(), (~both).sum().double()))
    largest = error.abs().amax() if error.numel() else sums.new_zeros(())
    if group is not None and dist.get_world_size(group) > 1:
        largest = largest.clone()
        groups.run("statistics", group, lambda: dist.all_reduce(sums, group=group, async_op=True), limit)
        groups.run("statistics", group, lambda: dist.all_reduce(largest, dist.ReduceOp.MAX, group=group, async_op=True), limit)
    squares, power, counted, left_out = sums.tolist()
    rms = (squares / counted) ** 0.5 if counted else 0.0
    return Statistics(int(counted + left_out), float(largest), rms, (squares / power) ** 0.5 if power else 0.0, int(left_out))


_LIBRARY = library.register(all_reduce, reduce_scatter, all_gather, all_to_all)  # as long as it is kept its operators are defined
