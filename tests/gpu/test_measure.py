"""On a GPU: what measuring measures. A call's memory, the loops of the tensor cores, the L2."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from rooftop.core.devices import lookup
from rooftop.lab import candidates
from rooftop.lab.records import store
from rooftop.lab.timing import bench, calibrate, tensor_cores
from rooftop.lab.timing.roofline import Ceilings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch.cuda.is_available() is False")]


def test_a_sum_allocates_its_result_and_its_record_says_so(tmp_path: Path) -> None:
    todo = bench.fields(candidates.find(["add"]), case="1 Mi elements f32")
    summary = bench.run(todo, tmp_path, clocks=("kernel", "host"), case_budget_s=0.2, say=lambda text: None)
    assert not summary.wrong
    found = {r["subject"]: r for r in store.read(tmp_path) if r["kind"] == "bench"}
    assert found["add__triton"]["memory"] == found["peer:torch"]["memory"] == 4 << 20
    assert {c["duty"] for r in found.values() for c in r["clocks"].values()} == {"normal"} and found["add__triton"]["sensors"]["sm_mhz"]
    assert {"driver", "cuda driver", "cudnn"} <= set(found["add__triton"]["versions"])


def test_a_product_is_timed_in_a_burst_and_sustained(tmp_path: Path) -> None:
    todo = bench.fields(candidates.find(["matmul"]), case="1024 cubed f32")
    bench.run(todo, tmp_path, clocks=("kernel",), case_budget_s=0.2, say=lambda text: None)
    rows = [r for r in store.read(tmp_path) if r["kind"] == "bench"]
    assert rows and all({name: c["duty"] for name, c in r["clocks"].items()} == {"kernel": "burst", "sustained": "sustained"} for r in rows)
    assert all(r["clocks"]["sustained"]["busy"] > r["clocks"]["kernel"]["busy"] for r in rows)


def test_loops_of_multiply_adds_run_near_what_the_datasheet_says() -> None:
    """And end with finite sums. Half of the datasheet is left to mma.sync on sm_90 and to sums in float32 on a GeForce card."""
    sheet = lookup(torch.cuda.get_device_name())
    loops = tensor_cores.Loops()
    for unit, by_name in loops.by_unit().items():
        rates = {}
        for name, (call, count) in by_name.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            call()
            start.record()
            call()
            end.record()
            end.synchronize()
            rates[name] = count / (start.elapsed_time(end) * 1e-3)
            assert math.isfinite(float(loops._out.sum())), (unit, name)
        if sheet is not None:
            assert 0.4 < max(rates.values()) / sheet.per_second(unit) < 1.0, (unit, rates)


def test_the_l2_is_faster_than_the_memory(tmp_path: Path) -> None:
    (l2,) = calibrate.calibrate(parts=["l2"], point_budget_s=0.1)
    (memory,) = calibrate.calibrate(parts=["memory"], sizes=[256 << 20], point_budget_s=0.1)
    with store.Writer(tmp_path, l2["device"]["name"]) as writer:
        for record in (l2, memory):
            writer.write(record)
    c = Ceilings.from_records(store.read(tmp_path), l2["device"]["name"])
    largest = c.l2["read"].bytes[-1]
    assert largest / c.l2["read"].time(largest) > c.bandwidth("read", 256 << 20)
