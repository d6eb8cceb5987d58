"""Checks of arguments that are not tensors: what the errors of all public functions say alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any


def number(op: str, name: str, value: Any, accepted: str, *, whole: bool = False, finite: bool = False) -> None:
    """Raises TypeError unless `value` is a number, a whole one where asked for, and ValueError
    for one that is not finite where that is, or a whole one of more than 64 bits."""
    import torch

    kinds = (int, torch.SymInt) if whole else (int, float, torch.SymInt, torch.SymFloat)
    if not isinstance(value, kinds):
        raise TypeError(f"{op}: {name} is {value!r}, a {type(value).__name__}; it must be {accepted}")
    if (finite and not isfinite(value)) or (whole and not -(2**63) <= value < 2**63):
        raise ValueError(f"{op}: {name} is {value}; it must be {accepted}")


def shape(op: str, name: str, value: Any) -> tuple[int, ...]:
    """A shape given as a number or as numbers. Raises TypeError for anything else."""
    import torch

    found = (value,) if isinstance(value, (int, torch.SymInt)) else tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
    if found is None or not all(isinstance(n, (int, torch.SymInt)) for n in found):
        raise TypeError(f"{op}: {name} is {value!r}, a {type(value).__name__}; it must be a whole number or a sequence of them")
    return found
