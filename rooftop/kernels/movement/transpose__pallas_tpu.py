"""Two dimensions exchanged, or a copy, by explicit DMA copies in the kernel: HBM to VMEM to HBM, two tiles in flight.

The tensor stays in HBM; the kernel starts the copy of the next tile before it waits for this one, and writes this one while the next
arrives. Tiles are transposed in VMEM, 128 x 128 words at a time by the transpose unit. HBM bandwidth is the limit: each byte is read once
and written once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, call, jnp, lax, like, pl, pltpu, tile, up

INTERPRETER = "tpu"  # it copies by hand: semaphores and races count
FIGURES = ("square 8192 bf16", "bytes 16384 u8", "heads 8x4096x32x128 bf16")  # compiled for figures
BLOCK = 1 << 20  # bytes of a tile of a copy at least
SIDE = 512  # of a tile that is transposed, in words


def supports(p: Problem) -> str | None:
    return None


def copies(p: Problem) -> bool:
    """Whether the columns stay contiguous."""
    return p["out"].strides[4] == 1 or p["x"].shape[4] == 1


def choose(p: Problem) -> dict[str, int]:
    *batch, rows, columns = p["x"].shape
    if not copies(p):
        return {"rows": tile(rows, LANES, SIDE), "columns": tile(columns, LANES, SIDE)}
    wide = tile(columns, LANES, 1 << 14)
    return {
        "rows": tile(prod(batch) * rows, WORD[p["x"].dtype], max(WORD[p["x"].dtype], BLOCK // (wide * p["x"].itemsize))), "columns": wide
    }


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """VMEM: two tiles that are loaded, and two that are stored."""
    words = c["rows"] * c["columns"]
    return (2 if copies(p) else 4) * words * p["x"].itemsize + (0 if copies(p) else 8 * words)


def _kernel(x: Any, out: Any, came: Any, goes: Any, arriving: Any, leaving: Any, *, turned: bool) -> None:
    """x [B, R, C] and out ([B, C, R] if transposed) in HBM; `came` (loaded) and `goes` (to be stored) [2, a tile] in VMEM; two semaphores
    each way."""
    rows, columns = came.shape[1:]
    down, across = x.shape[1] // rows, x.shape[2] // columns
    steps = x.shape[0] * down * across

    def at(s: Any) -> tuple[Any, Any, Any]:
        batch, rest = lax.div(s, down * across), lax.rem(s, down * across)
        return batch, pl.ds(pl.multiple_of(lax.div(rest, across) * rows, rows), rows), pl.ds(
            pl.multiple_of(lax.rem(rest, across) * columns, columns), columns
        )

    def fetch(s: Any, slot: Any) -> Any:
        batch, r, c = at(s)
        return pltpu.make_async_copy(x.at[batch, r, c], came.at[slot], arriving.at[slot])

    def store(s: Any, slot: Any) -> Any:
        batch, r, c = at(s)
        return pltpu.make_async_copy(goes.at[slot], out.at[batch, c, r] if turned else out.at[batch, r, c], leaving.at[slot])

    fetch(0, 0).start()

    def step(s: Any, _: Any) -> Any:
        slot = lax.rem(s, 2)
        if not turned:  # a copied tile is stored from where it was loaded: its buffer is free when the store is done
            pl.when(s >= 1)(lambda: store(s - 1, 1 - slot).wait())
        pl.when(s + 1 < steps)(lambda: fetch(s + 1, 1 - slot).start())
        fetch(s, slot).wait()
        if turned:
            pl.when(s >= 2)(lambda: store(s - 2, slot).wait())
            goes[slot] = came[slot].astype(jnp.int32).T.astype(goes.dtype)  # the transpose unit works on words of 32 bits
        store(s, slot).start()
        return 0

    lax.fori_loop(0, steps, step, 0)
    for s in range(max(0, steps - 2) if turned else steps - 1, steps):
        store(s, s % 2).wait()


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    turned = not copies(p)
    *batch, rows, columns = p["x"].shape
    x = given["x"].reshape((prod(batch), rows, columns) if turned else (1, prod(batch) * rows, columns))
    many, r, s = x.shape
    x = jnp.pad(x, ((0, 0), (0, up(r, c["rows"]) - r), (0, up(s, c["columns"]) - s)))
    came = pltpu.VMEM((2, c["rows"], c["columns"]), x.dtype)
    scratch = [came, pltpu.VMEM((2, c["columns"], c["rows"]), x.dtype)] if turned else [came]
    shape = (many, x.shape[2], x.shape[1]) if turned else x.shape
    kernel = partial(_kernel, turned=True) if turned else lambda x, out, came, *semaphores: _kernel(
        x, out, came, came, *semaphores, turned=False
    )
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    out = call(
        kernel, on, name="transpose", in_specs=[hbm], out_specs=hbm, out_shape=like(x, x.dtype, *shape),
        scratch_shapes=[*scratch, pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.DMA((2,))],
    )(x)
    return {"out": out[:, :s, :r] if turned else out[:, :r, :s]}


def finish(outputs: Mapping[str, Any], p: Problem) -> dict[str, Any]:
    """As the problem counts: [batch, batch, batch, rows, columns]."""
    out = outputs["out"]
    return {"out": (out if copies(p) else out.swapaxes(1, 2)).reshape(p["out"].shape)}
