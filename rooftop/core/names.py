"""Lookup of names: error messages for names that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

# Kernels and rungs that were renamed, or merged into another: the old name -> the one of today. Records of the old name are read as of the
# new one; a call, or a command, with the old name is told the new one.
RENAMED = {
    "cross_entropy__rows__cuda_sm80": "cross_entropy__cuda_sm80", "cumsum__chain__cuda_sm90": "cumsum__look_back__cuda_sm90",
    "kthvalue__bracket__cuda_sm80": "kthvalue__splitters__cuda_sm80", "topk_mask__bracket__cuda_sm80": "topk_mask__splitters__cuda_sm80",
    "swiglu__cuda_sm80": "swiglu__rows__cuda_sm80", "compress_planes__cuda_sm80": "compress_planes__bytes__cuda_sm80",
    "decompress_planes__cuda_sm80": "decompress_planes__ring__cuda_sm80", "attention_bwd/05_every_option": "attention_bwd/05_tuned",
    "attention_fwd/07_hopper": "attention_fwd/10_every_call", "hgemm_hopper/10_multicast": "hgemm_hopper/12_multicast",
    "layer_norm_cuda/08_by_length": "layer_norm_cuda/10_by_length", "rms_norm_cuda/08_by_length": "rms_norm_cuda/10_by_length",
    "rms_norm__addend__triton": "rms_norm__triton", "topk_cuda/06_pivot": "topk_cuda/08_every_order",
}


def renamed(name: str, known: Sequence[str]) -> str | None:
    """Today's name of a kernel, one of `known`, for an old one with or without its op; None if it had no other."""
    return next((new for old, new in RENAMED.items() if new in known and name in (old, old.partition("__")[2])), None)


SHOWN = 24  # names that a message lists


class RegistryError(LookupError):
    """A name that does not exist, or a file with an invalid name."""


def hint(name: str, known: Sequence[str]) -> str:
    """A hint for a mistyped name: what it is called today, the closest known one, else the first `SHOWN` of them."""
    if new := renamed(name, known):
        return f"it is {new!r} now"
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are {', '.join(known[:SHOWN]) or 'none'}" + (f", and {len(known) - SHOWN} more" if len(known) > SHOWN else "")


class UnknownName(RegistryError):
    """There is no `kind` with that name."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no {kind} {name!r}; {hint(name, known)}")


SAME = (
    "torch", "triton", "numpy", "ml_dtypes", "rich", "typer", "jinja2", "markupsafe", "scipy", "numcodecs", "zarr", "transformers",
    "torchao", "safetensors", "gemlite",
    "jax", "kernels", "mcp", "vllm", "torchtitan", "fsrs", "starlette",
    "uvicorn",
)
PACKAGES = {  # module -> the package of an index that has it
    **{name: name for name in SAME}, "liger_kernel": "liger-kernel", "pynvml": "nvidia-ml-py", "cuda.bindings": "cuda-bindings",
    "cuda.tile": "cuda-tile", "humming": "humming-kernels",
    "cuda": "cuda-core", "nvidia": "nvidia-cuda-runtime", "cutlass": "nvidia-cutlass-dsl", "ncu_report": "ncu-report",
    "quack": "quack-kernels",
    "flashinfer": "flashinfer-python", "python_multipart": "python-multipart",
}


def package_of(module: str) -> str | None:
    """The package to install for a missing module: `cuda.bindings.nvrtc` is in cuda-bindings. None for a module that rooftop does not use:
    nobody here knows which package has it, or whether any has."""
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((PACKAGES[p] for p in prefixes if p in PACKAGES), None)


def extra(name: str) -> str:
    """How the packages of an extra are installed. rooftop itself is on no index: the extras are those of its checkout."""
    return f"pip install '.[{name}]' in rooftop's checkout"
