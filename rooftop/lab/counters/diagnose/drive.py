"""Runs ncu and torch.profiler over a kernel at a case, or ncu over any command line. Nothing is timed inside a profiler for the record."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core.compile import ToolchainError
from rooftop.lab.counters.collect import find_ncu, refused

if TYPE_CHECKING:
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject

TIMEOUT_S = 600.0
SECTIONS = ("SpeedOfLight", "Occupancy", "LaunchStats")
_STALLS = (
    "long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle", "math_pipe_throttle", "wait", "not_selected",
    "selected", "gmma", "membar", "drain", "tex_throttle", "no_instruction", "branch_resolving", "dispatch_stall", "imc_miss", "sleeping",
    "misc",
)
_ELAPSED = (
    "gpu__dram_throughput", "lts__throughput", "lts__t_sectors", "lts__d_sectors", "lts__t_tag_requests", "lts__lts2xbar_cycles_active",
    "lts__xbar2lts_cycles_active",
    "lts__d_atomic_input_cycles_active", "l1tex__m_xbar2l1tex_read_sectors",
    "l1tex__data_pipe_lsu_wavefronts", "l1tex__lsuin_requests", "l1tex__f_wavefronts", "l1tex__lsu_writeback_active", "sm__inst_issued",
    "sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor", "sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma",
    "sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu", "sm__inst_executed_pipe_xu", "sm__inst_executed_pipe_fp64",
)
_PLAIN = (
    "gpu__time_duration.sum", "gpc__cycles_elapsed.max", "sm__cycles_active.avg", "sm__cycles_elapsed.max", "dram__bytes_read.sum",
    "dram__bytes_write.sum", "smsp__issue_active.avg.per_cycle_active", "smsp__thread_inst_executed_per_inst_executed.ratio",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1tex__data_pipe_lsu_wavefronts.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "lts__t_sector_hit_rate.pct", "l1tex__t_sector_hit_rate.pct",
    "lts__t_sectors.sum", "smsp__inst_executed.sum", "sm__cycles_elapsed.avg.per_second",
    *(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("ffma", "fadd", "fmul")),
    *(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for what in ("requests", "sectors") for op in ("ld", "st")),
    *(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st")),
    *(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio" for op in ("ld", "st")),
)
METRICS = (
    *_PLAIN, *(f"{n}.avg.pct_of_peak_sustained_elapsed" for n in _ELAPSED),
    *(f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio" for s in _STALLS),
)


def ncu(command: Sequence[str], report: Path, *, from_start: bool = True, count: int | None = None, kernel: str | None = None,
        lines: bool = False) -> str:
    """Profile the kernels of a command line into `report` (.ncu-rep); returns what ncu and the program printed. Clocks are left alone.

    `from_start` False: only between cudaProfilerStart and Stop. `lines`: with counters by source line, which takes a few more passes.
    Metrics that this ncu refuses are left out at a second try. Raises ToolchainError where ncu is missing, is not permitted to read
    counters, or profiled nothing."""
    program = find_ncu()
    if report.suffix != ".ncu-rep":
        raise ValueError(f"{report}: a report's name ends in .ncu-rep")
    asked = METRICS
    output = ""
    for _ in range(2):
        report.unlink(missing_ok=True)
        line = [
            str(program), "--clock-control", "none", "--cache-control", "all", "--target-processes", "all", "--force-overwrite",
            "--export", str(report.with_suffix("")), *(p for s in SECTIONS for p in ("--section", s)), "--metrics", ",".join(asked),
            *(("--section", "SourceCounters", "--import-source", "yes") if lines else ()),
            *(() if from_start else ("--profile-from-start", "off")), *(() if count is None else ("--launch-count", str(count))),
            *(() if kernel is None else ("--kernel-name", f"regex:{kernel}")), *command,
        ]
        try:
            done = subprocess.run(
                line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"ncu was not at its end after {TIMEOUT_S:.0f} s: {shlex.join(command)}") from None
        output = done.stdout
        if report.is_file():
            return output
        bad = refused(output, asked)
        if not bad:
            break
        asked = tuple(m for m in asked if m not in bad)
    raise ToolchainError(why_nothing(output, command))


def why_nothing(output: str, command: Sequence[str]) -> str:
    """Why ncu left no report, and what is the next tier."""
    below = "; without counters: rooftop diagnose OP --case CASE, or rooftop profile --with torch"
    if "ERR_NVGPUCTRPERM" in output:
        return "the driver keeps hardware counters for administrators (ERR_NVGPUCTRPERM; rooftop doctor says what to do)" + below
    if "No kernels were profiled" in output:
        return f"no kernel was profiled: {shlex.join(command)} launched none that the filters let through" + below
    errors = re.findall(r"^==ERROR== .*", output, re.MULTILINE) or [line for line in output.splitlines() if line.strip()][-3:]
    return f"ncu profiled nothing: {' '.join(e[:200] for e in errors) or 'it printed nothing'}" + below


def command_of(name: str, case: Case, calls: int = 1) -> list[str]:
    """A command line that runs what `name` means at the case, its calls alone between cudaProfilerStart and Stop."""
    return [sys.executable, "-m", "rooftop.lab.counters.diagnose.drive", name, case.id, str(calls)]


def callable_of(subject: Subject, case: Case) -> Any:
    """The subject at the case as a function without arguments, on random inputs on the GPU. Raises NoGpuError."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab import inputs
    from rooftop.lab.exit_codes import gpu_for

    gpu_for("profiling")
    index = torch.cuda.current_device()
    tensors, options = inputs.make(subject.op, case, "cuda", 1)
    if subject.implementation is None:
        values = {**tensors, **options}
        return lambda: subject.function(**values)
    call = subject.call(case, device_of(index))

    memory = call.memory(call.given(tensors), {n: options[n] for n in subject.op.runtime_options}, inputs.on_gpu)  # type: ignore[misc]
    run = call.runner(index)

    def once() -> None:
        call.zero(memory)
        run(torch.cuda.current_stream().cuda_stream, list(memory.values()))

    return once


def torch_trace(subject: Subject, case: Case, out: Path, calls: int = 20) -> str:
    """torch.profiler over `calls` eager calls: writes `trace.json` (for a Chrome trace viewer and `rooftop diagnose`) and a TensorBoard log
    below `out`. Returns the key averages as a table."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    once = callable_of(subject, case)
    once()
    torch.cuda.synchronize()
    out.mkdir(parents=True, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=1, active=1)) as profiler:
        for _ in range(3):
            for _ in range(calls):
                once()
            torch.cuda.synchronize()
            profiler.step()
    profiler.export_chrome_trace(str(out / "trace.json"))
    board = out / "tensorboard"
    board.mkdir(exist_ok=True)
    (board / f"{os.uname().nodename}_{os.getpid()}.pt.trace.json").write_bytes((out / "trace.json").read_bytes())
    return str(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=10))


def main(name: str, case_id: str, calls: int) -> None:
    """Runs under ncu."""
    import torch

    from rooftop.lab import candidates

    subject = candidates.find([name])[0]
    once = callable_of(subject, subject.op.case(case_id))
    once()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(calls):
        once()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
