"""`dispatch_rows` and `combine_rows` over gloo, against the contract; the experts' product between them; what they refuse."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from _processes import run
from torch import Tensor

import rooftop
from rooftop import comm
from rooftop.ranks.experts import begins

FORMS: list[tuple[str, int, int | None, torch.dtype]] = [  # wire, experts a rank, capacity, dtype
    ("bf16", 2, None, torch.bfloat16), ("int8", 3, None, torch.float32), ("int4", 1, 9, torch.float16), ("fp8", 2, 30, torch.bfloat16),
]
TOKENS, COLUMNS = 12, 70


def given(ranks: int, i: int) -> tuple[Tensor, Tensor]:
    """x of all ranks [W, N, C], and counts [W, E]: one expert gets none, one rank sends nothing, of one counts are out of range."""
    g, (_, each, _, dtype) = torch.Generator().manual_seed(i), FORMS[i]
    counts = torch.randint(0, 2 * TOKENS // (ranks * each) + 2, (ranks, ranks * each), generator=g, dtype=torch.int32)
    counts[:, -1] = 0
    counts[i % ranks] = 0
    counts[(i + 1) % ranks, 0] = -5
    return torch.randn(ranks, TOKENS, COLUMNS, generator=g).to(dtype), counts


def every(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, (wire, _, capacity, _) in enumerate(FORMS):
        x, counts = given(ranks, i)
        rows, routes = comm.dispatch_rows(x[rank], counts[rank], capacity=capacity, wire=wire, group_size=64)
        found[str(i)] = rows, routes.received, routes.ends, comm.combine_rows(rows * 2, routes, wire=wire, group_size=64)
    x, counts = given(ranks, 0)
    weights = torch.randn(ranks * 2, COLUMNS, 48, generator=torch.Generator().manual_seed(9)).bfloat16()
    rows, routes = comm.dispatch_rows(x[rank], counts[rank], wire="bf16")
    made = rooftop.grouped_matmul(rows, weights[2 * rank : 2 * rank + 2], routes.ends)
    found["product"] = comm.combine_rows(made, routes, wire="bf16")
    found["strided"] = torch.equal(comm.dispatch_rows(x[rank].t().contiguous().t(), counts[rank], wire="bf16")[0], rows)
    for shape, room in (((0, 8), None), ((3, 0), 2)):
        empty, ways = comm.dispatch_rows(torch.ones(shape), torch.ones(ranks, dtype=torch.int32), capacity=room)
        found[f"empty {shape}"] = tuple(empty.shape), tuple(comm.combine_rows(empty, ways).shape), ways.received.tolist()
    if ranks > 2:
        return found
    said: dict[str, str] = {}
    p, n = torch.ones(6, 8), torch.tensor([2, 3], dtype=torch.int32)
    rows, routes = comm.dispatch_rows(p, n)
    no: Any = {"counts": [2, 3], "capacity": 2.5, "routes": routes.received}  # of other types
    calls: dict[str, Callable[[], Any]] = {
        "columns": lambda: comm.dispatch_rows(p[:, : 8 - rank], n), "counts": lambda: comm.dispatch_rows(p, n[: 2 - rank]),
        "experts": lambda: comm.dispatch_rows(p, n.repeat(1 + rank)), "many": lambda: comm.dispatch_rows(p, n.repeat(600)),
        "type": lambda: comm.dispatch_rows(p, n.long()), "list": lambda: comm.dispatch_rows(p, no["counts"]),
        "capacity": lambda: comm.dispatch_rows(p, n, capacity=5 + rank), "none": lambda: comm.dispatch_rows(p, n, capacity=-1),
        "half": lambda: comm.dispatch_rows(p, n, capacity=no["capacity"]),
        "vector": lambda: comm.dispatch_rows(p[0], n), "wire": lambda: comm.dispatch_rows(p, n, wire="int8" if rank else "int4"),
        "path": lambda: comm.dispatch_rows(p, n, path="plain"), "symmetric": lambda: comm.dispatch_rows(p, n, path="symmetric"),
        "another": lambda: comm.dispatch_rows(p, n) if rank else comm.all_to_all(p),
        "no routes": lambda: comm.combine_rows(rows, no["routes"]), "half the rows": lambda: comm.combine_rows(rows[:6], routes),
        "more rows": lambda: comm.combine_rows(torch.ones(12 + rank, 8), routes),
        "fewer ranks": lambda: comm.combine_rows(rows, replace(routes, received=routes.received[:1])),
        "other tokens": lambda: comm.combine_rows(rows, replace(routes, tokens=6 + rank)),
        "another's routes": lambda: comm.combine_rows(rows, replace(routes, counts=n.flip(0)) if rank else routes),
    }
    for name, call in calls.items():
        said[name] = "nothing"
        try:
            call()
        except (TypeError, ValueError, RuntimeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
        with suppress(AssertionError):
            assert float(comm.all_reduce(torch.ones(4))[0]) == ranks  # the group goes on
            said[name] += " | ok"
    found["said"] = said
    return found


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rows_go_to_their_experts_and_back(ranks: int, request: pytest.FixtureRequest) -> None:
    if ranks > 2:
        request.getfixturevalue("long")
    found = run(every, ranks)
    for i, (wire, _, capacity, _) in enumerate(FORMS):
        x, counts = given(ranks, i)
        out, received, ends = rooftop.expert_rows_ranks(x, counts, rows=capacity or ranks * TOKENS, wire=wire, group_size=64)
        back = rooftop.expert_rows_ranks(out * 2, counts, received, rows=TOKENS, wire=wire, group_size=64)
        for r, f in enumerate(found):
            for name, got, want in zip(("rows", "received", "ends", "back"), f[str(i)], (out, received, ends, back), strict=True):
                assert torch.equal(got, want[r]), (wire, ranks, r, name)
    x, counts = given(ranks, 0)
    weights = torch.randn(ranks * 2, COLUMNS, 48, generator=torch.Generator().manual_seed(9)).bfloat16()
    starts = begins(counts, TOKENS)
    for r, f in enumerate(found):
        want = torch.zeros(TOKENS, 48, dtype=torch.float64)
        for e in range(2 * ranks):
            rows = slice(int(starts[r, e]), int(starts[r, e + 1]))
            want[rows] = x[r, rows].double() @ weights[e].double()
        torch.testing.assert_close(f["product"].double(), want, rtol=2**-7, atol=0.05)
        assert f["strided"]
        assert f["empty (0, 8)"] == ((0, 8), (0, 8), [[0]] * ranks)
        assert f["empty (3, 0)"] == ((2, 0), (3, 0), [[int(r < 3)]] * ranks)  # three rows, one for each of the first ranks
    if ranks == 2:
        errors(found)


def errors(found: Any) -> None:
    texts = {
        "columns": ("Disagreement: dispatch_rows: the ranks were given different", None),
        "counts": (None, "ValueError: dispatch_rows: counts is (1,); it must be [E], with E a multiple of 2"),
        "experts": ("Disagreement: dispatch_rows", "Disagreement: dispatch_rows"),
        "many": ("ValueError: dispatch_rows: counts is (1200,)",) * 2, "type": ("TypeError: dispatch_rows: counts is torch.int64; it must be torch.int32",) * 2,
        "list": ("TypeError: dispatch_rows: counts is a list",) * 2, "capacity": ("Disagreement: dispatch_rows",) * 2,
        "none": ("ValueError: dispatch_rows: capacity is -1; it must be at least 0",) * 2,
        "half": ("TypeError: dispatch_rows: capacity is 2.5",) * 2, "vector": ("ValueError: dispatch_rows: the rows are (8,)",) * 2,
        "wire": ("Disagreement: dispatch_rows",) * 2, "path": ("ValueError: dispatch_rows: path is 'plain'; accepted are None, 'portable', 'symmetric'",) * 2,
        "symmetric": ("RuntimeError: dispatch_rows: path 'symmetric': the tensor lies on the CPU",) * 2,
        "another": ("Disagreement: all_to_all", "Disagreement: dispatch_rows"),
        "no routes": ("TypeError: combine_rows: routes is a Tensor; it must be the Routes",) * 2,
        "more rows": ("Disagreement: combine_rows", "ValueError: combine_rows: rows is (13, 8); it must have the 12 rows that dispatch_rows returned"),
        "fewer ranks": ("ValueError: combine_rows: routes.received is (1, 1)",) * 2,
        "half the rows": ("ValueError: combine_rows: rows is (6, 8); it must have the 12 rows",) * 2, "other tokens": ("Disagreement: combine_rows",) * 2,
        "another's routes": (
            "Disagreement: combine_rows: the ranks' routes are not of one dispatch_rows: by those of rank 1 it sent rank 0 3 rows for expert 0, by "
            "those of rank 0 these were 2",
        ) * 2,
    }
    for rank, f in enumerate(found):
        for name, said in f["said"].items():
            want = texts[name][rank] or "Disagreement: "
            assert said.startswith(want) and said.endswith(" | ok") and "\n" not in said, (name, rank, said)


def late(rank: int, ranks: int) -> tuple[str, float]:
    if rank == 1:
        time.sleep(3)
        return "", 0.0
    begun = time.monotonic()
    try:
        comm.dispatch_rows(torch.ones(4, 8), torch.ones(ranks, dtype=torch.int32), timeout=1)
    except comm.CommError as error:
        return str(error), time.monotonic() - begun
    return "nothing", 0.0


def test_a_rank_that_does_not_come_is_an_error_within_the_timeout(long: None) -> None:
    said, seconds = run(late, 2)[0]
    assert said.startswith("dispatch_rows (rank 0 of 2, gloo) was not answered by all ranks") and seconds < 2.5


def test_one_rank_copies() -> None:
    assert run(alone, 1) == [(True, True, [[2, 3, 0]], [2, 4, 4])]


def alone(rank: int, ranks: int) -> tuple[bool, bool, list[Any], list[int]]:
    x = torch.randn(7, 5)
    rows, routes = comm.dispatch_rows(x, torch.tensor([2, 3, -1], dtype=torch.int32), capacity=4, wire="int4")
    back = comm.combine_rows(rows, routes, wire="int4")
    same = torch.equal(rows, x[:4]) and torch.equal(back[:4], x[:4])
    return same, not back[4:].any(), routes.received.tolist(), routes.ends.tolist()
