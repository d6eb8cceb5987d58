"""The parts of a kernel's head: parameters, launches, and the errors of heads. docs/head.md describes the format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

RANGES: Mapping[str, tuple[int, int]] = {
    "i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1), "i64": (-(2**63), 2**63 - 1), "u64": (0, 2**64 - 1)
}
BRACES = re.compile(r"\{([^{}]*)\}")  # an expression in a kernel's name


class HeadError(ValueError):
    """A head is missing, malformed or does not fit the op. The text names the file and what is accepted."""


class Unfit(HeadError):
    """The head does not support this problem. (Any other HeadError means that the head itself is wrong.)"""


@dataclass(frozen=True)
class TensorArg:
    name: str
    dtype: str  # of DTYPES, or "T"
    dims: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class NumberArg:
    name: str
    type: str
    expression: str


@dataclass(frozen=True)
class MapArg:
    """A tensor map (`rooftop.core.spec.TensorMap`) of one of the op's tensors or of scratch memory; its numbers are expressions."""

    name: str
    tensor: str
    box: tuple[str, ...]
    swizzle: str = "0"
    steps: tuple[str, ...] = ()
    dtype: str = ""
    promote: str = "256"
    fill: str = "zero"

    def expressions(self) -> tuple[str, ...]:
        return (*self.box, self.swizzle, *self.steps, self.promote)


Arg = TensorArg | NumberArg | MapArg


@dataclass(frozen=True)
class LaunchHead:
    kernel: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    when: str | None = None
    cluster: tuple[str, ...] = ()
    shared: str = "0"
    pdl: bool = False
    args: tuple[Arg, ...] | None = None
    cooperative: bool = False
