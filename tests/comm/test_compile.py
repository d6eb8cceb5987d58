"""The collectives inside `torch.compile` and export: one graph, the same bits."""

from __future__ import annotations

from typing import Any

import torch
from _processes import run

from rooftop import comm


def compiled(rank: int, ranks: int) -> list[Any]:
    import torch._dynamo.testing

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = comm.all_reduce(x.sin() * 2, wire="int8", shots=2) + 1
        z = comm.reduce_scatter(y, wire="int4", group_size=32)
        return y, z, comm.all_gather(z, wire="fp8").cos(), comm.all_to_all(y)

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    x = torch.randn(8, 24, generator=torch.Generator().manual_seed(rank))
    want, got = f(x), torch.compile(f, backend=counter, fullgraph=True)(x)
    return [all(torch.equal(a, b) for a, b in zip(want, got, strict=True)), counter.frame_count]


def test_one_graph_and_the_same_bits(long: None) -> None:
    assert run(compiled, 2) == [[True, 1]] * 2


def checked(rank: int, ranks: int) -> str:
    import torch.distributed as dist

    x = torch.randn(8, 24)
    name = dist.group.WORLD.group_name
    assert torch.equal(comm.all_reduce(torch.ones(1)), torch.full((1,), 2.0))
    tests, options = ("test_schema", "test_faketensor"), ("int8", 128, False, False, 0)
    torch.library.opcheck(torch.ops.rooftop_comm.all_reduce.default, (x, name, *options, 2, None), test_utils=tests)
    torch.library.opcheck(torch.ops.rooftop_comm.all_gather.default, (x, name, *options), test_utils=tests)
    return "ok"


def test_the_operators_keep_what_they_declare(long: None) -> None:
    assert run(checked, 2) == ["ok", "ok"]
