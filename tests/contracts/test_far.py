"""More than 2^31 elements, without the memory: shapes, grids, and rows that begin beyond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts.calls import Call, called, calls, expect, first, ops

from rooftop.core import registry
from rooftop.core.call import Call as Prepared
from rooftop.core.call import select
from rooftop.core.contract import Contract, metas_of
from rooftop.core.implementation import UnsupportedError
from rooftop.core.spec import DTYPES, TARGETS, Case, Input, Meta
from rooftop.lab.check import checker, judgement
from rooftop.lab.inputs import by_name
from rooftop.lab.interpret import interpreter
from rooftop.ops import _linear_loss

FAR = 2**31 + 3


def root(elements: int, times: int) -> int:
    """An extent that makes so many elements, at least, where a tensor has it `times` times."""
    return elements if times == 1 else next(n for n in range(int(elements ** (1 / times)), elements) if n**times >= elements)


def repeated(shapes: Iterable[Sequence[int]], extent: int) -> int:
    """How often one tensor has an extent, at most: 2 where it is square."""
    return max(tuple(shape).count(extent) for shape in shapes)


def far_shapes(call: Call) -> dict[str, tuple[int, ...]]:
    """The shapes of a call with another number of rows, so that its first tensor has more than 2^31 elements. A square one stays so."""
    rows = next(e for _, v in call.case.tensors() for e in v.shape)
    shapes = {n: tuple(t.shape) for n, t in call.make().items()}
    far = root(FAR, repeated(shapes.values(), rows))
    return {n: tuple(far if e == rows else e for e in shape) for n, shape in shapes.items()}


def works_out_far_shapes(call: Call) -> bool:
    """Whether its results have the shapes and strides of the reference's beyond 2^31 elements; False where that does not say what they are."""
    dtypes = {n: t.dtype for n, t in call.make().items()}
    tensors = {n: torch.empty(shape, dtype=dtypes[n], device="meta") for n, shape in far_shapes(call).items()}
    try:
        reference = by_name(call.op, call.op.reference(*call.arguments(tensors)))
    except (RuntimeError, NotImplementedError):
        return False
    want = [r for n in call.returned() if (r := reference[n]) is not None]
    assert [(g.shape, g.stride()) for g in call.run(tensors)] == [(w.shape, w.stride()) for w in want]
    return True


@pytest.mark.parametrize("name", [n for n in called() if calls(n)])
def test_shapes_beyond_two_to_the_31_are_worked_out_without_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_linear_loss, "PIECE", 1 << 62)  # tensors without values need no pieces: of so many tokens they would be thousands
    if not works_out_far_shapes(first(name)):
        pytest.skip("its reference does not say what it returns without values")


def far_changes(shape: Sequence[int]) -> list[dict[int, int]]:
    """Extents to exchange in the huge case of an op whose largest tensor has this shape: rows, columns, and both."""
    rows, columns = shape[0], shape[-1]
    if len(shape) == 1:
        return [{rows: 2**32 - 1}, {rows: 2**36 + 1}, {rows: 2**42 + 1}]
    if rows == columns:  # one cannot be changed without the other
        return [{rows: root(elements, repeated([shape], rows))} for elements in (FAR, 2**34 + 1, 2**40 + 1)]
    return [{rows: FAR}, {rows: 2**34 + 1}, {columns: FAR}, {rows: 1, columns: 2**33 + 1}, {rows: FAR, columns: 3}]


def stretched(op: Contract, change: Mapping[int, int]) -> Case:
    """The huge case of an op with some extents exchanged."""
    case = next(c for c in op.cases if "huge" in c.tags)

    def other(v: Any) -> Any:
        if isinstance(v, int) and v > 64:  # an option that repeats an extent
            return change.get(v, v)
        return replace(v, shape=tuple(change.get(e, e) for e in v.shape)) if isinstance(v, Input) else v

    return Case(case.name, {k: other(v) for k, v in case.inputs.items()}, case.tags)


@pytest.mark.parametrize("name", [n for n in ops() if any("huge" in c.tags for c in registry.op(n).cases)])
def test_a_launch_beyond_two_to_the_31_fits_the_grid_or_is_refused(name: str) -> None:
    op = registry.op(name)
    largest = max((m for _, m in op.problem(stretched(op, {})).tensors if m is not None), key=lambda m: m.numel)
    looked = 0
    for change in far_changes(largest.shape):
        for device in TARGETS.values():
            try:
                asked = op.problem(stretched(op, change), device)
                choice = select(op, asked)
            except (ValueError, AssertionError):  # its sizes depend on each other: this is no problem of the op
                continue
            if any(m is not None and m.numel > 1 << 48 for _, m in asked.tensors):
                continue  # more than an address can tell
            looked += 1
            if (call := choice.call) is None:
                assert len(choice.rejected) == len(registry.implementations((op.twin_of or op).name))
                assert all(reason for _, reason in choice.rejected)
                continue
            for launch in call.launches:
                grid = (*launch.grid, 1, 1)[:3]
                assert all(1 <= n <= limit for n, limit in zip(grid, interpreter.GRID_LIMITS, strict=True)), (change, call.implementation, grid)
                numbers = {k: v for k, v in launch.args.items() if isinstance(v, int) and not isinstance(v, bool)}
                for (k, v), kind in zip(launch.args.items(), launch.types, strict=False):
                    assert kind != "i32" or k not in numbers or -(2**31) <= v < 2**31
                if call.implementation.backend in ("triton", "gluon"):  # a tile of Triton has at most 2^20 elements
                    fixed = {q.name for q in launch.kernel.params if q.is_constexpr}
                    assert all(v <= 1 << 20 for k, v in numbers.items() if k in fixed), (change, call.implementation, numbers)
    if not looked:
        pytest.skip("its sizes depend on each other: none can be stretched alone")


def interpreted(call: Prepared, tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Run a Triton kernel on CPU tensors where they lie: the outputs by name."""

    def allocate(name: str, m: Meta) -> torch.Tensor:
        dtype = getattr(torch, DTYPES[m.dtype].torch)
        poison = float("nan") if dtype.is_floating_point else 77
        return torch.zeros(m.shape, dtype=dtype) if name in call.scratch else torch.full((m.numel,), poison, dtype=dtype).view(m.shape)

    memory = call.memory(tensors, options, allocate)
    checker.run_interpreter(call, memory)
    return {n: memory[n] for n, _ in call.outputs}


def three_rows(given: Call) -> Call:
    """A call with three rows: the first dimension of its first tensor, wherever that is first. As it is where its reference does not take it so: a
    square tensor that must be square."""
    rows = next(e for _, v in given.case.tensors() for e in v.shape)
    inputs = {
        n: replace(v, shape=tuple(3 if i == 0 and e == rows else e for i, e in enumerate(v.shape))) if isinstance(v, Input) else v
        for n, v in given.case.inputs.items()
    }
    changed = replace(given, case=replace(given.case, name="three rows", inputs=inputs))
    try:
        changed.op.reference(*changed.arguments(changed.make()))
    except (RuntimeError, ValueError):
        return given
    return changed


@pytest.mark.parametrize("name", [n for n in called() if calls(n) and any(i.backend == "triton" for i in registry.implementations(n))])
def test_rows_that_begin_beyond_two_to_the_31_elements_are_reached(name: str) -> None:
    """Three rows 2^30 elements apart in 4 GiB of address space, of which three pages are touched. Row and stride fit 32 bits, their product does not. Each
    input in turn that the kernel takes so without a copy."""
    given = next((c for c in calls(name) if DTYPES[c.case.dtype].bytes == 2), first(name))  # in 16 bits where it takes them
    call, op = three_rows(given), registry.op(name)
    triton = next(i.name for i in registry.implementations(name) if i.backend == "triton")
    near, reached = call.make(), 0
    for n in (n for n, t in near.items() if t.dim() == 2 and t.shape[0] == 3 and n not in op.mutates):
        try:
            far = torch.empty_strided(near[n].shape, (2**30 + 8, 1), dtype=near[n].dtype)
        except RuntimeError:
            pytest.skip("no 4 GiB of address space here")
        tensors, options = op.flattened(call.arguments({**near, n: far.copy_(near[n])}))
        try:
            found = select(op, op.problem_of(metas_of(tensors), options, TARGETS[90]), triton).call
        except UnsupportedError:
            continue
        if found is not None and not found.copies:
            verdicts = judgement.judge(op, call.case, expect(call, near), interpreted(found, tensors, options))
            assert {k: v.message for k, v in verdicts.items() if not v.ok} == {}, n
            reached += 1
    if not reached:
        pytest.skip("its kernel takes no input whose rows lie apart")
