"""CUDA C++ without a GPU: kernels run on the CPU thread by thread, with their faults found and their memory accesses counted."""

from __future__ import annotations

from rooftop.lab.simt.report import KINDS, Finding, LineCounts, Other, Report
from rooftop.lab.simt.run import LaunchError, SimulatedFault, run_launches, run_rung, run_simulator, simulate

__all__ = [
    "KINDS", "Finding", "LaunchError", "LineCounts", "Other", "Report", "SimulatedFault", "run_launches", "run_rung", "run_simulator", "simulate",
    "unavailable",
]  # fmt: skip


def unavailable() -> str | None:
    """None, or why CUDA C++ cannot be simulated here."""
    from rooftop.lab import settings
    from rooftop.lab.simt.build import NoCompilerError, compiler

    try:
        compiler()
    except NoCompilerError as error:
        return str(error)
    missing = [name for name in ("addr2line", "objdump") if settings.tool_path(name) is None]
    return f"{' and '.join(missing)} not on PATH: simulating CUDA C++ needs binutils (apt install binutils)" if missing else None
