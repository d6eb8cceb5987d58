"""Whether the bits of a row depend on what else is in the call: what `rooftop.invariant()` promises, tested by running the kernel that it
chooses on the same row alone, among other rows, elsewhere among them, and with a gap between rows.

The sizes of a row come from the contract's `swept`, whose `rows` counts what stands beside it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.core import invariance
from rooftop.core.call import for_any_rows
from rooftop.core.contract import Contract, metas_of
from rooftop.core.implementation import Implementation, device_of
from rooftop.core.spec import Device
from rooftop.lab.check.checker import RUNNERS, Trial, backend_of, same_bits
from rooftop.lab.check.guard_zones import GUARD
from rooftop.lab.inputs import make
from rooftop.lab.interpret.numbers import one_order

POINTS = 6  # lengths of rows that are drawn
COMPANIONS = (1, 2, 3, 17, 256, 257, 4096)  # rows of a call
ELEMENTS = 1 << 13  # of a call in the interpreter and the simulator; on a GPU 1 << 28
GAP = 24  # elements between rows: of 16 bits, rows then start at other places of their 16 bytes, whatever the columns are


@dataclass(frozen=True)
class Compared:
    """One row length: what ran, in how many calls, and what differed."""

    case: str
    kernel: str
    calls: int
    wrong: tuple[str, ...] = ()
    skipped: str = ""


def names_rows(op: Contract) -> bool:
    """Whether there are rows to compare: the contract says how they are counted, and of what is exact which they are."""
    if op.rows is None or op.swept is None or not op.swept.counted:
        return False
    least = op.swept.case(op.swept.dtypes[0], {n: low for n, (low, _) in op.swept.ranges.items()})
    return not op.exact or bool(op.rows(op.problem(least)))


def lengths(op: Contract, seed: int, gpu: bool) -> Iterator[tuple[dict[str, int], str]]:
    """(sizes of a row, dtype): the least, and drawn ones, odd too; without a GPU short ones."""
    assert op.swept is not None
    draw = random.Random(seed)
    for i in range(POINTS):
        sizes = {}
        names = [n for n in op.swept.ranges if n != op.swept.counted]
        extents = len([n for n in names if n not in op.swept.ways])
        most = ((1 << 17) if gpu else ELEMENTS // 3) if extents == 1 else round(((1 << 25) if gpu else ELEMENTS // 3) ** (1 / extents))
        for name in names:
            low, high = op.swept.ranges[name]
            high = max(low, min(high, most))
            drawn = low if i == 0 else round(math.exp(draw.uniform(math.log(low), math.log(high))))
            near = 1 << (drawn.bit_length() - 1) if name in op.swept.powers else drawn // 8 * 8 if i % 2 else drawn
            sizes[name] = max(low, near)
        for dtype in op.swept.dtypes:
            yield sizes, dtype


def batches(op: Contract, sizes: Mapping[str, int], dtype: str, *, backend: str = "auto", arch: int = 90, seed: int = 0,
            implementation: str | Implementation | None = None) -> Compared:
    """Rows of these sizes, alone and among others. Raises InvarianceError where the mode refuses them."""
    import torch

    if op.swept is None or not op.swept.counted:
        raise invariance.InvarianceError(f"{op.name}: its contract has no size that counts rows (`swept`)")
    gpu = torch.cuda.is_available() and backend in ("auto", "gpu")
    device = device_of(torch.cuda.current_device()) if gpu else card(arch)
    along = rows_of(op, sizes, dtype)
    one = max((math.prod(spec.shape) for n, spec in op.swept.case(dtype, {**sizes, op.swept.counted: 1}).tensors() if n in along), default=1)
    most = max(n for n in COMPANIONS if n == 1 or n * one <= (1 << 28 if gpu else ELEMENTS))
    case = op.swept.case(dtype, {**sizes, op.swept.counted: most})
    tensors, options = make(op, case, "cuda" if gpu else "cpu", seed)
    name = f"{' '.join(f'{n} {v}' for n, v in sizes.items())} {dtype}"
    first: dict[str, Any] | None = None
    kernel, wrong, calls = "", [], 0
    for said, rows, gap in arrangements(most, seed, op.swept.taken is None):
        given = {n: t if t is None or n not in along else _taken(t, along[n], rows, gap) for n, t in tensors.items()}
        if op.swept.taken is not None:
            given |= op.swept.taken(tensors, rows)
        call = for_any_rows(op, op.problem_of(metas_of(given), options, device), implementation).call
        assert call is not None
        where, reason = backend_and_reason(op, call.implementation, "auto" if gpu else backend)
        if reason:
            return Compared(name, call.implementation.name, calls, skipped=reason)
        if kernel and call.implementation.name != kernel:
            wrong.append(f"{said}: {call.implementation.name} runs, not {kernel}")
            continue
        kernel = call.implementation.name
        with one_order():
            got, _ = Trial(call, "cuda" if gpu else "cpu", RUNNERS[where], GUARD).run(given, options, 0xFF)
        calls += 1
        if first is None:
            first = got
            continue
        for output, t in got.items():
            if output not in along:  # it sums over the rows
                continue
            expected = first[output].index_select(along[output], torch.tensor(rows, device=t.device))
            if not same_bits(t.contiguous(), expected.contiguous()):
                unequal = int((t.contiguous() != expected).sum())
                wrong.append(f"{said}: {unequal} of {t.numel()} elements of {output} differ from those of the same rows among {most}")
    return Compared(
        name, kernel, calls, tuple(wrong), "" if calls > 1 else "rows of this length are too long for more than one to run here"
    )


def arrangements(most: int, seed: int, anyhow: bool = True) -> Iterator[tuple[str, list[int], bool]]:
    """(what it is called, which rows of `most`, whether there are gaps between them); all rows in their order first. `anyhow`: rows may
    have any order."""
    import torch

    yield f"{most} rows", list(range(most)), False
    g = torch.Generator().manual_seed(seed)
    if most > 1 and anyhow:
        yield f"{most} rows in another order", torch.randperm(most, generator=g).tolist(), False
    if most > 1:
        yield f"{most} rows with gaps", list(range(most)), True
    for n in (n for n in COMPANIONS if n < most):
        starts = torch.randperm(most - n + 1, generator=g)[:4].tolist()  # the bits of one row may be equal by luck
        for start in starts:
            yield f"{n} rows from {start} on", list(range(start, start + n)), False
        yield f"{n} rows from {starts[0]} on, with gaps", list(range(starts[0], starts[0] + n)), True


def rows_of(op: Contract, sizes: Mapping[str, int], dtype: str) -> dict[str, int]:
    """Tensor -> its dimension that counts rows, of the case as it is called."""
    assert op.swept is not None
    a, b = (dict(op.problem(op.swept.case(dtype, {**sizes, op.swept.counted: n})).tensors) for n in (5, 6))
    changed = {n: (m, other) for n, m in a.items() if m is not None and (other := b[n]) is not None and m.shape != other.shape}
    return {n: next(i for i, (x, y) in enumerate(zip(m.shape, other.shape, strict=True)) if x != y) for n, (m, other) in changed.items()}


def _taken(t: Any, dim: int, rows: list[int], gap: bool) -> Any:
    """These rows in memory of their own, which begins at a multiple of 16 bytes."""
    import torch

    found = t.index_select(dim, torch.tensor(rows, device=t.device))
    if not gap or t.dim() < 2 or dim != 0:
        return found
    wide = torch.zeros(*found.shape[:-1], found.shape[-1] + GAP, dtype=t.dtype, device=t.device)
    wide[..., : found.shape[-1]] = found
    return wide[..., : found.shape[-1]]


def card(arch: int) -> Device:
    from rooftop.core.spec import TARGETS

    return TARGETS["h200"] if arch == 90 else TARGETS[arch]


def backend_and_reason(op: Contract, implementation: Implementation, backend: str) -> tuple[str, str]:
    """Where a kernel runs here, and why it does not; "" if it does."""
    from rooftop.lab.candidates import Subject

    where, reason = backend_of(Subject(implementation.name, op, implementation), backend)
    return where, reason or ("" if where != "none" else f"{implementation.name} does not run here")
