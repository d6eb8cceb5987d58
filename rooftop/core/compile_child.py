"""The process in which NVRTC compiles what is not the package's own: it reads jobs as JSON lines and answers each with one line.

Confined (`sandbox`) once NVRTC is loaded: a source can include, and so quote in an error, CUDA's headers and those of
rooftop/kernels/_device alone."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.core import compile as compiling
from rooftop.core import helpers, sandbox
from rooftop.core.child import Jobs


def main() -> None:
    jobs = Jobs()
    with contextlib.suppress(compiling.ToolchainError):
        compiling.compiled("extern \"C\" __global__ void k() {}", "first.cu", "sm_80", ["k"], ())  # loads all that NVRTC loads
        sandbox.confine_tool([*map(Path, compiling.cuda_include()), helpers.KERNELS])
    for job in jobs:
        jobs.answer(_answer(job))


def _answer(job: Mapping[str, Any]) -> dict[str, Any]:
    try:
        made = compiling.compiled(
            job["source"], job["kernel"], job["target"], job["kernels"], job["options"], tuple(map(Path, job["folders"]))
        )
    except compiling.CompileError as error:
        return {"refused": str(error)}
    except compiling.ToolchainError as error:
        return {"absent": str(error)}
    return {"cubin": base64.b64encode(made.cubin).decode(), "names": made.names, "log": made.log}


if __name__ == "__main__":
    main()
