"""What the public function of an op makes of its arguments, without running anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rooftop.core.contract import Contract
from rooftop.core.op import Op

_CAPTURING = threading.RLock()  # what an op calls is exchanged, for one thread


def arguments_of(found: Contract, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """What the public function `function` of the op `found` hands on to its kernels for these arguments, in the contract's order. Nothing runs.

    Raises what the function raises for arguments that it does not take."""
    captured: list[tuple[Any, ...]] = []

    class Stop(Exception):
        """Ends the public function once its validated arguments are known."""

    assert isinstance(found, Op)
    mine = threading.get_ident()
    with _CAPTURING:
        present = found.caller()

        def capture(*given: Any, implementation: str | None = None) -> Any:
            if threading.get_ident() != mine:  # another thread's call in the meantime is a call as any other
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
    return captured[0]
