"""Kernels of several ranks by the commands: `rooftop check` and `bench` under torchrun, and what a rung of gemm_comm does on each process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _processes import run

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates
from rooftop.lab.check import ranks as judging
from rooftop.lab.timing import ranks as several


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "rooftop.lab.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_check_under_torchrun_judges_what_processes_do(long: None) -> None:
    done = torchrun("check", "gemm_comm/01", "--case", "none, tiles bf16", "--seed", "3")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "seed 3, 2 ranks" in done.stdout and "gemm_comm/01_product_then_nccl: 1 of 1 cases right" in done.stdout


def test_what_no_process_can_do_is_no_success(long: None) -> None:
    done = torchrun("check", "gemm_comm/04", "--case", "none, tiles bf16")
    assert done.returncode != 0 and "1 skipped" in done.stdout


def judged(rank: int, ranks: int) -> list[tuple[str, str]]:
    found = []
    for name in ("gemm_comm/01", "gemm_comm/02"):
        [subject] = candidates.find([name])
        call = judging.of(subject)
        assert call is not None
        for case in ("none, tiles bf16", "none, tiles f16 f16"):
            r = judging.judged(subject.op, subject.name, call, subject.op.case(case), dist.group.WORLD, torch.device("cpu"), 5)
            found.append((r.status, r.message))
        wrong = judging.judged(subject.op, "wrong", _twice(call), subject.op.case("none, tiles bf16"), dist.group.WORLD, torch.device("cpu"), 5)
        found.append((wrong.status, ""))
    return found


def _twice(call: Any) -> Any:
    return lambda tensors, options, group: {n: 2 * t for n, t in call(tensors, options, group).items()}


@pytest.mark.sampled("slow")
def test_rungs_are_right_on_two_processes_and_a_wrong_one_is_noticed() -> None:
    for found in run(judged, 2):
        assert [s for s, _ in found] == ["ok", "ok", "wrong"] * 2, found


def test_every_kernel_of_several_ranks_says_how_it_runs_on_them() -> None:
    ops = [n for n in registry.op_names() if registry.op(n).ranks is not None]
    assert {"all_reduce_ranks", "exchange_ranks", "matmul_reduce_scatter_ranks"} <= set(ops)
    for subject in [*candidates.find(ops), *candidates.find(["gemm_comm"])]:
        assert judging.of(subject) is not None, subject.name
    for name in ops:
        assert registry.op(name).ranks_peers and several.cases(candidates.find([name])[0], 2, "bench"), name
        assert len(judging.cases(registry.op(name), 2)) > 3
    assert judging.of(candidates.find(["add__triton"])[0]) is None


@pytest.mark.parametrize("case", ["8192x8192x8192 over 2 bf16", "8192x8192x8192 over 2, int8 bf16", "4096x14336x4096 over 2 bf16"])
def test_rungs_choose_tiles_that_fit(case: str) -> None:
    for subject in candidates.find(["gemm_comm"]):
        _, problem = subject.kernel_problem(subject.op.case(case), TARGETS[90])
        if subject.implementation is None or subject.implementation.supports(problem) or not hasattr(config := subject.implementation.choose(problem), "BM"):
            continue
        assert config.programs + config.carriers <= TARGETS[90].sms
        assert config.stages * (config.BM + config.BN) * config.BK * 2 + config.BM * config.BN * 2 <= TARGETS[90].shared_per_block


def test_records_of_several_gpus_are_read_and_shown(tmp_path: Path) -> None:
    """Samples that are made up, through the records, to the tables of docs/comm.md."""
    from rooftop.lab.check.checker import Result
    from rooftop.lab.records import store
    from rooftop.lab.report import tables
    from rooftop.lab.timing.bench_group import Bench, BenchGroup, Summary

    device = replace(TARGETS[90], name=several.name_of("NVIDIA H200", 2))
    writer = store.Writer(tmp_path, device.name)
    for what, case, times in (
        ("gemm_comm", "4096x14336x4096 over 2", {"gemm_comm/01_product_then_nccl": 6e-4, "gemm_comm/04_epilogue_stores": 4e-4, "peer:torch's fused": 5e-4}),
        ("all_reduce_ranks", "int8 2 ranks 8Mi, two shots", {"all_reduce_ranks__two_shot__cuda_sm80": 5e-5, "peer:NCCL": 8e-5}),
    ):
        subjects = {s.name: s for s in candidates.find([what])}
        op = next(iter(subjects.values())).op
        made = several.Several.__new__(several.Several)
        made.f, made.device, made.ranks, made.rank = BenchGroup(op, op.case(case), [], ""), device, 2, 0
        made.bench = Bench(made.f, device, None, 0.0, ("kernel",), Summary())  # type: ignore[arg-type]
        entries = [several.Entry(n, [lambda: None], subjects.get(n), samples=[t * (1 + 0.001 * (i % 3)) for i in range(9)]) for n, t in times.items()]
        made.bench.checks = {n: Result(n, op.name, case, "ok") for n in times}
        entries.append(replace(entries[0], name=f"{entries[0].name} (again)"))
        for row in made._records(entries):
            writer.write(row)
    writer.close()
    found = store.read(tmp_path)
    assert {r["device"]["name"] for r in found} == {"NVIDIA H200 x2"} and found[0]["versus"]["peer:torch's fused"]["verdict"] == "slower"
    products, collectives = tables.products(found, None), tables.collectives(found, None)  # type: ignore[arg-type]
    assert "| 04_epilogue_stores | 400 |" in products and "| torch's fused | 500 |" in products and "4096x14336x4096 over 2 bf16" in products
    assert "| all_reduce | int8 2 ranks 8Mi, two shots bf16 | 80.1 | 50.0 | 1.60 | two_shot__cuda_sm80 |" in collectives
    assert tables.products([], None) == tables.STANDS  # type: ignore[arg-type]
