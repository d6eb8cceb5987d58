"""Row counts that stand for their neighbours: kernel and config are chosen for a rounded one, so that a new row count costs no choice of its own."""

from __future__ import annotations

from rooftop.core.spec import Meta, Problem

BITS = 5  # leading bits of a row count that are kept: it is rounded down by 6 % at most; up to 31 rows are exact
MANY = 1024  # rows from which one bit less is kept: it is rounded down by 12 % at most


def rows(problem: Problem) -> Problem:
    """The problem with fewer rows: the first extent of its first tensor rounded down, wherever a tensor's first extent is the same number. The strides
    stay: which addresses are aligned does not change. The very same problem where the count is rounded already, or where another extent is the same
    number, so that rows cannot be told from columns."""
    count = next((m.shape[0] for _, m in problem.tensors if m is not None and m.shape), 0)
    low = max(0, count.bit_length() - (BITS if count < MANY else BITS - 1))
    kept = count >> low << low
    if kept == count or any(count in m.shape[1:] for _, m in problem.tensors if m is not None):
        return problem
    fewer = {n: Meta((kept, *m.shape[1:]), m.dtype, m.strides, m.align) for n, m in problem.tensors if m is not None and m.shape and m.shape[0] == count}
    return problem.replace(**fewer)
