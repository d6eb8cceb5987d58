"""What runs for one kind of input, prepared once: later calls allocate and launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rooftop.core.call import Call, copied
from rooftop.core.contract import Contract
from rooftop.core.implementation import Launches
from rooftop.core.spec import DTYPES, Meta, Problem

if TYPE_CHECKING:
    from torch import Tensor


class Plan:
    """Everything about one kind of input that is the same in every call."""

    def __init__(self, call: Call, index: int) -> None:
        import torch

        self.call = call
        inputs, outputs = call.inputs, [n for n, _ in call.outputs]
        self._copies = tuple(i for i, n in enumerate(inputs) if n in call.copies)
        self._mutated = tuple(i for i, n in enumerate(inputs) if n in call.mutated and call.called.get(n) is not None)
        self._back = tuple(i for i in self._mutated if i in self._copies)
        self._reused = tuple((outputs.index(out), inputs.index(given)) for out, given in call.reused.items())
        self._outputs = [_allocator(None if n in call.reused else m, index) for n, m in call.outputs]
        self._scratch = [_allocator(m, index, n in call.zeroed) for n, m in call.scratch.items()]
        self._promised = tuple((outputs.index(n), _allocator(m, index)) for n, m in call.promised.items() if n not in call.reused)
        self._results = len(call.op.output_names)
        self.index = index
        self._runner: Any = None
        self._addressed = False
        self._stream = torch._C._cuda_getCurrentRawStream
        self._written = torch.autograd.graph.increment_version

    def runner(self) -> Any:
        if self._runner is None:
            found = self.call.runner(self.index)
            self._addressed = isinstance(found, Launches)
            self._runner = found.addressed if isinstance(found, Launches) else found
        return self._runner

    def __call__(self, tensors: Sequence[Tensor | None], runtime_values: Sequence[int | float] = ()) -> list[Tensor | None]:
        """Returns the outputs. `tensors` are in the order of the call's inputs."""
        run = self._runner or self.runner()
        given: list[Any] = list(tensors)
        for i in self._copies:
            given[i] = copied(given[i])
        made: list[Any] = [make() for make in self._outputs]
        for i in self._mutated:
            if tensors[i] is not None:
                self._written(tensors[i])
        for i, j in self._reused:
            made[i] = given[j].detach()  # so that a gradient has no autograd history
        values = [*given, *made, *[make() for make in self._scratch]]
        stream = self._stream(self.index)
        if self._addressed:
            run(stream, [*[0 if t is None else t.data_ptr() for t in values], *runtime_values])
        else:
            run(stream, [*values, *runtime_values])
        for i in self._back:  # absent tensors are never copied
            tensors[i].copy_(given[i])  # type: ignore[union-attr]
        for i, make in self._promised:
            made[i] = make().copy_(made[i])  # type: ignore[union-attr]
        return made if self._results else []


class Idle:
    """The plan for a kind of input for which there is nothing to write: returns the empty outputs. Nothing is launched. The reference does
    not run either: it may synchronise with the device, which a graph capture does not allow."""

    def __init__(self, op: Contract, problem: Problem, index: int) -> None:
        self.index = index
        self._outputs = [_allocator(problem.get(n), index) for n in op.output_names]

    def __call__(self, tensors: Sequence[Tensor | None], runtime_values: Sequence[int | float] = ()) -> list[Tensor | None]:
        return [make() for make in self._outputs]


def _allocator(meta: Meta | None, index: int, zero: bool = False) -> Callable[[], Tensor | None]:
    import torch

    if meta is None:
        return lambda: None
    dtype = getattr(torch, DTYPES[meta.dtype].torch)
    if zero:
        return partial(torch.zeros, meta.shape, dtype=dtype, device=torch.device("cuda", index))
    # on the current device, which is the plan's; half the host time of torch.empty, as torch.compile calls it too
    return partial(torch._C._dynamo.guards._empty_strided_cuda, meta.shape, meta.strides, dtype)
