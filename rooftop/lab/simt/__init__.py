"""CUDA C++ without a GPU: kernels run on the CPU thread by thread, with their faults found and their memory accesses counted."""

from __future__ import annotations

from rooftop.lab.simt.report import KINDS, Finding, LineCounts, Other, Report
from rooftop.lab.simt.run import run_rung, simulate

__all__ = ["KINDS", "Finding", "LineCounts", "Other", "Report", "run_rung", "simulate"]
