"""What kernels for TPUs share: jax, imported when a kernel runs and not before; where it runs; tiles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class _Later:
    """A module that is imported at its first use: the files of kernels are read where there is no jax."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


jax, jnp, lax = _Later("jax"), _Later("jax.numpy"), _Later("jax.lax")
pl, pltpu = _Later("jax.experimental.pallas"), _Later("jax.experimental.pallas.tpu")
LANES = 128  # words of a row of a vector register
WORD = {"f32": 8, "i32": 8, "bf16": 16, "i16": 16, "i8": 32, "u8": 32}  # rows of a tile of HBM and VMEM by dtype: 8 of 32 bits, so that 4 KiB are a tile


@dataclass(frozen=True)
class On:
    """Where a kernel runs. `interpret`: False (compiled), True (the plain interpreter), or the parameters of the TPU interpreter. `vmem`: bytes that it may
    take. `mesh`: four devices in a ring, axis "x"."""

    interpret: Any
    vmem: int
    mesh: Any = None


def call(kernel: Callable[..., None], on: On, *, name: str, order: Sequence[str] = (), collective: int | None = None, **more: Any) -> Any:
    """`pl.pallas_call` with what every kernel of the house says. `order`: of each dimension of the grid, "parallel" or "arbitrary" (one after the other)."""
    params: dict[str, Any] = {"vmem_limit_bytes": on.vmem}
    if order:
        params["dimension_semantics"] = tuple(order)
    if collective is not None:
        params |= {"collective_id": collective, "has_side_effects": True}
    return pl.pallas_call(kernel, interpret=on.interpret, compiler_params=pltpu.CompilerParams(**params), name=name, **more)


def up(n: int, to: int) -> int:
    """The least multiple of `to` that is at least `n`."""
    return -(-n // to) * to


def tile(extent: int, step: int, most: int) -> int:
    """The size of equal tiles of an extent: multiples of `step`, at most `most`, as few as there can be."""
    count = max(1, -(-extent // most))
    return up(max(1, -(-extent // count)), step)


def like(x: Any, dtype: Any = None, *shape: int) -> Any:
    """What a kernel returns: the shape and dtype of `x`, or others."""
    return jax.ShapeDtypeStruct(shape or x.shape, dtype or x.dtype)


def padded(x: Any, *shape: int) -> Any:
    """`x` with zeros behind it up to this shape."""
    return x if tuple(x.shape) == shape else jnp.pad(x, [(0, want - n) for n, want in zip(x.shape, shape, strict=True)])
