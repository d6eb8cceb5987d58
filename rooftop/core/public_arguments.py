"""The arguments that an op's public function passes to its kernels, found without running anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rooftop.core.contract import Contract
from rooftop.core.op import Op

_CAPTURING = threading.RLock()  # the call of the op is replaced, for one thread


def arguments_of(ops: Sequence[Contract], function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Contract, tuple[Any, ...]]:
    """The first of `ops` that the public function `function` calls, and the arguments that it passes on to kernels, in the contract's order.
    Nothing runs.

    Raises what the function raises for arguments that it does not accept."""
    captured: list[tuple[Contract, tuple[Any, ...]]] = []

    class Stop(BaseException):
        """Stops the public function once its validated arguments are known."""

    called = [op for op in ops if isinstance(op, Op)]
    mine = threading.get_ident()
    with _CAPTURING:
        present = [op.caller() for op in called]

        def capture(op: Op, usual: Callable[..., Any], *given: Any, implementation: str | None = None) -> Any:
            if threading.get_ident() != mine:  # calls of other threads in the meantime run as usual
                return usual(*given, implementation=implementation)
            captured.append((op, given))
            raise Stop

        for op, usual in zip(called, present, strict=True):
            op._call = partial(capture, op, usual)
        try:
            function(*args, **kwargs)
        except Stop:
            pass
        finally:
            for op, usual in zip(called, present, strict=True):
                op._call = usual
    if not captured:
        raise ValueError(f"{ops[0].name}: no kernel runs for this call: torch's own function computes it")
    return captured[0]
