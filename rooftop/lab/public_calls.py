"""How the public function of an op is called with the tensors and options of its reference, and which of the op's outputs it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import rooftop
from rooftop.core.contract import Contract
from rooftop.core.spec import Problem


def function(op: Contract) -> Callable[..., Any]:
    """The public function of an op."""
    return getattr(rooftop, op.name)  # type: ignore[no-any-return]


def arguments(op: Contract, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the public function: as the contract's `public` says, else by equal names. Tensors and options by the reference's names."""
    if op.public is not None:
        args, kwargs = op.public(tensors, options)
        return tuple(args), dict(kwargs)
    return (), dict(zip(op.kinds, op.arguments(tensors, options), strict=True))


def returned(op: Contract, problem: Problem) -> tuple[str, ...]:
    """The outputs that the public function returns: not those that are absent, nor those that are made for the backward alone."""
    aside = op.grad.aside if op.grad else ()
    return tuple(n for n in op.output_names if problem.get(n) is not None and n not in aside)


def outputs(op: Contract, problem: Problem, results: Any) -> dict[str, Any]:
    """What the public function returned, by the names of the outputs; None for those that it does not return. Raises ValueError for another number."""
    names = returned(op, problem)
    found = () if not names else tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(found) != len(names):
        raise ValueError(f"{op.name} returned {len(found)} results; its contract has {', '.join(names) or 'none'}")
    return {**dict.fromkeys(op.output_names), **dict(zip(names, found, strict=True))}
