"""How the public function of an op is called with the tensors and options of its reference, and which of the op's outputs it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import rooftop
from rooftop.core.contract import Contract
from rooftop.core.op import Op
from rooftop.core.public_arguments import arguments_of
from rooftop.core.spec import Problem


def function(op: Contract) -> Callable[..., Any]:
    """The public function of an op."""
    return getattr(rooftop, op.name)


def arguments(op: Contract, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the public function: as the contract's `public` says, else by equal names. Tensors and options by the reference's
    names.

    Raises ValueError where no call of it has these."""
    if op.public is not None:
        said = op.public(tensors, options)
        if said is None:
            raise ValueError(f"{op.name}: no call of the public function has these tensors and options")
        return tuple(said[0]), dict(said[1])
    return (), dict(zip(op.kinds, op.arguments(tensors, options), strict=True))


def passed(op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and options as the public function hands them to the op: validated, a negative dimension counted from the front. Nothing
    is run."""

    return given(op, *arguments(op, tensors, options))


def given(op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and options that a call of the public function hands to the op. Nothing is run."""
    return op.flattened(arguments_of([op], function(op), *args, **kwargs)[1])


def returned(op: Contract, problem: Problem) -> tuple[str, ...]:
    """The outputs that the public function returns: not those that are absent, nor those that are made for the backward alone."""
    non_differentiable = op.grad.non_differentiable if op.grad else ()
    return tuple(n for n in op.output_names if problem.get(n) is not None and n not in non_differentiable)


def outputs(op: Contract, problem: Problem, results: Any) -> dict[str, Any]:
    """What the public function returned, by the names of the outputs; None for those that it does not return. Raises ValueError for another
    number."""
    names = returned(op, problem)
    found = () if not names else tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(found) != len(names):
        raise ValueError(f"{op.name} returned {len(found)} results; its contract has {', '.join(names) or 'none'}")
    return {**dict.fromkeys(op.output_names), **dict(zip(names, found, strict=True))}
