"""What `ncu --set full` prints of a profiled launch, written from its metrics: the details page as CSV, and the console. Both show labelled metrics and the
texts of rules; pipes, stall reasons and sectors stand in the rules alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from rooftop.lab.counters.diagnose.kernel import Kernel
from rooftop.lab.counters.diagnose.resources import Activity

SOL, COMPUTE, MEMORY, SCHEDULER, WARP, LAUNCH, OCCUPANCY = (
    "GPU Speed Of Light Throughput", "Compute Workload Analysis", "Memory Workload Analysis", "Scheduler Statistics", "Warp State Statistics",
    "Launch Statistics", "Occupancy",
)
MATH = ("pipe_alu_cycles_active", "pipe_fma_cycles_active", "pipe_fp64_cycles_active", "pipe_tensor_cycles_active", "inst_executed_pipe_alu",
        "inst_executed_pipe_fma", "inst_executed_pipe_fp64", "inst_executed_pipe_xu", "inst_executed_pipe_uniform", "inst_executed_pipe_adu",
        "inst_executed_pipe_cbu")
ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
PIPE_NAMES = {"alu": "ALU", "fma": "FMA", "fp64": "FP64", "xu": "XU", "tensor": "Tensor (FP)"}
STALL_TEXTS = {
    "long_scoreboard": "for a scoreboard dependency on a L1TEX (local, global, surface, texture) operation",
    "short_scoreboard": "for a scoreboard dependency on a MIO (memory input/output) operation",
    "mio_throttle": "for the MIO (memory input/output) instruction queue to be not full",
    "barrier": "for sibling warps at a CTA barrier",
    "wait": "on a fixed latency execution dependency",
    "math_pipe_throttle": "for the execution pipe to be available",
    "lg_throttle": "for the L1 instruction queue for local and global (LG) memory operations to be not full",
}
HEAD = (
    "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC,Section Name,Metric Name,Metric Unit,Metric Value,"
    "Rule Name,Rule Type,Rule Description,Estimated Speedup Type,Estimated Speedup"
)
Row = tuple[str, str, str, str]  # section, label, unit, value


def rows(kernel: Kernel) -> Iterator[Row]:
    """The details page's rows, with units scaled as ncu scales them."""
    m, a = kernel.metrics, Activity(kernel)
    active = a.active or 1.0
    instructions = max([m.get(f"sm__{n}{ELAPSED}", 0.0) for n in MATH] + [m["sm__inst_issued" + ELAPSED]])
    queues = max(m.get(f"sm__{n}{ELAPSED}", 0.0) for n in ("mio_inst_issued", "mio_pq_read_cycles_active", "mio2rf_writeback_active", "inst_executed_pipe_lsu"))
    yield SOL, "Elapsed Cycles", "cycle", f"{m['gpc__cycles_elapsed.max']:,.0f}"
    yield SOL, "Memory Throughput", "%", f"{m['gpu__compute_memory_throughput' + ELAPSED]:.2f}"
    yield SOL, "DRAM Throughput", "%", f"{m['gpu__dram_throughput' + ELAPSED]:.2f}"
    ms = m["gpu__time_duration.sum"] >= 1e-3
    yield SOL, "Duration", *(("ms", f"{m['gpu__time_duration.sum'] * 1e3:,.2f}") if ms else ("us", f"{m['gpu__time_duration.sum'] * 1e6:,.2f}"))
    yield SOL, "L1/TEX Cache Throughput", "%", f"{m['l1tex__throughput.avg.pct_of_peak_sustained_active']:.2f}"
    yield SOL, "L2 Cache Throughput", "%", f"{m['lts__throughput' + ELAPSED]:.2f}"
    yield SOL, "SM Active Cycles", "cycle", f"{m['sm__cycles_active.avg']:,.2f}"
    yield SOL, "Compute (SM) Throughput", "%", f"{m['sm__throughput' + ELAPSED]:.2f}"
    yield COMPUTE, "Issue Slots Busy", "%", f"{m['sm__inst_issued' + ELAPSED] / active:.2f}"
    yield COMPUTE, "SM Busy", "%", f"{instructions / active:.2f}"
    rate = (a.bytes or 0.0) / (a.seconds or 1.0)
    yield MEMORY, "Memory Throughput", *(("Gbyte/s", f"{rate / 1e9:,.2f}") if rate >= 1e9 else ("Mbyte/s", f"{rate / 1e6:,.2f}"))
    for label, name in (("L1/TEX Hit Rate", "l1tex__t_sector_hit_rate.pct"), ("L2 Hit Rate", "lts__t_sector_hit_rate.pct")):
        yield MEMORY, label, "%", f"{m.get(name, 0.0):.2f}"
    yield MEMORY, "Mem Pipes Busy", "%", f"{queues:.2f}"
    yield SCHEDULER, "Issued Warp Per Scheduler", "", f"{m['smsp__issue_active.avg.per_cycle_active']:.2f}"
    yield WARP, "Warp Cycles Per Issued Instruction", "cycle", f"{m['smsp__average_warp_latency_per_inst_issued.ratio']:.2f}"
    yield WARP, "Avg. Active Threads Per Warp", "", f"{m['smsp__thread_inst_executed_per_inst_executed.ratio']:.2f}"
    yield LAUNCH, "Function Cache Configuration", "", "CachePreferNone"
    yield LAUNCH, "Grid Size", "", f"{m['launch__grid_size']:,.0f}"
    yield LAUNCH, "# SMs", "SM", f"{m['launch__sm_count']:.0f}"
    yield LAUNCH, "Waves Per SM", "", f"{m['launch__waves_per_multiprocessor']:.2f}"
    yield OCCUPANCY, "Theoretical Occupancy", "%", f"{m['sm__maximum_warps_per_active_cycle_pct']:.2f}"
    yield OCCUPANCY, "Achieved Occupancy", "%", f"{m['sm__warps_active.avg.pct_of_peak_sustained_active']:.2f}"


def rules(kernel: Kernel) -> Iterator[tuple[str, str, float]]:
    """Section, text and estimate of those that fire."""
    m, a = kernel.metrics, Activity(kernel)
    pipes = {key: 100 * (a.pipe(key) or 0.0) / (a.active or 1.0) for key in PIPE_NAMES}
    busiest = max(pipes, key=lambda key: pipes[key])
    if pipes[busiest] >= 20:
        yield (
            COMPUTE,
            f"{PIPE_NAMES[busiest]} is the highest-utilized pipeline ({pipes[busiest]:.1f}%) based on active cycles, taking into account the rates.",
            0.0,
        )
    for op, word in (("ld", "load"), ("st", "store")):
        conflicts, wavefronts = (m.get(f"l1tex__data_{w}_mem_shared_op_{op}.sum", 0.0) for w in ("bank_conflicts_pipe_lsu", "pipe_lsu_wavefronts"))
        if wavefronts and conflicts / wavefronts >= 0.1:
            text = f"The access pattern for shared {word}s causes on average a 4.0 - way bank conflict across all 512 shared {word} "
            yield MEMORY, text + (f"requests.This results in {conflicts:.0f} bank conflicts, which represent {conflicts / wavefronts:.2%} of the overall "
                                  f"{wavefronts:.0f} wavefronts for shared {word}s."), 50.0
    latency = m["smsp__average_warp_latency_per_inst_issued.ratio"]
    reason = next((r for r in a.stalls if r in STALL_TEXTS), None)
    if reason is not None and a.stalls[reason] >= 0.3 and m["smsp__issue_active.avg.per_cycle_active"] < 0.8:
        cycles = a.stalls[reason] * latency
        text = f"On average, each warp of this workload spends {cycles:.1f} cycles being stalled waiting {STALL_TEXTS[reason]}. This stall type represents "
        yield WARP, text + f"about {a.stalls[reason]:.1%} of the total average of {latency:.1f} cycles between issuing two instructions.", 30.0


def console(kernels: Sequence[Kernel]) -> str:
    lines = [
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
        '==PROF== Profiling "k" - 0: 0%....50%....100% - 46 passes',
        "the program's own line: 1, 2",
    ]
    for kernel in kernels:
        grid, block = (", ".join(map(str, s)) for s in (kernel.grid, kernel.block))
        lines.append(f"  {kernel.name} ({grid})x({block}), Context 1, Stream 7, Device 0, CC {kernel.arch}")
        found = list(rows(kernel))
        for section in dict.fromkeys(row[0] for row in found):
            own = [row[1:] for row in found if row[0] == section]
            wide = [max(len(row[i]) for row in [*own, ("Metric Name", "Metric Unit", "Metric Value")]) for i in range(3)]
            ruled = "    " + " ".join("-" * w for w in wide)
            head = f"    {'Metric Name':{wide[0]}} {'Metric Unit':>{wide[1]}} {'Metric Value':>{wide[2]}}"
            lines += [f"    Section: {section}", ruled, head, ruled]
            lines += [f"    {label:{wide[0]}} {unit:>{wide[1]}} {value:>{wide[2]}}" for label, unit, value in own]
            lines += [ruled, ""]
            for of, text, gain in rules(kernel):
                if of == section:
                    lines += _wrapped(f"OPT   Est. Speedup: {gain:.2f}%" if gain else "INF", text)
    return "\n".join(lines) + "\n"


def _wrapped(first: str, text: str) -> Iterator[str]:
    """As ncu breaks a rule's text."""
    words, line = text.split(), "    " + first if first != "INF" else "    INF   " + text.split()[0]
    if first == "INF":
        words = words[1:]
    else:
        yield line.ljust(120)
        line = "          " + words.pop(0)
    for word in words:
        if len(line) + len(word) > 110:
            yield line.ljust(120)
            line = "          " + word
        else:
            line += " " + word
    yield line.ljust(120)
    yield ""


def details(kernels: Sequence[Kernel]) -> str:
    out = io.StringIO()
    table = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    table.writerow(HEAD.split(","))
    for n, kernel in enumerate(kernels):
        grid, block = (f"({', '.join(map(str, s))})" for s in (kernel.grid, kernel.block))
        start = (str(n), "4711", "python3.12", "127.0.0.1", kernel.name, "1", "7", block, grid, "0", kernel.arch)
        for section, label, unit, value in rows(kernel):
            table.writerow((*start, section, label, unit, value, "", "", "", "", ""))
        for section, text, gain in rules(kernel):
            table.writerow(
                (*start, section.replace(" ", ""), "", "", "", "Rule", "OPT" if gain else "INF", text, "global" if gain else "", f"{gain}" if gain else "")
            )
    return out.getvalue()
