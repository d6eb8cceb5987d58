"""Plain copies, reads and writes, ours and torch's: what calibration times by size, and what is timed beside kernels to hold them
against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from rooftop.lab.timing.roofline import MEMORY, Kind
from rooftop.lab.timing.timer import Call, Candidate

if TYPE_CHECKING:
    import torch

THREADS = 256
BLOCKS_A_SM = 2048 // THREADS
FMA_CHAINS = 8
FMA_UNROLL = 32  # as in memory_ceilings.cu
NEVER = 0x5BD1E995
# name: vectors of 16 bytes a thread, hint of memory_ceilings.cu, whether the grid stays resident and strides
VARIANTS: Mapping[str, tuple[int, int, bool]] = {
    "1 vector a thread": (1, 0, False),
    "1 vector a thread, streaming": (1, 1, False),
    "4 vectors a thread": (4, 0, False),
    "4 vectors a thread, streaming": (4, 1, False),
    "8 vectors a thread, streaming": (8, 1, False),
    "4 vectors a thread, resident grid": (4, 0, True),
}
TORCH: Mapping[Kind, str] = {"copy": "torch copy_", "read": "torch sum", "write": "torch fill_"}


class Streams:
    """The calibration kernels, loaded on torch device ``device``, and the memory that they run on."""

    keeps = 0  # bytes of the arena, at most, that stay reserved: allocating and filling it takes longer than timing one size

    def __init__(self, device: int = 0) -> None:
        import torch

        from rooftop.core.compile import compile_cuda
        from rooftop.core.launch import Module

        self._torch, self._index = torch, device
        facts = torch.cuda.get_device_properties(device)
        self.sms = int(facts.multi_processor_count)
        self._arch = arch = facts.major * 10 + facts.minor
        self._module = Module(
            compile_cuda(
                MEMORY.read_text(encoding="utf-8"), name=str(MEMORY), kernels=kernels(),
                target=f"sm_{arch}a" if arch >= 90 else f"sm_{arch}",
            )
        )
        self._arena = torch.empty(0, dtype=torch.int32, device=f"cuda:{device}")
        self._sink = torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")

    def reserve(self, size: int) -> None:
        """Replaces the arena by ``size`` bytes of random words, unless it is large enough and no larger than it ``keeps``; calls made before
        still hold the old one."""
        if size <= self._arena.nbytes <= self.keeps:
            return
        self._arena = self._torch.empty(0, dtype=self._torch.int32, device=self._sink.device)
        self._torch.cuda.empty_cache()
        self._arena = self._torch.empty(size // 4, dtype=self._torch.int32, device=self._sink.device).random_()

    def launch(self, kernel: str, blocks: int, types: Sequence[str], args: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Call:
        """A call that launches ``kernel`` on torch's current stream; string values in ``args`` name tensors."""
        from rooftop.core.spec import Launch

        pdl = self._arch >= 90 and not kernel.startswith("fma")  # whose launches are long
        names = list(tensors)
        prepared = self._module.prepare(Launch(kernel, (blocks,), args, types=tuple(types), block=(THREADS,), pdl=pdl), names, self._index)
        current, index, kept = self._torch.cuda.current_stream, self._index, dict(tensors)
        addresses = [kept[n].data_ptr() for n in names]

        def call(_: Mapping[str, torch.Tensor] = kept) -> None:  # the call keeps its memory alive
            prepared(current(index).cuda_stream, addresses)

        return call

    def candidates(self, kind: Kind, total: int, sets: int, only: Sequence[str] = ()) -> list[Candidate]:
        """The ways to move ``total`` bytes (read + written; a multiple of 32), over ``sets`` places in the reserved memory: all of
        `VARIANTS` and torch's own, or those named in ``only``."""
        if kind not in get_args(Kind):
            raise ValueError(f"kind {kind!r} is not one of {', '.join(get_args(Kind))}")
        if unknown := set(only) - {*VARIANTS, TORCH[kind]}:
            raise ValueError(f"{', '.join(sorted(unknown))} is not one of {', '.join([*VARIANTS, TORCH[kind]])}")
        if total % 32 or total * sets > self._arena.nbytes:
            raise ValueError(f"{sets} sets of {total} bytes exceed the {self._arena.nbytes} reserved, or are no multiple of 32")
        words = total // (8 if kind == "copy" else 4)
        half = self._arena.numel() // 2
        places = []
        for i in range(sets):
            x = self._arena[i * words : (i + 1) * words]
            places.append((x, self._arena[half + i * words : half + (i + 1) * words] if kind == "copy" else x))
        field = [Candidate(name, [self._ours(kind, name, x, y) for x, y in places]) for name in VARIANTS if not only or name in only]
        if not only or TORCH[kind] in only:
            field.append(Candidate(TORCH[kind], [self._torchs(kind, x, y) for x, y in places]))
        return field

    def _ours(self, kind: Kind, name: str, x: torch.Tensor, y: torch.Tensor) -> Call:
        unroll, hint, resident = VARIANTS[name]
        vectors = x.nbytes // 16
        tiles = math.ceil(vectors / (unroll * THREADS))
        blocks = min(tiles, self.sms * BLOCKS_A_SM) if resident else tiles
        kernel = f"{kind}<{unroll}, {hint}>"
        if kind == "copy":
            return self.launch(kernel, blocks, ("ptr", "ptr", "i64"), {"x": "x", "y": "y", "n": vectors}, {"x": x, "y": y})
        if kind == "read":
            args = {"x": "x", "sink": "sink", "never": NEVER, "n": vectors}
            return self.launch(kernel, blocks, ("ptr", "ptr", "u32", "i64"), args, {"x": x, "sink": self._sink})
        return self.launch(kernel, blocks, ("ptr", "u32", "i64"), {"y": "y", "seed": NEVER, "n": vectors}, {"y": y})

    def _torchs(self, kind: Kind, x: torch.Tensor, y: torch.Tensor) -> Call:
        if kind == "copy":
            return lambda: y.copy_(x)
        if kind == "read":
            floats = x.view(self._torch.float32)
            return lambda: floats.sum()
        return lambda: y.fill_(NEVER)

    def empty(self) -> Call:
        return self.launch("empty", 1, (), {}, {})

    def fma(self, steps: int) -> tuple[Call, int]:
        """A call, and the fused multiply-adds that it makes."""
        blocks = self.sms * BLOCKS_A_SM
        out = self._torch.empty(blocks * THREADS, device=self._sink.device)
        args = {"out": "out", "c": -1.9, "steps": steps}
        call = self.launch(f"fma<{FMA_CHAINS}>", blocks, ("ptr", "f32", "i32"), args, {"out": out})
        return call, blocks * THREADS * FMA_CHAINS * FMA_UNROLL * steps


def kernels() -> list[str]:
    """Every kernel of memory_ceilings.cu that calibration uses, as name expressions."""
    shapes = {(unroll, hint) for unroll, hint, _ in VARIANTS.values()}
    return ["empty", f"fma<{FMA_CHAINS}>", *sorted(f"{kind}<{u}, {h}>" for kind in get_args(Kind) for u, h in shapes)]
