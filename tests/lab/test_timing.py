"""The timer against a simulated device whose true times are known, and against a real one where there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from _simulated_device import L2, MIB, Kernel, Simulated

from rooftop.lab.timing.timer import (
    AGAIN,
    HOST_BATCH,
    MOST_SETS,
    PACES,
    REPLAY_S,
    Candidate,
    Clock,
    ImpossibleTime,
    Measurement,
    Timer,
    sets_needed,
)
from rooftop.lab.timing.timer_cuda import CudaBackend


def rotating(name: str, seconds: float, size: int = 64 * MIB, **facts: Any) -> Candidate:
    return Candidate(name, [Kernel(name, seconds, **facts) for _ in range(sets_needed(size, L2))])


def measure(device: Simulated, field: Sequence[Candidate], clock: Clock = "kernel", **how: Any) -> Measurement:
    how.setdefault("bytes_per_call", 64 * MIB)
    return Timer(device).measure(field, clock, **how)


def sampled(device: Simulated, skip: str = "nothing") -> list[str]:
    return [name for what, name, _ in device.log if what == "run" and name != skip]


def test_sets_exceed_three_times_l2() -> None:
    for size in (MIB, 2 * MIB, 50 * MIB, 150 * MIB, 151 * MIB):
        sets = sets_needed(size, L2)
        assert sets * size > 3 * L2 and (sets - 1) * size <= 3 * L2
    assert sets_needed(1, L2) == sets_needed(3072, L2) == MOST_SETS  # 61,441 sets of 3 KiB took over a minute to make
    with pytest.raises(ValueError, match="nothing to rotate"):
        sets_needed(0, L2)


def test_three_percent_slower_is_found_and_identical_is_same() -> None:
    field = [rotating("a", 25e-6, scatter=0.004), rotating("b", 25e-6 * 1.03, scatter=0.004), rotating("c", 25e-6, scatter=0.004)]
    found = measure(Simulated(), field)
    assert found["a"].median == pytest.approx(25e-6, rel=0.003)
    assert found.versus["b"].verdict == "slower"
    assert found.versus["b"].low < 1.03 < found.versus["b"].high
    assert found.versus["c"].verdict == "same"
    assert found.compare("c", "b").verdict == "faster"
    assert found.noise < 0.01 and found.reached


def test_too_noisy_is_unresolved() -> None:
    found = measure(Simulated(), [rotating("a", 25e-6, scatter=0.4), rotating("b", 25e-6, scatter=0.4)], samples=(11, 60))
    assert found.noise > 0.01 and not found.reached
    assert found.versus["b"].verdict == "unresolved"


def test_drift_of_the_card_does_not_become_a_verdict() -> None:
    """The card slows by a tenth each 0.1 s; candidates timed one after the other would be told apart by that alone."""
    device = Simulated(drift=lambda now: 1 + now)
    found = measure(device, [rotating("a", 25e-6, scatter=0.001), rotating("b", 25e-6, scatter=0.001)], samples=(200, 200))
    first, last = found["a"].samples[0], found["a"].samples[-1]
    assert last > 1.2 * first
    assert found.versus["b"].verdict == "same"


def test_candidates_are_interleaved_forth_and_back() -> None:
    device = Simulated()
    found = measure(device, [rotating(n, 1e-3) for n in "ab"], samples=(11, 11))
    rounds = sampled(device)[-33:]
    # The twin of the first runs the same kernels, so it shows as "a".
    assert rounds == (["a", "b", "a"] * 11)[:33]
    assert found["a"].n == found["b"].n == found.again.n == 11
    assert found.again.name == "a" + AGAIN


def test_order_alternates() -> None:
    device = Simulated()
    measure(device, [rotating(n, 1e-3) for n in "abc"], samples=(6, 6))
    assert sampled(device)[-24:] == ["a", "b", "c", "a", "a", "c", "b", "a"] * 3


def test_stops_when_precise_enough_and_not_before() -> None:
    quiet = measure(Simulated(), [rotating("a", 1e-3), rotating("b", 2e-3)])
    assert quiet["a"].n == 11 and quiet.error == 0 and quiet.reached
    scattered = measure(Simulated(), [rotating("a", 1e-4, scatter=0.01), rotating("b", 1e-4, scatter=0.01)], target=0.003)
    assert scattered.reached and scattered["a"].n > 30
    assert scattered.error <= 0.003


def test_budget_stops_it_and_is_recorded() -> None:
    found = measure(Simulated(), [rotating("a", 1e-2, scatter=0.3), rotating("b", 1e-2, scatter=0.3)], budget_s=0.5, target=1e-4)
    assert not found.reached and found.error > 1e-4
    assert 0.5 < found.elapsed_s < 0.7 and found.budget_s == 0.5  # it ends with the round that oversteps it
    slow = measure(Simulated(), [rotating("a", 1.0, scatter=0.1)], budget_s=0.1)
    assert slow["a"].n == 6  # the fewest that give a 95 % interval


@pytest.mark.parametrize("truth", [1.0, 1.02])
def test_stopping_early_keeps_the_coverage_of_the_interval(truth: float) -> None:
    held, trials = 0, 150
    for seed in range(trials):
        field = [rotating("a", 1e-4, scatter=0.006), rotating("b", 1e-4 * truth, scatter=0.006)]
        c = measure(Simulated(seed), field, target=0.003).versus["b"]
        held += c.low <= truth <= c.high
    assert held / trials >= 0.90  # 95 % nominal; a standard error of 150 trials is 1.8 %


def test_graphs_are_long_enough_and_go_whole_rounds() -> None:
    found = measure(Simulated(), [rotating("small", 2e-6, size=2 * MIB), rotating("large", 3e-3, size=2 * MIB)], bytes_per_call=2 * MIB)
    small, large = found["small"], found["large"]
    assert small.sets == 76 and small.calls % 76 == 0
    assert small.calls * 2e-6 >= REPLAY_S
    assert large.calls == 76 and large.replays == 1
    assert found.rotated_bytes > 3 * L2


def test_rotation_that_fits_l2_is_refused() -> None:
    few = Candidate("few", [Kernel("few", 1e-5) for _ in range(2)])
    with pytest.raises(ValueError, match=r"few: 2 input sets of 1048576 bytes stay in an L2 of 52428800 bytes; .* needs 151"):
        measure(Simulated(), [few], bytes_per_call=MIB)
    one = Kernel("one", 1e-5)
    with pytest.raises(ValueError, match="one call given twice"):
        measure(Simulated(), [Candidate("one", [one] * 200)], bytes_per_call=MIB)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clock": "wall"}, "'wall' is not one of kernel, cold, hot, host"),
        ({"duty": "lazy"}, "'lazy' is not one of normal, burst, sustained"),
        ({"clock": "cold", "duty": "burst"}, "cold has only 'normal'"),
        ({"samples": (3, 10)}, "at least 6"),
        ({"target": 0.0}, "positive relative error"),
        ({"bytes_per_call": 0}, "nothing to rotate"),
    ],
)
def test_what_cannot_be_timed_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        measure(Simulated(), [rotating("a", 1e-3)], **change)


def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="a name of its own"):
        measure(Simulated(), [rotating("a", 1e-3), rotating("a", 1e-3)])
    with pytest.raises(ValueError, match="at least one"):
        measure(Simulated(), [])


def test_impossible_times_are_errors_not_records() -> None:
    field = [rotating("honest", 30e-6), rotating("cheat", 5e-6)]
    for clock in ("kernel", "cold", "hot"):
        with pytest.raises(ImpossibleTime, match=f"cheat: 5.000 us a call on the {clock} clock") as caught:
            measure(Simulated(), field, clock, floor_seconds=20e-6)
        assert caught.value.measurement["honest"].median == pytest.approx(30e-6)
    # A hot run is given the floor of its operations alone, and a CPU's time knows no floor of the device.
    assert measure(Simulated(), field, "hot", floor_seconds=4e-6)["cheat"].median == pytest.approx(5e-6)
    assert measure(Simulated(), field, "host", floor_seconds=1.0)["cheat"].median == pytest.approx(5e-6)


def test_a_copy_beside_a_product_has_a_floor_of_its_own() -> None:
    """It moves the bytes and multiplies nothing: the product's floor is not its."""
    copy = Candidate("copy", [Kernel("copy", 5e-6) for _ in range(3)], floor=4e-6)
    assert measure(Simulated(), [rotating("product", 30e-6), copy], floor_seconds=20e-6)["copy"].median == pytest.approx(5e-6)
    with pytest.raises(ImpossibleTime, match=r"copy: 5\.000 us a call on the kernel clock, but no card of this kind could do it under 6\.000 us"):
        measure(Simulated(), [rotating("product", 30e-6), replace(copy, floor=6e-6)], floor_seconds=20e-6)


def test_what_cannot_be_captured_is_timed_by_events_and_says_so() -> None:
    field = [rotating("ours", 25e-6), rotating("theirs", 25e-6, breaks_capture="RuntimeError: it waits for the device")]
    declared = Candidate("known", [Kernel("known", 25e-6) for _ in range(3)], uncapturable="allocates pinned memory")
    found = measure(Simulated(), [*field, declared])
    assert (found["ours"].method, found["ours"].why) == ("graph", "")
    assert (found["theirs"].method, found["theirs"].why) == ("events", "RuntimeError: it waits for the device")
    assert (found["known"].method, found["known"].why) == ("events", "allocates pinned memory")


def test_inputs_written_to_are_put_back_before_each_sample() -> None:
    device = Simulated()
    restored: list[float] = []
    kernels = [Kernel("inplace", 2e-6) for _ in range(3)]
    candidate = Candidate("inplace", kernels, restore=lambda: restored.append(device.clock))
    found = measure(device, [candidate])
    whats = [(what, name) for what, name, _ in device.log if name != "nothing"]
    assert all(before == ("before", "") for before, after in pairwise(whats) if after == ("run", "inplace"))
    assert len(restored) == whats.count(("before", "")) > 0, "by the device, on the stream that it times"
    assert found["inplace"].calls == 3 and found["inplace"].replays == 1  # each set used once between two restores
    with pytest.raises(ValueError, match="cannot put back"):
        measure(device, [candidate], duty="sustained")


def test_burst_pauses_and_sustained_does_not() -> None:
    device = Simulated()
    burst = measure(device, [rotating("a", 1e-3), rotating("b", 1e-3)], duty="burst", samples=(6, 6))
    assert sum(what == "pause" for what, _, _ in device.log) == 6 * 3
    assert burst["a"].replays * burst["a"].calls * 1e-3 >= 0.9 * PACES["burst"].sample_s
    assert burst.busy < 0.1
    sustained = measure(Simulated(), [rotating("a", 1e-3), rotating("b", 1e-3)], duty="sustained", samples=(6, 6))
    assert sustained.setup_s >= PACES["sustained"].warm_s
    assert sustained["a"].replays * sustained["a"].calls * 1e-3 >= 0.9 * PACES["sustained"].sample_s
    assert sustained.busy > 0.98
    assert sustained.pace.lead_s == PACES["sustained"].lead_s


def test_host_clock_counts_the_cpu_and_its_floor() -> None:
    found = measure(Simulated(), [rotating("a", 1e-3, host=7e-6)], "host")
    assert found["a"].median == pytest.approx(7e-6)
    assert found["a"].calls == HOST_BATCH and found["a"].method == "cpu"
    assert found.empty_s == pytest.approx(1e-7)


def test_an_empty_call_is_measured_once_a_clock() -> None:
    device = Simulated()
    timer = Timer(device)
    for _ in range(2):
        assert timer.measure([rotating("a", 1e-3)], "cold").empty_s == pytest.approx(1e-6)
    assert sum(name == "nothing" for _, name, _ in device.log) < 3000
    before = sum(name == "nothing" for _, name, _ in device.log)
    timer.measure([rotating("a", 1e-3)], "cold")
    assert sum(name == "nothing" for _, name, _ in device.log) == before


def test_sensors_are_read_before_and_after_and_all_is_json() -> None:
    readings = iter([{"sm_mhz": 1980}, {"sm_mhz": 1755}])
    timer = Timer(Simulated(), sensors=lambda: next(readings))
    found = timer.measure([rotating("a", 1e-3), rotating("b", 1e-3)], bytes_per_call=64 * MIB)
    assert found.sensors == {"before": {"sm_mhz": 1980}, "after": {"sm_mhz": 1755}}
    plain = json.loads(json.dumps(found["a"].json()))
    assert "samples" not in plain and plain["median"] == found["a"].median
    assert json.loads(json.dumps(found.versus["b"].json()))["verdict"] == "same"


def cuda() -> bool:
    torch = pytest.importorskip("torch")
    return bool(torch.cuda.is_available())


def test_without_a_gpu_the_timer_says_so() -> None:
    if cuda():
        pytest.skip("a GPU is here")
    with pytest.raises(RuntimeError, match="no CUDA device"):
        CudaBackend()


@pytest.fixture(scope="module")
def real() -> Timer:
    if not cuda():
        pytest.skip("no GPU here")
    return Timer(CudaBackend())


def copies(name: str, words: int, sets: int) -> Candidate:
    import torch

    pairs = [torch.randn(2, words, device="cuda") for _ in range(sets)]
    return Candidate(name, [lambda p=p: p[1].copy_(p[0]) for p in pairs])


@pytest.mark.gpu
def test_on_a_gpu_more_work_is_slower_and_l2_shows(real: Timer) -> None:
    size = 64 * MIB
    sets = sets_needed(size, real.backend.l2_bytes)
    field = [copies("copy", size // 8, sets), copies("tenth more", size // 80 * 11 // 4096 * 4096, sets)]
    found = real.measure(field, bytes_per_call=size)
    assert found["copy"].method == "graph"
    assert found.versus["tenth more"].verdict == "slower"
    assert 1.05 < found.versus["tenth more"].ratio < 1.15
    small = [copies("small", MIB, sets_needed(8 * MIB, real.backend.l2_bytes))]
    hot, rotated = (real.measure(small, c, bytes_per_call=8 * MIB)["small"].median for c in ("hot", "kernel"))  # type: ignore[arg-type]
    assert hot < 0.8 * rotated  # 8 MiB stay in L2; in rotation they do not


@pytest.mark.gpu
def test_on_a_gpu_what_waits_for_the_device_is_not_captured(real: Timer) -> None:
    import torch

    x = torch.randn(1000, device="cuda")
    found = real.measure([Candidate("waits", [lambda: x.sum().item()])], "hot", budget_s=0.2)
    assert found["waits"].method == "events" and found["waits"].why
    again = real.measure([copies("copy", MIB, 1)], "hot", budget_s=0.2)  # the timer is whole after a broken capture
    assert again["copy"].method == "graph"
    assert torch.randn(8, device="cuda").isfinite().all()
