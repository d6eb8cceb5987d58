"""Runs a Python program under torch.profiler or between two CUDA events. Started by command.py, by its path, with the program's own
interpreter.

Needs torch and nothing of rooftop, which that interpreter may lack. Arguments: torch or events, the folder to write to, then file, module
or code, its name, and the program's arguments. Writes `run.json`; with torch also `trace.json` and `averages.txt`."""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def program(kind: str, name: str, arguments: list[str]) -> int:
    """Run it as its interpreter would; returns its exit status."""
    sys.argv = [{"file": name, "module": name, "code": "-c"}[kind], *arguments]
    sys.path.insert(0, str(Path(name).resolve().parent) if kind == "file" else str(Path.cwd()) if kind == "module" else "")
    try:
        if kind == "file":
            runpy.run_path(name, run_name="__main__")
        elif kind == "module":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # KeyboardInterrupt too: what was seen until then is written
        traceback.print_exc()
        return 1
    return 0


def main(how: str, out: Path, kind: str, name: str, arguments: list[str]) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {"how": how}
    try:
        import torch
    except ImportError as error:
        return {**found, "error": f"{sys.executable} has no torch ({error})"}, 1
    gpu = torch.cuda.is_available()
    found.update(torch=torch.__version__, gpu=torch.cuda.get_device_name() if gpu else None)
    if how == "torch":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as profiler:
            status = program(kind, name, arguments)
            if gpu:
                with contextlib.suppress(RuntimeError):  # a kernel that failed: what was recorded before is written
                    torch.cuda.synchronize()
        profiler.export_chrome_trace(str(out / "trace.json"))
        table = profiler.key_averages().table(sort_by="self_cuda_time_total" if gpu else "self_cpu_time_total", row_limit=10)
        (out / "averages.txt").write_text(table, encoding="utf-8")
        return found, status
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if gpu else []
    if events:
        torch.cuda.synchronize()
        events[0].record()
    began = time.perf_counter()
    status = program(kind, name, arguments)
    if events:
        events[1].record()
        torch.cuda.synchronize()
        found.update(events_s=events[0].elapsed_time(events[1]) * 1e-3, peak_bytes=torch.cuda.max_memory_allocated())
    return {**found, "wall_s": time.perf_counter() - began}, status


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if not p or Path(p).resolve() != here]  # this file's folder, whose numbers.py is not Python's
    folder = Path(sys.argv[2]).resolve()  # the program may change the folder it is in
    said, status = main(sys.argv[1], folder, sys.argv[3], sys.argv[4], sys.argv[5:])
    sys.stdout.flush()
    (folder / "run.json").write_text(json.dumps({**said, "status": status}), encoding="utf-8")
    sys.exit(status)
