"""What `ncu --page details` and the console call metrics -> their names, by section where one label stands for several."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SOL, _MEMORY = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_UNITS = {"SM": "sm", "L1": "l1tex", "L2": "lts", "DRAM": "dram", "IDC": "idc", "FBPA": "fbpa"}
LABELS: Mapping[tuple[str, str], str] = {
    ("", "Duration"): "gpu__time_duration.sum",
    ("", "Elapsed Cycles"): "gpc__cycles_elapsed.max",
    ("", "SM Frequency"): "gpc__cycles_elapsed.avg.per_second",
    ("", "DRAM Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("", "SM Active Cycles"): "sm__cycles_active.avg",
    (_SOL, "Memory Throughput"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "DRAM Throughput"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "Compute (SM) Throughput"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "L1/TEX Cache Throughput"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("", "L2 Cache Throughput"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    (_MEMORY, "Memory Throughput"): "dram__bytes.sum.per_second",
    ("", "Block Limit SM"): "launch__occupancy_limit_blocks",
    ("", "Block Limit Registers"): "launch__occupancy_limit_registers",
    ("", "Block Limit Shared Mem"): "launch__occupancy_limit_shared_mem",
    ("", "Block Limit Warps"): "launch__occupancy_limit_warps",
    ("", "Block Limit Barriers"): "launch__occupancy_limit_barriers",
    ("", "Theoretical Active Warps per SM"): "sm__maximum_warps_avg_per_active_cycle",
    ("", "Theoretical Occupancy"): "sm__maximum_warps_per_active_cycle_pct",
    ("", "Achieved Occupancy"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("", "Achieved Active Warps Per SM"): "sm__warps_active.avg.per_cycle_active",
    ("", "Registers Per Thread"): "launch__registers_per_thread",
    ("", "Static Shared Memory Per Block"): "launch__shared_mem_per_block_static",
    ("", "Dynamic Shared Memory Per Block"): "launch__shared_mem_per_block_dynamic",
    ("", "Threads"): "launch__thread_count",
    ("", "Waves Per SM"): "launch__waves_per_multiprocessor",
    ("", "# SMs"): "launch__sm_count",
    ("Launch Statistics", "Block Size"): "launch__block_size",
    ("Launch Statistics", "Grid Size"): "launch__grid_size",
    ("", "Issued Warp Per Scheduler"): "smsp__issue_active.avg.per_cycle_active",
    ("", "Eligible Warps Per Scheduler"): "smsp__warps_eligible.avg.per_cycle_active",
    ("", "Active Warps Per Scheduler"): "smsp__warps_active.avg.per_cycle_active",
    ("", "Warp Cycles Per Issued Instruction"): "smsp__average_warp_latency_per_inst_issued.ratio",
    ("", "Issue Slots Busy"): "sm__inst_issued.avg.pct_of_peak_sustained_active",
    ("", "SM Busy"): "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    ("", "Mem Pipes Busy"): "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "Mem Busy"): "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "Max Bandwidth"): "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "L1/TEX Hit Rate"): "l1tex__t_sector_hit_rate.pct",
    ("", "L2 Hit Rate"): "lts__t_sector_hit_rate.pct",
    ("", "Avg. Active Threads Per Warp"): "smsp__thread_inst_executed_per_inst_executed.ratio",
    ("", "Executed Instructions"): "smsp__inst_executed.sum",
    ("", "Average SM Active Cycles"): "sm__cycles_active.avg",
    ("", "Cluster Size"): "launch__cluster_size",
    ("", "SOL SM"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",  # these five and the next two: before 2021
    ("", "SOL Memory"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "SOL L1/TEX Cache"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("", "SOL L2 Cache"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("", "SOL DRAM"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    (_SOL, "SM [%]"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    (_SOL, "Memory [%]"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    (_SOL, "Compute (SM) [%]"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}


def metric_of(label: str, section: str, unit: str) -> str | None:
    """The metric that a row of the details page shows, or None where the diagnosis needs none of it. A label of a throughput's breakdown
    (`SM: Pipe Alu Cycles Active`, of `--print-details all`) and a stall reason (`Stall Long Scoreboard`) say their metric themselves."""
    if "__" in label:
        return label
    if label == "Memory Throughput" and section not in (_SOL, _MEMORY):  # a section's name was lost: the unit tells the two apart
        section = _SOL if unit.strip() == "%" else _MEMORY
    if found := LABELS.get((section, label), LABELS.get(("", label))):
        return found
    if (part := re.fullmatch(r"(SM|L1|L2|DRAM|IDC|FBPA): ([A-Z][\w ]+)", label)) and unit.strip() == "%":
        return f"{_UNITS[part[1]]}__{part[2].strip().lower().replace(' ', '_')}{_ELAPSED}"
    if stall := re.fullmatch(r"Stall ([A-Z][\w ]+)|(Selected)", label):
        reason = (
            (stall[1] or stall[2])
            .lower()
            .replace(" ", "_")
            .replace("dispatch", "dispatch_stall")
            .replace("stall_stall", "stall")
            .replace("instructions", "instruction")
        )
        return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return None
