"""The process that imports nvidia-cutlass-dsl: reads jobs as JSON lines, compiles one kernel each, and answers each with one line.

Started by rooftop/core/backends/aot.py, which sets the environment; the only module of the package that imports cutlass. The language
compiles a kernel and then loads it, which fails without a driver; by then the cubin is in the working folder."""

from __future__ import annotations

import base64
import os
import re
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.core.child import Jobs, cpu_seconds

NAMES = {
    "f64": "Float64", "f32": "Float32", "f16": "Float16", "bf16": "BFloat16", "f8e4m3": "Float8E4M3FN", "f8e5m2": "Float8E5M2",
    "i64": "Int64", "i32": "Int32", "i16": "Int16", "i8": "Int8", "u64": "Uint64", "u32": "Uint32", "u16": "Uint16", "u8": "Uint8",
}


def main() -> None:
    jobs = Jobs()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for job in jobs:
            try:
                found = compiled(job, Path(folder))
            except Exception as error:
                traceback.print_exception(error)
                found = {"error": f"{type(error).__name__}: {plain(str(error))[:600]}"}
            jobs.answer(found)


def plain(text: str) -> str:
    return " ".join(re.sub(r"\x1b?\[\d+m", "", text).split())


def compiled(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    import cutlass
    from cutlass import cute

    from rooftop.core.backends import present
    from rooftop.core.backends.python_files import load_file

    present.provide(cute=cute, cutlass=cutlass)
    function = getattr(load_file(Path(job["kernel"])), job["function"])
    for old in folder.glob("*.cubin"):
        old.unlink()
    started = cpu_seconds()
    try:
        cute.compile(function, *[_argument(p) for p in job["parameters"]])
    except Exception:
        if not any(folder.glob("*.cubin")):
            raise
    seconds = cpu_seconds() - started
    made = list(folder.glob("*.cubin"))
    if len(made) != 1:
        raise ValueError(f"the language left {len(made)} cubins where one is expected")
    code = made[0].read_bytes()
    return {"code": base64.b64encode(code).decode(), "symbol": symbol(code), "seconds": round(seconds, 3)}


def symbol(code: bytes) -> str:
    """The one kernel of a cubin. Raises ValueError where there are several."""
    found = sorted(set(re.findall(rb"\0\.text\.([^\0]+)\0", code)))
    if len(found) != 1:
        raise ValueError(f"the function launches {len(found)} kernels; it must launch one")
    return found[0].decode()


def _argument(parameter: Mapping[str, Any]) -> Any:
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_ptr

    if "constant" in parameter:
        return parameter["constant"]
    if "scalar" in parameter:
        return getattr(cutlass, NAMES[parameter["scalar"]])(1)
    return make_ptr(getattr(cutlass, NAMES[parameter["pointer"]]), 256, cute.AddressSpace.gmem, assumed_align=parameter["align"])


if __name__ == "__main__":
    main()
