"""`rooftop.debug()`: finds values that only the device can see, and raises an error with the op's name.

Kernels do not check indices, offsets and page tables: one out of range gives a harmless result, which the op's docstring states, and never
a write outside the output. Under `debug` every call first asks its contract whether there is such a value, and then waits for its kernel to
complete, so that an error is raised by the call that caused it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from rooftop.core.contract import Contract
from rooftop.core.modes import Mode

on = False  # for the whole process: read by every call
_MODE = Mode()


def debug(enabled: bool = True) -> AbstractContextManager[None]:
    """`rooftop.debug`, which documents it."""
    return _MODE.block(enabled, _set)


def _set(value: bool) -> None:
    global on
    on = value


def check(op: Contract, args: Sequence[Any]) -> None:
    """Raises IndexError if the contract finds a fault in the values of the arguments (in the reference's order)."""
    import torch

    if op.faults is None:
        return
    with torch.no_grad():
        fault = op.faults(*args)
    if fault:
        raise IndexError(f"{op.name}: {fault}")


def wait(op: Contract) -> None:
    """Waits for the kernels of the call. Raises what the driver reports."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise RuntimeError(f"{op.name}: its kernel failed: {error}") from error
