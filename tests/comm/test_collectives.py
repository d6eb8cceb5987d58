"""Quantised collectives over gloo: what two and three processes get, against the formula on one device."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run

import rooftop
from rooftop import comm
from rooftop.formats import wire as wires
from rooftop.ranks import groups, sizes

WIRES: list[dict[str, Any]] = [
    {"wire": "bf16"}, {"wire": "fp8", "group_size": 32}, {"wire": "int8"}, {"wire": "int4", "group_size": 64}, {"wire": "int4", "hadamard": True},
    {"wire": "int8", "stochastic": True, "seed": 5}, {"wire": "int4", "stochastic": True, "hadamard": True, "seed": 6},
]
DTYPES = (torch.bfloat16, torch.float32, torch.float16)


def given(ranks: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(ranks, count, generator=torch.Generator().manual_seed(count))
    if count > 400:
        x[0, 3], x[ranks - 1, 300], x[0, 301] = float("inf"), float("nan"), -float("inf")
    return x.to(dtype)


def every(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, options in enumerate(WIRES):
        dtype = DTYPES[i % 3]
        for count in (0, 1, 501, 768):
            x = given(ranks, count, dtype)[rank]
            for shots in (1, 2):
                found[f"reduce {i} {count} {shots}"] = comm.all_reduce(x, shots=shots, path="portable", **options)
        rows = given(ranks, 10 * ranks * 7, dtype)[rank].view(10 * ranks, 7)
        found[f"scatter {i}"] = comm.reduce_scatter(rows, **options)
        found[f"gather {i}"] = comm.all_gather(rows, **options)
        found[f"all {i}"] = comm.all_to_all(rows, **options)
        found[f"sent {i}"] = comm.sent(rows, **options)
    strided = given(ranks, 768, torch.float32)[rank].view(24, 32).t()
    found["strided"] = comm.all_reduce(strided)
    found["same"] = comm.all_reduce(strided.contiguous())
    alone = [dist.new_group([r]) for r in range(ranks)][rank]
    found["alone"] = torch.equal(comm.all_reduce(strided, alone, wire="int4").nan_to_num(7.0), strided.nan_to_num(7.0))
    found["plain"] = [
        comm.reduce_scatter(strided.t().reshape(2 * ranks, -1)[: 2 * ranks], path="plain") if ranks == 2 else None, comm.all_gather(strided, path="plain"),
        comm.all_to_all(strided.t().reshape(2 * ranks, -1), path="plain", statistics=True) if ranks == 2 else None,
    ]
    found["statistics"] = [f(rows, statistics=True)[1] for f in (comm.all_reduce, comm.reduce_scatter, comm.all_gather, comm.all_to_all)]
    found["plan"] = [str(comm.plan(rows)), *(str(comm.plan(rows, kind=k)) for k in ("reduce_scatter", "all_gather", "all_to_all"))]
    found["every second"] = torch.equal(*(comm.all_reduce(t).nan_to_num(7.0) for t in (rows[:, 1:7:2], rows[:, 1:7:2].contiguous())))
    numbers = torch.arange(24.0).view(4, 6) + rank
    found["conjugate"] = torch.equal(comm.all_gather(torch.complex(numbers, numbers).conj().imag), comm.all_gather(-numbers))
    return found


def both(rank: int, ranks: int) -> Any:
    return every(rank, ranks), disagree(rank, ranks)


@pytest.fixture(scope="module")
def two() -> Any:
    """What two processes found, (every, disagree): started once."""
    return tuple(zip(*run(both, 2), strict=True))


def test_every_rank_gets_what_the_formula_says(two: Any) -> None:
    hold(two[0])


def test_three_ranks_do_too(long: None) -> None:
    hold(run(every, 3))


def hold(found: Any) -> None:
    ranks = len(found)
    for i, options in enumerate(WIRES):
        dtype = DTYPES[i % 3]
        for count in (0, 1, 501, 768):
            for shots in (1, 2):
                want = rooftop.all_reduce_ranks(given(ranks, count, dtype), shots=shots, **options)
                for rank in range(ranks):
                    got = found[rank][f"reduce {i} {count} {shots}"]
                    assert got.dtype == dtype and torch.equal(got.nan_to_num(7.0), want[rank].nan_to_num(7.0)), (options, count, shots, rank)
                    assert torch.equal(got.isnan(), want[rank].isnan())
        x = given(ranks, 10 * ranks * 7, dtype).view(ranks, 10 * ranks, 7)
        o = {"fp8": 0.07, "bf16": 0.01, "int8": 0.02, "int4": 0.4}[options["wire"]] * (2 if options.get("stochastic") else 1)
        parts = x.view(ranks, ranks, 10, 7)
        gathered = [f["gather " + str(i)] for f in found]
        for rank in range(ranks):
            close(found[rank][f"scatter {i}"], parts[:, rank].float().sum(0), o * ranks)
            close(gathered[rank], x.reshape(-1, 7).float(), o)
            assert torch.equal(gathered[rank].nan_to_num(7.0), gathered[0].nan_to_num(7.0))
            close(found[rank][f"all {i}"], parts[:, rank].reshape(-1, 7).float(), o)
            close(found[rank][f"sent {i}"], x[rank].float(), o)
    whole = [given(ranks, 768, torch.float32)[r].view(24, 32) for r in range(ranks)]
    for rank, f in enumerate(found):
        scattered, gathered, exchanged = f["plain"]
        assert torch.equal(gathered.nan_to_num(7.0), torch.cat([w.t() for w in whole]).nan_to_num(7.0))
        if ranks == 2:
            parts = [w.reshape(2, 2, -1)[rank] for w in whole]
            assert torch.equal(scattered.nan_to_num(7.0), (parts[0] + parts[1]).nan_to_num(7.0))
            assert torch.equal(exchanged[0].nan_to_num(7.0), torch.cat(parts).nan_to_num(7.0)) and exchanged[1].rms_error == 0
    for f in found:
        assert torch.equal(f["strided"].nan_to_num(7.0), f["same"].nan_to_num(7.0)) and f["alone"]
        assert f["statistics"] == found[0]["statistics"]
        assert all(0 < s.relative < 0.02 and s.max_error < 0.2 for s in f["statistics"])
        assert f["every second"] and f["conjugate"]
        assert all("portable" in p and "CPU" in p for p in f["plan"]) and len(set(f["plan"][1:])) == 1 and "1 shot" in f["plan"][1]


def close(got: torch.Tensor, want: torch.Tensor, atol: float) -> None:
    finite = want.isfinite() & got.isfinite()
    assert got.shape == want.shape and bool(finite.any())
    torch.testing.assert_close(got[finite].float(), want[finite], atol=atol * 3, rtol=0.05)


def disagree(rank: int, ranks: int) -> list[tuple[str, str]]:
    x = torch.ones(8 + rank)
    said = []
    for call in (
        lambda: comm.all_reduce(x),
        lambda: comm.all_reduce(torch.ones(8, dtype=torch.float32 if rank else torch.bfloat16)),
        lambda: comm.all_reduce(torch.ones(8), wire="int4" if rank else "int8"),
        lambda: comm.all_reduce(torch.ones(8, dtype=torch.int32 if rank else torch.float32)),
        lambda: comm.all_gather(torch.ones(8)) if rank else comm.all_to_all(torch.ones(8)),
    ):
        try:
            call()
            said.append(("none", ""))
        except (TypeError, ValueError) as error:
            said.append((type(error).__name__, str(error)))
    said.append(("sum", str(float(comm.all_reduce(torch.ones(8), wire="bf16")[0]))))  # the group still works
    return said


def test_ranks_that_disagree_all_say_so(two: Any) -> None:
    for rank, said in enumerate(two[1]):
        assert [name for name, _ in said[:3]] == ["Disagreement"] * 3
        assert "rank 0: all_reduce of float32 (8,)" in said[0][1] and "rank 1: all_reduce of float32 (9,)" in said[0][1]
        assert "bfloat16" in said[1][1]
        assert said[3][0] == ("TypeError" if rank else "Disagreement") and ("torch.int32" if rank else "refused its arguments") in said[3][1]
        assert said[4][0] == "Disagreement"
        assert said[5] == ("sum", "2.0")


def killed(rank: int, ranks: int) -> None:
    comm.all_reduce(torch.ones(1000))
    if rank == 1:
        os._exit(3)
    comm.all_reduce(torch.ones(1000))


def late(rank: int, ranks: int) -> None:
    import time

    comm.all_reduce(torch.ones(1000))
    if rank == 1:
        time.sleep(5)
    comm.all_reduce(torch.ones(1000))


def test_a_rank_that_died_is_an_error_on_the_others() -> None:
    found, dead = run(killed, 2, fails=True)
    assert dead is None
    assert found[0] == "CommError" and "all_reduce (rank 0 of 2, gloo)" in found[1], found


def test_all_that_are_left_have_it(long: None) -> None:
    first, dead, last = run(killed, 3, fails=True)
    assert dead is None and first[0] == last[0] == "CommError"


def test_a_rank_that_is_late_is_an_error_on_all(long: None) -> None:
    for rank, found in enumerate(run(late, 2, timeout=2, fails=True)):
        assert found[0] == "CommError" and f"all_reduce (rank {rank} of 2, gloo)" in found[1], found


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"wire": "int3"}, ValueError, "wire is 'int3'; accepted are 'bf16'"), ({"group_size": 100}, ValueError, "group_size is 100"),
        ({"group_size": True}, TypeError, "group_size is True"), ({"wire": "bf16", "hadamard": True}, ValueError, "hadamard"),
        ({"wire": "fp8", "stochastic": True}, ValueError, "stochastic=True is for"), ({"hadamard": 1}, TypeError, "hadamard is 1"),
        ({"seed": 1.5}, TypeError, "seed"), ({"shots": 3}, ValueError, "shots is 3"), ({"path": "fast"}, ValueError, "path is 'fast'"),
        ({"path": "symmetric"}, RuntimeError, "the tensor lies on the CPU"),
    ],
)
def test_what_is_not_accepted(alone: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        comm.all_reduce(torch.ones(4), **options)


def test_bad_tensors_and_groups(alone: Any) -> None:
    with pytest.raises(TypeError, match="x is a list"):
        comm.all_reduce([1.0])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="group is a str"):
        comm.all_reduce(torch.ones(4), "world")
    with pytest.raises(ValueError, match="no dimensions"):
        comm.all_gather(torch.ones(()))
    refused = (("gather", {}, "kind is 'gather'"), ("all_gather", {"shots": 2}, "shots is 2"), ("all_to_all", {"path": "hierarchical"}, "path is"))
    for kind, more, text in refused:
        with pytest.raises(ValueError, match=text):
            comm.plan(torch.ones(4), kind=kind, **more)  # type: ignore[arg-type]


def test_without_torch_distributed_it_says_so() -> None:
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match="init_process_group"):
        comm.all_reduce(torch.ones(4))


@pytest.fixture
def alone(tmp_path: Any) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wire", ["fp8", "int8", "int4"])
def test_messages_keep_what_is_not_finite_where_it_stood(wire: str) -> None:
    w = wires.WIRES[wire]
    x = torch.randn(1, 256)
    x[0, 5], x[0, 6], x[0, 200] = float("inf"), -float("inf"), float("nan")
    back = wires.values(wires.encode(x, w, 64), w, 64, 256)
    assert torch.equal(back.isnan(), x.isnan()) and torch.equal(back.isinf(), x.isinf()) and back[0, 5] > 0 > back[0, 6]
    rest = x.isfinite()
    torch.testing.assert_close(back[rest], x[rest], atol={"fp8": 0.2, "int8": 0.02, "int4": 0.4}[wire], rtol=0)


@pytest.mark.parametrize("wire", list(wires.WIRES))
def test_a_multiple_of_the_scale_comes_back_exactly(wire: str) -> None:
    w = wires.WIRES[wire]
    x = torch.randint(-7, 8, (3, 128)).float() * 2
    x[:, 0] = w.most * 2 if w.most else 2.0
    if w.name == "int4":
        x = x.clamp(-14, 14)
    if w.name == "fp8":
        x[:, 1:] = torch.tensor([-12.0, -2.0, 0.0, 4.0]).repeat(128)[:127]
    assert torch.equal(wires.values(wires.encode(x, w, 128), w, 128, 128), x)


def test_stochastic_rounding_is_unbiased() -> None:
    w = wires.WIRES["int4"]
    x = torch.full((1, 65536), 0.3)
    x[0, ::64] = 7.0  # scale 1
    from rooftop.formats import random_bits

    back = wires.values(wires.encode(x, w, 64, random_bits.halves(3, x.numel()).view(x.shape)), w, 64, x.shape[1])
    small = back[x == torch.tensor(0.3)]
    assert set(small.unique().tolist()) == {0.0, 1.0}
    assert abs(float(small.mean()) - 0.3) < 0.01
    assert abs(float(wires.values(wires.encode(x, w, 64), w, 64, x.shape[1])[x == torch.tensor(0.3)].mean())) == 0


def test_the_measured_size_that_is_nearest_decides() -> None:
    rows = [{"bytes": b, "wire": "int8", "plain_us": p, "symmetric_us": s} for b, p, s in ((1 << 20, 20.0, 30.0), (1 << 24, 200.0, 100.0))]
    small, large = sizes.judged(rows, 1 << 18, "int8", "symmetric"), sizes.judged(rows, 1 << 30, "int8", "symmetric")
    assert small is not None and small.path == "plain" and "1048576" in small.why
    assert large is not None and large.path == "symmetric"
    other = [{**rows[0], "kind": "all_gather", "plain_us": 99.0}]
    assert sizes.judged(other, 1 << 20, "int8", "symmetric") is None
    found = sizes.judged([*rows, *other], 1 << 20, "int8", "symmetric", "all_gather")
    assert found is not None and found.path == "symmetric"
    assert sizes.judged(rows, 1 << 20, "int4", "symmetric") is None and sizes.judged((), 1, "int8", "symmetric") is None


def test_the_contract_is_held_on_several_processes_and_notices_what_is_wrong(long: None) -> None:
    found = run(judged, 2)
    assert found[0] == found[1]
    right, wrong = found[0]
    assert set(right) == {"ok"} and len(right) == 3
    assert wrong[0] == "wrong"


def judged(rank: int, ranks: int) -> list[list[str]]:
    from rooftop.core import registry
    from rooftop.lab.check import ranks as judging

    op = registry.op("all_reduce_ranks")
    chosen = [op.case(c) for c in ("int8, 2 shots, nan f32", "int4, 1 shot, hadamard, groups of 64", "int4, 2 shots, hadamard, stochastic f32")]
    right = judging.check(op, dist.group.WORLD, torch.device("cpu"), 3, chosen)
    honest = op.ranks
    assert honest is not None
    try:  # one rank's result off by a bit
        op.ranks = lambda t, o, g: {"out": honest(t, o, g)["out"] + (0 if rank else 2.0**-10)}
        wrong = judging.check(op, dist.group.WORLD, torch.device("cpu"), 3, chosen[1:])
    finally:
        op.ranks = honest
    return [[r.status for r in right], [r.status for r in wrong]]


def rooms(rank: int, ranks: int) -> list[str]:
    from rooftop.ranks import symmetric

    said = []
    for capacity, comes in ((64, True), (64 + rank, True), (64, rank == 0)):
        try:
            if comes:
                symmetric._agreed("exchange", capacity, dist.group.WORLD, groups.Limit(2.0))
            said.append("agreed")
        except (comm.Disagreement, comm.CommError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_rooms_of_different_sizes_are_not_made(long: None) -> None:
    for rank, (same, other, alone) in enumerate(run(rooms, 2)):
        assert same == "agreed" and other.startswith("Disagreement") and "rank 0: exchange of 64 bytes; rank 1: exchange of 65 bytes" in other
        assert alone == "agreed" if rank else alone.startswith("CommError: symmetric memory (rank 0 of 2, gloo)")
