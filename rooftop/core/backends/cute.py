"""CuTe DSL: a module whose `launches` name functions that launch one kernel each. They are compiled in another process by
nvidia-cutlass-dsl."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from rooftop.core import parameters, tensor_maps
from rooftop.core.backends.aot import AotImplementation, constant
from rooftop.core.cubins import Cubin
from rooftop.core.head_parts import HeadError
from rooftop.core.head_text import shown
from rooftop.core.spec import Launch, Meta, Problem, TensorMap

TYPES = {"Int32": "i32", "Int64": "i64", "Float32": "f32"}  # of cutlass
OLDEST = (4, 3, 5)  # nvidia-cutlass-dsl, as in pyproject.toml


class CuteImplementation(AotImplementation):
    """A module like Triton's. `cute` and `cutlass` come from `rooftop.kernels._device.cute`. The file's annotations must be evaluated (no
    `from __future__ import annotations`), because the language reads them.

    `Launch.kernel` is a `@cute.jit` function that launches one `@cute.kernel` and passes it all of its own parameters in order. They are
    annotated `cute.Pointer` (a tensor's name), `cutlass.Int32`, `cutlass.Int64` or `cutlass.Float32` (a number or a runtime option), or
    `cutlass.Constexpr`. If the kernel has other parameters, TMA descriptors for example, `Launch.types` are given: `args` are then the
    kernel's own, as for CUDA C++, and those of the function are in `options["compile"]`.

    `Launch.block` gives the threads, `Launch.shared` the bytes that SmemAllocator may allocate; grid and block of the launch in the
    language are ignored, except that they set the number of threads that a block must have."""

    backend = "cute"
    language = "CuTe DSL"
    package = "cutlass"
    distributions = ("nvidia-cutlass-dsl",)
    child = "rooftop.core.backends.cute_child"
    part = "cute"
    extra = "cute"

    def refuses(self, target: str, compiler: str) -> str | None:
        said = re.search(r"nvidia-cutlass-dsl (\d+)\.(\d+)\.(\d+)", compiler)
        if said is not None and tuple(map(int, said.groups())) < OLDEST:
            return f"{said[0]} is too old; {self.install} brings {'.'.join(map(str, OLDEST))} or later"
        return None

    def environment(self, target: str) -> dict[str, str]:
        """Unset: with a folder of the user's, the cubin would not be in the child's working folder, and a dry run would not produce it."""
        return {"CUTE_DSL_ARCH": target, "CUTE_DSL_KEEP_CUBIN": "1", "CUTE_DSL_DUMP_DIR": ".", "CUTE_DSL_DRYRUN": "0"}

    def job(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> dict[str, Any]:
        takes, given = inspect.get_annotations(launch.kernel), launch.options.get("compile", launch.args)
        takes.pop("return", None)
        if any(isinstance(kind, str) for kind in takes.values()):
            raise TypeError(
                f"the annotations of {launch.kernel.__name__} are texts: a file of CuTe DSL says no `from __future__ import annotations`"
            )
        if set(takes) != set(given):
            raise TypeError(f"{launch.kernel.__name__} takes {', '.join(takes)}; the launch gives {', '.join(given)}")
        found = [self._parameter(name, str(kind), given[name], launch, tensors) for name, kind in takes.items()]
        return {"function": launch.kernel.__name__, "parameters": found}

    def _parameter(self, name: str, kind: str, value: Any, launch: Launch, tensors: Mapping[str, Meta | None]) -> dict[str, Any]:
        kind = kind.rpartition(".")[2].rstrip("'>")
        if kind == "Constexpr":
            return {"constant": constant(name, value)}
        if kind == "Pointer":
            meta = tensors.get(value)
            if meta is None:
                raise TypeError(f"{launch.kernel.__name__}: {name} is {value!r}, which names no tensor here")
            return {"pointer": meta.dtype, "align": min(meta.align, 16)}
        if kind not in TYPES:
            raise TypeError(f"{launch.kernel.__name__}: {name} is annotated {kind}; it is one of Pointer, Constexpr, {', '.join(TYPES)}")
        return {"scalar": TYPES[kind]}

    def ready(self, launch: Launch, cubin: Cubin, tensors: Mapping[str, Meta | None], problem: Problem) -> Launch:
        if launch.types:
            return replace(launch, kernel="", args={k: _full_map(v, tensors) for k, v in launch.args.items()}, options={})
        facts = self.job(launch, tensors, problem)["parameters"]
        given = [(name, fact) for name, fact in zip(inspect.get_annotations(launch.kernel), facts, strict=False) if "constant" not in fact]
        types = tuple("ptr" if "pointer" in fact else fact["scalar"] for _, fact in given)
        return replace(launch, kernel="", args={name: launch.args[name] for name, _ in given}, types=types, options={})

    def verify(self, ready: Launch, cubin: Cubin) -> None:
        super().verify(ready, cubin)
        must, given = parameters.block_threads(cubin.code, cubin.symbol), prod(ready.block)
        if must not in (None, given):
            raise HeadError(f"{shown(self.path)}: the blocks of its kernel must have {must} threads; Launch.block gives them {given}")


def _full_map(value: Any, tensors: Mapping[str, Meta | None]) -> Any:
    """A tensor map completed for the driver. Raises TypeError if TMA cannot copy the tensor."""
    if not isinstance(value, TensorMap):
        return value
    meta = tensors.get(value.tensor)
    if meta is None:
        raise TypeError(f"a map of {value.tensor!r}, and there is no such tensor")
    if reason := tensor_maps.refused(value, meta):
        raise TypeError(f"TMA does not copy {value.tensor}: {reason}")
    return tensor_maps.settled(value, meta)
