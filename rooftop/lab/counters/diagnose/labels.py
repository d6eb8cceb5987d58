"""What `ncu --page details` calls metrics -> their names, by section where one label stands for several."""

from __future__ import annotations

from collections.abc import Mapping

_SOL, _MEMORY = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
LABELS: Mapping[tuple[str, str], str] = {
    ("", "Duration"): "gpu__time_duration.sum",
    ("", "Elapsed Cycles"): "gpc__cycles_elapsed.max",
    ("", "SM Frequency"): "gpc__cycles_elapsed.avg.per_second",
    ("", "DRAM Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("", "SM Active Cycles"): "sm__cycles_active.avg",
    (_SOL, "Memory Throughput"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    (_SOL, "DRAM Throughput"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    (_SOL, "Compute (SM) Throughput"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    (_SOL, "L1/TEX Cache Throughput"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    (_SOL, "L2 Cache Throughput"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    (_MEMORY, "Memory Throughput"): "dram__bytes.sum.per_second",
    (_MEMORY, "L1/TEX Hit Rate"): "l1tex__t_sector_hit_rate.pct",
    (_MEMORY, "L2 Hit Rate"): "lts__t_sector_hit_rate.pct",
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
}
