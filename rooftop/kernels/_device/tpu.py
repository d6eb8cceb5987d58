"""Shared by the kernels for TPUs: jax, which is imported when a kernel runs and not before; where a kernel runs; tiles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from rooftop.core.tpu import On


class _Later:
    """A module that is imported at its first use: kernel files are loaded without jax too."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


jax, jnp, lax = _Later("jax"), _Later("jax.numpy"), _Later("jax.lax")
pl, pltpu = _Later("jax.experimental.pallas"), _Later("jax.experimental.pallas.tpu")
SUBLANES, LANES = 8, 128  # rows of a vector register, and words of a row
# rows of a tile of HBM and VMEM by dtype: 8 of 32 bits, so that 4 KiB are a tile
WORD = {"f32": 8, "i32": 8, "bf16": 16, "i16": 16, "i8": 32, "u8": 32}


def call(kernel: Callable[..., None], on: On, *, name: str, order: Sequence[str] = (), collective: int | None = None, **more: Any) -> Any:
    """`pl.pallas_call` with the options that all kernels share. `order`: for each dimension of the grid, "parallel" or "arbitrary"
    (sequential)."""
    params: dict[str, Any] = {"vmem_limit_bytes": on.vmem}
    if order:
        params["dimension_semantics"] = tuple(order)
    if collective is not None:
        params |= {"collective_id": collective, "has_side_effects": True}
    return pl.pallas_call(kernel, interpret=on.interpret, compiler_params=pltpu.CompilerParams(**params), name=name, **more)


def up(n: int, to: int) -> int:
    """The smallest multiple of `to` that is at least `n`."""
    return -(-n // to) * to


def tile(extent: int, step: int, most: int) -> int:
    """The size of equal tiles of an extent: multiples of `step`, at most `most`, as few tiles as possible."""
    count = max(1, -(-extent // most))
    return up(max(1, -(-extent // count)), step)


def like(x: Any, dtype: Any = None, *shape: int) -> Any:
    """The result of a kernel: the shape and dtype of `x`, or others."""
    return jax.ShapeDtypeStruct(shape or x.shape, dtype or x.dtype)


def padded(x: Any, *shape: int) -> Any:
    """`x` padded with zeros to this shape."""
    return x if tuple(x.shape) == shape else jnp.pad(x, [(0, want - n) for n, want in zip(x.shape, shape, strict=True)])


REGISTERS = 16  # of 64, each 8 x 128 words: the size of a piece of a block, so that it and its intermediate results stay in registers


def strips(rows: int, step: int, body: Callable[[Any, int], None]) -> None:
    """Calls `body(start, n)` for every `step` rows of a block, and for the remainder."""
    whole, rest = divmod(rows, step)
    if whole:
        lax.fori_loop(0, whole, lambda i, _: (body(pl.multiple_of(i * step, step), step), 0)[1], 0)  # type: ignore[func-returns-value]
    if rest:
        body(whole * step, rest)


def pieces(columns: int, rows: int, body: Callable[[Any, int, Any], Any], carry: Any = 0) -> Any:
    """carry = body(start, n, carry) for pieces of a strip of rows, along its columns; returns the last carry. A piece fills `REGISTERS` in
    32 bits."""
    width = max(LANES, REGISTERS * 1024 // up(rows, SUBLANES) // LANES * LANES)
    whole, rest = divmod(columns, width)
    if whole:
        carry = lax.fori_loop(0, whole, lambda i, kept: body(pl.multiple_of(i * width, width), width, kept), carry)
    return body(whole * width, rest, carry) if rest else carry


def _folded(v: Any, pair: Callable[[Any, Any], Any]) -> Any:
    """[rows, a multiple of 128] as [rows, 128], register by register: nothing moves across lanes."""
    parts = [v[:, i : i + LANES] for i in range(0, v.shape[1], LANES)]
    while len(parts) > 1:
        parts = [pair(*two) if len(two) == 2 else two[0] for two in (parts[i : i + 2] for i in range(0, len(parts), 2))]
    return parts[0]


def added(total: Any, v: Any) -> Any:
    """Adds the columns of v to `total` [rows, 128], whose lanes are summed at the end."""
    whole = v.shape[1] // LANES * LANES
    if whole:
        total = total + _folded(v[:, :whole], lambda a, b: a + b)
    if whole == v.shape[1]:
        return total
    rest = jnp.sum(v[:, whole:], 1, keepdims=True)
    return total + jnp.where(lax.broadcasted_iota(jnp.int32, total.shape, 1) == 0, rest, 0.0)


def larger(most: Any, v: Any) -> Any:
    """The same for the maximum."""
    whole = v.shape[1] // LANES * LANES
    if whole:
        most = jnp.maximum(most, _folded(v[:, :whole], lambda a, b: jnp.maximum(a, b)))
    return most if whole == v.shape[1] else jnp.maximum(most, jnp.max(v[:, whole:], 1, keepdims=True))
