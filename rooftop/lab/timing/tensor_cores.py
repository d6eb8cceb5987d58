"""Loops of matrix multiply-adds that stay on the multiprocessor: what the tensor cores can do at best (lab/timing/tensor_ceilings.cu)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooftop.lab.timing.roofline import TENSOR
from rooftop.lab.timing.timer import Call

if TYPE_CHECKING:
    import torch

THREADS = 256
MMA_STEPS = 1024  # half a millisecond and more on an H100
# results that a warp's instructions of one step add to, by as many of the inner dimension as one takes: two sets of 64 x 64
MMA_TILE = 2 * 64 * 64
WGMMA_STEPS = 512
WGMMA_TILE = 16 * 64 * 256  # the same of a warp group: four tiles of four instructions
WGMMA_SHARED = 4 * (2 * 64 + 256) * 128  # bytes: tiles of 128 bytes of both groups' rows of A and of the columns of B


@dataclass(frozen=True)
class Unit:
    """`type` in tensor_ceilings.cu, how much of the inner dimension one instruction takes, and the architectures that have mma.sync for
    it."""

    type: str
    inner: int
    mma: frozenset[int]


UNITS: Mapping[str, Unit] = {
    "tensor-bf16": Unit("bf16", 16, frozenset({80, 86, 89, 90})),
    "tensor-f16": Unit("f16", 16, frozenset({80, 86, 89, 90})),
    "tensor-tf32": Unit("tf32", 8, frozenset({80, 86, 89, 90})),
    "tensor-f8": Unit("f8", 32, frozenset({89})),  # on sm_90 mma.sync converts to half precision first: wgmma has it
    "tensor-i8": Unit("i8", 32, frozenset({80, 86, 89, 90})),
}


def kernels(arch: int) -> dict[str, dict[str, str]]:
    """Unit -> name -> kernel, of those that an architecture has."""
    found: dict[str, dict[str, str]] = {}
    for name, unit in UNITS.items():
        mine = {"mma.sync": f"mma<{unit.type}>"} if arch in unit.mma else {}
        if arch == 90:
            mine["wgmma"] = f"wgmma<{unit.type}>"
        if mine:
            found[name] = mine
    return found


class Loops:
    """The kernels, loaded on torch device `device`."""

    def __init__(self, device: int = 0) -> None:
        import torch

        from rooftop.core.compile import compile_cuda
        from rooftop.core.launch import Module

        facts = torch.cuda.get_device_properties(device)
        self._torch, self._index, self._sms = torch, device, int(facts.multi_processor_count)
        self._arch = facts.major * 10 + facts.minor
        self._kernels = kernels(self._arch)
        names = [k for by_name in self._kernels.values() for k in by_name.values()]
        if not names:
            raise RuntimeError(f"no loop of multiply-adds is written for sm_{self._arch}")
        target = "sm_90a" if self._arch == 90 else f"sm_{self._arch}"
        self._module = Module(compile_cuda(TENSOR.read_text(encoding="utf-8"), name=str(TENSOR), kernels=names, target=target))
        self._out = torch.empty(self._sms * THREADS, device=f"cuda:{device}")

    def by_unit(self) -> dict[str, dict[str, tuple[Call, int]]]:
        """Unit -> name -> a call of one loop, and the multiply-adds that it makes."""
        return {
            unit: {name: self._call(kernel, UNITS[unit].inner) for name, kernel in mine.items()} for unit, mine in self._kernels.items()
        }

    def _call(self, kernel: str, inner: int) -> tuple[Call, int]:
        from rooftop.core.spec import Launch

        wide = kernel.startswith("wgmma")
        steps = WGMMA_STEPS if wide else MMA_STEPS
        launch = Launch(
            kernel, (self._sms,), {"out": "out", "steps": steps}, types=("ptr", "i32"), block=(THREADS,), shared=WGMMA_SHARED if wide else 0
        )
        prepared = self._module.prepare(launch, ["out"], self._index)
        current, index, addresses = self._torch.cuda.current_stream, self._index, [self._out.data_ptr()]

        def call(_: torch.Tensor = self._out) -> None:  # the call keeps its memory alive
            prepared(current(index).cuda_stream, addresses)

        return call, count(kernel, self._sms, steps, inner)


def count(kernel: str, blocks: int, steps: int, inner: int) -> int:
    """The multiply-adds of a launch."""
    each = THREADS // 128 * WGMMA_TILE if kernel.startswith("wgmma") else THREADS // 32 * MMA_TILE
    return blocks * steps * each * inner
