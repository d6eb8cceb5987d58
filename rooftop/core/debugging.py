"""`rooftop.debug()`: what only the device can see, raised by name.

Kernels take indices, offsets and page tables as they come: one out of range gives a harmless result, which the op's docstring states, and never a
write outside the output. Under `debug` every call first asks its contract whether such a value is there, and waits for its kernel to end, so that
an error is raised by the call that made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rooftop.core.contract import Contract

on = False  # for the whole process: read by every call


@contextmanager
def debug(enabled: bool = True) -> Iterator[None]:
    """`rooftop.debug`, whose docstring says what it does."""
    global on
    before = on
    on = enabled
    try:
        yield
    finally:
        on = before


def check(op: Contract, args: Sequence[Any]) -> None:
    """Raises IndexError where the contract finds a fault in the values of the arguments (in the reference's order)."""
    import torch

    if op.faults is None:
        return
    with torch.no_grad():
        fault = op.faults(*args)
    if fault:
        raise IndexError(f"{op.name}: {fault}")


def wait(op: Contract) -> None:
    """Until the kernels of the call have ended. Raises what the driver reports."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise RuntimeError(f"{op.name}: its kernel failed: {error}") from error
