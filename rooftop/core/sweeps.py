"""Which numbers of an op are sizes: from the contract, for `rooftop sweep`, which measures between the cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftop.core.spec import Case

PRODUCT = {"M": (16, 1 << 18), "N": (16, 1 << 18), "K": (16, 1 << 18)}  # the sizes of a matrix product


@dataclass(frozen=True)
class Sizes:
    """The sizes of an op and their ranges.

    inputs   (dtype, **sizes) -> the inputs of a case, as in `Case`
    ranges   size -> (least, most)
    rows     the size that is computed from the bytes of a point and the other sizes; the bytes must grow linearly with it. "": every size
             is drawn
    independent  the size that counts rows which do not depend on each other, where `rows` names none: what `rooftop check --invariant`
    varies taken    (tensors, indices of rows in their order) -> the other tensors as they are for these rows alone (offsets of groups)
    models   size -> the model dimension that it stands for (a name of `rooftop.lab.timing.models.WIDTHS`)
    ways     sizes that are no extents, but count ways in which a tensor may lie in memory
    powers   sizes that are powers of two, such as the side of a block; their ranges start and end at one
    dtypes   of the first tensor, or of the values whose codes it holds
    axis     the size on the x axis of a drawing; "": the geometric mean of all"""

    inputs: Callable[..., Mapping[str, Any]]
    ranges: Mapping[str, tuple[int, int]]
    rows: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    powers: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("bf16", "f32")
    axis: str = ""
    independent: str = ""
    taken: Callable[[Mapping[str, Any], list[int]], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.ranges or not self.dtypes:
            raise ValueError("sizes need at least one range and one dtype")
        for name, (low, high) in self.ranges.items():
            if not 1 <= low <= high:
                raise ValueError(f"the range of {name} is {low} to {high}; it must start at 1 or above and not end before it starts")
        for name in (*self.models, *self.powers, *self.ways, *filter(None, (self.rows, self.axis, self.independent))):
            if name not in self.ranges:
                raise ValueError(f"{name!r} is no size; there are {', '.join(self.ranges)}")
        for name in self.powers:
            low, high = self.ranges[name]
            if low & (low - 1) or high & (high - 1):
                raise ValueError(f"{name} is {low} to {high}; it is a power of two, and its range must begin and end at one")

    @property
    def drawn(self) -> tuple[str, ...]:
        """The sizes that are drawn: all except `rows`."""
        return tuple(n for n in self.ranges if n != self.rows)

    @property
    def counted(self) -> str:
        """The size that counts rows, which do not depend on each other; "": there is none."""
        return self.rows or self.independent

    def case(self, dtype: str, sizes: Mapping[str, int]) -> Case:
        return Case(" ".join(f"{n} {v}" for n, v in sizes.items()), self.inputs(dtype, **sizes), frozenset({"sweep"}))


def first_of(*tensors: str) -> Callable[[Any], Mapping[str, int | tuple[int, ...]]]:
    """For `Judging.rows`: the first dimension of these tensors counts rows; of all tensors, if none is named."""
    return lambda problem: {n: 0 for n, m in problem.tensors if m is not None and m.shape and (n in tensors or not tensors)}


def each_element(_: Any) -> Mapping[str, int | tuple[int, ...]]:
    """For `Judging.rows`: no result depends on another element, so that no config need be chosen for a fixed number; two kernels may
    differ."""
    return {}
