"""Input that is wrong, awkward or too much: each gets a clear error or the right result, and loses nothing.

What the contracts, heads, records and commands are tested for where they are at home is not repeated here."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from _support import CALLS, FIRST, LAYOUTS, Call, command, faults, from_contract, gradients, laid, results

import rooftop
from rooftop.core import api, dispatch, head, head_text, registry, settings
from rooftop.core import compile as compiling
from rooftop.core.call import Call as Prepared
from rooftop.core.call import select
from rooftop.core.compile import CompileError
from rooftop.core.contract import metas_of
from rooftop.core.expressions import ExpressionError, TensorFacts, evaluate, integer
from rooftop.core.implementation import UnsupportedError
from rooftop.core.op import Op
from rooftop.core.spec import DTYPES, TARGETS, Case, Device, Input, Meta, Problem
from rooftop.lab import cli, doctor, scaffold, simt
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.cli.app import _narrow, table
from rooftop.lab.inputs import make
from rooftop.lab.inspect import inspector as inspecting
from rooftop.lab.interpret import interpreter
from rooftop.lab.records import store

FORWARD = list(registry.op_names())
OPS = [n for name in FORWARD for n in (name, *([f"{name}_bwd"] if registry.op(name).bwd else []))]
ARGUMENTS = [pytest.param(c, n, id=f"{c.op} {n}") for c in FIRST.values() for n in c.tensors]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")

KERNEL = """/* rooftop
op      = "softmax"
dtypes  = ["f32"]
args    = ["C: i32", "x: T[R, C, 1]", "y: T[R, C, 1]"]
[[launch]]
kernel  = "k<{T}>"
grid    = ["R"]
block   = [256]
*/
template <typename T> __global__ void k(int C, const T* x, T* y) {
    if (threadIdx.x == 0) y[0] = x[0];
}
"""


def problem(rows: int = 4, columns: int = 8, device: Device = TARGETS[90]) -> Problem:
    m = Meta((rows, columns, 1), "f32")
    return Problem("softmax", (("x", m), ("y", m)), (("dim", 1),), device)


def flat(text: str) -> str:
    """Without the line breaks of a terminal."""
    return re.sub(r"\s+", " ", text)


# -- tensors that are not what a function takes --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64])
@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_another_dtype_is_named_with_those_accepted(call: Call, name: str, dtype: torch.dtype) -> None:
    tensors = call.make("f32", "cpu")
    with pytest.raises((TypeError, ValueError), match=str(dtype)) as caught:
        call.ours(**{**tensors, name: tensors[name].to(dtype)})
    assert str(caught.value).startswith(f"{call.op}: ")
    assert str(tensors[name].dtype) in str(caught.value)


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_what_is_no_tensor_is_named(call: Call, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{call.op}: .*list"):
        call.ours(**{**call.make("f32", "cpu"), name: [1.0]})


@pytest.mark.parametrize(("call", "name"), [p for p in ARGUMENTS if len(p.values[0].tensors) > 1])
def test_tensors_on_two_devices_are_named(call: Call, name: str) -> None:
    tensors = call.make("f32", "cpu")
    with pytest.raises(ValueError, match="meta") as caught:
        call.ours(**{**tensors, name: tensors[name].to("meta")})
    assert "cpu" in str(caught.value)


def longer(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t, t[..., :1]], -1)


@pytest.mark.parametrize(("call", "name"), [p for p in ARGUMENTS if len(p.values[0].tensors) > 1 and p.id not in ("matmul b", "cross_entropy input")])
def test_shapes_that_do_not_fit_are_named(call: Call, name: str) -> None:
    tensors = call.make("f32", "cpu")
    given = longer(tensors[name])
    with pytest.raises(ValueError, match=rf"^{call.op}: ") as caught:
        call.ours(**{**tensors, name: given})
    assert str(tuple(given.shape)) in str(caught.value)


def test_a_packed_dimension_that_is_odd() -> None:
    for function in (rooftop.swiglu, rooftop.geglu):
        with pytest.raises(ValueError, match="7"):
            function(torch.ones(3, 7))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.id)
def test_every_layout_is_right(call: Call, layout: str) -> None:
    for dtype in call.dtypes:
        tensors = {n: laid(t, layout) for n, t in call.make(dtype, "cpu").items()}
        assert faults(call, tensors, call.ours(**tensors)) == []


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.id)
def test_gradients_reach_expanded_and_transposed_inputs(call: Call) -> None:
    for layout in ("expanded", "transposed"):
        tensors = {n: laid(t, layout) for n, t in call.make("f32", "cpu").items()}
        for got, want in zip(gradients(call.ours, tensors, call.floats), gradients(call.theirs, tensors, call.floats), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0, 1e-40])
@pytest.mark.parametrize("call", FIRST.values(), ids=lambda c: c.op)
def test_numbers_that_are_no_numbers_stay_where_they_are(call: Call, value: float) -> None:
    tensors = call.make("f32", "cpu")
    tensors[call.floats[0]].view(-1)[5] = value
    if call.op in ("gelu", "geglu"):  # with infinities torch's vectorised gelu on the CPU differs from its own scalar one
        want = tensors["x" if call.op == "gelu" else "a"].clone()
        want = want * 0.5 * (1 + torch.erf(want * 0.5**0.5)) * (tensors["b"] if call.op == "geglu" else 1)
        torch.testing.assert_close(call.ours(**tensors), want, equal_nan=True)
    else:
        assert faults(call, tensors, call.ours(**tensors)) == []


EMPTY = {
    "softmax": lambda e: (rooftop.softmax(e(0, 5)), rooftop.softmax(e(5, 0)), rooftop.softmax(e(2, 0, 3), dim=0)),
    "add": lambda e: (rooftop.add(e(0), e(0)), rooftop.add(e(3, 0, 2), e(3, 0, 2))),
    "matmul": lambda e: (rooftop.matmul(e(0, 4), e(4, 5)), rooftop.matmul(e(3, 4), e(4, 0))),
    "rms_norm": lambda e: (rooftop.rms_norm(e(0, 6), 6, e(6)), rooftop.rms_norm(e(3, 0), 0)),
    "layer_norm": lambda e: (rooftop.layer_norm(e(0, 6), 6, e(6), e(6)), rooftop.layer_norm(e(3, 0), 0)),
    "gelu": lambda e: (rooftop.gelu(e(0)), rooftop.gelu(e(0, 3))),
    "silu": lambda e: (rooftop.silu(e(0)), rooftop.silu(e(0, 3))),
    "square": lambda e: (rooftop.square(e(0)), rooftop.square(e(0, 3))),
    "swiglu": lambda e: (rooftop.swiglu(e(0, 4)), rooftop.swiglu(e(0, 3), e(0, 3))),
    "geglu": lambda e: (rooftop.geglu(e(0, 4)), rooftop.geglu(e(0, 3), e(0, 3))),
    "bias_mask_scale_add": lambda e: (rooftop.bias_mask_scale_add(e(0, 3), e(3), p=0.5), rooftop.bias_mask_scale_add(e(3, 0), e(0))),
    "cross_entropy": lambda e: (rooftop.cross_entropy(e(0, 4), torch.zeros(0, dtype=torch.int64), reduction="none"),),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors_give_empty_results_and_gradients_of_their_shape(name: str) -> None:
    made: list[torch.Tensor] = []

    def empty(*shape: int) -> torch.Tensor:
        made.append(torch.ones(shape, requires_grad=True))
        return made[-1]

    found = EMPTY[name](empty)
    assert all(r.numel() == 0 for r in found)
    sum(r.sum() for r in found).backward()
    assert [t.grad is not None and t.grad.shape == t.shape and not t.grad.any() for t in made] == [True] * len(made)


def emptied(op: Op) -> list[Case]:
    """The cases of an op whose results are empty; where its contract has none, its first case without rows."""

    def empty(case: Case) -> bool:
        return all(m is None or m.numel == 0 for n, m in op.problem(case).tensors if n in op.output_names)

    if found := [c for c in op.cases if empty(c)]:
        return found
    rows = next(v.shape[0] for _, v in op.cases[0].tensors() if v.shape)
    inputs = {n: replace(v, shape=tuple(0 if e == rows else e for e in v.shape)) if isinstance(v, Input) else v for n, v in op.cases[0].inputs.items()}
    return [c for c in (Case("no rows", inputs),) if empty(c)]


@pytest.mark.parametrize("name", FORWARD)
def test_the_empty_cases_of_a_contract_give_empty_results_and_gradients(name: str) -> None:
    op = registry.op(name)
    if not (cases := emptied(op)):
        pytest.skip("its results are never empty")
    wrt = {n for entry in op.grad.wrt for n in entry.split("=")} if op.grad else set()
    for case in cases:
        tensors, options = make(op, case, "cpu", 0)
        leaves = [t.requires_grad_() for n, t in tensors.items() if t is not None and n in wrt]
        found = results(op(*tensors.values(), *options.values()))
        want = [m for n, m in op.problem(case).tensors if n in op.output_names]
        assert [tuple(r.shape) for r, m in zip(found, want, strict=False) if m is not None] == [m.shape for m in want[: len(found)] if m is not None], case.id
        if leaves:
            sum(r.sum() for r in found if r is not None and r.requires_grad).backward()
        assert [t.grad is not None and t.grad.shape == t.shape and not t.grad.any() for t in leaves] == [True] * len(leaves), case.id


@pytest.mark.parametrize("name", FORWARD)
def test_a_call_worked_out_from_the_contract_is_right(name: str) -> None:
    if (call := from_contract(name)) is None:
        pytest.skip("its public function is called otherwise than its reference: tests/_support.py has its calls")
    tensors = call.make("f32", "cpu")
    assert faults(call, tensors, call.ours(**tensors)) == []
    wrong = [torch.ones_like(r) for r in results(call.ours(**tensors))]
    assert faults(call, tensors, tuple(wrong)), "anything would be right"


# -- more than 2^31 elements ---------------------------------------------------------------------------------------

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


# -- a card that is too old or unknown -----------------------------------------------------------------------------

OLD = (Device("NVIDIA TITAN V", 70, 80, 96 << 10, 4608 << 10), Device("NVIDIA GeForce RTX 2080 Ti", 75, 68, 64 << 10, 5632 << 10))


@pytest.mark.parametrize("device", OLD, ids=lambda d: f"sm_{d.arch}")
@pytest.mark.parametrize("name", OPS)
def test_a_card_that_is_too_old_gets_the_reference_or_by_name_an_error(name: str, device: Device) -> None:
    op = registry.op(name)
    asked = op.problem(next(c for c in op.cases if "bench" in c.tags), device)
    says = rf"needs sm_(80|90) or later; {device.name} is sm_{device.arch}"
    found = dispatch.explain_problem(op, asked)
    assert found.choice is not None and found.choice.call is None
    assert "the reference" in found.why
    assert len(re.findall(says, str(found))) == len(registry.implementations(name))
    for implementation in registry.implementations(name):
        with pytest.raises(UnsupportedError, match=says):
            select(op, asked, implementation.name)


def test_a_kernel_for_hopper_says_so_on_an_older_card(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("dtypes", "arch = 90\ndtypes"))
    assert registry.user_file(path).supports(problem(device=TARGETS[89])) == "needs sm_90 or later; NVIDIA GeForce RTX 4090 is sm_89"
    assert registry.user_file(path).supports(problem()) is None


@pytest.mark.parametrize("words", [("inspect", "add", "--arch", "75"), ("explain", "add", "--arch", "75")])
def test_a_target_that_is_not_compiled_for(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *words) == 1
    assert "sm_75 is not one of sm_80, sm_89, sm_90" in capsys.readouterr().err


# -- a file of one's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("y[0] = x[0];", "y[0] = x[0]"), 12, "error: expected a"),
        (("y[0] = x[0];", "y[0] = z[0];"), 11, 'error: identifier "z" is undefined'),
        (("template", '#include "nothing.cuh"\ntemplate'), 10, 'error: cannot include "nothing.cuh"; a kernel may include CUDA\'s own headers'),
    ],
)
def test_a_file_that_does_not_compile_shows_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: tuple[str, str], line: int, says: str
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace(*change))
    assert command(monkeypatch, "inspect", str(path), "--arch", "90") == 1
    said = capsys.readouterr().err
    assert f"{path} does not compile" in said
    assert re.search(rf"{re.escape(str(path))}\({line}\): (catastrophic )?{re.escape(says)}", said), said


INCLUDES = [
    '#include "helper.cuh"', "#include <helper.cuh>", '#include "FOLDER/helper.cuh"', "#include <FOLDER/helper.cuh>", '#  include /* x */ "helper.cuh"',
    '#include "../f/helper.cuh"', '#include \\\n"helper.cuh"', '#define H "helper.cuh"\n#include H', '%:include "helper.cuh"', '#include "words.cuh"',
    "#include <cuda_fp16.h>",
]  # fmt: skip


@pytest.mark.parametrize("line", INCLUDES)
def test_a_header_that_the_cache_would_not_see_change_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.cu"
    for name in ("helper.cuh", "words.cuh", "cuda_fp16.h"):  # of which two hide others of the same name
        (tmp_path / name).write_text("static const int FACTOR = 2;\n")
    path.write_text(KERNEL.replace("template", line.replace("FOLDER", str(tmp_path)) + "\ntemplate"))
    with pytest.raises(CompileError, match=rf"mine\.cu\({10 + line.count(chr(10))}\): error: .*words\.cuh"):
        registry.user_file(path).compile(["k<float>"], "sm_90a")  # type: ignore[attr-defined]


def test_headers_of_the_house_and_of_cuda_may_be_included_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("template", '// #include "helper.cuh"\n#include "words.cuh"\n#include <packs.cuh>\n#include "cuda_fp16.h"\ntemplate', 1))
    assert registry.user_file(path).compile(["k<float>"], "sm_90a").cubin  # type: ignore[attr-defined]


def test_a_house_header_in_angle_brackets_counts_for_the_cache(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text("\n")
    assert [p.name for p in compiling.headers("#include <a.cuh>\n#include <cuda_fp16.h>\n", tmp_path)] == ["a.cuh", "b.cuh"]
    (tmp_path / "b.cuh").write_text('\n#include "c.cuh"\n')
    with pytest.raises(CompileError, match=r'b\.cuh\(2\): error: cannot include "c\.cuh"; .*: a\.cuh, b\.cuh'):
        compiling.check_includes('#include "a.cuh"\n', "mine.cu", tmp_path)


def test_a_kernel_that_is_never_launched_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("block   = [256]", 'block   = [256]\nwhen    = "0"'))
    assert command(monkeypatch, "inspect", str(path), "--arch", "90") == 0
    assert "launches nothing for" in flat(capsys.readouterr().out)
    table([], {"a": "a"}, False)  # no row at all
    assert list(_narrow([], {"a": "a", "b": "b"}, "", 80)) == ["a  b", "----"]


@pytest.mark.parametrize("text", ["[]", "null", "5", "{}", '"x"', "[" * 100_000, '{"sha256": 1, "names": [], "log": 1}', ""])
def test_a_broken_cache_is_a_cache_without_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.cu").write_text(KERNEL)
    file = registry.user_file(tmp_path / "mine.cu")
    subject = Subject(file.name, registry.op("softmax"), file)
    case = inspecting.inspect_case(subject, None, 90)
    good = inspecting.facts_of(subject, case, 90)
    entries = list((tmp_path / "cache").rglob("*.json"))
    assert sorted(p.relative_to(tmp_path / "cache").parts[0] for p in entries) == ["cuda", "facts"]
    for p in entries:
        p.write_text(text)
    assert inspecting.facts_of(subject, case, 90) == good
    assert all(json.loads(p.read_text()) for p in entries)  # written anew


def test_facts_of_wrong_types_are_not_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.cu").write_text(KERNEL)
    file = registry.user_file(tmp_path / "mine.cu")
    subject = Subject(file.name, registry.op("softmax"), file)
    case = inspecting.inspect_case(subject, None, 90)
    good = inspecting.facts_of(subject, case, 90)
    (entry,) = (tmp_path / "cache" / "facts").rglob("*.json")
    for change in ({"registers": "16"}, {"opcodes": {"LDG": None}}, {"opcodes": []}, {"loop": {"start": 0}}, {"before_wait": "LDG"}, {"before_wait": [1]}):
        entry.write_text(json.dumps({**json.loads(entry.read_text()), **change}))
        assert inspecting.facts_of(subject, case, 90) == good


def test_a_kernel_that_the_file_does_not_have_is_named_as_the_heads(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace('"k<{T}>"', '"kernel<{T}>"'))
    with pytest.raises(CompileError, match=r"mine\.cu.*kernel<float>") as caught:
        registry.user_file(path).compile(["kernel<float>"], "sm_90a")  # type: ignore[attr-defined]
    assert "is not in the file: identifier \"kernel\" is undefined" in str(caught.value)
    assert "__nv_name_map" not in str(caught.value)
    path.write_text(KERNEL.replace("y[0] = x[0];", "y[0] = z[0];"))  # what is wrong in the file is said before what follows from it
    with pytest.raises(CompileError, match='identifier "z" is undefined') as caught:
        registry.user_file(path).compile(["kernel<float>", "k<float>"], "sm_90a")  # type: ignore[attr-defined]
    assert "__nv_name_map" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no head"),
        (b"__global__ void k() {}", "no head"),
        (KERNEL.replace('op      = "softmax"\n', "").encode(), "names no op"),
        (KERNEL.replace('"softmax"', '"softmx"').encode(), "did you mean 'softmax'"),
        (KERNEL.replace("[256]", "[256").encode(), r"mine\.cu:\d+: the head is not valid TOML"),
        (KERNEL.encode() + b"// \xe9\n", r"mine\.cu:13: not UTF-8"),
        (KERNEL.replace("T[R, C, 1]", "T[R C, 1]", 1).encode(), "'R C' is neither a shape name nor a whole number"),
        (KERNEL.replace('"k<{T}>"', "5").encode(), "kernel must be a text"),
        (KERNEL.replace("block ", "when = 5\nblock ").encode(), "when must be a condition, not 5"),
    ],
)  # fmt: skip
def test_a_file_whose_head_is_missing_or_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(content)
    assert command(monkeypatch, "check", str(path)) == 1
    assert re.search(says, flat(capsys.readouterr().err))
    with pytest.raises((ValueError, LookupError)):
        rooftop.load(path)


def test_load_takes_a_cu_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*mine\.cu"):
        rooftop.load(tmp_path / "mine.cu")
    with pytest.raises(FileNotFoundError, match="no file"):
        rooftop.load(tmp_path)
    (tmp_path / "mine.cpp").write_text(KERNEL)
    with pytest.raises(registry.RegistryError, match=r"a kernel is a \.cu or a \.py file"):
        rooftop.load(tmp_path / "mine.cpp")
    with pytest.raises(ValueError, match="must be a CUDA tensor, not Tensor on cpu"):
        rooftop.load("mine.cu", source=KERNEL)(torch.ones(3, 4), dim=1)
    with pytest.raises(TypeError, match="lacks x"):
        rooftop.load("mine.cu", source=KERNEL)(dim=1)


def test_a_compile_cache_that_is_broken_or_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL)

    def compiled() -> Any:
        return registry.user_file(path).compile(["k<float>"], "sm_90a")  # type: ignore[attr-defined]

    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    first = compiled()
    assert (first.cached, compiled().cached) == (False, True)
    (cubin,), (facts,) = (tmp_path / "cache").rglob("*.cubin"), (tmp_path / "cache").rglob("*.json")
    for broken, content in ((cubin, first.cubin[:100]), (cubin, b""), (facts, b'{"names": '), (facts, b"\xff")):
        broken.write_bytes(content)
        again = compiled()
        assert (again.cached, again.cubin, again.names) == (False, first.cubin, first.names)
        assert compiled().cached
    monkeypatch.setenv("ROOFTOP_CACHE", str(path / "below a file"))
    assert (compiled().cached, compiled().cubin) == (False, first.cubin)


def test_what_was_loaded_says_that_it_has_no_gradient() -> None:
    mine = rooftop.load("mine.cu", source=KERNEL)
    leaf = torch.ones(3, 4, requires_grad=True)
    for x in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(3, 4))):
        with pytest.raises(RuntimeError, match=r"x requires a gradient.*torch\.no_grad\(\), or with \.detach\(\)"):
            mine(x, dim=1)
    with pytest.raises(ValueError, match="must be a CUDA tensor"):
        mine(leaf.detach(), dim=1)
    with torch.no_grad(), pytest.raises(ValueError, match="must be a CUDA tensor"):
        mine(leaf, dim=1)


CALLS_PYTHON = "__import__('os').system('true')"
PLACES = {  # where a head holds an expression: what is replaced, by what
    "grid": ('["R"]', f'["{CALLS_PYTHON}"]'),
    "block": ("[256]", f'["{CALLS_PYTHON}"]'),
    "cluster": ("block ", f'cluster = ["{CALLS_PYTHON}"]\nblock '),
    "shared": ("block ", f'shared = "{CALLS_PYTHON}"\nblock '),
    "when": ("block ", f'when = "{CALLS_PYTHON}"\nblock '),
    "a number": ("C: i32", f"C: i32 = {CALLS_PYTHON}"),
    "a launch's number": ("block ", f'args = ["C: i32 = {CALLS_PYTHON}"]\nblock '),
    "requires": ("[[launch]]", f'[requires]\n"{CALLS_PYTHON}" = "why"\n[[launch]]'),
    "a choice": ("[[launch]]", f'[config]\na = 1\n[[choice]]\nwhen = "{CALLS_PYTHON}"\na = 2\n[[launch]]'),
    "a dimension": ("x: T[R, C, 1]", f"x: T[{CALLS_PYTHON}, C, 1]"),
    "a template argument": ("{T}", "{" + CALLS_PYTHON + "}"),
    "scratch": ("[[launch]]", f'[scratch]\ns = "f32[{CALLS_PYTHON}]"\n[[launch]]'),
    "valid": ("[[launch]]", f'valid = "{CALLS_PYTHON}"\n[[launch]]'),
    "prefer": ("[[launch]]", f'prefer = "{CALLS_PYTHON}"\n[[launch]]'),
}


@pytest.mark.parametrize("place", PLACES)
def test_python_in_a_head_is_refused_when_the_file_is_read(place: str) -> None:
    text = KERNEL.replace(*PLACES[place], 1)
    assert text != KERNEL
    with pytest.raises(head.HeadError, match=r"^my\.cu: .*"):
        head_text.parse(text, "my.cu")


def test_nothing_of_a_head_is_run_even_where_it_was_not_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was made without being read: what it holds is calculated by the same rules."""
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", ran.append)
    plain = head_text.parse(KERNEL, "my.cu")
    for other in (
        replace(plain, launches=(replace(plain.launches[0], kernel="k<{" + CALLS_PYTHON + "}>"),)),
        replace(plain, scratch={"s": head.TensorArg("s", "f32", (CALLS_PYTHON,))}),
    ):
        with pytest.raises(head.HeadError, match=r"^my\.cu: .*may be called"):
            other.supports(problem())
    with pytest.raises(head.HeadError, match=r"^my\.cu: prefer: .*may be called"):
        replace(plain, prefer=CALLS_PYTHON).prefers(problem())
    with pytest.raises(head.HeadError, match=r"^my\.cu: valid: .*may be called"):
        replace(plain, valid=CALLS_PYTHON).is_valid(problem(), {})
    assert ran == []


@pytest.mark.parametrize("key", ["valid", "prefer"])
def test_a_condition_on_a_name_that_is_not_there_names_file_and_key(key: str) -> None:
    found = head_text.parse(KERNEL.replace("[[launch]]", f'{key} = "Q > 3"\n[[launch]]'), "my.cu")
    with pytest.raises(head.HeadError, match=rf"^my\.cu: {key}: 'Q > 3' names 'Q'"):
        (found.prefers(problem()), found.is_valid(problem(), {}))


SCOPE = {"R": 4, "sms": 132, "x": TensorFacts(Meta((4, 8), "f32")), "c": TensorFacts(None)}


@pytest.mark.parametrize(
    "text",
    [
        "10 ** 99999", "pow(2, 99)", "x.meta", "x.__class__", "().__class__", "[r for r in (1,)]", "{1: 2}", "lambda: 1", "R; R", "R if", "\0", "(" * 240,
        "'a' * 3", "'a' < 1", "max('a', 1)", "min(x, 1)", "pow2(1.5)", "gcd(1.5, 2)", "pow2(-1)",
        "aligned(x, 0)", "stride(x, 99)", "stride(R, 0)", "ceil()", "min(1)",
        "ceil(R, 2)", "1e400", "ceil(1e400)", "1e308 * 10", "0.0 / 0.0", "R % 0", "None", "b'a'", "...", "x", "R == 4", "R / 3", "r", "R\nR",
        "bytes(c)",
    ],
)  # fmt: skip
def test_an_expression_is_a_whole_number_or_an_error_in_one_line(text: str) -> None:
    with pytest.raises(ExpressionError):
        integer(text, SCOPE)


@pytest.mark.parametrize("text", ["-" * 490 + "1", "1" + "+1" * 249, "9" * 490, "pow2(" * 80 + "3" + ")" * 80, "not " * 120 + "1"])
def test_a_long_expression_is_calculated_or_refused_at_once(text: str) -> None:
    started = time.perf_counter()
    with contextlib.suppress(ExpressionError):  # how deep Python may go depends on who asks
        assert evaluate(text, SCOPE) is not None
    assert time.perf_counter() - started < 1


def test_a_grid_of_absurd_size_is_refused() -> None:
    for grid in ("R * 2147483647", "-R", "R * sms * 999999999"):
        reason = head_text.parse(KERNEL.replace('["R"]', f'["{grid}"]'), "my.cu").supports(problem())
        assert reason is not None and "it must be 1 to 2147483647" in reason
    for grid in ("9" * 490, "0"):  # whatever the problem
        with pytest.raises(head.HeadError, match="it must be 1 to 2147483647"):
            head_text.parse(KERNEL.replace('["R"]', f'["{grid}"]'), "my.cu")


# -- the simulator ------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
ALONE = """/* rooftop
args = ["n: i32", "x: f32[N]"]
[[launch]]
kernel = "k"
grid = ["G"]
block = [32]
*/
__global__ void k(int n, float* x) {
    for (unsigned r = 5; r >= 0; --r) x[(threadIdx.x + r) % n] += 1;
}
"""
FIXED = ALONE.replace("f32[N]", "f32[64]").replace('"n: i32", ', "").replace('["G"]', "[1]")
FIXED = FIXED[: FIXED.index("__global__")] + "__global__ void k(float* x) { x[threadIdx.x] = 1; }\n"


@needs_compiler
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give the sizes of its dimensions (N missing), as in --shape N=1024"),
        (("--shape", "N=64,Q=3,G=1,n=2"), "--shape names Q; the sizes in the head of mine.cu are G, N, n"),
        (("--shape", "N=64,N=3"), "--shape N=64,N=3: N is given twice"),
        (("--shape", "N=64x3"), "--shape N=64x3: mine.cu names no op, so N is one size, as in --shape N=64"),
        (("--shape", "N=64", "--case", "foo"), "--case foo: mine.cu names no op and so has no cases; its sizes are given by --shape"),
        (("--shape", "N=64", "--blocks", "0"), "--blocks 0: it must be 1 or more"),
        (("--shape", "N=64", "--blocks", "-3"), "--blocks -3: it must be 1 or more"),
        (("--shape", "N=64", "--schedules", "0"), "--schedules 0: it must be 1 or more"),
    ],
)
def test_what_a_file_without_an_op_is_simulated_with(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(ALONE, encoding="utf-8")
    assert command(monkeypatch, "simt", "mine.cu", *words) == 1
    assert says in flat(capsys.readouterr().err)


@needs_compiler
def test_a_file_of_fixed_sizes_is_simulated_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(FIXED, encoding="utf-8")
    assert command(monkeypatch, "simt", "mine.cu") == 0
    assert "checked: no fault" in capsys.readouterr().out
    assert command(monkeypatch, "simt", "mine.cu", "--shape", "N=3") == 1
    assert "--shape names N; the sizes in the head of mine.cu are all fixed" in flat(capsys.readouterr().err)


@needs_compiler
def test_a_file_to_simulate_that_is_not_utf8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_bytes(FIXED.encode() + b"// \xe9\n")
    assert command(monkeypatch, "simt", "mine.cu") == 1
    assert f"mine.cu:{FIXED.count(chr(10)) + 1}: not UTF-8" in flat(capsys.readouterr().err)
    with pytest.raises(ValueError, match=r"mine\.cu:\d+: not UTF-8"):
        simt.simulate(Path("mine.cu"), "k", {"x": torch.zeros(64)}, grid=(1,), block=(32,), arguments=[("x", "ptr")])


@needs_compiler
@pytest.mark.parametrize("given", [{"schedules": 0}, {"blocks": 0}, {"blocks": -1}])
def test_less_than_one_run_or_block(given: dict[str, int]) -> None:
    (name, n), *_ = given.items()
    with pytest.raises(ValueError, match=f"{name} is {n}; it must be 1 or more"):
        simt.simulate(FIXED, "k", {"x": torch.zeros(64)}, grid=(1,), block=(32,), arguments=[("x", "ptr")], **given)


@needs_compiler
def test_sizes_that_an_op_cannot_take_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ladder = registry.ladder("softmax_cuda")
    case = next(c for c in registry.op("softmax").cases if c.inputs["dim"] == 1 and c.name in ladder.cases and c.dtype in ladder.dtypes)
    assert command(monkeypatch, "simt", "softmax_cuda/07", "--case", case.id, "--shape", "x=3") == 1
    assert "softmax cannot take x 3, dim=1: an option names a dimension that no input has" in flat(capsys.readouterr().err)
    assert command(monkeypatch, "simt", "sgemm_cuda/02", "--shape", "a=3x4,b=5x6") == 1
    assert "matmul cannot take a 3x4, b 5x6" in flat(capsys.readouterr().err)


@needs_compiler
def test_what_does_not_end_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "1")
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(ALONE, encoding="utf-8")
    ran: list[str] = []
    run = simt.run_launches

    def noted(*args: Any, mode: Any, **options: Any) -> simt.Report:
        ran.append(mode)
        return run(*args, mode=mode, **options)

    monkeypatch.setattr(simt, "run_launches", noted)
    assert command(monkeypatch, "simt", "mine.cu", "--shape", "N=64,G=1,n=64") == 1
    said = flat(capsys.readouterr().out)
    assert ran == ["check"]
    assert "an endless loop?" in said
    assert "not counted: the kernel does not end" in said


# -- several threads -----------------------------------------------------------------------------------------------


def test_calls_of_other_threads_run_while_one_is_explained() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    inside, go = threading.Event(), threading.Event()

    def add(*given: torch.Tensor) -> torch.Tensor:  # the name says which op it is
        inside.set()
        assert go.wait(60)
        return rooftop.add(*given)

    rooftop.add(x, x)
    before = registry.op("add").caller()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(rooftop.explain, add, x, x)
        assert inside.wait(60)
        other = pool.submit(rooftop.explain, rooftop.add, x, x)  # waits for the first
        try:
            assert torch.equal(rooftop.add(x, x), x + x)
            assert not slow.done()
        finally:
            go.set()
        assert {str(f.result(60)) for f in (slow, other)} == {"add on cpu: the reference, in plain torch (kernels run on CUDA tensors)"}
    assert registry.op("add")._call is before
    with pytest.raises(TypeError):
        rooftop.explain(rooftop.add, x, 5)
    assert registry.op("add")._call is before


def test_a_public_name_is_looked_up_once_and_the_packages_own_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(rooftop), "gelu", raising=False)
    found = rooftop.gelu
    monkeypatch.setattr(api, "_op_names", lambda: pytest.fail("looked up again"))
    assert rooftop.gelu is found
    monkeypatch.setattr(api, "_op_names", lambda: ["load"])
    monkeypatch.delitem(vars(rooftop), "load", raising=False)
    assert rooftop.load is api.load
    with pytest.raises(AttributeError, match="no attribute 'nothing'; it has load"):
        _ = rooftop.nothing


# -- names that are misspelt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "softmax_cuda/03_onlin"), "did you mean 'softmax_cuda/03_online'?"),
        (("check", "softmax_cud/03"), "did you mean 'softmax_cuda'?"),
        (("check", "add__tritn"), "did you mean 'add__triton'?"),
        (("check", "add", "--case", "od f32"), "no case of add 'od f32'; did you mean 'odd f32'?"),
        (("explain", "ad"), "did you mean 'add'?"),
        (("explain", "add", "--case", "odd f3"), "did you mean 'odd f32'?"),
        (("where", "gleu"), "did you mean 'gelu'?"),
        (("inspect", "sgemm_cuda/naiv"), "did you mean 'sgemm_cuda/01_naive'?"),
        (("climb", "sgemm_cud"), "did you mean 'sgemm_cuda'?"),
        (("bench", "softmx"), "did you mean 'softmax'?"),
        (("sanitize", "softmx"), "did you mean 'softmax'?"),
        (("records", "merge", "nowhere-at-all"), "no nowhere-at-all"),
        (("new", "opp", "scale"), "kind is 'opp'; it is one of op, kernel, rung"),
        (("new", "kernel", "softmx__triton"), "did you mean 'softmax'?"),
        (("new", "kernel", "softmax__tritn"), "must read <op>"),
        (("new", "rung", "softmax_cud/09_mine"), "did you mean 'softmax_cuda'?"),
        (("new", "op", "Two Words"), "cannot name an op"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_misspelt_name_gets_a_hint_and_exit_code_1(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *words) == 1
    assert says in flat(capsys.readouterr().err)


def test_a_misspelt_file_name_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.cu").write_text(KERNEL)
    assert command(monkeypatch, "check", str(tmp_path / "kernle.cu")) == 1
    assert "did you mean 'kernel.cu'" in flat(capsys.readouterr().err)
    with pytest.raises(FileNotFoundError, match=r"no file .*kernle\.cu; did you mean 'kernel\.cu'"):
        rooftop.load(tmp_path / "kernle.cu")
    for name in ("zz.cu", "no folder/kernel.cu"):
        assert command(monkeypatch, "check", str(tmp_path / name)) == 1
        assert "did you mean" not in capsys.readouterr().err


def test_a_misspelt_folder_of_records_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab import climb

    monkeypatch.setattr(climb, "build_report", lambda out, known: out)  # the pages themselves take seconds
    assert command(monkeypatch, "report", "--records", str(tmp_path / "reslts"), "--out", str(tmp_path / "pages")) == 1
    assert "reslts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dtype", "f33"), "no case has dtype 'f33'; there are bf16, f16, f32"),
        (("--tag", "edgy"), "no case has tag 'edgy'; there are bench, edge"),
        (("--tag", "edge", "--tag", "edgy"), "no case has tag 'edgy'"),
        (("--tag", "huge", "--no-huge"), "nothing to check: no case of add is left"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_choice_that_leaves_no_case_is_an_error(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "check", "add", *words) == 1
    assert says in flat(capsys.readouterr().err)


def test_an_unknown_backend_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--backend", "gpuu") in (1, 2)
    assert "gpuu" in capsys.readouterr().err


def test_a_setting_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_JOBS", "two")
    assert command(monkeypatch, "inspect", "add", "--arch", "90") == 1
    assert "ROOFTOP_JOBS is 'two'" in capsys.readouterr().err


@without_gpu
def test_the_doctor_says_that_there_is_no_gpu_and_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = command(monkeypatch, "doctor", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert any(r["state"] != "ok" and "GPU" in r["what"] + r["found"] and r["do"] for r in rows), rows
    assert code == (3 if any(r["state"] == "missing" and r["needed"] for r in rows) else 0)


@without_gpu
def test_a_check_on_a_gpu_that_is_not_there_has_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--backend", "gpu") == 3
    assert "no GPU" in flat(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("raised", "status", "column"),
    [(torch.OutOfMemoryError("CUDA out of memory"), "skipped", "skipped"), (RuntimeError("no such kernel"), "error", "errors")],
)
def test_a_case_that_could_not_be_judged_is_not_called_wrong(
    raised: Exception, status: str, column: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(checker, "_check", fails)
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--json") == 1  # nothing was judged
    said = json.loads(capsys.readouterr().out)["results"]
    assert {r["status"] for r in said} == {status}
    assert command(monkeypatch, "check", "add", "--case", "odd f32") == 1
    header, row = (line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1:2] in (["ok"], ["0"]))
    counts = dict(zip(header[1:5], map(int, row[1:5]), strict=True))
    assert counts == {"ok": 0, "wrong": 0, "errors": 0, "skipped": 0, column: len(said)}


# -- records -------------------------------------------------------------------------------------------------------

CARD = "NVIDIA H100 80GB HBM3"
RESULTS = settings.CHECKOUT / "results"
WRITE = """
import sys
from pathlib import Path
from rooftop.lab.records import store as records
folder, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with records.Writer(folder, "NVIDIA H100 80GB HBM3") as writer:
    for i in range(count):
        writer.write({"kind": "clock", "subject": who, "case": str(i), "text": who * 5000, "device": {"name": "NVIDIA H100 80GB HBM3"}})
"""
MERGE = """
import sys
from pathlib import Path
from rooftop.lab.records import store as records
records.merge(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def started(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)


def done(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def row(who: str, i: int = 0) -> dict[str, Any]:
    return {"kind": "clock", "subject": who, "case": str(i), "device": {"name": CARD}}


def put(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl", tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows) + tail)
    return folder / name


def test_many_processes_write_at_once_while_another_reads_and_merges(tmp_path: Path) -> None:
    writers = [started(WRITE, str(tmp_path / "r"), str(i), "25") for i in range(5)]
    while any(w.poll() is None for w in writers):  # what is half written is left out, nothing else
        if (tmp_path / "r").is_dir():
            assert all(len(r["text"]) == 5000 for r in store.read(tmp_path / "r"))
        time.sleep(0.02)
    for w in writers:
        done(w)
    for home in (tmp_path / "r", tmp_path / "home"):
        if home.name == "home":
            store.merge(tmp_path / "r", home)
        found = store.read(home)
        assert sorted((r["subject"], int(r["case"])) for r in found) == [(str(w), i) for w in range(5) for i in range(25)]
        assert all(r["text"] == r["subject"] * 5000 for r in found)
        assert len({(r["subject"], r["run"]) for r in found}) == 5


def test_processes_that_merge_the_same_at_once_make_one_of_it(tmp_path: Path) -> None:
    put(tmp_path / "away", [row("a", i) for i in range(200)])
    for p in [started(MERGE, str(tmp_path / "away"), str(tmp_path / "home")) for _ in range(4)]:
        done(p)
    assert [len(store.read_file(p)[0]) for p in (tmp_path / "home").rglob("*.jsonl")] == [200]
    assert [p.suffix for p in (tmp_path / "home").rglob("*") if p.is_file()] == [".jsonl"]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_two_merges_of_one_name_keep_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Another process brings a file of the same name home between our look and our write; the file system may have no links."""
    put(tmp_path / "away", [row("ours")])
    link, came = os.link, []

    def late(source: Path, target: Path) -> None:
        if not came:
            came.append(put(target.parent, [row("theirs")], target.name))
        if not links:
            raise PermissionError(1, "Operation not permitted", str(source))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert store.merge(tmp_path / "away", tmp_path / "home").added == ["a-2.jsonl"]
    assert sorted(r["subject"] for r in store.read(tmp_path / "home")) == ["ours", "theirs"]
    assert [p.suffix for p in (tmp_path / "home").rglob("*") if p.is_file()] == [".jsonl", ".jsonl"]


def test_a_merge_is_alone_while_it_lets_a_file_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its write no other merge may let the same file grow further: the shorter one would stay."""
    put(tmp_path / "home" / "h100-80gb-hbm3", [row("a")])
    put(tmp_path / "away", [row("a"), row("b")])
    replaced, whole = [], os.replace

    def watched(source: Path, target: Path) -> None:
        handle = os.open(target.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        replaced.append(target.name)
        whole(source, target)

    monkeypatch.setattr(os, "replace", watched)
    assert store.merge(tmp_path / "away", tmp_path / "home").grown == replaced == ["a.jsonl"]
    assert store.read(tmp_path / "home") == [row("a"), row("b")]


def test_an_empty_file_of_the_same_name_is_left_to_whom_it_belongs(tmp_path: Path) -> None:
    put(tmp_path / "home" / "h100-80gb-hbm3", [])
    put(tmp_path / "away", [row("a")])
    for _ in range(2):
        store.merge(tmp_path / "away", tmp_path / "home")
    assert sorted((p.name, len(store.read_file(p)[0])) for p in (tmp_path / "home").rglob("*.jsonl")) == [("a-2.jsonl", 1), ("a.jsonl", 0)]


def test_files_of_one_name_and_other_content_stand_side_by_side(tmp_path: Path) -> None:
    for who in ("a", "b", "c"):
        put(tmp_path / who, [row(who)])
        store.merge(tmp_path / who, tmp_path / "home")
    for who in ("c", "a", "b"):  # again, in another order: nothing changes
        assert store.merge(tmp_path / who, tmp_path / "home").same != []
    assert sorted(r["subject"] for r in store.read(tmp_path / "home")) == ["a", "b", "c"]


def test_merging_a_folder_into_itself_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path / "h100-80gb-hbm3", [row("a")])
    before = (tmp_path / "h100-80gb-hbm3" / "a.jsonl").read_bytes()
    again = store.merge(tmp_path, tmp_path)
    assert (again.added, again.grown, len(again.same)) == ([], [], 1)
    assert [p.read_bytes() for p in tmp_path.rglob("*.jsonl")] == [before]


def test_the_command_merges_twice_and_says_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "away" / "h100", [row("a"), row("b")], tail='{"kind": "ben')
    words = ("records", "merge", str(tmp_path / "away"), "--into", str(tmp_path / "home"))
    assert command(monkeypatch, *words) == 0
    first = flat(capsys.readouterr().out)
    assert "2 records: 1 files added, 0 grown, 0 already there" in first
    assert "a.jsonl:3: cut off, left out" in first
    before = {p: p.read_bytes() for p in (tmp_path / "home").rglob("*.jsonl")}
    assert command(monkeypatch, *words, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["added"], again["grown"], again["same"]) == ([], [], ["a.jsonl"])
    assert {p: p.read_bytes() for p in (tmp_path / "home").rglob("*.jsonl")} == before


def test_a_last_line_that_is_whole_but_for_its_end_is_kept(tmp_path: Path) -> None:
    path = put(tmp_path / "away", [row("a")], tail=json.dumps(row("b")))
    assert store.read_file(path) == ([row("a"), row("b")], None)
    store.merge(tmp_path / "away", tmp_path / "home")
    assert next((tmp_path / "home").rglob("*.jsonl")).read_text().count("\n") == 2


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_cut_off_file_keeps_its_other_records(tmp_path: Path, cut: int) -> None:
    path = put(tmp_path, [row("a"), row("b")])
    path.write_bytes(path.read_bytes()[:-1 - cut])
    found, note = store.read_file(path)
    assert found == [row("a")]
    assert note == "a.jsonl:2: cut off, left out"
    assert store.read(tmp_path) == [row("a")]


def test_a_report_says_that_a_record_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab import climb

    monkeypatch.setattr(climb, "report_counts", lambda run: {})  # simulating every rung takes a minute
    put(tmp_path / "r", [row("a")], tail='{"kind": "ben')
    assert command(monkeypatch, "report", "--records", str(tmp_path / "r"), "--out", str(tmp_path / "pages")) == 0
    said = capfd.readouterr()
    assert "a.jsonl:2: cut off, left out" in said.out + said.err + "".join(p.read_text() for p in (tmp_path / "pages").glob("index.html"))


GOOD = b'{"kind": "clock", "subject": "a", "device": {"name": "H100"}}\n'
NO_RECORDS = {
    "a number": GOOD + b"5\n{}\n",
    "a list": GOOD + b"[1]\n{}\n",
    "no kind": GOOD + b'{"subject": "a"}\n' + GOOD,
    "another kind": GOOD + b'{"kind": "clck"}\n' + GOOD,
    "not UTF-8": GOOD + b"\xff\xfe\n" + GOOD,
    "half a character": GOOD + GOOD.replace(b'"a"', b'"\\ud800"') + GOOD,
    "a device that is null": GOOD + b'{"kind": "clock", "subject": "a", "device": null}\n',
    "a device that is a text": GOOD + b'{"kind": "clock", "subject": "a", "device": "H100"}\n',
    "nested without end": GOOD + GOOD.replace(b'"a"', b"[" * 100_000 + b"]" * 100_000),
    "nested deeply": GOOD + GOOD.replace(b'"subject"', b'"all": ' + b"[" * 200 + b"]" * 200 + b', "subject"'),
    "not a number": GOOD + GOOD.replace(b'"subject"', b'"t": NaN, "subject"'),
    "infinity": GOOD + GOOD.replace(b'"subject"', b'"t": [{"u": -Infinity}], "subject"'),
    "a number past the largest": GOOD + GOOD.replace(b'"subject"', b'"t": 1e999, "subject"'),
}


@pytest.mark.parametrize("what", NO_RECORDS)
def test_what_is_no_record_is_named_with_its_line_and_nothing_is_written(tmp_path: Path, what: str) -> None:
    put(tmp_path / "away", [row("a")], "0.jsonl")
    (tmp_path / "away" / "a.jsonl").write_bytes(NO_RECORDS[what])
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2: "):
        store.merge(tmp_path / "away", tmp_path / "home")
    assert not (tmp_path / "home").exists()


def committed(kind: str) -> store.Record:
    return next(r for r in store.read(RESULTS) if r["kind"] == kind and (kind != "bench" or ("predict" in r and r["versus"] and r["clocks"])))


WRONG_VALUES = [
    ("bench", "work", None), ("bench", "work.read", "1"), ("bench", "clocks", []), ("bench", "clocks.kernel.median", 0),
    ("bench", "clocks.kernel.low", "x"),
    ("bench", "versus", {"a": {"ratio": 0.0, "low": 1.0, "high": 1.0, "verdict": "tie"}}), ("bench", "versus", {"a": 1}),
    ("bench", "predict", {"speedup": None}),
    ("bench", "device.arch", "90"), ("bench", "device.sms", None), ("bench", "error", {"ok": "yes"}), ("bench", "case", 5), ("bench", "work.read", 10**400),
    ("check", "error", None), ("check", "error.max_share", "0"), ("ceiling", "curves.copy", []), ("ceiling", "curves.copy", [{"bytes": 1}]),
    ("ceiling", "launch.graph_node_s", None), ("ceiling", "fma_fp32", {"burst": 1}), ("sanitize", "cases", "odd f32"),
    ("sanitize", "errors", "0"),
    ("counters", "lines", {}), ("counters", "totals", []), ("tune", "config", None), ("build", "seconds", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "key", "value"), WRONG_VALUES, ids=lambda v: str(v)[:30])
def test_a_record_that_the_pages_could_not_read_is_named_with_its_line(tmp_path: Path, kind: str, key: str, value: Any) -> None:
    good = committed(kind)
    bad = json.loads(json.dumps(good))
    *way, last = key.split(".")
    inner = bad
    for name in way:
        inner = inner[name]
    inner[last] = value
    put(tmp_path / "away", [good, bad])
    with pytest.raises(store.RecordError, match=rf"a\.jsonl:2: not a record: {re.escape(way[0] if way else last)}"):
        store.merge(tmp_path / "away", tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("kind", ["bench", "check", "ceiling", "sanitize", "build", "clock", "tune", "counters"])
def test_what_a_record_must_have_is_named_where_it_is_missing(tmp_path: Path, kind: str) -> None:
    good = committed(kind)
    put(tmp_path / "away", [good, {k: v for k, v in good.items() if k != "device"}])
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2: not a record: device is missing"):
        store.merge(tmp_path / "away", tmp_path / "home")


def test_every_committed_record_can_be_read() -> None:
    assert len(store.read(RESULTS)) > 4000
    assert set(store.SHAPES) == set(store.KINDS)


def test_a_text_that_is_cut_within_a_letter_is_cut_off(tmp_path: Path) -> None:
    path = put(tmp_path, [row("a")])
    path.write_bytes(path.read_bytes() + '{"kind": "bench", "subject": "é'.encode()[:-1])
    assert store.read_file(path) == ([row("a")], "a.jsonl:2: cut off, left out")


def test_records_of_two_cards_in_one_file_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "away", [row("a"), {**row("b"), "device": {"name": "NVIDIA H200"}}])
    with pytest.raises(store.RecordError, match=r"several devices: .*H100.*H200"):
        store.merge(tmp_path / "away", tmp_path / "home")
    assert not (tmp_path / "home").exists()


# A regular file where a folder must be stands for every folder that cannot be written: it holds for the super-user too.
UNWRITABLE = {
    "check": ("check", "add", "--case", "odd f32", "--records"),
    "merge": ("records", "merge", "AWAY", "--into"),
    "report": ("report", "--records", "AWAY", "--out"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_folder_that_cannot_be_written_is_named_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(tmp_path / "away", [row("a")])
    (tmp_path / "file").write_text("kept")
    words = [str(tmp_path / "away") if w == "AWAY" else w for w in UNWRITABLE[name]]
    assert command(monkeypatch, *words, str(tmp_path / "file" / "r")) == 3
    said = capsys.readouterr().err
    assert str(tmp_path / "file") in said.replace("\n", "")
    assert "Not a directory" in said
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_for_records_is_tried_before_anything_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.lab.check import checker

    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr(checker, "check", lambda *given, **named: pytest.fail("checked first"))
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--records", str(tmp_path / "file")) == 3


def test_a_folder_that_was_tried_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = store.Writer(tmp_path, CARD).ready()
    assert list(tmp_path.rglob("*")) == [where]

    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(OSError, match="No space left") as caught:
        store.Writer(tmp_path, CARD).ready()
    assert caught.value.filename == str(where)


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may write everywhere")
def test_a_read_only_folder_of_records_can_be_read_and_not_written(tmp_path: Path) -> None:
    put(tmp_path / "r" / "h100-80gb-hbm3", [row("a")])
    (tmp_path / "r" / "h100-80gb-hbm3").chmod(0o555)
    (tmp_path / "r").chmod(0o555)
    try:
        assert store.read(tmp_path / "r") == [row("a")]
        with pytest.raises(PermissionError, match="h100"), store.Writer(tmp_path / "r", CARD) as writer:
            writer.write(row("b"))
        assert store.read(tmp_path / "r") == [row("a")]
    finally:
        (tmp_path / "r").chmod(0o755)
        (tmp_path / "r" / "h100-80gb-hbm3").chmod(0o755)


def test_a_disk_that_is_full_is_an_error_and_loses_no_record_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.Writer(tmp_path, CARD) as writer:
        writer.write(row("a"))
        with monkeypatch.context() as m:

            def full(handle: int) -> None:
                raise OSError(28, "No space left on device")

            m.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                writer.write(row("b"))
    assert [r["subject"] for r in store.read(tmp_path)][:1] == ["a"]


# -- skeletons -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("op", "add"), ("kernel", "add__triton"), ("kernel", "softmax__triton"), ("rung", "softmax_cuda/03_online")], ids=" ".join)
def test_nothing_that_is_there_is_written_over(words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kind, name = words
    folder = {"op": registry.HOUSE.ops, "kernel": registry.HOUSE.kernels, "rung": registry.HOUSE.ladders}[kind]
    path = next(p for p in folder.rglob(f"{name.rpartition('/')[2]}.*") if p.suffix in (".py", ".cu"))
    before = path.read_bytes(), path.stat().st_mtime_ns, sorted(folder.rglob("*.[pc][yu]"))
    assert command(monkeypatch, "new", *words) == 1
    assert f"{path.name} is there already" in capsys.readouterr().err.replace("\n", "")
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(folder.rglob("*.[pc][yu]"))) == before


@pytest.fixture
def house(tmp_path: Path) -> registry.House:
    """A house of its own with one op and one ladder."""
    made = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    made.ops.mkdir()
    made.kernels.mkdir()
    (made.ladders / "l").mkdir(parents=True)
    (made.ops / "softmax.py").write_text((registry.HOUSE.ops / "softmax.py").read_text())
    (made.ladders / "l" / "ladder.toml").write_text(
        'op="softmax"\ntitle="t"\nintro="i"\ndtypes=["f32"]\ntargets=[90]\nheadline="odd 3x7"\ncases=["odd 3x7"]'
    )
    (made.ladders / "l" / "01_first.cu").write_text(KERNEL)
    return made


def test_a_rung_under_another_name_leaves_the_ladder_readable(house: registry.House) -> None:
    scaffold.write("rung", "l/02_second", house)
    assert [r.slug for r in registry.ladder("l", house).rungs] == ["first", "second"]
    for name in ("l/../../out", "l/2_second", "l/02_Second", "l/", "l"):
        with pytest.raises(ValueError, match="must read <ladder>/NN_slug"):
            scaffold.write("rung", name, house)


def test_a_rung_with_a_number_that_is_taken_is_refused(house: registry.House) -> None:
    with pytest.raises(ValueError, match="01"):
        scaffold.write("rung", "l/01_other", house)
    assert len(registry.ladder("l", house).rungs) == 1


def test_a_ladder_without_a_cu_rung_has_no_model_for_one(house: registry.House) -> None:
    (house.ladders / "l" / "01_first.cu").unlink()
    with pytest.raises(ValueError, match=r"l has no \.cu rung to start from"):
        scaffold.write("rung", "l/01_first", house)


@pytest.mark.parametrize("name", ["lambda", "import", "load", "explain", "register", "lab", "ops"])
def test_an_op_cannot_be_called_as_a_keyword_or_as_what_the_package_has(house: registry.House, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        scaffold.write("op", name, house)


# -- the machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("nosuch",), ("ls", "--bad"), ("where",), ("inspect", "add", "--arch", "x")])
def test_a_usage_error_is_not_the_exit_code_of_a_slower_kernel(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, *words) == 1


def test_exit_code_two_is_left_to_those_who_mean_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower() -> None:
        raise typer.Exit(2)

    monkeypatch.setattr(cli, "app", typer.Typer())
    cli.app.command()(slower)
    assert command(monkeypatch) == 2


@pytest.mark.parametrize(("name", "package"), [("jinja2", "jinja2"), ("plotly.graph_objects", "plotly"), ("liger_kernel.ops", "liger-kernel")])
def test_a_package_that_is_missing_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent() -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(cli, "commands", absent)
    assert command(monkeypatch, "ls") == 3
    assert capsys.readouterr().err == f"rooftop: {name.partition('.')[0]} is not installed: pip install {package}\n"


def test_a_module_of_the_house_that_is_missing_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'rooftop.nosuch'", name="rooftop.nosuch")

    monkeypatch.setattr(cli, "commands", absent)
    with pytest.raises(ModuleNotFoundError):
        command(monkeypatch, "ls")


def test_doctor_names_the_packages_that_pages_and_references_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    rows = {r.what: r for r in doctor.examine()}
    assert (rows["plotly"].state, rows["plotly"].do, rows["plotly"].needed) == ("missing", "pip install plotly", True)
    assert [rows[n].state for n in ("ml_dtypes", "jinja2", "pygments")] == ["ok"] * 3


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, NotADirectoryError])
@pytest.mark.parametrize("where", ["cache/simt/ab", "cache", ""])
def test_a_cache_that_cannot_be_used_names_its_setting(
    error: type[OSError], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))

    def fails() -> None:
        raise error(1, "No", str(tmp_path / where))

    monkeypatch.setattr(cli, "app", fails)
    assert command(monkeypatch, "ls") == 3
    assert "ROOFTOP_CACHE" in capsys.readouterr().err


def test_another_file_that_is_not_there_is_no_matter_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))

    def fails() -> None:
        raise FileNotFoundError(2, "No such file", str(tmp_path / "mine.cu"))

    monkeypatch.setattr(cli, "app", fails)
    assert command(monkeypatch, "ls") == 1
    assert "ROOFTOP_CACHE" not in capsys.readouterr().err
