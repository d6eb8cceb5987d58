"""A mode of the whole process that `with` blocks of several threads turn on and off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def not_traced(function: Any) -> Any:
    """Like `torch.compiler.disable`, but without importing torch: a mode is read when a graph runs, so that a block inside of one would do
    nothing."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "the block goes around the call of a compiled function"
    return function


class Mode:
    """On where the innermost block of any thread says so, without blocks as at the start: blocks of threads may end in any order."""

    def __init__(self, at_start: bool = False) -> None:
        self._at_start = at_start
        self._blocks: list[tuple[int, bool]] = []  # (thread, whether it is on), in the order of their beginning
        self._changing = threading.Lock()

    @not_traced
    @contextmanager
    def block(self, enabled: bool, tell: Callable[[bool], None]) -> Iterator[None]:
        """`tell` is given the mode when the block begins and when it ends."""
        mine = threading.get_ident(), enabled
        with self._changing:
            self._blocks.append(mine)
            tell(self._on())
        try:
            yield
        finally:
            with self._changing:
                self._blocks.reverse()
                self._blocks.remove(mine)  # the innermost that is like it
                self._blocks.reverse()
                tell(self._on())

    def _on(self) -> bool:
        return any(dict(self._blocks).values()) if self._blocks else self._at_start
