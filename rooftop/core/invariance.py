"""`rooftop.invariant()`: the result of a row (a token, a sequence) has the same bits, whatever else is in the call.

Which kernel runs, with which config, usually depends on the number of rows, and with it the order of sums. In the mode both are those of
`ROWS` rows, of the same length, dtype and options, whatever the number of rows. Kernels see the rows only as aligned as each of them is:
the start of the whole tensor says nothing of the rows that follow. A contract says which dimension of which tensors counts rows
(`Judging.rows`); an op that says nothing, or gives a reason, is refused, and so is a kernel whose order of sums depends on the number of
rows (`varies`). `rooftop check OP --invariant` compares the bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd

from rooftop.core.contract import Contract
from rooftop.core.spec import Meta, Problem, contiguous_strides

ROWS = 4096  # many: the kernels for few rows, which divide one among blocks, are left
on = False  # for the whole process: read by every call


class InvarianceError(ValueError):
    """A call under `rooftop.invariant()` whose result would depend on what else is in it."""


@contextmanager
def invariant(enabled: bool = True) -> Iterator[None]:
    """`rooftop.invariant`, which documents it."""
    global on
    before = on
    on = enabled
    try:
        yield
    finally:
        on = before


def rows_of(op: Contract, problem: Problem) -> dict[str, tuple[int, ...]]:
    """Tensor -> its dimensions that count rows, of a problem as kernels see it. Raises InvarianceError for an op, or such a problem, that
    has none."""
    found = "its contract names no dimension of rows" if op.rows is None else op.rows(problem)
    if isinstance(found, str):
        raise InvarianceError(f"{op.name} under rooftop.invariant(): {found}")
    return {name: dims if isinstance(dims, tuple) else (dims,) for name, dims in found.items() if problem.get(name) is not None}


def seen(op: Contract, problem: Problem) -> Problem:
    """The problem with each tensor of rows as aligned as any of its rows: what the kernel of the mode is launched for."""
    return problem.replace(**{n: _aligned(problem[n], dims, problem[n].strides) for n, dims in rows_of(op, problem).items()})


def stand_in(op: Contract, problem: Problem) -> Problem:
    """The problem for which kernel and config are chosen: `ROWS` rows without gaps."""
    changed = {}
    for name, dims in rows_of(op, problem).items():
        m = problem[name]
        shape = tuple(ROWS if i == dims[-1] else 1 if i in dims else n for i, n in enumerate(m.shape))
        changed[name] = _aligned(Meta(shape, m.dtype, (), m.align), dims, contiguous_strides(shape))
    return problem.replace(**changed)


def _aligned(m: Meta, dims: tuple[int, ...], strides: tuple[int, ...]) -> Meta:
    """As aligned as any row is; of a single one, as if others lay behind it without a gap."""
    steps = [contiguous_strides(m.shape)[dim] if m.shape[dim] == 1 else strides[dim] for dim in dims]
    return Meta(m.shape, m.dtype, m.strides, gcd(m.align, 16, *(step * m.itemsize for step in steps)))
