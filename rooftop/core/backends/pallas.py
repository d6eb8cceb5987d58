"""Pallas: a module whose `run` is written in jax for a TPU. It runs in jax's interpreter, in a separate process; this process never imports
jax."""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooftop.core import child, tpu
from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.implementation import Runner, Where
from rooftop.core.spec import DTYPES, Device, Launch, Meta, Problem, Step

LIMIT = child.LIMIT  # seconds that one run or one compilation may take
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # else a second process finds libtpu's lock file and ends
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_LOG_DIR": "disabled",
    "PJRT_NPROC": "16",  # with few cores, jax 0.10.2 otherwise deadlocks between four interpreted devices if a buffer has 32 KiB
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
}


class PallasError(child.ChildError):
    """An error that the interpreter or the compiler reports for a kernel: a race, an access out of range, an operation that a TPU does not
    have."""


class PallasTimeout(PallasError):
    """The process did not answer in time: a wait that nothing signals, or a compiler that does not finish."""


class Process(child.Process):
    """A Python process with jax that runs and compiles kernels one after another; it is killed if it does not answer in time."""

    def __init__(self, python: Path, more: Mapping[str, str] | None = None) -> None:
        super().__init__(
            python, "rooftop.core.backends.pallas_child", {**ENVIRONMENT, **(more or {})}, what="jax", error=PallasError,
            timeout=PallasTimeout, slow=": a wait that nothing signals, or too large a block",
        )


_PROCESS: dict[Path, Process] = {}


def process() -> Process:
    """The process that interprets kernels for this one. Raises PallasError without jax."""
    python = tpu.python()
    if python is None:
        raise PallasError(str(tpu.absent()))
    if python not in _PROCESS:
        _PROCESS[python] = Process(python)
        atexit.register(_PROCESS[python].end)
    return _PROCESS[python]


class PallasImplementation(ModuleImplementation):
    """A module with

    supports(p)                 None, or the reason why not; `p.device` is a `rooftop.core.tpu.Tpu`
    choose(p)                   the config: tiles, from what the VMEM of `p.device` holds
    vmem(p, config)             bytes of VMEM that it takes at least
    run(given, p, config, on)   the outputs by name, as jax arrays, from inputs by name; runtime numbers are arrays of one element.
                                `on` says where it runs (rooftop/kernels/_device/tpu.py)
    prepare(given, p)           (where needed) the inputs laid out as the kernel takes them, in numpy, before it
    finish(outputs, p)          (where needed) the outputs in the shapes of `p`, in numpy, after it
    FIGURES                     (where needed) the cases that are compiled for figures; CYCLES = False where libtpu cannot estimate its
                                cycles
    INTERPRETER                 "tpu" for kernels that copy by hand: slower, with memory spaces, semaphores and races; else "plain"

    It takes jax from `rooftop.kernels._device.tpu`, which imports it when it is used: the file itself imports without jax. Tensors are made
    dense before they are handed over, whatever their strides."""

    backend = "pallas"
    platform = "tpu"
    needed = ("supports", "choose", "vmem", "run")
    package, install = "jax", tpu.EXTRA

    @property
    def demands(self) -> Mapping[str, Any]:
        return {}

    @property
    def interpreter(self) -> str:
        return str(getattr(self.module, "INTERPRETER", "plain"))

    def where(self) -> Where:
        reason = tpu.absent()
        return Where("none", reason) if reason else Where("pallas")

    def stand_in(self, arch: int) -> Device:
        return tpu.ANY

    def rejects(self, problem: Problem) -> str | None:
        device = problem.device
        if not isinstance(device, tpu.Tpu):
            return f"runs on a TPU, or in its interpreter; {device.name} is none"
        for name, meta in problem.tensors:
            if meta is not None and (meta.itemsize == 8 or meta.dtype == "f16"):
                return f"{name} is {meta.dtype}; a TPU computes with 32 bits, bfloat16 and 8 bits"
        if reason := self.module.supports(problem):
            return str(reason)
        needs = int(self.module.vmem(problem, self.module.choose(problem)))
        if needs > device.shared_per_block:
            return f"its blocks take {needs} bytes of VMEM; a kernel may take {device.shared_per_block} of {device.name}"
        return None

    def configs(self, problem: Problem) -> list[Any]:
        return [self.choose(problem)]

    def configure(self, problem: Problem) -> Any:
        return self.module.choose(problem if isinstance(problem.device, tpu.Tpu) else problem.on(tpu.ANY))

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        return []

    def source(self, steps: Sequence[Step]) -> str:
        return self.digest

    def job(self, problem: Problem, config: Any) -> dict[str, Any]:
        """What a process needs to run or compile it for a problem."""
        facts = base64.b64encode(pickle.dumps(replace(problem, bucket=None))).decode()
        return {"kernel": str(self.path), "problem": facts, "config": self.config_dict(config), "interpreter": self.interpreter}

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        """Runs one call on CPU tensors, in the interpreter."""
        assert self.contract is not None, f"{self.name} has no contract"
        contract, worker = self.contract(), process()
        job = {**self.job(problem, config), "what": "run", "runtime_floats": list(problem.runtime_floats)}
        inputs = set(contract.inputs_of(problem))

        def call(stream: int, values: Sequence[Any]) -> None:
            given = dict(zip(names, values, strict=True))
            with _shared() as folder:
                arrays, numbers, results = {}, {}, {}
                for name, value in given.items():
                    meta = problem.get(name)
                    if value is None:
                        continue
                    if meta is None:
                        numbers[name] = value
                    elif name in inputs:
                        arrays[name] = _written(folder / name, _seen(value, meta), meta.dtype)
                    else:
                        results[name] = {"file": str(folder / name), "shape": meta.shape, "dtype": meta.dtype}
                worker.ask({**job, "arrays": arrays, "numbers": numbers, "results": results}, LIMIT)
                for name in results:
                    _read(folder / name, given[name], problem)

        return call


@contextlib.contextmanager
def _shared() -> Any:
    """A folder in memory, if the system has one, for the tensors of one call."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="rooftop-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _written(path: Path, tensor: Any, dtype: str) -> dict[str, Any]:
    import torch

    path.write_bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return {"file": str(path), "shape": list(tensor.shape), "dtype": dtype}


def _seen(tensor: Any, meta: Meta) -> Any:
    """The memory of a tensor with the dtype, shape and strides that the problem gives it."""
    import torch

    dtype = getattr(torch, DTYPES[meta.dtype].torch)
    start = tensor.storage_offset() * tensor.element_size() // meta.itemsize
    return torch.empty(0, dtype=dtype).set_(tensor.untyped_storage(), start, meta.shape, meta.strides)


def _read(path: Path, into: Any, problem: Problem) -> None:
    import torch

    meta = problem[path.name]
    if meta.numel:
        target = _seen(into, meta)
        target.copy_(torch.frombuffer(bytearray(path.read_bytes()), dtype=target.dtype).view(meta.shape))
