"""Which cases a check judges, of what was found: asked by the command, and by the process that judges a file of one's own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rooftop.lab.check import checker, many

if TYPE_CHECKING:
    from rooftop.core.spec import Case, Device
    from rooftop.lab.candidates import Subject


@dataclass(frozen=True)
class Choice:
    """What the options of `rooftop check` say. `records`: the folder of `--records`."""

    backend: str
    seed: int
    case: str | None = None
    dtype: str | None = None
    tags: tuple[str, ...] = ()
    huge: bool = True
    quick: bool = False
    stale: bool = False
    records: Path | None = None


def known(found: Sequence[Subject], dtype: str | None, tags: Iterable[str] | None = None) -> None:
    """Raises ValueError for a dtype or a tag that no case of what was found has."""
    cases = [c for s in found for c in s.op.cases]
    dtypes, present = sorted({c.dtype for c in cases}), sorted({t for c in cases for t in c.tags})
    if cases and dtype is not None and dtype not in dtypes:
        raise ValueError(f"no case has dtype {dtype!r}; there are {', '.join(dtypes)}")
    if cases and (unknown := sorted(set(tags or ()) - set(present))):
        raise ValueError(f"no case has tag {', '.join(map(repr, unknown))}; there are {', '.join(present)}")


def select(found: Sequence[Subject], choice: Choice, names: str) -> tuple[list[tuple[Subject, Case]], int]:
    """The cases, and how many there are without `quick`. None: records prove all of them. `names`: what was asked for.

    Raises ValueError where there is no case at all, or an option names what is not there."""
    known(found, choice.dtype, choice.tags)
    todo = [
        (s, c) for s in found for c in checker.select_cases(_with_layouts(s), name=choice.case, tags=choice.tags, dtype=choice.dtype)
        if choice.huge or choice.case or "huge" not in c.tags
    ]
    if not todo:
        raise ValueError(
            f"nothing to check: no case of {names} is left" if found else f"nothing to check: {names} has no implementation yet"
        )
    checker.backend_of(todo[0][0], choice.backend)  # a backend that is none ends here
    if choice.stale:
        todo = _unproven(todo, choice.records)
    return many.sampled(todo, choice.backend, choice.seed) if choice.quick else todo, len(todo)


def _with_layouts(subject: Subject) -> Subject:
    """A kernel of somebody's, with cases of layouts that it would not meet by the op's own."""
    from rooftop.lab import candidates
    from rooftop.lab.check import own_op

    path = getattr(subject.implementation, "path", None)
    if path is None or subject.rung is not None or not candidates.is_own_file(str(path)):
        return subject
    op = copy.copy(subject.op)
    op.cases = (*op.cases, *own_op.layouts(subject, card()[1]))
    return replace(subject, op=op)


def _unproven(todo: list[tuple[Subject, Case]], records: Path | None) -> list[tuple[Subject, Case]]:
    """What the records of the settings, and those of `records`, leave open on the card that would run it."""
    from rooftop.core import settings
    from rooftop.lab.records import store

    folders = {settings.load().results, *((records,) if records is not None and records.is_dir() else ())}
    return many.lacking(todo, [r for f in folders for r in store.read(f)], *card())


def card() -> tuple[str, Device]:
    """What records call the machine, and the card that kernels are asked about: an H100 where there is none."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.core.spec import TARGETS

    if not torch.cuda.is_available():
        return "cpu", TARGETS[90]
    device = device_of(torch.cuda.current_device())
    return device.name, device
