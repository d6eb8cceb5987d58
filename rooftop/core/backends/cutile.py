"""cuTile: a module whose `launches` name functions over `ct.load`, `ct.store`, `ct.mma`, ... They are compiled in another process by
cuda-tile and tileiras."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from rooftop.core.backends.aot import AotImplementation, constant
from rooftop.core.cubins import Cubin
from rooftop.core.spec import Launch, Meta, Problem, View

OPTIONS = ("num_ctas", "occupancy", "opt_level", "num_worker_warps")  # of `ct.kernel`
OLDEST = (13, 3)  # tileiras of CUDA 13.2 refuses Hopper
LANGUAGE = (1, 7)  # cuda-tile, as in pyproject.toml


class CutileImplementation(AotImplementation):
    """A module like Triton's. Its kernels are undecorated functions that use `ct` from `rooftop.kernels._device.cutile`. Their parameters
    are arrays, numbers (32-bit) or, annotated `ct.Constant[...]`, constants. An array is given by name, or as a `View` of one with another
    shape and strides. `Launch.options`: those of `ct.kernel`.

    A cubin assumes of an array its dtype and rank, which strides are 1, and whether its address, its other strides and its extents are
    divisible by 16 bytes; it does not depend on shapes."""

    backend = "cutile"
    language = "cuTile"
    package = "cuda.tile"
    distributions = ("cuda-tile", "nvidia-cuda-tileiras")
    child = "rooftop.core.backends.cutile_child"
    part = "cutile"
    extra = "cutile"

    def refuses(self, target: str, compiler: str) -> str | None:
        said = re.search(r"cuda-tile (\d+)\.(\d+)", compiler)
        if said is not None and (int(said[1]), int(said[2])) < LANGUAGE:
            return f"cuda-tile {said[1]}.{said[2]} is too old; {self.install} brings 1.7 or later"
        said = re.search(r"nvidia-cuda-tileiras (\d+)\.(\d+)", compiler)
        if said is not None and (int(said[1]), int(said[2])) < OLDEST and target.startswith("sm_9"):
            return f"tileiras {said[1]}.{said[2]} compiles nothing for Hopper ({target}); {self.install} brings 13.3 or later"
        return None

    def driver(self) -> str:
        return "cuTile's cubins need driver 580 or later, and what a newer tileiras makes may need a newer one: update the driver"

    def job(self, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> dict[str, Any]:
        if unknown := set(launch.options) - set(OPTIONS):
            raise TypeError(
                f"{launch.kernel.__name__}: options are {', '.join(sorted(unknown))}; a launch of cuTile takes {', '.join(OPTIONS)}"
            )
        values = [_value(name, launch, tensors, problem) for name in _parameters(launch)]
        return {"function": launch.kernel.__name__, "parameters": values, "options": dict(launch.options)}

    def ready(self, launch: Launch, cubin: Cubin, tensors: Mapping[str, Meta | None], problem: Problem) -> Launch:
        """The parameters of the cubin's kernel: for an array the address, each extent and each stride; none for a constant."""
        args: dict[str, Any] = {}
        types: list[str] = []
        for name in _parameters(launch):
            value, fact = launch.args[name], _value(name, launch, tensors, problem)
            if "array" in fact:
                meta = _tensor(value, tensors)
                assert meta is not None
                index = "i64" if fact["array"]["wide"] else "i32"
                args[name] = value.tensor if isinstance(value, View) else value
                args |= {f"{name}.shape{i}": n for i, n in enumerate(meta.shape)}
                args |= {f"{name}.stride{i}": n for i, n in enumerate(steps(meta))}
                types += ["ptr", *[index] * (2 * len(meta.shape))]
            elif "scalar" in fact:
                args[name] = value
                types.append(fact["scalar"])
        return Launch("", launch.grid, args, types=tuple(types), cluster=(int(launch.options.get("num_ctas") or 1),))

    def verify(self, ready: Launch, cubin: Cubin) -> None:
        """If the compiler used TMA, the driver must encode the tensor maps: the cubin contains code for that, and its kernel has additional
        parameters."""
        if b".nv.host" not in cubin.code:
            super().verify(ready, cubin)


def _parameters(launch: Launch) -> list[str]:
    """The kernel's arguments by parameter name. Raises TypeError if the launch gives others."""
    takes = list(inspect.signature(launch.kernel).parameters)
    if set(takes) != set(launch.args):
        raise TypeError(f"{launch.kernel.__name__} takes {', '.join(takes)}; the launch gives {', '.join(launch.args)}")
    return takes


def _tensor(value: Any, tensors: Mapping[str, Meta | None]) -> Meta | None:
    if isinstance(value, View) and (whole := tensors.get(value.tensor)) is not None:
        if value.offset:
            raise TypeError(f"a view of {value.tensor} begins at element {value.offset}; an array begins where its tensor does")
        return Meta(value.shape, whole.dtype, value.strides, whole.align)
    return tensors.get(value) if isinstance(value, str) else None


def _value(name: str, launch: Launch, tensors: Mapping[str, Meta | None], problem: Problem) -> dict[str, Any]:
    """The description of one argument for the compiler: {"array": facts}, {"constant": value} or {"scalar": type}."""
    value = launch.args[name]
    if "Constant" in str(inspect.get_annotations(launch.kernel).get(name, "")):
        return {"constant": constant(name, value)}
    if (meta := _tensor(value, tensors)) is not None:
        return {"array": array(meta)}
    if isinstance(value, str):
        if value not in problem.runtime_options:
            raise TypeError(f"{launch.kernel.__name__}: {name} is {value!r}, which names no tensor here")
        return {"scalar": "f32" if value in problem.runtime_floats else "i32"}
    return {"scalar": "f32" if isinstance(value, float) else "i32"}


def steps(meta: Meta) -> tuple[int, ...]:
    """The strides, with those of dimensions of extent 1 replaced by the strides of a dense tensor: they have no effect, and other values
    would hide what is known of the rest. They are not rounded up: the compiler would then use TMA for rows that do not end on 16 bytes, and
    TMA would store beyond their ends."""
    found: list[int] = []
    inner = 1
    for n, step in zip(reversed(meta.shape), reversed(meta.strides), strict=True):
        if n == 1:
            step = 1 if not found else inner * found[-1]
        found.append(step)
        inner = n
    return tuple(reversed(found))


def array(meta: Meta) -> dict[str, Any]:
    """The facts of an array on which its cubin depends. Of a stride or extent only the divisibility by 16 bytes matters, so that few cubins
    serve many shapes."""
    unit = max(1, 16 // meta.itemsize)

    def divides(n: int) -> int:
        return unit if n % unit == 0 else 1

    return {
        "dtype": meta.dtype, "rank": len(meta.shape), "wide": meta.span >= 2**31 or meta.numel >= 2**31, "align": min(meta.align, 16),
        "ones": [s == 1 for s in steps(meta)], "strides": [divides(s) for s in steps(meta)], "extents": [divides(n) for n in meta.shape],
        "overlaps": any(s == 0 and n > 1 for s, n in zip(meta.strides, meta.shape, strict=True)),
    }
