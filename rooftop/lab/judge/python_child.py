"""The process in which a submission in Python runs: without the reference, right results, timer or board. Inputs come and outputs leave
through memory that is shared with the judge; an answer says only what was returned.

It keeps itself from files and network before it loads the submission. What the submission does to this process can spoil its own outputs
alone: the judge reads them, from outside."""

from __future__ import annotations

import contextlib
import errno
import inspect
import mmap
import os
import site
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rooftop.core import sandbox, settings
from rooftop.core.child import Jobs
from rooftop.core.spec import DTYPES, dtype_of

FILE_BYTES = 16 << 20  # that it may print, or write into a file


def main() -> None:
    import torch

    memory, size, cpu, gpu = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "gpu"
    with open(memory, "r+b") as file:
        shared = mmap.mmap(file.fileno(), size)
    torch.set_num_threads(1)
    if not gpu:
        torch.set_num_interop_threads(1)
    from rooftop.lab.interpret import host, interpreter, stand_in, wrappers  # before the files are closed to this process

    _ = interpreter, stand_in, wrappers
    source = Path(sys.argv[5])
    text = source.read_bytes()
    sandbox.limits(cpu, FILE_BYTES)
    confined = not gpu and sandbox.confine_python(_readable(source), _listed(), [Path(tempfile.gettempdir())])
    child = Judged(shared, host, source, text, gpu)
    jobs = Jobs()
    for job in jobs:
        jobs.answer({"n": job["n"], **child.answer(job, confined)})


def _listed() -> Iterator[Path]:
    """Folders in which Python looks for modules."""
    yield from (Path(p) for p in (*sys.path, *site.getsitepackages()) if p and Path(p).is_dir())


def _readable(source: Path) -> Iterator[Path]:
    """Python and its packages; of this one what runs here, no contract, kernel or rung."""
    yield source
    yield from (
        settings.PACKAGE / "core", settings.PACKAGE / "lab" / "interpret", settings.PACKAGE / "lab" / "__init__.py",
        settings.PACKAGE / "__init__.py",
    )
    yield from (Path(sysconfig.get_path(n)) for n in ("stdlib", "platstdlib"))
    yield Path(sys.executable)
    for folder in site.getsitepackages():
        for entry in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if entry.resolve() != settings.PACKAGE and not entry.name.endswith((".pth", ".egg-link")) and "rooftop" not in entry.name:
                yield entry
    yield from (Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/self/stat"), Path("/usr/share/zoneinfo"))


class Judged:
    def __init__(self, shared: mmap.mmap, host: Any, source: Path, text: bytes, gpu: bool) -> None:
        import torch

        self.shared, self.host, self.source, self.gpu, self.text = shared, host, source, gpu, text
        self.plain, self.kind, self.copy = torch.Tensor, type, torch.Tensor.copy_  # as they are before a submission can replace them
        self.watch = host.Watch(choice=0, seconds=600.0, total=1e9)
        self.function: Callable[..., Any] | None = None
        self.names: dict[str, Any] = {}
        self.patched: set[str] = set()
        self.sets: list[dict[str, Any]] = []  # tensors of the judge's, on a GPU

    def _known(self) -> dict[str, Any]:
        """What a submission must not replace."""
        import torch

        at: list[tuple[Any, str]] = [
            *((time, n) for n in ("time", "perf_counter", "monotonic", "sleep")),
            *((torch.cuda, n) for n in ("synchronize", "Event", "Stream", "CUDAGraph")),
            *((torch.Tensor, n) for n in ("copy_", "clone", "data_ptr", "__eq__", "equal", "double", "to", "numpy")),
            *((torch, n) for n in ("Tensor", "allclose", "equal", "empty", "frombuffer", "isnan", "softmax", "matmul", "manual_seed")),
            *((os, n) for n in ("write", "dup", "fork", "_exit")), (Jobs, "answer"), (sys, "settrace"),
        ]
        return {f"{getattr(o, '__name__', o)}.{n}": inspect.getattr_static(o, n, None) for o, n in at}

    def answer(self, job: Mapping[str, Any], confined: bool) -> dict[str, Any]:
        try:
            if job["what"] == "loading":
                return self._load(job, confined)
            if job["what"] == "opening":
                return self._open(job)
            return self._time(job) if job["what"] == "timing" else self._call(job)
        except BaseException as error:
            return self._raised(error)

    def _raised(self, error: BaseException) -> dict[str, Any]:
        kind = "raises"
        if isinstance(error, PermissionError):
            kind = "denied"
        elif isinstance(error, MemoryError) or "not enough memory" in str(error) or "Cannot allocate memory" in str(error):
            kind = "memory"
        elif isinstance(error, OSError) and error.errno == errno.EFBIG:
            kind = "printed"
        elif isinstance(error, SystemExit):
            kind = "ended"
        elif type(error).__name__ == "OutOfBounds":
            kind = "beyond"
        elif type(error).__name__ == "RaceBetweenPrograms":
            kind = "race"
        elif type(error).__name__ in ("Misaligned", "ReadOnly", "DeviceAssert"):
            kind = "fault"
        said = " ".join(str(error).split())[:300]
        return {"raised": kind, "text": f"{self.host.place(self.source, error)}: {type(error).__name__}: {said}"}

    @contextlib.contextmanager
    def _standing(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.gpu else self.host.standing_in(self.watch):
            before = self._known()
            try:
                yield
            finally:
                now = self._known()
                self.patched |= {n for n, v in before.items() if now[n] is not v}

    def _load(self, job: Mapping[str, Any], confined: bool) -> dict[str, Any]:
        import types

        module = types.ModuleType("rooftop._files.submission")
        module.__file__ = str(self.source)
        sys.modules[module.__name__] = module
        with self._standing():
            exec(compile(self.text, str(self.source), "exec", dont_inherit=True), vars(module))
        self.names = vars(module)
        value = self.names.get(job["name"])
        if not callable(value):
            return {"raised": "broken", "text": f"{job['name']} is no function once the file is loaded"}
        self.function = value
        listed = (
            []
            if job["name"] == "ModelNew"
            else [
                {"name": p.name, "default": p.default is not p.empty, "open": p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
                for p in inspect.signature(value).parameters.values()
            ]
        )
        return {"parameters": listed, "kept": confined}

    def _tensor(self, said: Mapping[str, Any]) -> Any:
        import torch

        count = 1
        for n in said["shape"]:
            count *= n
        dtype = getattr(torch, DTYPES[said["dtype"]].torch)
        tensor = torch.frombuffer(self.shared, dtype=dtype, count=count, offset=said["at"]) if count else torch.empty(0, dtype=dtype)
        tensor = tensor.reshape(said["shape"])
        return tensor.cuda() if self.gpu else tensor

    def _call(self, job: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        arguments = [self._tensor(a) if isinstance(a, dict) else a for a in job["arguments"]]
        named = dict(job["named"])
        function = self.function
        assert function is not None
        self.watch.launches.clear()
        with self._standing(), torch.no_grad():
            if job["made"] is not None:
                function = self._model(job)
            poison = [torch.full((max(1, n // 4),), float("nan")) for n in job["bytes"] if not self.gpu]
            del poison  # what an allocator hands out next holds no old result
            returned = function(*arguments, **named)
        if self.gpu:
            torch.cuda.synchronize()
        results = list(returned) if isinstance(returned, tuple | list) else [returned]
        said: list[dict[str, Any]] = []
        for at, room, result in zip(job["at"], job["bytes"], results, strict=False):
            if self.kind(result) not in (self.plain, torch.nn.Parameter):
                return {
                    "raised": "lazy" if isinstance(result, self.plain) else "shape", "text": f"it returns a {self.kind(result).__name__}",
                }
            copied = result.detach().cpu().contiguous()
            if 0 < (size := copied.numel() * copied.element_size()) <= room:
                self.copy(torch.frombuffer(self.shared, dtype=torch.uint8, count=size, offset=at), copied.reshape(-1).view(torch.uint8))
            said.append({"dtype": dtype_of(copied.dtype), "shape": list(copied.shape)})
        launches = self.watch.launches.values()
        return {
            "results": said, "count": len(results), "patched": sorted(self.patched), "launches": sum(x.times for x in launches),
            "loaded": sum(x.loaded for x in launches), "stored": sum(x.stored for x in launches),
        }

    def _open(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Memory of the judge's GPU context, before the submission is loaded."""
        import base64

        import torch

        def opened(said: Mapping[str, Any]) -> Any:
            parts = [base64.b64decode(p) if isinstance(p, str) else p for p in said["storage"]]
            tensor = torch.empty(0, dtype=getattr(torch, said["dtype"]), device="cuda")
            return tensor.set_(torch.UntypedStorage._new_shared_cuda(*parts), said["offset"], said["shape"], said["strides"])

        self.sets = [{n: opened(t) for n, t in one.items()} for one in job["sets"]]
        return {"seconds": 0.0}

    def _time(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Calls on memory of the judge's GPU context, each output copied there; the seconds of this process's events."""
        import torch

        assert self.function is not None
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        with torch.no_grad():
            for k in range(job["count"]):
                i = k % len(self.sets)
                result = self.function(*(self.sets[i][n] for n in job["given"][i]))
                for n, t in zip(job["made"][i], result if isinstance(result, tuple | list) else [result], strict=True):
                    self.sets[i][n].copy_(t)
        end.record()
        torch.cuda.synchronize()
        return {"seconds": float(begin.elapsed_time(end)) * 1e-3}

    def _model(self, job: Mapping[str, Any]) -> Any:
        import torch

        torch.manual_seed(job["seed"])
        model = self.names["ModelNew"](*job["made"]).eval()
        state = {n: self._tensor(t) for n, t in job["state"].items()}
        if state and set(model.state_dict()) == set(state):
            model.load_state_dict({n: t.clone() for n, t in state.items()})
        return model.cuda() if self.gpu else model


if __name__ == "__main__":
    main()
