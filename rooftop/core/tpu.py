"""Google's TPUs as targets of kernels: the facts of a chip that a kernel may use, and where the toolchain is found.

Figures are from `jax.experimental.pallas.tpu.get_tpu_info_for_chip` of jax 0.10.2; nothing here imports jax. A v5p has two cores, between
which libtpu divides the parallel dimensions of a grid: its rates are those of both, its VMEM that of one. The clock is derived from those
figures: operations a second over operations a cycle. For v6e they are inconsistent (its two units of 256 x 256 would have to run at 3.5
GHz), so its clock is not stated."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rooftop.core import settings
from rooftop.core.names import extra
from rooftop.core.spec import Device

EXTRA = f"{extra('tpu')}, with Python 3.11; or make npu-env there"


@dataclass(frozen=True)
class Tpu(Device):
    """A chip as one device. `sms` is 1 and `shared_per_block` is the VMEM that a kernel may use, so that code for a `Device` can read
    it."""

    topology: str = ""  # as libtpu calls four of them
    kind: str = ""  # as jax calls it
    vmem_bytes: int = 0  # on-chip memory that kernels compute from
    hbm_bytes_per_second: float = 0.0
    matrix_units: int = 0
    matrix_side: int = 0  # a unit multiplies side x side bfloat16 a cycle
    bf16_per_second: float = 0.0  # operations; a multiplication and an addition are two
    clock_hz: float | None = None

    @property
    def target(self) -> str:
        return self.name.removeprefix("TPU ")

    @property
    def products_a_cycle(self) -> int | None:
        """bfloat16 products that the matrix units make in a cycle at most; None if unknown."""
        return self.matrix_units * self.matrix_side**2 if self.clock_hz else None


def _tpu(name: str, topology: str, kind: str, vmem: int, hbm: float, units: int, side: int, bf16: float, clock: float | None) -> Tpu:
    return Tpu(f"TPU {name}", 0, 1, vmem * 3 // 4, 0, (), topology, kind, vmem, hbm, units, side, bf16, clock)


TPUS: Mapping[str, Tpu] = MappingProxyType(
    {
        t.target: t
        for t in (
            _tpu("v5e", "v5e:2x2", "TPU v5 lite", 128 << 20, 820e9, 4, 128, 197e12, 1.5e9),
            _tpu("v5p", "v5p:2x2x1", "TPU v5", 64 << 20, 2460e9, 8, 128, 459e12, 1.75e9),
            _tpu("v6e", "v6e:2x2", "TPU v6 lite", 128 << 20, 1640e9, 2, 256, 920e12, None),
        )
    }
)
ANY = TPUS["v5e"]  # used if no chip is named


def python(folder: str = ".venv-tpu", package: str = "jax") -> Path | None:
    """The Python interpreter with the toolchain: this one if it has it, else that of the checkout's environment; None if there is
    neither."""
    if importlib.util.find_spec(package) is not None:
        return Path(sys.executable)
    found = settings.CHECKOUT / folder / "bin" / "python"
    return found if found.is_file() else None


def absent() -> str | None:
    """None, or that jax is not installed and how to install it."""
    return None if python() else f"package jax is not installed ({EXTRA})"


@dataclass(frozen=True)
class On:
    """Where a kernel runs. `interpret`: False (compiled), True (the plain interpreter), or the parameters of the TPU interpreter. `vmem`:
    bytes that it may take. `mesh`: four devices in a ring, axis "x"."""

    interpret: Any
    vmem: int
    mesh: Any = None
