"""Nsight Compute's own rules: their texts without links, and the numbers in them that the page shows nowhere else.

The details page and the console leave out the pipes, the stall reasons and the counts of sectors, but their rules name the largest of
each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rooftop.lab.counters.diagnose.kernel import Kernel

_PIPE = re.compile(r"([A-Z][\w ]*?(?: \(\w+\))?) is the highest-utilized pipeline \(([\d.,]+)%\) based on (active|elapsed) cycles")
_SUB = re.compile(r"dominated by its ([\w ]+?(?: \(\w+\))?) (?:sub-pipeline|pipe)")
_PIPES: Mapping[str, str] = {  # how a pipe's name begins -> the counter of its utilisation
    "tensor": "sm__pipe_tensor_cycles_active", "fp64": "sm__inst_executed_pipe_fp64", "xu": "sm__inst_executed_pipe_xu",
    "alu": "sm__inst_executed_pipe_alu", "fma": "sm__inst_executed_pipe_fma", "fp16": "sm__inst_executed_pipe_fma",
    "lsu": "sm__inst_executed_pipe_lsu", "tex": "sm__inst_executed_pipe_tex",
}
_STALL = re.compile(r"spends ([\d.,]+) cycles being stalled (.{0,160})")
_REASONS: Mapping[str, str] = {  # what the text says -> the stall reason
    r"scoreboard dependency on an? L1TEX": "long_scoreboard", r"scoreboard dependency on an? MIO": "short_scoreboard",
    r"the MIO \(memory input/output\)": "mio_throttle", r"(LG|local and global).{0,40}queue": "lg_throttle",
    "sibling warps|CTA barrier": "barrier", "execution pipe to be available": "math_pipe_throttle", "fixed latency execution": "wait",
    "instruction fetch|next instruction": "no_instruction", "branch target": "branch_resolving", "memory barrier": "membar",
    "immediate constant cache": "imc_miss", "memory instructions to complete": "drain", "TEX pipeline": "tex_throttle",
    "dispatch": "dispatch_stall", "sleep": "sleeping", "micro scheduler to select": "not_selected", "GMMA|warpgroup": "gmma",
}
_USED = re.compile(
    r"access pattern for global (load|store)s.{0,80}?On average, only ([\d.,]+) of the 32 bytes transmitted per sector", re.DOTALL
)
_EXCESS = re.compile(
    r"uncoalesced (global|shared) accesses? resulting in a total of ([\d.,]+) excessive \w+ \([\d.,]+% of the total ([\d.,]+)"
)
_CONFLICTS = re.compile(
    r"results in ([\d.,]+) bank conflicts, which represent [\d.,]+% of the overall ([\d.,]+) wavefronts for shared (load|store)s"
)


def unmarked(text: str) -> str:
    """A rule's text without NVIDIA's links: `@url:TEXT:ADDRESS@`, `@section:KEY:TEXT@`."""
    return re.sub(r"@section:[^:@]*:([^@]*)@", r"\1", re.sub(r"@url:([^:@]*):[^@]*@", r"\1", text))


def complete(kernel: Kernel) -> None:
    """Add the metrics that only the rules' texts hold. What the report shows itself stays."""
    found: dict[str, float] = {}
    for text in (re.sub(r"\s+", " ", rule.text) for rule in kernel.rules):
        if pipe := _PIPE.search(text):
            name = (sub[1] if (sub := _SUB.search(text)) else pipe[1]).lower().removeprefix("shared ")
            counter = next((c for start, c in _PIPES.items() if name.startswith(start)), None)
            if counter is not None:
                found[f"{counter}.avg.pct_of_peak_sustained_{pipe[3]}"] = _number(pipe[2])
        if stall := _STALL.search(text):
            reason = next((r for said, r in _REASONS.items() if re.search(said, stall[2])), None)
            if reason is not None:
                found[f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"] = _number(stall[1])
        for op, used in _USED.findall(text):
            found[f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{'ld' if op == 'load' else 'st'}.ratio"] = _number(used)
        for space, excess, total in _EXCESS.findall(text):
            one = "l2_theoretical_sectors_global" if space == "global" else "l1_wavefronts_shared"
            found[f"derived__memory_{one}_excessive"], found[f"memory_{one}"] = _number(excess), _number(total)
        for conflicts, wavefronts, op in _CONFLICTS.findall(text):
            end = f"pipe_lsu_mem_shared_op_{'ld' if op == 'load' else 'st'}.sum"
            found[f"l1tex__data_bank_conflicts_{end}"] = _number(conflicts)
            found[f"l1tex__data_{end.replace('pipe_lsu_', 'pipe_lsu_wavefronts_', 1)}"] = _number(wavefronts)
    for name, value in found.items():
        kernel.metrics.setdefault(name, value)


def _number(text: str) -> float:
    """As the rules print numbers, whatever the locale: a point before decimals, no separators of thousands."""
    return float(text.rstrip(".,").replace(",", ""))
