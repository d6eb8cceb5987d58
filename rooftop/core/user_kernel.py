"""A `.cu` file as a callable on torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from rooftop.core import registry
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.call import Call
from rooftop.core.contract import metas_of
from rooftop.core.dispatch import _device, _device_index
from rooftop.core.head import HeadError
from rooftop.core.plans import Plan
from rooftop.core.public_arguments import arguments_of


class Loaded:
    """The return value of `rooftop.load`. Calls with a known kind of input only launch. `on_cpu(op, implementation, values)` runs the
    kernel on CPU tensors.

    Results have no gradient: an input that requires one is an error."""

    def __init__(self, path: Path, source: str | None, on_cpu: Callable[..., Any]) -> None:
        self._on_cpu = on_cpu
        if source is None and not path.is_file():
            raise FileNotFoundError(registry.no_file(path))
        if source is None:
            found = registry.user_file(path)
            if not isinstance(found, CudaImplementation):
                raise HeadError(f"{path}: load takes a .cu file")
            self.implementation = found
        else:
            draft = CudaImplementation(path, "", text=source)
            if draft.head.op is None:
                raise HeadError(registry.no_op(path))
            self.implementation = CudaImplementation(path, draft.head.op, text=source)
        self.op = registry.op(self.implementation.op)
        self._plans: dict[Any, Plan] = {}

    def __repr__(self) -> str:
        return f"<{self.implementation.path.name}: {self.op.name}({', '.join(self.op.kinds)})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        values = self._bind(args, kwargs)
        tensors = [v for n, v in values.items() if n in self.op.tensor_names]
        if torch.is_grad_enabled():
            self._refuse_gradients(values)
        present = [t for t in tensors if t is not None]
        if present and all(isinstance(t, torch.Tensor) and t.device.type == "cpu" for t in present):
            made = self._on_cpu(self.op, self.implementation, values)
            return made[0] if len(made) == 1 else tuple(made)
        key = tuple(
            (v.shape, v.stride(), v.dtype, v.device, v.data_ptr() & 15) if n in self.op.tensor_names and v is not None else v
            for n, v in values.items()
            if n not in self.op.runtime_options
        )
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(values)
        with torch.cuda.device(next(t for t in tensors if t is not None).device):
            made = plan(tensors, [values[n] for n in self.op.runtime_options])
        return made[0] if len(made) == 1 else tuple(made)

    def _refuse_gradients(self, values: dict[str, Any]) -> None:
        wanting = [n for n, v in values.items() if n in self.op.tensor_names and getattr(v, "requires_grad", False)]
        if wanting:
            raise RuntimeError(
                f"{self!r}: {', '.join(wanting)} requires a gradient, and a kernel that was loaded has none: "
                "call it under torch.no_grad(), or with .detach()"
            )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, in the contract's order. Raises TypeError as a Python function does."""
        import inspect

        import torch

        if self._called_as_public(args, kwargs):  # it computes missing arguments: dims from a shape, a dim from its end
            assert self._public is not None
            return dict(zip(self.op.kinds, arguments_of([self.op], self._public, *args, **kwargs)[1], strict=True))
        bound = inspect.signature(self.op.reference).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        missing = [n for n, kind in self.op.kinds.items() if n not in bound.arguments and kind != "Tensor | None"]
        if missing:
            raise TypeError(f"{self!r} lacks {', '.join(missing)}")
        values = {n: bound.arguments.get(n) for n in self.op.kinds}
        for n in self.op.tensor_names:
            if not isinstance(values[n], torch.Tensor) and (values[n] is not None or self.op.kinds[n] != "Tensor | None"):
                raise TypeError(f"{self!r}: {n} is a {type(values[n]).__name__}; it must be a tensor")
        return values

    def _called_as_public(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the arguments are those of the public function: they match its signature, and either mean the same there or are not all
        that the contract requires."""
        if self._public is None:
            return False
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return False
        first = list(self._signature.parameters)[: len(args)]
        if first == list(self.op.kinds)[: len(args)]:
            return True
        given = {*list(self.op.kinds)[: len(args)], *kwargs}
        return any(n not in given for n, kind in self.op.kinds.items() if kind != "Tensor | None")

    @cached_property
    def _signature(self) -> Any:
        import inspect

        return inspect.signature(self._public)  # type: ignore[arg-type]

    @cached_property
    def _public(self) -> Callable[..., Any] | None:
        """The public function of the op; None for a backward, and for an op that takes or returns objects."""
        name = self.op.name
        return None if name not in registry.op_names() or self.op.objects else registry.public(name)

    def _plan(self, values: dict[str, Any]) -> Plan:
        tensors = {n: v for n, v in values.items() if n in self.op.tensor_names}
        for name, tensor in tensors.items():
            if tensor is not None and not getattr(tensor, "is_cuda", False):
                where = getattr(tensor, "device", "no device")
                raise ValueError(
                    f"{self!r}: {name} is a {type(tensor).__name__} on {where}; all tensors must be on one GPU, or all on the CPU"
                )
        index = _device_index(self.op, tensors)
        problem = self.op.problem_of(metas_of(tensors), {n: v for n, v in values.items() if n not in tensors}, _device(index))
        return Plan(Call.of(self.op, self.implementation, problem), index)
