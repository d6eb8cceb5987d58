"""Elementwise functions of one to three tensors in Triton: everything that an implementation needs except its formula.

Bytes: each input read once, each output written once, 16 bytes a thread and access. Every tensor is [R, C] with contiguous rows and any row
stride (one row if it is contiguous as a whole); two tensors that are the halves of one packed tensor differ by an offset. A program
processes `lanes` × `block` elements.
Measured: 0.97 of a copy from 256 MiB on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Problem

INPUTS, OUTPUTS = ("p", "q", "r"), ("u", "v")
GRID = 65535  # programs along the second and third axes of a launch


@triton.jit
def _at(pointer, offset, row, stride, column):  # type: ignore[no-untyped-def]
    if offset is not None:
        pointer += offset
    if stride is not None:
        pointer += row * stride
    return pointer + column


@triton.jit
def _wide(pointer, offset, row, stride, column, inside):  # type: ignore[no-untyped-def]
    at = _at(pointer, offset, row, stride, column)
    found = tl.load(at) if inside is None else tl.load(at, inside, other=0)
    return found.to(tl.float32)


@triton.jit
def _narrow(pointer, offset, row, stride, column, inside, value):  # type: ignore[no-untyped-def]
    tl.store(_at(pointer, offset, row, stride, column), value.to(pointer.dtype.element_ty), inside)


@triton.jit
def _tile(p, q, r, u, v, ps, qs, rs, us, vs, po, qo, ro, uo, vo, row, column, inside, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """The elements of a program; `inside` None: all of them."""
    a = _wide(p, po, row, ps, column, inside)
    if q is None:
        found = F(a)
    elif r is None:
        found = F(a, _wide(q, qo, row, qs, column, inside))
    else:
        found = F(a, _wide(q, qo, row, qs, column, inside), _wide(r, ro, row, rs, column, inside))
    if v is None:
        _narrow(u, uo, row, us, column, inside, found)
    else:
        _narrow(u, uo, row, us, column, inside, found[0])
        _narrow(v, vo, row, vs, column, inside, found[1])


@triton.jit
def _pointwise(p, q, r, u, v, ps, qs, rs, us, vs, po, qo, ro, uo, vo, R, C,
               F: tl.constexpr, ONE: tl.constexpr, EVEN: tl.constexpr, HIGH: tl.constexpr, FAR: tl.constexpr,
               BLOCK: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """u (and v) = F(p, q, r) in float32; absent tensors are None. Strides of rows and offsets of first elements, in elements; None for no
    offset, and for the stride of a single row: the shortest launches take only a few cache misses, and arguments are some of them.

    ONE: there is one row, and the programs are along it; else they are along the columns (axis 0) and the rows (axis 1, with axis 2 as its
    high part if HIGH). EVEN: no program is partial. Where some are, the others take no mask: a bound that is no multiple of a vector would
    make every access one of single elements. FAR: an element is 2**31 or further from the first."""
    if PDL:
        gdc_wait()
    first = tl.program_id(0)
    row = 0
    if FAR:
        first = first.to(tl.int64)
    column = first * BLOCK + tl.arange(0, BLOCK)[None, :]
    whole = (first + 1) * BLOCK <= C
    inside = column < C
    if not ONE:
        row = tl.program_id(1)
        if HIGH:
            row += tl.program_id(2) * tl.num_programs(1)
        if FAR:
            row = row.to(tl.int64)
        whole &= (row + 1) * LANES <= R
        row = row * LANES + tl.arange(0, LANES)[:, None]
        inside &= row < R
    if EVEN or whole:
        _tile(p, q, r, u, v, ps, qs, rs, us, vs, po, qo, ro, uo, vo, row, column, None, F)
    else:
        _tile(p, q, r, u, v, ps, qs, rs, us, vs, po, qo, ro, uo, vo, row, column, inside, F)


@dataclass(frozen=True)
class Config:
    """Elements along a row, rows and warps of one program."""

    block: int
    lanes: int
    warps: int


@dataclass(frozen=True)
class At:
    """A tensor of the op, from element `offset` of each row on."""

    name: str
    offset: int = 0


Halves = Callable[[Problem], Mapping[str, At]]


def pointwise(
    inputs: tuple[str, ...], outputs: tuple[str, ...], function: Callable[[Problem], Any], places: Halves | None = None
) -> tuple[Any, ...]:
    """supports, choose, configs and launches of an implementation.

    function    the jit function of float32 values for a problem
    places      where inputs and outputs lie, if not in the tensors of their names"""
    found: Halves = places or (lambda p: {n: At(n) for n in (*inputs, *outputs)})

    def extents(p: Problem) -> tuple[int, int]:
        """The shape of the computation: the first output, or half of it if it is packed."""
        at = found(p)
        rows, columns = p[at[outputs[0]].name].shape
        packed = any(at[n].offset for n in outputs if n in at)
        return rows, columns // 2 if packed else columns

    def supports(p: Problem) -> str | None:
        if p.extra:
            return f"takes no {' and no '.join(p.extra)}"
        rows, columns = extents(p)
        if rows * columns == 0:
            return "there is nothing to compute"
        if rows >= 2**31 or columns > 2**38:
            return f"takes fewer than 2**31 rows of at most 2**38 columns; given {rows} and {columns}"
        return None

    def _grid(p: Problem, config: Config) -> tuple[int, ...]:
        rows, columns = extents(p)
        blocks, groups = -(-columns // config.block), -(-rows // config.lanes)
        if groups <= GRID:
            return (blocks, groups)[: 1 if groups == 1 else 2]
        return blocks, GRID, -(-groups // GRID)

    def choose(p: Problem) -> Config:
        """Measured on an H100. Four elements a thread: more programs in flight, which short tensors need most; a pack of 16 bytes for 16
        bits, if one tensor is read and there are enough programs; two packs for 32 bits from 2^26 elements on."""
        rows, columns = extents(p)
        size, warps = 1024, 8
        if p[found(p)[outputs[0]].name].itemsize >= 4:
            warps = 4 if rows * columns >= 1 << 26 else 8
        elif len(inputs) == 1 and rows * columns >= 1 << 19:
            size = 2048
        block = min(size, 1 << (columns - 1).bit_length())
        return Config(block, min(size // block, 1 << (rows - 1).bit_length()), warps)

    def configs(p: Problem) -> list[Config]:
        rows, columns = extents(p)
        sizes = [
            (block, lanes) for block in (256, 512, 1024, 2048, 4096, 8192) for lanes in (1, 2, 4) if lanes == 1
            or (block >= columns and lanes <= rows)
        ]
        return [
            Config(block, lanes, warps) for block, lanes in sizes for warps in (1, 2, 4, 8) if 128 * warps <= block * lanes <= 1024 * warps
        ]

    def launches(p: Problem, config: Config) -> list[Launch]:
        rows, columns = extents(p)
        at = found(p)
        far = max(
            (m.shape[0] - 1) * abs(m.strides[0]) + m.shape[1] for _, m in p.tensors if m is not None
        ) + config.block * config.lanes >= 2**31
        even, high = rows % config.lanes == 0 and columns % config.block == 0, -(-rows // config.lanes) > GRID
        args: dict[str, Any] = {
            "R": rows, "C": columns, "F": function(p), "ONE": rows == 1, "EVEN": even and not high, "HIGH": high, "FAR": far
        }
        args |= {"BLOCK": config.block, "LANES": config.lanes, "PDL": p.device.pdl}
        for letters, names in ((INPUTS, inputs), (OUTPUTS, outputs)):
            for letter, name in zip(letters, (*names, None, None, None), strict=False):
                place = at.get(name) if name else None
                args[letter] = place and place.name
                args[f"{letter}s"] = p[place.name].strides[0] if place and rows > 1 else None
                args[f"{letter}o"] = place.offset or None if place else None
        return [Launch(_pointwise, _grid(p, config), args, config.warps, pdl=p.device.pdl)]

    return supports, choose, configs, launches


def gated(inputs: tuple[str, ...], outputs: tuple[str, ...], function: Callable[[Problem], Any]) -> tuple[Any, ...]:
    """Like `pointwise`, for a gate and the gated tensor: if b is absent, it is the second half of a, and db that of da."""

    def places(p: Problem) -> Mapping[str, At]:
        found = {n: At(n) for n in (*inputs, *outputs)}
        if p.get("b") is None:
            half = p["a"].shape[-1] // 2
            found |= {n: At(f"{n[:-1]}a", half) for n in ("b", "db") if n in found}
        return found

    return pointwise(inputs, outputs, function, places)
