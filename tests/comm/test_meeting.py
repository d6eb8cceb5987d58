"""Where ranks meet: one rank of two runs in the simulator, and the test plays the other, through the flags and messages in its room."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rooftop.formats import wire as wires
from rooftop.lab.simt import simulate
from rooftop.ops.all_reduce_ranks import reference
from rooftop.ranks import kernels, steps
from rooftop.ranks import rank_launches as launches

COUNT, CALL = 600, 77


def run(shots: int, prepare: Any, patience: int = 20_000_000_000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rank 0's out, its fault, its room and rank 1's. `prepare(flags [2, 256, 16], rooms [2, bytes])` plays rank 1."""
    x = given()
    launch = launches.launch(shots, COUNT, 2, "f32", "int8", 128, False, False, 1, call=CALL, seed=0, patience=patience)
    whole = launches.FLAGS + launches.geometry(shots, COUNT, 2, "int8", 128, 1).whole
    room = torch.zeros(2, whole, dtype=torch.uint8)
    flags = room[:, : launches.FLAGS].view(torch.int64).view(2, launches.BLOCKS, launches.RANKS)
    prepare(flags, room)
    tensors = {
        "x": x[0].clone(), "out": torch.zeros(COUNT), "room": room, "epochs": torch.zeros(launches.BLOCKS, dtype=torch.int32),
        "fault": torch.zeros(4, dtype=torch.int32),
    }
    text, _, folders = kernels.source("one_shot" if shots == 1 else "two_shot")
    arguments = [(0 if value is None else value, kind) for value, kind in zip(launch.args.values(), launch.types, strict=True)]
    report = simulate(text, launch.kernel, tensors, grid=(1,), block=launch.block, arguments=arguments, cooperative=True, folders=folders)
    assert not report.findings, report.findings
    return tensors["out"], tensors["fault"], room[0], room[1]


def given() -> torch.Tensor:
    return torch.randn(2, COUNT, generator=torch.Generator().manual_seed(4))


def message(x: torch.Tensor, size: int) -> torch.Tensor:
    v = wires.rows_of(torch.nn.functional.pad(x[None], (0, size - x.numel())), 128, False)
    return wires.encode(v, wires.WIRES["int8"], 128)[0]


def put(room: torch.Tensor, sent: torch.Tensor, half: int) -> None:
    """Rank 1's message into rank 0's room, of one shot."""
    begin = launches.FLAGS + half * 2 * len(sent) + len(sent)
    room[0, begin : begin + len(sent)] = sent


def flag(number: int, call: int = CALL) -> int:
    return call << 32 | number


@pytest.mark.sampled("kernels", "all_reduce_ranks__one_shot__cuda_sm80")
def test_what_the_other_rank_has_put_down_is_added() -> None:
    size = launches.geometry(1, COUNT, 2, "int8", 128, 1).held

    def prepare(flags: torch.Tensor, room: torch.Tensor) -> None:
        flags[0, 0, 1] = flag(1)  # in rank 0's room, by rank 1
        put(room, message(given()[1], size), 0)

    out, fault, _, theirs = run(1, prepare)
    assert torch.equal(out, reference(given(), "int8", 128, False, False, 0, 1)[0]) and not fault.any()
    assert theirs[: launches.FLAGS].view(torch.int64)[0] == flag(1)  # rank 0 has told rank 1


@pytest.mark.sampled("kernels", "all_reduce_ranks__one_shot__cuda_sm80", "all_reduce_ranks__two_shot__cuda_sm80")
@pytest.mark.parametrize("shots", [1, 2])
def test_a_rank_that_calls_something_else_is_found_and_told(shots: int) -> None:
    def prepare(flags: torch.Tensor, room: torch.Tensor) -> None:
        flags[0, 0, 1] = flag(1, CALL + 1)

    out, fault, _, theirs = run(shots, prepare)
    assert out.isnan().all() and fault[0] == 2
    if shots == 2:  # at the second meeting it says so: to one that waits there
        assert int(theirs[: launches.FLAGS].view(torch.int64)[0]) & 0xFFFFFFFF == 2
        assert (int(theirs[: launches.FLAGS].view(torch.int64)[0]) >> 32) & 0xFFFFFFFF == 0xFFFFFFFF


@pytest.mark.sampled("kernels", "all_reduce_ranks__one_shot__cuda_sm80")
def test_a_rank_that_is_ahead_does_not_look_like_another_call() -> None:
    """It has passed this meeting and stands at the next call's, which is another."""
    size = launches.geometry(1, COUNT, 2, "int8", 128, 1).held

    def prepare(flags: torch.Tensor, room: torch.Tensor) -> None:
        flags[0, 0, 1] = flag(2, CALL + 5)
        put(room, message(given()[1], size), 0)

    out, fault, *_ = run(1, prepare)
    assert torch.equal(out, reference(given(), "int8", 128, False, False, 0, 1)[0]) and not fault.any()


@pytest.mark.sampled("kernels", "all_reduce_ranks__one_shot__cuda_sm80", "all_reduce_ranks__two_shot__cuda_sm80")
@pytest.mark.parametrize(
    ("shots", "ranks", "each", "wire", "threads"),
    [(1, 2, 1, "int8", 64), (1, 3, 2, "int4", 32), (1, 4, 1, "bf16", 64), (1, 8, 1, "fp8", 32), (2, 2, 1, "int8", 64), (2, 3, 2, "int4", 32),
     (2, 4, 1, "bf16", 64), (2, 8, 4, "fp8", 32)],
)
def test_slabs_make_the_sums_of_the_contract(shots: int, ranks: int, each: int, wire: str, threads: int) -> None:
    """One block a rank, so few warps that there are several slabs, the last one not full; three calls in one room, in whose quarters they begin
    elsewhere."""
    stripe = (2 * each + 1) * threads // 32 * launches.CHUNK - 300
    x = torch.randn(ranks, (ranks if shots == 2 else 3) * stripe - 77, generator=torch.Generator().manual_seed(ranks)).bfloat16()
    g = launches.geometry(shots, x.shape[1], ranks, wire, 64, 1, each, threads)
    launch = launches.launch(shots, x.shape[1], ranks, "bf16", wire, 64, False, False, 1, seed=0, each=each, threads=threads)
    tensors = {
        "x": x.clone(), "out": torch.zeros_like(x), "room": torch.zeros(ranks, launches.FLAGS + g.whole, dtype=torch.uint8),
        "epochs": torch.zeros(ranks, launches.BLOCKS, dtype=torch.int32), "fault": torch.zeros(4, dtype=torch.int32),
    }
    text, _, folders = kernels.source("one_shot" if shots == 1 else "two_shot")
    arguments = [(0 if value is None else value, kind) for value, kind in zip(launch.args.values(), launch.types, strict=True)]
    slabs = -(-g.size // (launches.CHUNK * threads // 32 * each))
    assert slabs > 2
    for call in range(3):
        report = simulate(text, launch.kernel, tensors, grid=launch.grid, block=launch.block, arguments=arguments, cooperative=True, folders=folders)
        assert not report.findings, report.findings
        assert torch.equal(tensors["out"], reference(x, wire, 64, False, False, 0, shots)) and not tensors["fault"].any()
        assert bool((tensors["epochs"] == (call + 1) * (slabs + shots - 1)).all())
        tensors["out"].zero_()
        tensors["x"].copy_(x := -x.flip(1))


def by_address(key: tuple[Any, ...], make: Any, index: int, given: Any) -> None:
    """`kernels.run` in the simulator: of a tensor the kernel knows where it begins, and no strides."""
    launch = make(1)
    tensors = {n: torch.as_strided(t, (t.numel(),), (1,)) for n, t in given.items() if isinstance(t, torch.Tensor)}
    arguments = [(given[v] if v == "seed" else v, kind) for v, kind in zip(launch.args.values(), launch.types, strict=True)]
    text, _, folders = kernels.source("steps")
    report = simulate(text, launch.kernel, tensors, grid=launch.grid, block=launch.block, arguments=arguments, folders=folders)
    assert not report.findings, report.findings


@pytest.mark.sampled("kernels", "all_reduce_ranks__steps__cuda_sm80")
def test_every_second_element_is_encoded_whatever_its_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    base = given().reshape(60, 20)
    o = steps.Options.of("encode", "int8", 128, False, False, 0)
    views = {"every second": base[:, ::2], "one number": base[0, 1].expand(600), "transposed": base.t(), "from the second": base.reshape(-1)[1:]}
    assert base[:, ::2].reshape(-1).stride() == (2,)  # a view, not a copy

    def sent(x: torch.Tensor) -> torch.Tensor:
        return wires.values(steps.encode(x, o, 1, 1200), o.wire, 128, 1200)

    want = {n: sent(x) for n, x in views.items()}
    monkeypatch.setattr(steps, "_gpu", lambda x: 0)
    monkeypatch.setattr(kernels, "run", by_address)
    for name, x in views.items():
        assert torch.equal(sent(x), want[name]), name
