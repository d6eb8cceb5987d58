"""The work of one rank between two messages: encode rows, add up messages, decode. Plain torch where there is no kernel; the same bits
either way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rooftop.core.argument_checks import number
from rooftop.core.spec import dtype_of
from rooftop.formats import random_bits
from rooftop.formats import wire as wires
from rooftop.ranks import kernels
from rooftop.ranks import rank_launches as launches
from rooftop.ranks.rank_launches import How

WAVES = 4  # blocks a multiprocessor


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
        return cls(wires.wire_of(what, wire, group_size, hadamard, stochastic), group_size, hadamard, stochastic, random_bits.signed(seed))

    def said(self) -> str:
        """For the text that ranks compare: a seed that nothing uses may differ."""
        seed = f", seed={self.seed}" if self.stochastic else ""
        return f"wire={self.wire.name!r}, group_size={self.group}, hadamard={self.hadamard}, stochastic={self.stochastic}{seed}"

    def facts(self) -> list[int]:
        """For the flags by which kernels compare their calls."""
        return [
            list(wires.WIRES).index(self.wire.name), self.group, int(self.hadamard) + 2 * int(self.stochastic),
            self.seed if self.stochastic else 0
        ]

    def bytes(self, count: int) -> int:
        return wires.message_bytes(self.wire, self.group, count)

    def how(self) -> How:
        return How(self.wire.name, self.group, self.hadamard, self.stochastic)


def encode(x: Tensor, o: Options, rows: int, count: int, start: int = 0, into: Tensor | None = None) -> Tensor:
    """Messages [rows, bytes] of a tensor's elements, `count` a row; zeros where there are no more. `start`: index of the random bits of the
    first. `into`: memory for them, which may be a peer's."""
    x = x.reshape(-1).contiguous()  # a view of every second element stays one when it is made flat
    if (index := _gpu(x)) is not None:
        messages = torch.empty(rows, o.bytes(count), dtype=torch.uint8, device=x.device) if into is None else into
        size = wires.padded(count, o.group)
        kernels.run(
            ("encode", o.how(), x.dtype, rows, count, x.numel(), start),
            lambda sms: launches.encode_rows(
                o.how(), dtype_of(x.dtype), rows, count, x.numel(), size, WAVES * sms, x="x", messages="messages", start=start
            ),
            index, {"x": x, "messages": messages, "seed": o.seed},
        )
        return messages
    filled = torch.nn.functional.pad(x, (0, rows * count - x.numel())).view(rows, count)
    made = _encoded(wires.rows_of(filled, o.group, o.hadamard), o, start)
    return made if into is None else into.view(made.shape).copy_(made)


def _encoded(v: Tensor, o: Options, start: int) -> Tensor:
    random = random_bits.halves(o.seed, v.numel(), v.device, start).view(v.shape) if o.stochastic else None
    return wires.encode(v, o.wire, o.group, random)


def add(messages: Tensor, o: Options, count: int, start: int = 0) -> Tensor:
    """The message [bytes] of the sum of messages [W, bytes], added in their order."""
    if (index := _gpu(messages)) is not None:
        found = torch.empty_like(messages[0])
        ranks, size = len(messages), wires.padded(count, o.group)
        kernels.run(
            ("add", o.how(), ranks, count, start),
            lambda sms: launches.add_messages(
                o.how(), ranks, size, o.bytes(count), WAVES * sms, messages="messages", sums="sums", start=start
            ),
            index, {"messages": messages, "sums": found, "seed": o.seed},
        )
        return found
    return _encoded(wires.total(wires.values(messages, o.wire, o.group, count))[None], o, start)[0]


def decode(messages: Tensor, o: Options, count: int, most: int, dtype: torch.dtype) -> Tensor:
    """The first `most` elements of messages [R, bytes] of `count` each, one after another."""
    return _decoded(messages, o, 1, count, most, dtype)


def decode_sum(messages: Tensor, o: Options, count: int, dtype: torch.dtype) -> Tensor:
    """[count]: messages [W, bytes] added in their order in float32, rounded once."""
    return _decoded(messages, o, len(messages), count, count, dtype)


def _decoded(messages: Tensor, o: Options, ranks: int, count: int, most: int, dtype: torch.dtype) -> Tensor:
    rows = len(messages) // ranks
    if (index := _gpu(messages)) is not None:
        out = torch.empty(most, dtype=dtype, device=messages.device)
        size, stride = wires.padded(count, o.group), o.bytes(count)
        kernels.run(
            ("decode", o.how(), dtype, ranks, rows, count, most),
            lambda sms: launches.decode_rows(
                o.how(), dtype_of(dtype), ranks, rows, count, most, size, stride, WAVES * sms, messages="messages", out="out"
            ),
            index, {"messages": messages, "out": out},
        )
        return out
    v = wires.values(messages, o.wire, o.group, count)
    found = wires.restored(v if ranks == 1 else wires.total(v)[None], o.group, o.hadamard, count)
    return found.reshape(-1)[:most].to(dtype)


def _gpu(x: Tensor) -> int | None:
    """The GPU whose kernels take it, or None: plain torch does."""
    if not x.is_cuda or x.numel() == 0 or x.data_ptr() % x.element_size():
        return None
    return x.device.index if kernels.usable(x.device.index) else None
