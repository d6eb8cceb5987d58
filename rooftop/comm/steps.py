"""The work of one rank between two messages: encode rows, add up messages, decode. Plain torch where there is no kernel; the same bits either way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rooftop.comm import wire as wires
from rooftop.ops import _random
from rooftop.ops._arguments import number


@dataclass(frozen=True)
class Options:
    """How elements travel. `seed` of the stochastic rounding; every rank's elements have bits of their own."""

    wire: wires.Wire
    group: int = 128
    hadamard: bool = False
    stochastic: bool = False
    seed: int = 0

    @classmethod
    def of(cls, what: str, wire: str, group_size: int, hadamard: bool, stochastic: bool, seed: int) -> Options:
        """Raises ValueError and TypeError as `wire_of`."""
        for name, flag in (("hadamard", hadamard), ("stochastic", stochastic)):
            if not isinstance(flag, bool):
                raise TypeError(f"{what}: {name} is {flag!r}; it must be True or False")
        number(what, "seed", seed, "a whole number", whole=True)
        return cls(wires.wire_of(what, wire, group_size, hadamard, stochastic), group_size, hadamard, stochastic, _random.signed(seed))

    def facts(self) -> list[int]:
        """For the header that ranks compare."""
        return [list(wires.WIRES).index(self.wire.name), self.group, int(self.hadamard) + 2 * int(self.stochastic), self.seed if self.stochastic else 0]

    def bytes(self, count: int) -> int:
        return wires.message_bytes(self.wire, self.group, count)


def encode(rows: Tensor, o: Options, start: int = 0) -> Tensor:
    """Messages [R, bytes] of rows [R, n] of any float dtype. `start`: index of the random bits of the first element."""
    v = wires.rows_of(rows, o.group, o.hadamard)
    return again(v, o, start)


def again(v: Tensor, o: Options, start: int = 0) -> Tensor:
    """Messages of float32 rows that are rotated already, in whole groups."""
    random = _random.halves(o.seed, v.numel(), v.device, start).view(v.shape) if o.stochastic else None
    return wires.encode(v, o.wire, o.group, random)


def add(messages: Tensor, o: Options, count: int) -> Tensor:
    """float32 [1, whole groups]: messages [W, bytes] added up in their order; still rotated."""
    return wires.total(wires.values(messages, o.wire, o.group, count))[None]


def restore(v: Tensor, o: Options, count: int, dtype: torch.dtype) -> Tensor:
    """Rotated back, cut to `count`, rounded to `dtype`."""
    return wires.restored(v, o.group, o.hadamard, count).to(dtype)


def decode(messages: Tensor, o: Options, count: int, dtype: torch.dtype) -> Tensor:
    """[R, count] of messages [R, bytes]."""
    return restore(wires.values(messages, o.wire, o.group, count), o, count, dtype)
