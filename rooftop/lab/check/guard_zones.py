"""Memory that tells of misuse."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Meta

GUARD = 256  # bytes before and after every output


class Guarded:
    """An output in a buffer of its own, between guard zones; everything but its elements must keep the poison."""

    def __init__(self, meta: Meta, device: Any, poison: int, guard: int = GUARD) -> None:
        import torch

        size = DTYPES[meta.dtype].bytes
        guard += meta.align % 16  # an input that starts off a 16-byte boundary does so here too
        self._poison, self._guard = poison, guard
        self._bytes = torch.full((2 * guard + meta.span * size,), poison, dtype=torch.uint8, device=device)
        flat = self._bytes[guard : guard + meta.span * size].view(getattr(torch, DTYPES[meta.dtype].torch))
        self.tensor = flat.as_strided(meta.shape, meta.strides)
        self._meta = meta

    def stray(self) -> str | None:
        """Where something outside the elements was written, if anything was."""
        import torch

        size, guard = DTYPES[self._meta.dtype].bytes, self._guard
        if self._meta.contiguous:  # nothing lies between the elements: the guard zones alone can tell
            if not guard:
                return None
            ends = torch.cat((self._bytes[:guard], self._bytes[-guard:]))
            bad = ends != self._poison
            if not bool(bad.any()):
                return None
            first = int(bad.to(torch.int8).argmax())
            first = first - guard if first < guard else self._meta.span * size + first - guard
            return f"{int(bad.sum())} bytes outside the output were written, the first at byte {first} of its {self._meta.span * size}"
        inside = torch.zeros(self._meta.span, dtype=torch.bool, device=self._bytes.device)
        if self._meta.numel:
            inside.as_strided(self._meta.shape, self._meta.strides).fill_(True)
        mask = torch.ones_like(self._bytes, dtype=torch.bool)
        mask[guard : guard + self._meta.span * size] = ~inside.repeat_interleave(size)
        bad = mask & (self._bytes != self._poison)
        if not bool(bad.any()):
            return None
        first = int(bad.to(torch.int8).argmax()) - guard
        return f"{int(bad.sum())} bytes outside the output were written, the first at byte {first} of its {self._meta.span * size}"
