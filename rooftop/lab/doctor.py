"""What works on this machine, what is missing, and what to do about it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rooftop.core import settings, tpu

PURE = ("ml_dtypes", "jinja2")  # the references of 8-bit floats, and the pages


@dataclass(frozen=True)
class Row:
    """`state`: ok, absent (not needed) or missing. `needed`: without it the two commands of the README do not work."""

    what: str
    state: str
    found: str
    do: str = ""
    needed: bool = False


def examine() -> list[Row]:
    """Every part looked at; never raises."""
    return [row for look in (_python, _packages, _nvrtc, _tools, _gpu, _counters, _optional, _folders) for row in _guarded(look)]


def _guarded(look: Callable[[], Iterator[Row]]) -> list[Row]:
    try:
        return list(look())
    except Exception as error:  # whatever is broken here is the finding
        return [Row(look.__name__.strip("_"), "missing", f"{type(error).__name__}: {error}", "see the message", True)]


def _python() -> Iterator[Row]:
    good = sys.version_info >= (3, 11)
    yield Row("Python", "ok" if good else "missing", platform.python_version(), "" if good else "Python 3.11 or later", True)


def _packages() -> Iterator[Row]:
    try:
        import torch

        yield Row("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda or 'none: the CPU build'}", "", True)
    except ImportError as error:
        yield Row("torch", "missing", str(error), "pip install torch (2.11 or later)", True)
    try:
        from rooftop.core.triton_compat import version

        yield Row("triton", "ok", ".".join(map(str, version())), "", True)
    except Exception as error:
        yield Row("triton", "missing", str(error), "pip install 'triton>=3.6,<3.10'", True)
    for name in PURE:
        try:
            importlib.import_module(name)
            yield Row(name, "ok", metadata.version(name), "", True)
        except ImportError as error:  # PackageNotFoundError too
            yield Row(name, "missing", str(error), f"pip install {name}", True)


def _nvrtc() -> Iterator[Row]:
    from rooftop.core.compile import ToolchainError, compile_cuda, cuda_include, nvrtc_version

    try:
        made = compile_cuda('extern "C" __global__ void k() {}', name="doctor.cu", target="sm_80", kernels=["k"], use_cache=False)
        yield Row(
            "CUDA C++ compiler", "ok", f"NVRTC {nvrtc_version()}, {len(made.cubin)} bytes for sm_80; headers in {cuda_include()[0]}", "",
            True
        )
    except ToolchainError as error:
        do = "pip install cuda-core cuda-bindings 'nvidia-cuda-nvrtc<13.1' 'nvidia-cuda-runtime<13.1' 'nvidia-cuda-cccl<13.1'"
        yield Row("CUDA C++ compiler", "missing", str(error), do, True)


def _tools() -> Iterator[Row]:
    from rooftop.core.compile import ToolchainError
    from rooftop.lab.inspect import binary

    for name in ("cuobjdump", "nvdisasm"):
        try:
            yield Row(name, "ok", str(binary.tool(name)), "", True)
        except ToolchainError as error:
            yield Row(name, "missing", str(error), f"pip install nvidia-cuda-{name}", True)


def _gpu() -> Iterator[Row]:
    import torch

    if not torch.cuda.is_available():
        do = "kernels are compiled, and Triton's run in the interpreter; bench and calibrate need a GPU"
        yield Row("GPU", "absent", "torch.cuda.is_available() is False", do)
        return
    from rooftop.lab.timing import sensors

    yield Row("GPU", "ok", f"{torch.cuda.get_device_name()}, sm_{''.join(map(str, torch.cuda.get_device_capability()))}")
    found = sensors.read(0)
    if isinstance(found, sensors.Sensors):
        yield Row("clocks and power", "ok", f"SM {found.sm_mhz} MHz, {found.power_w} W, {found.temperature_c} C, driver {found.driver}")
    else:
        yield Row("clocks and power", "absent", found.reason, "pip install nvidia-ml-py: records then say at which clocks they were made")


def _counters() -> Iterator[Row]:
    ncu = settings.tool_path("ncu")
    if ncu is None:
        yield Row("Nsight Compute", "absent", "ncu is not on PATH", "needed only to read hardware counters")
        return
    params = Path("/proc/driver/nvidia/params")
    restricted = params.is_file() and "RmProfilingAdminOnly: 1" in params.read_text(encoding="utf-8")
    do = "counters are for the administrator alone: run as root, or ask for it" if restricted else ""
    yield Row("Nsight Compute", "absent" if restricted else "ok", str(ncu), do)


def _optional() -> Iterator[Row]:
    compiler = settings.tool_path("g++") or settings.tool_path("clang++")
    do = "" if compiler else "apt install g++ (11 or later) or clang; without it no CUDA C++ is simulated"
    yield Row("C++ compiler", "ok" if compiler else "absent", str(compiler or "neither g++ nor clang++ on PATH"), do)
    if sys.platform == "linux":
        from rooftop.core import sandbox

        open_to_it = sandbox.missing()
        what = (
            f"this system has no {', no '.join(open_to_it)}" if open_to_it else "simulated code has no network, no files, no other programs"
        )
        yield Row(
            "confined simulation", "absent" if open_to_it else "ok", what,
            "simulate sources that you trust (docs/trust.md)" if open_to_it else ""
        )
    sanitizer = settings.tool_path("compute-sanitizer")
    do = "" if sanitizer else "part of the CUDA toolkit; finds bad accesses and races on a GPU"
    yield Row("compute-sanitizer", "ok" if sanitizer else "absent", str(sanitizer or "not on PATH"), do)
    liger = importlib.util.find_spec("liger_kernel") is not None
    yield Row(
        "peer Liger", "ok" if liger else "absent", "installed" if liger else "not installed", "" if liger else "pip install liger-kernel"
    )
    jax = tpu.python()
    yield Row("jax for TPU kernels", "ok" if jax else "absent", str(jax or "not installed"), "" if jax else tpu.EXTRA)


def _folders() -> Iterator[Row]:
    found = settings.load()
    try:
        found.cache.mkdir(parents=True, exist_ok=True)
        probe = found.cache / ".doctor"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
        yield Row("compile cache", "ok", f"{found.cache}, {_size(found.cache) >> 20} MiB")
    except OSError as error:
        yield Row("compile cache", "absent", f"{found.cache}: {error}", "set ROOFTOP_CACHE to a folder that can be written")
    yield from _records(found.results)


def _size(folder: Path) -> int:
    """Bytes of the files below it. A cache has tens of thousands."""
    total, left = 0, [str(folder)]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:  # removed meanwhile
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _records(results: Path) -> Iterator[Row]:
    from rooftop.lab.check.unproven import waiting
    from rooftop.lab.records import store
    from rooftop.lab.timing import roofline

    try:
        count = len(store.files(results))
        measured = store.read(results)
    except (OSError, store.RecordError) as error:
        yield Row("records", "absent", said(error), "mend it, or set ROOFTOP_RESULTS to another folder")
        return
    yield Row("records", "ok", f"{results}: {count} files")
    for name in sorted({r.card for r in measured if r.kind == "ceiling"}):
        ceilings = roofline.Ceilings.from_records(measured, name)
        what = (
            "measured with other calibration kernels than these: pages show no share of a roof" if ceilings.stale
            else f"measured {ceilings.at}"
        )
        yield Row(
            "ceilings", "absent" if ceilings.stale else "ok", f"{name}: {what}", "rooftop calibrate, on that card" if ceilings.stale else ""
        )
    found = waiting(results)
    if not found:
        yield Row("kernels for a GPU only", "ok", "each has a check record of its present digest")
    for kernel in found:
        yield Row("kernels for a GPU only", "absent", str(kernel), f"on a GPU: rooftop check {kernel.name} --records {results}")


def said(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
