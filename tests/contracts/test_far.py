"""More than 2^31 elements, without the memory: shapes, grids, and rows that begin beyond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from _support import FIRST, Call, faults, results

from rooftop.core import registry
from rooftop.core.call import Call as Prepared
from rooftop.core.call import select
from rooftop.core.contract import metas_of
from rooftop.core.op import Op
from rooftop.core.spec import DTYPES, TARGETS, Case, Input, Meta
from rooftop.lab.check import checker
from rooftop.lab.interpret import interpreter

FORWARD = list(registry.op_names())
OPS = [n for name in FORWARD for n in (name, *([f"{name}_bwd"] if registry.op(name).bwd else []))]
FAR = 2**31 + 3


@pytest.mark.parametrize("call", FIRST.values(), ids=lambda c: c.op)
def test_shapes_beyond_two_to_the_31_are_worked_out_without_memory(call: Call) -> None:
    rows = next(iter(call.tensors.values()))[0]
    tensors = {n: torch.empty((*(FAR if e == rows else e for e in t.shape),), dtype=t.dtype, device="meta") for n, t in call.make("f32", "cpu").items()}
    got, want = results(call.ours(**tensors)), results(call.theirs(**tensors))
    assert [(g.shape, g.stride(), g.dtype) for g in got] == [(w.shape, w.stride(), w.dtype) for w in want]


def stretched(op: Op, change: Mapping[int, int]) -> Case:
    """The huge case of an op with some extents exchanged."""
    case = next(c for c in op.cases if "huge" in c.tags)

    def other(v: Any) -> Any:
        return replace(v, shape=tuple(change.get(e, e) for e in v.shape)) if isinstance(v, Input) else v

    return Case(case.name, {k: other(v) for k, v in case.inputs.items()}, case.tags)


@pytest.mark.parametrize("name", [n for n in OPS if any("huge" in c.tags for c in registry.op(n).cases)])
def test_a_launch_beyond_two_to_the_31_fits_the_grid_or_is_refused(name: str) -> None:
    op = registry.op(name)
    largest = max((m for _, m in op.problem(stretched(op, {})).tensors if m is not None), key=lambda m: m.numel)
    rows, columns = largest.shape[0], largest.shape[-1]
    if len(largest.shape) == 1:
        changes: list[dict[int, int]] = [{rows: 2**32 - 1}, {rows: 2**36 + 1}, {rows: 2**42 + 1}]
    else:
        changes = [{rows: FAR}, {rows: 2**34 + 1}, {columns: FAR}, {rows: 1, columns: 2**33 + 1}, {rows: FAR, columns: 3}]
    for change in changes:
        for device in TARGETS.values():
            choice = select(op, op.problem(stretched(op, change), device))
            if (call := choice.call) is None:
                assert len(choice.rejected) == len(registry.implementations(op.name))
                assert all(reason for _, reason in choice.rejected)
                continue
            for launch in call.launches:
                grid = (*launch.grid, 1, 1)[:3]
                assert all(1 <= n <= limit for n, limit in zip(grid, interpreter.GRID_LIMITS, strict=True)), (change, call.implementation, grid)
                numbers = {k: v for k, v in launch.args.items() if isinstance(v, int) and not isinstance(v, bool)}
                for (k, v), kind in zip(launch.args.items(), launch.types, strict=False):
                    assert kind != "i32" or k not in numbers or -(2**31) <= v < 2**31
                if call.implementation.backend == "triton":  # a tile of Triton has at most 2^20 elements
                    fixed = {q.name for q in launch.kernel.params if q.is_constexpr}
                    assert all(v <= 1 << 20 for k, v in numbers.items() if k in fixed), (change, call.implementation, numbers)


def interpreted(op: Op, args: list[Any]) -> tuple[Prepared, dict[str, Any]]:
    """Run the Triton kernel of an op on CPU tensors where they lie: the call and the outputs by name."""
    tensors, options = op.flattened(args)
    call = select(op, op.problem_of(metas_of(tensors), options, TARGETS[90]), "triton").call
    assert call is not None

    def allocate(name: str, m: Meta) -> torch.Tensor:
        dtype = getattr(torch, DTYPES[m.dtype].torch)
        return torch.zeros(m.shape, dtype=dtype) if name in call.scratch else torch.full((m.numel,), float("nan"), dtype=dtype).view(m.shape)

    memory = call.memory(tensors, options, allocate)
    checker.run_interpreter(call, memory)
    return call, {n: memory[n] for n, _ in call.outputs}


STRIDED = {"softmax": "x", "rms_norm": "x", "layer_norm": "x", "gelu": "x", "silu": "x", "square": "x", "swiglu": "a", "geglu": "b",
           "bias_mask_scale_add": "residual", "cross_entropy": "input"}  # fmt: skip


@pytest.mark.parametrize("name", STRIDED)
def test_rows_that_begin_beyond_two_to_the_31_elements_are_reached(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows 2^30 elements apart in 4 GiB of address space, of which three pages are touched. Row and stride fit 32 bits, their product does not."""
    call, op = FIRST[name], registry.op(name)
    tensors = {n: t[:3].clone() if t.shape[:1] == next(iter(call.tensors.values()))[:1] else t for n, t in call.make("bf16", "cpu").items()}
    near = tensors[STRIDED[name]]
    try:
        far = torch.empty_strided(near.shape, (2**30 + 8, 1), dtype=near.dtype)
    except RuntimeError:
        pytest.skip("no 4 GiB of address space here")
    tensors[STRIDED[name]] = far.copy_(near)
    given: list[Any] = []

    class Captured(Exception):
        """The validated arguments are known."""

    def capture(*args: Any, implementation: str | None = None) -> None:
        given.extend(args)
        raise Captured

    monkeypatch.setitem(op.__dict__, "_call", capture)
    with pytest.raises(Captured):
        call.ours(**tensors)
    ran, made = interpreted(op, given)
    assert ran.copies == ()
    got = tuple(t for n, t in made.items() if t is not None and (op.grad is None or n not in op.grad.aside))
    assert faults(call, {**tensors, STRIDED[name]: near}, got) == []
