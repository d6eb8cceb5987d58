"""A call of a loaded `.cu` on CPU tensors: `rooftop.load` without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.call import Call
from rooftop.core.contract import Contract, metas_of
from rooftop.core.spec import DTYPES, TARGETS, Meta
from rooftop.lab.simt import unavailable
from rooftop.lab.simt.run import run_simulator


def run(op: Contract, implementation: CudaImplementation, values: Mapping[str, Any]) -> list[Any]:
    """The outputs of one call, `values` being the op's tensors and options by name, simulated as on sm_90.

    Raises UnsupportedError for what the kernel does not take, SimulatedFault for a race, an access out of bounds, ..., NotSimulatedError
    for what is not simulated, RuntimeError where there is no C++ compiler."""
    import torch

    if reason := unavailable() or implementation.where().reason:
        raise RuntimeError(f"{implementation.path.name} cannot run on CPU tensors: {reason}")
    tensors, options = op.flattened([values[n] for n in op.kinds])
    problem = op.problem_of(metas_of(tensors), options, TARGETS[max(90, implementation.arch)])
    call = Call.of(op, implementation, problem)

    def allocate(name: str, meta: Meta) -> Any:
        d = DTYPES[meta.dtype]
        made = torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, d.torch))
        return made.zero_() if name in call.zeroed else made

    given = call.given(tensors)
    memory = call.memory(given, {n: options[n] for n in op.runtime_options}, allocate)
    if not call.idle:
        run_simulator(call, memory)
    for name in call.mutated:
        if name in call.copies and tensors[name] is not None:
            tensors[name].copy_(memory[name])
    promised = {n: torch.empty_strided(m.shape, m.strides, dtype=memory[n].dtype).copy_(memory[n]) for n, m in call.promised.items()}
    return [promised.get(n, memory[n]) for n in op.output_names]
