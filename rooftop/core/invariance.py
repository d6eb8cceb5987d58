"""`rooftop.invariant()`: the result of a row (a token, a sequence) has the same bits, whatever else is in the call.

Which kernel runs, with which config, usually depends on the number of rows, and with it the order of sums. In the mode both are those of
`ROWS` rows, of the same length, dtype and options, whatever the number of rows. Kernels see the rows only as aligned as each of them is:
the start of the whole tensor says nothing of the rows that follow. A contract says which dimension of which tensors counts rows
(`Judging.rows`); an op that says nothing, or gives a reason, is refused, and so is a kernel whose order of sums depends on the number of
rows (`varies`). `rooftop check OP --invariant` compares the bits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from math import gcd

from rooftop.core import settings
from rooftop.core.contract import ALWAYS, Contract
from rooftop.core.modes import Mode
from rooftop.core.spec import Meta, Problem, contiguous_strides
from rooftop.core.sweeps import each_element

ROWS = 4096  # many: the kernels for few rows, which divide one among blocks, are left
DIMENSIONS = ("batch", "padding", "packing", "chunking", "splits")  # what else is in a call; contracts say which of them a result may depend on
on = settings.invariant()  # for the whole process: read by every call
_MODE = Mode(on)


class InvarianceError(ValueError):
    """A call under `rooftop.invariant()` whose result would depend on what else is in it."""


def invariant(enabled: bool = True) -> AbstractContextManager[None]:
    """`rooftop.invariant`, which documents it."""
    return _MODE.block(enabled, _set)


def _set(value: bool) -> None:
    global on
    on = value


def always(op: Contract, problem: Problem | None = None) -> bool:
    """Whether a result depends on nothing else in any case, so that nothing need be chosen otherwise; of a problem, whether in that one
    too."""
    base = op.twin_of or op
    if base.invariance["batch"] != ALWAYS:
        return False
    return problem is None or base.rows is None or not isinstance(base.rows(problem), str)


def rows_of(op: Contract, problem: Problem) -> dict[str, dict[int, int]]:
    """Tensor -> its dimensions that count rows, each with its extent where the choice is made, of a problem as kernels see it. Raises
    InvarianceError for an op, or such a problem, that has none."""
    found = op.invariance["batch"] if op.rows is None else op.rows(problem)
    if isinstance(found, str):
        raise InvarianceError(f"{op.name} under rooftop.invariant(), along batch: {found}")
    return {name: _extents(dims) for name, dims in found.items() if problem.get(name) is not None}


def _extents(dims: int | tuple[int, ...] | Mapping[int, int]) -> dict[int, int]:
    if isinstance(dims, Mapping):
        return dict(dims)
    dims = dims if isinstance(dims, tuple) else (dims,)
    return {dim: ROWS if dim == dims[-1] else 1 for dim in dims}


def no_rows(op: Contract, problem: Problem) -> bool:
    """Whether there are none, and with them no order of sums."""
    return any(problem[n].shape[d] == 0 for n, dims in rows_of(op, problem).items() for d in dims)


def seen(op: Contract, problem: Problem) -> Problem:
    """The problem with each tensor of rows as aligned as any of its rows: what the kernel of the mode is launched for."""
    return problem.replace(**{n: _aligned(problem[n], dims, problem[n].strides) for n, dims in rows_of(op, problem).items()})


def stand_in(op: Contract, problem: Problem) -> Problem:
    """The problem for which the kernel is chosen: `ROWS` rows without gaps, at a multiple of 16 bytes; of single elements rows of `ROWS`,
    as kernels may see all of them as one row."""
    changed: dict[str, Meta | None] = {}
    if op.rows is each_element:
        metas = {n: m for n, m in problem.tensors if m is not None and m.shape}
        least = min((m.shape[-1] for m in metas.values()), default=1)
        for name, m in metas.items():
            changed[name] = Meta((*[ROWS] * (len(m.shape) - 1), ROWS * m.shape[-1] // least), m.dtype)
        return problem.replace(**changed)
    for name, dims in rows_of(op, problem).items():
        m = problem[name]
        shape = tuple(dims.get(i, n) for i, n in enumerate(m.shape))
        changed[name] = _aligned(Meta(shape, m.dtype), dims, contiguous_strides(shape))
    return problem.replace(**changed)


def _aligned(m: Meta, dims: Mapping[int, int], strides: tuple[int, ...]) -> Meta:
    """As aligned as any row is; of a single one, as if others lay behind it without a gap, in its strides too: compilers read those."""
    whole = contiguous_strides(m.shape)
    steps = {dim: whole[dim] if m.shape[dim] == 1 else strides[dim] for dim in dims}
    apart = tuple(steps[dim] if dim in steps and n == 1 else s for dim, (n, s) in enumerate(zip(m.shape, m.strides, strict=True)))
    return Meta(m.shape, m.dtype, apart, gcd(m.align, 16, *(step * m.itemsize for step in steps.values())))
