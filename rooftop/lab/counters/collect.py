"""Nsight Compute's counters of CUDA C++ kernels, each instruction's brought home to its source line, as records of kind `counters`.

    python -m rooftop.lab.counters.collect --out DIR [LADDER | RUNG | KERNEL | FILE.cu ...]

Two tiers of cases. `lines`: small, with the source metrics of every instruction that touches memory: sectors of global accesses and
wavefronts of shared ones. They follow from the addresses and lanes of each execution ("theoretical"), not from what else the multiprocessor
was doing.
`traffic`: larger, with what passed the L2 and the memory alone.

One process under `ncu` for each tier and ladder; in it the launches of the subjects, and nothing else, lie between cudaProfilerStart and
Stop. The caches are emptied before every pass, clocks are left alone. A file whose head names no op may be run as well: its tensors are
random, the sizes of its dimensions are given (`--shape M=1024,N=1024`).

Metrics: NVIDIA, Nsight Compute Profiling Guide, "Source Metrics". The report is read by rooftop.lab.counters.ncu_report."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.compile import ToolchainError
from rooftop.core.spec import Device, Launch
from rooftop.lab.counters import ncu_report as reports
from rooftop.lab.counters.jobs import TIERS, Job, jobs_for
from rooftop.lab.exit_codes import NoGpuError, Parser, ended
from rooftop.lab.inspect import sass_lines
from rooftop.lab.inspect.binary import BinaryError
from rooftop.lab.records import store

TIMEOUT_S = 400.0
_MARK = "rooftop-counters "

LINES = (  # of every instruction
    "inst_executed", "thread_inst_executed", "thread_inst_executed_true", "memory_type", "memory_access_type", "memory_access_size_type",
    "memory_l1_tag_requests_global", "memory_l2_theoretical_sectors_global", "memory_l2_theoretical_sectors_global_ideal",
    "memory_l2_theoretical_sectors_local", "memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal",
)
TOTALS = (  # of the kernel
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sectors.sum", "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum", "lts__t_sectors_srcunit_tex.sum", "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
)
SECTIONS: Mapping[str, tuple[str, ...]] = {  # what is asked for where this ncu refuses names: its own lists
    "lines": ("SourceCounters", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables"),
    "traffic": ("MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables"),
}
METRICS: Mapping[str, tuple[str, ...]] = {"lines": (*LINES, *TOTALS), "traffic": TOTALS}


# -- under ncu ------------------------------------------------------------------------------------------------------


def worker(plan: Path) -> None:
    """Runs under ncu: each job's launches between cudaProfilerStart and Stop, and a line for each job that says which came to their end."""
    import torch

    from rooftop.core.implementation import device_of

    device = device_of(torch.cuda.current_device())
    for number, fields in enumerate(json.loads(plan.read_text(encoding="utf-8"))):
        job = Job(**{**fields, "shapes": tuple((k, v) for k, v in fields["shapes"])})
        said: dict[str, Any] = {"job": number, "launches": 0}
        try:
            memory = job.memory(device, "cuda")
            names = tuple(memory)
            launches = job.launches(device)
            prepared = job.implementation.prepare(job.problem(device), launches, names, torch.cuda.current_device())
            addresses = [0 if v is None else v.data_ptr() if hasattr(v, "data_ptr") else v for v in memory.values()]
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            for launch in prepared:
                launch(torch.cuda.current_stream().cuda_stream, addresses)
                torch.cuda.synchronize()
                said["launches"] += 1
        except Exception as error:  # one subject's failure is not the others'
            said["error"] = f"{type(error).__name__}: {error}"
        finally:
            torch.cuda.profiler.stop()
        sys.stdout.write("\n" + _MARK + json.dumps(said) + "\n")
        sys.stdout.flush()
        memory = {}
        torch.cuda.empty_cache()


def said_by(output: str) -> list[dict[str, Any]]:
    """The worker's lines in what ncu printed."""
    return [json.loads(line.removeprefix(_MARK)) for line in output.splitlines() if line.startswith(_MARK)]


def refused(output: str, asked: Sequence[str]) -> tuple[str, ...]:
    """Names of metrics that ncu's errors or warnings mention."""
    complaints = "\n".join(line for line in output.splitlines() if line.startswith(("==ERROR==", "==WARNING==")))
    return tuple(m for m in asked if re.search(rf"(?<!\w){re.escape(m.split('.')[0])}(?!\w)", complaints))


@dataclass
class Run:
    """Where things are, and what became of them."""

    ncu: Path
    raw: Path  # folder of reports and logs
    device: Device
    say: Callable[[str], None] = print
    readable: bool = True  # whether ncu_report is to be had here

    def group(self, name: str, tier: str, jobs: Sequence[Job]) -> tuple[list[Any], list[Job], list[str]]:
        """The actions (kernels) of one process in order, the job of each, and what went wrong."""
        plan = self.raw / f"{name}.json"
        plan.write_text(json.dumps([asdict(j) for j in jobs]), encoding="utf-8")
        asked = METRICS[tier]
        sections = tuple(p for s in SECTIONS[tier] for p in ("--section", s))
        for attempt in range(3):
            what = ("--metrics", ",".join(asked)) if attempt == 0 or (attempt == 1 and asked != METRICS[tier]) else sections
            report, output = self._ncu(f"{name}-{attempt}", plan, what)
            if report.is_file() and not self.readable:
                return [], [], self._as_text(report)
            actions = reports.load(report, self.ncu) if report.is_file() else []
            if actions or what == sections:
                break
            bad = refused(output, asked)
            self.say(
                f"{name}: ncu profiled nothing" + (f"; it refuses {', '.join(bad)}" if bad else "") + "\n    "
                + "\n    ".join(_tail(output))
            )
            if "ERR_NVGPUCTRPERM" in output:
                raise ToolchainError(
                    "the driver keeps hardware counters for administrators (ERR_NVGPUCTRPERM): rooftop doctor says what to do"
                )
            asked = tuple(m for m in asked if m not in bad)
        wrong = [f"{jobs[d['job']].subject}, {jobs[d['job']].title}: {d['error']}" for d in said_by(output) if "error" in d]
        owners = [jobs[d["job"]] for d in said_by(output) for _ in range(d.get("launches", 0))]
        if len(owners) != len(actions):
            wrong.append(f"{name}: ncu has {len(actions)} kernels of {len(owners)} launched")
        return actions, owners, wrong

    def _as_text(self, report: Path) -> list[str]:
        """Where ncu_report is missing: the report's pages as CSV, so that what was measured is not lost."""
        for page in ("raw", "source"):
            command = [
                str(self.ncu), "--import", str(report), "--page", page, "--csv", "--print-units", "base", "--print-kernel-base", "mangled"
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
            report.with_suffix(f".{page}.csv").write_text(done.stdout + done.stderr, encoding="utf-8")
        return [f"{report.name} is not read: its pages lie beside it as CSV"]

    def _ncu(self, name: str, plan: Path, what: Sequence[str]) -> tuple[Path, str]:
        report = self.raw / f"{name}.ncu-rep"
        command = [
            str(self.ncu), "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel",
            "--target-processes", "all", "--force-overwrite", "--export", str(report.with_suffix("")), *what,
            sys.executable, "-m", "rooftop.lab.counters.collect", "--worker", str(plan),
        ]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S)
            output = done.stdout
        except subprocess.TimeoutExpired as error:
            output = f"{error.stdout!r}\nnot at its end after {TIMEOUT_S:.0f} s"
        (self.raw / f"{name}.txt").write_text(shlex.join(command) + "\n\n" + output, encoding="utf-8")
        return report, output


def _tail(output: str, lines: int = 12) -> list[str]:
    return [line for line in output.splitlines() if line.strip() and not line.startswith(_MARK)][-lines:]


def find_ncu() -> Path:
    """Raises ToolchainError where it is not to be found."""
    places = (
        settings.tool_path("ncu"), Path("/usr/local/cuda/bin/ncu"), *sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    )
    for path in places:
        if path is not None and path.is_file():
            return path
    raise ToolchainError("Nsight Compute's ncu is not on PATH: it is part of the CUDA toolkit (rooftop doctor)")


def run(jobs: Sequence[Job], out: Path, *, keep: bool = False, say: Callable[[str], None] = print) -> list[store.Record]:
    """Count the jobs and write a record for each kernel launch below `out`. Reports and logs stay in `out`/raw where something went wrong
    or `keep`.

    Raises NoGpuError, ToolchainError where ncu or the permission to read counters is missing."""
    import torch

    from rooftop.core.implementation import device_of

    if not torch.cuda.is_available():
        raise NoGpuError("counters need an NVIDIA GPU: torch.cuda.is_available() is False (rooftop doctor says what is missing)")
    ncu = find_ncu()
    readable = True
    try:
        reports.module(ncu)
    except ToolchainError as error:
        readable = False
        say(f"WRONG: {error}")
    device = device_of(torch.cuda.current_device())
    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    able, symbols = _compile(jobs, device, say)
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in able:
        groups.setdefault((job.tier, str(Path(job.subject).parent).replace("/", "-")), []).append(job)
    written: list[store.Record] = []
    wrong: list[str] = []
    with store.Writer(out, device.name) as writer:
        for (tier, name), members in groups.items():
            begun = time.monotonic()
            actions, owners, errors = Run(ncu, raw, device, say, readable).group(f"{tier}-{name}", tier, members)
            wrong += errors
            for number, (action, job) in enumerate(zip(actions, owners, strict=False)):
                launch = _which(owners, number)
                compiled = job.implementation.compile([x.kernel for x, _ in symbols[job]], device.target)
                try:
                    record = _record(action, job, launch, symbols[job][launch], compiled.cubin, device)
                except (ToolchainError, BinaryError) as error:  # its lines are then those that the report itself names
                    wrong.append(str(error))
                    record = _record(action, job, launch, symbols[job][launch], b"", device)
                wrong += [
                    f"metrics that the report lacks: {', '.join(absent)}" for absent in [reports.missing(action, METRICS[tier])] if absent
                ]
                written.append(writer.write(record))
            say(f"{tier} {name}: {len(actions)} kernels in {time.monotonic() - begun:.0f} s")
            if actions and (absent := reports.missing(actions[0], METRICS[tier])):
                say(f"    absent: {', '.join(absent)}\n    this ncu has: {' '.join(sorted(actions[0].metric_names()))}")
        if written:
            say(f"{len(written)} records in {writer.path}")
    for text in dict.fromkeys(wrong):
        say(f"WRONG: {text}")
    if not wrong and not keep:
        for path in raw.iterdir():
            path.unlink()
        raw.rmdir()
    return written


def _compile(jobs: Sequence[Job], device: Device, say: Callable[[str], None]) -> tuple[list[Job], dict[Job, list[tuple[Launch, str]]]]:
    """The jobs that the device takes, and each launch's symbol. Every program is compiled here, on all cores."""

    def one(job: Job) -> list[tuple[Launch, str]] | str:
        try:
            launches = job.launches(device)
        except ValueError as error:
            return str(error)
        names = job.implementation.compile([x.kernel for x in launches], device.target).names
        return [(x, names[x.kernel]) for x in launches]

    with ThreadPoolExecutor(settings.load().jobs) as pool:
        found = dict(zip(jobs, pool.map(one, jobs), strict=True))
    for job, launches in found.items():
        if isinstance(launches, str):
            say(f"{job.subject}, {job.title}: not taken: {launches}")
    symbols = {j: x for j, x in found.items() if not isinstance(x, str)}
    return list(symbols), symbols


def _which(owners: Sequence[Job], number: int) -> int:
    """The number of a job's launch, from 0."""
    first = number
    while first > 0 and owners[first - 1] == owners[number]:
        first -= 1
    return number - first


def _record(action: Any, job: Job, number: int, launched: tuple[Launch, str], code: bytes, device: Device) -> store.Table:
    launch, symbol = launched
    name = reports.symbol(action)
    if code and name != symbol:
        raise ToolchainError(f"{job.subject}: ncu reports the kernel {name}, where {symbol} was launched")
    shown = job.implementation.head.path
    lines: list[dict[str, Any]] = []
    opcodes: dict[str, list[int]] = {}
    if job.tier == "lines":
        listing = sass_lines.instructions(code, symbol, shown) if code else []
        lines, opcodes = reports.lines(action, shown, job.implementation.head.source, listing)
    return {
        "kind": "counters", "op": job.found.op.name if job.found else Path(job.subject).stem, "subject": job.subject, "case": job.title,
        "tier": job.tier, **job.identity(device).facts, "file": shown, "kernel": launch.kernel, "symbol": name,
        "launch": number, "grid": list(launch.grid), "block": list(launch.block),
        "cluster": list(launch.cluster), "shared": launch.shared, "totals": reports.totals(action, TOTALS), "opcodes": opcodes,
        "lines": lines, "device": store.about(device),
        "versions": {**store.versions(), **reports.version(action)},
    }


def table(written: Sequence[store.Record]) -> str:
    """A line for each record: sectors and wavefronts over all lines, against the ideal, and the bytes that passed the memory."""
    rows = [
        f"{'subject':34s} {'case':22s} {'sectors':>12s} {'ideal':>12s} {'wavefronts':>12s} {'ideal':>12s} {'DRAM read':>12s} "
        f"{'written':>12s}"
    ]
    for r in written:
        sums = [sum(line.get(k, 0) for line in r["lines"]) for k in ("sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")]
        dram = [r["totals"].get(f"dram__bytes_{k}.sum") for k in ("read", "write")]
        cells = [
            *(f"{n:12,d}" if r["lines"] else " " * 12 for n in sums), *(f"{n:12,.0f}" if n is not None else f"{'?':>12s}" for n in dram)
        ]
        rows.append(f"{Path(r['subject']).as_posix()[-34:]:34s} {r['case'][:22]:22s} " + " ".join(cells))
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    about = "Hardware counters of CUDA C++ kernels by source line, through Nsight Compute."
    parser = Parser(prog="python -m rooftop.lab.counters.collect", description=about)
    what = "ladders, rungs, kernels or .cu files; none: sgemm_cuda, softmax_cuda, and the transposes and patterns of the tests"
    parser.add_argument("names", nargs="*", help=what)
    parser.add_argument("--out", type=Path, default=Path("counters"), help="folder for the records, as results/ has them")
    parser.add_argument("--tiers", default=",".join(TIERS), help=f"which of {', '.join(TIERS)}")
    parser.add_argument("--case", help="one of the op's own cases, in place of those that are counted")
    parser.add_argument("--shape", default="", help="sizes of a file without an op: M=1024,N=1024")
    parser.add_argument("--keep", action="store_true", help="keep ncu's reports")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        worker(given.worker)
        return
    tiers = given.tiers.split(",")
    if unknown := [t for t in tiers if t not in TIERS]:
        parser.error(f"--tiers: {unknown[0]!r} is not one of {', '.join(TIERS)}")
    try:
        shapes = {k.strip(): int(v) for k, v in (part.split("=") for part in given.shape.split(",") if part)}
    except ValueError:
        parser.error(f"--shape: {given.shape!r} is not of the form M=1024,N=1024")
    jobs = jobs_for(given.names, tiers, shapes or None, given.case)
    print(table(run(jobs, given.out, keep=given.keep)))


if __name__ == "__main__":
    ended(main)
