"""What a long command is at: a bar on a terminal; elsewhere a line when a step begins, now and then, and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 10.0


@contextmanager
def step(console: Console, name: str, total: int) -> Iterator[Callable[[], None]]:
    """A step of `total` parts; what it gives is called after each. Its end may come before all are done."""
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as progress:
            task = progress.add_task(name, total=total)
            yield lambda: progress.advance(task)
        return
    began, told, done = time.monotonic(), time.monotonic(), 0

    def say() -> None:
        print(f"{name}: {done} of {total}, {time.monotonic() - began:.0f} s", flush=True)

    def advance() -> None:
        nonlocal told, done
        done += 1
        if time.monotonic() - told >= EVERY_S:
            told = time.monotonic()
            say()

    yield advance
    say()
