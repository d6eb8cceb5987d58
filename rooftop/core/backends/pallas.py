"""Pallas: a module whose `run` is written in jax for a TPU. It runs in jax's interpreter, in a process of its own; this one never imports jax."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooftop.core import settings, tpu
from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.implementation import Runner, Where
from rooftop.core.spec import DTYPES, Device, Launch, Meta, Problem

LIMIT = 300.0  # seconds that one run or one compilation may take
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # else a second process finds libtpu's lock file and ends
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_LOG_DIR": "disabled",
    "PJRT_NPROC": "16",  # jax 0.10.2 on few cores: four interpreted devices wait for each other for ever once a buffer has 32 KiB
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
}  # fmt: skip


class PallasError(RuntimeError):
    """What the interpreter or the compiler says of a kernel: a race, an access out of range, an operation that the TPU has not."""


class PallasTimeout(PallasError):
    """A process that did not answer in time: a wait that nothing signals, or a compiler that found no end."""


class Process:
    """A Python with jax that runs and compiles kernels, one job after the other, and is ended where it does not answer in time."""

    def __init__(self, python: Path, more: Mapping[str, str] | None = None) -> None:
        self._python, self._more = python, dict(more or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._lock = threading.Lock()

    def ask(self, job: Mapping[str, Any], limit: float = LIMIT) -> Any:
        """The answer to a job. Raises PallasError with the text of the process' error, PallasTimeout after `limit` seconds."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            try:
                child.stdin.write(json.dumps(job).encode() + b"\n")
                child.stdin.flush()
                answer = _line(child.stdout.fileno(), limit)
            except (BrokenPipeError, EOFError):
                said = self._last_words()
                self.end()
                raise PallasError(f"the process of jax ended: {said}") from None
            except TimeoutError:
                said = f"no answer in {limit:.0f} s from the {job['what']} of {Path(str(job.get('kernel', ''))).name}"
                self.end()
                raise PallasTimeout(f"{said}: a wait that nothing signals, or too large a block") from None
            except BaseException:
                self.end()
                raise
        found = json.loads(answer)
        if "error" in found:
            raise PallasError(found["error"])
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
            self._child = subprocess.Popen(
                [str(self._python), "-m", "rooftop.core.backends.pallas_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                env=settings.environment({**ENVIRONMENT, **self._more, "PYTHONPATH": str(settings.CHECKOUT)}), start_new_session=True, bufsize=0,
            )  # fmt: skip
        return self._child

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        why = [line for line in lines if re.match(r"F\d{4} |.*Check fail", line)]  # of a compiler that ends itself; after it comes where, at length
        return " ".join((why or lines or ["it said nothing"])[-1].split())[:600]

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _line(source: int, limit: float) -> bytes:
    """One line from a pipe. Raises TimeoutError, EOFError."""
    found, end = b"", time.monotonic() + limit
    while not found.endswith(b"\n"):
        if not select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(source, 1 << 20)
        if not part:
            raise EOFError
        found += part
    return found


_PROCESS: dict[Path, Process] = {}


def process() -> Process:
    """The one that interprets kernels for this Python. Raises PallasError where there is no jax."""
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
    run(given, p, config, on)   the outputs by name, as jax arrays, from inputs by name; late numbers are arrays of one element.
                                `on` says where it runs (rooftop/kernels/_device/tpu.py)
    prepare(given, p)           (where needed) the inputs laid out as the kernel takes them, in numpy, before it
    finish(outputs, p)          (where needed) the outputs in the shapes of `p`, in numpy, after it
    FIGURES                     (where needed) the cases that are compiled for figures; CYCLES = False where libtpu cannot estimate its cycles
    INTERPRETER                 "tpu" for kernels that copy by hand: slower, with memory spaces, semaphores and races; else "plain"

    It takes jax from `rooftop.kernels._device.tpu`, which imports it when it is used: the file itself imports without jax. Tensors are made dense before
    they are handed over, whatever their strides."""

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

    def supports(self, problem: Problem) -> str | None:
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

    def prefers(self, problem: Problem) -> int:
        return 0

    def configs(self, problem: Problem) -> list[Any]:
        return [self.choose(problem)]

    def choose(self, problem: Problem) -> Any:
        return self.module.choose(problem if isinstance(problem.device, tpu.Tpu) else problem.on(tpu.ANY))

    def launches(self, problem: Problem, config: Any) -> list[Launch]:
        return []

    def job(self, problem: Problem, config: Any) -> dict[str, Any]:
        """What a process must know to run or compile it for a problem."""
        facts = base64.b64encode(pickle.dumps(replace(problem, bucket=None))).decode()
        return {"kernel": str(self.path), "problem": facts, "config": self.config_dict(config), "interpreter": self.interpreter}

    def bind(self, problem: Problem, config: Any, names: Sequence[str], index: int) -> Runner:
        """What one call runs on CPU tensors, in the interpreter."""
        assert self.contract is not None, f"{self.name} has no contract"
        contract, worker = self.contract(), process()
        job = {**self.job(problem, config), "what": "run", "late_floats": list(problem.late_floats)}
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
    """A folder in memory, where there is such a thing, for the tensors of one call."""
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
