"""On a GPU: one op in every backend. Tensor maps, descriptors, grids that wait, zeroed scratch, calls of torch, as a call binds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _backend_house import NAMES, kernel, subject

from rooftop.core.implementation import device_of
from rooftop.lab.check import checker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch.cuda.is_available() is False")]
CASES = ("tile", "tiles", "ragged", "odd", "one")


def made(m: int, n: int, k: int, seed: int) -> tuple[Any, Any, Any]:
    g = torch.Generator("cuda").manual_seed(seed)
    a, b = (torch.randn(rows, k, device="cuda", generator=g).bfloat16() for rows in (m, n))
    return a, b, torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_every_backend_is_right(name: str) -> None:
    found = subject(name)
    said = {case: checker.check(found, found.op.case(f"{case} bf16"), backend="gpu", seed=5) for case in CASES}
    assert {r.status for r in said.values()} <= {"ok", "skipped"}, {case: r.message for case, r in said.items()}
    assert said["tiles"].status == said["ragged"].status == "ok", said["tiles"].message + said["ragged"].message


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_bound_once_takes_other_tensors_and_streams(name: str) -> None:
    found, card = kernel(name), device_of(0)
    one = subject(name)
    problem = one.op.problem(one.op.case("tiles bf16"), card)
    if reason := found.supports(problem):
        pytest.skip(reason)
    config = found.choose(problem)
    scratch, zeroed = found.scratch(problem, config), found.zeroed(problem, config)
    run = found.bind(problem, config, ("a", "b", "c", *scratch), 0)
    kept = []
    for seed, stream in ((1, torch.cuda.current_stream()), (2, torch.cuda.Stream()), (3, torch.cuda.current_stream())):
        a, b, c = made(128, 192, 256, seed)
        kept.append((a, b, c))  # so that each call brings other addresses
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            aside = [torch.full(m.shape, 0 if n in zeroed else 77, device="cuda", dtype=torch.float32 if m.dtype == "f32" else torch.int32)
                     for n, m in scratch.items()]
            run(stream.cuda_stream, [a, b, c, *aside])
        torch.cuda.synchronize()
        expected = a.double() @ b.double().T
        error = (c.double() - expected).abs().max() / expected.abs().max()
        assert float(error) < 2**-7, f"{name}, call {seed}: {float(error)}"


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("torch",)])
def test_launches_of_every_backend_can_be_captured(name: str) -> None:
    found, one = kernel(name), subject(name)
    problem = one.op.problem(one.op.case("tiles bf16"), device_of(0))
    if reason := found.supports(problem):
        pytest.skip(reason)
    config = found.choose(problem)
    scratch = found.scratch(problem, config)
    a, b, c = made(128, 192, 256, 9)
    aside = [torch.zeros(m.shape, device="cuda", dtype=torch.float32 if m.dtype == "f32" else torch.int32) for m in scratch.values()]
    run = found.bind(problem, config, ("a", "b", "c", *scratch), 0)
    run(torch.cuda.current_stream().cuda_stream, [a, b, c, *aside])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t in aside:
            t.zero_()
        run(torch.cuda.current_stream().cuda_stream, [a, b, c, *aside])
    first = c.clone()
    c.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(first, c)
