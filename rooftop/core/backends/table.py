"""The backends: the names and suffixes of their kernel files, and the classes that read them. A new backend is a class and a line here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.backends.cute import CuteImplementation
from rooftop.core.backends.cutile import CutileImplementation
from rooftop.core.backends.pallas import PallasImplementation
from rooftop.core.backends.torch_calls import TorchImplementation
from rooftop.core.backends.triton import GluonImplementation, TritonImplementation
from rooftop.core.implementation import Implementation
from rooftop.core.names import RegistryError

SM = r"sm(\d+)a?"  # the architecture of an NVIDIA GPU, in a file's name: sm90 is compiled for sm_90a


@dataclass(frozen=True)
class Backend:
    """One toolchain. Its kernel files are named ``<op>[_bwd][__<variant>]__<backend>[_<target>]<suffix>``."""

    name: str
    language: str  # its usual name
    suffix: str
    implementation: type[Implementation]
    targets: str = SM  # the targets that its file names may have: a regular expression; a group of digits in it is the lowest architecture
    reads: str = "it reads sm80, sm89, sm90, ..."
    arch: int = 80  # of a file without a target

    def arch_of(self, target: str | None) -> int:
        """The lowest architecture that a file supports. Raises RegistryError for a target that this backend does not have."""
        if target is None:
            return self.arch
        match = re.fullmatch(self.targets, target)
        if match is None:
            raise RegistryError(f"{target!r} is no target of {self.name}: {self.reads}")
        return int(match[1]) if match.groups() else self.arch


# The order among the kernels of an op for which no `choose.py` has a function: Triton, whose kernels support every shape, before kernels
# for some shapes only; torch, which a kernel must beat, last.
BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        b.name: b
        for b in (
            Backend("triton", "Triton", ".py", TritonImplementation),
            Backend("cuda", "CUDA C++", ".cu", CudaImplementation),
            Backend("gluon", "Gluon", ".py", GluonImplementation, arch=90),
            Backend("torch", "torch", ".py", TorchImplementation, targets="(?!)", reads="it has none", arch=0),
            Backend("cutile", "cuTile", ".py", CutileImplementation),
            Backend("cute", "CuTe DSL", ".py", CuteImplementation),
            Backend("pallas", "Pallas", ".py", PallasImplementation, targets="tpu", reads="it reads tpu", arch=0),
        )
    }
)
_ORDER = {name: place for place, name in enumerate(BACKENDS)}


def order(implementation: Implementation) -> tuple[int, str]:
    """The sort key of implementations where nothing else decides: the backend, then the name."""
    return _ORDER.get(implementation.backend, len(_ORDER)), implementation.name
