"""CUDA C++ without a GPU: kernels run on the CPU thread by thread, with their faults found and their memory accesses counted.

A source is translated line for line (`translate`, `ptx`), compiled by the host's compiler with its ThreadSanitizer instrumentation
(clang++'s code is changed on the way: `whole`), and linked with an engine of our own (`runtime/`) that receives what the instrumentation
reports. Each CUDA thread is a fiber; barriers and collectives of a warp are where fibers wait for each other; blocks, or clusters of them,
are spread over threads of the host.

`__device__` and `__constant__` variables are global memory beside the tensors (`link`): they hold what they are initialised to at the start
of a run, and what a launch left there at the next.

What is not seen. Reads of `__constant__` variables are checked and not counted; what is `constexpr` is neither. Inside a block, a write to
global memory that follows another thread's read is not held against it; a plain read of what others change atomically is let pass. An
update lost between a volatile read and a volatile write of global memory is none either; `ld.volatile` and `st.volatile` of vectors are
taken for plain. Registers and stacks are not watched, but for indices past the end of an array whose type tells its size. A pointer that
leaves its tensor and lands in another is in bounds. Uninitialised reads are reported where the results depend on them. Copies by cp.async
land when they are waited for. An arrival at another block's mbarrier before that block has begun is not told from a later one. Accesses
that ptxas hoists, drops or moves are counted where the source has them; how wide they are, and which lines it names for them, is asked of
its machine code, where NVRTC is at hand (`machine`). What is not simulated is refused where a kernel comes to it: `ptx_table` has all of
PTX that is known, docs/simulator.md the rest."""

from __future__ import annotations

from rooftop.lab.simt.launching import LaunchError
from rooftop.lab.simt.process import SimulatedCrash
from rooftop.lab.simt.report import KINDS, Finding, LineCounts, Other, Report
from rooftop.lab.simt.run import NotSimulatedError, SimulatedFault, run_launches, run_rung, run_simulator, simulate

__all__ = [
    "KINDS", "Finding", "LaunchError", "LineCounts", "NotSimulatedError", "Other", "Report", "SimulatedCrash", "SimulatedFault",
    "run_launches",
    "run_rung", "run_simulator", "simulate", "unavailable",
]


def unavailable() -> str | None:
    """None, or why CUDA C++ cannot be simulated here."""
    import sys

    from rooftop.core import settings
    from rooftop.lab.simt.build import NoCompilerError, compiler

    if sys.platform != "linux":
        return f"simulating CUDA C++ needs Linux; this is {sys.platform}"
    try:
        compiler()
    except NoCompilerError as error:
        return str(error)
    missing = [name for name in ("addr2line", "nm", "objcopy", "objdump") if settings.tool_path(name) is None]
    return f"{' and '.join(missing)} not on PATH: simulating CUDA C++ needs binutils (apt install binutils)" if missing else None
