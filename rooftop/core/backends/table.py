"""The backends: what a kernel file's name and suffix say that it is written in, and what reads it. Adding one is a class and a line here."""

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
from rooftop.core.spec import Problem

SM = r"sm(\d+)a?"  # the architecture of an NVIDIA GPU, in a file's name: sm90 is compiled for sm_90a


@dataclass(frozen=True)
class Backend:
    """One toolchain. A kernel file is called ``<op>[_bwd][__<variant>]__<backend>[_<target>]<suffix>``."""

    name: str
    language: str  # as people call it
    suffix: str
    implementation: type[Implementation]
    targets: str = SM  # what its file names may say it is for: a regular expression; a group of digits in it is the lowest architecture
    reads: str = "it reads sm80, sm89, sm90, ..."
    arch: int = 80  # of a file that does not say

    def arch_of(self, target: str | None) -> int:
        """The lowest architecture that a file is for. Raises RegistryError for a target that is none of this backend's."""
        if target is None:
            return self.arch
        match = re.fullmatch(self.targets, target)
        if match is None:
            raise RegistryError(f"{target!r} is no target of {self.name}: {self.reads}")
        return int(match[1]) if match.groups() else self.arch


# In the order in which they are asked where nothing else decides (`Implementation.preference`): Triton, which is written for every shape, before what is
# written for some; torch, which is what a kernel must beat, last.
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


def preference(implementation: Implementation, problem: Problem) -> tuple[int, int, str]:
    """The key by which implementations are sorted before they are asked: how much each says that it is to be preferred for this problem (`prefer` of a
    head, `prefers` of a module: what measurements showed), then by backend, then by name. The first that takes the problem runs."""
    return -implementation.prefers(problem), _ORDER.get(implementation.backend, len(_ORDER)), implementation.name
