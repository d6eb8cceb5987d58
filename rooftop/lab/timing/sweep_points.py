"""The points of a sweep: the widths of well-known models, and sizes drawn from a seed. Which numbers are sizes, and their ranges, the op's
contract says (`swept`)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooftop.core import registry
from rooftop.core.contract import Contract
from rooftop.core.devices import floor_seconds, lookup
from rooftop.core.spec import Case, Device, Problem
from rooftop.core.sweeps import Sizes
from rooftop.lab.timing import models
from rooftop.lab.timing.timer import sets_needed

MANY = (128 << 20, 1 << 30)  # bytes that a point with many rows reads and writes
FEWEST, MOST_FEW = 1, 132  # rows of a point that has few
FEW_OF = 4  # every so many-th drawn point has few rows
# of the free memory that input sets may take: outputs of each candidate, and what a backward's inputs are made from, come on top
SHARE = 0.3
LONGEST_S = 10e-3  # a point whose roof is longer is not drawn
LEAST = 1 << 20  # bytes of the tensors of a point: of less, too many input sets would have to be made
TRIES = 400  # draws for one point, before the ranges are said not to fit
KEPT = 3  # candidates, with peers, that each keep a copy of what an op writes into
OF_MODELS = 8  # times the most bytes that a drawn point moves: what a point at a model's widths may


@dataclass(frozen=True)
class Point:
    """What is timed: a dtype and the sizes."""

    dtype: str
    sizes: tuple[tuple[str, int], ...]
    few: bool

    def case(self, of: Sizes) -> Case:
        return of.case(self.dtype, dict(self.sizes))


def swept(op: Contract) -> Sizes:
    """What its contract says of its sizes. Raises ValueError where it says nothing."""
    if op.swept is None and op.ranks is not None:
        raise ValueError(
            f"{op.name} has no sizes: it is of several GPUs, and a sweep times one; its cases are timed by torchrun -m rooftop.lab.cli "
            f"bench"
        )
    if op.swept is None:
        having = [n for n in registry.op_names() if getattr(registry.op(n), "swept", None)]
        raise ValueError(f"{op.name} has no sizes: its contract does not say which numbers are (`swept`); these do: {', '.join(having)}")
    return op.swept


def narrowed(of: Sizes, ranges: Mapping[str, tuple[int, int]], dtype: str | None = None) -> Sizes:
    """With other ranges of some sizes, and one dtype. Raises ValueError for a size or a dtype that the op has not, or a range beyond the
    contract's."""
    for name, (low, high) in ranges.items():
        if name not in of.ranges:
            raise ValueError(f"{name!r} is no size; there are {', '.join(of.ranges)}")
        least, most = of.ranges[name]
        if not least <= low <= high <= most:
            raise ValueError(f"{name} is {low}..{high}; its range is {least}..{most}")
    if dtype is not None and dtype not in of.dtypes:
        raise ValueError(f"dtype {dtype!r} is not swept; there are {', '.join(of.dtypes)}")
    return replace(of, ranges={**of.ranges, **ranges}, dtypes=of.dtypes if dtype is None else (dtype,))


def draw(
    op: Contract, of: Sizes, device: Device, memory: int, *, seed: int = 0, count: int = 100, moved: tuple[int, int] = MANY,
    of_models: bool = True
) -> list[Point]:
    """The points: the models' widths, then `count` drawn from `seed`, log-uniform, half of them rounded to multiples of 16 elements.

    memory   bytes of the device that the inputs may take
    moved    bytes that a point with many rows reads and writes

    Raises ValueError where the ranges do not fit the memory."""
    if not 1 <= moved[0] <= moved[1]:
        raise ValueError(f"bytes are {moved[0]}..{moved[1]}; they must start at 1 or above and not end before they start")
    if count < 1 and not of_models:
        raise ValueError(f"points is {count}; at least 1 is needed")
    chance = random.Random(f"{seed} {op.name}")
    drawing = Drawing(op, of, device, memory, moved, chance)
    smallest = Point(of.dtypes[0], tuple((n, low) for n, (low, _) in of.ranges.items()), False)
    if (needed := drawing.needed(smallest)) > memory:
        raise ValueError(
            f"{op.name}: the smallest point of these ranges ({smallest.case(of).name}) needs {needed / 2**30:.3g} GiB, and "
            f"{memory / 2**30:.3g} GiB of the "
            "device may be taken: give smaller ranges"
        )
    if of.rows and moved[0] > memory:
        raise ValueError(
            f"{op.name}: points of {moved[0] / 2**30:.3g} GiB do not fit {memory / 2**30:.3g} GiB of the device: give fewer bytes"
        )
    found: list[Point] = []
    if of_models and of.models:
        for values in models.widths(tuple(of.models.values())):
            chosen = dict(zip(of.models, values, strict=True))
            if all(of.ranges[n][0] <= v <= of.ranges[n][1] for n, v in chosen.items()):
                found += drawing.point(chosen, of.dtypes[0], few=False)
    for i in range(count):
        few = bool(of.rows) and i % FEW_OF == FEW_OF - 1
        dtype = of.dtypes[chance.randrange(len(of.dtypes))]
        drawn = drawing.point({}, dtype, few=few, even=i % 2 == 0)
        if few and not drawn:  # a few rows of these lengths are less than a point may have: many
            drawn = drawing.point({}, dtype, few=False, even=i % 2 == 0)
        if not drawn:
            raise ValueError(
                f"{op.name}: of {TRIES} sizes drawn from {', '.join(f'{n} {low}..{high}' for n, (low, high) in of.ranges.items())} none "
                f"fits "
                f"{memory / 2**30:.3g} GiB of the device, {moved[1] / 2**30:.3g} GiB a call and {LONGEST_S * 1e3:g} ms: give smaller ranges"
            )
        found += drawn
    return list(dict.fromkeys(found))


@dataclass
class Drawing:
    """Draws sizes of points that fit `memory` and, with many rows, read and write `moved` bytes."""

    op: Contract
    of: Sizes
    device: Device
    memory: int
    moved: tuple[int, int]
    chance: random.Random

    def point(self, given: Mapping[str, int], dtype: str, *, few: bool, even: bool = False) -> list[Point]:
        """A point with the sizes `given`, the others drawn; none where no try fits."""
        least = {n: given.get(n, low) for n, (low, _) in self.of.ranges.items()}
        if not self._bounded(Point(dtype, tuple(least.items()), few), OF_MODELS if given else 1):
            return []
        for _ in range(TRIES):
            sizes = {n: given[n] if n in given else self._drawn(n, even) for n in self.of.drawn}
            if self.of.rows:
                rows = self.size(FEWEST, MOST_FEW, False) if few else self.rows(dtype, sizes)
                low, high = self.of.ranges[self.of.rows]
                sizes[self.of.rows] = min(max(rows, low), high)
            point = Point(dtype, tuple((n, sizes[n]) for n in self.of.ranges), few)
            if held(self.problem(point)) >= LEAST and self._bounded(point, OF_MODELS if given else 1):
                return [point]
            if set(given) == set(self.of.ranges):
                break
        return []

    def _drawn(self, name: str, even: bool) -> int:
        low, high = self.of.ranges[name]
        if name in self.of.powers:
            return 1 << self.chance.randint(low.bit_length() - 1, high.bit_length() - 1)
        return self.size(low, high, even)

    def size(self, low: int, high: int, even: bool) -> int:
        """A size, log-uniform; `even`: a multiple of 16."""
        value = round(math.exp(self.chance.uniform(math.log(low), math.log(high))))
        return max(value // 16 * 16, low) if even and value >= 16 else min(max(value, low), high)

    def rows(self, dtype: str, sizes: Mapping[str, int]) -> int:
        """As many as read and write a log-uniform number of bytes of `moved`."""
        wanted = self.size(*self.moved, False)
        one, two = (self._bytes(self.problem(Point(dtype, (*sizes.items(), (self.of.rows, n)), False))) for n in (1, 2))
        return max(1, (wanted - one) // max(two - one, 1) + 1)

    def problem(self, point: Point) -> Problem:
        """The op at this point."""
        return self.op.problem(point.case(self.of), self.device)

    def _bytes(self, problem: Problem) -> int:
        return self.op.work(problem).bytes

    def needed(self, point: Point) -> int:
        """Bytes of the input sets that the kernel clock rotates through, and of what is put back for each candidate into what the op
        writes to."""
        problem = self.problem(point)
        size = max(held(problem), 1)
        kept = sum(m.nbytes for n in self.op.mutates if (m := problem.get(n)) is not None)
        return (size + KEPT * kept) * sets_needed(size, self.device.l2_bytes)

    def _bounded(self, point: Point, times: int) -> bool:
        """Whether its time, its memory and, where every size is drawn, its bytes (at most `times` those asked for) are small enough."""
        problem = self.problem(point)
        work, sheet = self.op.work(problem), lookup(self.device.name)
        units = {u: n for u, n in work.ops.items() if sheet is not None and u in sheet.rates}
        quick = sheet is None or floor_seconds(sheet, work.bytes, units) <= LONGEST_S
        return quick and self.needed(point) <= self.memory and (bool(self.of.rows) or work.bytes <= times * self.moved[1])


def held(problem: Problem) -> int:
    """Bytes of all its tensors."""
    return sum(m.nbytes for _, m in problem.tensors if m is not None)
