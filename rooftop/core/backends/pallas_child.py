"""The process that imports jax: reads jobs as JSON lines, runs kernels in the interpreter or compiles them with libtpu, and answers each
with one line.

Started by rooftop/core/backends/pallas.py, which sets the environment; the only module of the package that imports jax."""

from __future__ import annotations

import base64
import json
import pickle
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rooftop.core.child import Jobs

NUMPY = {"f32": "float32", "bf16": "bfloat16", "i32": "int32", "u32": "uint32", "i16": "int16", "u16": "uint16", "i8": "int8",
         "u8": "uint8", "bool": "bool", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}


def main() -> None:
    jobs = Jobs()
    for job in jobs:
        try:
            found = {"run": run, "compile": compile_}[job["what"]](job)
        except Exception as error:
            found = {"error": said(error)}
        jobs.answer(found)


def said(error: BaseException) -> str:
    """The text of an error, or that of its cause if a callback of the interpreter raised it, without the compiler's dump."""
    text = str(error)
    causes = re.findall(r"^(?:\w+\.)*(\w*Error|\w*Exception): (.+)$", text, re.M)
    kind, words = causes[-1] if "callback" in text and causes else (type(error).__name__, text)
    traceback.print_exception(error)
    return f"{kind}: {' '.join(words.split())[:600]}"


def dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    known = NUMPY[name]
    return np.dtype(getattr(ml_dtypes, known)) if hasattr(ml_dtypes, known) else np.dtype(known)


def loaded(job: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """(module, problem, config)"""
    from rooftop.core.backends.python_files import load_file

    module = load_file(Path(job["kernel"]))
    config = module.Config(**job["config"]) if hasattr(module, "Config") else job["config"]
    return module, pickle.loads(base64.b64decode(job["problem"])), config


_COMPILED: dict[str, Callable[..., Any]] = {}


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    import jax
    import numpy as np
    from jax.experimental.pallas import tpu as pltpu

    from rooftop.core.tpu import On

    module, problem, config = loaded(job)
    given = {n: np.fromfile(a["file"], dtype(a["dtype"])).reshape(a["shape"]) for n, a in job["arrays"].items()}
    for name, value in job["numbers"].items():
        given[name] = np.array([value], np.float32 if name in job["runtime_floats"] else np.int32)
    if hasattr(module, "prepare"):
        given = module.prepare(given, problem)
    careful = job["interpreter"] == "tpu"
    key = json.dumps([job["kernel"], job["problem"], job["config"], job["interpreter"]])
    if key not in _COMPILED:
        how = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise") if careful else True
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
        _COMPILED.clear()
        _COMPILED[key] = jax.jit(lambda arrays: module.run(arrays, problem, config, On(how, problem.device.shared_per_block, mesh)))
    try:
        with abstract(problem.device):
            outputs = jax.block_until_ready(_COMPILED[key](given))
        if careful and races():
            raise RuntimeError("RACE: two accesses of the same memory with no wait between them, one of them a write")
    except Exception:
        pltpu.reset_tpu_interpret_mode_state()
        _COMPILED.clear()
        raise
    finished = {n: np.asarray(a) for n, a in outputs.items()}
    if hasattr(module, "finish"):
        finished = module.finish(finished, problem)
    for name, wanted in job["results"].items():
        array = finished[name]
        if array.shape != tuple(wanted["shape"]) or array.dtype != dtype(wanted["dtype"]):
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; the contract has {wanted['dtype']}{wanted['shape']}")
        np.ascontiguousarray(array).tofile(wanted["file"])
    return {}


def races() -> bool:
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    found = interpret_pallas_call.races  # of the last call that was interpreted
    return found is not None and bool(found.races_found)


def abstract(device: Any) -> Any:
    """The chip for tracing a kernel: `emit_pipeline` asks for one, though there is none."""
    import jax

    about = jax.sharding.AbstractDevice(device_kind=device.kind, num_cores=1, platform="tpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=about))


def compile_(job: Mapping[str, Any]) -> dict[str, Any]:
    """The kernel compiled by libtpu for its problem's chip: bytes of memory and of code. The bundles are in the folder that
    `LIBTPU_INIT_ARGS` names."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, SingleDeviceSharding

    from rooftop.core.tpu import On

    module, problem, config = loaded(job)
    chips = topologies.get_topology_desc(platform="tpu", topology_name=problem.device.topology).devices
    mesh = Mesh(np.array(chips[:4]), ("x",))
    several = getattr(module, "DEVICES", 1) > 1
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()) if several else SingleDeviceSharding(chips[0])
    arrays = {n: np.broadcast_to(np.zeros((), dtype(m.dtype)), m.shape) for n, m in problem.tensors if m is not None and n in job["inputs"]}
    arrays.update((n, np.zeros(1, np.float32 if n in problem.runtime_floats else np.int32)) for n in problem.runtime_options)
    arrays = module.prepare(arrays, problem) if hasattr(module, "prepare") else arrays
    given = {n: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where) for n, a in arrays.items()}
    on = On(False, problem.device.shared_per_block, mesh)
    with abstract(problem.device):
        made = jax.jit(lambda arrays: module.run(arrays, problem, config, on)).lower(given).compile()
    memory, text = made.memory_analysis(), made.as_text()
    calls = re.findall(r"^\s*(?:ROOT )?%?([\w.-]+) = .*custom_call_target=\"tpu_custom_call\"(.*)$", text, re.M)
    lists = [m for _, rest in calls for m in re.findall(r'"used_scoped_memory_configs":\[(.*?)\]', rest)]
    used = [sum(int(n) for n in re.findall(r'"memory_space":"1"[^}]*"size":"(\d+)"', one)) for one in lists]
    return {
        "kernels": [name for name, _ in calls], "vmem": max(used, default=0), "code": memory.generated_code_size_in_bytes,
        "hbm": memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes,
        "hbm_temporary": memory.temp_size_in_bytes,
    }


if __name__ == "__main__":
    main()
