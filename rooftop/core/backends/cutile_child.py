"""The process that imports cuda-tile: reads jobs as JSON lines, compiles one kernel each with tileiras, and answers each with one line.

Started by rooftop/core/backends/aot.py; the only module of the package that imports cuda.tile."""

from __future__ import annotations

import base64
import io
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.core.child import Jobs, cpu_seconds

NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "bool": "bool_",
}


def main() -> None:
    jobs = Jobs()
    for job in jobs:
        try:
            found = compiled(job)
        except Exception as error:
            traceback.print_exception(error)
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        jobs.answer(found)


def compiled(job: Mapping[str, Any]) -> dict[str, Any]:
    import cuda.tile as ct
    from cuda.tile.compilation import CallingConvention, KernelSignature, export_kernel

    from rooftop.core.backends import present
    from rooftop.core.backends.python_files import load_file

    present.provide(ct=ct)
    function = getattr(load_file(Path(job["kernel"])), job["function"])
    symbol = job["function"]
    signature = KernelSignature([_constraint(p) for p in job["parameters"]], CallingConvention.cutile_python_v2(), symbol=symbol)
    kernel = ct.kernel(function, **job["options"])
    code = io.BytesIO()
    started = cpu_seconds()
    export_kernel(kernel, [signature], code, gpu_code=job["target"].rstrip("a"), output_format="cubin")
    return {"code": base64.b64encode(code.getvalue()).decode(), "symbol": symbol, "seconds": round(cpu_seconds() - started, 3)}


def _constraint(parameter: Mapping[str, Any]) -> Any:
    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint, ScalarConstraint

    if "constant" in parameter:
        return parameter["constant"]
    if "scalar" in parameter:
        return ScalarConstraint(getattr(ct, NAMES[parameter["scalar"]]))
    a = parameter["array"]
    return ArrayConstraint(
        getattr(ct, NAMES[a["dtype"]]), a["rank"], index_dtype=ct.int64 if a["wide"] else ct.int32, stride_lower_bound_incl=0,
        alias_groups=(), may_alias_internally=a["overlaps"], stride_constant=[1 if one else None for one in a["ones"]],
        stride_divisible_by=[1 if one else n for one, n in zip(a["ones"], a["strides"], strict=True)], shape_divisible_by=a["extents"],
        base_addr_divisible_by=a["align"],
    )


if __name__ == "__main__":
    main()
