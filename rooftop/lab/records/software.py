"""What decides a result beside the card and the kernel: versions of the software, of all peers that are installed, of the driver; and the
CPU."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGES = ("rooftop", "torch", "triton", "numpy", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "ml_dtypes")
PEERS = (  # what contracts name as peers, and what these stand on
    "liger-kernel", "quack-kernels", "cut-cross-entropy", "torchao", "gemlite", "humming-kernels", "flashinfer-python", "flashinfer-cubin",
    "flash-attn", "flash-attn-4", "flash-linear-attention", "fla-core", "bitsandbytes", "transformer-engine", "deep-gemm", "xformers",
    "cupy-cuda13x", "cupy-cuda12x", "nvidia-nvcomp-cu13", "nvidia-nvcomp-cu12", "nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12",
    "nvidia-cutlass-dsl", "apache-tvm-ffi", "tilelang", "zfpy", "hdf5plugin", "h5py",
)
# then perhaps -cu12, -cu13
LIBRARIES = ("nvidia-cublas", "nvidia-cudnn", "nvidia-nccl", "nvidia-nvshmem", "nvidia-cusparselt", "nvidia-cusparse")


@cache
def versions() -> dict[str, str]:
    """Of the software that decides a result; what is absent is left out.

    `cuda`: torch's; `cuda driver`: the highest CUDA that the driver takes; `driver`: the driver itself; `nvrtc`, `cudnn`: as loaded."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *PEERS, *(f"{name}{suffix}" for name in LIBRARIES for suffix in ("", "-cu12", "-cu13"))):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    for name, ask in {"cuda": _cuda, "cudnn": _cudnn, "nvrtc": _nvrtc, "cuda driver": _cuda_driver, "driver": _driver}.items():
        if said := _asked(ask):
            found[name] = said
    return found


def _asked(ask: Callable[[], str | None]) -> str | None:
    """What a library says of itself; None where it is absent or does not say, which is no error here."""
    try:
        return ask()
    except Exception:
        return None


def _cuda() -> str | None:
    import torch

    return torch.version.cuda


def _cudnn() -> str | None:
    import torch

    version = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return None if version is None else str(version)


def _nvrtc() -> str:
    from rooftop.core.compile import nvrtc_version

    return nvrtc_version()


def _cuda_driver() -> str | None:
    from cuda.bindings import driver

    status, version = driver.cuDriverGetVersion()
    return f"{version // 1000}.{version % 1000 // 10}" if int(status) == 0 and version else None


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    said = pynvml.nvmlSystemGetDriverVersion()
    return said.decode() if isinstance(said, bytes) else str(said)


@cache
def host() -> dict[str, str | int]:
    """The CPU by its model, its cores, and the system."""
    models: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = next(filter(None, models), "") or platform.machine() or "cpu"
    return {"cpu": name, "cores": os.cpu_count() or 1, "system": f"{platform.system()} {platform.machine()}"}
