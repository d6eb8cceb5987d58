"""Calls on tensors of the CPU under `rooftop.invariant()`: the reference for one row after another, each in memory of its own.

Torch's functions on the CPU sum in an order that follows from the number of rows and from where one starts; called for a single row, they
are given the same sizes, strides and alignment every time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core import invariance
from rooftop.core.call import problem_for_kernels
from rooftop.core.contract import Contract, metas_of
from rooftop.core.layouts import widen
from rooftop.core.spec import Meta, Problem
from rooftop.core.sweeps import each_element

if TYPE_CHECKING:
    from torch import Tensor

Whole = Callable[[Contract, Sequence[Any]], Any]  # (op, arguments) -> the outputs of the reference
Shaped = Callable[[Contract, Sequence[Any], Any], Any]  # (op, arguments, results)


def one_by_one(op: Contract, given: Sequence[Any], whole: Whole, shaped: Shaped) -> Any:
    """The outputs, None for an absent one. `whole`: the reference for a call as it is; `shaped`: results in their layouts and dtypes.
    Raises InvarianceError."""
    if op.rows is None and invariance.always(op):
        return whole(op, given)
    tensors, options = op.flattened(given)
    problem = op.problem_of({n: m and Meta(m.shape, m.dtype) for n, m in metas_of(tensors).items()}, options)
    along = _along(op, problem)
    if op.alone is not None:
        wide = op.arguments({n: widen(t) for n, t in tensors.items()}, options)
        return shaped(op, given, op.alone(*wide))
    if op.exact or op.mutates or op.idle(problem):  # no result has another order than the others
        return whole(op, given)
    counts = {prod(problem[n].shape[d] for d in dims) for n, dims in along.items()} - {1}
    if 0 in counts:
        return whole(op, given)
    if len(counts) > 1:
        raise invariance.InvarianceError(f"{op.name} under rooftop.invariant(), along batch: on the CPU its tensors have {sorted(counts)} rows")
    names = [n for n, _ in problem.tensors if n in op.output_names]
    rows = {n: list(itertools.product(*(range(problem[n].shape[d]) for d in dims))) for n, dims in along.items()}
    made: list[list[Any]] = []
    for i in range(max(counts, default=1)):
        one = {n: t if t is None or n not in along else _row(t, along[n], rows[n][i if len(rows[n]) > 1 else 0]) for n, t in tensors.items()}
        found = whole(op, op.arguments(one, options))
        made.append(list(found) if isinstance(found, tuple) else [found])
    rest = whole(op, given) if any(n not in along and problem.get(n) is not None for n in names) else None  # sums over rows
    rest = rest if isinstance(rest, tuple) else (rest,)
    results = tuple(
        None if problem.get(n) is None else _joined([row[j] for row in made], problem[n], along[n]) if n in along else rest[j]
        for j, n in enumerate(names)
    )
    return shaped(op, given, results if len(results) > 1 else results[0])


def _along(op: Contract, problem: Problem) -> dict[str, tuple[int, ...]]:
    """Tensor -> its dimensions that count rows, as the op is called. Kernels may see the dimensions before a row as one."""
    base = op.twin_of or op
    if base.rows is each_element:  # torch computes the last few of many by other instructions
        return {n: tuple(range(max(1, len(m.shape) - 1))) if m.shape else () for n, m in problem.tensors if m is not None}
    kernels = problem_for_kernels(op, problem)[0]
    found = {}
    for name, dims in invariance.rows_of(base, kernels).items():
        called, seen = problem[name].shape, kernels[name].shape
        one = prod(n for i, n in enumerate(seen) if i not in dims)
        before = next(j for j in range(len(called), -1, -1) if prod(called[j:]) == one) if called != seen else 0
        found[name] = tuple(dims) if called == seen else tuple(range(before))
    return found


def _row(t: Tensor, dims: Sequence[int], at: Sequence[int]) -> Tensor:
    for dim, i in zip(dims, at, strict=True):
        t = t.narrow(dim, i, 1)
    return t.clone(memory_format=_torch().contiguous_format)


def _joined(parts: list[Any], meta: Meta, dims: Sequence[int]) -> Any:
    torch = _torch()
    inner = [i for i in range(len(meta.shape)) if i not in dims]
    order = (*dims, *inner)
    if not dims:
        return parts[0]
    stacked = torch.stack([p.permute(order).flatten(0, len(dims) - 1)[0] for p in parts]).unflatten(0, [meta.shape[d] for d in dims])
    return stacked.permute(*(order.index(i) for i in range(len(order))))


def _torch() -> Any:
    import torch

    return torch
