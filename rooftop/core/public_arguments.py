"""The arguments that an op's public function passes to its kernels, found without running anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rooftop.core.contract import Contract
from rooftop.core.op import Op

_CAPTURING = threading.RLock()  # the call of the op is replaced, for one thread


def arguments_of(found: Contract, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The arguments that the public function `function` of the op `found` passes on to its kernels, in the contract's order. Nothing runs.

    Raises what the function raises for arguments that it does not accept."""
    captured: list[tuple[Any, ...]] = []

    class Stop(BaseException):
        """Stops the public function once its validated arguments are known."""

    assert isinstance(found, Op)
    mine = threading.get_ident()
    with _CAPTURING:
        present = found.caller()

        def capture(*given: Any, implementation: str | None = None) -> Any:
            if threading.get_ident() != mine:  # calls of other threads in the meantime run as usual
                return present(*given, implementation=implementation)
            captured.append(given)
            raise Stop

        found._call = capture
        try:
            function(*args, **kwargs)
        except Stop:
            pass
        finally:
            found._call = present
    if not captured:
        raise ValueError(f"{found.name}: no kernel runs for this call: torch's own function computes it")
    return captured[0]
