"""The process that has Huawei's Triton: one of the project's Triton kernels compiled for an Ascend, as far as it goes without a chip's
toolkit.

    python -m rooftop.lab.npu.ascend_child IMPLEMENTATION CASE TARGET FOLDER

Prints one line of JSON: for each launch the kernel and what came of it. `triton.language.extra.cuda`, which kernels import for programmatic
dependent launch, is answered by a stand-in: no Ascend has it, and kernels ask a constexpr before they use it; functions of libdevice are
Ascend's of that name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i64": 8, "f64": 8}
SPACES = {"ub": "ub", "cbuf": "l1", "cc": "l0c", "ca": "l0a", "cb": "l0b"}


def stand_in() -> None:
    import triton

    @triton.jit  # type: ignore[untyped-decorator]
    def nothing() -> None:
        pass

    module: Any = types.ModuleType("triton.language.extra.cuda")
    module.gdc_wait = module.gdc_launch_dependents = nothing
    module.libdevice = importlib.import_module("triton.language.extra.ascend.libdevice")
    sys.modules[module.__name__] = module


def main(name: str, case: str, target: str, folder: Path) -> None:
    try:
        stand_in()
        found = [compiled(launch, facts, target, folder / str(i)) for i, (launch, facts) in enumerate(launches(name, case))]
    except Exception as error:  # an import that this Triton has not, a feature of a later one
        found = [{"kernel": name, "refused": said(error)}]
    print(json.dumps(found))


def said(error: BaseException) -> str:
    """The last cause, in a line: what stands behind the listing of the kernel, or the compiler's first error."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if found := re.search(r"error: ([^\n]+)", text):
        text = found[1]
    elif behind := text.rpartition("^")[2].strip():
        text = behind
    return f"{type(error).__name__}: {' '.join(text.split())[:200]}"


def launches(name: str, case_name: str) -> list[tuple[Any, Mapping[str, Any]]]:
    from rooftop.core import registry
    from rooftop.core.call import problem_for_kernels
    from rooftop.core.spec import TARGETS

    implementation = registry.implementation(name)
    op = registry.op(implementation.op)
    problem = problem_for_kernels(op, op.problem(op.case(case_name), TARGETS[80]))[0]
    module: Any = implementation.module  # type: ignore[attr-defined]
    if reason := module.supports(problem):
        raise ValueError(reason)
    config = implementation.choose(problem)
    tensors = {
        **dict(problem.tensors), **implementation.scratch(problem, config),
        **{n: n in problem.runtime_floats for n in problem.runtime_options}
    }
    return [(launch, tensors) for launch in implementation.launches(problem, config)]


def described(launch: Any, tensors: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The signature (types of what is given at a launch) and the constants, as Triton 3.2 takes them."""
    from rooftop.core.spec import DTYPES, Descriptor, Meta

    kernel = launch.kernel
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {p.name: p.default for p in kernel.params if p.is_constexpr and p.has_default}
    constexpr = {p.name for p in kernel.params if p.is_constexpr}
    for parameter, value in launch.args.items():
        if isinstance(value, Descriptor):
            raise TypeError(f"{parameter} is a tensor descriptor, which Triton 3.2 has not")
        if parameter in constexpr or value is None:
            constants[parameter] = value
        elif isinstance(value, str) and value in tensors:
            meta = tensors[value]
            if meta is None:
                constants[parameter] = None
            elif isinstance(meta, Meta):
                signature[parameter] = f"*{DTYPES[meta.dtype].triton}"
            else:
                signature[parameter] = "fp32" if meta else "i32"
        elif isinstance(value, bool):
            signature[parameter] = "i1"
        elif isinstance(value, float):
            signature[parameter] = "fp32"
        else:
            signature[parameter] = "i32" if -(2**31) <= value < 2**31 else "i64"
    return {n: signature[n] for n in kernel.arg_names if n in signature}, constants  # Triton 3.2 goes by their order


def compiled(launch: Any, tensors: Mapping[str, Any], target: str, folder: Path) -> dict[str, Any]:
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = launch.kernel
    found: dict[str, Any] = {"kernel": kernel.__name__}
    stages = backends["ascend"].compiler.add_stages.__globals__
    original, caught = stages["ttir_to_linalg"], {}

    def catch(module: Any, metadata: Any, options: Any, **more: Any) -> Any:
        caught["linalg"] = original(module, metadata, options, **more)
        return caught["linalg"]

    stages["ttir_to_linalg"] = catch
    try:
        signature, constants = described(launch, tensors)
        triton.compile(ASTSource(fn=kernel, signature=signature, constants=constants), target=GPUTarget("npu", target, 0))
    except Exception as error:  # without Huawei's toolkit the last stage always fails: what counts is whether the one before was reached
        if "linalg" not in caught:
            return {**found, "refused": f"Triton's front end: {said(error)}"}
    finally:
        stages["ttir_to_linalg"] = original
    text, metadata = stages["_parse_linalg_metadata"](caught["linalg"], {})
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "kernel.mlir"
    source.write_text(text, encoding="utf-8")
    package = importlib.util.find_spec("ascendnpuir")
    assert package is not None and package.origin is not None, "ascendnpu-ir is not installed"
    ran = subprocess.run(
        [str(Path(package.origin).parent / "bin" / "bishengir-compile"), str(source), f"--target={target}", "--enable-hfusion-compile=true",
         "--enable-triton-kernel-compile=true", "--enable-hivm-compile=true", f"--save-temps={folder}", "-o", str(folder / "kernel.o")],
        capture_output=True, text=True, check=False, timeout=300,
    )
    made = folder / "module.hivm.opt.mlir"
    if not made.is_file():
        errors = [line for line in (ran.stdout + ran.stderr).splitlines() if "error:" in line and "hivmc" not in line]
        telling = [
            line for line in errors if "Failed to run" not in line
        ] or errors or [f"error: exit code {ran.returncode}, without a reason"]
        words = telling[0].partition("error: ")[2].partition(" (possible reason")[0]
        return {**found, "refused": f"bishengir: {' '.join(words.split())[:300]}"}
    return {**found, "mix": metadata.get("mix_mode", ""), **planned(made.read_text(encoding="utf-8"))}


def planned(hivm: str) -> dict[str, int]:
    """Bytes of each memory up to the end of the last buffer planned in it, loops over single elements, and flags between pipes."""
    constants = {m[0]: int(m[1]) for m in re.findall(r"(%c\w+) = arith\.constant (-?\d+) : i64", hivm)}
    ends: dict[str, int] = {}
    pattern = r"pointer_cast\((%\w+)(?:, %\w+)*\)[^:]*: memref<([\w?]+)(?:, [^#>]*(?:<[^>]*>)?)?, #hivm\.address_space<(\w+)>"
    for offset, shape, space in re.findall(pattern, hivm):
        *extents, kind = shape.split("x")
        if space in SPACES and offset in constants and "?" not in extents:
            size = BYTES.get(kind, 4)
            for extent in extents:
                size *= int(extent)
            ends[SPACES[space]] = max(ends.get(SPACES[space], 0), constants[offset] + size)
    return {
        **ends, "loops": len(re.findall(r"memref\.load", hivm)), "vector_calls": len(re.findall(r"call @v\w+", hivm)),
        "flags": hivm.count("set_flag[")
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
