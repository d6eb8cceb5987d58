"""Races between the programs of one launch, found although programs run one after another.

On a GPU programs run in any order and at the same time. So an element that one program writes and another reads or writes must be ordered
by atomics: the first program releases after its access, the second acquires the same word before its own. The interpreter remembers of each
element who wrote it, who read it, and at which line. Two accesses of different programs race if one of them changes the element, at least
one is no atomic, and no chain of release and acquire leads from the first to the second. Programs that store the same value do not race:
whoever comes last, the result is the same.

Ordering is that of vector clocks: a program counts its releases, and knows up to which release it has seen each other program (FastTrack,
Flanagan & Freund 2009, with one reader remembered, or that there were several)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rooftop.lab.interpret.memory import Array, InterpretError, Region

PROGRAM, RELEASES, SITE = 24, 16, 20  # bits of a stamp, lowest first: program + 1, its releases until then, the source line
MANY = (1 << PROGRAM) - 1  # in the place of the program: several have read
WORDS = 64  # an atomic on more words than these orders nothing: it adds to a block, it is no flag


class RaceBetweenPrograms(InterpretError):
    """Two programs of a launch touch one element, one of them changes it, and nothing orders the two."""


@dataclass
class Marks:
    """Stamps of the cells of one allocation: of the last store, the last load and the last atomic; 0 where there was none. A cell has
    `grain` bytes."""

    grain: int
    bytes: int
    stored: Array = field(init=False)
    loaded: Array = field(init=False)
    atomic: Array = field(init=False)

    def __post_init__(self) -> None:
        self.stored, self.loaded, self.atomic = (np.zeros(-(-self.bytes // self.grain), np.int64) for _ in range(3))

    def refine(self, grain: int) -> None:
        """Smaller cells, which keep what was known of the larger."""
        times = self.grain // grain
        self.stored, self.loaded, self.atomic = (np.repeat(x, times) for x in (self.stored, self.loaded, self.atomic))
        self.grain = grain


class Races:
    """What one launch has done to memory so far. `line` gives the file and line of the access that is under way."""

    def __init__(self, line: Callable[[], tuple[str, int]]) -> None:
        self.line = line
        self.marks: dict[int, Marks] = {}
        self.sites: dict[tuple[str, int], int] = {}
        self.programs: list[tuple[int, int, int]] = []
        # (allocation, byte) -> program -> its releases that whoever acquires here has seen
        self.released: dict[tuple[int, int], dict[int, int]] = {}
        self.known: dict[int, int] = {}
        self.releases = 0

    def begin(self, index: tuple[int, int, int]) -> None:
        """The next program runs from here on."""
        self.programs.append(index)
        self.known, self.releases = {}, 0

    def loaded(self, region: Region, index: Array, size: int, volatile: bool = False) -> None:
        """A volatile load races with plain stores, not with atomics. It orders nothing, and what comes after it is not held against it."""
        marks, cells = self._cells(region, index, size)
        self._refuse(region, marks, cells, marks.stored[cells], "loads", "stored")
        if volatile:
            return
        self._refuse(region, marks, cells, marks.atomic[cells], "loads", "changed by an atomic")
        before, me = marks.loaded[cells], self._stamp()
        other = (before != 0) & (before & MANY != len(self.programs))
        marks.loaded[cells] = np.where(other, MANY, me)

    def stored(self, region: Region, index: Array, size: int, changes: Array) -> None:
        """`changes`: of each lane whether it stores another value than stands there."""
        marks, cells = self._cells(region, index, size)
        if changes.any():
            changed = cells if changes.all() else self._cells(region, index[changes], size)[1]
            self._refuse(region, marks, changed, marks.stored[changed], "stores another value", "stored")
            self._refuse(region, marks, changed, marks.atomic[changed], "stores another value", "changed by an atomic")
            self._refuse(region, marks, changed, marks.loaded[changed], "stores another value", "loaded")
        marks.stored[cells] = self._stamp()

    def updated(self, region: Region, index: Array, size: int, order: str) -> None:
        """An atomic. `order`: the text of Triton's memory order."""
        marks, cells = self._cells(region, index, size)
        words = [(id(marks), int(i)) for i in np.unique(index)] if index.size <= WORDS else []
        if "ACQUIRE" in order:
            for word in words:
                for program, releases in self.released.get(word, {}).items():
                    self.known[program] = max(self.known.get(program, 0), releases)
        self._refuse(region, marks, cells, marks.stored[cells], "changes by an atomic", "stored")
        self._refuse(region, marks, cells, marks.loaded[cells], "changes by an atomic", "loaded")
        marks.atomic[cells] = self._stamp()
        if "RELEASE" in order and words:
            self.releases = min(self.releases + 1, (1 << RELEASES) - 1)
            for word in words:
                seen = self.released.setdefault(word, {})
                for program, releases in (*self.known.items(), (len(self.programs), self.releases)):
                    seen[program] = max(seen.get(program, 0), releases)

    def _stamp(self) -> int:
        site = self.sites.setdefault(self.line(), len(self.sites))
        return site % (1 << SITE) << (PROGRAM + RELEASES) | self.releases << PROGRAM | len(self.programs)

    def _cells(self, region: Region, index: Array, size: int) -> tuple[Marks, Array]:
        """The marks of a region's allocation, and the cells that the accesses cover."""
        storage = region.tensor.untyped_storage()
        key = storage.data_ptr()
        grain = min(size, region.tensor.element_size())
        if key not in self.marks:
            self.marks[key] = Marks(region.tensor.element_size(), storage.nbytes())
        marks = self.marks[key]
        if grain < marks.grain:
            marks.refine(grain)
        first = (index.astype(np.int64) * size - region.lead + region.tensor.data_ptr() - key) // marks.grain
        wide = size // marks.grain
        return marks, first if wide == 1 else (first[:, None] + np.arange(wide)).reshape(-1)

    def _refuse(self, region: Region, marks: Marks, cells: Array, stamps: Array, does: str, was: str) -> None:
        """Raises where one of the stamps is of another program and not ordered before this access."""
        program = stamps & MANY
        others = (stamps != 0) & (program != len(self.programs))
        if not others.any():
            return
        for stamp in np.unique(stamps[others]):
            who, releases = int(stamp) & MANY, int(stamp) >> PROGRAM & (1 << RELEASES) - 1
            if who == MANY:
                if self.known:
                    continue  # of several readers none is remembered: some order there is
                by = "other programs"
            elif self.known.get(who, 0) > releases:
                continue
            else:
                site = list(self.sites)[int(stamp) >> (PROGRAM + RELEASES)]
                by = f"program {self.programs[who - 1]} at {Path(site[0]).name}:{site[1]}"
            at = int(cells[others & (stamps == stamp)][0]) * marks.grain
            element = (at - region.tensor.storage_offset() * region.tensor.element_size()) // region.tensor.element_size()
            raise RaceBetweenPrograms(
                f"a race: this program {does} where element {element} of {region} was {was} by {by}, and nothing orders the two. Programs "
                f"run at the same "
                "time: let one own the element, use an atomic, or order them by a release and an acquire"
            )


def line_of(mark: str, library: str) -> Callable[[], tuple[str, int]]:
    """A function that gives the file and line of the innermost interpreted code outside Triton's own library. `mark`: a global that such
    code has."""

    def line() -> tuple[str, int]:
        frame = sys._getframe(1)
        found = ("", 0)
        while frame is not None:
            if mark in frame.f_globals:
                found = (frame.f_code.co_filename, frame.f_lineno)
                if not found[0].startswith(library):
                    return found
            frame = frame.f_back  # type: ignore[assignment]
        return found

    return line
